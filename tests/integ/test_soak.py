"""Hours in minutes: a service under mixed load, judged while it runs. By hand: test_soak.py --minutes 30 [--seed N] [--kills].

Requests of mixed sizes, one in ten of which leaves at a random moment, conversations that grow beside them, a pool too small for all
of it (cached blocks are evicted, requests parked). Every answer has its reference text and one end; sums of status hold at random
moments; a canary every 10 s is answered in 2 s and its time in the queue; the memory of no process grows in the second half.
"""
import contextlib
import http.client
import json
import random
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from client import Call
from faults import parts, send
from reference import reference
from runner import real_model
from service import CANARY, SLACK, TENTH, Conversation, Service, case, ids, run

RATE = 20000 / 1800  # requests a second that the run must reach
N_WORKERS = 12
CANARY_S = 10
N_LARGEST = 3  # of each worker, first
N_JOINS = 20000
N_TRACED = 9000
# A pool that fills within the first minute (what is allocated at the start counts in memory once it is touched), and a machine that is
# busy with other tests for a second is no lost stage.
FLAGS = ["--kv-blocks", "800", "--heartbeat-ms", "2000"]
# One heap without caches per thread, whose slow filling hides what a program keeps itself (the coordinator, 12,000 requests: bytes in
# use + 0.5 % so, + 10 % with glibc's 12 thread caches).
ENV = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1:glibc.malloc.tcache_count=0"}


