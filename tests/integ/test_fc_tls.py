"""A service whose processes show each other certificates: it works as the plain one does, takes new files without a dropped stream,
and lets nobody else in. FC-72: whatever a stranger says to a port, it is closed in time and disturbs nobody."""
import http.client
import os
import re
import select
import signal
import socket
import ssl
import subprocess
import sys
import time

from certificates import Certificates
from faults import listening_ports
from runner import Skip
from service import BIN, SLACK, Call, Service, case, ids, run, wait_for

CLOSED_S = 10
GROWTH_KIB = 8 << 10


class SecureCall(Call):
    """Call over TLS."""

    context = None

    def secure(self):
        self.sock = self.context.wrap_socket(self.sock, server_hostname="127.0.0.1")


class SecureService(Service):
    """A fake service with certificates; certs.flags("node") unless said otherwise."""

    def __init__(self, certs, flags=(), ca="ca", **more):
        self.certs = certs
        if not os.path.exists(certs.path("node.pem")):
            certs.issue("node")
        super().__init__(flags=[*certs.flags("node", ca), "--link", "tcp", *flags], **more)

    def connection(self, timeout):
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=self.certs.context())

    def new_call(self, path, body, **how):
        c = SecureCall(self.port, path, body, **how)
        c.context = self.certs.context()
        return c

    def hang_up(self):
        """SIGHUP to the launcher, which passes it on; waits until each process has said how it went."""
        before = self.reread()
        os.kill(self.starter_pid(), signal.SIGHUP)
        wait_for(lambda: self.reread() >= before + len(self.parts()), 5, "every process reads its files again")

    def reread(self):
        return len(re.findall(r"node\.pem read again|certificates stay as they were", self.log()))

    def shown_serial(self):
        """Of the certificate that a new connection is shown."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5 * SLACK) as raw:
            with self.certs.context().wrap_socket(raw, server_hostname="127.0.0.1") as s:
                return s.getpeercert()["serialNumber"]


# --- it works ------------------------------------------------------------------------------------------------------------------------

@case("full", seconds=60)
def fc_tls_streams_go_on_over_a_killed_stage_and_new_certificates():
    with Certificates() as certs, SecureService(certs, stages=3, mpi=False, flags=["--restarts", "100"]) as s:
        jobs = [(ids(30, i), 500) for i in range(4)]
        calls = [(s.call(p, n), p, n) for p, n in jobs]
        for c, *_ in calls:
            c.wait_tokens(10)
        s.kill(1)
        for c, *_ in calls:
            c.wait_tokens(len(c.times()) + 10)
        old = s.shown_serial()
        assert old.lstrip("0") == certs.serial("node").lstrip("0")
        certs.issue("next")
        certs.replace("node", "next")
        s.hang_up()
        assert s.shown_serial() != old and s.shown_serial().lstrip("0") == certs.serial("next").lstrip("0")
        assert s.ready()
        s.kill(2)  # the next process starts with the new files, and links to those with the old connection
        for c, *_ in calls:
            c.wait_tokens(len(c.times()) + 10)
        certs.write("node.key", "no key\n")
        s.hang_up()
        assert s.log().count("certificates stay as they were: --tls-key") == len(s.parts()), "each process keeps what it has"
        assert s.shown_serial().lstrip("0") == certs.serial("next").lstrip("0")
        certs.replace("node", "next")
        s.kill("coordinator")
        for c, p, n in calls:
            c.finish_up(30).assert_reference(p, n)
        s.assert_quiet()  # the coordinator that counted the restarts of stages is gone


@case("full", seconds=60)
def fc_tls_the_openai_client_sees_nothing_of_a_killed_stage():
    try:
        import openai
    except ImportError:
        raise Skip("no openai package (set SLUICE_TEST_PYTHON)") from None
    with Certificates() as certs, SecureService(certs, stages=2, mpi=False, flags=["--restarts", "100"]) as s:
        client = openai.OpenAI(base_url=f"https://127.0.0.1:{s.port}/v1", api_key="k", max_retries=0,
                               http_client=openai.DefaultHttpxClient(verify=certs.context()))
        prompt = ids(20, 3)
        want = s.ask(prompt, 200).text
        text = ""
        model = client.models.list().data[0].id
        chunks = client.completions.create(model=model, prompt=prompt, max_tokens=200, temperature=0, stream=True)
        for i, chunk in enumerate(chunks):
            text += chunk.choices[0].text if chunk.choices else ""
            if i == 20:
                s.kill(0)
        assert text == want, (text, want)
        untrusting = openai.OpenAI(base_url=f"https://127.0.0.1:{s.port}/v1", api_key="k", max_retries=0)
        try:
            untrusting.models.list()
            raise AssertionError("a CA that the client does not know was accepted")
        except openai.APIConnectionError:
            pass
        s.assert_quiet(restarts=1)


def speaks(s, version):
    """Does the gateway shake hands in this version of TLS?"""
    context = s.certs.context()
    context.set_ciphers("ALL:@SECLEVEL=0")  # else this side would not offer the old ones
    context.minimum_version = context.maximum_version = version
    try:
        with socket.create_connection(("127.0.0.1", s.port), timeout=5 * SLACK) as raw:
            context.wrap_socket(raw, server_hostname="127.0.0.1").close()
        return True
    except ssl.SSLError:
        return False


@case("full", seconds=30)
def fc_tls_without_a_ca_only_the_gateway_speaks_tls():
    with Certificates() as certs, SecureService(certs, ca=None, stages=2, mpi=False) as s:
        prompt = ids(10, 1)
        s.ask(prompt, 20).assert_reference(prompt, 20)
        with socket.create_connection(("127.0.0.1", s.grpc_port), timeout=5 * SLACK) as plain:  # HTTP/2 in the clear
            plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
            assert plain.recv(9)[3] == 4, "a frame of settings answers"
        assert speaks(s, ssl.TLSVersion.TLSv1_3) and speaks(s, ssl.TLSVersion.TLSv1_2) and not speaks(s, ssl.TLSVersion.TLSv1_1)
        s.assert_quiet()


def cpu_s(pid):
    with open(f"/proc/{pid}/stat") as f:
        field = f.read().rpartition(")")[2].split()
    return (int(field[11]) + int(field[12])) / os.sysconf("SC_CLK_TCK")


@case("full", seconds=30)
def fc_tls_clients_that_wait_or_leave_cost_nothing():
    with Certificates() as certs, SecureService(certs, stages=1, mpi=False, flags=["--write-stall-ms", "1000"]) as s:
        gateway = s.pid("gateway")
        silent, half = (socket.create_connection(("127.0.0.1", s.port)) for _ in range(2))
        half.sendall(client_hello()[:100])
        idle = certs.context().wrap_socket(socket.create_connection(("127.0.0.1", s.port)), server_hostname="127.0.0.1")
        time.sleep(0.2)
        began = cpu_s(gateway)
        time.sleep(2)
        used = cpu_s(gateway) - began
        assert used < 0.12 * SLACK, f"{used:.2f} s of CPU in 2 s: libmicrohttpd spins"
        for sock in (silent, half, idle):
            sock.close()
        left = s.call(ids(20, 1), 20000)
        left.wait_tokens(5)
        left.leave()
        s.wait_requests(decoding=0, cancelled=1)
        stuck = s.new_call("/v1/completions", s.body(ids(20, 2), 20000), rcvbuf=4096)
        stuck.send()
        s.wait_requests(decoding=1)
        s.wait_requests(seconds=15, decoding=0, cancelled=2)
        assert s.metrics()["sluice_write_stalled_total"] == 1
        stuck.sock.close()
        s.assert_quiet()


# --- who is refused ------------------------------------------------------------------------------------------------------------------

def start_stage(s, flags, stage=1):
    return subprocess.Popen([os.path.join(BIN, "sluice-stage-fake"), "--model", s.model, "--stage", str(stage), "--coordinator",
                             f"127.0.0.1:{s.grpc_port}", *flags], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                            env={**os.environ, "SLUICE_TEST_JOB": s.mark})


def greets_over_tls(context, port):
    """Does an HTTP/2 server answer? In TLS 1.3 a client learns at its first read that its certificate was not good enough."""
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5 * SLACK) as raw:
            with context.wrap_socket(raw, server_hostname="127.0.0.1") as c:
                c.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
                return len(c.recv(9)) == 9
    except OSError:
        return False


ASK_HEALTH = """
import sys
try:
    import grpc
