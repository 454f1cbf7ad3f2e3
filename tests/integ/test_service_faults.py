"""Processes that die and strangers that talk nonsense: clients get an answer within 2 s, the service is ready again by itself."""
import os
import random
import signal
import socket
import sys
import time

from service import SLACK, Service, ids, run, wait_for

ANSWER_S = 2
READY_AGAIN_S = 5


def start_clients(s):
    """4 streams that run (one of them without SSE) and 2 that wait."""
    running = [s.call(ids(300 if i == 3 else 6, i), 2000, key=f"r{i}", stream=i != 2) for i in range(4)]
    for i in (0, 1):
        running[i].wait_tokens(3)
    wait_for(lambda: s.status()["requests"]["decoding"] == 4, 5, "four decode")
    queued = [(s.call(p := ids(6, 50 + i), 8, key=f"q{i}", stream=i == 0), p) for i in range(2)]
    wait_for(lambda: s.status()["requests"]["queued"] == 2, 2, "two wait")
    return running, queued


def assert_told(calls, killed):
    """Each ends within 2 s by one retryable error: an event of its stream, or an answer with the right status."""
    for c in calls:
        c.finish_up(ANSWER_S + 3)
        assert c.ended - killed <= ANSWER_S * SLACK, (c.ended - killed, c.describe())
        assert c.error and c.error["retryable"] is True and not c.broken, c.describe()
        assert c.finish is None and not c.done, c.describe()
        assert c.status == 200 if c.events else c.status in (500, 503), c.describe()


def kill_stage(n_stages, which, sig=signal.SIGKILL):
    with Service(stages=n_stages, slots=4) as s:
        before = {x: s.pid(x) for x in ["coordinator", "gateway", *range(n_stages)]}
        for round in range(2):
            running, queued = start_clients(s)
            s.kill(which, sig)
            killed = time.monotonic()
            assert_told(running, killed)
            for c, p in queued:
                c.finish_up(READY_AGAIN_S + 5).assert_reference(p, 8)
            wait_for(s.ready, READY_AGAIN_S, "ready again")
            s.assert_quiet(restarts=round + 1)
        after = {x: s.pid(x) for x in before}
        assert {x for x in before if before[x] != after[x]} == {which}, (before, after)


def test_killing_the_first_stage_is_survived():
    kill_stage(3, 0)


def test_killing_a_middle_stage_is_survived():
    kill_stage(3, 1)


def test_killing_the_last_stage_is_survived():
    kill_stage(3, 2)


def test_killing_the_only_stage_is_survived():
    kill_stage(1, 0)


def test_killing_the_coordinator_is_survived():
    with Service(stages=2, slots=4) as s:
        before = {x: s.pid(x) for x in ("coordinator", "gateway", 0, 1)}
        running, queued = start_clients(s)
        s.kill("coordinator")
        killed = time.monotonic()
        assert_told(running, killed)
        for c, p in queued:  # it waited nowhere but in the coordinator: an answer at once, or served by the next one
            c.finish_up(ANSWER_S + 8)
            if c.status == 200 and not c.error:
                c.assert_reference(p, 8)
            else:
                assert_told([c], killed)
        wait_for(lambda: s.ready() and s.status()["coordinator"]["pid"] != before["coordinator"], READY_AGAIN_S, "ready again")
        assert {x: s.pid(x) for x in ("gateway", 0, 1)} == {x: before[x] for x in ("gateway", 0, 1)}
        assert s.status()["epoch"] >= 2  # above every number of the life before
        s.assert_quiet()


def test_killing_the_gateway_is_survived():
    with Service(stages=2, slots=4) as s:
        before = {x: s.pid(x) for x in ("coordinator", "gateway", 0, 1)}
        running, queued = start_clients(s)
        s.kill("gateway")
        for c in [*running, *(c for c, _ in queued)]:
            c.finish_up(ANSWER_S)
            assert c.broken, c.describe()
        wait_for(lambda: s.ready() and s.pid("gateway") != before["gateway"], READY_AGAIN_S, "ready again")
        s.assert_quiet()
        assert {x: s.pid(x) for x in ("coordinator", 0, 1)} == {x: before[x] for x in ("coordinator", 0, 1)}
        s.assert_quiet()


def test_killing_everything_at_once_is_survived():
    with Service(stages=2, slots=4) as s:
        pids = [s.pid(x) for x in ("coordinator", "gateway", 0, 1)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: s.ready() and not set(pids) & {s.pid(x) for x in ("coordinator", "gateway", 0, 1)}, READY_AGAIN_S,
                 "ready again")
        s.assert_quiet(ended=("coordinator", "gateway"))


