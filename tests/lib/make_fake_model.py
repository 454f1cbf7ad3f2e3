#!/usr/bin/env python3
"""Writes a small GGUF that a coordinator and (fake) stages accept: architecture llama, random F32 weights, 259 tokens.

The vocabulary is byte-level BPE without merges, so that a text of n bytes has n tokens: ids 0..2 are <|endoftext|>,
<|im_start|> and <|im_end|> (control), id 3 + b is byte b. The chat template is SmolLM2's. The weights are small and
seeded: the model runs, and says nothing. --more adds tokens of several bytes, from id 259 on, which no prompt has but a script
may say. Standard library only.

usage: make_fake_model.py OUT.gguf [--layers 8] [--context 32768] [--embd 64] [--name fake] [--seed 1] [--more HEX,HEX,...]
"""
import argparse
import random
import struct
import sys
from array import array

U32, F32, BOOL, TEXT, ARRAY = 4, 6, 7, 8, 9
I32 = 5
NORMAL, CONTROL = 1, 3
ALIGNMENT = 32
N_HEADS, N_KV_HEADS = 4, 2
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_texts():
    """GPT-2's spelling of the 256 bytes: printable ones as themselves, the others from U+0100 on."""
    printable = set(range(33, 127)) | set(range(161, 173)) | set(range(174, 256))
    texts, n = [], 0
    for b in range(256):
        texts.append(chr(b) if b in printable else chr(256 + n))
        n += b not in printable
    return texts


def all_tokens(args):
    spelled = byte_texts()
    return SPECIAL + spelled + ["".join(spelled[b] for b in bytes.fromhex(more)) for more in args.more.split(",") if more]


def text(s):
    raw = s.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(kind, v):
    if kind == TEXT:
        return text(v)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[kind], v)


def key(name, kind, v):
    return text(name) + struct.pack("<I", kind) + value(kind, v)


def key_array(name, kind, values):
    return text(name) + struct.pack("<IIQ", ARRAY, kind, len(values)) + b"".join(value(kind, v) for v in values)


def metadata(args):
    tokens = all_tokens(args)
    types = [CONTROL] * len(SPECIAL) + [NORMAL] * (len(tokens) - len(SPECIAL))
    head_dim = args.embd // N_HEADS
    return [
        key("general.architecture", TEXT, "llama"),
        key("general.type", TEXT, "model"),
        key("general.name", TEXT, args.name),
        key("llama.block_count", U32, args.layers),
        key("llama.context_length", U32, args.context),
        key("llama.embedding_length", U32, args.embd),
        key("llama.feed_forward_length", U32, args.embd),
        key("llama.attention.head_count", U32, N_HEADS),
        key("llama.attention.head_count_kv", U32, N_KV_HEADS),
        key("llama.rope.dimension_count", U32, head_dim),
        key("llama.rope.freq_base", F32, 10000.0),
        key("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        key("llama.vocab_size", U32, len(tokens)),
        key("tokenizer.ggml.model", TEXT, "gpt2"),
        key("tokenizer.ggml.pre", TEXT, "smollm"),
        key_array("tokenizer.ggml.tokens", TEXT, tokens),
        key_array("tokenizer.ggml.token_type", I32, types),
        key_array("tokenizer.ggml.merges", TEXT, []),
        key("tokenizer.ggml.bos_token_id", U32, 1),
        key("tokenizer.ggml.eos_token_id", U32, 2),
        key("tokenizer.ggml.padding_token_id", U32, 2),
        key("tokenizer.ggml.add_bos_token", BOOL, False),
        key("tokenizer.ggml.add_space_prefix", BOOL, False),
        key("tokenizer.chat_template", TEXT, TEMPLATE),
    ]


def tensors(args):
    """(name, elements of a row, rows); 1 row: a norm. The head is tied."""
    n, kv = args.embd, args.embd // N_HEADS * N_KV_HEADS
    out = [("token_embd.weight", n, len(all_tokens(args))), ("output_norm.weight", n, 1)]
    for i in range(args.layers):
        out += [(f"blk.{i}.{name}.weight", k, rows) for name, k, rows in (
            ("attn_norm", n, 1), ("attn_q", n, n), ("attn_k", n, kv), ("attn_v", n, kv), ("attn_output", n, n),
            ("ffn_norm", n, 1), ("ffn_gate", n, n), ("ffn_up", n, n), ("ffn_down", n, n))]
    return out


def weights(rng, k, rows):
    if rows == 1:
        a = array("f", [1.0] * k)
    else:
        spread = 1.7 / k**0.5
        a = array("f", [rng.uniform(-spread, spread) for _ in range(k * rows)])
    if sys.byteorder == "big":
        a.byteswap()
    return a.tobytes()


def padded(raw):
    return raw + bytes(-len(raw) % ALIGNMENT)


def write(args):
    rng = random.Random(args.seed)
    table, data, offset = [], [], 0
    for name, k, rows in tensors(args):
        dims = (k,) if rows == 1 else (k, rows)
        table.append(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, 0, offset))
        data.append(padded(weights(rng, k, rows)))
        offset += len(data[-1])
    keys = metadata(args)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(table), len(keys)) + b"".join(keys) + b"".join(table)
    with open(args.out, "wb") as f:
        f.write(padded(head))
        f.write(b"".join(data))


def main(argv=None):
    ap = argparse.ArgumentParser(description="writes a small GGUF with random weights")
    ap.add_argument("out")
    ap.add_argument("--layers", type=int, default=8)
    ap.add_argument("--context", type=int, default=32768)
    ap.add_argument("--embd", type=int, default=64, help="a multiple of 8")
    ap.add_argument("--name", default="fake")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--more", default="", help="bytes of further tokens in hex")
    args = ap.parse_args(argv)
    if args.layers < 1 or args.context < 1 or args.embd < 8 or args.embd % (2 * N_HEADS):
        ap.error("layers and context from 1, embd a multiple of 8")
    write(args)


if __name__ == "__main__":
    main()
