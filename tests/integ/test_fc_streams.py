"""Failure cases, group 5: clients that leave, do not read, or ask for awkward texts, in every state of a request (waiting, reading,
decoding, inside a character) and in both modes."""
import os
import random
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from client import Call
from service import COSTS, FIRST_BYTE, LIB, SLACK, TENTH, VOCABULARY, Service, case, ids, reference, run, wait_for

LONG = 300
FAST = "tick_us 100\n"
SCRIPT_TEXT = "Zürich 中文 👩‍👧‍👦 naïve 🇨🇭 end of ça, 日本語テキスト ok 🏳️‍🌈 and some plain words to reach two hundred bytes, abcab abcabd."


def escaped(text):
    return "".join(chr(b) if 32 < b < 127 and b != 92 else f"\\x{b:02x}" for b in text.encode())


def scripted(text, costs=FAST):
    return costs + f"text {escaped(text)}\n"


def check_shape(c):
    """null in every event but the last, which has the right word once."""
    reasons = c.reasons()
    assert reasons[-1] in ("stop", "length") and all(r is None for r in reasons[:-1]), reasons


def both(s, prompt=(40, 41), **fields):
    """The same request as a stream and without; the stream, judged."""
    whole = s.call(list(prompt), stream=False, **fields)
    stream = s.call(list(prompt), stream=True, **fields)
    whole.finish_up(20)
    stream.finish_up(20)
    for c in (whole, stream):
        assert c.status == 200 and not c.error and not c.broken, c.describe()
    assert stream.text == whole.text, (stream.text, whole.text)
    assert stream.finish == whole.finish, (stream.finish, whole.finish)
    assert stream.done
    check_shape(stream)
    return stream


# --- FC-34, FC-35: who waits -----------------------------------------------------------------------------------------------------

@case("fast", seconds=60)
def fc_34_leaving_while_queued_runs_nothing():
    with Service(slots=4) as s:
        streams = [(s.call(p := ids(4, i), 150, key=f"s{i}"), p) for i in range(4)]
        for c, _ in streams:
            c.wait_tokens(2)
        queued = [s.call(ids(4, 50 + i), 100, key=f"q{i}", stream=i % 2 == 0) for i in range(20)]
        s.wait_requests(queued=20)
        for i, c in enumerate(queued):
            c.leave() if i % 4 < 2 else c.reset()
        s.wait_requests(queued=0, seconds=1)
        for c, p in streams:
            c.finish_up(30).assert_reference(p, 150)
        s.wait_requests(decoding=0, seconds=1)
        m = s.metrics()
        assert m["sluice_generated_tokens_total"] == 4 * 150 and m["sluice_prompt_tokens_total"] == 16, m
        s.assert_quiet()


@case("fast", seconds=60)
def fc_35_leaving_while_queued_never_ends_the_active_stream():
    with Service(slots=1) as s:
        active = s.call(p := ids(4, 1), LONG, key="a")
        active.wait_tokens(2)
        for i in range(50):
            c = s.call(ids(4, 2 + i), 50, key="b", stream=i % 2 == 0)
            time.sleep(0.01)
            c.leave() if i % 3 else c.reset()
            c.join()
        active.finish_up(30).assert_reference(p, LONG)
        s.assert_quiet()


# --- FC-36: reading, or without a stream -----------------------------------------------------------------------------------------

@case("fast", seconds=60)
def fc_36_leaving_while_reading_without_a_stream_frees_the_slot_within_a_second():
    with Service(slots=1) as s:
        reader = s.call(ids(30000, 1), 10, stream=False, key="a")
        s.wait_requests(reading=1, seconds=2)
        waiting = s.call(p := ids(4, 2), 8, key="b")
        time.sleep(0.2)
        reader.leave()
        left = time.monotonic()
        waiting.finish_up(10).assert_reference(p, 8)
        assert waiting.first - left <= 1 * SLACK, waiting.first - left
        assert s.metrics()["sluice_prompt_tokens_total"] < 5000 * SLACK
        s.assert_quiet()


@case("full", seconds=60)
def fc_36_leaving_in_every_state_and_mode_frees_the_slot_within_a_second():
    with Service(slots=1) as s:
        for i, (reading, stream, hard) in enumerate((r, m, h) for r in (True, False) for m in (True, False) for h in (True, False)):
            before = s.metrics()["sluice_prompt_tokens_total"]
            c = s.call(ids(30000 if reading else 8, 100 + i), 2000, stream=stream, key="a")
            s.wait_requests(reading=int(reading), decoding=int(not reading))
            waiting = s.call(p := ids(4, 200 + i), 8, key="b")
            time.sleep(0.2)
            c.reset() if hard else c.leave()
            left = time.monotonic()
            waiting.finish_up(10).assert_reference(p, 8)
            assert waiting.first - left <= 1 * SLACK, (waiting.first - left, reading, stream, hard)
            s.wait_metrics(sluice_requests_accepted_total=2 * i + 2)
            assert s.metrics()["sluice_prompt_tokens_total"] - before < 5000 * SLACK
            s.wait_requests(cancelled=i + 1)
        s.assert_quiet()


