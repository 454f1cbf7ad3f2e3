"""Failure cases, group 3: what is kept of prompts and answers, who finds it again, and what nobody may lose or leak (FC-17, the hash
that collides, is tests/unit/engine/test_engine_collide.c)."""
import random
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from beside import Watch
from service import TENTH, Call, Conversation, Service, case, ids, reference, run, wait_for

BLOCK = 16
FAST = (100, 4, 6)  # costs where nothing but order and sums is judged


def whole(n):
    """Positions of n that fill blocks."""
    return n // BLOCK * BLOCK


def leave_or_finish(call, may_leave, prompt, n_out):
    """Waits for the end. One that has left has said a beginning of its reference text, or nothing; any other all of it."""
    call.finish_up(60)
    if may_leave and call.broken:
        assert not call.error, call.describe()
        assert reference(prompt, n_out).startswith(call.text), call.describe()
    else:
        call.assert_reference(prompt, n_out)


def leave_at(call, n_tokens, after_s):
    """Closes when so many tokens came, or after so long, whatever is first."""
    with call.change:
        call.change.wait_for(lambda: len(call.text) >= n_tokens or call.ended, after_s)
    if call.sock:
        call.leave()


# --- FC-18 ------------------------------------------------------------------------------------------------------------------------

@case("fast", seconds=60, gaps=True)
def fc_18_another_tenant_neither_finds_a_text_nor_sees_that_it_was_read():
    with Service(costs=(1000, 30, 36), flags=["--kv-blocks", "14000"]) as s:  # room for all of it
        text = ids(4000, 18)

        def ask(prompt, key, **fields):
            c = s.ask(prompt, 2, key=key, usage=True, **fields)
            c.assert_reference(prompt, 2)
            return c.cached_tokens(), c.first - c.started

        assert ask(text, "A")[0] == 0
        cold, other = [], []
        for i in range(20):  # in turn, so that whatever the machine does it does to both
            cold.append(ask(ids(4000, 1800 + i), "cold"))
            other.append(ask(text, f"key{i}"))
        assert [c for c, _ in cold + other] == [0] * 40, (cold, other)
        a, b = (statistics.median(t for _, t in x) for x in (cold, other))
        assert abs(b - a) <= 0.1 * a, f"first token of other tenants after {b * 1e3:.1f} ms, cold {a * 1e3:.1f} ms"
        assert ask(text, None)[0] == 0, "a client without a key is a tenant, too"
        for key in ("A", "key7", None):  # what they read themselves they find
            cached, took = ask(text, key)
            assert cached == 3984 and took < a / 2, (key, cached, took, a)
        # The same beginning, and nothing but the tenant differs.
        assert ask(text[:2000] + ids(100, 1899), "A")[0] == 2000
        assert ask(text[:2000] + ids(100, 1899), "B")[0] == 0
        s.assert_quiet()


# --- FC-20 ------------------------------------------------------------------------------------------------------------------------

def fill_cache(s, n_prompts, size):
    """Prompts whose blocks stay; they fill the pool."""
    prompts = [ids(size, 20000 + i) for i in range(n_prompts)]
    with ThreadPoolExecutor(4) as pool:
        for c, p in zip(list(pool.map(lambda p: s.ask(p, 1, key="k"), prompts)), prompts):
            c.assert_reference(p, 1)
    return prompts


