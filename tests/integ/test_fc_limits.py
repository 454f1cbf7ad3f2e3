"""Failure cases, group 10: what a client or time can make larger has a bound, and who reaches it reaches it alone.
FC-66 and FC-67 are in test_soak.py."""
import http.client
import json
import resource
import socket
import sys
import threading
import time

from client import Call
from crowd import Crowd
from runner import Skip
from service import COSTS, SLACK, TENTH, Service, case, ids, run, wait_for

# --- FC-63 -------------------------------------------------------------------------------------------------------------------------

POOL = ["--kv-block", "16", "--kv-blocks", "256"]  # 4,096 positions


def longest_silence(calls):
    """The longest time in which no client heard of a token, from the first one on."""
    times = sorted(t for c in calls for t in c.times())
    return max((b - a for a, b in zip(times, times[1:])), default=0)


def share_a_small_pool(requests, costs=COSTS, stages=2, slots=4, pool=POOL, answered=0, seconds=120):
    """requests: (prompt tokens, answer tokens, further fields). All get their text; somebody always gets on; nobody reads in circles.
    answered: length of answers that ended before, by which the service guesses. Returns the number of parks."""
    with Service(stages=stages, slots=slots, costs=costs, flags=pool) as s:
        if answered:
            s.ask(ids(16, 1), answered)
        before = s.metrics()
        calls = [(s.call(p := ids(n, 10 + i), n_out, key=f"k{i}", **fields), p, n_out) for i, (n, n_out, fields) in enumerate(requests)]
        for c, p, n_out in calls:
            c.finish_up(seconds).assert_reference(p, n_out)
        silence = longest_silence([c for c, *_ in calls])
        assert silence < 2 * SLACK, f"no token for {silence:.2f} s"
        s.assert_quiet()
        m = s.metrics()
        replayed = m["sluice_replayed_tokens_total"] - before["sluice_replayed_tokens_total"]
        prompts = sum(n for n, *_ in requests)
        assert replayed <= 3 * prompts, f"{replayed} tokens were read again, the prompts have {prompts}"
        parks = m["sluice_preemptions_total"] - before["sluice_preemptions_total"]
        assert parks <= 2 * len(requests), f"{parks} parks"
        r = s.status()["requests"]
        assert r["failed"] == r["cancelled"] == 0, r
        print(f"      {parks:.0f} parks, {replayed:.0f} tokens read again of {prompts}, silence {silence:.2f} s", flush=True)
        return parks


FOUR = [(1800, 600, {})] * 4


@case("fast", seconds=150)
def fc_63_four_that_fill_the_pool_are_all_answered():
    share_a_small_pool(FOUR)


@case("fast", seconds=150)
def fc_63_guesses_that_are_far_too_low_cost_one_park_each():
    """Answers were short so far: all start, and all need more than is there. Only those who do not fit beside the others are parked,
    and they come back to stay."""
    for n, n_prompt, n_out, n_fit in ((4, 900, 900, 2), (8, 300, 1000, 3)):
        parks = share_a_small_pool([(n_prompt, n_out, {})] * n, costs=TENTH, slots=8, answered=8)
        assert 1 <= parks <= n - n_fit, f"{parks} parks of {n}, {n_fit} fit at the same time"


@case("full", seconds=300)
def fc_63_other_stages_sizes_classes_and_shared_prefixes():
    share_a_small_pool(FOUR, costs=TENTH, stages=1)
    share_a_small_pool(FOUR, costs=TENTH, stages=4, answered=4)
    mixed = [(1800, 600, {}), (100, 1500, {"priority": "batch"}), (3000, 900, {}), (20, 2000, {}), (1, 3000, {"priority": "batch"}),
             (1500, 200, {}), (700, 700, {"cache_prompt": False}), (5, 40, {})]
    share_a_small_pool(mixed, costs=TENTH, slots=8, answered=8)
    # One that needs all of the pool, beside others.
    share_a_small_pool([(2000, 4096 - 2000 + 1, {})] + [(500, 300, {})] * 5, costs=TENTH, slots=6, answered=8)
    # Blocks of another size, and a pool that is hardly larger than one request.
    share_a_small_pool([(300, 900, {})] * 4, costs=TENTH, pool=["--kv-block", "64", "--kv-blocks", "25"], answered=8)


@case("fast", seconds=60)
def fc_63_who_can_never_fit_is_told_so_and_hurts_nobody():
    with Service(slots=4, costs=TENTH, flags=POOL) as s:
        running = [(s.call(p := ids(600, 40 + i), 300, key=f"r{i}"), p) for i in range(3)]
        for stream in (True, False):
            c = s.ask(ids(3000, 45), 1200, stream=stream, key="large")  # 4,199 positions
            assert c.status == 400 and c.error["code"] == "kv_pool_exceeded" and "4097" in c.error["message"], c.describe()
            assert c.ended - c.started < 1 * SLACK
        exact = s.call(p := ids(3000, 46), 1097, key="exact")
        for c, q in running:
            c.finish_up(30).assert_reference(q, 300)
        exact.finish_up(60).assert_reference(p, 1097)
        s.assert_quiet()


