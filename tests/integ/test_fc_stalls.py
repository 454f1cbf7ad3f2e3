"""Failure cases, group 2: what running streams keep beside prompts that are read, and how long they ever pause."""
import math
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from service import SLACK, Service, case, ids, reference, run, wait_for

STALL_MS = 200
GAP_S = STALL_MS / 1000 + 0.05 * SLACK  # fake stages sleep, and a bound may be missed by 50 ms
FIRST_TOKEN_S = 0.8 * SLACK


def side_by_side(test, *choices):
    """One service a choice, all at the same time: their stages sleep."""
    with ThreadPoolExecutor(len(choices)) as pool:
        return [f.result() for f in [pool.submit(test, c) for c in choices]]


def assert_gaps(what, *calls):
    for c in calls:
        gaps = c.gaps()
        longest = max(gaps, default=0)
        assert longest <= GAP_S, (f"{what}: a gap of {longest * 1e3:.0f} ms after token {gaps.index(longest) + 1} of {len(gaps) + 1}, "
                                  f"{c.times()[gaps.index(longest)] - c.started:.2f} s after the request")


def read_s(call):
    return call.first - call.started


# --- FC-09 ------------------------------------------------------------------------------------------------------------------------

THREE = ((6400, 1500), (21500, 64), (8200, 64))


def three_at_once(share, rounds):
    with Service(flags=["--decode-share", str(share), "--max-stall-ms", str(STALL_MS)]) as s:
        for r in rounds:
            prompts = [ids(n, 9000 + 10 * r + i) for i, (n, _) in enumerate(THREE)]
            calls = [s.call(p, n_out, key=f"k{i}") for i, (p, (_, n_out)) in enumerate(zip(prompts, THREE))]
            for c, p, (_, n_out) in zip(calls, prompts, THREE):
                c.finish_up(90).assert_reference(p, n_out)
            assert_gaps(f"share {share}, round {r}", *calls)
            assert not s.status()["ticks"]["stall_unmet"]
        s.assert_quiet()


@case("fast", seconds=90, gaps=True)
def fc_09_three_prompts_at_once_stall_nobody_at_any_share():
    side_by_side(lambda share: three_at_once(share, [0]), 0, 0.5, 0.9)


@case("full", seconds=240, gaps=True)
def fc_09_three_rounds_of_three_prompts_stall_nobody():
    side_by_side(lambda share: three_at_once(share, [1, 2, 3]), 0, 0.5, 0.9)


# --- what a stream keeps ------------------------------------------------------------------------------------------------------------

def assert_share(share, period_s, bank_s, times):
    """scheduling.md: a window of length T has floor(share * (T - W) / P0) - 2 tokens. P0 is measured, so it holds to 3 % here, as
    the rate over 256 tokens does; a client sees events up to 50 ms late. Sanitizers cost time that no stage foretells."""
    share *= 0.97 if SLACK == 1 else 0.9
    for i in range(len(times)):
        for j in range(i + 8, len(times), 7):
            least = math.floor(share * (times[j] - times[i] - bank_s - 0.05 * SLACK) / period_s) - 2
            assert j - i >= least, f"{share:.3f} asked: {j - i} tokens in {times[j] - times[i]:.2f} s of period {period_s * 1e3:.2f} ms, not {least}"
    for i in range(0, len(times) - 256, 16):
        took = times[i + 256] - times[i]
        assert took <= 256 * period_s / share + bank_s + 0.05 * SLACK, (share, period_s, i, took)
    kept = (len(times) - 1) * period_s / (times[-1] - times[0])
    assert kept >= share - bank_s / (times[-1] - times[0]), f"{share:.3f} asked: it kept {kept:.3f} over {times[-1] - times[0]:.1f} s"
    return kept


