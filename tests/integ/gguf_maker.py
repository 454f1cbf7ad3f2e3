"""Small GGUF files, right and wrong: keys and tensors as they are given, and where each of their fields lies.

    f = GgufFile.llama()
    data = f.bytes()                        # a model that loads
    f.patched("n_kv", 2 ** 63)              # the same with one field changed
    f.patched("blk.0.attn_q.weight.offset", 0)

Fields: version, n_tensors, n_kv; of a tensor NAME.name_len, NAME.n_dims, NAME.ne0 .., NAME.type, NAME.offset; of a key KEY.name_len,
KEY.type, KEY.value (a number, the length of a text), KEY.n (of an array). Standard library only.
"""
import os
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "../lib"))
import make_fake_model as fake  # noqa: E402

U32, I32, F32, BOOL, TEXT, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
TYPE_F32 = 0


class GgufFile:
    """keys: [(name, type, value)], a value of ARRAY is (element type, [values]); tensors: [(name, [ne], type, data)]"""

    def __init__(self, keys, tensors, alignment=32):
        self.keys, self.tensors, self.alignment = list(keys), list(tensors), alignment
        self.fields = {}  # name: (place, bytes)

    @classmethod
    def llama(cls, kind="gpt2", embd=32, tokens=None, template=None, **more):
        """One layer, the 256 bytes and three control tokens. more: keys with _ for the dots that are not in front of a name."""
        texts = fake.SPECIAL + (fake.byte_texts() if kind == "gpt2" else [f"<0x{b:02X}>" for b in range(256)])
        kinds = [3] * 3 + [1 if kind == "gpt2" else 6] * 256
        for at, text in (tokens or {}).items():
            texts[at] = text
        keys = [
            ("general.architecture", TEXT, "llama"), ("llama.block_count", U32, 1), ("llama.context_length", U32, 256),
            ("llama.embedding_length", U32, embd), ("llama.feed_forward_length", U32, embd),
            ("llama.attention.head_count", U32, 2), ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
            ("tokenizer.ggml.model", TEXT, kind), ("tokenizer.ggml.pre", TEXT, "smollm" if kind == "gpt2" else "default"),
            ("tokenizer.ggml.tokens", ARRAY, (TEXT, texts)), ("tokenizer.ggml.token_type", ARRAY, (I32, kinds)),
            ("tokenizer.ggml.eos_token_id", U32, 2), ("tokenizer.ggml.bos_token_id", U32, 1),
            ("tokenizer.ggml.merges", ARRAY, (TEXT, [])) if kind == "gpt2" else
            ("tokenizer.ggml.scores", ARRAY, (F32, [0.0] * len(texts))),
            *([("tokenizer.chat_template", TEXT, template)] if template is not None else []),
            *((name.replace("__", "."), TEXT, v) for name, v in more.items()),
        ]
        shapes = [("token_embd.weight", [embd, len(texts)]), ("output_norm.weight", [embd])]
        shapes += [(f"blk.0.{n}.weight", [embd] if n.endswith("norm") else [embd, embd]) for n in (
            "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")]
        return cls(keys, [(n, ne, TYPE_F32, struct.pack("<f", 0.01) * (ne[0] * (ne[1] if len(ne) > 1 else 1))) for n, ne in shapes])

    # --- writing ---

    def _put(self, name, form, value):
        self.fields[name] = (len(self.out), struct.calcsize(form))
        self.out += struct.pack(form, value)

    def _text(self, name, text):
        raw = text if isinstance(text, bytes) else text.encode()
        self._put(name, "<Q", len(raw))
        self.out += raw

    def _value(self, name, kind, value):
        if kind == TEXT:
            self._text(name + ".value", value)
        elif kind == ARRAY:
            element, values = value
            self._put(name + ".element", "<I", element)
            self._put(name + ".n", "<Q", len(values))
            for i, v in enumerate(values):
                self._value(f"{name}[{i}]", element, v)
        else:
            self._put(name + ".value", {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q"}[kind], value)

    def bytes(self):
        self.out, offset = bytearray(b"GGUF"), 0
        self.fields = {}
        self._put("version", "<I", 3)
        self._put("n_tensors", "<Q", len(self.tensors))
        self._put("n_kv", "<Q", len(self.keys))
        for name, kind, value in self.keys:
            self._text(name + ".name_len", name)
            self._put(name + ".type", "<I", kind)
            self._value(name, kind, value)
        for name, ne, kind, data in self.tensors:
            self._text(name + ".name_len", name)
            self._put(name + ".n_dims", "<I", len(ne))
            for i, n in enumerate(ne):
                self._put(f"{name}.ne{i}", "<Q", n)
            self._put(name + ".type", "<I", kind)
            self._put(name + ".offset", "<Q", offset)
            offset += -(-len(data) // self.alignment) * self.alignment
        self.table_end = len(self.out)
        for _name, _ne, _kind, data in self.tensors:
            self.out += b"\0" * (-len(self.out) % self.alignment) + data
        return bytes(self.out)

    def field(self, name):
        """Its value in the file as it is right."""
        data = self.bytes()
        at, n = self.fields[name]
        return int.from_bytes(data[at:at + n], "little")

    def patched(self, name, value):
        data = bytearray(self.bytes())
        at, n = self.fields[name]
        data[at:at + n] = (value & (1 << 8 * n) - 1).to_bytes(n, "little")
        return bytes(data)
