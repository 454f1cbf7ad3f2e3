"""Peers that are quiet, that do not match, that talk nonsense, and that send very much. FC-71 is in test_cluster_mutations.py."""
import os
import random
import re
import socket
import subprocess
import sys
import time

from bed import BIN, Cluster, address  # first: it knows where the other modules are
from faults import CLOSE_WAIT, ESTABLISHED, LISTENS, socket_inodes, tcp_sockets
from protobuf import fields, pack, varint
from runner import Skip
from service import LIB, SLACK, TENTH, Service, case, ids, run, wait_for

try:
    import grpc
    from middleman import Middleman, kind_of
except ImportError:
    grpc = None

# --- FC-69 -------------------------------------------------------------------------------------------------------------------------

def is_ours(command):
    return os.path.basename(command.split()[0]).startswith("sluice-")


def connections(s):
    """TCP connections between the processes of the service, on all nodes: a reconnect changes them. Clients of the gateway aside."""
    found = set()
    for pid, command in s.processes():
        if is_ours(command):
            mine = socket_inodes(pid)
            found |= {(pid, local, remote) for state, local, remote, inode in tcp_sockets(pid) if state == ESTABLISHED and inode in mine}
    clients = f":{s.port}"
    return {c for c in found if not c[1].endswith(clients) and not c[2].endswith(clients)}


def first_token(s, seed):
    c = s.ask(p := ids(200, seed), 20, seconds=20)
    c.assert_reference(p, 20)
    return c.first - c.started


def idle(seconds):
    with Cluster(flags=["--heartbeat-ms", "300"]) as s:
        normal = sorted(first_token(s, 100 + i) for i in range(5))[2]
        time.sleep(1)
        before, epoch = connections(s), s.status()["epoch"]
        assert len(before) >= 2 * 3 + 3 + 2, before  # both ends of the links, of the stages' streams, of the gateway's channel
        time.sleep(seconds)
        took = first_token(s, 200)
        print(f"      after {seconds} s without a request: first token {took * 1000:.0f} ms, else {normal * 1000:.0f} ms; "
              f"{len(before)} ends of connections", flush=True)
        after = connections(s)
        assert before <= after, f"gone: {before - after}, new: {after - before}"
        assert s.status()["epoch"] == epoch
        assert took <= 2 * normal * SLACK, (took, normal)
        s.assert_quiet()


@case("full", seconds=60, gaps=True)
def fc_69_twenty_quiet_seconds_cost_no_connection():
    idle(20)


@case("nightly", seconds=600, gaps=True)
def fc_69_five_quiet_minutes_cost_no_connection():
    idle(300)


@case("nightly", seconds=2400, gaps=True)
def fc_69_half_an_hour_of_quiet_costs_no_connection():
    idle(1800)


# --- FC-70 -------------------------------------------------------------------------------------------------------------------------

class Stages:
    """A service whose second stage is not started: the test does that, by hand."""

    def __init__(self):
        self.s = Service(stages=2, wait=False, costs=(0, 0, 0))
        self.token = self.s.file("token", "0123456789abcdef0123456789abcdef\n")
        os.chmod(self.token, 0o600)
        held = self.s.file("held", f"""#!/bin/bash
case " $* " in *" --stage 1 "*) exec sleep 1000;; esac
exec {BIN}/sluice-stage-fake "$@"
""")
        os.chmod(held, 0o755)
        self.s.flags += ["--token-file", self.token, "--stage-program", held, "--model", self.s.model]
        self.mine = []

    def __enter__(self):
        self.s.__enter__()
        wait_for(lambda: self.s.status()["stages"] and self.s.pid(0), 10, "stage 0 is there")
        return self

    def __exit__(self, *why):
        for p in self.mine:
            p.terminate()
            p.wait()
        self.s.__exit__(*why)

    def start(self, *flags, model=None, stage=1, token=None, port=None):
        p = subprocess.Popen([os.path.join(BIN, "sluice-stage-fake"), "--coordinator", f"127.0.0.1:{port or self.s.grpc_port}", "--stage", str(stage),
                              "--token-file", token or self.token, "--link", "tcp", "--log", "info", "--model", model or self.s.model, *flags],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.s.env)
        self.mine.append(p)
        return p

    def assert_refused(self, *words, code, **how):
        """It ends with this code within 5 s, says all these words, and the coordinator too."""
        p = self.start(**how)
        said, _ = p.communicate(timeout=5 * SLACK)
        assert p.returncode == code, (p.returncode, said)
        for word in words:
            assert word in said, (word, said)
        refused = [line for line in self.s.log().splitlines() if "refused: " in line]
        assert refused and all(word in refused[-1] for word in words), (words, refused[-1:])
        return said

    def model(self, name, *flags):
        path = self.s.path(name)
        subprocess.run([sys.executable, os.path.join(LIB, "make_fake_model.py"), path, "--context", str(self.s.context), *flags], check=True)
        return path


