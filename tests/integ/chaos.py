"""A service under a seeded schedule of faults, with eight clients that must notice nothing but pauses.

usage: chaos.py [--events 40] [--seed 1] [--model FILE] [--stages 3] [--kinds A,B,...]

Faults: kill -9 of a stage, the coordinator, the gateway, the child that renders templates; SIGSTOP and SIGCONT of a stage, the
coordinator, the gateway; the connections between two stages or a stage and the coordinator ended, or cut in silence and healed
(faults.py). One in six comes while the service still recovers from the one before. Clients: raw readers of SSE, answers without a
stream, and the official openai client (where it is installed); greedy and seeded draws, stop strings, chats. Every answer must be its
reference to the byte and have one end and the right usage; sums of status hold; at the end nothing is left over: no process, no
descriptor, no thread. Without --model the stages are fake; with it the references are the same requests, alone on one stage before.
Prints how long streams paused, by the kind of fault.
"""
import argparse
import random
import signal
import sys
import time

import faults
from beside import Clients
from client import SLACK, Call
from reference import as_ids, reference
from service import COSTS, Service, ids, wait_for

try:
    import openai
except ImportError:
    openai = None

HOW = ("raw", "raw", "raw", "whole", "openai", "openai", "chat", "raw")  # what kind of client each is
N_STREAMS = len(HOW)
OLD_S = 10.5            # a process that has lived so long is started again at once
CALM_S = 30             # every stream goes on within this time; three times that on a real model, which computes
DOUBLE = 1 / 6          # how often the next fault does not wait for that
MAX_PAUSE_S = {"kill stage": 1.5, "kill coordinator": 2.0}  # on fake stages


class Record:
    """When the tokens of one request came."""

    def __init__(self):
        self.times, self.call = [], None

    def when(self):
        return self.call.times() if self.call else list(self.times)


# --- clients -----------------------------------------------------------------------------------------------------------------------

class Job:
    """A request and its answer."""

    def __init__(self, prompt, n, text, finish="length", n_tokens=None, **fields):
        self.prompt, self.n, self.text, self.finish, self.fields = prompt, n, text, finish, fields
        self.n_tokens = n if n_tokens is None else n_tokens

    def check(self, name, text, finish, usage):
        assert text == self.text, f"{name}: {len(text)} characters, want {len(self.text)}; {first_difference(text, self.text)}"
        assert finish == self.finish, f"{name}: finish_reason {finish!r}, want {self.finish!r}"
        if usage is not None:
            n_in, n_out = usage
            assert n_in == len(as_ids(self.prompt)) and (n_out == self.n_tokens or self.finish == "stop"), f"{name}: usage {usage}"


def first_difference(a, b):
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return f"they differ at {at}: {a[at:at + 20]!r} for {b[at:at + 20]!r}"