except ImportError:
    sys.exit(77)
ca, key, cert = (open(f, "rb").read() for f in sys.argv[2:5])
channel = grpc.secure_channel(sys.argv[1], grpc.ssl_channel_credentials(ca, key, cert))
check = channel.unary_unary("/grpc.health.v1.Health/Check", lambda m: m, lambda m: m)
sys.exit(check(b"", timeout=10) != bytes([8, 1]))  # SERVING
"""


@case("full", seconds=30)
def fc_tls_other_clients_come_in_as_the_documents_say():
    with Certificates() as certs, SecureService(certs, stages=1, mpi=False) as s:
        certs.issue("client", "DNS:anything")
        files = [certs.path(f) for f in ("ca.pem", "client.key", "client.pem")]
        p = subprocess.run(["/usr/bin/python3", "-c", ASK_HEALTH, f"127.0.0.1:{s.grpc_port}", *files], capture_output=True)
        assert p.returncode in (0, 77), p.stderr.decode()
        sluice = [os.path.join(BIN, "sluice"), "status", "--url", f"https://127.0.0.1:{s.port}"]
        assert subprocess.run([*sluice, "--ca", certs.path("ca.pem")], capture_output=True).returncode == 0
        assert subprocess.run(sluice, capture_output=True, env={**os.environ, "SLUICE_CA": certs.path("ca.pem")}).returncode == 0
        p = subprocess.run(sluice, capture_output=True)
        assert p.returncode == 1 and b"certificate" in p.stderr, p.stderr
        s.assert_quiet()


@case("full", seconds=60)
def fc_tls_peers_without_a_certificate_of_the_ca_are_refused():
    with Certificates() as certs, SecureService(certs, stages=2, mpi=False) as s:
        certs.make_ca("other")
        certs.issue("stranger", ca="other")
        certs.issue("late", days=-1)
        context = certs.context(show="node")
        assert greets_over_tls(context, s.grpc_port)
        assert not greets_over_tls(certs.context(), s.grpc_port), "no certificate"
        assert not greets_over_tls(certs.context(show="stranger"), s.grpc_port), "another CA's"
        assert not greets_over_tls(certs.context(show="late"), s.grpc_port), "expired"
        assert not greets_over_tls(certs.context(ca="other", show="node"), s.grpc_port), "it would not trust us"
        stages = {x["pid"] for x in s.status()["stages"]}
        call = s.call(ids(20, 1), 900)
        call.wait_tokens(5)
        plain, strange = start_stage(s, []), start_stage(s, certs.flags("stranger", "other"))
        try:
            time.sleep(3)
            assert plain.poll() is None and strange.poll() is None, "they try again and again"
            assert {x["pid"] for x in s.status()["stages"]} == stages
        finally:
            for p in (plain, strange):
                p.kill()
                words = p.communicate()[1].decode()
                assert "attached" not in words and "no connection to a coordinator at 127.0.0.1" in words, words
        try:
            c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=5 * SLACK)
            c.request("GET", "/ready")
            raise AssertionError(f"plain HTTP was answered: {c.getresponse().status}")
        except (http.client.HTTPException, OSError):
            pass
        call.finish_up(20).assert_reference(ids(20, 1), 900)
        s.assert_quiet()


@case("full", seconds=30)
def fc_tls_files_that_cannot_serve_end_each_program_with_one_line():
    with Certificates() as certs, Service(stages=1, wait=False, mpi=False) as s:
        certs.issue("node")
        certs.issue("next")
        certs.issue("late", days=-1)
        s.wait_ready(20 * SLACK)
        programs = {"sluice-coordinator": ["--model", s.model, "--grpc", "127.0.0.1:0"],
                    "sluice-stage-fake": ["--model", s.model, "--coordinator", "127.0.0.1:9"],
                    "sluice-gateway": ["--coordinator", "127.0.0.1:9", "--http", "127.0.0.1:0"]}
        cert, key, ca = certs.path("node.pem"), certs.path("node.key"), certs.path("ca.pem")
        bad = [(["--tls-cert", cert], "--tls-key is missing"), (["--tls-ca", ca], "--tls-cert is missing"),
               (["--tls-cert", "/no/such", "--tls-key", key], "--tls-cert /no/such: No such file"),
               (["--tls-cert", cert, "--tls-key", certs.path("next.key")], "the key is not that of"),
               (certs.flags("late"), "the certificate expired on"),
               (["--tls-cert", cert, "--tls-key", key, "--tls-ca", key], "no PEM certificate")]
        for program, flags in programs.items():
            for more, words in bad:
                p = subprocess.run([os.path.join(BIN, program), *flags, *more], capture_output=True, timeout=10 * SLACK)
                lines = [line for line in p.stderr.decode().splitlines() if words in line]
                assert p.returncode == 2 and len(lines) == 1, (program, more, p.returncode, p.stderr.decode())


# --- FC-72: what strangers say -------------------------------------------------------------------------------------------------------

def client_hello():
    """A whole first message of TLS."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    c = context.wrap_bio(incoming, outgoing, server_hostname="example.org")
    try:
        c.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def strangers():
    random = os.urandom(4096)
    return {"nothing": b"", "random bytes": random, "a few of them": random[:7], "TLS": client_hello(), "half of TLS": client_hello()[:40],
            "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "half of HTTP": b"POST /v1/completions HTTP/1.1\r\nContent-Le",
            "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "a link": b"SLUILNK1", "zeros": bytes(2000)}


def still_open(socks, seconds):
    """Those that the other end has not closed within that time."""
    left, until = set(socks), time.monotonic() + seconds
    while left and (wait := until - time.monotonic()) > 0:
        for sock in select.select(list(left), [], [], wait)[0]:
            try:
                if sock.recv(65536):
                    continue
            except OSError:
                pass
            left.discard(sock)
    return left


def may_stay(port, what, s, secure):
    """A client that has said hello in the server's own language may be about to ask."""
    return not secure and (port, what) in ((s.grpc_port, "HTTP/2"), (s.port, "HTTP"))


def bother(s, secure):
    """Opens three connections of each kind to every port while four streams run, and watches what becomes of both."""
    began = s.rss()
    say = strangers()  # made before: what this process computes is a gap in the streams that it reads
    n = 1000
    calls = [(s.call(ids(20, i), n), ids(20, i)) for i in range(4)]
    for c, _ in calls:
        c.wait_tokens(5)
    ports = {s.port, s.grpc_port} | set().union(*(listening_ports(pid) for pid in (s.pid(i) for i in range(s.stages))))
    assert len(ports) == 2 + s.stages, ports
    open_ones = []
    for port in sorted(ports):
        for what, words in say.items():
            for _ in range(3):
                sock = socket.create_connection(("127.0.0.1", port), timeout=5)
                try:
                    sock.sendall(words)
                except OSError:
                    pass
                open_ones.append((port, what, sock))
    asked = time.monotonic()
    assert s.ready() and time.monotonic() - asked < 1 * SLACK, "a client's handshake waits for no stranger's"
    judged = {sock: (port, what) for port, what, sock in open_ones if not may_stay(port, what, s, secure)}
    names = {s.port: "http", s.grpc_port: "grpc"}
    kept = {(names.get(judged[sock][0], "link"), judged[sock][1]) for sock in still_open(judged, CLOSED_S * SLACK)}
    assert not kept, sorted(kept)
    for *_, sock in open_ones:
        sock.close()
    for c, p in calls:
        c.finish_up(30).assert_reference(p, n)
    longest = max(c.max_gap() for c, _ in calls)
    assert longest < 1.0 * SLACK, f"a stream waited {longest:.2f} s"
    grown = {part: kib - began[part] for part, kib in s.rss().items()}
    assert max(grown.values()) < GROWTH_KIB * SLACK, grown
    s.assert_quiet()


@case("nightly", seconds=60, gaps=True)
def fc_72_strangers_at_every_port_are_closed_and_disturb_nobody():
    with Service(stages=2, mpi=False, flags=["--link", "tcp"]) as s:
        bother(s, secure=False)


@case("full", seconds=60, gaps=True)
def fc_72_strangers_at_every_port_of_a_service_with_certificates():
    with Certificates() as certs, SecureService(certs, stages=2, mpi=False) as s:
        bother(s, secure=True)


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
