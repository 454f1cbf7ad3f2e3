"""A whole service (launcher, coordinator, stages, gateway) for one test: start, ask, break, look, end. Standard library only.

    with Service(stages=2, script="tick_us 4000", flags=["--slots", "4"]) as s:
        a = s.ask(prompt=[10, 11, 12], max_tokens=8)         # waits for the end
        c = s.call(prompt="hello", stream=True)              # runs beside: c.wait_events(3); c.leave(); c.join()
        s.assert_quiet()

On fake stages (the default) tests/lib/fake_service starts it, and every answer has a reference text: `reference(prompt_ids, n)`.
Each process of a service carries a mark in its environment, so that whatever is left over is found; leaving the `with` block ends
the service and asserts that nothing is. SLUICE_BIN names the folder of the programs, SLUICE_TEST_SLACK stretches time limits
(sanitizer builds).
"""
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid

from client import SLACK, Call, Conversation
from reference import BIN, FIRST_BYTE, VOCABULARY, ids, rand_at, reference
from runner import case, run

HERE = os.path.dirname(os.path.abspath(__file__))
LIB = os.path.join(HERE, "../lib")
sys.path.append(LIB)
from ports import free_ports, is_free  # noqa: E402

__all__ = ["BIN", "Call", "Conversation", "FIRST_BYTE", "HERE", "LIB", "SLACK", "Service", "TENTH", "VOCABULARY", "case",
           "free_ports", "ids", "is_free", "rand_at", "reference", "run", "wait_for"]
MARK = "SLUICE_TEST_JOB"
COSTS = (4000, 100, 250)  # us of a tick, a decode row, a prompt token: the FAKE bed of failure-cases.md
TENTH = (400, 10, 25)
READY_S = 20 * SLACK  # that it takes 3 s on a machine that does nothing else is a test of its own
CANARY = [FIRST_BYTE + ord("c"), 50, 60, 70]
MPI_ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
           "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_btl": "self,vader", "OMPI_MCA_plm_rsh_agent": ""}