EXIT_CONFIG, EXIT_MODEL = 2, 3


def said_instead(number, wire, value):
    """A field of HELLO has this value."""
    def change(stream, side, data):
        if kind_of(side, data) != "hello":
            return [data]
        (_, _, hello), = fields(data)
        return [pack([(1, 2, pack([f for f in fields(hello) if f[0] != number] + [(number, wire, value)]))])]
    return change


@case("full", seconds=60)
def fc_70_stages_that_do_not_match_are_refused_by_name_and_the_right_one_attaches():
    if not grpc:
        raise Skip("python has no grpc")
    with Stages() as b:
        s = b.s
        pids = [p for p, _ in s.processes()]
        b.assert_refused("its model has 9 layers", "the coordinator's 8", code=EXIT_MODEL, model=b.model("nine", "--layers", "9"))
        # The same shape with other weights: another quant, another training.
        said = b.assert_refused("another model file", code=EXIT_MODEL, model=b.model("other", "--seed", "2"))
        theirs, ours = re.search(r"hash ([0-9a-f]{8})[.]*, not ([0-9a-f]{8})", said).groups()
        assert theirs != ours
        b.assert_refused("stage 2", "there are 2 stages", code=EXIT_CONFIG, stage=2)
        b.assert_refused("served by pid", str(s.pid(0)), code=EXIT_CONFIG, stage=0)
        # Another build: its numerics and its protocol, as its HELLO would say.
        with Middleman(f"127.0.0.1:{s.grpc_port}") as m:
            m.change = said_instead(6, 2, b"other")
            b.assert_refused("numerics profile 'other'", "stage 0 has 'fake'", code=EXIT_CONFIG, port=m.port)
            m.change = said_instead(1, 0, 99)
            b.assert_refused("wire version 99", "the coordinator speaks", code=EXIT_CONFIG, port=m.port)
        wrong = s.file("wrong", "00000000000000000000000000000000\n")
        os.chmod(wrong, 0o600)
        stranger = b.start(token=wrong)
        said, _ = stranger.communicate(timeout=5 * SLACK)
        assert stranger.returncode == EXIT_CONFIG and "token" in said.lower(), (stranger.returncode, said)
        assert not s.ready() and s.get("/live")[0] == 200
        waiting = s.call(p := ids(20, 1), 10)
        right = b.start()
        s.wait_ready(5)
        waiting.finish_up(10).assert_reference(p, 10)
        # Another one that claims the same stage meets the first, and hurts nobody.
        running = s.call(p := ids(20, 2), 400)
        running.wait_tokens(2)
        b.assert_refused("served by pid", str(right.pid), code=EXIT_CONFIG)
        running.finish_up(30).assert_reference(p, 400)
        assert [p for p, _ in s.processes() if p in pids] == pids, "a process has restarted"
        s.assert_quiet()


# --- FC-72 -------------------------------------------------------------------------------------------------------------------------

TLS_HELLO = bytes.fromhex("16030100fa010000f60303")
STRANGER = """
import random, socket, sys, time
rng = random.Random(7)
words = [b"", rng.randbytes(1500), bytes.fromhex("%s") + rng.randbytes(240), b"GET / HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n",
         b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + rng.randbytes(200)]
held = []
for target in sys.argv[1:]:
    host, port = target.rsplit(":", 1)
    for word in words:
        for _ in range(4):
            c = socket.create_connection((host, int(port)), timeout=10)
            c.sendall(word)
            held.append(c)
print("held", len(held), flush=True)
time.sleep(1000)
""" % TLS_HELLO.hex()


def listeners(s):
    """HOST:PORT of every TCP port of the service that other nodes reach."""
    found = set()
    for node in range(s.stages):
        here = set(s.net.processes(node))
        for pid, command in s.processes():
            if pid in here and is_ours(command):
                mine = socket_inodes(pid)
                found |= {f"{address(node)}:{local.rpartition(':')[2]}" for state, local, _, inode in tcp_sockets(pid)
                          if state == LISTENS and inode in mine and not local.startswith("127.")}
    return found


def n_connections(s, peer):
    """How many connections to another host the nodes of the service still hold."""
    return sum(remote.startswith(peer + ":") and state in (ESTABLISHED, CLOSE_WAIT) for node in range(s.stages)
               for state, _, remote, _ in tcp_sockets(s.net.processes(node)[0]))


