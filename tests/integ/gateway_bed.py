"""A gateway in front of tests/lib/fake_coordinator, for one test file: start, ask, look, stop. Standard library only."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

from runner import run  # noqa: F401 (tests take it from here)

GATEWAY = os.path.join(os.environ.get("SLUICE_BIN", "build/bin"), "sluice-gateway")
FAKE = os.environ.get("SLUICE_FAKE_COORDINATOR", "build/tests/fake_coordinator")
FIRST_LINE_S = 20


class Bed:
    """One fake coordinator and one gateway. `with Bed("--write-stall-ms", "500") as bed:`"""

    def __init__(self, *flags, coordinator=True, heartbeat_ms=2000):
        # By default a busy test machine is not taken for a dead coordinator.
        flags = ("--heartbeat-ms", str(heartbeat_ms), *flags)
        self.flags, self.want_coordinator = flags, coordinator
        self.coordinator = self.gateway = None
        self.grpc_port = free_port()

    def __enter__(self):
        if self.want_coordinator:
            self.start_coordinator()
        self.log = tempfile.NamedTemporaryFile()
        with open(self.log.name, "ab") as log:  # its own offset: this process seeks in the other
            self.gateway = subprocess.Popen([GATEWAY, "--coordinator", f"127.0.0.1:{self.grpc_port}", "--http", "127.0.0.1:0",
                                             *self.flags], stderr=log)
        try:
            self.port = int(self.wait_log(rb"listening on http://127\.0\.0\.1:(\d+)").group(1))
            if self.want_coordinator:
                wait_for(lambda: self.get("/ready")[0] == 200, 10, "the gateway is ready")
                wait_for(lambda: self.get("/v1/models")[0] == 200, 10, "the model is known")
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, *why):
        for p in (self.gateway, self.coordinator):
            if p and p.poll() is None:
                p.terminate()
                try:
                    p.wait(10)
                except subprocess.TimeoutExpired:
                    p.kill()
                    p.wait()
        self.log.seek(0)
        log = self.log.read().decode(errors="replace")
        self.log.close()
        if why[0] or self.gateway.returncode != 0:
            sys.stderr.write(log[-6000:])
        assert why[0] or self.gateway.returncode == 0, f"the gateway ended with {self.gateway.returncode}"

    def start_coordinator(self):
        self.coordinator = subprocess.Popen([FAKE, "--grpc", f"127.0.0.1:{self.grpc_port}", *self.flags[:2]], stdout=subprocess.PIPE)
        assert self.coordinator.stdout.readline().strip() == str(self.grpc_port).encode()

    def kill_coordinator(self):
        self.coordinator.kill()
        self.coordinator.wait()

    def wait_log(self, pattern):
        until = time.monotonic() + FIRST_LINE_S
        while time.monotonic() < until:
            self.log.seek(0)
            found = re.search(pattern, self.log.read())
            if found:
                return found
            assert self.gateway.poll() is None, "the gateway ended"
            time.sleep(0.01)
        raise AssertionError(f"no log line {pattern!r}")

    # --- asking ---

    def request(self, method, path, body=None, headers=None, timeout=30):
        """(status, headers, bytes)"""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            headers = dict(headers or {})
            if body is not None and "Content-Type" not in headers:
                headers["Content-Type"] = "application/json"
            c.request(method, path, body if body is None or isinstance(body, (bytes, str)) else json.dumps(body), headers)
            r = c.getresponse()
            return r.status, r.headers, r.read()
        finally:
            c.close()

    def get(self, path, **more):
        status, headers, body = self.request("GET", path, **more)
        return status, (json.loads(body) if headers.get_content_type() == "application/json" else body.decode())

    def post(self, path, body, **more):
        status, _, data = self.request("POST", path, body, **more)
        return status, json.loads(data)

    def chat(self, text, **fields):
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **fields})

    def connect(self, path, body, headers=""):
        """A raw socket that has sent a request."""
        s = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        data = json.dumps(body).encode()
        s.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
                  f"{headers}\r\n".encode() + data)
        return s

    def stream_chat(self, text, headers="", **fields):
        return self.connect("/v1/chat/completions",
                            {"messages": [{"role": "user", "content": text}], "stream": True, **fields}, headers)

    def counts(self):
        return self.get("/v1/status")[1]["requests"]


def sanitized(pid):
    """Whether a process runs under a sanitizer, which makes it slow and large."""
    return any(x in open(f"/proc/{pid}/maps").read() for x in ("libasan", "libtsan"))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(what, seconds, name):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if what():
                return
        except OSError:
            pass
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {name}")


def read_all(sock):
    """Whatever comes until the other side closes or a chunked body ends."""
    data = b""
    while not data.endswith(b"0\r\n\r\n"):
        more = sock.recv(65536)
        if not more:
            break
        data += more
    return data


def unchunk(data):
    head, _, body = data.partition(b"\r\n\r\n")
    out = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        n = int(size, 16)
        if n == 0:
            break
        out, body = out + body[:n], body[n + 2:]
    return head.decode(), out.decode()


def events(text):
    """JSON of each data event; comments and [DONE] as text."""
    out = []
    for part in text.split("\n\n"):
        if part.startswith("data: {"):
            out.append(json.loads(part[6:]))
        elif part:
            out.append(part)
    return out


__all__ = ["Bed", "GATEWAY", "events", "free_port", "read_all", "run", "sanitized", "signal", "subprocess", "unchunk", "wait_for"]
