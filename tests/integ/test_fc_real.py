"""Failure cases on the real model: what users of two stages live through, judged against the same requests alone on one stage."""
import random
import threading
import time

from beside import Clients
from runner import real_model
from service import SLACK, Service, case, run

BLOCK = 64
LATE = 1.2          # "on REAL by 20 %": how far a bound in time may be missed
THREADS = ["--threads", "1"]


def words(n, seed):
    """n ids of ordinary text pieces; 0..16 are control tokens."""
    r = random.Random(seed)
    return [r.randrange(260, 40000) for _ in range(n)]


def service(stages=2, flags=(), slots=4):
    return Service(stages=stages, model=real_model(), slots=slots, flags=["--kv-block", str(BLOCK), *(THREADS if stages > 1 else ["--threads", "2"]), *flags])


def greedy(s, prompt, max_tokens, **more):
    fields = {"temperature": 0, "ignore_eos": True, **more}
    return s.call(prompt, max_tokens, usage=True, **fields)


def alone(jobs, seconds=120):
    """Texts of [(prompt, n)], one after the other, one stage, no cache."""
    with service(stages=1, slots=1) as s:
        return [greedy(s, p, n, cache_prompt=False).finish_up(seconds).text for p, n in jobs]


def check(call, text, name):
    assert call.status == 200 and not call.error and not call.broken, f"{name}: {call.describe()}"
    assert call.text == text, f"{name}: want {text[:80]!r}: {call.describe()}"


# --- user reports ----------------------------------------------------------------------------------------------------------------

class Passers(Clients):
    """Clients that send a long prompt and leave after a moment, over and over."""

    def __init__(self, s, n, n_prompt):
        super().__init__(n, patience=20)
        self.s, self.n_prompt, self.statuses = s, n_prompt, set()

    def begin(self, number):
        return random.Random(number)

    def once(self, number, rng):
        c = greedy(self.s, words(self.n_prompt, rng.random()), 8, key=f"passer-{rng.random()}")
        time.sleep(rng.uniform(0.02, 0.5))
        c.leave()
        c.join(10 * SLACK)
        with self.lock:
            self.statuses.add(c.status)


@case("full", seconds=600, real=True)
def fc_01_growing_conversations_beside_clients_that_come_and_go():
    new, answer, turns, chats = 220, 40, 5, 4
    said = {k: [] for k in range(chats)}
    # What each turn must say: the conversations alone.
    want = {}
    with service(stages=1, slots=1) as s:
        for k in range(chats):
            for t in range(turns):
                said[k] += words(new, f"{k}.{t}")
                c = greedy(s, said[k], answer, return_token_ids=True).finish_up(120)
                want[k, t] = (list(said[k]), c.text, c.token_ids())
                said[k] += want[k, t][2]
    with service(flags=["--queue-requests", "64"]) as s:
        failed = []

        def chat(k):
            known = 0
            for t in range(turns):
                prompt, text, ids = want[k, t]
                c = greedy(s, prompt, answer, key=f"chat-{k}").finish_up(240)
                try:
                    check(c, text, f"chat {k}, turn {t}")
                    assert c.cached_tokens() >= known // BLOCK * BLOCK, f"chat {k}, turn {t}: {c.cached_tokens()} of {known} cached"
                except AssertionError as e:
                    failed.append(e)
                known = len(prompt) + len(ids) - 1  # the last id was never fed

        talks = [threading.Thread(target=chat, args=(k,)) for k in range(chats)]
        with Passers(s, 2, 800) as passers:
            for t in talks:
                t.start()
            for t in talks:
                t.join()
        assert not failed, failed
        assert passers.statuses <= {200, None}, passers.statuses
        s.assert_quiet(canary=False)


