"""A whole service (launcher, coordinator, stages, gateway) for one test: start, ask, break, look, end. Standard library only.

    with Service(stages=2, script="tick_us 4000", flags=["--slots", "4"]) as s:
        a = s.ask(prompt=[10, 11, 12], max_tokens=8)         # waits for the end
        c = s.call(prompt="hello", stream=True)              # runs beside: c.wait_events(3); c.leave(); c.join()
        s.assert_quiet()

On fake stages (the default) every answer has a reference text: `reference(prompt_ids, n)`. Each process of a service carries
a mark in its environment, so that whatever is left over is found; leaving the `with` block ends the service and asserts that
nothing is. SLUICE_BIN names the folder of the programs, SLUICE_TEST_SLACK stretches time limits (sanitizer builds).
"""
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import uuid

from runner import run  # noqa: F401 (tests take it from here)

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.environ.get("SLUICE_BIN", os.path.join(HERE, "../../build/bin"))
SLACK = float(os.environ.get("SLUICE_TEST_SLACK", "1"))
MARK = "SLUICE_TEST_JOB"
FIRST_BYTE = 3  # id of byte 0 in the fake model
FAKE_COSTS = "tick_us 4000\nrow_us 100\ntoken_us 250\n"  # the FAKE bed of failure-cases.md
READY_S = 10 * SLACK
LETTERS = b"abcdefghijklmnopqrstuvwxyz "
MASK = (1 << 64) - 1
N_LAYERS = 8
MPI_ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
           "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_btl": "self,vader", "OMPI_MCA_plm_rsh_agent": ""}


# --- the fake's reference (tests/lib/fake_compute.c, written down a second time) ------------------------------------------------

def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


def rand_at(seed, position):
    return mix(mix(seed & MASK) ^ mix((position + 0x632BE59BD9B4E019) & MASK))


def reference(prompt, n, seed=None, layers=N_LAYERS):
    """Text of n tokens after a prompt (ids, or text of one id a byte); seed: of a sampled answer."""
    ids = [FIRST_BYTE + b for b in prompt.encode()] if isinstance(prompt, str) else list(prompt)
    before = [mix(0x5157E1CE00 + layer) for layer in range(layers)]
    out = bytearray()
    for p in range(len(ids) + n - 1):
        h = ids[p]
        for layer in range(layers):
            h = before[layer] = mix(before[layer] ^ rand_at(h + layer, p))
        if p + 1 >= len(ids):
            if seed is not None:
                h = mix(h ^ rand_at(seed, p + 1))
            letter = LETTERS[h % len(LETTERS)]
            out.append(letter)
            ids.append(FIRST_BYTE + letter)
    return out.decode()


# --- one request over a socket of its own -----------------------------------------------------------------------------------------

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
        self.text, self.finish, self.error = "", None, None
        self.done = False       # [DONE] was seen
        self.broken = None      # what ended the connection before its time
        self.started = self.first = self.ended = None
        self.change = threading.Condition()
        self.sock = None

    def run(self):
        try:
            self.sock = socket.socket()
            if self.rcvbuf:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.rcvbuf)
            self.sock.settimeout(self.timeout)
            self.started = time.monotonic()
            self.sock.connect(("127.0.0.1", self.port))
            self.sock.sendall(self.head() + self.body)
            self.read()
        except (OSError, ValueError) as e:
            self.broken = self.broken or f"{type(e).__name__}: {e}"
        finally:
            with self.change:
                self.ended = time.monotonic()
                self.change.notify_all()
            self.sock.close()

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
            self.text += piece or ""
            if c.get("finish_reason"):
                assert self.finish is None, "a second finish_reason"
                self.finish = c["finish_reason"]

    def take_answer(self, a):
        self.answer = a
        self.error = a.get("error")
        for c in a.get("choices", []):
            self.text += c["text"] if "text" in c else c["message"]["content"] or ""
            self.finish = c["finish_reason"]

    # --- for the test's thread ---

    def n_tokens(self):
        return len(self.text)

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
        self.broken = "reset"
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # The reading thread holds the socket; its file descriptor is closed under it, which sends RST.
        os.close(self.sock.detach())

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


# --- the service --------------------------------------------------------------------------------------------------------------------

