"""Clients that leave: at any moment of a request, politely or not, their slot is free at once and nobody else notices."""
import os
import socket
import struct
import sys
import time

from service import FIRST_BYTE, SLACK, Service, ids, run, wait_for

LONG = 300


def test_leaving_at_any_tick_spares_the_stream_beside():
    with Service(stages=3, slots=2) as s:
        beside = s.call(p := ids(20, 1), LONG, key="beside")
        beside.wait_tokens(2)
        for offset in range(9):
            c = s.call(ids(12, 100 + offset), 500, key="leaver")
            wait_for(lambda: s.status()["requests"]["accepted"] == 2 + offset, 2, "it is accepted")
            time.sleep(offset * 0.005)
            c.leave()
            left = time.monotonic()
            wait_for(lambda: s.status()["requests"]["cancelled"] == 1 + offset, 1, "its slot is free")
            assert time.monotonic() - left < 1 * SLACK
        s.ask(q := ids(5, 7), 8, key="next").assert_reference(q, 8)  # the slot is usable
        beside.finish_up(30).assert_reference(p, LONG)
        s.assert_quiet()


def test_leaving_while_queued_runs_nothing():
    with Service(slots=4) as s:
        streams = [(s.call(p := ids(4, i), 150, key=f"s{i}"), p) for i in range(4)]
        for c, _ in streams:
            c.wait_tokens(2)
        queued = [s.call(ids(4, 50 + i), 100, key=f"q{i}", stream=i % 2 == 0) for i in range(20)]
        wait_for(lambda: s.status()["requests"]["queued"] == 20, 3, "20 wait")
        for c in queued:
            c.leave()
        wait_for(lambda: s.status()["requests"]["queued"] == 0, 1, "nobody waits")
        for c, p in streams:
            c.finish_up(30).assert_reference(p, 150)
        wait_for(lambda: s.status()["requests"]["decoding"] == 0, 1, "all have ended")
        m = s.metrics()
        assert m["sluice_generated_tokens_total"] == 4 * 150 and m["sluice_prompt_tokens_total"] == 16, m
        s.assert_quiet()


def test_leaving_while_queued_never_ends_the_active_stream():
    with Service(slots=1) as s:
        active = s.call(p := ids(4, 1), LONG, key="a")
        active.wait_tokens(2)
        for i in range(50):
            c = s.call(ids(4, 2 + i), 50, key="b")
            time.sleep(0.01)
            c.leave()
            c.join()
        active.finish_up(30).assert_reference(p, LONG)
        s.assert_quiet()


def test_leaving_while_reading_without_a_stream_frees_the_slot_within_a_second():
    with Service(slots=1) as s:
        reader = s.call(ids(30000, 1), 10, stream=False, key="a")
        wait_for(lambda: s.status()["requests"]["reading"] == 1, 2, "it reads")
        waiting = s.call(p := ids(4, 2), 8, key="b")
        time.sleep(0.2)
        reader.leave()
        left = time.monotonic()
        waiting.finish_up(10).assert_reference(p, 8)
        assert waiting.first - left <= 1 * SLACK, waiting.first - left
        assert s.metrics()["sluice_prompt_tokens_total"] < 5000 * SLACK
        s.assert_quiet()


def reset_request(s, kind, i):
    """Breaks a connection with RST: in the head, in the body, before an answer, or in the stream."""
    body = b'{"prompt":[%d,40,41],"max_tokens":100,"stream":true}' % (FIRST_BYTE + i % 200)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    data = {"head": head[:60], "body": head + body[:10], "answer": head + body, "stream": head + body}[kind]
    c = socket.create_connection(("127.0.0.1", s.port), timeout=10)
    c.sendall(data)
    if kind == "stream":
        while b"data: " not in c.recv(65536):
            pass
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    c.close()


def test_broken_connections_leave_nothing_for_the_next_request():
    with Service(slots=4, script="tick_us 1000\n") as s:
        pids = [s.pid(x) for x in ("coordinator", "gateway", 0, 1)]
        for i in range(100):
            reset_request(s, ("head", "body", "answer", "stream")[i % 4], i)
            s.ask(p := ids(6, 1000 + i), 6, key="nonce").assert_reference(p, 6)
        assert [s.pid(x) for x in ("coordinator", "gateway", 0, 1)] == pids
        s.assert_quiet()


def test_a_half_closed_client_still_gets_its_answer():
    with Service(slots=1, script="tick_us 1000\n") as s:
        body = b'{"prompt":[40,41,42],"max_tokens":20,"temperature":0}'
        c = socket.create_connection(("127.0.0.1", s.port), timeout=10)
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n" % len(body) + body)
        c.shutdown(socket.SHUT_WR)
        data = b""
        while (more := c.recv(65536)):
            data += more
        c.close()
        # Either way is allowed for HTTP/1.1; what is not is a slot that stays busy.
        assert data == b"" or b"200 OK" in data, data
        s.assert_quiet()


def test_a_client_that_reads_nothing_is_dropped_and_others_keep_their_speed():
    script = "tick_us 400\nrow_us 10\ntoken_us 25\n"
    with Service(slots=4, script=script, flags=["--write-stall-ms", "1500"]) as s:
        alone = s.ask(p := ids(4, 1), 1500, key="a")
        alone.assert_reference(p, 1500)
        before = s.rss("coordinator", "gateway")
        body = b'{"prompt":[40,41,42],"max_tokens":30000,"stream":true}'
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", s.port))
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
                     + body)
        others = [(s.call(q := ids(4, 10 + i), 1500, key=f"o{i}"), q) for i in range(3)]
        for c, q in others:
            c.finish_up(60).assert_reference(q, 1500)
        wait_for(lambda: s.metrics()["sluice_write_stalled_total"] + s.status()["requests"]["cancelled"] >= 1, 15, "it is dropped")
        wait_for(lambda: not s.quiet_problem(), 2, "its slot is free")
        grown = sum(s.rss("coordinator", "gateway").values()) - sum(before.values())
        if SLACK == 1:
            assert grown < 4096, f"{grown} KiB"
        slow.close()
        s.assert_quiet()


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
