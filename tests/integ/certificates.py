"""A CA and the certificates of a service, made with the commands of docs/operations.md and gone with the test.

    with Certificates() as c:
        c.issue("node", "IP:127.0.0.1,DNS:localhost")
        Service(flags=c.flags("node"))                 # --tls-cert, --tls-key, --tls-ca
        c.context()                                    # an ssl context that trusts the CA
"""
import os
import shutil
import ssl
import subprocess
import tempfile

HERE = "IP:127.0.0.1,DNS:localhost"
NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


def openssl(*args):
    subprocess.run(["openssl", *args], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)


class Certificates:
    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="sluice-tls-")
        self.make_ca("ca")

    def __enter__(self):
        return self

    def __exit__(self, *why):
        shutil.rmtree(self.dir, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.dir, name)

    def write(self, name, text):
        with open(self.path(name), "w") as f:
            f.write(text)
        return self.path(name)

    def make_ca(self, name):
        openssl("req", "-x509", *NEW_KEY, "-keyout", self.path(f"{name}.key"), "-out", self.path(f"{name}.pem"), "-days", "30",
                "-subj", f"/CN={name} of a test")

    def issue(self, name, san=HERE, ca="ca", days=30):
        """days negative: it has expired."""
        openssl("req", *NEW_KEY, "-keyout", self.path(f"{name}.key"), "-out", self.path(f"{name}.csr"), "-subj", f"/CN={name}")
        extensions = self.write(f"{name}.ext", f"subjectAltName={san}\nextendedKeyUsage=serverAuth,clientAuth\n")
        openssl("x509", "-req", "-in", self.path(f"{name}.csr"), "-CA", self.path(f"{ca}.pem"), "-CAkey", self.path(f"{ca}.key"),
                "-CAcreateserial", "-days", str(days), "-extfile", extensions, "-out", self.path(f"{name}.pem"))

    def replace(self, name, other):
        for end in ("key", "pem"):
            shutil.copy(self.path(f"{other}.{end}"), self.path(f"{name}.{end}"))

    def serial(self, name):
        out = subprocess.run(["openssl", "x509", "-in", self.path(f"{name}.pem"), "-noout", "-serial"], check=True, capture_output=True)
        return out.stdout.decode().strip().partition("=")[2]

    def flags(self, name, ca="ca"):
        return ["--tls-cert", self.path(f"{name}.pem"), "--tls-key", self.path(f"{name}.key"),
                *(["--tls-ca", self.path(f"{ca}.pem")] if ca else [])]

    def context(self, ca="ca", show=None):
        """For a client: trusts ca; shows the certificate of that name, or none."""
        c = ssl.create_default_context(cafile=self.path(f"{ca}.pem"))
        if show:
            c.load_cert_chain(self.path(f"{show}.pem"), self.path(f"{show}.key"))
        return c