def is_free(port):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Service:
    def __init__(self, stages=2, flags=(), script=FAKE_COSTS, model=None, mpi=False, env=None, slots=4, wait=True, context=None):
        self.stages, self.mpi, self.slots, self.want_ready = stages, mpi, slots, wait
        self.mark = uuid.uuid4().hex
        self.dir = tempfile.TemporaryDirectory(prefix="sluice-test-")
        self.port, self.grpc_port = free_ports(2)
        self.fake = model is None
        self.model = model or self.make_fake_model(context or 32768)
        self.env = {**os.environ, **MPI_ENV, MARK: self.mark, "TMPDIR": self.dir.name, **(env or {})}
        self.flags = ["--model", self.model, "--http", f"127.0.0.1:{self.port}", "--grpc", f"127.0.0.1:{self.grpc_port}",
                      "--slots", str(slots)]
        if self.fake:
            self.flags += ["--kv-block", "16", "--queue-requests", "32", "--max-stall-ms", "200", "--stage-program",
                           os.path.join(BIN, "sluice-stage-fake")]
            if script:
                self.flags += ["--script", self.file("script", script)]
        self.flags += list(flags)
        self.log_path = os.path.join(self.dir.name, "log")
        self.job = None
        self.exit_code = None

    def file(self, name, text):
        path = os.path.join(self.dir.name, name)
        with open(path, "w") as f:
            f.write(text)
        return path

    def make_fake_model(self, context):
        path = os.path.join(self.dir.name, "fake.gguf")
        subprocess.run([sys.executable, os.path.join(HERE, "../lib/make_fake_model.py"), path, "--context", str(context)],
                       check=True)
        return path

    def command(self):
        launch = [os.path.join(BIN, "sluice-launch")]
        if self.mpi:
            return ["mpirun", "-np", str(self.stages), *launch, *self.flags]
        return [*launch, "--stages", str(self.stages), *self.flags]

    def __enter__(self):
        self.start()
        return self

    def start(self):
        with open(self.log_path, "wb") as log:
            self.job = subprocess.Popen(self.command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.env,
                                        start_new_session=True)
        try:
            if self.want_ready:
                self.wait_ready(READY_S)
        except BaseException:
            self.show_log()
            self.kill_all()
            raise

    def __exit__(self, kind, *why):
        try:
            if kind:
                self.show_log()
                self.kill_all()
            else:
                self.end()
        finally:
            self.dir.cleanup()

    # --- the end ---

    def end(self):
        """Asks the service to end and asserts that it does, well, and leaves nothing; not twice."""
        try:
            if self.exit_code is None:
                if self.job.poll() is None:
                    self.job.send_signal(signal.SIGUSR1 if self.mpi else signal.SIGTERM)
                self.wait_exit(0, 10)
            self.assert_nothing_left()
            self.assert_clean_log()
        except BaseException:
            self.show_log()
            self.kill_all()
            raise

    def wait_exit(self, code, seconds):
        try:
            self.exit_code = self.job.wait(seconds * SLACK)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job did not end within {seconds} s; left: {self.processes()}") from None
        assert self.exit_code == code, f"exit code {self.exit_code}, want {code}"

    def processes(self):
        """(pid, command line) of everything that carries the mark, and of what such a process has started."""
        found = {}
        parents = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as f:
                    marked = f"{MARK}={self.mark}".encode() in f.read().split(b"\0")
                with open(f"/proc/{pid}/stat") as f:
                    state, parent = f.read().rpartition(")")[2].split()[:2]
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    command = f.read().replace(b"\0", b" ").decode(errors="replace")[:120]
            except OSError:
                continue
            if state == "Z":
                continue
            parents[int(pid)] = (int(parent), command)
            if marked and int(pid) != os.getpid():
                found[int(pid)] = command
        for pid, (parent, command) in parents.items():
            if parent in found:
                found[pid] = command
        return sorted(found.items())

    def assert_nothing_left(self, seconds=2):
        try:
            wait_for(lambda: not self.processes(), seconds, "no process is left")
        except AssertionError:
            raise AssertionError(f"left over: {self.processes()}") from None
        # A process that is being killed loses its environment, by which it is found, before its sockets.
        for port in (self.port, self.grpc_port):
            wait_for(lambda: is_free(port), seconds, f"port {port} is free")

    def assert_clean_log(self):
        """A process that fails at its very end changes no exit code of the job's: sanitizers and checks speak in the log."""
        bad = [line for line in self.log().splitlines() if re.search(r"Sanitizer|runtime error:|this must hold and does not", line)]
        assert not bad, bad[:5]

    def kill_all(self):
        for _ in range(5):
            for pid, _command in self.processes():
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
            time.sleep(0.05)
        if self.job and self.job.poll() is None:
            self.job.kill()
            self.job.wait()

    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def show_log(self, n=60):
        sys.stderr.write("--- log\n" + "\n".join(self.log().splitlines()[-n:]) + "\n---\n")

    # --- asking ---

    def get(self, path, timeout=5):
        """(status, JSON or text)"""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * SLACK)
        try:
            c.request("GET", path)
            r = c.getresponse()
            body = r.read()
            return r.status, json.loads(body) if r.headers.get_content_type() == "application/json" else body.decode()
        finally:
            c.close()

    def body(self, prompt, max_tokens=16, stream=True, **fields):
        return {"prompt": prompt, "max_tokens": max_tokens, "stream": stream, "temperature": 0, **fields}

    def call(self, prompt, max_tokens=16, stream=True, key=None, path="/v1/completions", timeout=120, rcvbuf=None, **fields):
        c = Call(self.port, path, self.body(prompt, max_tokens, stream, **fields), key=key, timeout=timeout, rcvbuf=rcvbuf)
        c.start()
        return c

    def chat(self, text, stream=True, key=None, **fields):
        c = Call(self.port, "/v1/chat/completions",
                 {"messages": [{"role": "user", "content": text}], "stream": stream, "temperature": 0, **fields}, key=key)
        c.start()
        return c

    def ask(self, *args, seconds=60, **fields):
        return self.call(*args, **fields).finish_up(seconds)

    def status(self):
        code, s = self.get("/v1/status")
        assert code == 200, (code, s)
        return s

    def metrics(self):
        """{series: value}"""
        code, page = self.get("/metrics")
        assert code == 200
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in page.splitlines() if line[:1] != "#"}

    def ready(self):
        try:
            return self.get("/ready", timeout=2)[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def wait_ready(self, seconds):
        until = time.monotonic() + seconds
        while not self.ready():
            assert self.job.poll() is None, f"the job ended with {self.job.returncode} before it was ready"
            assert time.monotonic() < until, f"not ready within {seconds} s"
            time.sleep(0.02)

    def pid(self, what):
        """'coordinator', 'gateway', or a stage's number"""
        s = self.status()
        if what == "coordinator":
            return s["coordinator"]["pid"]
        if what == "gateway":
            return next(g["pid"] for g in s["gateways"] if os.path.exists(f"/proc/{g['pid']}"))  # a dead one is listed for 5 s
        return s["stages"][what]["pid"]

    def kill(self, what, sig=signal.SIGKILL):
        pid = self.pid(what)
        os.kill(pid, sig)
        return pid

    # --- the end of every case ---

    def quiet_problem(self):
        s = self.status()
        r, b = s["requests"], s["blocks"]
        if not s["ready"] or any(x["state"] != "ready" for x in s["stages"]):
            return f"ready {s['ready']}, stages {s['stages']}"
        if r["queued"] or r["reading"] or r["decoding"] or r["parked"] or s["queue"]["requests"] or s["queue"]["tokens"]:
            return f"requests {r}, queue {s['queue']}"
        if b["live"] or b["draining"] or b["free"] + b["cached"] != b["total"]:
            return f"blocks {b}"
        if r["accepted"] != r["done"] + r["failed"] + r["cancelled"]:
            return f"accepted and ended differ: {r}"
        if any(x["state"] != "free" for x in s["slots"]) or s["ticks"]["in_flight"]:
            return f"slots {s['slots']}, ticks {s['ticks']}"
        return None

    def assert_quiet(self, restarts=0, canary=True):
        """failure-cases.md, "Every case ends quiet". restarts: of stages, that the case itself caused."""
        until = time.monotonic() + 1 * SLACK
        while (problem := self.quiet_problem()) and time.monotonic() < until:
            time.sleep(0.01)
        assert not problem, problem
        s = self.status()
        got = sum(x["restarts"] for x in s["stages"])
        assert got == restarts, f"{got} restarts of stages, want {restarts}"
        if self.fake and canary:
            prompt = [FIRST_BYTE + ord("c"), 50, 60, 70]
            self.ask(prompt, 6, seconds=10).assert_reference(prompt, 6)


def free_ports(n):
    held = [socket.socket() for _ in range(n)]
    for s in held:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


def wait_for(what, seconds, name):
    until = time.monotonic() + seconds * SLACK
    while time.monotonic() < until:
        try:
            if (got := what()):
                return got
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.01)
    raise AssertionError(f"not within {seconds} s: {name}")


def ids(n, seed):
    """A prompt of n ids that no other seed has."""
    return [rand_at(seed, i) % 256 + FIRST_BYTE for i in range(n)]
