"""Group 8: hostile model files, each to `sluice model` as a user would, and one to a service; all are made here (gguf_maker.py).

Each is refused with exit code 3 and a line that names the field and the byte, in under a second and without 16 MiB more than a sound
file takes. And a start that finds too little memory.
"""
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from gguf_maker import ARRAY, TEXT, TYPE_F32, U32, U64, GgufFile
from service import BIN, SLACK, Service, case, run

SLUICE = os.path.join(BIN, "sluice")
EXTREMES = (0, 1, 2 ** 31, 2 ** 63, 2 ** 64 - 1)
MIB = 1024
PLACE = re.compile(r"at byte \d+|tensor '?[\w.]+")


class Answer:
    def __init__(self, path):
        started = time.monotonic()
        with tempfile.TemporaryFile() as err:
            p = subprocess.Popen([SLUICE, "model", path], stdout=subprocess.DEVNULL, stderr=err)
            _, status, usage = os.wait4(p.pid, 0)
            p.returncode = os.waitstatus_to_exitcode(status)
            err.seek(0)
            self.said = err.read().decode(errors="replace")
        self.seconds, self.rss_kib, self.code = time.monotonic() - started, usage.ru_maxrss, p.returncode


class Bed:
    """Files in a folder, looked at two at a time."""

    def __enter__(self):
        self.dir = tempfile.TemporaryDirectory(prefix="sluice-gguf-")
        self.n = 0
        right = self.ask(GgufFile.llama().bytes())
        assert right.code == 0, right.said
        self.base_kib = right.rss_kib
        return self

    def __exit__(self, *_why):
        self.dir.cleanup()

    def path(self, data):
        self.n += 1
        path = os.path.join(self.dir.name, f"{self.n}.gguf")
        with open(path, "wb") as f:
            f.write(data)
        return path

    def ask(self, data):
        return Answer(self.path(data))

    def refused(self, files):
        """files: {name: bytes}; gives the answers by name"""
        paths = {name: self.path(data) for name, data in files.items()}
        with ThreadPoolExecutor(2) as pool:
            answers = dict(zip(paths, pool.map(Answer, paths.values())))
        for name, a in answers.items():
            assert a.code == 3 and a.said.startswith("sluice: refused: "), f"{name}: exit {a.code}: {a.said}"
            assert PLACE.search(a.said), f"{name}: no place in '{a.said}'"
            assert a.seconds < 1 * SLACK, f"{name}: {a.seconds:.2f} s"
            assert SLACK > 1 or a.rss_kib < self.base_kib + 16 * MIB, f"{name}: {a.rss_kib} KiB, a sound file {self.base_kib}"
        return answers


def wrong_values(file, field):
    """The file with this field at every extreme that is not its own value, and at its own with the highest bit."""
    own, width = file.field(field), 8 * file.fields[field][1]
    values = {v & (1 << width) - 1 for v in (*EXTREMES, own | 1 << (width - 1))} - {own}
    return {f"{field} = {v} (is {own})": file.patched(field, v) for v in sorted(values)}


@case("full", seconds=120)
def fc_53_counts_dimensions_types_and_offsets_at_their_extremes():
    file = GgufFile.llama()
    file.bytes()
    q, norm = "blk.0.attn_q.weight", "output_norm.weight"
    fields = ["version", "n_tensors", "n_kv", f"{q}.name_len", f"{q}.n_dims", f"{q}.ne0", f"{q}.ne1", f"{q}.type", f"{q}.offset",
              f"{norm}.n_dims", f"{norm}.ne0", f"{norm}.type", f"{norm}.offset", "general.architecture.name_len",
              "general.architecture.type", "general.architecture.value", "tokenizer.ggml.tokens.element", "tokenizer.ggml.tokens.n",
              "tokenizer.ggml.tokens[7].value", "tokenizer.ggml.token_type.n", "llama.block_count.type"]
    with Bed() as bed:
        for field in fields:
            files = wrong_values(file, field)
            assert len(files) >= 3, field
            bed.refused(files)


@case("full", seconds=60)
def fc_53_sizes_of_the_model_at_their_extremes():
    file = GgufFile.llama()
    file.bytes()
    with Bed() as bed:
        for key in ("block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count"):
            name = f"llama.{key}"
            for what, data in wrong_values(file, name + ".value").items():
                a = bed.ask(data)
                # A context of one, or one head, is a small model and not a lie.
                agrees = a.code == 0 and what.split(" = ")[1].startswith("1 ")
                assert agrees or (a.code == 3 and ("llama." in a.said or "tensor" in a.said or "head" in a.said)), \
                    f"{what}: {a.code}: {a.said}"
                assert a.seconds < 1 * SLACK and (SLACK > 1 or a.rss_kib < bed.base_kib + 16 * MIB), (what, a.seconds, a.rss_kib)