def keep_share(share):
    n_out = 4000  # more than there is time for
    with Service(flags=["--decode-share", str(share), "--max-stall-ms", str(STALL_MS)]) as s:
        prompts = [ids(24, 900 + i) for i in range(2)]
        streams = [s.call(p, n_out, key=f"k{i}") for i, p in enumerate(prompts)]
        for c in streams:
            c.wait_tokens(300)
        before_s = max(1 / c.rate(after=c.times()[40]) for c in streams)
        long = s.call(long_ids := ids(6000, 910), 4, key="long")
        wait_for(lambda: s.status()["ticks"]["readers"] == 1, 5, "the prompt is read")
        bank_s = s.status()["ticks"]["bank_bound_us"] / 1e6
        long.finish_up(60).assert_reference(long_ids, 4)
        assert all(c.ended is None for c in streams), "the streams ended before the prompt was read"
        for c in streams:
            c.wait_tokens(len(c.text) + 200)
        # What ticks without prompts take on this machine, before and after: it may be busier at one time than at another.
        period_s = max([before_s] + [1 / c.rate(after=long.ended + 0.1) for c in streams])
        for c in streams:
            c.leave()
            c.finish_up(5)
        kept = [assert_share(share, period_s, bank_s, c.times(long.started, long.first)) for c in streams]
        assert_gaps(f"share {share}", *streams)
        for c, p in zip(streams, prompts):
            assert c.text and reference(p, n_out).startswith(c.text), c.describe()
        s.assert_quiet()
        print(f"      share {share}: kept {min(kept):.3f} of a token each {period_s * 1e3:.2f} ms; 6,000 tokens in {read_s(long):.1f} s", flush=True)


@case("fast", seconds=120, gaps=True)
def fc_10_streams_keep_their_share_beside_a_long_prompt():
    side_by_side(keep_share, 0.25, 0.5, 0.75)


# --- FC-11 ------------------------------------------------------------------------------------------------------------------------

def long_read(question):
    """(the long prompt's call, the question's or None)"""
    with Service(flags=["--max-stall-ms", str(STALL_MS)]) as s:
        prompt, short, short_ids = ids(30000, 110), None, ids(8, 112)
        long = s.call(prompt, 4, key="long")
        if question:
            time.sleep(1.0)
            short = s.call(short_ids, 16, key="short")
            short.finish_up(20).assert_reference(short_ids, 16)
            assert long.first is None, "the long prompt was read before the question was answered"
            assert_gaps("question", short)
        long.finish_up(60).assert_reference(prompt, 4)
        assert_gaps("long read", long)
        s.assert_quiet()
        return long, short


@case("fast", seconds=60, gaps=True)
def fc_11_a_short_question_does_not_wait_for_a_long_prompt():
    (alone, _), (long, short) = side_by_side(long_read, False, True)
    assert read_s(short) <= FIRST_TOKEN_S, f"the question's first token came after {read_s(short):.2f} s"
    assert read_s(long) <= 1.1 * read_s(alone), f"the long read took {read_s(long):.2f} s, alone {read_s(alone):.2f} s"
    print(f"      first token after {read_s(short):.2f} s; the long read {read_s(long) / read_s(alone):.3f} of its time alone", flush=True)


def newcomers(stages):
    """Nothing decodes, so ticks are large: whoever comes, at whatever moment, still waits for a few of them only."""
    rng = random.Random(11 + stages)
    with Service(stages=stages, flags=["--max-stall-ms", str(STALL_MS)]) as s:
        waits = []
        for r in range(4):
            long = s.call(ids(20000, 1150 + r), 4, key="long")
            wait_for(lambda: s.status()["requests"]["reading"] == 1, 5, "it reads")
            time.sleep(rng.random() * 0.4)
            n = rng.choice((1, 8, 40))
            short = s.call(p := ids(n, 1160 + r), 8, key="short")
            short.finish_up(20).assert_reference(p, 8)
            assert long.first is None, "the long prompt was read before"
            waits.append(read_s(short))
            assert_gaps(f"{stages} stages, newcomer {r}", short)
            long.leave()
            s.wait_requests(cancelled=r + 1)
            wait_for(lambda: s.status()["ticks"]["in_flight"] == 0, 2, "nothing is in flight")
        assert max(waits) <= FIRST_TOKEN_S, f"{stages} stages: first tokens after {[round(w, 2) for w in waits]} s"
        s.assert_quiet()
        return waits


