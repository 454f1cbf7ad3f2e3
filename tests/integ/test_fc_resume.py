"""The coordinator goes (failure-cases.md, FC-30, and its kind): answers through the gateway and gRPC pause and go on with the same
tokens, whatever was held back, sampled or counted."""
import os
import signal
import subprocess
import sys
import time

from faults import launcher_of, parts, stopped
from grpc_peer import Answer, Peer, grpc
from runner import real_model
from service import BIN, FIRST_BYTE, SLACK, TENTH, Call, Service, case, free_ports, ids, is_free, reference, run, wait_for
from test_fc_gateway_kill import Raw, events_of, text_of
from test_fc_streams import scripted

PAUSE_S = 2
EXACT = ("prompt_tokens", "completion_tokens", "total_tokens")


def kill_coordinator(s):
    """Kills it and waits for the next one; when that was."""
    before = s.kill("coordinator")
    killed = time.monotonic()
    wait_for(lambda: s.ready() and s.pid("coordinator") != before, 10, "the next coordinator is ready")
    return killed


def longest_pause(call, killed):
    times = [t for t in call.times() if t <= killed][-1:] + call.times(after=killed)
    return max((b - a for a, b in zip(times, times[1:])), default=0.0)


@case("fast", seconds=30)
def fc_30_killing_the_coordinator_is_a_pause():
    with Service(stages=2, slots=4) as s:
        # Of the four one is no stream, one samples with a seed of its own; three more wait.
        prompts = [ids(40, i) for i in range(7)]
        streams = [s.call(prompts[i], 250, key=f"r{i}", stream=i != 2, usage=True,
                          **({"temperature": 1, "seed": 77} if i == 3 else {})) for i in range(4)]
        for i in (0, 1, 3):
            streams[i].wait_tokens(20)
        queued = [s.call(prompts[4 + i], 30, key=f"q{i}", stream=i != 1, usage=True) for i in range(3)]
        s.wait_requests(decoding=4, queued=3)
        killed = kill_coordinator(s)
        for i, c in enumerate(streams):
            c.finish_up(20).assert_reference(prompts[i], 250, seed=77 if i == 3 else None)
            u = c.usage()
            assert [u[k] for k in EXACT] == [40, 250, 290] and c.cached_tokens() == 0, u
        for i, c in enumerate(queued):
            c.finish_up(20).assert_reference(prompts[4 + i], 30)
            assert c.usage()["completion_tokens"] == 30, c.usage()
        pauses = [longest_pause(streams[i], killed) for i in (0, 1, 3)]
        print(f"      pauses {['%.2f' % p for p in pauses]} s")
        assert max(pauses) <= PAUSE_S * SLACK, pauses
        s.assert_quiet(ended=("coordinator",))


@case("full", seconds=60)
def fc_30_a_client_that_reads_slowly_waits_for_no_coordinator():
    """Its gateway asks for no more until it has read on, which takes longer than --recovery-timeout-ms; the next coordinator was there at once."""
    flags = ["--restarts", "100", "--restart-delay-ms", "20", "--recovery-timeout-ms", "3000", "--write-stall-ms", "30000"]
    with Service(slots=4, flags=flags, costs=TENTH) as s:
        p, n = ids(40, 5), 3000
        slow = Raw(s.port, s.body(p, n), 512, 0.1)
        wait_for(lambda: s.status()["slots"][0]["generated_tokens"] > 1200, 20, "much more than it has read")
        kill_coordinator(s)
        time.sleep(5)
        slow.per_read, slow.wait_s = 65536, 0
        assert text_of(events_of(slow.body(30))) == reference(p, n)
        s.assert_quiet(ended=("coordinator",))


