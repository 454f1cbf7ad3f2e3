"""Nodes that go away for good, and what takes their place; what outlives mpirun."""
import os
import signal
import sys
import time

from bed import Cluster, address, require  # first: it knows where the other modules are
from runner import real_model
from service import SLACK, Call, Service, case, free_ports, ids, run, wait_for

NOTICED_S = 2
RESUMED_S = 6


def begin(s, n, first_seed=1, port=None):
    """Four streams that have begun to answer."""
    prompts = [ids(200, first_seed + i) for i in range(4)]
    calls = [Call(port or s.port, "/v1/completions", s.body(p, n), key=f"k{i}") for i, p in enumerate(prompts)]
    for c in calls:
        c.start()
    for c in calls:
        c.wait_tokens(5)
    return list(zip(calls, prompts))


def is_mpi(command):
    return os.path.basename(command.split()[0]) in ("mpirun", "orted", "prterun", "prted")


@case("full", seconds=60)
def cluster_a_detached_service_needs_neither_mpirun_nor_its_daemons():
    with Cluster(detach=True) as s:
        assert s.job.wait(5 * SLACK) == 0, s.job.returncode
        wait_for(lambda: not any(is_mpi(command) for _, command in s.processes()), 5, "nothing of MPI is left")
        for c, p in begin(s, 100):
            c.finish_up(20).assert_reference(p, 100)
        # A launcher that ends takes its own processes along, no others; the service waits for another stage.
        calls = begin(s, 250, first_seed=11)
        joined = s.join(1)
        os.kill(s.supervisor_pid(1), signal.SIGTERM)
        lost = time.monotonic()
        wait_for(lambda: not s.ready(), NOTICED_S, "not ready")
        for c, p in calls:
            c.finish_up(30).assert_reference(p, 250)
        print(f"      with a spare that waits: streams paused for {max(c.max_gap(after=lost - 1) for c, _ in calls):.2f} s", flush=True)
        s.assert_quiet(restarts=1)
        assert joined.poll() is None
    assert joined.wait(5) == 0, joined.returncode


@case("full", seconds=60)
def cluster_a_daemon_of_mpirun_that_is_lost_before_the_service_is_ready_ends_the_start():
    s = Cluster(detach=True, script="load_ms 20000", wait=False)
    with s:
        wait_for(lambda: sum("sluice-stage" in command for _, command in s.processes()) == 3, 10, "every stage has started")
        daemons = [pid for pid, command in s.processes() if is_mpi(command) and pid in s.net.processes(2)]
        assert daemons, s.processes()
        for pid in daemons:
            os.kill(pid, signal.SIGKILL)
        assert s.job.wait(15 * SLACK) != 0
        wait_for(lambda: not s.processes(), 5, "nothing is left")
        s.detach, s.exit_code = False, s.job.returncode  # there is nothing to end


@case("full", seconds=60, gaps=True)
def cluster_a_spare_takes_the_place_of_a_lost_node_and_streams_go_on():
    with Cluster(spares=1, detach=True) as s:
        calls = begin(s, 300)
        s.lose(2)
        lost = time.monotonic()
        wait_for(lambda: not s.ready(), NOTICED_S, "not ready")
        noticed = time.monotonic() - lost
        time.sleep(3)
        joined = time.monotonic()
        spare = s.join(3)
        wait_for(s.ready, RESUMED_S, "ready again")
        ready = time.monotonic() - joined
        for c, p in calls:
            c.finish_up(30).assert_reference(p, 300)
        resumed = max(min(c.times(after=joined)) for c, _ in calls) - joined
        print(f"      noticed after {noticed:.2f} s; ready {ready:.2f} s after the start of the spare, all streams go on after {resumed:.2f} s",
              flush=True)
        assert s.pid(2) in s.net.processes(3)
        s.assert_quiet(restarts=1)
    assert spare.wait(5) == 0, spare.returncode