@case("fast", seconds=60, gaps=True)
def fc_11_a_newcomer_to_a_cold_pipeline_never_waits_behind_huge_ticks():
    side_by_side(newcomers, 1, 2, 4)


@case("full", seconds=120, gaps=True)
def fc_11_questions_at_any_moment_of_a_long_read():
    def ask_all_along(stages):
        rng = random.Random(1190 + stages)
        with Service(stages=stages, flags=["--max-stall-ms", str(STALL_MS)]) as s:
            long = s.call(prompt := ids(30000, 1190), 4, key="long")
            waits = []
            while long.first is None:
                time.sleep(rng.random())
                c = s.call(p := ids(rng.choice((1, 8, 60)), 1191 + len(waits)), 8, key="short")
                c.finish_up(20).assert_reference(p, 8)
                assert_gaps(f"{stages} stages, question {len(waits)}", c)
                waits.append(read_s(c))
            long.finish_up(60).assert_reference(prompt, 4)
            assert max(waits) <= FIRST_TOKEN_S, f"{stages} stages: first tokens after {[round(w, 2) for w in waits]} s"
            s.assert_quiet()
    side_by_side(ask_all_along, 1, 2, 4)


# --- many streams, many prompts -----------------------------------------------------------------------------------------------------

def mixed(stages):
    """Streams of every age beside prompts of every size, for a while: groups of streams, several readers, pieces that share a tick."""
    rng = random.Random(13 + stages)
    with Service(stages=stages, slots=12, flags=["--max-stall-ms", str(STALL_MS)]) as s:
        running, until, n = [], time.monotonic() + 25, 0
        while time.monotonic() < until:
            running, over = [x for x in running if not x[0].ended], [x for x in running if x[0].ended]
            for c, p, n_out in over:
                c.assert_reference(p, n_out)
                assert_gaps(f"{stages} stages, {len(p)} in, {n_out} out", c)
            while len(running) < 12:
                size = rng.choice((1, 20, 300, 2000)) if rng.random() < 0.8 else rng.randrange(3000, 9000)
                p, n_out = ids(size, 13000 + n), rng.randrange(2, 300)
                running.append((s.call(p, n_out, key=f"k{n % 5}"), p, n_out))
                n += 1
            time.sleep(0.02)
        for c, p, n_out in running:
            c.finish_up(60).assert_reference(p, n_out)
            assert_gaps(f"{stages} stages, {len(p)} in, {n_out} out", c)
        assert n > 30
        s.assert_quiet()


@case("full", seconds=180, gaps=True)
def fc_09_a_mix_of_streams_and_prompts_stalls_nobody():
    side_by_side(mixed, 1, 2, 4)


# --- a prompt's last piece in flight is a stream ----------------------------------------------------------------------------------------

def end_in_flight(stages):
    """Prompts of any length end while a longer one is read, with streams beside them or without: from its first token on, nobody
    pauses. The gap after the first token is the one that a plan can forget."""
    rng = random.Random(12 + stages)
    with Service(stages=stages, flags=["--max-stall-ms", str(STALL_MS)]) as s:
        for r in range(2):
            long = s.call(ids(12000, 1200 + r), 4, key="long")
            beside = []
            if r == 1:
                beside.append((s.call(p := ids(10, 1210), 400, key="s"), p, 400))
            while long.first is None and len(beside) < 10:
                n = rng.choice((1, 30, 200, 900, 1800))
                c = s.call(p := ids(n, 1220 + 100 * r + len(beside)), 6, key="short")
                beside.append((c, p, 6))
                c.wait(lambda: c.first is not None or long.first is not None, 20, "its first token")
            long.leave()
            for c, p, n in beside:
                c.finish_up(20).assert_reference(p, n)
            assert_gaps(f"{stages} stages, round {r}", *[c for c, _, _ in beside])
        s.assert_quiet()


@case("fast", seconds=60, gaps=True)
def fc_09_the_gap_after_a_prompt_that_ends_in_flight_is_bounded():
    side_by_side(end_in_flight, 1, 2, 3)


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
