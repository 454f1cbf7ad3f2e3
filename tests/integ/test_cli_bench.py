"""sluice bench against servers whose times are known (scripted_server.py), and against a whole service on fake stages."""
import json
import os
import signal
import subprocess
import sys
import threading
import time

from scripted_server import ScriptedServer
from service import BIN, SLACK, TENTH, Service, run, wait_for

SLUICE = os.path.join(BIN, "sluice")
ENV = {k: v for k, v in os.environ.items() if k not in ("SLUICE_URL", "SLUICE_API_KEY")}


def command(url, *flags):
    return [SLUICE, "bench", *flags, "--url", url, "--json", "-"]


def bench(url, *flags, code=0, probe=False, timeout=60):
    """The JSON of a run that ends with that code."""
    r = subprocess.run(command(url, *flags, *([] if probe else ["--no-probe"])), capture_output=True, text=True, env=ENV,
                       timeout=timeout * SLACK)
    assert r.returncode == code, (r.returncode, r.stdout[-2000:], r.stderr[-2000:])
    return json.loads(r.stdout)


def near(value, want, more):
    """Not before its time, and not much later: the server sleeps, and so never tells a shorter time."""
    return want - 3 <= value <= want + more * SLACK


# --- what is measured ---------------------------------------------------------------------------------------------------------------

def mean_ms(values):
    values = list(values)
    return 1000 * sum(values) / len(values)


def test_times_are_those_of_the_server():
    """About TTFT 200, gaps 50 50 300 50 50; exactly what the server's own clock says, whatever else the machine does."""
    asked = []

    def handler(c):
        asked.append(c)
        c.stream([0.2, 0.05, 0.05, 0.3, 0.05, 0.05])
    with ScriptedServer(handler) as s:
        r = bench(s.url, "--requests", "6", "--concurrency", "2", "--slo", "ttft:150,e2e:5000")
    gaps = [b - a for c in asked for a, b in zip(c.times, c.times[1:])]
    itl, ttft = mean_ms(gaps), mean_ms(c.times[0] - c.asked for c in asked)
    assert r["requests"]["done"] == 6 and r["failed"] == 0 and r["requests"]["most_running"] == 2, r
    assert r["itl_ms"]["n"] == 30 and abs(r["itl_ms"]["mean"] - itl) < 10 * SLACK, (r["itl_ms"], itl)
    assert r["itl_ms"]["max"] > 250 and r["itl_ms"]["median"] < 200, r["itl_ms"]
    assert near(r["ttft_ms"]["mean"], ttft, 150) and r["ttft_ms"]["min"] > 197, (r["ttft_ms"], ttft)
    assert abs(r["tpot_ms"]["mean"] - itl) < 10 * SLACK, (r["tpot_ms"], itl)
    assert abs(r["e2e_ms"]["mean"] - r["ttft_ms"]["mean"] - 5 * itl) < 50 * SLACK, (r["e2e_ms"], itl)
    assert r["goodput"]["met"] == 0 and r["tokens"]["output"] == 36
    assert abs(r["throughput"]["output_tokens_per_s"] - 36 / r["seconds"]) < 0.01 and r["seconds"] > 2.09


def test_the_role_of_a_chat_is_no_token():
    def handler(c):
        c.start()
        time.sleep(0.2)  # the role came at once
        c.token()
        time.sleep(0.05)
        c.token()
        c.end()
    with ScriptedServer(handler) as s:
        r = bench(s.url, "--endpoint", "chat", "--requests", "2", "--concurrency", "1")
        assert s.heads[-1][0] == "/v1/chat/completions"
    assert near(r["ttft_ms"]["median"], 200, 300) and r["itl_ms"]["n"] == 2, r


def test_events_of_one_read_have_one_time():
    def handler(c):
        c.start()
        time.sleep(0.1)
        c.chunk(b"".join(b"data: " + json.dumps(c.choice(" x")).encode() + b"\n\n" for _ in range(3)))
        c.n = 3
        c.end()
    with ScriptedServer(handler) as s:
        r = bench(s.url, "--requests", "1", "--concurrency", "1")
    assert r["itl_ms"]["n"] == 2 and r["itl_ms"]["max"] == 0, r["itl_ms"]


