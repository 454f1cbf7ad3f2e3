"""Everything at once, stages that stop, and strangers that talk nonsense: nobody hears of it but by a pause. (One process that dies: groups
4 and 11 of the failure cases, test_fc_crash.py, test_fc_resume.py.)"""
import os
import random
import signal
import socket
import sys
import time

from faults import listening_ports
from service import SLACK, Service, ids, run, wait_for

READY_AGAIN_S = 5


def start_clients(s):
    """[(call, prompt, answer tokens)]: four that run, one of them without a stream, and two that wait."""
    calls = [(s.call(p := ids(300 if i == 3 else 6, i), 600, key=f"r{i}", stream=i != 2), p, 600) for i in range(4)]
    s.wait_requests(decoding=4)  # or one of those that are to wait may come first
    calls += [(s.call(p := ids(6, 50 + i), 8, key=f"q{i}", stream=i == 0), p, 8) for i in range(2)]
    for c, *_ in calls[:2]:
        c.wait_tokens(3)
    s.wait_requests(decoding=4, queued=2)
    return calls


def kill_and_finish(s, *victims):
    """These die at once; everybody has its reference text in the end."""
    calls = start_clients(s)
    before = {x: s.pid(x) for x in s.parts()}
    for x in victims:
        os.kill(before[x], signal.SIGKILL)
    killed = time.monotonic()
    s.ended |= set(victims)
    for c, p, n in calls:
        c.finish_up(20).assert_reference(p, n)
    print(f"      pauses {[round(c.max_gap(killed - 1), 2) for c, *_ in calls if len(c.times()) > 1]} s")
    wait_for(s.ready, READY_AGAIN_S, "ready again")
    after = {x: s.pid(x) for x in s.parts()}
    assert {x for x in before if before[x] != after[x]} == set(victims), (before, after)


def test_killing_the_gateway_is_a_pause():
    with Service(stages=2, slots=4) as s:
        kill_and_finish(s, "gateway")
        s.assert_quiet()


def test_killing_everything_at_once_is_a_pause():
    with Service(stages=2, slots=4) as s:
        kill_and_finish(s, "coordinator", "gateway", 0, 1)
        s.assert_quiet(restarts=sum(x["restarts"] for x in s.status()["stages"]))


def test_a_stopped_stage_is_noticed_and_comes_back():
    with Service(stages=2, slots=4, flags=["--heartbeat-ms", "100"]) as s:
        running = s.call(p := ids(6, 1), 500)
        running.wait_tokens(3)
        pid = s.kill(1, signal.SIGSTOP)
        try:
            wait_for(lambda: not s.ready(), 2, "not ready")
            queued = s.call(q := ids(6, 2), 8)
        finally:
            os.kill(pid, signal.SIGCONT)
        queued.finish_up(10).assert_reference(q, 8)
        running.finish_up(20).assert_reference(p, 500)
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


def ports_of(s):
    """TCP ports that a process of the service listens on: gateway, coordinator, links. (MPI's own daemon is not ours.)"""
    return set().union(*(listening_ports(pid) for pid, command in s.processes() if "/sluice-" in command.split()[0]))


def test_strangers_on_every_port_disturb_nobody():
    rng = random.Random(7)
    with Service(stages=2, slots=4, flags=["--link", "tcp"]) as s:
        ports = ports_of(s)
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