@case("nightly", seconds=240, real=True)
def cluster_a_spare_goes_on_with_the_real_model_where_the_lost_node_stopped():
    """What the lost stage had in its KV is read again by the spare alone; what is said is what one stage says alone."""
    model = real_model()
    require()
    prompts = [f"Here is a long story about {what}, told slowly." for what in ("a bridge", "the sea", "three brothers", "a clock")]
    flags = ["--context", "1024", "--threads", "1"]

    def ask(s, prompt):
        return s.call(prompt, 200, key=prompt, ignore_eos=True)

    with Service(stages=1, slots=4, model=model, flags=flags) as s:
        alone = [c.finish_up(60).text for c in [ask(s, p) for p in prompts]]
    with Cluster(model=model, spares=1, detach=True, flags=flags) as s:
        calls = [ask(s, p) for p in prompts]
        for c in calls:
            c.wait_tokens(20)
        s.lose(1)
        lost = time.monotonic()
        spare = s.join(3)
        for c, text in zip(calls, alone):
            c.finish_up(60)
            assert c.status == 200 and c.text == text and c.finish == "length" and not c.broken, c.describe()
        m = s.metrics()
        print(f"      streams paused for {max(c.max_gap(after=lost - 0.5) for c in calls):.2f} s, {m['sluice_replayed_tokens_total']:.0f} positions "
              "were read again", flush=True)
        assert s.pid(1) in s.net.processes(3)
        s.assert_quiet(restarts=1)
    assert spare.wait(5) == 0, spare.returncode


@case("full", seconds=90, gaps=True)
def cluster_rank_0s_node_is_lost_and_comes_back():
    """Clients are served by a gateway on another node. In time they see a pause, else one retryable error; the other nodes' stages wait."""
    s = Cluster(detach=True, flags=["--recovery-timeout-ms", "20000"])
    with s:
        port = free_ports(1)[0]
        gateway = s.start_on(1, "sluice-gateway", "--coordinator", f"{address(0)}:{s.grpc_port}", "--http", f"127.0.0.1:{port}",
                             "--recovery-timeout-ms", "8000")
        s.net.enter(1)
        s.port, first_port = port, s.port
        s.wait_ready(5)
        stages = [s.pid(i) for i in (1, 2)]
        calls = begin(s, 300)
        s.lose(0)
        lost = time.monotonic()
        wait_for(lambda: not s.ready(), NOTICED_S, "not ready")
        noticed = time.monotonic() - lost
        s.net.tell("heal 0")
        returned = time.monotonic()
        flags = ["--grpc", f"0.0.0.0:{s.grpc_port}", "--stages", "3", "--model", s.model, "--context", str(s.context), "--slots", str(s.slots),
                 "--kv-block", "16", "--decode-share", "0.5", "--max-stall-ms", "200", "--recovery-timeout-ms", "20000"]
        coordinator = s.start_on(0, "sluice-coordinator", *flags)
        joined = s.join(0)
        for c, p in calls:
            c.finish_up(40).assert_reference(p, 300)
        resumed = max(min(c.times(after=returned)) for c, _ in calls) - returned
        assert [s.pid(i) for i in (1, 2)] == stages, "a stage did not wait"
        s.assert_quiet(ended=("coordinator", "gateway"))
        # And when nobody comes back.
        calls = begin(s, 2000, first_seed=21)
        s.lose(0)
        lost = time.monotonic()
        for c, _ in calls:
            c.finish_up(20)
            assert c.error and c.error["retryable"] is True and not c.broken and c.finish is None, c.describe()
            assert 8 <= c.ended - lost <= (8 + NOTICED_S) * SLACK, c.ended - lost
        print(f"      not ready after {noticed:.2f} s; streams go on {resumed:.2f} s after the return of the node; without a return they end "
              f"after {max(c.ended for c, _ in calls) - lost:.1f} s", flush=True)
        assert [os.path.exists(f"/proc/{pid}") for pid in stages] == [True, True]
        for p in (coordinator, joined):
            p.wait(5)
        for p in (gateway, *(s.supervisor_pid(i) for i in (1, 2))):
            os.kill(p if isinstance(p, int) else p.pid, signal.SIGTERM)
        gateway.wait(5)
        wait_for(lambda: not s.processes(), 5, "all have ended")
        s.net.enter(0)
        s.port, s.detach, s.exit_code = first_port, False, 0  # there is nothing to end


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