def test_tokens_are_counted_by_usage():
    """Two events, of five tokens as the server says: TPOT is the time over four."""
    with ScriptedServer(lambda c: c.stream([0.05, 0.4], completion_tokens=5, cached=4)) as s:
        r = bench(s.url, "--requests", "2", "--concurrency", "1", "--prompt-tokens", "30")
    assert r["tokens"] == {"prompt": 60, "cached": 8, "output": 10}, r["tokens"]
    assert near(r["tpot_ms"]["median"], 100, 30), r["tpot_ms"]


def test_a_server_without_usage_is_counted_by_events():
    with ScriptedServer(lambda c: c.stream([0.01] * 7, usage=False)) as s:
        r = bench(s.url, "--requests", "2", "--concurrency", "1")
    assert r["tokens"]["output"] == 14 and r["tokens"]["prompt"] == 0, r["tokens"]


def test_goodput_is_the_part_that_met_everything():
    """Every second answer has a gap of 200 ms."""
    with ScriptedServer(lambda c: c.stream([0.02, 0.02, 0.2 if c.index % 2 else 0.02])) as s:
        r = bench(s.url, "--requests", "10", "--concurrency", "1", "--slo", "ttft:5000,itl:150")
    g = r["goodput"]
    assert g["met"] == 5 and g["share"] == 0.5 and abs(g["requests_per_s"] - 5 / r["seconds"]) < 1e-6, g


def test_an_open_loop_counts_from_the_intended_start():
    """A server that takes one request at a time: what waits for it is the server's time, and nobody is sent later for it."""
    one_at_a_time = threading.Lock()

    def handler(c):
        with one_at_a_time:
            c.stream([0.1])
    with ScriptedServer(handler) as s:
        r = bench(s.url, "--requests", "20", "--rate", "40", "--seed", "3")
    assert r["loop"]["kind"] == "open" and r["requests"]["done"] == 20
    assert r["late_ms"]["n"] == 20 and r["late_ms"]["median"] < 5 * SLACK, r["late_ms"]
    assert r["requests"]["most_running"] >= 12, r["requests"]  # 40 a second come, 10 go
    assert r["ttft_ms"]["max"] > 1000, r["ttft_ms"]


# --- what is asked ------------------------------------------------------------------------------------------------------------------

def test_prompts_have_the_lengths_that_were_asked_for():
    with ScriptedServer(lambda c: c.stream([0])) as s:
        bench(s.url, "--requests", "30", "--prompt-tokens", "20-40", "--max-tokens", "3-5", "--key", "secret")
        lengths = [len(b["prompt"].split()) for b in s.bodies]
        assert all(20 <= n <= 40 for n in lengths) and len(set(lengths)) > 8, lengths
        assert {b["max_tokens"] for b in s.bodies} == {3, 4, 5}
        assert all(b["ignore_eos"] and b["stream"] and b["model"] == "scripted" and b["temperature"] == 0 for b in s.bodies)
        assert all(h["Authorization"] == "Bearer secret" for _, h in s.heads)
        assert len({" ".join(b["prompt"].split()[:4]) for b in s.bodies}) >= 29, "prompts begin alike"


def test_a_prompt_follows_the_servers_own_count():
    with ScriptedServer(lambda c: c.stream([0])) as s:
        r = bench(s.url, "--endpoint", "chat", "--requests", "1", "--prompt-tokens", "200", probe=True)
        assert len(s.bodies) == 3
    assert r["prompts"]["tokens_per_word"] == 1 and r["prompts"]["tokens_around"] == 10, r["prompts"]
    assert r["tokens"]["prompt"] == 200, r["tokens"]


def test_ids_and_a_shared_prefix():
    with ScriptedServer(lambda c: c.stream([0])) as s:
        bench(s.url, "--requests", "4", "--prompt-ids=7-20000", "--prompt-tokens", "50", "--shared-prefix", "32", "--body",
              '{"priority": "batch"}')
        prompts = [b["prompt"] for b in s.bodies]
        assert all(len(p) == 50 and all(7 <= x <= 20000 for x in p) and p[:32] == prompts[0][:32] for p in prompts)
        assert len({tuple(p[32:]) for p in prompts}) == 4 and all(b["priority"] == "batch" for b in s.bodies)


