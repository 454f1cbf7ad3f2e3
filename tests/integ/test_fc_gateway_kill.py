"""kill -9 of the gateway while answers are under way: a pause for whoever is connected, to the byte (docs/adr/0011)."""
import http.client
import json
import os
import signal
import socket
import sys
import threading
import time

from faults import launcher_of, parts, send
from service import SLACK, Service, case, ids, reference, run, wait_for

try:
    import openai
except ImportError:
    openai = None

QUICK = ["--restart-delay-ms", "20"]  # it doubles with each kill; the pauses are to be the gateway's
PAUSE_S = 2


def gateway(s):
    return parts(s).get("gateway")


def n_descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def kill_gateway(s):
    """Returns its launcher."""
    pid = gateway(s)
    launcher = launcher_of(pid)
    s.ended.add("gateway")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: gateway(s) != pid, 5, "it is dead")
    return launcher


def kill_and_wait(s):
    before = gateway(s)
    launcher = kill_gateway(s)
    wait_for(lambda: gateway(s) not in (None, before) and s.ready(), 10, "another gateway serves")
    return launcher


def wait_dropped(launcher, n):
    """The launcher holds what it held before there was any answer."""
    wait_for(lambda: n_descriptors(launcher) <= n, 2, f"{n} descriptors of the launcher")


class Raw(threading.Thread):
    """One request whose answer is read slowly, and byte by byte as it came."""

    def __init__(self, port, body, per_read=2048, wait_s=0.0, rcvbuf=4096, headers=""):
        super().__init__(daemon=True)
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        self.sock.settimeout(60 * SLACK)
        self.sock.connect(("127.0.0.1", port))
        text = json.dumps(body)
        self.sock.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {len(text)}\r\n\r\n{text}".encode())
        self.per_read, self.wait_s, self.got, self.broken = per_read, wait_s, b"", None
        self.start()

    def run(self):
        try:
            while not self.is_whole():
                data = self.sock.recv(self.per_read)
                if not data:
                    self.broken = "closed"
                    return
                self.got += data
                time.sleep(self.wait_s)
        except OSError as e:
            self.broken = repr(e)

    def is_whole(self):
        head, _, rest = self.got.partition(b"\r\n\r\n")
        if b"chunked" in head:
            return rest.endswith(b"\r\n0\r\n\r\n")
        length = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        return bool(length) and len(rest) >= int(length[0].split(b":")[1])

    def body(self, seconds):
        """Without the framing, which must be whole."""
        self.join(seconds * SLACK)
        assert self.is_whole() and not self.broken, (self.broken, len(self.got), self.got[-80:])
        head, _, rest = self.got.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and b"\r\n\r\nHTTP/1.1" not in rest
        if b"chunked" not in head:
            return rest.decode()
        out = b""
        while True:
            size, _, rest = rest.partition(b"\r\n")
            n = int(size, 16)
            assert rest[n:n + 2] == b"\r\n", (size, rest[n:n + 20])
            out, rest = out + rest[:n], rest[n + 2:]
            if not n:
                assert not rest
                return out.decode()


def events_of(text):
    found = [e.removeprefix("data: ") for e in text.split("\n\n") if e.startswith("data: ")]
    assert found[-1] == "[DONE]" and found.count("[DONE]") == 1
    return [json.loads(e) for e in found[:-1]]


def text_of(events):
    return "".join(e["choices"][0]["text"] for e in events if e["choices"])