# --- FC-37: connections that break -----------------------------------------------------------------------------------------------

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


def broken_connections(n, costs):
    with Service(slots=4, costs=costs) as s:
        pids = [s.pid(x) for x in s.parts()]
        fds = s.resources()["gateway"]["fds"]
        for i in range(n):
            reset_request(s, ("head", "body", "answer", "stream")[i % 4], i)
            s.ask(p := ids(6, 1000 + i), 6, key="nonce").assert_reference(p, 6)
        assert [s.pid(x) for x in s.parts()] == pids
        s.assert_quiet()
        wait_for(lambda: s.resources()["gateway"]["fds"] <= fds + 2, 5, "no socket is left")


@case("fast", seconds=60)
def fc_37_broken_connections_leave_nothing_for_the_next_request():
    broken_connections(100, (1000, 0, 0))


@case("full", seconds=90)
def fc_37_five_hundred_broken_connections():
    broken_connections(500, TENTH)


@case("fast", seconds=60)
def fc_37_a_half_closed_client_leaves_no_busy_slot():
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


# --- FC-38: who does not read ----------------------------------------------------------------------------------------------------

def ask_for_much(s, prompt, rcvbuf=None):
    """A socket that has asked for a long stream."""
    c = s.new_call("/v1/completions", s.body(prompt, 30000), rcvbuf=rcvbuf, timeout=None)
    c.send()
    return c.sock


def one_that_does_not_read(s):
    return ask_for_much(s, [40, 41, 42], 4096)


class Reader(threading.Thread):
    """Reads a stream and looks at it only later: thousands of events a second would cost a Call more than the service."""

    def __init__(self, s, prompt):
        super().__init__(daemon=True)
        self.sock, self.data = ask_for_much(s, prompt), bytearray()
        self.start()

    def run(self):
        while (data := self.sock.recv(1 << 18)):
            self.data += data

    def leave(self):
        """Its text so far."""
        self.sock.shutdown(socket.SHUT_RDWR)
        self.join(10)
        self.sock.close()
        return "".join(re.findall(r'"text":"([a-z ])"', self.data.decode()))


def stalled(s):
    """The metric and the state of a client that was dropped for not reading."""
    return s.metrics()["sluice_write_stalled_total"] + s.status()["requests"]["cancelled"]


@case("fast", seconds=60)
def fc_38_a_client_that_reads_nothing_is_dropped():
    with Service(slots=4, costs=TENTH, flags=["--write-stall-ms", "1500"]) as s:
        s.ask(p := ids(4, 1), 1500, key="a").assert_reference(p, 1500)
        before = s.rss("coordinator", "gateway")
        slow = one_that_does_not_read(s)
        others = [(s.call(q := ids(4, 10 + i), 1500, key=f"o{i}"), q) for i in range(3)]
        for c, q in others:
            c.finish_up(60).assert_reference(q, 1500)
        wait_for(lambda: stalled(s) >= 1, 15, "it is dropped")
        wait_for(lambda: not s.quiet_problem(), 2, "its slot is free")
        grown = sum(s.rss("coordinator", "gateway").values()) - sum(before.values())
        if SLACK == 1:
            assert grown < 4096, f"{grown} KiB"
        slow.close()
        s.assert_quiet()


def generated(s):
    """(now, tokens of the three streams that have most): by the service's own count, which a slow client does not slow."""
    slots = s.status()["slots"]
    return time.monotonic(), sum(sorted(x["generated_tokens"] for x in slots)[-3:])


def speed(a, b):
    return (b[1] - a[1]) / (b[0] - a[0])