def test_a_stopped_stage_is_noticed_and_comes_back():
    with Service(stages=2, slots=4, flags=["--heartbeat-ms", "100"]) as s:
        running = s.call(ids(6, 1), 2000)
        running.wait_tokens(3)
        pid = s.kill(1, signal.SIGSTOP)
        stopped = time.monotonic()
        try:
            assert_told([running], stopped)
            wait_for(lambda: not s.ready(), 2, "not ready")
            queued = s.call(p := ids(6, 2), 8)
        finally:
            os.kill(pid, signal.SIGCONT)
        queued.finish_up(10).assert_reference(p, 8)
        s.assert_quiet()
        assert s.pid(1) == pid


def test_health_tells_the_truth_while_a_stage_is_away():
    with Service(stages=2, flags=["--restart-delay-ms", "1500"]) as s:
        s.kill(1)
        killed = time.monotonic()
        wait_for(lambda: s.get("/ready")[0] == 503, 1, "/ready says so")
        seen_ready = False
        while time.monotonic() - killed < 1.2:
            assert s.get("/health")[0] == 503 and s.get("/ready")[0] == 503 and s.get("/live")[0] == 200
            st = s.status()
            assert st["live"] is True and st["ready"] is False and st["stages"][1]["state"] == "lost", st
            assert s.get("/metrics")[0] == 200
            time.sleep(0.05)
        waiting = s.call(p := ids(4, 1), 8)  # a request now waits, it is not refused
        wait_for(s.ready, 5, "ready again")
        waiting.finish_up(5).assert_reference(p, 8)
        s.assert_quiet(restarts=1)


def test_a_stage_that_stays_away_ends_the_waiting_ones_in_time():
    with Service(stages=2, flags=["--restart-delay-ms", "60000", "--recovery-timeout-ms", "1500"]) as s:
        running = s.call(ids(4, 1), 1000)
        running.wait_tokens(2)
        s.kill(0)
        killed = time.monotonic()
        assert_told([running], killed)
        waiting = s.call(ids(4, 2), 8).finish_up(5)
        assert 1.4 <= waiting.ended - killed <= 1.8 * SLACK, waiting.ended - killed
        assert waiting.status == 503 and waiting.retry_after() and waiting.error["retryable"], waiting.describe()
        later = s.call(ids(4, 3), 8).finish_up(2)
        assert later.status == 503 and later.retry_after(), later.describe()
        assert s.get("/live")[0] == 200


def nonsense(rng, kind):
    if kind == "random":
        return rng.randbytes(rng.randrange(1, 3000))
    if kind == "tls":
        return b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(300)
    if kind == "http":
        return b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    if kind == "http2":
        return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(200)
    return b""  # says nothing


def listening_ports(s):
    """TCP ports that a process of the service listens on: gateway, coordinator, links. (MPI's own daemon is not ours.)"""
    inodes, ports = set(), set()
    for pid in (pid for pid, command in s.processes() if "/sluice-" in command.split()[0]):
        try:
            inodes |= {os.readlink(f"/proc/{pid}/fd/{fd}")[8:-1] for fd in os.listdir(f"/proc/{pid}/fd")
                       if os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:[")}
        except OSError:
            pass
    for name in ("tcp", "tcp6"):
        with open(f"/proc/net/{name}") as f:
            for line in f.readlines()[1:]:
                field = line.split()
                if field[3] == "0A" and field[9] in inodes:
                    ports.add(int(field[1].rpartition(":")[2], 16))
    return ports


def test_strangers_on_every_port_disturb_nobody():
    rng = random.Random(7)
    with Service(stages=2, slots=4, flags=["--link", "tcp"]) as s:
        ports = listening_ports(s)
        assert {s.port, s.grpc_port} <= ports and len(ports) >= 4, ports
        streams = [(s.call(p := ids(6, i), 1200, key=f"s{i}"), p) for i in range(4)]
        for c, _ in streams:
            c.wait_tokens(2)
        before = sum(s.rss().values())
        held = []
        for i in range(20):
            for port in ports:
                c = socket.create_connection(("127.0.0.1", port), timeout=10)
                try:
                    c.sendall(nonsense(rng, ("random", "tls", "http", "http2", "silent")[i % 5]))
                except OSError:
                    pass
                if i % 5 == 4 or i % 2:
                    held.append((c, port))
                else:
                    c.close()
        # Whoever keeps quiet or keeps talking nonsense to a link, the coordinator's gRPC or the control socket is shown out.
        until = time.monotonic() + 10 * SLACK
        for c, port in held:
            if port == s.port:
                continue  # an idle HTTP connection may stay for its own time limit
            c.settimeout(max(0.1, until - time.monotonic()))
            try:
                while c.recv(65536):
                    pass
            except ConnectionError:
                pass
        for c, p in streams:
            c.finish_up(30).assert_reference(p, 1200)
        if SLACK == 1:
            assert (grown := sum(s.rss().values()) - before) < 8192, grown
        for c, _ in held:
            c.close()
        s.assert_quiet()


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