class Service:
    """script: lines for the fake stages; with a script the costs are its own, else those of the FAKE bed, or `costs`.
    model: a real one, then mpirun (mpi) or the launcher alone starts sluice-stage."""

    def __init__(self, stages=2, flags=(), script=None, model=None, mpi=True, env=None, slots=4, wait=True, context=None, costs=None):
        self.stages, self.mpi, self.slots, self.want_ready = stages, mpi, slots, wait
        self.mark = uuid.uuid4().hex
        self.dir = tempfile.TemporaryDirectory(prefix="sluice-test-")
        self.port, self.grpc_port = free_ports(2)
        self.fake, self.real_model, self.context = model is None, model, context or 32768
        self.costs = costs or ((0, 0, 0) if script else COSTS)
        self.env = {**os.environ, **MPI_ENV, MARK: self.mark, "TMPDIR": self.dir.name, **(env or {})}
        self.flags = ["--http", f"127.0.0.1:{self.port}", "--grpc", f"127.0.0.1:{self.grpc_port}", "--slots", str(slots),
                      "--log", "info"]
        if self.fake:
            for name, value in zip(("tick-us", "row-us", "token-us"), self.costs):
                self.flags += [f"--{name}", str(value)]
            self.flags += ["--context", str(self.context)] + (["--script", self.file("script", script)] if script else [])
        else:
            self.flags += ["--model", model]
        self.flags += list(flags)
        self.log_path, self.out_path = self.path("log"), self.path("out")
        self.job = None
        self.exit_code = None
        self.ready_s = None   # how long the start took
        self.pids = {}        # of coordinator and gateway, at the start
        self.ended = set()    # what a case has ended itself

    def path(self, name):
        return os.path.join(self.dir.name, name)

    def file(self, name, text):
        with open(self.path(name), "w") as f:
            f.write(text)
        return self.path(name)

    @property
    def model(self):
        """A model file, for programs that a test starts by itself."""
        if self.fake and not os.path.exists(self.path("own.gguf")):
            subprocess.run([sys.executable, os.path.join(LIB, "make_fake_model.py"), self.path("own.gguf"), "--context",
                            str(self.context)], check=True)
        return self.real_model or self.path("own.gguf")

    def command(self):
        if self.fake:
            return [os.path.join(LIB, "fake_service"), "--stages", str(self.stages), *([] if self.mpi else ["--no-mpi"]), *self.flags]
        launch = os.path.join(BIN, "sluice-launch")
        if self.mpi:
            return ["mpirun", "-np", str(self.stages), launch, *self.flags]
        return [launch, "--stages", str(self.stages), *self.flags]

    def __enter__(self):
        self.start()
        return self

    def start(self):
        began = time.monotonic()
        with open(self.log_path, "wb") as log, open(self.out_path, "wb") as out:
            self.job = subprocess.Popen(self.command(), stdout=out, stderr=log, stdin=subprocess.DEVNULL,
                                        env={**self.env, "SLUICE_BIN": BIN}, start_new_session=True)
        try:
            if self.want_ready:
                self.wait_ready(READY_S)
                self.ready_s = time.monotonic() - began
                self.pids = {what: self.pid(what) for what in ("coordinator", "gateway")}
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
                self.ask_to_end()
            self.assert_nothing_left()
            self.assert_clean_log()
        except BaseException:
            self.show_log()
            self.kill_all()
            raise

    def takes_usr1(self):
        """Is mpirun the job? It hands no SIGTERM on; tests/lib/fake_service and a launcher drain at that."""
        return self.mpi and not self.fake

    def ask_to_end(self):
        if self.job.poll() is None:
            self.job.send_signal(signal.SIGUSR1 if self.takes_usr1() else signal.SIGTERM)
        self.wait_exit(0, 10)

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

    def starter_pid(self):
        """Of mpirun, or of the only launcher: what tests/lib/fake_service has started."""
        for pid, _ in self.processes():
            with open(f"/proc/{pid}/stat") as f:
                if int(f.read().rpartition(")")[2].split()[1]) == self.job.pid:
                    return pid
        raise AssertionError(f"the job has no child; processes: {self.processes()}")

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
        if self.job:
            self.job.wait()

    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def said(self):
        with open(self.out_path, errors="replace") as f:
            return f.read()

    def show_log(self, n=60):
        sys.stderr.write("--- log\n" + "\n".join(self.log().splitlines()[-n:]) + "\n---\n")

    # --- asking ---

    def connection(self, timeout):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def new_call(self, path, body, **how):
        """A request that is not sent yet."""
        return Call(self.port, path, body, **how)

    def get(self, path, timeout=5):
        """(status, JSON or text)"""
        c = self.connection(timeout * SLACK)
        try:
            c.request("GET", path)
            r = c.getresponse()
            body = r.read()
            return r.status, json.loads(body) if r.headers.get_content_type() == "application/json" else body.decode()
        finally:
            c.close()

    def body(self, prompt, max_tokens=16, stream=True, usage=False, **fields):
        more = {"stream_options": {"include_usage": True}} if usage and stream else {}
        return {"prompt": prompt, "max_tokens": max_tokens, "stream": stream, "temperature": 0, **more, **fields}

    def call(self, prompt, max_tokens=16, stream=True, key=None, path="/v1/completions", timeout=120, rcvbuf=None, **fields):
        c = self.new_call(path, self.body(prompt, max_tokens, stream, **fields), key=key, timeout=timeout, rcvbuf=rcvbuf)
        c.start()
        return c

    def chat(self, text, stream=True, key=None, **fields):
        c = self.new_call("/v1/chat/completions",
                          {"messages": [{"role": "user", "content": text}], "stream": stream, "temperature": 0, **fields}, key=key)
        c.start()
        return c

    def ask(self, *args, seconds=60, **fields):
        return self.call(*args, **fields).finish_up(seconds)

    # --- looking ---

    def status(self):
        code, s = self.get("/v1/status")
        assert code == 200, (code, s)
        return s

    def wait_requests(self, seconds=5, **states):
        """Until /v1/status shows these numbers: wait_requests(decoding=4, queued=3)."""
        wait_for(lambda: self.status()["requests"].items() >= states.items(), seconds, f"requests {states}")

    def metrics(self):
        """{series: value}"""
        code, page = self.get("/metrics")
        assert code == 200
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in page.splitlines() if line[:1] != "#"}

    def wait_metrics(self, seconds=1, **want):
        """Until these series without labels have these values; they are published every 10 ms."""
        wait_for(lambda: self.metrics().items() >= want.items(), seconds, f"metrics {want}")

    def ready(self):
        try:
            return self.get("/ready", timeout=2)[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def wait_ready(self, seconds):
        until = time.monotonic() + seconds
        while (self.fake and not self.said()) or not self.ready():
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

    def parts(self):
        return ["coordinator", "gateway", *range(self.stages)]

    def resources(self, *parts):
        """{part: {"rss_kib", "fds", "threads"}} of these parts, or of coordinator, gateway and the stages by number"""
        out = {}
        for part in parts or self.parts():
            pid = self.pid(part)
            with open(f"/proc/{pid}/status") as f:
                field = dict(line.split(":", 1) for line in f)
            out[part] = {"rss_kib": int(field["VmRSS"].split()[0]), "threads": int(field["Threads"]),
                         "fds": len(os.listdir(f"/proc/{pid}/fd"))}
        return out

    def rss(self, *parts):
        """KiB of each part: {part: KiB}; of all when none is named."""
        return {part: used["rss_kib"] for part, used in self.resources(*parts).items()}

    def kill(self, what, sig=signal.SIGKILL):
        pid = self.pid(what)
        if sig == signal.SIGKILL:
            self.ended.add(what)
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

    def assert_sums(self):
        """What holds at any moment; returns the status that was looked at."""
        s = self.status()
        r, b = s["requests"], s["blocks"]
        active = r["queued"] + r["reading"] + r["decoding"] + r["parked"]
        assert active == r["accepted"] - r["done"] - r["failed"] - r["cancelled"], r
        assert b["free"] + b["cached"] + b["live"] + b["draining"] == b["total"], b
        assert sum(x["state"] != "free" for x in s["slots"]) <= self.slots and r["queued"] + r["parked"] == s["queue"]["requests"], (r, s["queue"])
        return s

    def assert_quiet(self, restarts=0, canary=True, ended=()):
        """failure-cases.md, "Every case ends quiet". restarts: of stages, that the case itself caused; coordinator and gateway
        are the same processes as at the start, but for those that kill() or the case (`ended`) has ended."""
        until = time.monotonic() + 1 * SLACK
        while (problem := self.quiet_problem()) and time.monotonic() < until:
            time.sleep(0.01)
        assert not problem, problem
        got = sum(x["restarts"] for x in self.status()["stages"])
        assert got == restarts, f"{got} restarts of stages, want {restarts}"
        for what in self.pids.keys() - self.ended - set(ended):
            assert self.pid(what) == self.pids[what], f"the {what} has restarted"
        if self.fake and canary:
            before = self.status()["requests"]["done"]
            self.ask(CANARY, 6, seconds=10).assert_reference(CANARY, 6)
            # The figures follow the answers.
            wait_for(lambda: self.status()["requests"]["done"] > before and not self.quiet_problem(), 1, "the canary is done")

    def assert_starts_in_order(self, prompts, n):
        """Clients that nobody knows, 50 ms apart: their first tokens come in the order of their arrival."""
        calls = []
        for i, p in enumerate(prompts):
            calls.append((self.call(p, n, key=f"new-{i}"), p))
            time.sleep(0.05)
        for c, p in calls:
            c.finish_up(60).assert_reference(p, n)
        firsts = [c.first for c, _ in calls]
        assert firsts == sorted(firsts), [round(f - firsts[0], 3) for f in firsts]
        self.assert_quiet()

    def ask_to_end_twice(self, sig, seconds):
        """It drains at the first signal and ends at the second, with exit code 0; seconds from there to the end."""
        self.job.send_signal(sig)
        wait_for(lambda: not self.ready(), 1, "it drains")
        asked = time.monotonic()
        self.job.send_signal(sig)
        self.wait_exit(0, seconds)
        return time.monotonic() - asked


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