class Soak:
    judged = ()        # whose memory: everybody's
    pause_s = 0        # that a canary may have to wait beside
    growth = 1.01      # what memory of the second half is to that of the first, at most

    def __init__(self, service, seconds, seed, rate=RATE, longest=2000):
        self.s, self.seconds, self.seed, self.rate, self.longest = service, seconds, seed, rate, longest
        self.failure = None        # the first one, of any thread
        self.lock = threading.Lock()
        self.counts = {"done": 0, "left": 0, "canaries": 0, "moments": 0}
        self.memory = []           # (seconds since the start, {part: KiB})
        self.canary_text = reference(CANARY, 6) if service.fake else None
        self.over = threading.Event()

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def n_requests(self):
        return self.counts["done"] + self.counts["left"]

    def guarded(self, work, *args):
        try:
            work(*args)
        except BaseException as e:  # noqa: B036 (the thread's end is the test's)
            with self.lock:
                self.failure = self.failure or e
            self.over.set()

    # --- load ---

    def worker(self, number):
        rng = random.Random(self.seed * 1000 + number)
        chat = None
        # The highest load first: else chance says in which half the heap is at its largest. What is in use at quiet moments is the same
        # to 500 bytes over 4,500 requests, while the heap goes from 0.8 to 2.4 MiB and back (10 % of the gateway's memory).
        for i in range(N_LARGEST):
            self.ask(rng, ids(self.longest, rng.getrandbits(50)), 150, i % 2 == 0)
        mean_pause = N_WORKERS / self.rate / 1.6  # the rest is what a request itself takes
        while not self.over.is_set():
            self.over.wait(rng.random() * 2 * mean_pause)
            kind = rng.random()
            if kind < 0.1:
                self.leave_early(rng)
            elif kind < 0.3 and self.s.fake:
                if chat is None or len(chat.said) > self.longest:
                    chat = Conversation(self.s, f"chat-{number}", rng.getrandbits(40))
                chat.turn(rng.randrange(1, 200), rng.randrange(1, 40))
                self.count("done")
            else:
                self.whole(rng)

    def request(self, rng):
        prompt = ids(min(self.longest, int(2 ** (rng.random() * 11))) + 1, rng.getrandbits(50))
        return prompt, rng.choice((1, 2, 8, 20, 60, 150)), rng.random() < 0.5

    def whole(self, rng):
        self.ask(rng, *self.request(rng))

    def ask(self, rng, prompt, n, stream):
        c = Call(self.s.port, "/v1/completions", self.s.body(prompt, n, stream), key=f"key-{rng.randrange(20)}")
        c.run()
        if self.s.fake:
            c.assert_reference(prompt, n)
        else:
            assert c.status == 200 and c.n_ends() == 1 and not c.error, c.describe()
        self.count("done")

    def leave_early(self, rng):
        prompt, n, stream = self.request(rng)
        c = self.s.call(prompt, n + 100, stream, key=f"key-{rng.randrange(20)}")
        time.sleep(rng.random() * 0.15)
        if c.sock:
            c.leave()
        c.join()
        assert c.status in (None, 200), c.describe()
        self.count("left")

    # --- judges ---

    def watch_sums(self):
        rng = random.Random(self.seed)
        while not self.over.wait(rng.random() * 1.0):
            self.s.assert_sums()
            self.count("moments")

    def watch_canary(self):
        while not self.over.wait(CANARY_S):
            c = Call(self.s.port, "/v1/completions", self.s.body(CANARY, 6, False), key="canary")
            c.run()
            assert c.status == 200 and (self.canary_text is None or c.text == self.canary_text), c.describe()
            self.canary_text = c.text
            queued_s = c.answer["timings"]["queue_ms"] / 1000
            assert c.ended - c.started < (2 + self.pause_s) * SLACK + queued_s, (c.ended - c.started, queued_s)
            self.count("canaries")

    def watch_memory(self):
        began = time.monotonic()
        while not self.over.wait(2):
            self.memory.append((time.monotonic() - began, self.s.rss(*self.judged)))

    def judge_memory(self, before, after):
        """Highest of each part from `after` on is hardly above the highest of the time until `before`."""
        for part in self.memory[0][1]:
            first = max(m[part] for t, m in self.memory if t <= before)
            last = max(m[part] for t, m in self.memory if t > after)
            print(f"      {part}: {first} KiB, then {last} KiB ({100 * (last - first) / first:+.2f} %)", flush=True)
            assert last <= first * self.growth, f"memory of {part} grew from {first} to {last} KiB"

    # --- the whole ---

    def besides(self):
        """What runs beside the load."""
        return [self.watch_sums, self.watch_canary, self.watch_memory]

    def n_restarts(self):
        return 0

    def run(self):
        threads = [threading.Thread(target=self.guarded, args=(w, *a)) for w, *a in
                   [(self.worker, i) for i in range(N_WORKERS)] + [(w,) for w in self.besides()]]
        for t in threads:
            t.start()
        self.over.wait(self.seconds)
        self.over.set()
        for t in threads:
            t.join()
        if self.failure:
            raise self.failure
        print(f"      {self.counts} in {self.seconds} s", flush=True)
        self.s.assert_quiet(restarts=self.n_restarts())
        r = self.s.status()["requests"]
        # All that were read to their end are done; one that left may have been faster, or never have arrived.
        n_whole = self.counts["done"] + self.counts["canaries"] + self.s.fake  # the canary of assert_quiet
        assert r["failed"] == 0 and n_whole <= r["done"] <= n_whole + self.counts["left"], (r, self.counts)
        assert r["accepted"] <= n_whole + self.counts["left"], (r, self.counts)
        assert self.n_requests() >= self.rate * self.seconds, (self.counts, self.rate * self.seconds)
        assert self.counts["canaries"] >= self.seconds / CANARY_S * 0.8 and self.counts["moments"] >= self.seconds, self.counts
        self.judge_memory(self.seconds / 2, self.seconds / 2)


KILL_S = 6  # each of two stages lives 12 s: its launcher starts it again at once


class SoakWithKills(Soak):
    judged = ("coordinator", "gateway")
    pause_s = 2

    def besides(self):
        return [*super().besides(), self.kill_stages]

    def kill_stages(self):
        self.n_kills = 0
        rng = random.Random(self.seed + 1)
        while not self.over.wait(KILL_S * (0.9 + 0.2 * rng.random())):
            pid = parts(self.s).get(self.n_kills % self.s.stages)
            if pid and self.s.ready() and send(pid, signal.SIGKILL):
                self.n_kills += 1

    def n_restarts(self):
        print(f"      {self.n_kills} kills", flush=True)
        assert self.n_kills >= self.seconds / KILL_S * 0.7, self.n_kills
        return self.n_kills