@case("full", seconds=60)
def fc_gateway_killed_five_times_is_a_pause_for_ten_answers():
    with Service(slots=10, flags=QUICK) as s:
        n = 500
        launcher = launcher_of(gateway(s))
        s.ask([9], 4)
        held = n_descriptors(launcher)
        prompts = [ids(40, 700 + i) for i in range(10)]
        streams = [s.call(p, n, usage=True) for p in prompts[:7]] + [s.call(prompts[7], n, temperature=1, seed=5)]
        whole = [s.call(p, n, stream=False) for p in prompts[8:]]
        for c in streams:
            c.wait_tokens(3)
        for _ in range(5):
            kill_and_wait(s)
            time.sleep(0.3)
        for c, p in zip(streams[:7] + whole, prompts[:7] + prompts[8:]):
            c.finish_up(30).assert_reference(p, n)
            assert c.usage()["completion_tokens"] == n and c.usage()["prompt_tokens"] == 40
        streams[7].finish_up(30).assert_reference(prompts[7], n, seed=5)
        worst = max(c.max_gap() for c in streams)
        print(f"longest pause {worst:.3f} s")
        assert worst <= PAUSE_S * SLACK
        wait_dropped(launcher, held)
        s.assert_quiet()


@case("full", seconds=60)
def fc_gateway_killed_amid_large_frames_to_slow_readers():
    """The kernel has taken part of a chunk, or of a whole answer: the rest follows to the byte."""
    with Service(slots=6, flags=QUICK + ["--write-stall-ms", "30000"], context=65536, costs=(400, 10, 2)) as s:
        prompt, n = ids(12000, 5), 40
        want = reference(prompt, n)
        body = s.body(prompt, n, return_token_ids=True)
        readers = [Raw(s.port, body, 512, 0.004 + 0.001 * i) for i in range(3)]
        readers += [Raw(s.port, {**body, "stream": False}, 512, 0.004 + 0.001 * i) for i in range(2)]
        wait_for(lambda: all(len(r.got) > 1000 for r in readers[:3]), 20, "the streams have begun")
        for _ in range(5):
            kill_and_wait(s)
            time.sleep(0.15)
        for r in readers[:3]:
            events = events_of(r.body(40))
            assert text_of(events) == want
            assert events[0]["choices"][0]["prompt_token_ids"] == prompt
            assert sum(len(e["choices"][0].get("token_ids", [])) for e in events) == n
        for r in readers[3:]:
            a = json.loads(r.body(40))
            assert a["choices"][0]["text"] == want and len(a["choices"][0]["token_ids"]) == n
            assert a["choices"][0]["prompt_token_ids"] == prompt
        s.assert_quiet()


@case("full", seconds=60)
def fc_gateway_killed_under_the_official_client_is_a_pause():
    with Service(slots=6, flags=QUICK) as s:
        n = 300
        prompts = [ids(30, 40 + i) for i in range(3)]
        if openai:
            client = openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="k", max_retries=0, timeout=60 * SLACK)
            client.completions.create(model="", prompt="warm", max_tokens=2)  # a connection that idles in the pool
            streams = [client.completions.create(model="", prompt=p, max_tokens=n, stream=True, temperature=0) for p in prompts]
            texts = [""] * 3
            for i, stream in enumerate(streams):
                texts[i] += next(iter(stream)).choices[0].text
            for _ in range(2):
                kill_and_wait(s)
            for i, stream in enumerate(streams):
                texts[i] += "".join(c.choices[0].text for c in stream if c.choices)
            assert texts == [reference(p, n) for p in prompts]
            # The connections of the pool, idle ones and those of the streams, are the new gateway's.
            for p in prompts:
                assert client.completions.create(model="", prompt=p, max_tokens=9, temperature=0).choices[0].text == reference(p, 9)
        else:
            print("without the openai package: only the pool of http.client")
        pool = http.client.HTTPConnection("127.0.0.1", s.port, timeout=30 * SLACK)
        pool.request("POST", "/v1/completions", json.dumps(s.body(prompts[0], 200, stream=False)), {"Content-Type": "application/json"})
        time.sleep(0.2)
        kill_and_wait(s)
        answer = pool.getresponse()
        own = pool.sock.getsockname()
        assert json.loads(answer.read())["choices"][0]["text"] == reference(prompts[0], 200)
        for kill in (False, True):  # an adopted connection stays usable, and so does one that is idle while the gateway dies
            if kill:
                kill_gateway(s)
            pool.request("POST", "/v1/completions", json.dumps(s.body(prompts[1], 20, stream=False)), {"Content-Type": "application/json"})
            assert json.loads(pool.getresponse().read())["choices"][0]["text"] == reference(prompts[1], 20)
            assert pool.sock.getsockname() == own
        pool.close()
        last = Raw(s.port, s.body(prompts[2], 100), headers="Connection: close\r\n")
        wait_for(lambda: len(last.got) > 300, 5, "it has begun")
        kill_and_wait(s)
        assert text_of(events_of(last.body(20))) == reference(prompts[2], 100)
        assert last.sock.recv(1) == b"", "whoever wanted the connection closed finds it closed"
        s.assert_quiet()