def fake_job(rng):
    prompt = ids(1 + int(2 ** (rng.random() * 8)), rng.getrandbits(48))
    n, kind = rng.randrange(60, 300), rng.random()
    if kind < 0.3:
        seed = rng.getrandbits(40)
        return Job(prompt, n, reference(prompt, n, seed), temperature=1, seed=seed)
    text = reference(prompt, n)
    if kind < 0.5:
        at = rng.randrange(n // 2, n - 4)
        stop = text[at:at + rng.randrange(2, 4)]
        return Job(prompt, n, text[:text.index(stop)], "stop", stop=stop)
    return Job(prompt, n, text)


class Streams(Clients):
    """Eight clients, each with one request after the other."""

    def __init__(self, s, seed, make_job):
        super().__init__(N_STREAMS, patience=120)
        self.s, self.seed, self.make_job, self.model = s, seed, make_job, s.status()["model"]["id"]
        self.records = [[] for _ in range(N_STREAMS)]  # by client, in order
        self.n_done = 0

    def begin(self, number):
        return random.Random(self.seed * 100 + number)

    def once(self, number, rng):
        record = Record()
        self.records[number].append(record)
        how = HOW[number]
        if how in ("openai", "chat") and not openai:
            how = "raw"
        if how == "chat" and self.s.fake:
            self.chat(rng, record)
        else:
            job = self.make_job(rng)
            {"raw": self.raw, "whole": self.whole, "openai": self.official, "chat": self.official}[how](number, job, record)
        with self.lock:
            self.n_done += 1

    def raw(self, number, job, record, stream=True):
        c = Call(self.s.port, "/v1/completions", self.s.body(job.prompt, job.n, stream, usage=True, **job.fields), key=f"client-{number}")
        record.call = c
        c.run()
        name = f"client {number}"
        assert c.status == 200 and not c.error and not c.broken and c.n_ends() == 1 and (c.done or not stream), f"{name}: {c.describe()}"
        u = c.usage()
        job.check(name, c.text, c.finish, (u["prompt_tokens"], u["completion_tokens"]))

    def whole(self, number, job, record):
        self.raw(number, job, record, stream=False)

    def client(self):
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.s.port}/v1", api_key="official", max_retries=0, timeout=300)

    @staticmethod
    def fields_of(job):
        """What the client takes as arguments, and what goes in beside them."""
        known = {k: v for k, v in job.fields.items() if k in ("temperature", "seed", "stop")}
        return {"temperature": 0, **known, "extra_body": {k: v for k, v in job.fields.items() if k not in known}}

    def official(self, number, job, record):
        text, finish, usage = "", None, None
        with self.client() as client:
            for chunk in client.completions.create(model=self.model, prompt=job.prompt, max_tokens=job.n, stream=True,
                                                   stream_options={"include_usage": True}, **self.fields_of(job)):
                for choice in chunk.choices:
                    record.times.append(time.monotonic())
                    text += choice.text or ""
                    assert not (finish and choice.finish_reason), "a second finish_reason"
                    finish = finish or choice.finish_reason
                if chunk.usage:
                    usage = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
        job.check(f"official client {number}", text, finish, usage)

    def chat(self, rng, record):
        n, text, finish, prompt = rng.randrange(60, 300), "", None, None
        with self.client() as client:
            messages = [{"role": "user", "content": f"say {rng.getrandbits(40)}"}]
            for chunk in client.chat.completions.create(model=self.model, messages=messages, max_tokens=n, stream=True, temperature=0,
                                                        extra_body={"return_token_ids": True}):
                prompt = prompt or (chunk.model_extra or {}).get("prompt_token_ids")
                for choice in chunk.choices:
                    record.times.append(time.monotonic())
                    text += choice.delta.content or ""
                    finish = finish or choice.finish_reason
        Job(prompt, n, reference(prompt, n)).check("official chat", text, finish, None)

    # --- for the thread that breaks things ---

    def pauses_at(self, began, ended):
        """Of each stream that had tokens before and after."""
        found = [faults.pause_in(record.when(), began, ended) for records in self.records for record in records[-4:]]
        return [pause for pause in found if pause is not None]

    def all_have_gone_on(self, since):
        """Every client has had a token, or has begun anew, since then."""
        if self.problem:
            raise AssertionError(f"a client: {self.problem!r}") from self.problem
        for number, records in enumerate(self.records):
            if HOW[number] == "whole":
                continue  # it hears nothing before the end
            call = records[-1].call
            begun = call and call.started and call.started > since
            if not begun and not any(t > since for record in records[-2:] for t in record.when()[-1:]):
                return False
        return True


# --- faults ------------------------------------------------------------------------------------------------------------------------

