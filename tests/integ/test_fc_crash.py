"""Failure cases, group 4: parts that die, stop, hang or fail. Streams pause, then say the rest of their reference text; only what
cannot be recovered is told, with its stage and cause. FC-30 (the coordinator) is in test_fc_resume.py, FC-31 (ranks that do not start)
in test_fc_launch.py, FC-33 in test_fc_cache.py."""
import os
import signal
import statistics
import sys
import time

import faults
from beside import Watch
from service import COSTS, FIRST_BYTE, SLACK, Service, case, ids, run, wait_for
from test_service_end import assert_drained, assert_drains, start_streams

PAUSE_S = 1.5        # that a killed stage costs a stream on fake stages
KEEP_TRYING = ["--restarts", "1000"]


def pause(call, at):
    got = faults.pause_at(call, at)
    assert got is not None, f"no token on both sides of the event: {call.describe()}"
    return got


def percentiles(values):
    v = sorted(values)
    return f"p50 {v[len(v) // 2]:.2f}, p90 {v[int(len(v) * 0.9)]:.2f}, max {v[-1]:.2f} s of {len(v)}"


# --- FC-24 -------------------------------------------------------------------------------------------------------------------------

def four_and_two(s, seed, n_in=1000, n_out=300):
    """[(call, prompt, answer tokens)]: four streams that run and two that wait."""
    jobs = [(ids(n_in, seed * 100 + i), n_out, f"r{i}") for i in range(4)] + [(ids(20, seed * 100 + 50 + i), 20, f"q{i}") for i in range(2)]
    return [(s.call(p, n, key=key), p, n) for p, n, key in jobs]


def survivors(s, *what):
    """{part: {what: n}} of everybody; memory only of the processes that no case kills."""
    return {part: {w: used[w] for w in what if w in used and (w != "rss_kib" or not isinstance(part, int))}
            for part, used in faults.belongings(s).items()}


def assert_no_growth(before, after):
    for part, used in before.items():
        for what, n in used.items():
            room = 2 if what == "fds" else 0  # connections that are just asked something
            assert after[part][what] <= n * 1.05 + room, f"{part}: {what} grew from {n} to {after[part][what]}"


@case("fast", seconds=60)
def fc_24_a_killed_stage_is_a_pause():
    with Service(stages=3, flags=KEEP_TRYING) as s:
        calls = four_and_two(s, 1, n_in=30, n_out=120)
        for c, *_ in calls[:4]:
            c.wait_tokens(10)
        s.kill(1)
        killed = time.monotonic()
        for c, p, n in calls:
            c.finish_up(20).assert_reference(p, n)
        pauses = [pause(c, killed) for c, *_ in calls[:4]]
        print(f"      pauses {[round(x, 2) for x in pauses]} s")
        assert max(pauses) <= PAUSE_S * SLACK, pauses
        s.assert_quiet(restarts=1)


@case("full", seconds=300)
def fc_24_thirty_kills_while_reading_and_while_decoding():
    # A pool that is full after the first round. Tables and the trace that are touched for the first time, all of them after 10,000
    # tokens, are no growth: memory is judged from the eighth round on.
    with Service(stages=3, flags=[*KEEP_TRYING, "--kv-blocks", "400"]) as s:
        coordinator = s.pid("coordinator")
        n_kills, after_second, after_eighth = 0, None, None
        reading, decoding = [], []
        for round in range(15):
            calls = four_and_two(s, 10 + round)
            s.wait_requests(queued=2)
            wait_for(lambda: s.status()["requests"]["reading"] > 0, 5, "they read")
            time.sleep(0.1 + round * 0.04)
            # Each stage five times in each state, and 10 s or so between two deaths of one: else its launcher waits longer each time.
            s.kill(round % 3)
            reading.append(faults.first_tick_after(s, time.monotonic()))
            for c, *_ in calls[:4]:
                c.wait_tokens(5 + round * 10, 20)
            s.kill((round + 2) % 3)
            killed = time.monotonic()
            for c, p, n in calls:
                c.finish_up(40).assert_reference(p, n)
            decoding += [pause(c, killed) for c, *_ in calls[:4]]
            n_kills += 2
            s.assert_quiet(restarts=n_kills)
            after_second = after_second or survivors(s, "fds", "threads")
            after_eighth = after_eighth or (round == 7 and survivors(s, "rss_kib"))
        assert_no_growth(after_second, survivors(s, "fds", "threads"))
        assert_no_growth(after_eighth, survivors(s, "rss_kib"))
        assert s.pid("coordinator") == coordinator
        print(f"      while reading, until a tick retires: {percentiles(reading)}; pauses of streams: {percentiles(decoding)}")
        assert max(reading) <= PAUSE_S * SLACK and max(decoding) <= PAUSE_S * SLACK, (reading, decoding)


