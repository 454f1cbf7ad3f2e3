"""Several nodes: cuts between them that heal or do not."""
import sys
import time

from bed import Cluster  # first: it knows where the other modules are
from service import SLACK, case, ids, run, wait_for

NOTICED_S = 2
IDLE_NOTICED_S = 3
RESUMED_S = 6
PROMPT, ANSWER = 200, 150


def begin(s, n=ANSWER, first_seed=1):
    """Four streams that have begun to answer."""
    calls = [(s.call(p := ids(PROMPT, first_seed + i), n, key=f"k{i}"), p) for i in range(4)]
    for c, _ in calls:
        c.wait_tokens(5)
    return calls


def cut_and_heal(s, a, b, seconds, seed):
    calls = begin(s, first_seed=seed)
    s.net.tell(f"cut {a} {b}")
    cut = time.monotonic()
    wait_for(lambda: not s.ready(), NOTICED_S, "not ready")
    noticed = time.monotonic() - cut
    while time.monotonic() < cut + seconds:
        assert not s.ready(), "ready while its nodes are apart"
        time.sleep(0.1)
    s.net.tell(f"heal {a} {b}")
    healed = time.monotonic()
    for c, p in calls:
        c.finish_up(30).assert_reference(p, ANSWER)
    resumed = max(min(c.times(after=healed)) for c, _ in calls) - healed
    ended = max(c.ended for c, _ in calls) - healed
    print(f"      cut {a}-{b}: noticed after {noticed:.2f} s, all go on {resumed:.2f} s after the heal, the last has ended after {ended:.2f} s",
          flush=True)
    assert ended <= RESUMED_S * SLACK, ended
    s.assert_quiet()


@case("full", seconds=120, gaps=True)
def fc_68_a_cut_of_ten_seconds_between_two_nodes_is_a_pause():
    """Between the coordinator's node (stage 0) and stage 1's, and between two nodes that the coordinator reaches both."""
    with Cluster(flags=["--heartbeat-ms", "300"]) as s:
        pids = {part: s.pid(part) for part in s.parts()}
        cut_and_heal(s, 0, 1, 10, seed=1)
        cut_and_heal(s, 1, 2, 5, seed=11)
        assert {part: s.pid(part) for part in s.parts()} == pids, "a process has restarted"


@case("nightly", seconds=180)
def fc_68_a_detached_service_outlives_a_cut_of_45_seconds():
    """Longer than the launchers' control socket stands: they find each other again."""
    with Cluster(detach=True) as s:
        pids = {part: s.pid(part) for part in s.parts()}
        calls = begin(s)
        s.net.tell("cut 0 1")
        time.sleep(45)
        s.net.tell("heal 0 1")
        healed = time.monotonic()
        for c, p in calls:
            c.finish_up(30).assert_reference(p, ANSWER)
            assert c.ended - healed <= RESUMED_S * SLACK, c.ended - healed
        assert {part: s.pid(part) for part in s.parts()} == pids, "a process has restarted"
        wait_for(lambda: "rank 0's launcher is back" in s.log(), 10, "rank 1 has found rank 0 again")
        s.assert_quiet()


@case("full", seconds=60, gaps=True)
def fc_68_a_cut_is_noticed_while_nobody_asks_for_anything():
    """Also between two nodes that the coordinator both reaches: an idle link asks every second."""
    with Cluster() as s:
        for a, b, within in ((0, 1, NOTICED_S), (1, 2, IDLE_NOTICED_S)):
            time.sleep(1.5)
            s.net.tell(f"cut {a} {b}")
            cut = time.monotonic()
            wait_for(lambda: not s.ready(), within, f"not ready, cut {a}-{b}")
            noticed = time.monotonic() - cut
            time.sleep(1)
            assert not s.ready()
            waiting = s.call(p := ids(20, a), 10)
            s.net.tell(f"heal {a} {b}")
            healed = time.monotonic()
            waiting.finish_up(RESUMED_S).assert_reference(p, 10)
            print(f"      cut {a}-{b} while idle: noticed after {noticed:.2f} s, an answer {waiting.ended - healed:.2f} s after the heal", flush=True)
            s.assert_quiet()


@case("full", seconds=60)
def fc_68_a_cut_that_never_heals_ends_streams_at_the_recovery_timeout():
    with Cluster(flags=["--recovery-timeout-ms", "4000"]) as s:
        calls = begin(s, n=2000)
        waiting = s.call(ids(10, 90), 10, key="late")
        s.wait_requests(queued=1)
        s.net.tell("cut 0 1")
        cut = time.monotonic()
        for c in [*(c for c, _ in calls), waiting]:
            c.finish_up(20)
            assert c.error and c.error["retryable"] is True and not c.broken and c.finish is None, c.describe()
            assert 4 <= c.ended - cut <= (4 + NOTICED_S) * SLACK, (c.ended - cut, c.describe())
        assert "stage 1" in calls[0][0].error["message"], calls[0][0].error
        assert not s.ready()
        s.net.tell("heal 0 1")
        wait_for(s.ready, RESUMED_S, "ready again")
        s.assert_quiet()


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
