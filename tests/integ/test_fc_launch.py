"""Who starts, watches and outlives whom: ranks that fail to start, processes that fall silent or come back too often, rolling
restarts, a service that stays when mpirun goes, and a node that joins it instead of a lost one."""
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

from direct import Direct
from faults import alive
from runner import Skip
from service import BIN, SLACK, case, free_ports, ids, run, wait_for

OURS = {"--tick-us", "--row-us", "--token-us"}
START_FAILS_S = 30


class Launched(Direct):
    """On fake stages, with the flags that tests/lib/fake_service would give."""

    def launcher(self, *flags):
        """Command of a launcher with the flags of this service's."""
        costs = self.file("costs", "".join(f"{n} {v}\n" for n, v in zip(("tick_us", "row_us", "token_us"), self.costs)))
        given = [x for flag, value in zip(self.flags[::2], self.flags[1::2]) if flag not in OURS | {"--script"} for x in (flag, value)]
        scripts = [v for f, v in zip(self.flags[::2], self.flags[1::2]) if f == "--script"]
        program = [] if "--stage-program" in given else ["--stage-program", os.path.join(BIN, "sluice-stage-fake")]
        defaults = {"--kv-block": "16", "--queue-requests": "32", "--max-stall-ms": "200", "--link": "tcp"}
        model = [] if "--model" in given else ["--model", self.model]
        return [os.path.join(BIN, "sluice-launch"), *flags, *given, *program, *model, "--script", ",".join([costs, *scripts]),
                *(x for name, value in defaults.items() if name not in given for x in (name, value))]

    def command(self):
        if self.mpi:
            return ["mpirun", "-np", str(self.stages), *self.launcher(*self.detach_flags())]
        return self.launcher("--stages", str(self.stages), *self.detach_flags())

    def start_streams(self, n=4, tokens=400):
        streams = [(self.call(p := ids(6, i), tokens, key=f"s{i}"), p, tokens) for i in range(n)]
        for c, _, _ in streams:
            c.wait_tokens(5)
        return streams

    def assert_went_on(self, streams, seconds=60):
        for c, p, n in streams:
            c.finish_up(seconds).assert_reference(p, n)

    def script_for_stage_1(self, command):
        """A stage program that is the fake one but on stage 1."""
        path = self.file("stage.sh", f"""#!/bin/sh
case " $* " in *" --stage 1 "*) {command} ;; esac
exec {BIN}/sluice-stage-fake "$@"
""")
        os.chmod(path, 0o755)
        return path


# --- addresses -------------------------------------------------------------------------------------------------------------------

@case("fast", seconds=60)
def fc_launch_a_coordinator_listens_on_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as e:
        raise Skip(f"no IPv6 here: {e}") from None
    for mpi, host in ((False, "[::1]"), (True, "[::]")):
        s = Launched(stages=2, mpi=mpi)
        s.flags += ["--grpc", f"{host}:{s.grpc_port}", *token(s)]
        with s:
            s.ask(p := ids(4, 1), 8).assert_reference(p, 8)


@case("fast", seconds=30)
def fc_launch_a_model_file_of_any_name_is_served():
    s = Launched(stages=1, mpi=False)
    file = s.path(os.fsdecode(b'caf\xe9 "1\\2".gguf'))  # not UTF-8, and what JSON and Prometheus escape
    shutil.copy(s.model, file)
    s.flags += ["--model", file]
    with s:
        assert s.status()["model"]["id"] == 'caf? "1\\2"', s.status()["model"]
        s.ask(p := ids(4, 1), 8, model='caf? "1\\2"').assert_reference(p, 8)
        s.metrics()


class Unread(Launched):
    """Its log goes into a pipe that is read late, as `| less` or a terminal that is held by Ctrl-S does."""

    def start(self):
        self.pipe, into = os.pipe()
        fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, 16384)
        self.job = subprocess.Popen(self.command(), stdout=subprocess.DEVNULL, stderr=into, stdin=subprocess.DEVNULL, env=self.env,
                                    start_new_session=True)
        os.close(into)
        self.wait_ready(20 * SLACK)

    def log(self):
        return ""