def random_cancels(s, prompts, rng, n_requests, n_at_once, n_in=300, n_out=60):
    """Requests that take up random beginnings of those prompts; three in ten leave at a random tick. How many found something."""
    found = []

    def one(plan):
        i, source, common, leaves, n_tokens, after_s = plan
        p = prompts[source][:common] + ids(n_in - common, 21000 + i)
        c = s.call(p, n_out, key="k", usage=True)
        if leaves:
            leave_at(c, n_tokens, after_s)
        leave_or_finish(c, leaves, p, n_out)
        if c.usage():
            assert c.cached_tokens() <= whole(common), (c.cached_tokens(), common)
            found.append(c.cached_tokens())

    plans = [(i, rng.randrange(len(prompts)), BLOCK * rng.randrange(0, n_in // BLOCK), rng.random() < 0.3,
              rng.randrange(1, n_out) if rng.random() < 0.6 else n_out + 1, rng.random() * 0.25) for i in range(n_requests)]
    with ThreadPoolExecutor(n_at_once) as pool:
        list(pool.map(one, plans))
    return sum(x > 0 for x in found)


@case("fast", seconds=120)
def fc_20_blocks_of_cancelled_requests_are_not_written_again_while_ticks_are_in_flight():
    """Wrong text is what a client can see. That no block is given out before its ticks have retired, which stages in order hide,
    is watched in tests/sim/test_engine_sim.c."""
    rng = random.Random(20)
    with Service(stages=4, slots=8, costs=TENTH, flags=["--kv-blocks", "1000"]) as s:
        prompts = fill_cache(s, 16, 60 * BLOCK + 1)
        wait_for(lambda: (b := s.status()["blocks"])["cached"] >= 0.95 * b["total"], 1, "95 % of the pool is cached")
        found = random_cancels(s, prompts, rng, 500, 24)
        r, b = s.status()["requests"], s.status()["blocks"]
        assert r["cancelled"] >= 75 and r["failed"] == 0 and found >= 50 and b["evicted"] > 500, (r, b, found)
        assert s.metrics()["sluice_preemptions_total"] == 0  # room for all: eviction alone is judged here
        s.assert_quiet()


# --- FC-33, its kind --------------------------------------------------------------------------------------------------------------

@case("fast", seconds=60)
def fc_33_a_cancel_at_any_tick_offset_hurts_no_stream_and_frees_its_slot():
    tick_s = 0.00103
    with Service(stages=3, slots=2, costs=(1000, 30, 60)) as s:
        stream = s.call(stream_ids := ids(50, 33), 1800, key="stream")
        stream.wait_tokens(3)
        n = 0
        for reading in (False, True):
            for offset in range(9):
                p = ids(3000 if reading else 30, 3300 + n)
                c = s.call(p, 200, key="leaves")
                if reading:
                    wait_for(lambda: s.status()["requests"]["reading"] == 1, 5, "it reads")
                else:
                    c.wait_tokens(1)
                time.sleep(offset * tick_s)
                c.leave()
                n += 1
                s.wait_requests(cancelled=n, reading=0, decoding=1)
                after = s.ask(q := ids(20, 3350 + n), 3, key="next", seconds=5)  # the slot is usable
                after.assert_reference(q, 3)
                leave_or_finish(c, True, p, 200)
        assert stream.ended is None, "the stream ended before all had left"
        stream.finish_up(30).assert_reference(stream_ids, 1800)
        s.assert_quiet()


# --- FC-21 ------------------------------------------------------------------------------------------------------------------------

N_BLOCKS = 640


def crowd_that_leaves(s, rng, n, first_seed):
    """So many requests, each closed within 2 s, by FIN or RST, wherever it is then; some streams, some not."""
    calls = []
    for i in range(n):
        size = rng.choice((1, 20, 100, 100, 400, 1500))
        c = Call(s.port, "/v1/completions", s.body(ids(size, first_seed + i % 50), rng.randrange(1, 200), rng.random() < 0.7), key=f"k{i % 7}")
        c.start()
        calls.append((time.monotonic() + rng.random() * 2, rng.random() < 0.5, c))
    for at, hard, c in sorted(calls, key=lambda x: x[0]):
        time.sleep(max(0, at - time.monotonic()))
        wait_for(lambda: c.sock, 5, "it has a socket")
        if not c.ended:
            try:
                c.reset() if hard else c.leave()
            except OSError:
                pass  # it has ended just now
    for _, _, c in calls:
        c.finish_up(10)
        assert c.status in (None, 200, 503), c.describe()
    return [c for _, _, c in calls]


def assert_whole_pool(s, seed):
    n_in = N_BLOCKS * BLOCK - 40
    p = ids(n_in, seed)
    c = s.ask(p, 41, key="whole", seconds=30)  # the last id is never fed: every position of the pool is used
    c.assert_reference(p, 41)


@case("fast", seconds=90)
def fc_21_crowds_that_leave_leak_nothing():
    rng = random.Random(21)
    with Service(slots=8, costs=TENTH, flags=["--kv-blocks", str(N_BLOCKS), "--queue-requests", "400"]) as s:
        for r in range(5):
            calls = crowd_that_leaves(s, rng, 400, 2100 + 50 * r)
            assert sum(c.status == 200 for c in calls) >= 10, [c.describe() for c in calls]
            s.assert_quiet(canary=False)
        requests = s.status()["requests"]
        assert requests["cancelled"] > 500 and requests["failed"] == 0, requests
        assert s.status()["blocks"]["cached"] > 0, "the last request finds no cached blocks in its way"
        assert_whole_pool(s, 2190)
        s.assert_quiet()


@case("fast", seconds=60)
def fc_21_leaving_while_others_are_parked_leaks_nothing_and_changes_no_text():
    """A pool for six of eight: some are parked and read again, from blocks that are given away meanwhile; half of all leave."""
    rng = random.Random(2121)
    with Service(stages=3, slots=8, costs=TENTH, flags=["--kv-blocks", "150"]) as s:
        prefix = ids(64, 2121)

        def one(i):
            leaves = i % 2 == 1
            p = prefix[:rng.choice((0, 32, 64))] + ids(60, 21300 + i)
            c = s.call(p, 300, key=f"k{i % 2}")
            if leaves:
                leave_at(c, rng.randrange(1, 300), rng.random())
            leave_or_finish(c, leaves, p, 300)

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(one, range(80)))
        r, parks = s.status()["requests"], s.metrics()["sluice_preemptions_total"]
        assert r["cancelled"] >= 10 and r["failed"] == 0 and parks >= 1, (r, parks)
        s.assert_quiet()


