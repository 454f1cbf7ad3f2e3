"""The gateway's HTTP: statuses, bodies that are wrong in every way, clients that leave or do not read, keys, drain."""
import hashlib
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
import time

from client import SLACK
from gateway_bed import Bed, FAKE, GATEWAY, events, read_all, run, sanitized, unchunk, wait_for

bed = None
USER = [{"role": "user", "content": "say=ok"}]


def error_of(status, headers, body):
    e = json.loads(body)["error"]
    assert set(e) == {"message", "type", "param", "code", "retryable"}, e
    return e


# --- paths, methods, headers ---------------------------------------------------------------------------------------------


def test_unknown_paths_and_wrong_methods_are_told_in_json():
    status, headers, body = bed.request("GET", "/v1/nothing")
    assert status == 404 and error_of(status, headers, body)["type"] == "not_found_error"
    status, headers, body = bed.request("GET", "/v1/chat/completions")
    assert status == 405 and headers["Allow"] == "POST, OPTIONS" and error_of(status, headers, body)["message"]
    status, headers, body = bed.request("POST", "/health", {})
    assert status == 405 and headers["Allow"] == "GET, HEAD, OPTIONS"
    for method, path in (("POST", "/v1/responses"), ("POST", "/v1/messages"), ("POST", "/v1/messages/count_tokens"),
                         ("POST", "/v1/embeddings"), ("GET", "/")):
        status, headers, body = bed.request(method, path, {} if method == "POST" else None)
        assert status == 501 and error_of(status, headers, body)["type"] == "not_implemented_error", path


def test_a_body_must_be_json_by_its_type():
    for kind, want in (("text/plain", 415), ("application/x-www-form-urlencoded", 415), ("application/json; charset=utf-8", 200),
                       ("application/vnd.api+json", 200)):
        status, headers, body = bed.request("POST", "/v1/chat/completions", json.dumps({"messages": USER}), {"Content-Type": kind})
        assert status == want, (kind, status)


def test_every_answer_has_a_request_id_and_keeps_a_sane_one():
    _, headers, _ = bed.request("GET", "/v1/nothing", headers={"x-request-id": "mine-1.2:3"})
    assert headers["x-request-id"] == "mine-1.2:3"
    for odd in ("a b", "x" * 200, "a\"b"):
        _, headers, _ = bed.request("GET", "/live", headers={"x-request-id": odd})
        assert re.fullmatch(r"req-[0-9a-f]{24}", headers["x-request-id"])


def test_an_answer_has_one_name_for_clients_and_operators():
    _, headers, body = bed.request("POST", "/v1/chat/completions", json.dumps({"messages": USER}), {"Content-Type": "application/json"})
    assert json.loads(body)["id"] == headers["x-request-id"].replace("req-", "chatcmpl-"), (headers, body)
    _, headers, body = bed.request("POST", "/v1/chat/completions", json.dumps({"messages": USER}),
                                   {"Content-Type": "application/json", "x-request-id": "req-0123456789abcdef01234567"})
    assert headers["x-request-id"] == "req-0123456789abcdef01234567"
    assert "0123456789abcdef" not in json.loads(body)["id"], body  # others could use it too


def test_preflights_are_answered():
    status, headers, body = bed.request("OPTIONS", "/v1/chat/completions", headers={"Origin": "http://a"})
    assert status == 204 and body == b"" and headers["Access-Control-Allow-Origin"] == "*"
    assert "POST" in headers["Access-Control-Allow-Methods"] and "authorization" in headers["Access-Control-Allow-Headers"]


def test_aliases_without_v1_serve_the_same():
    assert bed.get("/models")[1] == bed.get("/v1/models")[1]
    assert bed.get("/models/fake")[1]["id"] == "fake" and bed.get("/v1/models/none")[0] == 404
    assert bed.post("/chat/completions", {"messages": USER})[1]["choices"][0]["message"]["content"] == "ok"
    assert bed.post("/completions", {"prompt": "say=ok"})[1]["choices"][0]["text"] == "ok"
    status, headers, body = bed.request("HEAD", "/health")
    assert status == 200 and body == b""