@case("full", seconds=90, gaps=True)
def fc_38_a_client_that_reads_nothing_costs_the_others_little():
    with Service(slots=4, costs=TENTH) as s:
        prompts = [ids(4, 10 + i) for i in range(3)]
        others = [Reader(s, p) for p in prompts]
        # The coordinator's trace of its ticks is full by then: that growth is nobody's.
        wait_for(lambda: generated(s)[1] >= 3 * 5500, 30, "5,500 tokens each")
        before = s.rss("coordinator", "gateway")
        began = generated(s)
        time.sleep(2)
        asked = generated(s)
        slow = one_that_does_not_read(s)
        grown = 0
        while stalled(s) < 1:
            grown = max(grown, sum(s.rss("coordinator", "gateway").values()) - sum(before.values()))
            assert time.monotonic() - asked[0] < 12 * SLACK + 3, "it is not dropped"
            time.sleep(0.25)
        dropped = generated(s)
        wait_for(lambda: s.status()["requests"]["decoding"] == 3, 1, "its slot is free")
        time.sleep(2)
        end = generated(s)
        kept = 2 * speed(asked, dropped) / (speed(began, asked) + speed(dropped, end))
        took = dropped[0] - asked[0]
        print(f"      the others kept {kept:.3f} of {speed(began, asked) / 3:.0f} tokens/s; dropped after {took:.1f} s, + {grown} KiB")
        assert kept >= 0.95 and took <= 12 * SLACK and grown < 4096, (kept, took, f"{grown} KiB")
        for c, p in zip(others, prompts):
            text = c.leave()
            assert len(text) > 15000 and reference(p, 30000).startswith(text), text[:80]
        slow.close()
        s.wait_requests(decoding=0)
        s.assert_quiet()


# --- FC-39: split characters -----------------------------------------------------------------------------------------------------

@case("fast", seconds=60)
def fc_39_split_characters_come_whole():
    with Service(stages=2, script=scripted(SCRIPT_TEXT)) as s:
        c = both(s, max_tokens=1000)
        assert c.text == SCRIPT_TEXT and c.finish == "stop", c.describe()
        s.assert_quiet(canary=False)


@case("fast", seconds=60)
def fc_39_an_answer_cut_inside_a_character_ends_in_one_replacement():
    text = "a👩‍👧é中"
    raw = text.encode()
    with Service(stages=1, script=scripted(text)) as s:
        for n in range(1, len(raw) + 1):
            c = both(s, max_tokens=n)
            whole = raw[:n].decode(errors="ignore")
            want = whole + ("" if len(whole.encode()) == n else "\N{REPLACEMENT CHARACTER}")
            assert c.text == want and c.finish == "length", (n, c.text, want)
        s.assert_quiet(canary=False)


@case("full", seconds=60)
def fc_39_leaving_inside_a_character_leaves_no_part_of_it():
    text = "👩‍👧‍👦é中" * 10
    rng = random.Random(39)
    with Service(stages=2, slots=2, script=scripted(text, "tick_us 1500\n")) as s:
        for i in range(60):
            c = s.call([40, 41], 1000, key="leaves", stream=i % 5 > 0)
            if i % 5:
                c.wait_tokens(1)
            time.sleep(rng.random() * 0.04)
            c.reset() if i % 2 else c.leave()
            c.join()
            if i % 6 == 0:
                after = s.ask([40, 41], 1000, key="next", stream=i % 12 > 0)
                assert after.text == text and after.finish == "stop", after.describe()
        s.assert_quiet(canary=False)


# --- FC-40: stop strings ---------------------------------------------------------------------------------------------------------

@case("fast", seconds=60)
def fc_40_a_stop_gives_the_text_before_it():
    text = SCRIPT_TEXT[:120]
    rng = random.Random(4)
    spans = {(a, n) for a in range(len(text)) for n in range(1, 13) if a + n <= len(text)}
    with Service(stages=1, script=scripted(text), slots=8) as s:
        for at, n in rng.sample(sorted(spans), 60):
            stop = text[at:at + n]
            c = both(s, max_tokens=1000, stop=[stop, "never there"])
            assert c.text == text[:text.index(stop)] and c.finish == "stop", (stop, c.text)
        s.assert_quiet(canary=False)


@case("fast", seconds=60)
def fc_40_what_was_held_for_a_stop_is_delivered_at_the_end():
    with Service(stages=1, script=scripted("xyz abc")) as s:
        c = both(s, max_tokens=100, stop="abcX")
        assert c.text == "xyz abc" and c.finish == "stop", c.describe()
        c = both(s, max_tokens=6, stop=["ab!", "z abX"])
        assert c.text == "xyz ab" and c.finish == "length", c.describe()
        s.assert_quiet(canary=False)


STOP_COSTS = "tick_us 40\nrow_us 1\ntoken_us 2\n"


def text_of_200_bytes(rng):
    """Few letters, so that much of it begins a stop string and does not end one; some of two and three bytes."""
    text = ""
    while len(text.encode()) < 200:
        text += rng.choice("ababcabcd é中")
    while len(text.encode()) > 200:
        text = text[:-1]
    return text + "." * (200 - len(text.encode()))


