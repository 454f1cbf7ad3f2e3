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


def seed(arch, bits, *edits):
    head = bytes([ARCHITECTURES.index(arch) + len(ARCHITECTURES) * bits])
    return head + b"".join(struct.pack("<BBIB", kind, what, value & 0xFFFFFFFF, extra) for kind, what, value, extra in edits)


def f32(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


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
    for name, data in seeds.items():
        (out / name).write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