@case("full", seconds=60)
def fc_30_one_long_answer_outlives_five_coordinators():
    """Streaming, whole and sampled without a seed; the times that are told are those of the whole answer."""
    with Service(stages=2, slots=4, flags=["--restarts", "100", "--restart-delay-ms", "20"], costs=(2000, 50, 50)) as s:
        p = ids(30, 1)
        started = time.monotonic()
        stream = s.call(p, 750, key="a", usage=True, return_token_ids=True)
        whole = s.call(p, 650, key="b", stream=False)
        free = s.call(p, 650, key="c", temperature=1, return_token_ids=True)
        pauses = []
        for i in range(5):
            stream.wait_tokens(100 * (i + 1), 20)
            killed = kill_coordinator(s)
            stream.wait_tokens(len(stream.text) + 1, 10)
            pauses.append(longest_pause(stream, killed))
        stream.finish_up(40).assert_reference(p, 750)
        whole.finish_up(40).assert_reference(p, 650)
        free.finish_up(40)
        assert free.finish == "length" and len(free.text) == 650, free.describe()
        for c in (stream, free):
            assert c.token_ids() == [FIRST_BYTE + b for b in c.text.encode()], c.describe()
        took = (time.monotonic() - started) * 1000
        timings = [e["timings"] for _, e in stream.events if isinstance(e, dict) and "timings" in e][-1]
        told = timings["queue_ms"] + timings["prompt_ms"] + timings["decode_ms"]
        decoded = (stream.times()[-1] - stream.times()[0]) * 1000
        assert abs(timings["decode_ms"] - decoded) < 200 * SLACK and told <= took, (timings, decoded, took)
        print(f"      pauses {['%.2f' % p for p in pauses]} s")
        assert max(pauses) <= PAUSE_S * SLACK, pauses
        s.assert_quiet(ended=("coordinator",))


# Tokens are bytes: a character of four, a stop string that begins again and again, and one that ends over the edge.
SCRIPT_TEXT = "one \U0001f600 two abab abc tail, " * 40 + "abcX and what nobody sees"


@case("full", seconds=45)
def fc_30_held_back_text_and_stop_strings_survive():
    script = scripted(SCRIPT_TEXT, "answer_at 8\ntick_us 1200\n")
    want = SCRIPT_TEXT.partition("abcX")[0]
    with Service(stages=2, slots=4, script=script, flags=["--restarts", "100"]) as s:
        calls = [s.call(ids(8, i), 4000, key=f"k{i}", stop=["abcX", "never \U0001f600"], stream=i != 3, usage=True) for i in range(4)]
        for n in (60, 400, 800):
            calls[0].wait_tokens(n, 20)
            kill_coordinator(s)
        for c in calls:
            c.finish_up(30)
            assert c.status == 200 and not c.error and c.text == want and c.finish == "stop", c.describe()
            assert c.usage()["completion_tokens"] == len((want + "abcX").encode()), c.usage()
        s.assert_quiet(ended=("coordinator",), canary=False)


@case("full", seconds=30)
def fc_30_health_follows_the_coordinator_within_a_second():
    with Service(stages=2, slots=2) as s:
        stream = s.call(p := ids(20, 1), 300)
        stream.wait_tokens(20)
        pid = s.pid("coordinator")
        for sig, again in ((signal.SIGSTOP, signal.SIGCONT), (signal.SIGKILL, None)):
            os.kill(pid, sig)
            if sig == signal.SIGKILL:
                s.ended.add("coordinator")
            wait_for(lambda: s.get("/ready")[0] == 503 and s.get("/health")[0] == 503, 1, "not ready")
            assert s.get("/live")[0] == 200
            if again:
                os.kill(pid, again)
            wait_for(lambda: s.get("/ready")[0] == 200, 10, "ready again")
        stream.finish_up(20).assert_reference(p, 300)
        s.assert_quiet(ended=("coordinator",))


def events_say(p, watch, want, within_s):
    began = time.monotonic()
    assert next(watch).status == want
    assert time.monotonic() - began <= within_s * SLACK and p.check() == want


@case("full", seconds=30)
def fc_27_grpc_health_follows_within_a_second():
    with Service(stages=2, slots=2) as s:
        p = Peer(s.grpc_port)
        watch = p.watch()
        events_say(p, watch, 1, 1)
        s.kill(1)
        events_say(p, watch, 2, 1)
        events_say(p, watch, 1, 5)
        s.kill("coordinator")
        began = time.monotonic()
        with raises(grpc.StatusCode.UNAVAILABLE):
            next(watch)
        assert time.monotonic() - began <= SLACK
        wait_for(s.ready, 10, "ready again")
        wait_for(lambda: p.check() == 1, 1, "serving")
        p.close()
        s.assert_quiet(ended=("coordinator",), restarts=s.status()["stages"][1]["restarts"])


