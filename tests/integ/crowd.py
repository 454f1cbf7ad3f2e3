"""Hundreds of clients in one thread: so many threads of Python would delay each other more than the service does."""
import json
import selectors
import socket
import threading
import time

from client import SLACK


class Member:
    """One connection. Times are of time.monotonic()."""

    def __init__(self, port, label):
        self.label = label
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.data = bytearray()
        self.sent = self.first = self.ended = None

    def head(self):
        head, found, body = bytes(self.data).partition(b"\r\n\r\n")
        return (head.decode().split("\r\n"), body) if found else (None, b"")

    @property
    def status(self):
        lines, _ = self.head()
        return int(lines[0].split()[1]) if lines else None

    @property
    def headers(self):
        lines, _ = self.head()
        return {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in (lines or [""])[1:])}

    @property
    def answer(self):
        return json.loads(self.head()[1])

    def is_whole(self):
        lines, body = self.head()
        if not lines:
            return False
        if self.headers.get("transfer-encoding") == "chunked":
            return self.data.endswith(b"\r\n0\r\n\r\n")
        return len(body) >= int(self.headers.get("content-length", "0"))


class Crowd(threading.Thread):
    """members: (label, path, body or None for a GET, key). All are connected first, then everybody asks at once."""

    def __init__(self, port, members):
        super().__init__(daemon=True)
        self.members = [Member(port, label) for label, *_ in members]
        self.requests = [self.request(*rest) for _, *rest in members]
        self.left = threading.Event()

    @staticmethod
    def request(path, body, key):
        text = b"" if body is None else json.dumps(body).encode()
        head = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(text)}"]
        head += ["Content-Type: application/json"] * (body is not None) + [f"Authorization: Bearer {key}"] * (key is not None)
        return "\r\n".join(head).encode() + b"\r\n\r\n" + text

    def run(self):
        ready = selectors.DefaultSelector()
        for m, request in zip(self.members, self.requests):
            m.sent = time.monotonic()
            m.sock.sendall(request)
            ready.register(m.sock, selectors.EVENT_READ, m)
        while ready.get_map() and not self.left.is_set():
            for found, _ in ready.select(0.05):
                self.take(found.data, ready)

    @staticmethod
    def take(m, ready):
        try:
            data = m.sock.recv(1 << 16)
        except OSError:
            data = b""
        m.first = m.first or time.monotonic()
        m.data += data
        if not data or m.is_whole():
            m.ended = time.monotonic()
            ready.unregister(m.sock)

    def finish_up(self, seconds):
        self.join(seconds * SLACK)
        open_ones = [m for m in self.members if not m.ended]
        assert not open_ones, f"no end within {seconds} s: {len(open_ones)} of {len(self.members)}"
        self.close()
        return self

    def close(self):
        """All leave, whether they have their answer or not."""
        self.left.set()
        self.join(10)
        for m in self.members:
            m.sock.close()