def service_of_pieces(folder, text, n):
    """A service that says this text in tokens of n bytes."""
    raw = text.encode()
    pieces = [raw[i:i + n] for i in range(0, len(raw), n)]
    model = os.path.join(folder, f"pieces{n}.gguf")
    subprocess.run([sys.executable, os.path.join(LIB, "make_fake_model.py"), model, "--context", "32768", "--more",
                    ",".join(x.hex() for x in pieces)], check=True)
    answer = " ".join(str(VOCABULARY + i) for i in range(len(pieces)))
    return Service(stages=1, slots=8, script=STOP_COSTS + f"ids {answer}\n", flags=["--model", model])


def check_stops(s, text, spans, n_threads=8):
    """Each as a stop, as a stream and without; clients side by side."""
    def work(mine):
        for number, (at, n) in enumerate(mine):
            stop = text[at:at + n]
            for stream in (False, True):
                c = Call(s.port, "/v1/completions", s.body([40, 41], 1000, stream, stop=stop), key=f"k{number % 5}")
                c.run()
                assert c.status == 200 and c.text == text[:text.index(stop)] and c.finish == "stop", (stop, c.describe())

    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(work, (spans[i::n_threads] for i in range(n_threads))))
    s.assert_quiet(canary=False)


def every_stop(n_of_them):
    rng = random.Random(40)
    text = text_of_200_bytes(rng)
    spans = [(a, n) for a in range(len(text)) for n in range(1, 13) if a + n <= len(text) and len(text[a:a + n].encode()) <= 12]
    spans = rng.sample(spans, min(n_of_them, len(spans)))
    with Service(wait=False) as helper:
        for n in (1, 3):
            with service_of_pieces(helper.dir.name, text, n) as s:
                whole = s.ask([40, 41], 1000)
                assert whole.text == text and whole.finish == "stop", whole.describe()
                check_stops(s, text, spans)
        helper.wait_ready(20)


@case("full", seconds=120)
def fc_40_hundreds_of_stops_over_tokens_of_one_and_of_three_bytes():
    every_stop(400)


@case("nightly", seconds=600)
def fc_40_every_stop_over_tokens_of_one_and_of_three_bytes():
    every_stop(1 << 20)


# --- FC-41, FC-42: how a stream ends ---------------------------------------------------------------------------------------------

@case("full", seconds=60)
def fc_41_every_kind_of_end_has_its_word_once():
    with Service(stages=1, script=scripted("some words and an end")) as s:
        messages = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "stream": True}
        for fields, reason in (({"max_tokens": 100}, "stop"), ({"max_tokens": 5}, "length"), ({"max_tokens": 100, "stop": "and"}, "stop"),
                               ({"max_tokens": 1}, "length"), ({"max_tokens": 100, "stop": "s"}, "stop")):
            for path, body in (("/v1/completions", s.body([40, 41], 100)), ("/v1/chat/completions", messages)):
                for usage in (False, True):
                    c = Call(s.port, path, {**body, **fields, "stream_options": {"include_usage": usage}})
                    c.run()
                    found = c.reasons()
                    assert c.status == 200 and c.done and found[-1] == reason and not any(found[:-1]), (fields, found, c.describe())
        s.assert_quiet(canary=False)


@case("full", seconds=60)
def fc_41_an_error_event_is_no_finish():
    script = "stage 1 fail_from 40 OUT_OF_MEMORY\n"
    with Service(stages=2, script=script, costs=COSTS, flags=["--recovery-timeout-ms", "1000"]) as s:
        streams = [s.call([40, 41 + i], 500, usage=True) for i in range(2)] + [s.chat("hello", max_tokens=500)]
        for c in streams:
            c.finish_up(15)
            assert c.status == 200 and c.error and not c.done and not c.broken, c.describe()
            assert not any(c.reasons()) and [e for _, e in c.events if isinstance(e, dict)][-1].get("error"), c.describe()


@case("full", seconds=60)
def fc_42_a_forced_tool_is_refused_by_name_and_tools_that_are_shown_cost_no_text():
    """Calls are not taken out of the text yet: what a client asks for and would not get is told, and nothing is lost."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    text = '<think>hm</think>{"name": "f", "arguments": {"a": 1}}'
    with Service(stages=1, script=scripted(text)) as s:
        def ask(stream, **fields):
            return s.chat("call f", stream=stream, tools=tools, max_tokens=200, **fields).finish_up(10)
        for stream in (True, False):
            for forced in ("required", {"type": "function", "function": {"name": "f"}}):
                c = ask(stream, tool_choice=forced)
                assert c.status == 501 and c.error["param"] == "tool_choice" and not c.events, c.describe()
            c = ask(stream, tool_choice="auto")
            assert c.status == 200 and c.text == text and c.finish == "stop", c.describe()
        s.assert_quiet(canary=False)


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