# --- FC-22 ------------------------------------------------------------------------------------------------------------------------

def growing_chats(stages):
    with Service(stages=stages, costs=TENTH) as s:
        chats = [Conversation(s, f"chat{i}", 2200 + i) for i in range(2)]
        for turn in range(5):
            calls = [(c, c.start(800, 48)) for c in chats]
            for chat, call in calls:
                chat.finish(call)
                known = max(chat.before - 1, 0)  # the prompt before and its answer, but for the last id: it was never fed
                got = call.cached_tokens()
                assert got == whole(known), f"{stages} stages, turn {turn}: {got} cached, {known} were computed"
        s.assert_quiet()


@case("fast", seconds=60)
def fc_22_every_turn_reads_only_what_is_new_at_any_number_of_stages():
    with ThreadPoolExecutor(3) as pool:
        for f in [pool.submit(growing_chats, n) for n in (1, 2, 4)]:
            f.result()


@case("fast", seconds=60)
def fc_22_turns_are_found_again_beside_others_and_after_cancels():
    """Chats that take turns in random order, two of three through requests that leave with the same text, and one slot for all."""
    rng = random.Random(22)
    for slots in (1, 3):
        with Service(stages=3, slots=slots, costs=FAST) as s:
            chats = [Conversation(s, f"chat{i % 2}", 2250 + i) for i in range(4)]  # two keys, two chats each
            order = [c for c in chats for _ in range(5)]
            rng.shuffle(order)
            for chat in order:
                known = most = max(len(chat.said) - 1, 0)
                if rng.random() < 0.6:  # a turn that is abandoned while it reads or says; it may have read the last id said
                    most = len(chat.said)
                    c = s.call(chat.said + ids(500, rng.randrange(1 << 30)), 100, key=chat.key)
                    leave_at(c, 20, rng.random() * 0.05)
                    c.finish_up(10)
                call = chat.turn(rng.randrange(1, 400), rng.randrange(1, 50))
                assert whole(known) <= call.cached_tokens() <= whole(most), (slots, call.cached_tokens(), known, most)
            s.assert_quiet()


# --- FC-23 ------------------------------------------------------------------------------------------------------------------------

class LiveBlocks(Watch):
    """The most blocks that were ever live at once."""

    def __init__(self, s):
        super().__init__(s, 0.003, at_least=10)
        self.most = 0

    def look(self):
        self.most = max(self.most, self.s.assert_sums()["blocks"]["live"])


def share_prefix(s, prefix, first_seed, n_leave, rng):
    """64 requests with one prefix; n_leave of them leave at a random moment."""
    watch = LiveBlocks(s)
    watch.start()
    leavers = set(rng.sample(range(64), n_leave))
    prompts = [prefix + ids(40, first_seed + i) for i in range(64)]
    calls = [s.call(p, 16, key="one", usage=True) for p in prompts]
    leaving = [threading.Thread(target=leave_at, args=(calls[i], rng.randrange(1, 20), rng.random() * 2), daemon=True) for i in leavers]
    for t in leaving:
        t.start()
    for i, (c, p) in enumerate(zip(calls, prompts)):
        leave_or_finish(c, i in leavers, p, 16)
    for t in leaving:
        t.join(10)
    cached = [c.cached_tokens() for c in calls if c.finish and c.usage()]
    assert len(cached) >= 64 - n_leave and set(cached) == {2000}, cached
    watch.finish()
    assert 125 < watch.most <= 125 + 8 * 4, f"{watch.most} blocks were live"


@case("fast", seconds=60)
def fc_23_a_prefix_that_many_share_is_read_and_held_once():
    rng = random.Random(23)
    with Service(slots=8, flags=["--queue-requests", "64"]) as s:
        prefix = ids(2000, 23)
        s.ask(prefix, 1, key="one").assert_reference(prefix, 1)
        share_prefix(s, prefix, 2300, 0, rng)
        s.wait_metrics(sluice_prompt_tokens_total=2000 + 64 * 40, sluice_cached_tokens_total=64 * 2000)
        share_prefix(s, prefix, 2400, 20, rng)
        assert s.status()["requests"]["cancelled"] > 0
        # Those that nobody may share with, at the same time: they take room of their own and find nothing.
        others = [s.call(prefix + ids(40, 2500 + i), 4, key=f"other{i}", usage=True) for i in range(3)]
        for i, c in enumerate(others):
            c.finish_up(30).assert_reference(prefix + ids(40, 2500 + i), 4)
            assert c.cached_tokens() == 0
        s.assert_quiet()


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