@case("full", seconds=90)
def fc_72_strangers_on_another_node_that_vanish_are_closed_and_disturb_nobody():
    """Every port of every node: nothing, random bytes, a TLS hello, HTTP/1.1 and half of HTTP/2. Then their node is cut off: no FIN, no
    RST, half-open connections that only the services' own limits end."""
    s = Cluster(spares=1, costs=TENTH)
    s.given += ["--http", f"0.0.0.0:{s.port}"]
    with s:
        ports = listeners(s)
        assert len(ports) >= 6, ports  # HTTP, gRPC, the launchers' control socket, three links
        streams = [(s.call(p := ids(6, i), 3000, key=f"s{i}"), p) for i in range(4)]
        for c, _ in streams:
            c.wait_tokens(2)
        before = sum(s.rss().values())
        stranger = subprocess.Popen(s.net.on(3, [sys.executable, "-c", STRANGER, *sorted(ports)]), stdout=subprocess.PIPE, text=True, env=s.env)
        said = stranger.stdout.readline()
        assert said == f"held {20 * len(ports)}\n", said
        s.net.tell("cut 3")
        began = time.monotonic()
        wait_for(lambda: n_connections(s, address(3)) == 0, 10, "all are closed")
        print(f"      {said.split()[1]} connections to {len(ports)} ports, the last was closed {time.monotonic() - began:.1f} s after the cut", flush=True)
        grown = sum(s.rss().values()) - before
        for c, p in streams:
            c.finish_up(60).assert_reference(p, 3000)
            assert c.max_gap() < 0.5 * SLACK, c.max_gap()
        if SLACK == 1:
            assert grown < 8192, f"{grown} KiB more"
        stranger.kill()
        stranger.wait()
        stranger.stdout.close()
        s.assert_quiet()


# --- FC-73 -------------------------------------------------------------------------------------------------------------------------

def text_of(n, seed):
    return random.Random(seed).randbytes(n // 2).hex()


def generate(port, n_text):
    """Inference.Generate with a text of so many bytes (a multiple of 5), by hand: field 3 is the text, 7 the most tokens. The status of the call."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_send_message_length", -1)]) as channel:
        stub = channel.unary_stream("/sluice.v1.Inference/Generate", request_serializer=lambda b: b, response_deserializer=lambda b: b)
        try:
            list(stub(b"\x1a" + varint(n_text) + b"word " * (n_text // 5) + b"\x38\x01", timeout=30 * SLACK))
        except grpc.RpcError as e:
            return e.code(), e.details()
    return grpc.StatusCode.OK, ""


def post_all(port, body):
    """What a client gets that sends its whole body, or as much as is taken, before it reads."""
    with socket.create_connection(("127.0.0.1", port), timeout=30 * SLACK) as c:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        try:
            c.sendall(head.encode() + body)
        except ConnectionError:
            pass
        answer = b""
        while b"too_large" not in answer and (more := c.recv(65536)):
            answer += more
        return answer


@case("full", seconds=120, gaps=True)
def fc_73_large_prompts_are_served_or_refused_with_both_counts():
    if not grpc:
        raise Skip("python has no grpc")
    with Service(stages=2, costs=(0, 0, 0)) as s:
        beside = s.call(p := ids(10, 1), 6000, key="beside")
        beside.wait_tokens(5)
        for size in (1 << 20, 5 << 20):
            for stream in (False, True):
                c = s.ask(text_of(size, size), 8, stream=stream, key="large")
                assert c.status == 400 and str(size) in c.error["message"] and str(s.context) in c.error["message"], c.describe()
        c = s.ask(q := ids(32000, 3), 8, key="ids")
        c.assert_reference(q, 8)
        fits = text_of(32000, 4)
        s.ask(fits, 8, key="text").assert_reference(fits, 8)
        # A cap of 64 MiB, over HTTP and over gRPC (whose own default is 4).
        answer = post_all(s.port, b'{"prompt": "' + b"a" * (65 << 20) + b'", "max_tokens": 1}')
        assert answer.startswith(b"HTTP/1.1 413") and b"request_too_large" in answer, answer[:200]
        code, details = generate(s.grpc_port, 65_000_000 + (5 << 20))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED, (code, details)
        code, details = generate(s.grpc_port, 20_000_000)
        assert code == grpc.StatusCode.INVALID_ARGUMENT and "20000000" in details and str(s.context) in details, (code, details)
        beside.finish_up(60).assert_reference(p, 6000)
        s.assert_quiet()


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
