#!/usr/bin/env python3
"""Writes the seeds of the fuzz target chat_child: children that do as they should, and each way not to. Numbers are those of
fuzz_chat_child.c. usage: make_chat_child_seeds.py corpus/chat_child"""
import sys
from pathlib import Path

KINDS = "YOXELR0"
BYTES, AND_ENDS, ENDS, TWICE = 4, 5, 6, 7
NO_START = bytes([7 * 8])
UNMARKED_WITH_TOOLS, NOT_UTF8, MARKED, FROZEN = 1, 2, 0x10, 0x80


def say(kind, text="", how=0):
    data = text.encode() if isinstance(text, str) else text
    return bytes([KINDS.index(kind) * 8 + how, len(data)]) + data


def raw(data, how=BYTES):
    return bytes([how, len(data)]) + data


def seed(*parts, first=MARKED):
    return bytes([first]) + b"".join(parts)


def seeds():
    up, gone = say("Y", "with") + say("O"), raw(b"", ENDS)
    return {
        "renders": seed(up, say("O", "one"), say("O", "two"), say("O"), say("O", "\u20ac"*60)),
        "tools_unmarked": seed(up, say("O", "one"), first=UNMARKED_WITH_TOOLS),
        "source_not_utf8": seed(up, first=NOT_UTF8),
        "frozen": seed(up, up, say("O", "then"), first=FROZEN),
        "cannot_run": seed(NO_START),
        "no_jinja": seed(say("E", "No module named jinja2")),
        "ends_at_start": seed(gone),
        "says_nothing": seed(),
        "does_not_compile": seed(say("Y"), say("E", "line 3: unexpected")),
        "ends_while_compiling": seed(say("Y"), gone),
        "ready_and_gone": seed(say("Y", "", AND_ENDS)),
        "hangs_while_compiling": seed(say("Y")),
        "raised": seed(up, say("X", "roles must alternate"), say("X")),
        "error": seed(up, say("E", b"\xff\0x"*80)),
        "limit": seed(up, say("L", "memory"), up, say("O", "again"), say("L")),
        "unknown_kind": seed(up, say("R"), up, say("0", "x")),
        "ends_while_rendering": seed(up, gone, up, gone, up, say("O", "third try")),
        "ends_thrice": seed(up, gone, up, gone, up, gone, up),
        "hangs": seed(up, raw(b""), up, say("O", "next")),
        "unasked": seed(up, say("O", "one", TWICE), up, say("O", "new")),
        "half_a_frame": seed(up, raw(b"\x05\0\0"), up),
        "half_a_payload": seed(up, raw(b"\x05\0\0\0Oabc", ENDS), up, say("O", "x")),
        "too_long": seed(up, raw(b"\1\0\0\4O"), up, say("O", "x")),
        "long_and_gone": seed(up, raw(b"\0\0\0\4O", ENDS), up, say("O", "x")),
        "replaced_cannot_run": seed(up, gone, NO_START, up, say("O", "x")),
        "replaced_says_nothing": seed(up, gone, raw(b"")),
        "ends_after_answer": seed(up, say("O", "one", AND_ENDS), up, say("O", "two")),
    }


def main(out):
    for name, data in seeds().items():
        (out / name).write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
