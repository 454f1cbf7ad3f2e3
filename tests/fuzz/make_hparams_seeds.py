#!/usr/bin/env python3
"""Writes the seeds of the fuzz target hparams: each architecture as it is and with single edits. The numbers are those of
fuzz_hparams.c (architectures, keys, struct edit). usage: make_hparams_seeds.py corpus/hparams"""
import struct
import sys
from pathlib import Path

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3", "qwen3moe", "qwen3next", "gemma2")
WHOLE, FLOAT, BOOL, TEXT, LIST, DROP, SIDE, TENSOR = range(8)
WINDOW, PATTERN, SCALING_TYPE, SCALING_FACTOR, EXPERTS, NORM, SOFTCAP, FINAL_SOFTCAP = 11, 12, 22, 23, 25, 30, 14, 15
AS_IS = 1  # extra: the value itself
DIVISOR, NAME, FILE_NAME = 248, 249, 250


def seed(arch, bits, *edits):
    head = bytes([ARCHITECTURES.index(arch) + len(ARCHITECTURES) * bits])
    return head + b"".join(struct.pack("<BBIB", kind, what, value & 0xFFFFFFFF, extra) for kind, what, value, extra in edits)


def f32(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def five(raw):
    """The value and the extra of an edit that holds five bytes."""
    return int.from_bytes(raw[:4], "little"), raw[4]


def main(out):
    seeds = {a: seed(a, 2) for a in ARCHITECTURES}
    seeds |= {
        "llama-experts": seed("llama", 18),
        "llama-experts-q8_0": seed("llama", 22),
        "qwen2-tied-q8_0": seed("qwen2", 14),
        "gemma3-pattern": seed("gemma3", 2, (WHOLE, PATTERN, 2, 0)),
        "gemma3-list": seed("gemma3", 2, (LIST, PATTERN, 5, 3)),
        "gemma3-no-window": seed("gemma3", 2, (DROP, WINDOW, 0, 0)),
        "gemma3-softcaps": seed("gemma3", 2, (FLOAT, SOFTCAP, f32(50), AS_IS), (FLOAT, FINAL_SOFTCAP, f32(30), AS_IS)),
        "llama-linear": seed("llama", 2, (TEXT, SCALING_TYPE, 2, 0), (FLOAT, SCALING_FACTOR, f32(8), AS_IS)),
        "llama-yarn": seed("llama", 2, (TEXT, SCALING_TYPE, 3, 0)),
        "qwen3moe-one-expert": seed("qwen3moe", 2, (WHOLE, EXPERTS, 1, 0)),
        "qwen3moe-not-normalised": seed("qwen3moe", 2, (BOOL, NORM, 0, 0)),
        "qwen3-side": seed("qwen3", 2, (SIDE, 3, 7, 1)),
        "qwen3-f16": seed("qwen3", 2, (SIDE, 4, 1, 4)),
        "qwen3-missing": seed("qwen3", 2, (TENSOR, 5, 0, 0)),
        "qwen3-stranger": seed("qwen3", 2, (TENSOR, 5, 3, 1)),
    }
    seeds |= {
        "llama-divisors": seed("llama", 2, (DIVISOR, 3, f32(8), 0), (DIVISOR, 15, f32(1.5), 0)),
        "llama-divisor-negative": seed("llama", 2, (DIVISOR, 3, f32(-1), 0)),
        "llama-divisor-nan": seed("llama", 2, (DIVISOR, 0, 0x7FC00000, 0)),
        "llama-divisor-infinite": seed("llama", 2, (DIVISOR, 15, 0x7F800000, 0)),
        "llama-divisor-smallest": seed("llama", 2, (DIVISOR, 1, 1, 0)),
        "llama-divisors-of-another-head": seed("llama", 2, (DIVISOR, 0, f32(1), 1 + 2 * 31)),
        "gemma3-divisors": seed("gemma3", 2, (DIVISOR, 0, f32(2), 0)),
        "gemma3-numbers": seed("gemma3", 2, (LIST, PATTERN, 0b0110, 201)),
        "gemma3-number-below": seed("gemma3", 2, (LIST, PATTERN, 0b0000, 201)),
        "gemma3-other-heads": seed("gemma3", 2, (WHOLE, 255, 16, 0)),
        "llama-wide-heads": seed("llama", 2, *[(WHOLE, k, 65536, AS_IS) for k in (4, 6, 7)]),
        "name-utf8": seed("qwen2", 2, (NAME, 0, *five("a\u00e9\u20ac".encode()[:5]))),
        "name-four-bytes": seed("qwen2", 2, (NAME, 30, *five("\U0001f600x".encode()))),
        "name-cut-in-a-character": seed("qwen2", 2, (NAME, 30, *five("\u20ac\u00e9".encode()))),
        "name-broken": seed("qwen2", 2, (NAME, 2, *five(b"\xe0\x80\xc1\x1f\xf5"))),
        "name-surrogate": seed("qwen2", 2, (NAME, 1, *five(b"\xed\xa0\x80\x7f\n"))),
        "name-too-high": seed("qwen2", 2, (NAME, 0, *five(b"\xf4\x90\x80\x80\xf0"))),
        "file-name": seed("qwen2", 2, (DROP, 36, 0, 0), (FILE_NAME, 1, *five(b"a/\xffb."))),
        "file-name-empty": seed("qwen2", 2, (DROP, 36, 0, 0), (FILE_NAME, 0, *five(b"aaaa/"))),
    }
    for name, data in seeds.items():
        (out / name).write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