def test_text_paths_tokenize_detokenize_and_apply_the_template():
    assert bed.post("/tokenize", {"content": "a\u0000b"}) == (200, {"tokens": [97, 0, 98], "count": 3})
    assert bed.post("/tokenize", {"prompt": "a", "add_special": True})[1]["tokens"] == [0, 97]
    assert bed.post("/detokenize", {"tokens": [104, 0, 105]}) == (200, {"content": "h\u0000i"})
    status, e = bed.post("/detokenize", {"tokens": [1000]})
    assert status == 400 and e["error"]["param"] == "tokens" and e["error"]["code"] == "unknown_token"
    status, a = bed.post("/apply-template", {"messages": [{"role": "user", "content": "zero \u0000 kept"}], "tools": [{"a": 0.1}]})
    told = json.loads(a["prompt"])
    assert told["messages"][0]["content"] == "zero \u0000 kept" and told["tools"] == [{"a": 0.1}]
    assert bed.post("/tokenize", {"content": "a", "model": "x"})[0] == 404


def test_status_and_metrics_have_their_shape():
    status, s = bed.get("/v1/status")
    assert s["service"] == "sluice" and s["ready"] is True and s["model"]["context"] == 4096
    assert s["gateways"][0]["pid"] == bed.gateway.pid
    status, text = bed.get("/metrics")
    assert status == 200 and "sluice_ticks_total 5" in text
    assert "\nsluice_coordinator_up 1\n" in text and "vllm:" not in text
    assert text.count("# TYPE sluice_write_stalled_total") == 1 and re.search(r"^sluice_write_stalled_total \d+$", text, re.M)
    assert bed.get("/version")[1]["version"].startswith("sluice ")


# --- bodies --------------------------------------------------------------------------------------------------------------


def test_a_body_over_the_limit_is_413_before_it_is_read():
    with Bed("--max-body-mib", "1") as small:
        s = socket.create_connection(("127.0.0.1", small.port), timeout=5)
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                  b"Content-Length: 1048577\r\n\r\n{")
        answer = s.recv(65536)
        assert answer.startswith(b"HTTP/1.1 413") and b"request_too_large" in answer + s.recv(65536)
        s = socket.create_connection(("127.0.0.1", small.port), timeout=5)
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                  b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(18):
            s.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
        s.sendall(b"0\r\n\r\n")
        assert s.recv(65536).startswith(b"HTTP/1.1 413")
        fits = json.dumps({"messages": [{"role": "user", "content": "say=ok"}], "x": "y" * (1 << 20)})[:1 << 20]
        status, headers, body = small.request("POST", "/v1/chat/completions", fits)
        assert status == 400  # cut off, but read
        body = {"messages": USER, "x": "y" * 900000}
        assert small.post("/v1/chat/completions", body)[0] == 200


def test_health_does_not_wait_behind_a_large_body():
    body = json.dumps({"prompt": list(range(1000, 1000 + 2_000_000)), "model": "none"}).encode()
    s = socket.create_connection(("127.0.0.1", bed.port), timeout=20)
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body))
    s.sendall(body)
    worst = 0
    for _ in range(30):
        started = time.monotonic()
        assert bed.get("/live")[0] == 200
        worst = max(worst, time.monotonic() - started)
    assert s.recv(65536).startswith(b"HTTP/1.1 404")
    assert worst < (0.5 if sanitized(bed.gateway.pid) else 0.1), worst