@case("full", seconds=60)
def fc_launch_a_log_that_nobody_reads_stops_nothing():
    with Unread(stages=2, mpi=False, flags=["--log", "trace"]) as s:
        for i in range(60):
            s.ask(p := ids(4, i), 8).assert_reference(p, 8)
        assert len(os.read(s.pipe, 1 << 20)) > 8000  # it was full, so lines were lost
        s.ask(p := ids(4, 99), 8).assert_reference(p, 8)
        assert b"lines were lost: nobody read them" in os.read(s.pipe, 1 << 20)
        s.end()
        os.close(s.pipe)


# --- starts that fail ------------------------------------------------------------------------------------------------------------

def fails_to_start(code, last, cause, command=None, flags=(), rank=1, detach=False):
    """The job of three ranks ends with this code; the launcher's last line names the rank, a line above it the cause in full."""
    s = Launched(stages=3, wait=False, flags=flags, detach=detach)
    if command:
        s.flags += ["--stage-program", s.script_for_stage_1(command)]
    with s:
        began = time.monotonic()
        try:
            s.exit_code = s.job.wait(START_FAILS_S * SLACK)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {START_FAILS_S} s: {s.processes()}") from None
        assert time.monotonic() - began < START_FAILS_S
        s.assert_nothing_left()
        with open(s.log_path, errors="replace") as f:  # what mpirun's caller sees, also of a detached service
            lines = [line for line in f.read().splitlines() if " launch" in line]
        assert s.exit_code == code, (s.exit_code, s.log())
        assert f"rank {rank}: " in lines[-1] and last in lines[-1], lines
        assert any(cause in line for line in s.log().splitlines()), s.log()


@case("full", seconds=60)
def fc_31_one_rank_that_cannot_start_ends_all_with_its_code():
    port = free_ports(1)[0]
    stage = f'exec {BIN}/sluice-stage "$@"'
    fails_to_start(3, "missing model", "/nowhere/model.gguf", f"{stage} --model /nowhere/model.gguf")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        fails_to_start(4, "address in use", f"127.0.0.1:{port}", f'exec {BIN}/sluice-stage-fake "$@" --data 127.0.0.1:{port}')
    fails_to_start(2, "bad configuration", "cuda", f"{stage} --backend cuda")
    fails_to_start(3, "missing model", "/nowhere/model.gguf", f"{stage} --model /nowhere/model.gguf", detach=True)
    alone = subprocess.run([os.path.join(BIN, "sluice-coordinator"), "--model", "/nowhere/model.gguf", "--grpc", f"127.0.0.1:{port}"],
                           capture_output=True, timeout=20)
    assert alone.returncode == 3 and b"/nowhere/model.gguf: No such file" in alone.stderr, alone
    fails_to_start(2, "bad configuration", "--split '4,4'", flags=["--split", "4,4"], rank=0)


# --- processes that fall silent, come back too often, make room ------------------------------------------------------------------

@case("full", seconds=30)
def fc_launch_a_silent_process_is_killed_and_its_streams_go_on():
    with Launched(stages=2) as s:
        streams = s.start_streams()
        before = {x: s.pid(x) for x in s.parts()}
        stopped = s.kill(1, signal.SIGSTOP)
        began = time.monotonic()
        wait_for(lambda: not alive(stopped), 5, "the launcher kills it")
        assert time.monotonic() - began > 1.5, "it was not given its two seconds"
        s.assert_went_on(streams)
        s.assert_quiet(restarts=1)
        assert {x for x in before if s.pid(x) != before[x]} == {1}
        assert "stage 1" in (killed := next(line for line in s.log().splitlines() if "no sign of life" in line)), killed
        assert f"stage 1 (pid {stopped}) gave no sign of life and was killed" in s.log() and "9 of 10 restarts" in s.log()


class StoppedThread:
    """One thread of another process stands still, the others go on (a debugger holds it)."""
    ATTACH, DETACH, ALL = 16, 17, 0x40000000

    def __init__(self, pid, name):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.ptrace.argtypes = [ctypes.c_long] * 2 + [ctypes.c_void_p] * 2
        for tid in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{tid}/comm") as f:
                if f.read().strip() == name:
                    self.tid = int(tid)

    def __enter__(self):
        if self.libc.ptrace(self.ATTACH, self.tid, None, None) != 0:
            raise Skip("ptrace is not allowed here")
        os.waitpid(self.tid, self.ALL)

    def __exit__(self, *why):
        if self.libc.ptrace(self.DETACH, self.tid, None, None) != 0:
            os.waitpid(self.tid, self.ALL)  # it was killed: its process is not gone before we have heard of it


