"""How a service ends and how one fails to start: drains, signals, taken ports, bad models; always with the documented exit code."""
import os
import signal
import socket
import subprocess
import sys
import time

from service import BIN, SLACK, Service, ids, run, wait_for


def start_streams(s, n_short=250):
    """Four streams: two end 2 s after they began, two take far longer."""
    short = [(s.call(p := ids(4, i), n_short, key=f"s{i}"), p) for i in range(2)]
    long = [s.call(ids(4, 10 + i), 3000, key=f"l{i}") for i in range(2)]
    for c in [c for c, _ in short] + long:
        c.wait_tokens(5)
    return short, long


def assert_drains(s):
    """Whoever comes from now on is told so."""
    wait_for(lambda: not s.ready(), 1, "/ready says that it ends")
    for stream in (True, False):
        late = s.call(ids(4, 99), 8, stream=stream).finish_up(2)
        assert late.broken or (late.status == 503 and late.retry_after() and late.error["retryable"]), late.describe()
        assert late.ended - late.started < 1 * SLACK


def assert_drained(s, short, n_short, long, asked, drain_s):
    """The short streams end well, the long ones are cut off when the time is over; then the job ends."""
    for c, p in short:
        c.finish_up(10).assert_reference(p, n_short)
    for c in long:
        c.finish_up(10)
        assert drain_s - 0.5 <= c.ended - asked <= (drain_s + 1) * SLACK, c.ended - asked
        assert c.status == 200 and c.error and c.error["retryable"] is True and c.finish is None and not c.broken, c.describe()
    s.wait_exit(0, 7 - (time.monotonic() - asked) + 1)
    s.assert_nothing_left()


def drain(mpi, target):
    with Service(stages=2, mpi=mpi, flags=["--drain-ms", "4000"]) as s:
        short, long = start_streams(s)
        asked = time.monotonic()
        if target == "launcher":
            s.job.send_signal(signal.SIGUSR1 if mpi else signal.SIGTERM)
        else:
            for pid in (s.pid("coordinator"), s.pid("gateway")):
                os.kill(pid, signal.SIGTERM)
        assert_drains(s)
        assert_drained(s, short, 250, long, asked, 4)


def test_sigterm_drains_running_streams():
    drain(False, "launcher")


def test_sigusr1_to_mpirun_drains_running_streams():
    drain(True, "launcher")


def test_sigterm_to_coordinator_and_gateway_drains():
    drain(False, "processes")


def test_what_dies_while_it_drains_comes_back_for_the_answers_that_run():
    for part in (1, "coordinator", "gateway"):
        with Service(stages=2, mpi=False, flags=["--drain-ms", "20000"]) as s:
            running = [(s.call(p := ids(4, i), 250, key=f"s{i}"), p) for i in range(2)]
            for c, _ in running:
                c.wait_tokens(5)
            pid = s.pid(part)
            s.job.send_signal(signal.SIGTERM)
            wait_for(lambda: not s.ready(), 1, "it drains")
            os.kill(pid, signal.SIGKILL)
            for c, p in running:
                c.finish_up(30).assert_reference(p, 250)
            s.wait_exit(0, 4)
            s.assert_nothing_left()


def test_a_coordinator_that_has_just_come_is_not_through_before_its_answers_are_asked_for():
    with Service(stages=2, mpi=False, flags=["--drain-ms", "20000", "--heartbeat-ms", "1000"]) as s:
        running = s.call(p := ids(4, 1), 300)
        running.wait_tokens(5)
        gateway = s.pid("gateway")
        os.kill(gateway, signal.SIGSTOP)  # so that it asks late; four heartbeats are allowed
        os.kill(s.pids["coordinator"], signal.SIGKILL)
        wait_for(lambda: s.log().count(" gRPC on ") == 2, 3, "another coordinator")
        time.sleep(0.5)  # the launcher has heard it
        s.job.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        os.kill(gateway, signal.SIGCONT)
        running.finish_up(30).assert_reference(p, 300)
        s.wait_exit(0, 4)
        s.assert_nothing_left()


def test_an_idle_service_ends_at_once():
    for mpi in (False, True):
        with Service(stages=2, mpi=mpi) as s:
            asked = time.monotonic()
            s.end()
            assert time.monotonic() - asked < 2 * SLACK, time.monotonic() - asked


def test_a_second_sigterm_ends_it_within_a_second():
    with Service(stages=2, mpi=False) as s:  # mpirun kills a second after its SIGTERM
        running = [s.call(ids(4, i), 3000) for i in range(4)]
        for c in running:
            c.wait_tokens(2)
        assert s.ask_to_end_twice(signal.SIGTERM, 1.5) < 1.5 * SLACK
        s.assert_nothing_left()
        for c in running:
            c.finish_up(1)
            assert c.error or c.broken, c.describe()