@case("full", seconds=60)
def fc_gateway_absent_clients_leave_wait_and_come():
    with Service(slots=4, flags=["--restart-delay-ms", "1200"]) as s:
        n = 400
        launcher = launcher_of(gateway(s))
        s.ask([9], 4)
        held = n_descriptors(launcher)
        prompts = [ids(30, 80 + i) for i in range(7)]
        stays, leaves, resets = [s.call(p, n) for p in prompts[:3]]
        whole_leaves = s.call(prompts[3], n, stream=False)
        queued = s.call(prompts[4], 20)
        for c in (stays, leaves, resets):
            c.wait_tokens(3)
        s.wait_requests(queued=1)
        kill_gateway(s)
        late = s.call(prompts[5], 20)  # waits in the backlog of the socket that the launcher holds
        leaves.leave()
        resets.reset()
        whole_leaves.leave()
        wait_for(s.ready, 10, "another gateway serves")
        s.wait_requests(queued=0, decoding=1)
        for c, p, m in ((stays, prompts[0], n), (queued, prompts[4], 20), (late, prompts[5], 20)):
            c.finish_up(30).assert_reference(p, m)
        wait_dropped(launcher, held)
        s.assert_quiet()


@case("full", seconds=120)
def fc_gateway_killed_at_any_moment_of_short_answers():
    """Answers that begin, run and end while gateways die: each client that was served at all has exactly its answer; whose connection ended
    before its request was read whole asks again. SIGUSR1 ends a gateway as it stands, like SIGKILL."""
    with Service(slots=8, flags=["--restart-delay-ms", "0", "--restarts", "1000"], costs=(400, 10, 2)) as s:
        launcher = launcher_of(gateway(s))
        s.ask([9], 4)
        held = n_descriptors(launcher)
        stop, problems, counts = threading.Event(), [], []

        def client(number):
            done = reset = i = 0
            while not stop.is_set():
                i += 1
                prompt, n = ids(12, 1000 * number + i), 1 + (7 * i + number) % 60
                c = s.call(prompt, n, stream=i % 3 != 0)
                c.finish_up(30)
                if c.status is None:
                    reset += 1
                    continue
                try:
                    c.assert_reference(prompt, n)
                    done += 1
                except AssertionError as e:
                    problems.append(str(e))
            counts.append((done, reset))

        threads = [threading.Thread(target=client, args=(k,)) for k in range(8)]
        for t in threads:
            t.start()
        kills, last = 0, None
        for _ in range(7):
            for life in (0.06, 0.14, 0.27, 1.1):  # after a second it counts as one that ran, and the launcher's patience is as before
                wait_for(lambda: gateway(s) not in (None, last), 10, "a gateway")
                last = gateway(s)
                time.sleep(life)
                kills += send(last, signal.SIGKILL if kills % 2 else signal.SIGUSR1)
        s.ended.add("gateway")
        stop.set()
        for t in threads:
            t.join(40 * SLACK)
        wait_for(s.ready, 10, "a gateway serves")
        done, reset = (sum(x) for x in zip(*counts))
        print(f"{kills} kills, {done} answers, {reset} connections that ended before an answer, {len(problems)} wrong")
        assert not problems, problems[:3]
        assert done >= 100 and kills == 28 and reset <= kills
        wait_dropped(launcher, held)
        s.assert_quiet()


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