@case("full", seconds=30)
def fc_launch_a_coordinator_whose_engine_hangs_is_replaced():
    with Launched(stages=2, mpi=False) as s:
        s.ended.add("coordinator")
        pid = s.pid("coordinator")
        with StoppedThread(pid, "engine"):
            wait_for(lambda: f"coordinator (pid {pid}): no sign of life" in s.log(), 5, "the launcher kills it")
        wait_for(lambda: s.ready() and s.pid("coordinator") != pid, 5, "another coordinator")
        s.assert_quiet(ended=("coordinator",))


class FromOneThatIgnoresChildren(Launched):
    def start(self):
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        try:
            super().start()
        finally:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@case("full", seconds=30)
def fc_launch_a_parent_that_ignores_its_children_takes_no_restart_away():
    with FromOneThatIgnoresChildren(stages=2, mpi=False) as s:
        pid = s.kill(1)
        wait_for(lambda: s.ready() and s.pid(1) != pid, 5, "another stage 1")


@case("full", seconds=30)
def fc_launch_a_launcher_that_was_stopped_kills_nobody():
    with Launched(stages=2, mpi=False) as s:
        streams = s.start_streams()
        before = {x: s.pid(x) for x in s.parts()}
        os.kill(s.job.pid, signal.SIGSTOP)  # as a machine that sleeps: nobody hears the beats
        os.kill(before[1], signal.SIGSTOP)
        time.sleep(3)
        os.kill(s.job.pid, signal.SIGCONT)
        time.sleep(0.5)
        os.kill(before[1], signal.SIGCONT)
        s.assert_went_on(streams)
        s.assert_quiet()
        assert before == {x: s.pid(x) for x in s.parts()}
        assert "stood still" in s.log() and "no sign of life" not in s.log()


@case("full", seconds=30)
def fc_launch_a_process_that_ends_too_often_ends_the_job():
    with Launched(stages=2, flags=["--restarts", "2"]) as s:
        for left in (1, 0):
            pid = s.kill(1)
            wait_for(lambda: s.ready() and s.pid(1) != pid, 10, "another stage 1")
            assert f"({left} of 2 restarts in ten minutes are left)" in s.log()
        pid = s.kill(1)
        s.wait_exit(70, 5)
        s.assert_nothing_left()
        last = [line for line in s.log().splitlines() if " launch" in line][-1]
        assert "rank 1" in last and f"stage 1 (pid {pid}) was ended by signal 9" in last and "given up" in last, last


@case("full", seconds=40)
def fc_launch_every_process_is_replaced_under_streams_that_go_on():
    with Launched(stages=2, mpi=False) as s:
        streams = s.start_streams(tokens=1000)
        for what, sig in ((1, signal.SIGTERM), (0, signal.SIGUSR1), ("coordinator", signal.SIGUSR1), ("gateway", signal.SIGUSR1)):
            pid = s.pid(what)
            s.ended.add(what)
            os.kill(pid, sig)
            wait_for(lambda: not alive(pid) and s.ready() and s.pid(what) != pid, 5, f"another {what}")
            assert "ended as it was asked to" in s.log()
        s.assert_went_on(streams)
        s.assert_quiet(restarts=s.status()["stages"][0]["restarts"] + s.status()["stages"][1]["restarts"])


# --- what outlives what -----------------------------------------------------------------------------------------------------------

@case("full", seconds=60)
def fc_launch_a_detached_service_outlives_mpirun():
    with Launched(stages=2, detach=True) as s:
        assert not any("mpirun" in command or "orted" in command for _, command in s.processes()), s.processes()
        assert all(os.getsid(s.supervisor_pid(rank)) == s.supervisor_pid(rank) for rank in (0, 1))
        streams = s.start_streams(2)
        r = subprocess.run(s.command(), env=s.env, capture_output=True, text=True, timeout=20 * SLACK)  # once more is a mistake
        assert r.returncode == 2 and f"held by the launcher with pid {s.supervisor_pid()}" in r.stderr, r
        pid = s.kill(1)
        wait_for(lambda: s.ready() and s.pid(1) != pid, 5, "the supervisor starts it again")
        s.assert_went_on(streams)
        os.kill(s.supervisor_pid(), signal.SIGTERM)
        wait_for(lambda: not s.processes(), 5, "SIGTERM ends it all")
        s.exit_code = 0
        assert not os.path.exists(s.pid_file) and not os.path.exists(s.pid_file + ".1")


