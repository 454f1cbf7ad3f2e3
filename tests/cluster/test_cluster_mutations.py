"""FC-71, live: what a stage and its coordinator tell each other is changed on its way, 4 streams keep their text."""
import os
import random
import sys
import time

from bed import BIN  # first: it knows where the other modules are
from protobuf import fields, pack
from service import Service, case, ids, run, wait_for

try:
    from middleman import FROM, TO, Middleman, kind_of
except ImportError as e:
    print(f"skip: python has no grpc ({e})")
    sys.exit(77)

ANSWER = 300
RECOVERED_S = 25  # a stage that took up a wrong epoch answers nothing: three steps of 5 s, then it is replaced
STEADY = {"result", "timings", "heartbeat", "plan"}  # while streams run; the others come with an epoch, and hello, loaded, assign with a stream
EXTREMES = [0, 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]

# What nobody can tell from the truth, because it is one: a number that another process could rightly have said. These fields are left
# alone, or get values that cannot be: (kind, path of field numbers).
TRUTHS = {
    ("plan", (8, 6)), ("plan", (9, 6)), ("plan", (9, 5)),    # how an answer is drawn, which ids a prompt has, whether one is drawn
    ("result", (8, 3)), ("result", (8, 4)),                  # the id that was drawn; that its logits were bad
    ("hello", (2,)), ("hello", (6,)),                        # which stage it is, and by which numerics it computes
    ("loaded", (1,)),                                        # a larger pool than there is
    *((kind, (at, n)) for kind, at in (("hello", 13), ("links", 3)) for n in (1, 2, 3, 4)),  # where a stage takes its link
}


class Mutator:
    """Changes one message of a kind when it is armed; remembers others for replays."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.armed = None
        self.old = {}
        self.held = {}
        self.count = {}
        self.first = self.last = b""

    def arm(self, kind, how):
        self.armed = (kind, how)

    def __call__(self, stream, side, data):
        kind = kind_of(side, data)
        before = self.held.pop((stream, side), None)
        if before:  # the wrong order: it comes after this one
            return [data, before]
        if not self.armed or self.armed[0] != kind:
            if self.rng.random() < 0.2 or kind not in self.old:
                self.old[kind] = data
            return [data]
        how, self.armed = self.armed[1], None
        self.count[how] = self.count.get(how, 0) + 1
        if how == "order" and kind != "assign":  # nothing follows an ASSIGN: it would be lost, which a stream does not do
            self.held[stream, side] = data
            return []
        out = getattr(self, how, self.twice)(kind, data)
        self.first, self.last = data, b"".join(out)
        return out

    def replay(self, kind, data):
        return [data, self.old.get(kind, data)]

    def twice(self, kind, data):
        return [data, data]

    def cut(self, kind, data):
        return [data[:self.rng.randrange(len(data))]]

    def flip(self, kind, data):
        """Of the envelope: another kind, another length."""
        at = self.rng.randrange(min(3, len(data)))
        return [data[:at] + bytes([data[at] ^ 1 << self.rng.randrange(8)]) + data[at + 1:]]

    def field(self, kind, data):
        """One is gone, doubled, or extreme."""
        return [self.change(data, kind, ())]

    def change(self, data, kind, path):
        some = fields(data)
        allowed = [i for i, (number, _, _) in enumerate(some) if (kind, (path + (number,))[1:]) not in TRUTHS]
        if not allowed:
            return data
        i = self.rng.choice(allowed)
        number, wire, value = some[i]
        if wire == 2 and (not path or self.rng.random() < 0.7):
            try:
                if fields(value):
                    some[i] = (number, wire, self.change(value, kind, path + (number,)))
                    return pack(some)
            except ValueError:
                pass
        if not path:
            return data
        choice = self.rng.randrange(3)
        if choice == 0:
            del some[i]
        elif choice == 1:
            some.insert(i, some[i])
        elif wire == 2:
            some[i] = (number, wire, value[:self.rng.randrange(len(value) + 1)])
        else:
            some[i] = (number, wire, self.rng.choice([*EXTREMES, value + 1, value - 1]))
        return pack(some)


KINDS = [kind for kind in [*FROM.values(), *TO.values()] if kind not in ("failed", "exit")]  # nobody says those here
HOWS = ["field"] * 10 + ["cut", "flip", "replay", "twice", "order"]


class Streams:
    """Four streams at any time; each that ends is judged and followed by another one."""

    def __init__(self, s):
        self.s, self.seed, self.n_done = s, 0, 0
        self.running = [self.begin() for _ in range(4)]

    def begin(self):
        self.seed += 1
        p = ids(20, self.seed)
        return self.s.call(p, ANSWER, key=f"k{self.seed}"), p

    def look(self):
        for i, (c, p) in enumerate(self.running):
            if c.ended:
                c.finish_up(1).assert_reference(p, ANSWER)
                self.n_done += 1
                self.running[i] = self.begin()

    def finish(self):
        for c, p in self.running:
            c.finish_up(30).assert_reference(p, ANSWER)
            self.n_done += 1


def mutate(n, seed):
    s = Service(stages=2, costs=(1000, 50, 10), wait=False)
    through = s.file("through", f"""#!/bin/bash
exec {BIN}/sluice-stage-fake "$@" --coordinator 127.0.0.1:$SLUICE_TEST_MIDDLEMAN
""")
    os.chmod(through, 0o755)
    s.flags += ["--stage-program", through, "--restarts", "100000", "--restart-delay-ms", "10", "--stuck-ms", "2000", "--log", "info,launch=warn,gateway=warn"]
    rng = random.Random(seed)
    with Middleman(f"127.0.0.1:{s.grpc_port}") as m:
        s.env["SLUICE_TEST_MIDDLEMAN"] = str(m.port)
        with s:
            s.wait_ready(10)
            pids = {part: s.pid(part) for part in ("coordinator", "gateway")}
            mutator = m.change = Mutator(seed)
            streams = Streams(s)
            slowest = 0
            for i in range(n):
                kind, how = rng.choice(KINDS), rng.choice(HOWS)
                mutator.arm(kind, how)
                if kind not in STEADY:
                    m.cut()
                began = time.monotonic()
                wait_for(lambda: mutator.armed is None, RECOVERED_S, f"{kind} came by, mutation {i}")
                time.sleep(0.02)
                wait_for(s.ready, RECOVERED_S, f"ready after change {i}: {how} of {kind}, {mutator.last.hex()} instead of {mutator.first.hex()}")
                slowest = max(slowest, time.monotonic() - began)
                streams.look()
            streams.finish()
            metrics = s.metrics()
            print(f"      {n} changes ({mutator.count}), {streams.n_done} streams with their text, the slowest was over after {slowest:.1f} s; "
                  f"protocol errors {sum(v for k, v in metrics.items() if 'protocol_errors' in k):.0f}, "
                  f"stale {sum(v for k, v in metrics.items() if 'stale_messages' in k):.0f}, epoch {s.status()['epoch']}", flush=True)
            assert {part: s.pid(part) for part in pids} == pids, "the coordinator or the gateway has restarted"
            s.assert_quiet(restarts=sum(x["restarts"] for x in s.status()["stages"]))


@case("full", seconds=150)
def fc_71_messages_that_are_changed_on_their_way_hurt_no_stream():
    mutate(20, seed=1)


@case("nightly", seconds=900)
def fc_71_two_hundred_changes_with_other_seeds():
    for seed in (2, 3):
        mutate(200, seed)


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