@case("full", seconds=600, real=True)
def fc_24_the_real_model_goes_on_after_each_stage_was_killed():
    import test_fc_real as real
    jobs = [(real.words(n, 2400 + i), 100) for i, n in enumerate((1000, 600, 300, 90, 30, 20))]
    want = real.alone(jobs)
    with real.service(stages=3, flags=KEEP_TRYING) as s:
        for stage in range(3):
            calls = [real.greedy(s, p, n, key=f"{i}", cache_prompt=False) for i, (p, n) in enumerate(jobs)]
            if stage == 1:
                wait_for(lambda: s.status()["requests"]["reading"] > 0, 20, "it reads")
            else:
                for c in calls[:4]:
                    c.wait_tokens(20, 60)
            s.kill(stage)
            killed = time.monotonic()
            for c, text in zip(calls, want):
                real.check(c.finish_up(120), text, f"stage {stage} was killed")
            pauses = [x for c in calls if (x := faults.pause_at(c, killed)) is not None]
            print(f"      stage {stage}: pauses {[round(x, 2) for x in pauses]} s")
            s.assert_quiet(restarts=stage + 1, canary=False)


def kills_of_one_stream(s, n_in, seed, n_kills, sig=signal.SIGKILL):
    """Pauses of one stream at kills of the two stages in turn, and how many tokens were read again for each."""
    c = s.call(p := ids(n_in, seed), 1700, key=f"k{seed}")
    c.wait_tokens(10, 30)
    pauses, replayed = [], []
    for i in range(n_kills):
        time.sleep(0.3)
        before = s.metrics()["sluice_replayed_tokens_total"]
        s.kill(i % 2, sig)
        killed = time.monotonic()
        n = c.n_tokens()
        wait_for(lambda: (c.n_tokens() > n + 8 and time.monotonic() > killed + faults.NOTICED_S + 0.1) or c.ended, 15, "the stream goes on")
        pauses.append(pause(c, killed))
        replayed.append(s.metrics()["sluice_replayed_tokens_total"] - before)
    c.finish_up(60).assert_reference(p, 1700)
    return pauses, replayed


@case("full", seconds=150)
def fc_24_with_its_blocks_kept_a_pause_does_not_grow_with_the_context():
    medians = {}
    with Service(stages=2, flags=[*KEEP_TRYING, "--restart-delay-ms", "20"]) as s:
        for n_in in (2000, 8000):
            pauses, replayed = kills_of_one_stream(s, n_in, n_in, 5)
            medians[n_in] = statistics.median(pauses)
            print(f"      {n_in} positions: pauses {[round(x, 2) for x in pauses]} s, read again {replayed}")
            assert max(replayed) <= 16, f"more than a block was read again: {replayed}"
            assert max(pauses) <= PAUSE_S * SLACK, pauses
        s.assert_quiet(restarts=10)
    assert medians[8000] <= medians[2000] + 0.25 * SLACK, medians


@case("full", seconds=60)
def fc_24_blocks_of_a_process_that_ended_by_a_fault_are_not_trusted():
    """SIGSEGV and SIGABRT: what such a process has written last may be anything, so the prompt is read again; the text is the same."""
    with Service(stages=2, flags=[*KEEP_TRYING, "--restart-delay-ms", "20"]) as s:
        for i, sig in enumerate((signal.SIGSEGV, signal.SIGABRT)):
            c = s.call(p := ids(2000, 70 + i), 300, key=f"f{i}")
            c.wait_tokens(10)
            before = s.metrics()["sluice_replayed_tokens_total"]
            os.kill(s.pid(i), sig)
            killed = time.monotonic()
            c.finish_up(30).assert_reference(p, 300)
            replayed = s.metrics()["sluice_replayed_tokens_total"] - before
            print(f"      {sig.name} of stage {i}: pause {pause(c, killed):.2f} s, read again {replayed:.0f}")
            assert 1900 <= replayed <= 2400, replayed
        s.assert_quiet(restarts=2)


# --- FC-25 -------------------------------------------------------------------------------------------------------------------------