def test_a_seed_asks_the_same_again_and_without_one_it_does_not():
    with ScriptedServer(lambda c: c.stream([0])) as s:
        for flags in (["--seed", "5"], ["--seed", "5"], [], []):
            bench(s.url, "--requests", "5", "--concurrency", "1", "--prompt-tokens", "10-90", *flags)
        runs = [s.bodies[i:i + 5] for i in range(0, 20, 5)]
    assert runs[0] == runs[1] and runs[1] != runs[2] and runs[2] != runs[3]


def test_a_server_without_a_list_of_models_is_asked_without_one():
    with ScriptedServer(lambda c: c.stream([0]), models=None) as s:
        r = bench(s.url, "--requests", "1")
        assert "model" not in s.bodies[0] and r["server"]["model"] is None


# --- what goes wrong ----------------------------------------------------------------------------------------------------------------

def test_failures_are_counted_by_kind_and_are_no_samples():
    def handler(c):
        kind = c.index % 7
        if kind == 0:
            c.stream([0.01, 0.01])
        elif kind == 1:
            c.refuse(503, retry_after=0)
        elif kind == 2:
            c.refuse(503)
        elif kind == 3:
            c.plain(400, {"error": {"message": "too long", "param": "prompt"}})
        elif kind == 4:
            c.start()
            c.token()
            c.hang_up()
        elif kind == 5:
            c.start()
            c.token()
            c.event({"error": {"message": "lost", "retryable": True}})
            c.chunk(b"")
        else:
            c.plain(200, {"choices": [{"text": "no stream"}]})
    with ScriptedServer(handler) as s:
        r = bench(s.url, "--requests", "14", "--rate", "50", code=1)
    got = {k: v["n"] for k, v in r["failures"].items()}
    assert got == {"503": 4, "400": 2, "broken": 4, "event": 2} and r["failed"] == 12, r["failures"]
    assert r["requests"]["refused"] == 2 and r["requests"]["done"] == 2 and r["ttft_ms"]["n"] == 2 and r["itl_ms"]["n"] == 2, r
    assert "too long" in r["failures"]["400"]["example"] and "lost" in r["failures"]["event"]["example"]


def test_retry_comes_again_when_it_is_told_to():
    with ScriptedServer(lambda c: c.refuse(503, retry_after=1) if c.index < 3 else c.stream([0.01])) as s:
        r = bench(s.url, "--requests", "3", "--concurrency", "3", "--retry")
        assert len(s.bodies) == 6
    assert r["requests"] == {"sent": 3, "done": 3, "failed": 0, "refused": 0, "retries": 3, "cut": 0, "most_running": 3}, r["requests"]
    assert near(r["ttft_ms"]["min"], 1000, 600), r["ttft_ms"]  # the wait is the user's


def test_a_user_who_was_refused_pauses():
    with ScriptedServer(lambda c: c.refuse(503, retry_after=1)) as s:
        r = bench(s.url, "--duration", "2.5", "--concurrency", "2", code=1)
        assert 2 < len(s.bodies) <= 6, len(s.bodies)
    assert r["requests"]["refused"] == r["requests"]["sent"] == len(s.bodies)


def test_a_server_that_is_not_there_is_one_line():
    r = subprocess.run(command("http://127.0.0.1:1"), capture_output=True, text=True, env=ENV, timeout=20)
    assert r.returncode == 1 and "127.0.0.1" in r.stderr and len(r.stderr.splitlines()) == 1 and not r.stdout, r


def test_a_request_over_its_time_is_a_failure():
    with ScriptedServer(lambda c: c.stream([0.05, 5])) as s:
        r = bench(s.url, "--requests", "1", "--timeout", "0.5", code=1, timeout=4)
    assert r["failures"]["timeout"]["n"] == 1