@case("full", seconds=60)
def fc_54_alignments_and_small_files_that_ask_for_much():
    def aligned(value, kind=U32):
        f = GgufFile.llama()
        f.keys.append(("general.alignment", kind, value))
        return f.bytes()

    def asks(n_tensors, n_kv, rest=b""):
        return struct.pack("<4sIQQ", b"GGUF", 3, n_tensors, n_kv) + rest

    many_texts = struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", ARRAY, TEXT, 2 ** 40) + b"\0" * 100
    long_text = struct.pack("<Q", 1) + b"a" + struct.pack("<IQ", TEXT, 8 << 30) + b"\0" * 100
    deep = struct.pack("<Q", 1) + b"a" + struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * 100
    with Bed() as bed:
        answers = bed.refused({
            **{f"alignment {v}": aligned(v) for v in (0, 1, 3, 24, 33, 2 ** 31, 2 ** 32 - 1)},
            "2^40 tensors": asks(2 ** 40, 0), "2^40 keys": asks(0, 2 ** 40), "65535 tensors": asks(65535, 0, b"\0" * 136),
            "an array of 2^40 texts": asks(0, 1, many_texts), "a text of 8 GiB": asks(0, 1, long_text), "arrays of arrays": asks(0, 1, deep),
            "alignment 2^63": aligned(2 ** 63, U64), "alignment 32 as a text": aligned("32", TEXT),
        })
        for name in ("alignment 0", "alignment 3", f"alignment {2 ** 31}"):
            assert "alignment" in answers[name].said, answers[name].said