STOPPED_S = 10


class Ready(Watch):
    """When /ready and /health changed what they say: [(time, ready)]."""

    def __init__(self, s):
        super().__init__(s, 0.02, 0)
        self.changes = []

    def look(self):
        codes = [self.s.get(path)[0] for path in ("/ready", "/health", "/live")]
        now = time.monotonic()
        assert codes[2] == 200, "/live"
        if codes[0] == codes[1] and (not self.changes or self.changes[-1][1] != (codes[0] == 200)):
            self.changes.append((now, codes[0] == 200))

    def first(self, ready, after):
        return next((t for t, r in self.changes if r == ready and t >= after), None)


def stale_messages(s):
    return sum(n for series, n in s.metrics().items() if series.startswith("sluice_stale_messages_total"))


def stop_each_stage(state):
    """Both stages in turn are stopped for 10 s, each with its launcher, while the service is in that state."""
    total_stale = 0
    with Service(stages=2, mpi=True, flags=["--heartbeat-ms", "300"]) as s:
        for stage in range(2):
            calls = []
            if state != "idle":
                n_in = 2500 if state == "reading" else 20
                calls = [(s.call(p := ids(n_in, 2500 + 10 * stage + i), 200, key=f"s{i}"), p) for i in range(4)]
                if state == "reading":
                    wait_for(lambda: s.status()["requests"]["reading"] > 0, 5, "they read")
                    time.sleep(0.5)
                else:
                    for c, _ in calls:
                        c.wait_tokens(10)
            pid, stale = s.pid(stage), stale_messages(s)
            with Ready(s) as health:
                began = time.monotonic()
                with faults.stopped(pid, faults.launcher_of(pid)):
                    time.sleep(STOPPED_S)
                woken = time.monotonic()
                wait_for(lambda: health.first(True, woken), 6, "ready again")
                if calls:
                    assert faults.first_tick_after(s, woken, 6) <= 6 * SLACK
                noticed = health.first(False, began)
                assert noticed and noticed - began <= 2 * SLACK, health.changes
            for c, p in calls:
                c.finish_up(60).assert_reference(p, 200)
            if not calls:
                s.ask(p := ids(10, stage), 8).assert_reference(p, 8)
            stale = stale_messages(s) - stale
            print(f"      stage {stage}, {state}: not ready after {noticed - began:.2f} s, ready {health.first(True, woken) - woken:.2f} s "
                  f"after it woke, {stale:.0f} stale messages")
            assert s.pid(stage) == pid
            total_stale += stale
            s.assert_quiet()
    # A stage that decodes has results on their way; in the other states what it says may find its connection closed.
    assert total_stale > 0 or state != "decoding", "what the woken processes said was not counted"


@case("full", seconds=90)
def fc_25_a_stage_that_is_stopped_while_idle():
    stop_each_stage("idle")


@case("full", seconds=120)
def fc_25_a_stage_that_is_stopped_while_reading():
    stop_each_stage("reading")


@case("full", seconds=90)
def fc_25_a_stage_that_is_stopped_while_decoding():
    stop_each_stage("decoding")


# --- FC-26 -------------------------------------------------------------------------------------------------------------------------

@case("full", seconds=90)
def fc_26_a_long_step_is_legal_and_a_longer_one_is_not():
    """Tick 60 takes 5 s more, tick 120 takes 15 s; a tick may take 10 s. The count starts anew with a process, so its successor
    does not come to either."""
    script = "stage 1 sleep_tick 60 5000\nstage 1 sleep_tick 120 15000\n"
    with Service(stages=2, script=script, costs=COSTS, flags=["--stuck-ms", "10000"]) as s:
        epoch = s.status()["epoch"]
        c = s.call(p := ids(8, 26), 145)
        c.wait_tokens(75, 15)
        first = max(c.gaps())
        assert 4.5 <= first <= 5.5 * SLACK, first
        assert s.status()["epoch"] == epoch, "a legal step ended the epoch"
        c.wait_tokens(100, 15)
        wait_for(lambda: time.monotonic() - c.times()[-1] > 1, 10, "the long tick has begun")
        began = c.times()[-1]
        wait_for(lambda: s.status()["epoch"] > epoch or not s.ready(), 15, "the epoch ends")
        noticed = time.monotonic() - began
        assert 9.8 <= noticed <= 11 * SLACK, noticed
        c.finish_up(20).assert_reference(p, 145)
        print(f"      a gap of {first:.2f} s was legal; the epoch ended after {noticed:.2f} s, the stream paused {max(c.gaps()):.2f} s")
        assert max(c.gaps()) <= 13 * SLACK, max(c.gaps())
        s.assert_quiet(restarts=sum(x["restarts"] for x in s.status()["stages"]))