def test_random_bytes_and_silent_connections_are_closed_within_ten_seconds():
    hello = bytes.fromhex("16030100") + b"x" * 60
    socks = []
    for data in (b"", b"GET / HT", b"\x00\xff\x17" * 50, hello, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Len"):
        s = socket.create_connection(("127.0.0.1", bed.port), timeout=11)
        s.sendall(data)
        socks.append(s)
    started = time.monotonic()
    for s in socks:
        try:
            while s.recv(4096):
                pass
        except ConnectionResetError:
            pass
        assert time.monotonic() - started < 10.5
    assert bed.get("/live")[0] == 200


def test_ipv6_addresses_are_served():
    if not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"):
        print("skip: no IPv6 here")
        return
    p = subprocess.Popen([GATEWAY, "--coordinator", f"127.0.0.1:{bed.grpc_port}", "--http", "[::1]:0"], stderr=subprocess.PIPE)
    try:
        port = int(re.search(rb"listening on http://\[::1\]:(\d+)", p.stderr.readline()).group(1))
        c = http.client.HTTPConnection("::1", port, timeout=5)
        c.request("GET", "/live")
        assert c.getresponse().status == 200
    finally:
        p.terminate()
        p.wait()


# --- waiting, leaving, not reading -----------------------------------------------------------------------------------------


def cancelled_after(act, want=1):
    """Seconds from act() until `want` more requests count as cancelled and none is open."""
    before = bed.counts()["cancelled"]
    started = time.monotonic()
    act()
    wait_for(lambda: bed.counts()["cancelled"] == before + want, 3, "the request is cancelled")
    c = bed.counts()
    assert c["queued"] == c["reading"] == c["decoding"] == 0, c
    return time.monotonic() - started


def test_a_client_that_leaves_is_cancelled_within_a_second_in_every_state():
    for script in ("queue=20000", "read=20000", "delay=100 count=1000", "silent=1"):
        for stream in (True, False):
            s = bed.stream_chat(script, **({} if stream else {"stream": False}))
            time.sleep(0.25)
            took = cancelled_after(s.close)
            assert took < 1, (script, stream, took)


def test_twenty_queued_clients_that_leave_free_the_queue_within_a_second():
    socks = [bed.stream_chat("queue=20000") for _ in range(20)]
    wait_for(lambda: bed.counts()["queued"] == 20, 3, "20 are queued")
    assert cancelled_after(lambda: [s.close() for s in socks], 20) < 1


def test_a_client_that_half_closes_counts_as_gone():
    s = bed.stream_chat("queue=20000")
    time.sleep(0.2)
    assert cancelled_after(lambda: s.shutdown(socket.SHUT_WR)) < 1


def test_comments_come_while_a_request_waits_and_reads():
    started = time.monotonic()
    s = bed.stream_chat("queue=5600 read=5000 say=done")
    first = s.recv(65536)
    assert 4.9 < time.monotonic() - started < 5.5 and b"200 OK" in first
    head, text = unchunk(first + read_all(s))
    comments = [e for e in events(text) if isinstance(e, str) and e.startswith(":")]
    assert comments[0] == ": queued 3" and re.fullmatch(r": reading \d+/\d+", comments[1]), comments
    assert text.endswith("data: [DONE]\n\n") and "done" in text
    assert "text/event-stream" in head


def test_a_refusal_before_the_first_event_keeps_its_status():
    s = bed.stream_chat("queue=400 failafter=0")
    head = s.recv(65536)
    assert head.startswith(b"HTTP/1.1 500") and b"application/json" in head
    s = bed.stream_chat("queue=5300 failafter=0")
    head, text = unchunk(read_all(s))
    assert "200 OK" in head and "[DONE]" not in text
    assert [e["error"]["retryable"] for e in events(text) if isinstance(e, dict)] == [True]


def test_a_coordinator_that_ends_without_done_is_an_error():
    status, a = bed.chat("endless=1 count=2")
    assert status == 500 and a["error"]["retryable"] is True


def rss_kib(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{pid}/status").read()).group(1))


def test_fc38_a_client_that_does_not_read_is_dropped_and_costs_little():
    with Bed("--write-stall-ms", "1000") as b:
        b.chat("count=100")
        before = rss_kib(b.gateway.pid)
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", b.port))
        body = json.dumps({"messages": [{"role": "user", "content": "count=60000 size=500"}], "stream": True})
        s.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        started = time.monotonic()
        while time.monotonic() - started < 0.7:
            status, a = b.chat("count=50")
            assert status == 200
        assert rss_kib(b.gateway.pid) - before < 2048 or sanitized(b.gateway.pid)
        wait_for(lambda: b.counts()["cancelled"] == 1, 3, "the client is dropped")
        assert 0.9 < time.monotonic() - started < (6 if sanitized(b.gateway.pid) else 2.5)
        assert re.search(r"^sluice_write_stalled_total 1$", b.get("/metrics")[1], re.M)
        s.close()


def test_a_slow_reader_gets_everything():
    with Bed("--write-stall-ms", "1500") as b:
        s = b.stream_chat("count=20000 size=200")
        data = b""
        while not data.endswith(b"0\r\n\r\n") and len(data) < 2_000_000:
            data += s.recv(65536)
            time.sleep(0.01)
        head, text = unchunk(data + (b"" if data.endswith(b"0\r\n\r\n") else read_all(s)))
        said = "".join(e["choices"][0]["delta"].get("content", "") for e in events(text) if isinstance(e, dict))
        assert len(said) == 20000 * 200 and text.endswith("data: [DONE]\n\n")


ASK = """
import http.client, sys
c = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=90)
c.request("POST", "/v1/chat/completions", sys.argv[2], {"Content-Type": "application/json"})
r = c.getresponse()
print(r.status, len(r.read()))
"""


def test_an_answer_with_many_log_probabilities_stalls_no_stream():
    """Its client is a process of its own: 100 MB would keep this one from noticing when the stream's bytes come."""
    with Bed("--write-stall-ms", "20000") as b:
        body = json.dumps({"messages": [{"role": "user", "content": "count=4000"}], "n": 32, "logprobs": True, "top_logprobs": 20})
        stream = b.stream_chat("count=100000 delay=10")
        other = subprocess.Popen([sys.executable, "-c", ASK, str(b.port), body], stdout=subprocess.PIPE)
        last, worst = time.monotonic(), 0
        while other.poll() is None:
            assert stream.recv(65536)
            now = time.monotonic()
            last, worst = now, max(worst, now - last)
        status, size = other.communicate()[0].split()
        assert status == b"200" and int(size) > 80e6, (status, size)
        print(f"      {worst:.2f} s at most between two tokens")
        assert worst < 0.7 * SLACK, f"{worst:.2f} s without a token"
        stream.close()


def test_broken_connections_harm_nobody():
    reset = struct.pack("ii", 1, 0)
    for i in range(150):
        s = socket.create_connection(("127.0.0.1", bed.port), timeout=5)
        if i % 3 == 0:
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHos")
        elif i % 3 == 1:
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{\"mess")
        else:
            body = json.dumps({"messages": [{"role": "user", "content": "count=50 delay=5"}], "stream": True}).encode()
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            s.recv(10)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        s.close()
        assert bed.chat(f"say=nonce{i}")[1]["choices"][0]["message"]["content"] == f"nonce{i}"


def test_fc65_health_answers_fast_beside_200_streams_and_200_idle_connections():
    n = 40 if sanitized(bed.gateway.pid) else 200
    streams = [bed.stream_chat("delay=50 count=400") for _ in range(n)]
    idle = [socket.create_connection(("127.0.0.1", bed.port)) for _ in range(n)]
    wait_for(lambda: bed.counts()["decoding"] == n, 10, "all streams run")
    worst = {}
    for _ in range(50):
        for path in ("/live", "/ready", "/metrics"):
            started = time.monotonic()
            assert bed.get(path)[0] == 200
            worst[path] = max(worst.get(path, 0), time.monotonic() - started)
    assert max(worst.values()) < (2 if sanitized(bed.gateway.pid) else 0.1), worst
    assert cancelled_after(lambda: [s.close() for s in streams + idle], n) < 2


# --- the coordinator goes and comes ------------------------------------------------------------------------------------------


def test_without_a_coordinator_requests_get_503_and_health_says_so():
    with Bed(coordinator=False) as b:
        assert b.get("/live")[0] == 200 and b.get("/ready")[0] == 503 and b.get("/health")[0] == 503
        started = time.monotonic()
        status, headers, body = b.request("POST", "/v1/chat/completions", {"messages": USER})
        assert status == 503 and 1 <= int(headers["Retry-After"]) <= 60 and time.monotonic() - started < 2.5
        e = error_of(status, headers, body)
        assert e["type"] == "overloaded_error" and e["retryable"] is True
        status, s = b.get("/v1/status")
        assert status == 200 and s["ready"] is False
        assert s["age_ms"] >= 0 and b.get("/v1/models")[0] == 503
        away = b.get("/metrics")
        assert away[0] == 200 and "\nsluice_ready 0\n" in away[1] and "\nsluice_coordinator_up 0\n" in away[1]
        assert "\nsluice_write_stalled_total 0\n" in away[1] and "sluice_ticks_total" not in away[1]
        b.start_coordinator()
        wait_for(lambda: b.get("/ready")[0] == 200, 3, "ready")
        assert b.chat("say=back")[0] == 200


def test_status_and_metrics_of_a_coordinator_that_went_tell_no_old_numbers_as_new_ones():
    with Bed("--metrics-aliases", "vllm") as b:
        assert b.get("/v1/status")[1]["age_ms"] == 0
        assert "vllm:num_requests_running 0" in b.get("/metrics")[1]
        b.kill_coordinator()
        wait_for(lambda: "sluice_coordinator_up 0" in b.get("/metrics")[1], 1.5, "it is told")
        started = time.monotonic()
        page, s = b.get("/metrics")[1], b.get("/v1/status")[1]
        assert time.monotonic() - started < 0.5
        assert "sluice_ready 0" in page and "sluice_ticks_total" not in page and "vllm:" not in page
        assert s["ready"] is False and 0 <= s["age_ms"] < 2000
        time.sleep(0.3)
        assert b.get("/v1/status")[1]["age_ms"] > s["age_ms"] + 250


def test_a_short_absence_of_the_coordinator_is_a_pause():
    with Bed() as b:
        b.kill_coordinator()
        s = b.stream_chat("say=after_all")
        time.sleep(0.6)
        b.start_coordinator()
        head, text = unchunk(read_all(s))
        assert "200 OK" in head and "after" in text and text.endswith("data: [DONE]\n\n")
        b.kill_coordinator()
        s = b.connect("/tokenize", {"content": "a"})
        time.sleep(0.6)
        b.start_coordinator()
        assert b'{"tokens":[97],"count":1}' in s.recv(65536)
        b.kill_coordinator()
        status, headers, body = b.request("POST", "/tokenize", {"content": "a"})
        assert status == 503 and headers["Retry-After"] and error_of(status, headers, body)["retryable"] is True


def test_a_queued_request_is_submitted_again_when_the_coordinator_restarts():
    with Bed() as b:
        s = b.stream_chat("queue=300 echo=1")
        wait_for(lambda: b.counts()["queued"] == 1, 3, "it is queued")
        b.kill_coordinator()
        b.start_coordinator()
        head, text = unchunk(read_all(s))
        assert "200 OK" in head and text.endswith("data: [DONE]\n\n"), text
        said = "".join(e["choices"][0]["delta"].get("content", "") for e in events(text) if isinstance(e, dict))
        assert json.loads(said)["attempt"] >= 1


def test_a_stream_whose_coordinator_dies_ends_with_one_error_event_within_two_seconds():
    with Bed() as b:
        s = b.stream_chat("count=100 delay=20 die=10")
        started = time.monotonic()
        head, text = unchunk(read_all(s))
        assert time.monotonic() - started < 2.5
        errors = [e for e in events(text) if isinstance(e, dict) and "error" in e]
        assert len(errors) == 1 and errors[0]["error"]["retryable"] is True and "[DONE]" not in text
        wait_for(lambda: b.get("/ready")[0] == 503, 1.5, "not ready")
        assert b.get("/v1/status")[1]["ready"] is False and b.get("/live")[0] == 200
        b.start_coordinator()
        wait_for(lambda: b.get("/ready")[0] == 200, 3, "ready again")
        assert b.chat("say=again")[0] == 200


def test_a_coordinator_that_hangs_is_not_ready_and_ends_its_streams():
    with Bed(heartbeat_ms=300) as b:
        s = b.stream_chat("count=1000 delay=20")
        wait_for(lambda: b.counts()["decoding"] == 1, 3, "it runs")
        b.coordinator.send_signal(signal.SIGSTOP)
        started = time.monotonic()
        assert b.get("/metrics")[0] == 200 and time.monotonic() - started < 0.3
        wait_for(lambda: b.get("/ready")[0] == 503, 2, "not ready")
        head, text = unchunk(read_all(s))
        assert [e for e in events(text) if isinstance(e, dict) and "error" in e]
        b.coordinator.send_signal(signal.SIGCONT)
        wait_for(lambda: b.get("/ready")[0] == 200, 5, "ready again")


def test_not_ready_is_told_as_the_coordinator_says():
    bed.coordinator.send_signal(signal.SIGUSR1)
    wait_for(lambda: bed.get("/ready")[0] == 503, 2, "not ready")
    bed.coordinator.send_signal(signal.SIGUSR1)
    wait_for(lambda: bed.get("/ready")[0] == 200, 2, "ready")


# --- keys, start and end -------------------------------------------------------------------------------------------------------


def key_line(name, key):
    return f"{name} sha256:{hashlib.sha256(key.encode()).hexdigest()}\n"


def test_keys_are_asked_for_and_read_again_on_sighup():
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as f:
        f.write("# keys\n" + key_line("alice", "a-secret"))
        f.flush()
        b = Bed("--api-keys", f.name, coordinator=False)
        with b:
            assert b.get("/live")[0] == 200 and b.get("/health")[0] == 503
            for path in ("/v1/models", "/v1/status", "/metrics", "/version"):
                status, headers, body = b.request("GET", path)
                assert status == 401 and error_of(status, headers, body)["type"] == "authentication_error", path
            assert b.request("OPTIONS", "/v1/models")[0] == 204
            alice, bob = ({"Authorization": f"Bearer {k}"} for k in ("a-secret", "b-secret"))
            assert b.get("/version", headers=alice)[0] == 200 and b.get("/version", headers=bob)[0] == 401
            assert b.get("/version", headers={"x-api-key": "a-secret"})[0] == 200
            assert b.post("/v1/chat/completions", {"messages": USER}, headers=bob)[0] == 401
            f.write(key_line("bob", "b-secret"))
            f.flush()
            b.gateway.send_signal(signal.SIGHUP)
            wait_for(lambda: b.get("/version", headers=bob)[0] == 200, 2, "bob may call")
            f.write("nonsense\n")
            f.flush()
            b.gateway.send_signal(signal.SIGHUP)
            b.wait_log(rb"stay as they were: .*line 4")
            assert b.get("/version", headers=bob)[0] == 200
        bad = subprocess.run([GATEWAY, "--coordinator", "127.0.0.1:1", "--http", "127.0.0.1:0", "--api-keys", f.name],
                             stderr=subprocess.PIPE, timeout=20)
        assert bad.returncode == 2 and b"line 4" in bad.stderr


def test_clients_are_told_apart_by_bearer_or_address():
    def client(**headers):
        status, a = bed.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "echo=1"}]}, headers=headers)
        return json.loads(a["choices"][0]["message"]["content"])["client"]

    one, two = client(Authorization="Bearer one"), client(Authorization="Bearer two")
    assert one == hashlib.sha256(b"one").hexdigest()[:32] and one != two
    assert client() == "127.0.0.1"