def test_ctrl_c_ends_with_what_there_is():
    with ScriptedServer(lambda c: c.stream([0.02] * (5 if c.index < 6 else 100000))) as s:
        p = subprocess.Popen(command(s.url, "--no-probe", "--requests", "1000", "--concurrency", "3"), stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, env=ENV)
        until = time.monotonic() + 10 * SLACK
        while len(s.bodies) < 9 and time.monotonic() < until:
            time.sleep(0.01)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=5 * SLACK)
    r = json.loads(out)
    assert p.returncode == 0 and r["interrupted"] and r["requests"]["done"] == 6 and r["requests"]["cut"] == 3, (out, err)


def test_wrong_flags_are_one_line_and_exit_code_2():
    for flags, word in ((["--rate", "x"], "--rate"), (["--rate", "1", "--concurrency", "2"], "--concurrency"),
                        (["--prompt-tokens", "9-3"], "--prompt-tokens"), (["--slo", "fast:1"], "--slo"), (["stall", "--rate", "1"], "--rate"),
                        (["--streams", "4"], "--streams"), (["--endpoint", "chat", "--prompt-ids"], "--prompt-ids"),
                        (["--body", "[]", "--model", "m"], "--body"), (["what"], "usage"), (["--nonsense"], "usage")):
        r = subprocess.run([SLUICE, "bench", *flags], capture_output=True, text=True, env=ENV, timeout=10)
        assert r.returncode == 2 and word in r.stderr, (flags, r)


def test_the_table_and_the_progress_are_for_people():
    with ScriptedServer(lambda c: c.stream([0.5] * 4)) as s:
        r = subprocess.run([SLUICE, "bench", "--url", s.url, "--no-probe", "--requests", "2", "--slo", "ttft:900", "--progress"],
                           capture_output=True, text=True, env=ENV, timeout=30)
    assert r.returncode == 0
    for word in ("TTFT", "ITL", "TPOT", "E2E", "goodput", "100.0 %", "requests/s", "closed loop"):
        assert word in r.stdout, (word, r.stdout)
    assert len([line for line in r.stderr.splitlines() if "running" in line and "tokens/s" in line]) >= 1, r.stderr


# --- stall --------------------------------------------------------------------------------------------------------------------------

class Stalling:
    """Streams of a token every 20 ms; while a prompt of 100 words or more is read, which takes 1.2 s (0.4 s alone), every 150 ms, or
    for one of them not at all."""

    def __init__(self, silent=None):
        self.reading, self.streams, self.silent = False, 0, silent

    def __call__(self, c):
        if c.prompt_tokens() >= 100:
            self.reading = True
            time.sleep(1.2 if self.streams else 0.4)
            self.reading = False
            c.stream([0])
            return
        me, self.streams = self.streams, self.streams + 1
        c.start()
        while True:
            while self.reading and me == self.silent:
                time.sleep(0.005)
            time.sleep(0.15 if self.reading else 0.02)
            c.token()


STALL = ("stall", "--streams", "3", "--prompt-tokens", "150", "--stream-prompt", "10", "--before", "1", "--after", "0.5")


def test_stall_tells_what_streams_keep():
    """20/150 = 0.13, and a little more: the first token was on its way already."""
    with ScriptedServer(Stalling()) as s:
        r = bench(s.url, *STALL)
    assert r["whole"] and len(r["streams"]) == 3 and r["failed"] == 0, r
    assert 20 / SLACK <= r["streams"][0]["before"] <= 52 and 0.1 <= r["share_kept"] <= 0.3, (r["streams"], r["share_kept"])
    assert r["share_kept_min"] <= r["share_kept"] + 1e-9 and r["total"]["after"] > 2 * r["total"]["during"], r["total"]
    assert near(r["gaps_during_ms"]["median"], 150, 40) and near(r["gaps_before_ms"]["median"], 20, 15), r
    long = r["long_prompts"]
    assert long["prompt_tokens"] == 150 and near(long["alone_ms"], 400, 150) and near(long["ttft_ms"]["max"], 1200, 300), long
    assert abs(long["ratio"] - long["ttft_ms"]["max"] / long["alone_ms"]) < 1e-3 and near(1000 * r["windows_s"]["during"], 1200, 300), long


