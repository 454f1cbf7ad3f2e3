"""Failure cases, group 9, as a client sees them: text becomes the model's own tokens and comes back, and no text is slow (FC-58, FC-59,
FC-61). FC-60 is in test_fc_http.py, FC-62 beside the templates; tests/unit/text has these cases for every kind of vocabulary."""
import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import time

from gguf_maker import GgufFile
from runner import real_model
from service import BIN, SLACK, Service, case, ids, run

HERE = os.path.dirname(os.path.abspath(__file__))
VECTORS = os.path.join(HERE, "../vectors/tokenizer")
MEGABYTE = 1_000_000


class Kept:
    """A connection that is used again and again."""

    def __init__(self, s, timeout=30):
        self.connection = http.client.HTTPConnection("127.0.0.1", s.port, timeout=timeout * SLACK)

    def __enter__(self):
        return self

    def __exit__(self, *_why):
        self.connection.close()

    def post(self, path, **body):
        self.connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        r = self.connection.getresponse()
        return r.status, json.loads(r.read())

    def tokens(self, text, **how):
        status, a = self.post("/tokenize", content=text, **how)
        assert status == 200, (status, a, text[:80])
        return a["tokens"]

    def text(self, tokens):
        status, a = self.post("/detokenize", tokens=tokens)
        assert status == 200, (status, a)
        return a["content"]


def with_key(name, value, **how):
    f = GgufFile.llama(**how)
    f.keys = [(n, t, value if n == name else v) for n, t, v in f.keys]
    return f.bytes()


@case("full", seconds=60)
def fc_58_unknown_pre_tokenizers_and_vocabularies_refuse_the_load():
    hostile = {"llama-bpe-2": with_key("tokenizer.ggml.pre", "llama-bpe-2"), "bert": with_key("tokenizer.ggml.model", "bert"),
               "<0xZZ>": GgufFile.llama(kind="llama", tokens={13: "<0xZZ>"}).bytes()}
    with tempfile.TemporaryDirectory(prefix="sluice-text-") as folder:
        path = os.path.join(folder, "hostile.gguf")
        for value, data in hostile.items():
            with open(path, "wb") as f:
                f.write(data)
            p = subprocess.run([os.path.join(BIN, "sluice"), "model", path], capture_output=True, text=True, timeout=10 * SLACK)
            assert p.returncode == 3 and "tokenizer.ggml." in p.stderr and value in p.stderr, (value, p.returncode, p.stderr)
            assert value == "<0xZZ>" or "supported: " in p.stderr, p.stderr
            with Service(stages=1, model=path, mpi=False, wait=False) as s:
                s.wait_exit(3, 30)
                assert any(value in line and "tokenizer.ggml." in line for line in s.log().splitlines()), s.log()


def vectors(name):
    with open(os.path.join(VECTORS, name)) as f:
        return [json.loads(line) for line in f]


def known_bytes():
    """Which bytes SmolLM2's vocabulary can say: those that its vectors' pieces have, and all of printable ASCII."""
    seen = set(range(32, 127)) | {9, 10, 13}
    for row in vectors("smollm2.detok.jsonl"):
        for piece in row["pieces"]:
            seen |= set(bytes.fromhex(piece))
    return seen


def random_texts(n, sayable):
    rng = random.Random(59)
    blanks = [" ", "  ", "\t", "\r\n", "\n\n", " \t "]
    limits = [0x80, 0x3000, 0x20000, 0x110000]
    for _ in range(n):
        out = []
        for _ in range(rng.randrange(24)):
            c = rng.choice(blanks) if rng.random() < 0.15 else chr(rng.randrange(rng.choice(limits)))
            # No surrogates, not the mark U+10FFFD.
            if not (0xd800 <= ord(c[0]) < 0xe000 or c == "\U0010fffd") and set(c.encode()) <= sayable:
                out.append(c)
        yield "".join(out)


@case("full", seconds=180, real=True)
def fc_59_ids_are_the_references_and_texts_come_back():
    rows = vectors("smollm2.jsonl")
    texts = list(random_texts(10000, known_bytes()))
    edges = [" a", "  a", "a ", "a  ", "a  b", "\ta", "a\t", "a\r\nb", "\r\n", " ", "   ", ""]
    with Service(stages=1, model=real_model(), slots=1) as s, Kept(s) as k:
        for row in rows:
            got = k.tokens(row["text"], add_special=row["add_special"], parse_special=row["parse_special"])
            assert got == row["ids"], (row, got)
        # Ten to a request; what joins them is text like any other.
        for i in range(0, len(texts), 10):
            text = random.Random(i).choice(["", " ", "\n", "  x  "]).join(texts[i:i + 10])
            back = k.text(k.tokens(text, parse_special=False))
            assert back == text, (text, back)
        for text in edges:
            assert k.text(k.tokens(text)) == text, text
        s.assert_quiet()


def seconds_of(k, n):
    began = time.monotonic()
    tokens = k.tokens("a" * n, parse_special=False)
    assert tokens and len(tokens) <= n
    return time.monotonic() - began


@case("full", seconds=90, real=True)
def fc_61_a_megabyte_of_one_letter_is_tokens_in_time():
    with Service(stages=1, model=real_model(), slots=1) as s, Kept(s) as k:
        half, whole = (min(seconds_of(k, n) for _ in range(3)) for n in (MEGABYTE // 2, MEGABYTE))
        began = time.monotonic()
        status, a = k.post("/v1/chat/completions", messages=[{"role": "user", "content": "a" * MEGABYTE}], max_tokens=4)
        chat = time.monotonic() - began
        print(f"      0.5 MB {half:.2f} s, 1 MB {whole:.2f} s, as a chat {chat:.2f} s", flush=True)
        assert whole < 2 * SLACK and whole <= 2.5 * half + 0.05, (half, whole)
        assert status == 400 and a["error"]["code"] == "context_length_exceeded" and chat < 2 * SLACK, (status, a, chat)
        s.assert_quiet()


@case("full", seconds=60, gaps=True)
def fc_61_others_do_not_wait_for_it():
    """Streams of 4 ms a token beside clients who do nothing but send megabytes of one letter."""
    with Service(stages=2, slots=4) as s:
        streams = [(s.call(p := ids(20, i), 500), p) for i in range(3)]
        for c, _ in streams:
            c.wait_tokens(5)
        began, n = time.monotonic(), 0
        with Kept(s) as k:
            while any(c.is_alive() for c, _ in streams) and n < 6:
                assert len(k.tokens("a" * MEGABYTE, parse_special=False)) == MEGABYTE
                status, a = k.post("/v1/chat/completions", messages=[{"role": "user", "content": "a" * MEGABYTE}])
                assert status == 400 and a["error"]["code"] == "context_length_exceeded", (status, a)
                n += 1
        ended = time.monotonic()
        for c, p in streams:
            c.finish_up(60).assert_reference(p, 500)
        gap = max(c.max_gap(began, ended) for c, _ in streams)
        print(f"      {n} times in {ended - began:.1f} s, longest gap of others {gap * 1e3:.0f} ms", flush=True)
        assert n >= 1 and gap < 0.5 * SLACK, (n, gap)
        s.assert_quiet()


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