def test_a_taken_address_is_one_line_and_exit_code_4():
    r = subprocess.run([GATEWAY, "--coordinator", "127.0.0.1:1", "--http", f"127.0.0.1:{bed.port}"], stderr=subprocess.PIPE, timeout=20)
    assert r.returncode == 4 and r.stderr.count(b"\n") == 1 and b"in use" in r.stderr, r
    for flags in ([], ["--coordinator", "x:1", "--http", "nonsense"], ["--coordinator", "x:1", "--nothing", "1"],
                  ["--coordinator", "x:1", "--metrics-aliases", "grafana"]):
        r = subprocess.run([GATEWAY, *flags], stderr=subprocess.PIPE, timeout=20)
        assert r.returncode == 2 and r.stderr.count(b"\n") == 1, (flags, r)


def test_sigterm_drains_and_ends_with_0():
    with Bed("--drain-ms", "10000") as b:
        s = b.stream_chat("count=10 delay=100")
        wait_for(lambda: b.counts()["decoding"] == 1, 3, "it runs")
        b.gateway.terminate()
        time.sleep(0.1)
        status, headers, body = b.request("POST", "/v1/chat/completions", {"messages": USER})
        assert status == 503 and headers["Retry-After"] and error_of(status, headers, body)["code"] == "draining"
        assert b.get("/ready")[0] == 503 and b.get("/live")[0] == 200
        assert unchunk(read_all(s))[1].endswith("data: [DONE]\n\n")
        assert b.gateway.wait(3) == 0