@case("full", seconds=120)
def fc_55_every_kind_of_prefix():
    """Each byte of the smallest model is cut at in tests/unit/model; here every field's edges, and a step through the data."""
    file = GgufFile.llama(embd=32)
    data = file.bytes()
    edges = {0, 1, 3, 4, 8, len(data) - 1, len(data) - 2, file.table_end, file.table_end - 1}
    names = [n for n in file.fields if not n.startswith("tokenizer.ggml.to") or "[" not in n]
    for name in names[:]:
        at, n = file.fields[name]
        edges |= {at, at + n - 1}
    edges |= set(range(file.table_end, len(data), 1 + (len(data) - file.table_end) // 12))
    step = max(1, len(edges) // 140)
    cuts = sorted(edges)[::step] + [len(data) - 1]
    with Bed() as bed:
        answers = bed.refused({n: data[:n] for n in cuts if n >= 4})
        assert len(answers) > 80
        for n in (0, 1, 3):
            a = bed.ask(data[:n])
            assert a.code == 3 and "magic" in a.said and "byte 0" in a.said, (n, a.said)


@case("full", seconds=60)
def fc_56_offsets_past_the_end_overlaps_and_misalignment():
    file = GgufFile.llama()
    whole = file.bytes()
    last, q, k = "blk.0.ffn_down.weight.offset", "blk.0.attn_q.weight.offset", "blk.0.attn_k.weight.offset"
    end = file.field(last)
    at_q = file.field(q)
    with Bed() as bed:
        answers = bed.refused({
            "one byte is missing": whole[:-1],
            "one alignment too far": file.patched(last, end + 32),
            "past the end": file.patched(last, 1 << 40),
            "past all": file.patched(last, 2 ** 64 - 32),
            "wraps around": file.patched(last, 2 ** 64 - 4096 + 32),
            "two at one place": file.patched(k, at_q),
            "half over another": file.patched(k, at_q + 32),
            "misaligned": file.patched(k, file.field(k) + 4),
            "misaligned by one": file.patched(k, file.field(k) + 1),
            "a gap": file.patched(last, end - 32),
            "bytes behind the end": whole + b"\0" * 4096,
        })
        assert "inside tensor" in answers["two at one place"].said, answers["two at one place"].said
        assert "multiple" in answers["misaligned"].said or "align" in answers["misaligned"].said, answers["misaligned"].said


@case("full", seconds=60)
def fc_57_byte_tokens_dimensions_and_duplicates():
    bytes_of = {text: GgufFile.llama(kind="llama", tokens={13: text}) for text in ("<0x-1>", "<0xZZ>", "<0x100>", "<0x1>", "", "<0x>")}
    twice_key, twice_tensor, nine = GgufFile.llama(), GgufFile.llama(), GgufFile.llama()
    twice_key.keys.append(("llama.block_count", U32, 1))
    twice_tensor.tensors.append(("blk.0.attn_q.weight", [32, 32], TYPE_F32, b"\0" * 4096))
    nine.tensors[-1] = (nine.tensors[-1][0], [32, 32] + [1] * 7, TYPE_F32, nine.tensors[-1][3])
    no_pre = GgufFile.llama()
    no_pre.keys = [(n, t, "no-such-pre" if n == "tokenizer.ggml.pre" else v) for n, t, v in no_pre.keys]
    with Bed() as bed:
        sound = bed.ask(GgufFile.llama(kind="llama").bytes())
        assert sound.code == 0, sound.said
        for text, file in bytes_of.items():
            a = bed.ask(file.bytes())
            assert a.code == 3 and "tokenizer.ggml.tokens" in a.said and "13" in a.said, (text, a.code, a.said)
        answers = bed.refused({"a key twice": twice_key.bytes(), "a tensor twice": twice_tensor.bytes(), "n_dims 9": nine.bytes()})
        assert "n_dims" in answers["n_dims 9"].said and "9" in answers["n_dims 9"].said
        a = bed.ask(no_pre.bytes())
        assert a.code == 3 and "no-such-pre" in a.said, a.said
        no_pre.keys = [(n, t, "no-such-arch" if n == "general.architecture" else v) for n, t, v in no_pre.keys]
        a = bed.ask(no_pre.bytes())  # everything at once
        lines = a.said.splitlines()
        assert a.code == 3 and len(lines) == 2 and "no-such-arch" in lines[0] and "no-such-pre" in lines[1], a.said
        # The lowest id of a text encodes; such a vocabulary may load.
        a = bed.ask(GgufFile.llama(tokens={40: "a", 41: "a"}).bytes())
        assert a.code in (0, 3) and a.seconds < 1 * SLACK, a.said


@case("fast", seconds=30)
def fc_53_programs_are_told_all_of_a_file_whatever_its_bytes():
    """A message that is cut in the middle of a character, and a name that is no UTF-8."""
    with tempfile.TemporaryDirectory(prefix="sluice-gguf-") as folder:
        path = os.path.join(os.fsencode(folder), b"caf\xe9.gguf")
        for data, code in ((GgufFile.llama(template="{% " + "\u4e2d" * 200 + " %}").bytes(), 0), (b"GGUF but not quite", 3)):
            with open(path, "wb") as f:
                f.write(data)
            r = subprocess.run([SLUICE, "model", path, "--json"], capture_output=True, timeout=10 * SLACK)
            told = json.loads(r.stdout)
            assert r.returncode == code and bool(told["refused"]) == (code == 3), (r.returncode, told)
            assert code or ("unknown tag" in told["chat_template"] and told["vocabulary"]["tokens"] == 259), told


@case("full", seconds=60)
def fc_53_a_service_refuses_them_with_one_line_and_its_exit_code():
    file = GgufFile.llama()
    whole = file.bytes()
    data = (file.table_end + 31) // 32 * 32
    nan = whole[:data + 4] + struct.pack("<f", float("nan")) + whole[data + 8:]
    with tempfile.TemporaryDirectory(prefix="sluice-gguf-") as folder:
        path = os.path.join(folder, "hostile.gguf")
        for said, hostile in (("hostile.gguf", file.patched("blk.0.attn_q.weight.offset", 1 << 40)),
                              ("hostile.gguf", file.patched("n_kv", 2 ** 63)),
                              (f"(F32): row 0, at byte {data}, holds a value that is infinite or not a number", nan)):
            with open(path, "wb") as f:
                f.write(hostile)
            # One layer is one stage.
            with Service(stages=1 if hostile is nan else 2, model=path, mpi=False, wait=False) as s:
                s.wait_exit(3, 30)
                lines = [line for line in s.log().splitlines() if said in line and "byte" in line]
                assert lines, s.log()


@case("full", seconds=60)
def fc_31_a_start_without_memory_names_what_would_help():
    with tempfile.TemporaryDirectory(prefix="sluice-gguf-") as folder:
        path = os.path.join(folder, "small.gguf")
        with open(path, "wb") as f:
            f.write(GgufFile.llama().bytes())
        with Service(stages=1, model=path, mpi=False, wait=False, flags=["--kv-mib", "16000000"]) as s:
            s.wait_exit(5, 30)
            said = [line for line in s.log().splitlines() if " error " in line and "needs " in line]
            assert said and re.search(r"needs 15\d{3}\.\d GiB of [\d.]+ GiB: --kv-mib \d+ or less \(weights ", said[0]), s.log()


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
