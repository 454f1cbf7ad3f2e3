"""Several nodes: mpirun starts a service over them; near, far apart, and over a network that loses frames."""
import statistics
import sys
import time

import bed  # first: it knows where the other modules are
from bed import Cluster
from certificates import Certificates
from runner import real_model
from service import SLACK, TENTH, Service, case, ids, run, wait_for
from test_fc_tls import SecureService

N_STREAMS = 4
FAR_US = 25000  # one way


def assert_references(s, n_prompt, n, seconds=60):
    """Four streams at once; returns the calls."""
    calls = [(s.call(p := ids(n_prompt, 1 + i), n, key=f"k{i}"), p) for i in range(N_STREAMS)]
    for c, p in calls:
        c.finish_up(seconds).assert_reference(p, n)
    return [c for c, _ in calls]


def figures(s, calls):
    firsts = [c.first - c.started for c in calls]
    gaps = [g for c in calls for g in c.gaps()]
    return (f"ready in {s.ready_s:.1f} s, first token {max(firsts) * 1000:.0f} ms, gap median {statistics.median(gaps) * 1000:.1f} ms, "
            f"longest {max(gaps) * 1000:.0f} ms, {sum(c.rate() for c in calls):.0f} tokens/s of {len(calls)} streams")


@case("full", seconds=60, gaps=True)
def cluster_mpirun_starts_a_service_over_three_nodes():
    with Cluster() as s:
        for i in range(3):
            assert s.pid(i) in s.net.processes(i), f"stage {i} is not on node {i}"
        print("      " + figures(s, assert_references(s, 300, 60)), flush=True)
        s.assert_quiet()


@case("full", seconds=90, gaps=True)
def cluster_links_of_25_ms_one_way_cost_their_time_and_no_more():
    """A token of a stream goes once around: two links between three stages and the plan out or the result back; plans of other
    streams run beside it. A piece of a prompt costs the same once."""
    with Cluster(costs=TENTH, delay_us=FAR_US) as s:
        calls = assert_references(s, 60, 20)
        print("      " + figures(s, calls), flush=True)
        around = 3 * FAR_US / 1e6
        gap = statistics.median(g for c in calls for g in c.gaps())
        assert around * 0.9 < gap < (around + 0.05) * SLACK, f"a token took {gap * 1000:.0f} ms, once around is {around * 1000:.0f} ms"
        s.assert_quiet()


@case("full", seconds=60, gaps=True)
def cluster_a_network_that_jitters_and_loses_frames_slows_but_breaks_nothing():
    with Cluster(costs=TENTH, delay_us=2000) as s:
        s.net.tell("seed 7")
        s.net.tell("jitter 4000")
        s.net.tell("loss 5000")
        print("      " + figures(s, assert_references(s, 300, 60)), flush=True)
        forwarded, dropped = map(int, s.net.tell("stats").split())
        assert dropped > forwarded / 1000, (forwarded, dropped)
        s.net.tell("loss 0")
        s.assert_quiet()


class SecureCluster(SecureService, Cluster):
    """Every process shows the others a certificate."""


@case("full", seconds=60, gaps=True)
def cluster_with_certificates_three_nodes_serve_and_survive_a_cut():
    """gRPC with mutual TLS and encrypted links between nodes; the certificate names every node's address."""
    with Certificates() as certs:
        certs.issue("node", ",".join(["IP:127.0.0.1", "DNS:localhost", *(f"IP:{bed.address(i)}" for i in range(3))]))
        with SecureCluster(certs, flags=["--heartbeat-ms", "300"]) as s:
            calls = [(s.call(p := ids(200, 1 + i), 150, key=f"k{i}"), p) for i in range(N_STREAMS)]
            for c, _ in calls:
                c.wait_tokens(5)
            s.net.tell("cut 1 2")
            wait_for(lambda: not s.ready(), 2, "not ready")
            s.net.tell("heal 1 2")
            healed = time.monotonic()
            for c, p in calls:
                c.finish_up(30).assert_reference(p, 150)
            print(f"      {figures(s, [c for c, _ in calls])}; all had ended {time.monotonic() - healed:.1f} s after the heal", flush=True)
            s.assert_quiet()


def texts(s, prompts, n):
    calls = [s.call(p, n, key=f"k{i}", ignore_eos=True) for i, p in enumerate(prompts)]
    for c in calls:
        c.finish_up(120)
        assert c.status == 200 and c.finish == "length" and not c.broken, c.describe()
    return calls


@case("full", seconds=240, real=True)
def cluster_the_real_model_says_the_same_over_three_nodes_as_alone():
    model = real_model()
    bed.require()
    prompts = ["The capital of France is", "Once upon a time there was a", "A pipeline of three stages", "Water boils at"]
    flags = ["--context", "1024", "--threads", "1"]
    with Service(stages=1, slots=1, model=model, flags=flags) as s:
        alone = [texts(s, [p], 40)[0].text for p in prompts]
    with Cluster(model=model, flags=flags) as s:
        calls = texts(s, prompts, 40)
        assert [c.text for c in calls] == alone
        print("      " + figures(s, calls), flush=True)
        s.assert_quiet()


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