# --- FC-27 -------------------------------------------------------------------------------------------------------------------------

@case("full", seconds=60)
def fc_27_health_is_true_while_a_stage_is_away():
    """Stage 1 loads for 700 ms: that it is there again does not make the service ready."""
    script = "stage 1 load_ms 700\n"
    with Service(stages=2, script=script, costs=COSTS, flags=["--restart-delay-ms", "5000"]) as s:
        with Ready(s) as health:
            s.kill(1)
            killed = time.monotonic()
            wait_for(lambda: s.status()["ready"] is False and s.get("/ready")[0] == s.get("/health")[0] == 503, 1, "all say so")
            while time.monotonic() - killed < 4.5:
                assert s.get("/health")[0] == 503 and s.get("/ready")[0] == 503 and s.get("/live")[0] == 200
                time.sleep(0.05)
            waiting = s.call(p := ids(4, 1), 8)
            wait_for(s.ready, 5, "ready again")
            noticed = health.first(False, killed) - killed
            wait_for(lambda: health.first(True, killed + noticed), 1, "/ready and /health say so")
            again = health.first(True, killed + noticed) - killed
            print(f"      not ready after {noticed:.2f} s, ready after {again:.2f} s")
            assert noticed <= 1 * SLACK and again >= 5.6, (noticed, again)
            waiting.finish_up(10).assert_reference(p, 8)
        s.assert_quiet(restarts=1)


# --- FC-28 -------------------------------------------------------------------------------------------------------------------------

def two_and_four(s, n_out=400):
    running = [(s.call(p := ids(20, i), n_out, key=f"r{i}"), p) for i in range(2)]
    for c, _ in running:
        c.wait_tokens(5)
    queued = [(s.call(p := ids(20, 50 + i), 10, key=f"q{i}", stream=i % 2 == 0), p) for i in range(4)]
    s.wait_requests(queued=4)
    return running, queued


@case("full", seconds=90)
def fc_28_who_waits_and_who_comes_during_a_loss_is_served_or_told():
    with Service(stages=2, slots=2, flags=["--queue-requests", "12", "--restart-delay-ms", "1500"]) as s:
        running, queued = two_and_four(s)
        s.kill(0)
        new = []
        for i in range(30):
            time.sleep(0.1)
            new.append((s.call(p := ids(20, 100 + i), 10, key=f"n{i}", stream=i % 3 > 0), p))
        for c, p in running:
            c.finish_up(30).assert_reference(p, 400)
        for c, p in queued:
            c.finish_up(30).assert_reference(p, 10)
        refused = 0
        for c, p in new:
            c.finish_up(30)
            if c.status == 503:
                assert c.retry_after() and c.error["retryable"] is True, c.describe()
                refused += 1
            else:
                c.assert_reference(p, 10)
        assert 0 < refused < 30, f"{refused} of 30 were refused"  # the queue's bound is reached, and left again
        s.assert_quiet(restarts=1)


def assert_one_error(c, at, earliest, latest, *words):
    """An event of a stream that had its headers, or an answer: retryable, in time, with these words."""
    c.finish_up(latest + 5)
    took = c.ended - at
    assert earliest <= took <= latest * SLACK, (took, c.describe())
    assert c.error and c.error["retryable"] is True and c.finish is None and not c.broken and not c.done, c.describe()
    assert all(w in c.error["message"] for w in words), (words, c.error)
    errors = [e for _, e in c.events if isinstance(e, dict) and "error" in e]
    assert len(errors) == (1 if c.status == 200 else 0) and (c.status == 200 or c.status in (500, 503)), c.describe()


@case("full", seconds=60)
def fc_28_a_stage_that_stays_away_ends_them_at_the_recovery_timeout():
    with Service(stages=2, slots=2, flags=["--restart-delay-ms", "60000", "--recovery-timeout-ms", "5000"]) as s:
        running, queued = two_and_four(s, 2000)
        s.kill(0)
        killed = time.monotonic()
        for c, _ in running:
            assert_one_error(c, killed, 4.9, 6, "stage 0")
        for c, _ in queued:
            assert_one_error(c, killed, 4.9, 6)
            assert c.status == 503 or c.events, c.describe()
        later = s.call(ids(4, 3), 8).finish_up(2)
        assert later.status == 503 and later.retry_after(), later.describe()
        assert s.get("/live")[0] == 200 and s.get("/ready")[0] == 503


