#!/usr/bin/env python3
"""Writes seeds of the fuzz target stage_plan whose plans are changed, one field each. The numbers are those of fuzz_stage_plan.c.
usage: make_stage_plan_seeds.py corpus/stage_plan"""
import sys
from pathlib import Path

NEXT, OPEN, APPEND, TRUNCATE, CLOSE, RUN = range(6)
CHANGED = 248
SET, NOT, FLIP, FLOAT, MORE, LESS = range(6)
NAN, INFINITE, BELOW_0, LARGE, SMALL = range(5)
OP = {name: i for i, name in enumerate((
    "kind", "seq", "slot", "length", "first_block", "n_blocks", "n_window", "first_id", "n_ids", "first_bias", "temperature", "top_p",
    "min_p", "top_k", "repeat_penalty", "presence_penalty", "frequency_penalty", "typical_p", "repeat_last_n", "n_prompt", "n_bias",
    "n_top"))}
RUNS = {name: i for i, name in enumerate((
    "seq", "n", "kv_index", "source", "sample", "first_id", "last_stage", "from_tick", "table_check"))}
PLAN = {name: i for i, name in enumerate(("tick", "n_rows", "n_ops", "n_runs", "n_words"))}


def open_(seq=1, slot=0, length=2, blocks=(3,), repeat=1, n_bias=0, how=OPEN):
    return bytes([how, seq - 1, slot, length, len(blocks), *blocks, repeat, 0, 0, 0, n_bias])


def run(seq=1, how=0, n=1, what=RUN):
    return bytes([what, seq - 1, how, n])


def one(table, name, *how):
    """One change: of the plan (0), of a word (1), of the newest op or run (2)."""
    which = [0, table[name]] if table is PLAN else [2, table[name]] if table else [1, name]
    return bytes([0, *which, *how])


def seeds():
    changed_open = lambda change, **more: open_(how=CHANGED + OPEN, **more) + change + run()
    for name, how in {"temperature": (FLOAT, NAN), "top_p": (FLOAT, LARGE), "min_p": (FLOAT, BELOW_0), "typical_p": (FLOAT, INFINITE),
                      "repeat_penalty": (FLOAT, SMALL), "presence_penalty": (FLOAT, 7), "frequency_penalty": (FLOAT, 5), "n_top": (SET, 22),
                      "n_bias": (NOT, 0), "n_ids": (MORE, 0), "first_id": (NOT, 0), "first_bias": (NOT, 0), "first_block": (NOT, 0),
                      "n_blocks": (NOT, 0), "n_window": (NOT, 3), "kind": (SET, 5), "seq": (SET, 0), "slot": (SET, 200),
                      "length": (NOT, 0), "top_k": (NOT, 0), "n_prompt": (NOT, 0)}.items():
        yield "open_" + name, changed_open(one(OP, name, *how), n_bias=2)
    yield "open_bias", changed_open(one(None, 1, FLOAT, 6), n_bias=2)
    yield "open_block", changed_open(one(None, 0, NOT, 0), repeat=0)
    for name, how in {"seq": (SET, 0), "n": (SET, 0), "kv_index": (NOT, 0), "source": (SET, 3), "sample": (SET, 2), "first_id": (NOT, 0),
                      "from_tick": (NOT, 0), "table_check": (FLIP, 5), "last_stage": (NOT, 0)}.items():
        yield "run_" + name, open_() + run(what=CHANGED + RUN) + one(RUNS, name, *how) + run()
    yield "run_from_this_tick", open_() + run(how=2) + bytes([NEXT]) + run(how=3, what=CHANGED + RUN) + one(RUNS, "from_tick", MORE, 0)
    for name, how in {"n_rows": (MORE, 0), "n_ops": (NOT, 0), "n_runs": (SET, 65), "n_words": (FLIP, 31), "tick": (SET, 0)}.items():
        yield "plan_" + name, open_() + run(what=CHANGED + RUN) + one(PLAN, name, *how) + run()
    yield "not_together", open_() + open_(2, 1, blocks=(4,)) + run() + run(2) + run()


def main(out):
    for name, data in seeds():
        (out / name).write_bytes(data + bytes(len(data) % 2))  # of an even length: without a window


if __name__ == "__main__":
    main(Path(sys.argv[1]))
