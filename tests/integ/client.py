"""Clients of a service: one request over a socket of its own, and a conversation that grows turn by turn."""
import json
import os
import re
import socket
import struct
import threading
import time

from reference import FIRST_BYTE, ids, reference

SLACK = float(os.environ.get("SLUICE_TEST_SLACK", "1"))


class Call(threading.Thread):
    """A request in a thread. Times are of time.monotonic()."""

    def __init__(self, port, path, body, key=None, headers=None, timeout=120, rcvbuf=None):
        super().__init__(daemon=True)
        self.port, self.path, self.key, self.timeout, self.rcvbuf = port, path, key, timeout, rcvbuf
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.more_headers = headers or {}
        self.status = None
        self.headers = {}
        self.raw = b""          # of the body, as it came
        self.events = []        # (time, event): a dict, or the text of a comment
        self.text, self.finish, self.error = "", None, None  # of choice 0
        self.texts, self.finishes = {}, {}                    # of every choice, by index
        self.done = False       # [DONE] was seen
        self.broken = None      # what ended the connection before its time
        self.started = self.first = self.ended = None
        self.change = threading.Condition()
        self.sock = None

    def run(self):
        try:
            self.send()
            self.read()
        except (OSError, ValueError) as e:
            self.broken = self.broken or f"{type(e).__name__}: {e}"
        finally:
            with self.change:
                self.ended = time.monotonic()
                self.change.notify_all()
            self.sock.close()

    def send(self):
        """Connects and asks; run() reads what comes, too."""
        self.sock = socket.socket()
        if self.rcvbuf:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.rcvbuf)
        self.sock.settimeout(self.timeout)
        self.started = time.monotonic()
        self.sock.connect(("127.0.0.1", self.port))
        self.secure()
        self.sock.sendall(self.head() + self.body)

    def secure(self):
        """What a client of TLS does with its connection."""

    def head(self):
        lines = [f"POST {self.path} HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(self.body)}"]
        if self.key:
            lines.append(f"Authorization: Bearer {self.key}")
        lines += [f"{k}: {v}" for k, v in self.more_headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def read(self):
        f = self.sock.makefile("rb")
        line = f.readline()
        if not line:
            self.broken = "closed before an answer"
            return
        self.status = int(line.split()[1])
        while (line := f.readline().strip()):
            k, _, v = line.decode().partition(":")
            self.headers[k.lower()] = v.strip()
        if self.headers.get("transfer-encoding") == "chunked":
            self.read_chunks(f)
        else:
            self.raw = f.read(int(self.headers.get("content-length", "0")))
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
            self.take_answer(json.loads(self.raw) if self.raw else {})

    def read_chunks(self, f):
        pending = b""
        while True:
            size = f.readline()
            if not size:
                self.broken = "cut inside a chunked body"
                return
            n = int(size, 16)
            data = f.read(n)
            f.readline()
            if n == 0:
                return
            self.raw += data
            pending += data
            while b"\n\n" in pending and self.headers.get("content-type", "").startswith("text/event-stream"):
                part, _, pending = pending.partition(b"\n\n")
                self.take_event(part.decode())  # strict: every event is valid UTF-8

    def take_event(self, part):
        now = time.monotonic()
        with self.change:
            if part == "data: [DONE]":
                self.done = True
            elif part.startswith("data: "):
                e = json.loads(part[6:])
                self.events.append((now, e))
                self.take_choice(e, now)
            else:
                self.events.append((now, part))
            self.change.notify_all()

    def take_choice(self, e, now):
        if "error" in e:
            self.error = e["error"]
        for c in e.get("choices", []):
            piece = c.get("text") if "text" in c else c.get("delta", {}).get("content")
            if piece and self.first is None:
                self.first = now
            self.take(c["index"], piece, c.get("finish_reason"))

    def take(self, index, piece, finish):
        if index == 0:
            self.text += piece or ""
        self.texts[index] = self.texts.get(index, "") + (piece or "")
        if finish:
            assert index not in self.finishes, "a second finish_reason"
            self.finishes[index] = finish
            self.finish = self.finishes.get(0)

    def take_answer(self, a):
        self.answer = a
        self.error = a.get("error")
        for c in a.get("choices", []):
            self.take(c["index"], c["text"] if "text" in c else c["message"]["content"], c["finish_reason"])

    # --- for the test's thread ---

    def n_tokens(self):
        return len(self.text)

    def usage(self):
        """The usage object: of the answer, or of a stream that asked for it (call(..., usage=True))."""
        with self.change:
            found = [e["usage"] for _, e in self.events if isinstance(e, dict) and e.get("usage")]
        return found[-1] if found else getattr(self, "answer", {}).get("usage")

    def cached_tokens(self):
        return self.usage()["prompt_tokens_details"]["cached_tokens"]

    def choices(self):
        """Of all its data events, in order."""
        with self.change:
            return [x for _, e in self.events if isinstance(e, dict) for x in e.get("choices") or []]

    def reasons(self):
        return [x["finish_reason"] for x in self.choices()]

    def token_ids(self):
        """Those that the service told (return_token_ids)."""
        return [i for x in self.choices() for i in x.get("token_ids") or []]

    def times(self, after=0, before=float("inf")):
        """When its data events came, [DONE] and the usage aside; of those from `after` to `before`."""
        with self.change:
            return [t for t, e in self.events if isinstance(e, dict) and e.get("choices") and after <= t <= before]

    def gaps(self, after=0, before=float("inf")):
        """Seconds between two data events that follow each other, both in the window."""
        t = self.times(after, before)
        return [b - a for a, b in zip(t, t[1:])]

    def max_gap(self, after=0, before=float("inf")):
        return max(self.gaps(after, before), default=0.0)

    def rate(self, after=0, before=float("inf")):
        """Data events a second in the window."""
        t = self.times(after, before)
        return (len(t) - 1) / (t[-1] - t[0]) if len(t) > 1 else 0.0

    def n_ends(self):
        """Terminal events that this client saw; a request that was accepted has exactly one."""
        return (self.finish is not None) + (self.error is not None)

    def wait(self, what, seconds, name):
        with self.change:
            if not self.change.wait_for(lambda: what() or self.ended, seconds * SLACK):
                raise AssertionError(f"not within {seconds} s: {name}; {self.describe()}")
        assert what(), f"ended before {name}; {self.describe()}"

    def wait_tokens(self, n, seconds=10):
        self.wait(lambda: len(self.text) >= n, seconds, f"{n} tokens")

    def finish_up(self, seconds=60):
        self.join(seconds * SLACK)
        assert not self.is_alive(), f"no end within {seconds} s; {self.describe()}"
        return self

    def leave(self):
        """As a client that goes away: both directions at once."""
        self.broken = "left"
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def reset(self):
        """As a client whose host goes away: RST. The reading thread wakes without a word on the wire and closes."""
        self.broken = "reset"
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        try:
            self.sock.shutdown(socket.SHUT_RD)
        except OSError:
            pass

    def retry_after(self):
        value = self.headers.get("retry-after", "")
        assert re.fullmatch(r"[0-9]+", value) and 1 <= int(value) <= 60, f"Retry-After {value!r}"
        return int(value)

    def describe(self):
        return (f"status {self.status}, {len(self.events)} events, text {self.text[:80]!r} ({len(self.text)}), finish {self.finish}, "
                f"error {self.error}, broken {self.broken}")

    def assert_reference(self, prompt, n, seed=None):
        assert self.status == 200 and not self.error and not self.broken, self.describe()
        want = reference(prompt, n, seed)
        assert self.text == want and self.finish == "length", f"want {want[:80]!r} ({n}): {self.describe()}"
        assert self.n_ends() == 1, self.describe()


class Conversation:
    """A chat of one key, in ids: each turn sends everything said before and `n_new` more, and is judged by its reference."""

    def __init__(self, service, key, seed, n_first=0):
        self.service, self.key, self.seed = service, key, seed
        self.said = ids(n_first, seed)
        self.n_turns = 0
        self.before = 0  # ids that were said before this turn: the last prompt and its answer

    def start(self, n_new, max_tokens, **fields):
        """Sends the next turn; finish(call) takes its answer."""
        self.before = len(self.said) if self.n_turns else 0
        self.n_turns += 1
        self.said += ids(n_new, self.seed * 1000 + self.n_turns)
        call = self.service.call(self.said, max_tokens, key=self.key, usage=fields.get("stream", True), **fields)
        call.n_asked = max_tokens
        return call

    def finish(self, call, seconds=60):
        call.finish_up(seconds).assert_reference(self.said, call.n_asked)
        self.said = self.said + [FIRST_BYTE + b for b in call.text.encode()]
        return call

    def turn(self, n_new, max_tokens, seconds=60, **fields):
        return self.finish(self.start(n_new, max_tokens, **fields), seconds)