def test_killing_the_launcher_leaves_nothing():
    with Service(stages=2, mpi=False) as s:
        s.call(ids(4, 1), 3000).wait_tokens(2)
        os.kill(s.starter_pid(), signal.SIGKILL)
        s.wait_exit(137, 4)
        s.assert_nothing_left()


def test_killing_mpirun_leaves_nothing():
    with Service(stages=2, mpi=True) as s:
        s.call(ids(4, 1), 3000).wait_tokens(2)
        os.kill(s.starter_pid(), signal.SIGKILL)
        s.wait_exit(137, 4)
        s.assert_nothing_left(5)


# --- what fails to start --------------------------------------------------------------------------------------------------------

def program(name, *flags, seconds=10):
    """(exit code, last line of stderr)"""
    r = subprocess.run([os.path.join(BIN, name), *flags], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, timeout=seconds * SLACK)
    lines = r.stderr.decode(errors="replace").strip().splitlines()
    return r.returncode, lines[-1] if lines else "", lines


class Taken:
    """A port that somebody else listens on."""

    def __enter__(self):
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen()
        self.address = "127.0.0.1:%d" % self.socket.getsockname()[1]
        return self.address

    def __exit__(self, *why):
        self.socket.close()


def test_a_taken_port_is_one_clear_line_and_exit_code_4():
    with Taken() as at, Service(wait=False) as s:
        code, last, lines = program("sluice-coordinator", "--model", s.model, "--grpc", at)
        assert code == 4 and at in last and "in use" in last, (code, lines)
        assert sum("in use" in line for line in lines) == 1, lines
        code, last, lines = program("sluice-gateway", "--coordinator", f"127.0.0.1:{s.grpc_port}", "--http", at)
        assert code == 4 and at in last and "in use" in last, (code, lines)
        assert len(lines) == 1, lines
        s.wait_ready(10 * SLACK)


def failing(flags=(), stages=2, mpi=True, env=None, seconds=30):
    """Starts a service that cannot start; (exit code, log lines)."""
    with Service(stages=stages, mpi=mpi, flags=flags, env=env, wait=False) as s:
        began = time.monotonic()
        try:
            code = s.exit_code = s.job.wait(seconds * SLACK)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {seconds} s") from None
        s.assert_nothing_left()
        return code, s.log().strip().splitlines(), time.monotonic() - began


def test_a_taken_port_ends_the_job_with_code_4():
    for mpi in (False, True):
        for flag in ("--grpc", "--http"):
            with Taken() as at:
                code, lines, _ = failing(flags=[flag, at], mpi=mpi)
                assert code == 4, (code, lines)
                assert any("in use" in line and at in line for line in lines), lines


def ours(lines):
    """Without what mpirun adds of its own."""
    return [line for line in lines if " launch" in line]


def test_a_missing_model_on_one_stage_names_rank_and_cause():
    with Service(wait=False) as helper:
        script = helper.file("stage.sh", f"""#!/bin/sh
case " $* " in *" --stage 1 "*) exec {BIN}/sluice-stage "$@" --model /nowhere/model.gguf ;; esac
exec {BIN}/sluice-stage-fake "$@"
""")
        os.chmod(script, 0o755)
        code, lines, took = failing(flags=["--stage-program", script], stages=3)
        assert code == 3, (code, lines)
        assert took < 30 * SLACK
        last = ours(lines)[-1]
        assert "rank 1" in last and "stage 1" in last and "missing model" in last, lines
        assert any("/nowhere/model.gguf" in line for line in lines), lines
        helper.wait_ready(10 * SLACK)


def test_bad_values_end_every_rank_with_code_2():
    for flags in (["--slots", "0"], ["--split", "9"]):
        code, lines, _ = failing(flags=flags, stages=2)
        assert code == 2, (flags, code, lines)
        assert any(flags[0].lstrip("-") in line for line in lines), (flags, lines)


def test_a_file_that_is_no_model_ends_the_job_with_code_3():
    with Service(wait=False) as helper:
        bad = helper.file("bad.gguf", "GGUF but not quite")
        code, lines, _ = failing(flags=["--model", bad])
        assert code == 3, (code, lines)
        assert any("bad.gguf" in line for line in lines), lines
        helper.wait_ready(10 * SLACK)


def test_flags_of_the_programs_answer_by_themselves():
    for name in ("sluice-launch", "sluice-coordinator", "sluice-stage", "sluice-gateway"):
        for flag in ("--help", "--version"):
            r = subprocess.run([os.path.join(BIN, name), flag], capture_output=True, timeout=10 * SLACK)
            assert r.returncode == 0 and r.stdout.strip(), (name, flag, r)
        code, last, lines = program(name, "--no-such-flag")
        assert code == 2 and "no-such-flag" in last, (name, code, lines)


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
