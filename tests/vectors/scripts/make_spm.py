"""Small SentencePiece vocabularies of every shape, encoded by the `sentencepiece` package.

    python make_spm.py ../tokenizer/spm-small.jsonl

One vocabulary a line: `tokens`, `kinds`, `scores`, `n_bytes`, `add_space_prefix`, and `cases` of `text` and `ids`. The tokens are <unk>, <s>,
</s>, then n_bytes (0 or 256) byte tokens that the file leaves out, then the rest. Random tokens over
a few characters, so that merges compete, with equal scores, unused tokens on the way to longer ones, user-defined tokens that
overlap, with and without byte tokens. Texts hold no U+2581 (see README.md). Needs sentencepiece (0.2.3).
"""
import json
import random
import sys

import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as pb

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE = "\u2581"
ALPHABET = ["a", "b", "c", "é", "你", "😀", SPACE]
OUTSIDE = ["z", "ß", "好", "\u0301", "\n"]


class Vocabulary:
    def __init__(self, rng, n_bytes, prefix, users, unused):
        self.tokens, self.kinds, self.scores = ["<unk>", "<s>", "</s>"], [UNKNOWN, CONTROL, CONTROL], [0.0, 0.0, 0.0]
        self.add_space_prefix = prefix
        for b in range(n_bytes):
            self.add(f"<0x{b:02X}>", BYTE, 0.0)
        known = rng.sample(ALPHABET, rng.randint(4, len(ALPHABET)))  # the others are characters without a token of their own
        for c in known:
            self.add(c, NORMAL, -100.0)
        for _ in range(rng.randint(10, 60)):
            text = "".join(rng.choice(ALPHABET) for _ in range(rng.choice([2, 2, 2, 3, 3, 4, 5, 8])))
            kind = UNUSED if unused and rng.random() < 0.25 else NORMAL
            self.add(text, kind, float(-rng.randint(0, 20)))
        for _ in range(rng.randint(1, 5) if users else 0):
            self.add("".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, 4))) + rng.choice(["", "]"]), USER, 0.0)
        self.n_bytes = n_bytes

    def add(self, token, kind, score):
        if token not in self.tokens:
            self.tokens.append(token)
            self.kinds.append(kind)
            self.scores.append(score)

    def processor(self):
        kind = pb.ModelProto.SentencePiece
        kinds = {NORMAL: kind.NORMAL, UNKNOWN: kind.UNKNOWN, CONTROL: kind.CONTROL, USER: kind.USER_DEFINED, UNUSED: kind.UNUSED, BYTE: kind.BYTE}
        m = pb.ModelProto()
        t, n = m.trainer_spec, m.normalizer_spec
        t.model_type, t.byte_fallback, t.vocab_size = t.BPE, self.n_bytes == 256, len(self.tokens)
        t.unk_id, t.bos_id, t.eos_id, t.pad_id = 0, 1, 2, -1
        t.unk_piece, t.bos_piece, t.eos_piece = self.tokens[:3]
        n.name, n.add_dummy_prefix, n.remove_extra_whitespaces, n.escape_whitespaces = "identity", self.add_space_prefix, False, True
        for token, k, score in zip(self.tokens, self.kinds, self.scores):
            m.pieces.add(piece=token, score=score, type=kinds[k])
        p = spm.SentencePieceProcessor()
        p.LoadFromSerializedProto(m.SerializeToString())
        return p


def texts(rng, n):
    """U+2581 comes as the space that it stands for."""
    for _ in range(n):
        chars = ALPHABET if rng.random() < 0.6 else ALPHABET + OUTSIDE
        yield "".join(rng.choice(chars) for _ in range(rng.choice([1, 2, 4, 8, 16, 40]))).replace(SPACE, " ")


def main():
    rng = random.Random(11)
    n_cases = 0
    shapes = [(n_bytes, prefix, users, unused) for n_bytes in (256, 0) for prefix, users in ((False, False), (True, False), (False, True))
              for unused in (False, True)]
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        for shape in shapes * 3:
            v = Vocabulary(rng, *shape)
            p = v.processor()
            cases = [dict(text=t, ids=p.encode(t)) for t in ["", " ", *texts(rng, 60)]]
            n_cases += len(cases)
            rest = slice(3 + v.n_bytes, None)
            f.write(json.dumps(dict(tokens=v.tokens[rest], kinds=v.kinds[rest], scores=v.scores[rest], n_bytes=v.n_bytes,
                                    add_space_prefix=v.add_space_prefix, cases=cases), separators=(",", ":")) + "\n")
    print(f"{3 * len(shapes)} vocabularies, {n_cases} cases")


if __name__ == "__main__":
    main()