def test_a_drain_that_takes_too_long_ends_streams_with_a_retryable_error():
    with Bed("--drain-ms", "500") as b:
        s, queued = b.stream_chat("count=1000 delay=100"), b.stream_chat("queue=60000")
        wait_for(lambda: b.counts()["decoding"] == 1, 3, "it runs")
        started = time.monotonic()
        b.gateway.terminate()
        last = events(unchunk(read_all(s))[1])[-1]
        assert last["error"]["retryable"] is True and last["error"]["type"] == "overloaded_error"
        assert queued.recv(65536).startswith(b"HTTP/1.1 503")
        assert b.gateway.wait(3) == 0 and time.monotonic() - started < 2.5


def test_a_second_sigterm_ends_at_once():
    with Bed("--drain-ms", "60000") as b:
        s = b.stream_chat("count=1000 delay=100")
        wait_for(lambda: b.counts()["decoding"] == 1, 3, "it runs")
        b.gateway.terminate()
        time.sleep(0.2)
        started = time.monotonic()
        b.gateway.terminate()
        assert b.gateway.wait(3) == 0 and time.monotonic() - started < 1.5
        s.close()


if __name__ == "__main__":
    if not (os.path.exists(GATEWAY) and os.path.exists(FAKE)):
        sys.exit(f"{GATEWAY} and {FAKE} are needed")
    with Bed() as bed:
        sys.exit(run(sys.modules[__name__]))
