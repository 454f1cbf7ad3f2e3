#!/usr/bin/env python3
"""Writes the seeds of the fuzz target model_report: one byte of options, then a file. usage: make_model_report_seeds.py corpus/model_report"""
from make_gguf_seeds import F32, I32, TEXT, U32, Q8_0_TYPE, gguf, key, key_array, llama, seeds as gguf_seeds, text, write
import struct

LIKE_GGUF = ("llama-q8_0", "name-not-utf8", "stranger-with-zero", "overflow", "experts")


def whole(n_layers=2, extra=(), **more):
    """A model that is served: four tokens and weights."""
    vocabulary = [
        key("tokenizer.ggml.model", TEXT, "llama"), key_array("tokenizer.ggml.token_type", I32, [2, 3, 3, 1]),
        key_array("tokenizer.ggml.scores", F32, [0.0, 0.0, 0.0, -1.0]), *extra,
    ]
    keys, table, data = llama(n_layers=n_layers, kind=Q8_0_TYPE, extra=vocabulary, **more)
    return gguf(keys, table, data)


def seeds():
    for name, data in gguf_seeds():
        if name in LIKE_GGUF:
            yield name, b"\0" + data
    yield "whole", b"\0" + whole()
    yield "two-stages", b"\x35" + whole(n_layers=4, tied=True)
    yield "more-stages-than-layers", b"\x03" + whole(n_layers=1)
    yield "short-context", b"\x0d" + whole(extra=[key("general.name", TEXT, "\u20ac x")])
    yield "long-context", b"\x04" + whole().replace(key("llama.context_length", U32, 64), key("llama.context_length", U32, 2**31 - 1))
    yield "name-not-utf8-whole", b"\0" + whole(extra=[text("general.name") + struct.pack("<IQ", 8, 6) + b"\xe2\x82\xac\xff\x1bz"])
    yield "pre-steers", b"\0" + whole(extra=[key("tokenizer.ggml.pre", TEXT, "\x1b[2J")])


if __name__ == "__main__":
    write(seeds())