@case("full", seconds=600, real=True)
def fc_09_three_at_once_with_long_and_short_prompts_at_every_share():
    jobs = [(words(1600, 1), 200), (words(5000, 2), 48), (words(2000, 3), 48), (words(12, 4), 48)]
    want = alone(jobs)
    for share in ("0", "0.5", "0.9"):
        with service(flags=["--max-stall-ms", "500", "--decode-share", share]) as s:
            calls = [greedy(s, p, n, key=str(i)) for i, (p, n) in enumerate(jobs[:3])]
            time.sleep(1)
            calls.append(greedy(s, *jobs[3], key="short"))
            for c, text, name in zip(calls, want, ("1600", "5000", "2000", "12")):
                check(c.finish_up(200), text, f"share {share}, prompt of {name}")
                assert c.max_gap() <= 0.5 * LATE * SLACK, f"share {share}, prompt of {name}: a gap of {c.max_gap() * 1e3:.0f} ms"
            print(f"      share {share}: longest gaps {[round(c.max_gap() * 1e3) for c in calls]} ms")
            s.assert_quiet(canary=False)


# --- shares and exactness ---------------------------------------------------------------------------------------------------------

@case("nightly", seconds=300, real=True)
def fc_10_three_streams_keep_half_of_their_speed_beside_8000_tokens():
    prompt = words(8000, 5)
    with service() as s:
        c = greedy(s, prompt, 1, cache_prompt=False, key="long").finish_up(120)
        read_alone = c.ended - c.started
        streams = [greedy(s, words(20, 10 + i), 5000, key=str(i)) for i in range(3)]
        for c in streams:
            c.wait(lambda c=c: len(c.times()) > 20, 20, "20 tokens")
        began = time.monotonic()
        time.sleep(4)
        now = time.monotonic()
        long = greedy(s, prompt, 1, cache_prompt=False, key="long").finish_up(200)
        read = long.ended - long.started
        time.sleep(4)
        end = time.monotonic()
        kept = []
        for i, c in enumerate(streams):
            before, during, after = c.rate(began, now), c.rate(long.started, long.ended), c.rate(long.ended + 0.5, end)
            # The streams grow while the prompt is read: what they would do beside each other lies between the two.
            kept.append(2 * during / (before + after))
            print(f"      stream {i}: {before:.1f}/s, then {during:.1f}/s, {after:.1f}/s after (kept {kept[-1]:.2f}), "
                  f"longest gap {c.max_gap(now) * 1e3:.0f} ms")
            assert not c.ended, f"stream {i} ended before the prompt was read: {c.describe()}"
        print(f"      read in {read:.1f} s, alone {read_alone:.1f} s: {read / read_alone:.2f}")
        for i, c in enumerate(streams):
            # The machine's own speed changes within these two minutes: this build and the one before gave 0.44 to 0.48.
            assert kept[i] >= 0.5 / LATE, f"stream {i} kept {kept[i]:.3f}"
            assert c.max_gap(now, long.ended) <= 0.25 * LATE * SLACK, f"stream {i}: {c.max_gap(now, long.ended)}"
            c.leave()
        assert read <= 3.0 * LATE * read_alone, f"{read:.1f} s, alone {read_alone:.1f} s"
        for c in streams:
            c.join()
        s.assert_quiet(canary=False)


@case("full", seconds=900, real=True)
def fc_19_eight_together_say_what_each_says_alone():
    lengths = (20, 64, 65, 200, 511, 900, 1500, 3000)
    jobs = [(words(n, 100 + n), 128) for n in lengths]
    want = alone(jobs)
    for stages in (1, 2, 3):
        for piece in (64, 512):
            with service(stages=stages, slots=8, flags=["--piece-max", str(piece)]) as s:
                calls = [greedy(s, p, n, key=str(i)) for i, (p, n) in enumerate(jobs)]
                for c, text, n in zip(calls, want, lengths):
                    check(c.finish_up(200), text, f"{stages} stages, pieces of {piece}, prompt of {n}")
                s.assert_quiet(canary=False)


@case("full", seconds=600, real=True)
def fc_64_an_answer_without_end_stops_where_the_context_does():
    with service(slots=1) as s:
        c = s.call(words(100, 6), max_tokens=None, usage=True, temperature=0, ignore_eos=True, timeout=500).finish_up(500)
        assert c.status == 200 and c.finish == "length", c.describe()
        assert c.usage()["completion_tokens"] == 8092 and c.usage()["prompt_tokens"] == 100, c.usage()
        s.assert_quiet(canary=False)


if __name__ == "__main__":
    raise SystemExit(run(__import__("__main__")))