def test_stall_sees_one_silent_stream():
    with ScriptedServer(Stalling(silent=1)) as s:
        r = bench(s.url, *STALL, "--no-alone", "--check-gap-ms", "500", code=1)
    assert near(r["gaps_during_ms"]["max"], 1000, 600) and r["share_kept_min"] < 0.4 * r["share_kept"], r
    assert sorted(x["share_kept"] for x in r["streams"])[0] == r["share_kept_min"], r["streams"]
    assert r["long_prompts"]["alone_ms"] == 0 and r["long_prompts"]["ratio"] == 0


def test_stall_checks_are_exit_codes():
    for flags, code in ((["--check-share", "0.05", "--check-gap-ms", "1100", "--check-ratio", "6"], 0), (["--check-share", "0.5"], 1),
                        (["--check-ratio", "1.5"], 1)):
        with ScriptedServer(Stalling()) as s:
            bench(s.url, *STALL, *flags, code=code)


def test_stall_with_streams_that_end_counts_no_gap_between_answers():
    """Answers of 10 tokens; 800 ms pass until each begins."""
    def handler(c):
        c.stream([0.5] if c.prompt_tokens() >= 100 else [0.8] + [0.02] * 9)
    with ScriptedServer(handler) as s:
        r = bench(s.url, *STALL)
    assert r["total"]["answers_ended"] >= 3 and r["gaps_before_ms"]["n"] > 0 and r["gaps_before_ms"]["max"] < 790, r


def test_stall_whose_prompt_is_refused_says_so():
    with ScriptedServer(lambda c: c.plain(400, {"error": {"message": "too long"}}) if c.prompt_tokens() >= 100
                        else c.stream([0.02] * 500)) as s:
        r = bench(s.url, *STALL, "--no-alone", code=1)
    assert not r["whole"] and r["failures"]["400"]["n"] == 1 and "too long" in r["failures"]["400"]["example"], r


# --- a whole service ----------------------------------------------------------------------------------------------------------------

def test_a_service_and_the_client_count_the_same():
    with Service(stages=2, slots=8, costs=TENTH) as s:
        r = bench(f"http://127.0.0.1:{s.port}", "--requests", "24", "--concurrency", "8", "--prompt-tokens", "40-90", "--max-tokens",
                  "5-20", "--prompt-ids=3-258")
        wait_for(lambda: not s.quiet_problem(), 5, "the service knows that the last one ended")
        m, status = s.metrics(), s.status()
        assert status["requests"]["done"] == 24 and r["requests"]["done"] == 24, (status["requests"], r["requests"])
        assert r["tokens"]["output"] == m["sluice_generated_tokens_total"], (r["tokens"], m["sluice_generated_tokens_total"])
        assert r["tokens"]["prompt"] - r["tokens"]["cached"] == m["sluice_prompt_tokens_total"], r["tokens"]
        assert 24 * 40 <= r["tokens"]["prompt"] <= 24 * 90
        chat = bench(f"http://127.0.0.1:{s.port}", "--endpoint", "chat", "--requests", "4", "--prompt-tokens", "400", "--max-tokens", "8",
                     probe=True)
        assert chat["tokens"]["output"] == 32 and abs(chat["tokens"]["prompt"] - 1600) < 160, (chat["tokens"], chat["prompts"])
        s.assert_quiet()


def test_overload_of_a_service_is_refused_and_retried():
    with Service(stages=1, slots=2, flags=["--queue-requests", "2"]) as s:
        r = bench(f"http://127.0.0.1:{s.port}", "--requests", "12", "--concurrency", "12", "--prompt-tokens", "20", "--max-tokens", "10",
                  "--retry", "--prompt-ids=3-258", timeout=120)
        assert r["requests"]["done"] == 12 and r["requests"]["retries"] >= 1, r["requests"]
        s.assert_quiet()


def test_stall_on_a_service():
    with Service(stages=2, slots=8, flags=["--decode-share", "0.5"]) as s:
        r = bench(f"http://127.0.0.1:{s.port}", "stall", "--prompt-tokens", "3000", "--prompt-ids=3-258", "--before", "1.5", "--after", "0.5")
        assert r["whole"] and r["long_prompts"]["prompt_tokens"] == 3000, r
        assert 0.3 < r["share_kept"] < 1.2 and r["gaps_during_ms"]["max"] < 1000 * SLACK, r
        assert r["long_prompts"]["ratio"] > 1
        s.assert_quiet()


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