def soak(minutes, seed=1, kind=Soak, flags=()):
    with Service(stages=2, slots=8, costs=TENTH, flags=[*FLAGS, *flags], env=ENV) as s:
        one = kind(s, minutes * 60, seed)
        one.growth = 1.01 if minutes >= 5 else 1.03  # gRPC's and glibc's own pools are not full after a minute
        one.run()


def run_with_kills(minutes, seed=1):
    soak(minutes, seed, SoakWithKills, ["--restarts", "1000000"])


@case("full", seconds=480)
def fc_66_five_minutes_of_mixed_load_change_nothing():
    soak(5)


@case("nightly", seconds=2400)
def fc_66_thirty_minutes_of_mixed_load_change_nothing():
    soak(30)


@case("full", seconds=180)
def fc_66_two_minutes_with_kills_change_nothing():
    run_with_kills(2)


@case("nightly", seconds=2400)
def fc_66_thirty_minutes_with_kills_change_nothing():
    run_with_kills(30)


@case("nightly", seconds=900, real=True)
def fc_66_ten_minutes_of_the_real_model_change_nothing():
    with Service(stages=2, slots=8, model=real_model(), flags=["--threads", "1", "--context", "8192", "--queue-requests", "64"], env=ENV) as s:
        Soak(s, 600, 1, rate=0.5, longest=300).run()


# --- joins and leaves ------------------------------------------------------------------------------------------------------------

def join_and_leave(s, number, n):
    """n requests over one connection, every tenth over one that is cut: each joins the batch and leaves it."""
    rng = random.Random(number)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", s.port, timeout=60 * SLACK)) as keep:
        for i in range(n):
            prompt, n_out = ids(rng.randrange(1, 40), rng.getrandbits(50)), rng.randrange(1, 12)
            if i % 10 == 9:
                c = s.call(prompt, 200, key=f"k{number}")
                time.sleep(rng.random() * 0.02)
                if c.sock:
                    c.leave()
                c.join()
                continue
            keep.request("POST", "/v1/completions", json.dumps(s.body(prompt, n_out, False)),
                         {"Content-Type": "application/json", "Authorization": f"Bearer k{number}"})
            r = keep.getresponse()
            a = json.loads(r.read())
            assert r.status == 200 and a["choices"][0]["text"] == reference(prompt, n_out), (r.status, a)


def join(s, n, n_threads=10):
    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(lambda number: join_and_leave(s, number, n // n_threads), [random.getrandbits(32) for _ in range(n_threads)]))


@case("full", seconds=600)
def fc_67_memory_does_not_grow_with_subsets_of_slots():
    random.seed(67)
    with Service(stages=2, slots=8, costs=TENTH, flags=FLAGS, env=ENV) as s:
        # The highest load first, and beside it more ticks than the trace ring of a process has places.
        long = s.call(CANARY, N_TRACED)
        join(s, N_JOINS // 10, n_threads=20)
        long.finish_up(120).assert_reference(CANARY, N_TRACED)
        before = s.rss()
        join(s, N_JOINS - N_JOINS // 10)
        after = s.rss()
        print(f"      {before} KiB after {N_JOINS // 10}, {after} KiB after {N_JOINS}", flush=True)
        for part, kib in before.items():
            assert after[part] <= kib * 1.01, (part, kib, after[part])
        s.assert_quiet()


if __name__ == "__main__":
    if "--minutes" in sys.argv:
        minutes = float(sys.argv[sys.argv.index("--minutes") + 1])
        seed = int(sys.argv[sys.argv.index("--seed") + 1]) if "--seed" in sys.argv else 1
        (run_with_kills if "--kills" in sys.argv else soak)(minutes, seed)
        sys.exit(0)
    sys.exit(run(sys.modules[__name__]))