class Chaos:
    WEIGHTS = {"kill stage": 6, "kill coordinator": 3, "kill gateway": 2, "kill template": 1, "stop stage": 4, "stop coordinator": 2,
               "stop gateway": 2, "end link": 3, "cut link": 4, "end attach": 1, "cut attach": 2}

    def __init__(self, s, streams, seed, kinds=None, say=print):
        self.s, self.streams, self.say = s, streams, say
        self.rng = random.Random(seed)
        self.weights = {k: w for k, w in self.WEIGHTS.items() if not kinds or k in kinds}
        self.born = {}      # part: when it was last killed, as far as known
        self.pauses = {}    # kind: [(seconds, of which the fault itself lasted)]
        self.told = []      # every fault, in words
        self.kinds = {}     # how many of each
        self.calm_s = CALM_S if s.fake else 3 * CALM_S

    def is_old(self, part):
        return time.monotonic() - self.born.get(part, -OLD_S) >= OLD_S

    def choose(self):
        """(kind, parts): one that can happen now. Who was killed is left alone until its launcher has forgotten it."""
        stages = range(self.s.stages)
        for _ in range(100):
            kind = self.rng.choices(list(self.weights), self.weights.values())[0]
            what = kind.split()[1]
            if what in ("link", "attach"):
                a = self.rng.choice(stages)
                pair = (a, (a + 1) % self.s.stages) if what == "link" else (a, "coordinator")
                if pair[0] != pair[1]:
                    return kind, pair
            else:
                part = self.rng.choice(stages) if what == "stage" else what
                if self.is_old(part):
                    return kind, (part,)
        return None, ()

    def length(self):
        return 0.05 + 2.7 * self.rng.random() ** 3

    def strike(self, kind, pair):
        """(when it began, how long it lasted) or None: it could not be done, a part was just away."""
        pids = [faults.parts(self.s).get(part) for part in pair]
        length = self.length()
        if None in pids:
            return None
        how = kind.split()[0]
        began = time.monotonic()
        if how == "kill":
            self.born[pair[0]] = began
            return (began, 0) if faults.send(pids[0], signal.SIGKILL) else None
        if how == "stop":
            if length > 1.5:  # its launcher may have ended it
                self.born[pair[0]] = began + length
            with faults.stopped(*pids):
                time.sleep(length)
        elif how == "end":
            return (began, 0) if faults.slam(*pids) else None
        else:
            with faults.Cut(*pids) as cut:
                if not cut.n:
                    return None
                time.sleep(length)
        return began, time.monotonic() - began

    def event(self):
        """One fault; 0 when none could be done now."""
        kind, pair = self.choose()
        time.sleep(self.rng.random() * 0.4)
        is_second = not self.streams.all_have_gone_on(self.ended)
        struck = self.strike(kind, pair) if kind else None
        if not struck:
            return 0
        began, lasted = struck
        self.ended = began + lasted
        line = f"{kind} {pair}" + f" for {lasted:.2f} s" * (lasted > 0) + ", beside the one before" * is_second
        self.told.append(line)
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if self.rng.random() >= DOUBLE:
            self.wait_calm(began, lasted, "second fault" if is_second else kind, line)
        return 1

    def wait_calm(self, began, lasted, kind, line):
        try:
            wait_for(lambda: self.streams.all_have_gone_on(self.ended), self.calm_s, f"all streams go on after {line}")
        except AssertionError:
            for i, records in enumerate(self.streams.records):
                call = records[-1].call
                self.say(f"      client {i}: {call.describe() if call else records[-1].times[-1:]}")
            self.say(f"      {self.s.status()}")
            raise
        time.sleep(max(0, self.ended + faults.NOTICED_S + 0.1 - time.monotonic()))  # a fault is not felt at once
        found = self.streams.pauses_at(began, began + lasted)
        self.pauses.setdefault(kind, []).extend((pause, lasted) for pause in found)

    def run(self, n):
        self.ended = time.monotonic() - 10
        done = 0
        while done < n:
            done += self.event()
        wait_for(lambda: self.streams.all_have_gone_on(self.ended), self.calm_s, "all streams go on at the end")
        wait_for(self.s.ready, self.calm_s, "ready at the end")
        self.s.assert_sums()

    def report(self):
        self.say(f"      {'':18} {'pauses':>6} {'p50':>6} {'p90':>6} {'max':>6}    beyond its own time: p50, p90, max")
        for kind in sorted(k for k, found in self.pauses.items() if found):
            pauses, beyond = [p for p, _ in self.pauses[kind]], [max(0.0, p - d) for p, d in self.pauses[kind]]
            at = [len(pauses) // 2, len(pauses) * 9 // 10, len(pauses) - 1]
            p, b = ([sorted(x)[i] for i in at] for x in (pauses, beyond))
            self.say(f"      {kind:18} {len(pauses):6} {p[0]:6.2f} {p[1]:6.2f} {p[2]:6.2f}    {b[0]:17.2f} {b[1]:6.2f} {b[2]:6.2f}")

    def worst(self, kind):
        return max((p for p, _ in self.pauses.get(kind, [])), default=0)


# --- the whole ---------------------------------------------------------------------------------------------------------------------

def belongings(s):
    """What each part has: {part: (descriptors, threads)}, and how many processes there are, the child that renders templates aside: it
    is started when it is needed."""
    found = {part: (x["fds"], x.get("threads", 1)) for part, x in faults.belongings(s).items()}
    return found, len(s.processes()) - ("template" in faults.parts(s))


def assert_nothing_leaked(before, s):
    def problem():
        now, n = belongings(s)
        grown = {part: (old, now[part]) for part, old in before[0].items() if now[part][0] > old[0] + 3 or now[part][1] > old[1] + 2}
        return grown or (n > before[1] and (before[1], s.processes()))
    until = time.monotonic() + 5 * SLACK
    while (found := problem()) and time.monotonic() < until:
        time.sleep(0.2)
    assert not found, f"more than at the start: {found}"


def real_jobs(model, seed, n_jobs=12, n=60):
    """Requests of ordinary words; their texts, alone on one stage without a cache."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(260, 40000) for _ in range(rng.choice((5, 20, 60, 150, 300)))] for _ in range(n_jobs)]
    jobs = []
    with Service(stages=1, slots=1, model=model, mpi=False, flags=["--kv-block", "16", "--threads", "2"]) as s:
        for p in prompts:
            c = s.call(p, n, ignore_eos=True, cache_prompt=False).finish_up(60)
            assert c.status == 200 and c.finish == "length", c.describe()
            jobs.append(Job(p, n, c.text, ignore_eos=True))
    return jobs


def chaos(n_events, seed, model=None, stages=3, kinds=None, say=lambda text: print(text, flush=True)):
    """Runs it all; what is wrong is an AssertionError."""
    flags = ["--restarts", "1000000", "--link", "tcp", "--kv-block", "16"]
    if model:
        jobs = real_jobs(model, seed)
        flags += ["--threads", "1", "--context", "2048"]
        bed = {"model": model}
    else:
        bed = {"costs": COSTS}
    with Service(stages=stages, slots=N_STREAMS, flags=flags, **bed) as s:
        s.chat("hello", max_tokens=2).finish_up(20)  # the child that renders is there
        before = belongings(s)
        began = time.monotonic()
        streams = Streams(s, seed, (lambda rng: rng.choice(jobs)) if model else fake_job)
        c = Chaos(s, streams, seed, kinds, say)
        try:
            with streams:
                wait_for(lambda: sum(bool(r) for r in streams.records) == N_STREAMS, 10, "all have begun")
                time.sleep(0.5)
                c.run(n_events)
        except BaseException:
            say(f"      seed {seed}:\n" + "\n".join(f"        {line}" for line in c.told[-12:]))
            if streams.problem:
                say(f"      a client: {streams.problem}")
            raise
        finally:
            c.report()
        say(f"      {n_events} events in {time.monotonic() - began:.0f} s, seed {seed}: {c.kinds}")
        say(f"      {streams.n_done} answers, all as they must be")
        s.pids = {}  # coordinator and gateway may be others now
        s.assert_quiet(restarts=sum(x["restarts"] for x in s.status()["stages"]))
        assert_nothing_leaked(before, s)
        if not model:
            for kind, most in MAX_PAUSE_S.items():
                assert c.worst(kind) <= most * SLACK, f"{kind}: a stream paused {c.worst(kind):.2f} s"


def main():
    ap = argparse.ArgumentParser(description="a service under a seeded schedule of faults")
    ap.add_argument("--events", type=int, default=40)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--model")
    ap.add_argument("--stages", type=int, default=3)
    ap.add_argument("--kinds", help="comma separated: " + ", ".join(Chaos.WEIGHTS))
    args = ap.parse_args()
    kinds = args.kinds.split(",") if args.kinds else None
    unknown = set(kinds or ()) - Chaos.WEIGHTS.keys()
    if unknown:
        ap.error(f"no such kinds: {', '.join(sorted(unknown))}")
    chaos(args.events, args.seed, args.model, args.stages, kinds)


if __name__ == "__main__":
    sys.exit(main())