# --- FC-29 -------------------------------------------------------------------------------------------------------------------------

@case("full", seconds=60)
def fc_29_a_step_that_fails_once_is_a_pause():
    script = "stage 1 fail_tick 60 OUT_OF_MEMORY\n"
    with Service(stages=2, script=script, costs=COSTS) as s:
        calls = [(s.call(p := ids(20, 290 + i), 100, key=f"k{i}", stream=i != 3), p) for i in range(4)]
        for c, p in calls:
            c.finish_up(20).assert_reference(p, 100)
        assert s.status()["epoch"] > 1, "no step failed"
        s.assert_quiet()


@case("full", seconds=60)
def fc_29_a_step_that_always_fails_is_told_with_stage_and_cause():
    script = "stage 1 fail_from 60 OUT_OF_MEMORY\n"
    with Service(stages=2, script=script, costs=COSTS, flags=["--recovery-timeout-ms", "5000"]) as s:
        calls = [s.call(ids(20, 290 + i), 200, key=f"k{i}", stream=i != 3) for i in range(4)]
        wait_for(lambda: not s.ready(), 10, "the step fails")
        failed = time.monotonic()
        for c in calls:
            assert_one_error(c, failed, 4.5, 6.2, "stage 1", "memory") # the first epochs that fail follow each other in no time
        assert s.get("/ready")[0] == 503 and s.get("/health")[0] == 503 and s.get("/live")[0] == 200


POISON = FIRST_BYTE + 250


def without_poison(n, seed):
    return [10 if i == POISON else i for i in ids(n, seed)]


@case("full", seconds=90)
def fc_29_a_request_that_kills_its_stage_is_failed_at_the_third_death_and_the_others_go_on():
    """Whoever computes its token dies by SIGSEGV. Nobody else is failed, though all were in flight at the first deaths."""
    script = f"stage 0 poison {POISON}\n"
    with Service(stages=2, script=script, costs=COSTS, flags=[*KEEP_TRYING, "--restart-delay-ms", "20"]) as s:
        for stream in (True, False):
            before = s.status()["stages"][0]["restarts"]
            others = [(s.call(p := without_poison(100, 300 + i + 10 * stream), 300, key=f"k{i}", stream=i != 2), p) for i in range(3)]
            for c, _ in others[:2]:
                c.wait_tokens(10)
            began = time.monotonic()
            bad = s.call([*without_poison(50, 299), POISON, 20, 21], 20, key="bad", stream=stream).finish_up(30)
            assert bad.error and bad.finish is None and not bad.broken, bad.describe()
            assert bad.status == 500 or (stream and bad.status == 200 and not bad.text), bad.describe()
            assert bad.error["retryable"] is False, bad.error  # three more deaths
            for c, p in others:
                c.finish_up(30).assert_reference(p, 300)
            deaths = s.status()["stages"][0]["restarts"] - before
            print(f"      failed after {bad.ended - began:.2f} s and {deaths} deaths: {bad.error['message']}; "
                  f"longest pause of another {max(c.max_gap() for c, _ in others[:2]):.2f} s")
            assert deaths == 3, deaths
        s.assert_quiet(restarts=6)


# --- FC-32 -------------------------------------------------------------------------------------------------------------------------

@case("full", seconds=60)
def fc_32_sigterm_to_coordinator_and_gateway_drains():
    for second in (False, True):
        with Service(stages=2, mpi=False, flags=["--drain-ms", "5000"]) as s:
            short, long = start_streams(s, 220)
            asked = time.monotonic()
            pids = [s.pid("coordinator"), s.pid("gateway")]
            for pid in pids:
                os.kill(pid, signal.SIGTERM)
            assert_drains(s)
            if second:
                asked = time.monotonic()
                for pid in pids:
                    faults.send(pid, signal.SIGTERM)
                s.wait_exit(0, 1.5)
                assert time.monotonic() - asked < 1.5 * SLACK  # the processes in a second, and their launcher
                for c in long:
                    c.finish_up(1)
                    assert c.error or c.broken, c.describe()
                s.assert_nothing_left()
            else:
                assert_drained(s, short, 220, long, asked, 5)


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