# --- FC-65 -------------------------------------------------------------------------------------------------------------------------

def idle_connections(port, n, begun=b""):
    """n connections that say no more than `begun`."""
    out = []
    for _ in range(n):
        c = socket.create_connection(("127.0.0.1", port))
        if begun:
            c.sendall(begun)
        out.append(c)
    return out


def kept_connections(port, n):
    """n connections that have had an answer and stay."""
    out = []
    for _ in range(n):
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=5 * SLACK)
        c.request("GET", "/live")
        assert c.getresponse().read() is not None
        out.append(c)
    return out


def times_of(s, path, n):
    """Seconds of n tries, each over a connection of its own."""
    times = []
    for _ in range(n):
        began = time.monotonic()
        code, _ = s.get(path)
        times.append(time.monotonic() - began)
        assert code == 200, (path, code)
    return times


def assert_prompt(s, n=100):
    """All n tries under 100 ms, in one round of three: client, service and whatever else runs share the processor, and a service
    that is late by itself is late in each."""
    for path in ("/live", "/ready", "/health", "/metrics"):
        rounds = []
        while not rounds or (rounds[-1] >= 0.1 * SLACK and len(rounds) < 3):
            rounds.append(max(times_of(s, path, n)))
        assert rounds[-1] < 0.1 * SLACK and max(rounds) < 1 * SLACK, f"{path}: slowest of {n} tries, {len(rounds)} rounds: {rounds} s"


@case("fast", seconds=90, gaps=True)
def fc_65_health_and_metrics_answer_beside_hundreds_of_connections():
    with Service(slots=4, flags=["--queue-requests", "256"]) as s:
        crowd = Crowd(s.port, [(i, "/v1/completions", s.body(ids(8, i), 2000), f"k{i % 20}") for i in range(200)])
        crowd.start()
        s.wait_requests(decoding=4, queued=196, seconds=10)
        idle = idle_connections(s.port, 100) + idle_connections(s.port, 50, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Le")
        idle += idle_connections(s.port, 50, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        kept = kept_connections(s.port, 50)
        assert_prompt(s)
        assert s.status()["requests"]["queued"] == 196, s.status()["requests"]
        # A large body on its way, and others that are refused, change nothing.
        over = threading.Event()
        loaders = [threading.Thread(target=load, args=(s, over, i), daemon=True) for i in range(2)]
        for t in loaders:
            t.start()
        assert_prompt(s, 30)
        over.set()
        for t in loaders:
            t.join(30)
        # All leave at once.
        crowd.close()
        for c in idle + kept:
            c.close()
        s.wait_requests(queued=0, decoding=0, reading=0, seconds=2)
        assert_prompt(s, 30)
        s.assert_quiet()


CONNECTIONS = 4096  # of a gateway
HEAD_S = 9          # a connection that says nothing is closed after this


@case("full", seconds=90)
def fc_65_more_connections_than_there_is_room_for_are_closed_and_hurt_no_stream():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < CONNECTIONS + 1000:
        raise Skip(f"{hard} descriptors are too few to take all of a gateway's connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with Service(slots=4) as s:
            before = s.rss("gateway")["gateway"]
            streams = [(s.call(p := ids(4, 50 + i), 1800, key=f"r{i}"), p) for i in range(4)]
            for c, _ in streams:
                c.wait_tokens(2)
            idle = idle_connections(s.port, CONNECTIONS + 200)
            began = time.monotonic()
            wait_for(lambda: s.get("/live", timeout=1)[0] == 200, HEAD_S + 3, "it answers again")
            assert s.rss("gateway")["gateway"] - before < 64 * 1024
            assert_prompt(s, 30)
            for c, p in streams:
                c.finish_up(60).assert_reference(p, 1800)
                assert c.max_gap(before=began + HEAD_S) < 0.5 * SLACK, c.max_gap()
            for c in idle:
                c.close()
            s.assert_quiet()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def load(s, over, number):
    """Large bodies, one after the other: one kind is refused, the other waits until its own deadline."""
    body = json.dumps(s.body(ids(30000, 900 + number), 0 if number else 4, False, deadline_ms=300)).encode()
    while not over.is_set():
        c = Call(s.port, "/v1/completions", body, key=f"large-{number}")
        c.run()
        assert c.status in (400, 503), c.describe()


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