class raises:
    """with raises(grpc.StatusCode.X) as e: ...; e.error"""
    def __init__(self, code):
        self.code = code

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _trace):
        assert kind and issubclass(kind, grpc.RpcError) and error.code() == self.code, (kind, error)
        self.error = error
        return True


@case("full", seconds=30)
def fc_30_a_grpc_client_resumes_and_takes_over():
    with Service(stages=2, slots=2, flags=["--queue-requests", "1"], costs=(1000, 50, 50)) as s:
        p = Peer(s.grpc_port)
        prompt = ids(60, 1)
        asked = {"ids": {"ids": prompt}, "max_tokens": 600, "sampler": {"temperature": 1, "seed": 5}}
        want = reference(prompt, 600, 5)
        a = Answer(p, **asked).start().read(100)
        # A later attempt takes the run over, at a place that the run has passed; the call of the earlier one ends.
        first = a.call
        b = Answer(p, **asked)
        b.__dict__.update({**a.__dict__, "ids": list(a.ids)})
        b.start().read(200)
        with raises(grpc.StatusCode.CANCELLED) as e:
            for _ in first:
                pass
        assert "taken over" in e.error.details(), e.error
        wait_for(lambda: s.status()["requests"]["decoding"] == 1, 1, "one runs")
        # One that is not later is refused, and so is a token of another request.
        a.attempt = 1
        a.start().read()
        assert a.error.code() == grpc.StatusCode.ABORTED, a.error
        stranger = Answer(p, **asked)
        stranger.__dict__.update({**b.__dict__, "ids": list(b.ids), "asked": {**b.asked, "max_tokens": 601}})
        stranger.start().read()
        assert stranger.error.code() == grpc.StatusCode.PERMISSION_DENIED, stranger.error
        # The coordinator goes while slots and queue are full: who was accepted before passes the queue's cap.
        others = [s.call(ids(8, 10 + i), 300, key=f"o{i}") for i in range(2)]
        s.wait_requests(decoding=2, queued=1)
        kill_coordinator(s)
        b.read()
        assert b.error.code() == grpc.StatusCode.UNAVAILABLE, b.error
        b.start().read()
        assert b.text == want and b.done.finish == 2, (b.text[:200], b.error)
        u = b.done.usage
        assert (u.prompt_tokens, u.completion_tokens, u.cached_tokens) == (60, 600, 0), u
        # Resumed once more when all of it is here: the end alone.
        c = Answer(p, **asked)
        c.__dict__.update({**b.__dict__, "done": None})
        n_cached = s.metrics()["sluice_replayed_tokens_total"]
        c.start().read()
        assert c.text == want and c.done.finish == 2 and c.done.usage.completion_tokens == 600, c.error
        assert s.metrics()["sluice_replayed_tokens_total"] == n_cached
        for i, o in enumerate(others):
            o.finish_up(20).assert_reference(ids(8, 10 + i), 300)
        p.close()
        s.assert_quiet(ended=("coordinator",))


@case("full", seconds=40)
def fc_30_two_gateways_resume_beside_each_other():
    """They share nothing: ids of requests are drawn by each."""
    with Service(stages=2, slots=8, costs=(2000, 50, 50)) as s:
        (port,) = free_ports(1)
        other = subprocess.Popen([os.path.join(BIN, "sluice-gateway"), "--coordinator", f"127.0.0.1:{s.grpc_port}", "--http",
                                  f"127.0.0.1:{port}"], stderr=open(s.path("other"), "wb"), env=s.env)
        try:
            wait_for(lambda: not is_free(port), 5, "the second gateway listens")
            calls = []
            for i in range(8):
                c = Call(port if i % 2 else s.port, "/v1/completions", s.body(ids(20, i), 300), key=f"k{i % 3}")
                c.start()
                calls.append(c)
            for c in calls:
                c.wait_tokens(30)
            kill_coordinator(s)
            for i, c in enumerate(calls):
                c.finish_up(20).assert_reference(ids(20, i), 300)
        finally:
            other.terminate()
            assert other.wait(10) == 0
        s.assert_quiet(ended=("coordinator",))


