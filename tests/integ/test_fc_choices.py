"""Requests for several answers, and with log probabilities: they wait, pause, go on and end as one answer does (FC-30 and its kind; FC-32)."""
import signal
import sys
import time

from service import Service, case, ids, reference, run, wait_for
from test_fc_gateway_kill import QUICK, kill_and_wait
from test_fc_resume import kill_coordinator

SEED = 70


def start(s, prompt, tokens, n, stream=True, key=None, **fields):
    return s.call(prompt, tokens, n=n, stream=stream, temperature=1, seed=SEED, usage=True, key=key, logprobs=0, **fields)


def lists(call, index):
    """The log probabilities of one answer, whole or put together from its chunks."""
    all_of = call.choices() if call.events else call.answer["choices"]
    out = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for x in all_of:
        if x["index"] == index and x["logprobs"]:
            for name in out:
                out[name] += x["logprobs"][name]
    return out


def check(call, prompt, tokens, n):
    """Each answer is its reference, token by token, ended once; the sums are those of all."""
    call.finish_up(40)
    assert call.status == 200 and not call.error and not call.broken, call.describe()
    for i in range(n):
        want = reference(prompt, tokens, SEED + i)
        assert call.texts[i] == want, f"answer {i}: want {want[:60]!r}, got {call.texts[i][:60]!r} ({len(call.texts[i])}); {call.describe()}"
        assert call.finishes[i] == "length", call.finishes
        got = lists(call, i)
        assert "".join(got["tokens"]) == want and got["text_offset"] == list(range(tokens)), (i, got)
        assert len(got["token_logprobs"]) == len(got["top_logprobs"]) == tokens, i
    assert set(call.texts) == set(range(n)) and (call.done or not call.events), call.describe()
    u = call.usage()
    assert (u["prompt_tokens"], u["completion_tokens"], u["total_tokens"]) == (len(prompt), n * tokens, len(prompt) + n * tokens), u


@case("full", seconds=60)
def fc_30_several_answers_outlive_two_coordinators():
    with Service(stages=2, slots=6, costs=(2000, 50, 100), flags=["--restarts", "100", "--restart-delay-ms", "20"]) as s:
        prompts = [ids(60, 300 + i) for i in range(3)]
        calls = [start(s, prompts[0], 200, 3, key="a"), start(s, prompts[1], 150, 3, stream=False, key="b")]
        calls[0].wait_tokens(20)
        kill_coordinator(s)
        calls.append(start(s, prompts[2], 20, 9, key="c"))  # more than slots
        calls[0].wait(lambda: len(calls[0].text) >= 60, 10, "it goes on")
        kill_coordinator(s)
        for c, p, tokens, n in zip(calls, prompts, (200, 150, 20), (3, 3, 9)):
            check(c, p, tokens, n)
        s.assert_quiet(ended=("coordinator",))


@case("full", seconds=120)
def fc_32_several_answers_outlive_their_gateways():
    """Killed before the first text, while only one answer has begun, amid all, and when some have ended."""
    with Service(stages=2, slots=4, flags=QUICK) as s:
        p = ids(40, 310)
        for tokens, moment in ((40, 0.0), (80, 0.25), (150, 0.6)):
            c = start(s, p, tokens, 3, cache_prompt=False)
            d = start(s, p, 30, 3, stream=False, key="d")
            time.sleep(moment)
            kill_and_wait(s)
            check(c, p, tokens, 3)
            check(d, p, 30, 3)
        # More answers than slots: when the gateway goes some have ended, some run, some wait.
        c = start(s, p, 60, 8)
        c.wait(lambda: len(c.finishes) >= 1, 20, "an answer has ended")
        assert len(c.finishes) < 8
        kill_and_wait(s)
        check(c, p, 60, 8)
        s.assert_quiet()


@case("full", seconds=30)
def fc_05_answers_whose_request_runs_are_not_refused_by_a_queue_that_filled():
    """The others are asked for after the first token of the first; by then another client has taken the last place."""
    with Service(stages=1, slots=1, costs=(200000, 50, 100), flags=["--queue-requests", "1", "--client-queue", "1"]) as s:
        p, other = ids(20, 330), ids(20, 331)
        c = start(s, p, 3, 2, key="a")
        wait_for(lambda: s.status()["slots"][0]["state"] != "free", 5, "its first answer has the slot")
        d = start(s, other, 3, 1, key="b")
        check(c, p, 3, 2)
        check(d, other, 3, 1)
        s.assert_quiet()


@case("full", seconds=60)
def fc_33_who_leaves_or_is_refused_takes_all_answers_along():
    with Service(stages=2, slots=2, flags=["--queue-requests", "4"]) as s:
        p = ids(40, 320)
        for stream in (True, False):
            c = start(s, p, 400, 5, stream=stream)
            s.wait_requests(decoding=2, queued=3)
            c.leave()
            s.wait_requests(decoding=0, queued=0, reading=0)
        # More than slots and queue ever hold.
        c = start(s, p, 400, 7).finish_up(20)
        assert c.status == 400 and c.error["param"] == "n", c.describe()
        # More than they hold now: its first answer is taken, so all are.
        other = s.call(ids(8, 330), 600, key="other")
        other.wait_tokens(2)
        check(start(s, p, 40, 6, stream=False), p, 40, 6)
        # No place for the first one: the request is refused, nothing of it stays.
        waiting = start(s, p, 100, 5, key="waiting")
        s.wait_requests(decoding=2, queued=4)
        for stream in (True, False):
            c = start(s, p, 400, 2, stream=stream, key="late").finish_up(20)
            assert c.status == 503 and c.error["retryable"] is True and c.retry_after(), c.describe()
        s.wait_requests(decoding=2, queued=4)
        check(waiting, p, 100, 5)
        other.finish_up(20).assert_reference(ids(8, 330), 600)
        # The prompt is read once: the others find it in the cache.
        s.assert_quiet()
        before = s.metrics()["sluice_prompt_tokens_total"]
        q = ids(160, 321)
        check(start(s, q, 10, 4), q, 10, 4)
        read = s.metrics()["sluice_prompt_tokens_total"] - before
        assert read <= 160 + 3 * 16, f"{read} prompt tokens were computed"
        s.assert_quiet()


@case("full", seconds=60)
def fc_32_a_drain_lets_all_answers_of_what_runs_finish():
    """Asked to end while the first answer of each reads its prompt: the others are not asked for yet, and are no new requests."""
    with Service(stages=2, slots=4, costs=(20000, 1000, 100), mpi=False, flags=["--drain-ms", "20000"]) as s:
        prompts = [ids(400, 340 + i) for i in range(3)]
        shapes = ((20, 3, True), (20, 3, False), (1, 4, False))
        calls = [start(s, p, tokens, n, stream=stream, key=str(n)) for p, (tokens, n, stream) in zip(prompts, shapes)]
        s.wait_requests(reading=3)
        s.job.send_signal(signal.SIGTERM)
        wait_for(lambda: not s.ready(), 2, "/ready says that it ends")
        for c, p, (tokens, n, _) in zip(calls, prompts, shapes):
            check(c, p, tokens, n)
        s.wait_exit(0, 3)
        s.assert_nothing_left()


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
