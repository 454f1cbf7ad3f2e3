#!/usr/bin/env python3
"""Writes the seeds of the fuzz target gguf: small right and wrong files. usage: make_gguf_seeds.py corpus/gguf"""
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lib"))
from make_fake_model import ARRAY, BOOL, F32, I32, TEXT, U32, key, key_array, text  # noqa: E402

F16_TYPE, Q8_0_TYPE = 1, 8


def tensor(name, dims, kind, offset):
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def gguf(keys, tensors=(), data=b"", version=3, n_keys=None, n_tensors=None, alignment=32):
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors) if n_tensors is None else n_tensors,
                                 len(keys) if n_keys is None else n_keys)
    head += b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) * bool(data) + data


def every_value():
    return [
        text("k") + struct.pack("<IB", 0, 200), text("k1") + struct.pack("<Ib", 1, -3),
        text("k2") + struct.pack("<IH", 2, 60000), text("k3") + struct.pack("<Ih", 3, -3),
        key("k4", U32, 7), key("k5", I32, -7), key("k6", F32, 0.5), key("k7", BOOL, True), key("general.name", TEXT, "a"),
        text("k10") + struct.pack("<IQ", 10, 2**63), text("k11") + struct.pack("<Iq", 11, -1),
        text("k12") + struct.pack("<Id", 12, 1.5), key_array("tokenizer.ggml.tokens", TEXT, ["a", "", "bc"]),
        key_array("tokenizer.ggml.scores", F32, [1.0, -1.0]), key_array("tokenizer.ggml.token_type", I32, [1, -3]),
    ]


def llama(n_layers=2, kind=0, tied=False, rope=False, extra=()):
    """n_embd 32, 2 heads of 16, one KV head, n_ff 32, four tokens."""
    keys = [
        key("general.architecture", TEXT, "llama"), key("llama.block_count", U32, n_layers),
        key("llama.context_length", U32, 64), key("llama.embedding_length", U32, 32),
        key("llama.feed_forward_length", U32, 32), key("llama.attention.head_count", U32, 2),
        key("llama.attention.head_count_kv", U32, 1), key("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        key_array("tokenizer.ggml.tokens", TEXT, ["a", "b", "c", "d"]), *extra,
    ]
    shapes = [("token_embd.weight", (32, 4)), ("output_norm.weight", (32,))]
    if not tied:
        shapes.append(("output.weight", (32, 4)))
    for i in range(n_layers):
        shapes += [(f"blk.{i}.{n}.weight", d) for n, d in (
            ("attn_norm", (32,)), ("attn_q", (32, 32)), ("attn_k", (32, 16)), ("attn_v", (32, 16)),
            ("attn_output", (32, 32)), ("ffn_norm", (32,)), ("ffn_gate", (32, 32)), ("ffn_up", (32, 32)),
            ("ffn_down", (32, 32)))]
    if rope:
        shapes.append(("rope_freqs.weight", (8,)))
    table, data = [], b""
    for name, dims in shapes:
        n = dims[0] * (dims[1] if len(dims) == 2 else 1)
        t = kind if len(dims) == 2 else 0
        table.append(tensor(name, dims, t, len(data)))
        raw = struct.pack("<f", 1.0) * n if len(dims) == 1 else bytes({0: 4 * n, 1: 2 * n, 8: n // 32 * 34}[t])
        data += raw + bytes(-len(raw) % 32)
    return keys, table, data


def seeds():
    q8 = lambda **more: llama(kind=Q8_0_TYPE, **more)
    keys, table, data = q8(n_layers=1, tied=True)
    yield "empty-v2", gguf([], version=2)
    yield "every-value", gguf(every_value())
    yield "alignment-64", gguf([key("general.alignment", U32, 64)], [tensor("x", (4,), 0, 0)], bytes(64), alignment=64)
    yield "four-dimensions", gguf([], [tensor("x", (32, 2, 3, 4), Q8_0_TYPE, 0)], bytes(24 * 34))
    yield "llama-q8_0", gguf(keys, table, data)
    yield "llama-f16-rope", gguf(*llama(n_layers=1, kind=F16_TYPE, rope=True))
    yield "llama-q8_0-four-layers", gguf(*q8(n_layers=4))
    yield "qwen3next", gguf([key("general.architecture", TEXT, "qwen3next")] + keys[1:], table, data)
    yield "experts", gguf(keys + [key("llama.expert_count", U32, 4)], table, data)
    yield "stranger", gguf(keys, table + [tensor("blk.0.attn_q.bias", (8,), 0, len(data))], data + bytes(32))
    strange = lambda name: gguf(keys, table + [tensor(name, (8,), 0, len(data))], data + bytes(32))
    yield "stranger-with-zero", strange("blk.0.attn_q.weight\0x")
    yield "stranger-with-long-name", strange("blk.0." + "x" * 58)
    yield "name-not-utf8", gguf(keys + [text("general.name") + struct.pack("<IQ", 8, 6) + b"\xe2\x82\xac\xff\x01z"], table, data)
    yield "name-long", gguf(keys + [key("general.name", TEXT, "\u20ac" * 40)], table, data)
    yield "duplicate-key", gguf(keys + keys[1:2], table, data)
    yield "duplicate-tensor", gguf(keys, table + table[:1], data)
    yield "overlap", gguf([], [tensor("x", (16,), 0, 0), tensor("y", (16,), 0, 32)], bytes(96))
    yield "misaligned", gguf([], [tensor("x", (4,), 0, 8)], bytes(64))
    yield "behind-the-end", gguf([], [tensor("x", (16,), 0, 0)], bytes(63))
    yield "alignment-0", gguf([key("general.alignment", U32, 0)])
    yield "nested-array", gguf([text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1)])
    yield "many-keys", gguf([], n_keys=2**63)
    yield "many-tensors", gguf([], n_tensors=2**32)
    yield "n-dims-9", gguf([], [text("x") + struct.pack("<I9QIQ", 9, *[1] * 9, 0, 0)])
    yield "overflow", gguf([], [tensor("x", (2**32, 2**32), 0, 0)], bytes(32))
    yield "big-endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0)


def write(named):
    """Each of (name, bytes) into the folder that the command line names."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in named:
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    write(seeds())