@case("full", seconds=30)
def fc_30_a_stopped_gateway_takes_its_answers_over_when_it_wakes():
    """Longer than keepalives take: the coordinator gives its calls up, or still holds them; either way nothing is lost."""
    with Service(stages=2, slots=4, flags=["--heartbeat-ms", "100"], costs=(2000, 50, 50)) as s:
        calls = [s.call(ids(20, i), 450, key=f"k{i}") for i in range(3)]
        for c in calls:
            c.wait_tokens(20)
        pid = s.pid("gateway")
        launcher = launcher_of(pid)
        with stopped(launcher, pid):
            time.sleep(1.5)
        for i, c in enumerate(calls):
            c.finish_up(20).assert_reference(ids(20, i), 450)
        s.assert_quiet()


@case("full", seconds=30)
def fc_30_the_template_child_may_die_at_any_time():
    with Service(stages=2, slots=8, costs=(200, 5, 5)) as s:
        texts = [f"question {i} " + "x" * 200 for i in range(40)]
        before = [s.chat(t, max_tokens=4, key=f"k{i % 4}").finish_up(10).text for i, t in enumerate(texts[:4])]
        calls, killed = [], set()
        for i, t in enumerate(texts):
            child = parts(s).get("template")
            if i % 10 == 0 and child:
                os.kill(child, signal.SIGKILL)
                killed.add(child)
            calls.append(s.chat(t, max_tokens=4, stream=i % 2 == 0, key=f"k{i % 4}"))
            time.sleep(0.03)
        for c in calls:
            c.finish_up(20)
            assert c.status == 200 and not c.error and c.finish == "length" and len(c.text) == 4, c.describe()
        assert [c.text for c in calls[:4]] == before and len(killed) > 1, killed
        s.assert_quiet()


@case("full", seconds=30)
def fc_32_a_coordinator_that_makes_room_is_a_pause():
    with Service(stages=2, slots=4, costs=(2000, 50, 50)) as s:
        calls = [s.call(ids(20, i), 350, key=f"k{i}", stream=i != 1) for i in range(3)]
        calls[0].wait_tokens(50)
        s.kill("coordinator", signal.SIGUSR1)
        for i, c in enumerate(calls):
            c.finish_up(20).assert_reference(ids(20, i), 350)
        s.assert_quiet(ended=("coordinator",))


@case("full", seconds=30)
def fc_32_a_coordinator_that_drains_is_a_pause_where_another_comes():
    """Started by hand: the answers that its drain does not see the end of go on with the next one. One that nobody follows: an error
    when the gateway is told to end, too."""
    with Service(stages=1, slots=4, wait=False) as s:
        hand = ByHand(s, "--drain-ms", "300")
        try:
            calls = [s.call(ids(20, i), 600, key=f"k{i}", stream=i != 1) for i in range(3)]
            calls[0].wait_tokens(50)
            hand.end("coordinator", signal.SIGTERM)
            assert [c.ended for c in calls] == [None] * 3, [c.describe() for c in calls]
            hand.running.pop("stage").wait(10)  # an end that was asked for is one of the stages too
            hand.start("coordinator")
            hand.start("stage")
            for i, c in enumerate(calls):
                c.finish_up(20).assert_reference(ids(20, i), 600)
            last = s.call(ids(20, 9), 3000)
            last.wait_tokens(20)
            asked = time.monotonic()
            hand.running["gateway"].terminate()
            hand.end("coordinator", signal.SIGTERM)
            last.finish_up(5)
            assert last.error and last.error["retryable"] and 0.2 <= last.ended - asked <= 1.5 * SLACK, last.describe()
        finally:
            hand.end_all()


@case("full", seconds=30)
def fc_30_without_a_secret_what_was_said_ends_and_the_rest_begins_anew():
    with Service(stages=1, slots=1, wait=False) as s:
        hand = ByHand(s, "--slots", "1", secret=False)
        try:
            talks = s.call(ids(20, 1), 3000, key="a")
            talks.wait_tokens(20)
            waits = s.call(ids(20, 2), 50, key="b")
            s.wait_requests(queued=1)
            hand.running.pop("coordinator").kill()
            hand.start("coordinator")
            talks.finish_up(5)
            assert talks.error and talks.error["code"] == "coordinator_lost" and talks.error["retryable"], talks.describe()
            assert reference(ids(20, 1), 3000).startswith(talks.text) and not talks.done
            waits.finish_up(10).assert_reference(ids(20, 2), 50)
        finally:
            hand.end_all()


