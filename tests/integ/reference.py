"""What a service on fake stages must say: the hash chain of tests/lib/fake_compute.c, by the program sluice-fake-reference
(plain arrays, milliseconds for 30,000 ids) and written down a second time here (`reference_slow`)."""
import os
import struct
import subprocess
import threading
from functools import lru_cache

BIN = os.environ.get("SLUICE_BIN", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../build/bin"))
FIRST_BYTE = 3  # id of byte 0 in the fake model
VOCABULARY = 259
N_LAYERS = 8
LETTERS = b"abcdefghijklmnopqrstuvwxyz "
MASK = (1 << 64) - 1


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


def rand_at(seed, position):
    return mix(mix(seed & MASK) ^ mix((position + 0x632BE59BD9B4E019) & MASK))


@lru_cache(maxsize=256)
def some_ids(n, seed):
    head = mix(seed & MASK)
    return tuple(mix(head ^ mix((i + 0x632BE59BD9B4E019) & MASK)) % 256 + FIRST_BYTE for i in range(n))


def ids(n, seed):
    """A prompt of n ids that no other seed has."""
    return list(some_ids(n, seed))


def as_ids(prompt):
    """A prompt given as text has one id a byte."""
    return [FIRST_BYTE + b for b in prompt.encode()] if isinstance(prompt, str) else list(prompt)


def reference_slow(prompt, n, seed=None, layers=N_LAYERS):
    """As reference(), at 25 us a position."""
    all_ids = as_ids(prompt)
    before = [mix(0x5157E1CE00 + layer) for layer in range(layers)]
    out = bytearray()
    for p in range(len(all_ids) + n - 1):
        h = all_ids[p]
        for layer in range(layers):
            h = before[layer] = mix(before[layer] ^ rand_at(h + layer, p))
        if p + 1 >= len(all_ids):
            if seed is not None:
                h = mix(h ^ rand_at(seed, p + 1))
            letter = LETTERS[h % len(LETTERS)]
            out.append(letter)
            all_ids.append(FIRST_BYTE + letter)
    return out.decode()


class Oracle:
    """The program, started at the first question; it ends when this process does."""

    def __init__(self):
        self.lock = threading.Lock()
        self.program = None

    def ask(self, prompt, n, seed, layers):
        sampled, seed = seed is not None, (seed or 0) & MASK
        question = struct.pack(f"<6I{len(prompt)}I", layers, sampled, seed & 0xFFFFFFFF, seed >> 32, len(prompt), n, *prompt)
        with self.lock:
            if not self.program:
                self.program = subprocess.Popen([os.path.join(BIN, "sluice-fake-reference")], stdin=subprocess.PIPE,
                                                stdout=subprocess.PIPE)
            self.program.stdin.write(question)
            self.program.stdin.flush()
            answer = self.program.stdout.read(4 * n)
        assert len(answer) == 4 * n, "sluice-fake-reference ended"
        return bytes(i - FIRST_BYTE for i in struct.unpack(f"<{n}i", answer)).decode()


oracle = Oracle()


def reference(prompt, n, seed=None, layers=N_LAYERS):
    """Text of n tokens after a prompt (ids, or text of one id a byte); seed: of a sampled answer. A byte a token."""
    return oracle.ask(as_ids(prompt), n, seed, layers) if n else ""