@case("full", seconds=40)
def fc_launch_before_it_is_ready_a_detached_service_ends_with_mpirun():
    s = Launched(stages=2, detach=True, wait=False)
    s.flags += ["--stage-program", s.script_for_stage_1("exec sleep 60")]
    with s:
        wait_for(lambda: len([1 for _, command in s.processes() if "sluice-stage-fake" in command]), 10, "it has begun")
        s.job.kill()
        wait_for(lambda: not s.processes(), 10, "all ends")
        s.exit_code = s.job.wait()
        assert "mpirun was ended before the service was ready" in s.log()


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        return [int(x) for x in f.read().split()]


def token(s):
    return ["--token-file", s.file("token", "0123456789abcdef0123456789abcdef\n")]


@case("full", seconds=60)
def fc_launch_a_spare_beside_a_single_stage_is_in_nobodys_way():
    s = Launched(stages=1, detach=True)
    s.flags += token(s)
    with s:
        with open(s.path("join.log"), "wb") as log:
            joiner = subprocess.Popen(s.launcher("--join", f"127.0.0.1:{s.grpc_port}"), env=s.env, stderr=log, stdin=subprocess.DEVNULL)
        try:
            wait_for(lambda: children(joiner.pid), 5, "the spare's process")
            time.sleep(1)  # it has said that it is there
            streams = s.start_streams(tokens=600)
            for who in (0, "coordinator", 0):
                os.kill(pid := s.pid(who), signal.SIGKILL)
                wait_for(lambda: s.pid(who) != pid and s.ready(), 10, f"another {who}")
                assert s.pid(0) not in children(joiner.pid), f"the spare serves after the end of {who}"
            s.assert_went_on(streams)
            assert "spares wait already" not in s.log()
        finally:
            joiner.kill()
            joiner.wait()


@case("full", seconds=60)
def fc_launch_a_joined_stage_takes_the_place_of_a_lost_rank():
    s = Launched(stages=2, detach=True)
    s.flags += token(s)
    with s:
        streams = s.start_streams(tokens=600)
        lost = s.pid(1)
        os.kill(s.supervisor_pid(1), signal.SIGKILL)
        wait_for(lambda: not alive(lost), 2, "its stage dies with it")
        wait_for(lambda: not s.ready(), 2, "not ready")
        wait_for(lambda: "the launcher of rank 1 is gone" in s.log(), 2, "rank 0 says so")
        join = s.launcher("--join", f"127.0.0.1:{s.grpc_port}")
        with open(s.path("join.log"), "wb") as log:
            joiner = subprocess.Popen(join, env=s.env, stderr=log, stdin=subprocess.DEVNULL)
        try:
            wait_for(s.ready, 10, "ready with the joined one")
            s.assert_went_on(streams)
            s.assert_quiet(restarts=s.status()["stages"][1]["restarts"])
            joined = s.pid(1)
            os.kill(joined, signal.SIGKILL)  # its launcher starts it again, as that stage: it does not wait as a spare once more
            wait_for(lambda: s.ready() and s.pid(1) != joined, 1.5, "the joined stage comes back")
            os.kill(s.supervisor_pid(), signal.SIGTERM)
            assert joiner.wait(10 * SLACK) == 0
            with open(s.path("join.log")) as log:
                assert "the coordinator needs it no more" in log.read()
            wait_for(lambda: not s.processes(), 5, "SIGTERM ends it all")
            s.exit_code = 0
        finally:
            joiner.kill()
            joiner.wait()


@case("full", seconds=60)
def fc_launch_a_detached_rank_waits_for_rank_0_and_ends_when_told():
    with Launched(stages=2, detach=True) as s:
        other, stage = s.supervisor_pid(1), s.pid(1)
        os.kill(s.supervisor_pid(0), signal.SIGKILL)
        wait_for(lambda: len(s.processes()) == 2, 3, "rank 0's processes die with it")
        time.sleep(3)
        assert alive(other) and alive(stage), s.log()
        assert s.log().count("is out of reach") == 1, s.log()
        os.kill(other, signal.SIGTERM)
        wait_for(lambda: not s.processes(), 3, "SIGTERM ends the other rank")
        s.exit_code = 0


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
