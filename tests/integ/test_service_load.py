"""More requests than slots: who is served, who is told to come again, and in which order."""
import sys
import threading
import time

from service import SLACK, Service, ids, run


def test_200_at_once_are_served_or_told_when_to_come_again():
    with Service(stages=2, slots=4) as s:
        prompts = [ids(8, i) for i in range(200)]
        highest = [0]
        over = threading.Event()

        def watch():
            while not over.is_set():
                highest[0] = max(highest[0], s.status()["requests"]["queued"])
                time.sleep(0.01)

        watcher = threading.Thread(target=watch)
        watcher.start()
        calls = [s.call(p, 32, stream=False, key="one") for p in prompts]
        for c in calls:
            c.finish_up(60)
        over.set()
        watcher.join()
        served = [(c, p) for c, p in zip(calls, prompts) if c.status == 200]
        refused = [c for c in calls if c.status != 200]
        for c, p in served:
            c.assert_reference(p, 32)
        assert len(served) >= 36, len(served)
        assert refused, "nobody was refused: the bound was not reached"
        for c in refused:
            assert c.status == 503 and c.error["type"] == "overloaded_error" and c.error["retryable"] is True, c.describe()
            c.retry_after()
        assert highest[0] <= 32, highest
        # The next turn of a refused client succeeds, after the wait that it was told.
        last = max(refused, key=lambda c: c.ended)
        wait = last.ended + last.retry_after() - time.monotonic()
        time.sleep(max(0, wait))
        s.ask(prompts[0], 8, key="one").assert_reference(prompts[0], 8)
        s.assert_quiet()
        m = s.metrics()
        assert m['sluice_queue_rejected_total{reason="queue_full"}'] == len(refused), m


def test_first_come_is_first_served():
    with Service(slots=1) as s:
        s.assert_starts_in_order((ids(64, 100 + i) for i in range(20)), 8)


def test_a_refused_request_does_not_hold_up_the_queue():
    with Service(slots=1) as s:
        for stream in (True, False):
            running = s.call(p := ids(4, 1), 80, key="a")
            running.wait_tokens(3)
            wrong = s.call([5, 259, 7], 8, stream=stream, key="b")
            queued = s.call(q := ids(4, 2), 8, key="c")
            wrong.finish_up(1)
            assert wrong.status == 400 and wrong.error["code"] == "bad_token_id" and "259" in wrong.error["message"], wrong.describe()
            running.finish_up(20).assert_reference(p, 80)
            queued.finish_up(5).assert_reference(q, 8)
            assert queued.first - running.ended < 0.5 * SLACK
        s.assert_quiet()


def test_texts_do_not_depend_on_stages_batches_or_pieces():
    lengths = (1, 15, 16, 17, 100, 700)
    for stages in (1, 3):
        with Service(stages=stages, slots=6, script="tick_us 500\n") as s:
            calls = [(s.call(p := ids(n, n), 60, key=f"k{n}"), p) for n in lengths]
            sampled = s.call(q := ids(30, 5), 60, temperature=1, seed=12345)
            for c, p in calls:
                c.finish_up(30).assert_reference(p, 60)
            sampled.finish_up(30).assert_reference(q, 60, seed=12345)
            s.assert_quiet()


def test_one_client_over_its_own_bounds_gets_429_and_others_do_not():
    with Service(slots=4, flags=["--client-slots", "1", "--client-queue", "2"]) as s:
        greedy = [s.call(ids(4, i), 100, stream=False, key="greedy") for i in range(8)]
        time.sleep(0.1 * SLACK)
        s.ask(p := ids(4, 99), 8, key="modest").assert_reference(p, 8)
        codes = sorted(c.finish_up(30).status for c in greedy)
        assert codes == [200] * 3 + [429] * 5, codes
        for c in greedy:
            if c.status == 429:
                assert c.error["type"] == "rate_limit_error" and c.retry_after()
        s.assert_quiet()


def test_a_wait_over_the_limit_ends_as_promised():
    with Service(slots=1, flags=["--queue-wait-ms", "1000"]) as s:
        running = s.call(p := ids(4, 1), 600, key="a")
        running.wait_tokens(2)
        for stream in (True, False):
            c = s.ask(ids(4, 2), 8, stream=stream, key="b")
            took = c.ended - c.started
            assert c.status == 503 and c.retry_after() and c.error["retryable"], c.describe()
            assert 1.0 <= took <= 1.3 * SLACK, took
        running.leave()
        running.finish_up(2)
        s.assert_quiet()
        assert s.metrics()['sluice_requests_total{outcome="expired"}'] == 2


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
