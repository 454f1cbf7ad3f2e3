#!/usr/bin/env python3
"""Writes the seeds of the fuzz target vocabulary: small GGUFs with a vocabulary alone. usage: make_vocabulary_seeds.py corpus/vocabulary"""
from make_gguf_seeds import gguf, write
from make_fake_model import BOOL, F32, I32, TEXT, U32, key, key_array

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE = "\u2581"


def vocabulary(model, tokens, kinds, scores=None, merges=None, pre=None, **more):
    keys = [key("tokenizer.ggml.model", TEXT, model), key_array("tokenizer.ggml.tokens", TEXT, tokens), key_array("tokenizer.ggml.token_type", I32, kinds)]
    if scores is not None:
        keys.append(key_array("tokenizer.ggml.scores", F32, scores))
    if merges is not None:
        keys.append(key_array("tokenizer.ggml.merges", TEXT, merges))
    if pre is not None:
        keys.append(key("tokenizer.ggml.pre", TEXT, pre))
    keys += [key(f"tokenizer.ggml.{name}", BOOL if isinstance(v, bool) else U32, v) for name, v in more.items()]
    return gguf(keys)


def spm(extra, kinds, n_bytes=0, **more):
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(n_bytes)] + extra
    all_kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * n_bytes + kinds
    return vocabulary("llama", tokens, all_kinds, scores=[float(-i) for i in range(len(tokens))], **more)


def bpe(pre, extra, kinds, merges, **more):
    letters = [chr(c) for c in range(33, 127)] + ["\u0120", "\u010a"]
    return vocabulary("gpt2", letters + extra, [NORMAL] * len(letters) + kinds, merges=merges, pre=pre, **more)


def seeds():
    words = [SPACE, SPACE + "t", "he", SPACE + "the", "a", "aa", "t", "h", "e"]
    yield "spm", spm(words, [NORMAL] * 9)
    yield "spm-bytes", spm(words[:4], [NORMAL] * 4, n_bytes=256, add_space_prefix=False, unknown_token_id=0)
    yield "spm-kinds", spm(["a", "ab", "b", "  ", "<u>", "ab", SPACE], [NORMAL, UNUSED, NORMAL, USER, USER, NORMAL, NORMAL], add_bos_token=False, add_eos_token=True)
    yield "spm-bad-byte", spm(["<0x-1>", "<0xZZ>"], [BYTE, BYTE])
    yield "bpe", bpe("gpt-2", ["th", "the"], [NORMAL] * 2, ["t h", "th e"])
    yield "bpe-control", bpe("qwen2", ["<|im_end|>", "<t>", "\u0120t"], [CONTROL, USER, NORMAL], ["\u0120 t"], eos_token_id=96, bos_token_id=96)
    yield "bpe-whole", bpe("llama-bpe", ["token", "12", "to"], [NORMAL] * 3, ["t o"], bos_token_id=96, add_bos_token=True)
    yield "bpe-no-pre", bpe(None, ["aa", "aa"], [NORMAL] * 2, ["a a", "a", ""])
    yield "bpe-unknown", bpe("gpt-5", [], [], [])
    yield "bpe-bytes", bpe("tekken", ["<0x41>", "<0x0a>"], [BYTE] * 2, [])
    yield "spm-scores-missing", vocabulary("llama", ["<unk>", "a"], [UNKNOWN, NORMAL], scores=[0.0])
    yield "spm-score-nan", vocabulary("llama", ["<unk>", "a"], [UNKNOWN, NORMAL], scores=[0.0, float("nan")])
    yield "spm-long-token", spm(["a" * 1025], [NORMAL])
    yield "spm-longest-token", spm(["a" * 1024, "aa"], [NORMAL] * 2)
    yield "spm-says-nothing", spm([], [])
    yield "bpe-long-special", bpe("gpt-2", ["<" * 1025], [CONTROL], [])
    yield "bpe-longest-special", bpe("gpt-2", ["<" * 1024, "<<"], [CONTROL, USER], [])
    yield "bpe-no-bytes", vocabulary("gpt2", ["ab"], [NORMAL], merges=[], pre="gpt-2")
    yield "bpe-no-merges", vocabulary("gpt2", ["a"], [NORMAL], pre="gpt-2")
    yield "bpe-pre-is-a-number", vocabulary("gpt2", ["a"], [NORMAL], merges=[], prx=1).replace(b"prx", b"pre")
    yield "no-tokens", vocabulary("gpt2", [], [], merges=[])
    yield "kinds-missing", vocabulary("gpt2", ["a", "b"], [NORMAL], merges=[])
    yield "kind-7", vocabulary("gpt2", ["a"], [7], merges=[])
    yield "bpe-ends", bpe("qwen2", ["<|im_end|>", "</s>", "x"], [CONTROL, USER, NORMAL], [], eot_token_id=98, eom_token_id=0)
    yield "eot-outside", bpe("qwen2", [], [], [], eot_token_id=96)
    yield "bos-outside", bpe("gpt-2", [], [], [], bos_token_id=2**31)
    yield "bert", vocabulary("bert", ["a"], [NORMAL])


if __name__ == "__main__":
    write(seeds())