@case("full", seconds=30)
def fc_30_a_deadline_goes_on_while_the_coordinator_is_away():
    with Service(stages=2, slots=4, flags=["--restart-delay-ms", "1000"]) as s:
        began = time.monotonic()
        running = s.call(ids(20, 1), 3000, key="a", deadline_ms=2500)
        running.wait_tokens(20)
        kill_coordinator(s)
        running.finish_up(5)
        assert running.error and not running.done and 2.4 <= running.ended - began <= 2.9 * SLACK, (running.ended - began, running.describe())
        assert reference(ids(20, 1), 3000).startswith(running.text)
        s.assert_quiet(ended=("coordinator",))


class ByHand:
    """Coordinator, one fake stage and gateway without a launcher: in the place of the job of s."""
    def __init__(self, s, *flags, secret=True):
        s.job.terminate()
        s.job.wait(10)
        s.exit_code = 0
        grpc_at, common = f"127.0.0.1:{s.grpc_port}", ["--token-file", s.file("secret", "0123456789abcdef" * 2)] if secret else []
        script = s.file("script", "tick_us 2000\n")
        if secret:
            os.chmod(s.path("secret"), 0o600)
        self.s, self.running = s, {}
        self.commands = {
            "coordinator": ["sluice-coordinator", "--model", s.model, "--grpc", grpc_at, "--slots", "4", *flags, *common],
            "stage": ["sluice-stage-fake", "--model", s.model, "--coordinator", grpc_at, "--stage", "0", "--script", script, *common],
            "gateway": ["sluice-gateway", "--coordinator", grpc_at, "--http", f"127.0.0.1:{s.port}",
                        *(flags if "--drain-ms" in flags else ()), *common]}
        for what in self.commands:
            self.start(what)
        wait_for(s.ready, 10, "ready")

    def start(self, what):
        program, *flags = self.commands[what]
        with open(self.s.log_path, "ab") as log:
            self.running[what] = subprocess.Popen([os.path.join(BIN, program), *flags], stderr=log, env=self.s.env)

    def end(self, what, sig):
        p = self.running.pop(what)
        p.send_signal(sig)
        assert p.wait(10) == 0

    def end_all(self):
        for p in self.running.values():
            p.kill()
            p.wait()


@case("full", seconds=120, real=True)
def fc_30_real_streams_outlive_the_coordinator():
    model = real_model()
    prompts = [f"{what} in one long paragraph: " for what in ("The sea", "A mountain", "The old house", "A train", "Bread", "Rain", "Salt")]
    with Service(stages=2, slots=4, model=model, flags=["--context", "2048"]) as s:
        want = [s.ask(p, 48, key="ref") for p in prompts]
        calls = [s.call(p, 48, key=f"k{i}", stream=i % 3 != 2, usage=True) for i, p in enumerate(prompts)]
        calls[0].wait_tokens(20)
        killed = kill_coordinator(s)
        for c, w in zip(calls, want):
            c.finish_up(60)
            assert c.status == 200 and not c.error and (c.text, c.finish) == (w.text, w.finish), (c.describe(), w.describe())
        print(f"      pause {longest_pause(calls[0], killed):.2f} s")
        s.assert_quiet(ended=("coordinator",))


@case("full", seconds=30)
def fc_30_without_a_coordinator_for_too_long_there_is_one_error():
    with Service(stages=2, slots=2, flags=["--restart-delay-ms", "60000", "--recovery-timeout-ms", "1500"]) as s:
        stream = s.call(ids(8, 1), 3000, key="a")
        whole = s.call(ids(8, 2), 3000, key="b", stream=False)
        stream.wait_tokens(5)
        s.kill("coordinator")
        killed = time.monotonic()
        late = s.call(ids(8, 3), 8, key="c")
        for c in (stream, whole, late):
            c.finish_up(10)
            assert 1.2 <= c.ended - killed <= (1.5 + 1) * SLACK, (c.ended - killed, c.describe())
            assert c.error and c.error["retryable"] is True and c.finish is None and not c.done, c.describe()
        assert (stream.status, whole.status, late.status) == (200, 500, 503), (whole.describe(), late.describe())


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
