"""What every test file here ends with, and what a failure case says about itself.

    @case("fast", seconds=60, gaps=True)
    def fc_09_three_at_once_at_every_decode_share(): ...

A case is one ctest test, `integ_fc_09`, with its tier as a label; cases.cmake reads the line above the function, so it stays one
line. tier: fast, full or nightly; seconds: its time limit; gaps: it asserts gaps or speed and runs alone; real: it needs the real
model (and runs alone, and not in sanitizer builds).
"""
import os
import sys
import time
import traceback

TIERS = ("fast", "full", "nightly")


def case(tier, seconds=60, gaps=False, real=False):
    assert tier in TIERS and seconds > 0

    def mark(function):
        function.case = {"tier": tier, "seconds": seconds, "gaps": gaps, "real": real}
        return function
    return mark


class Skip(Exception):
    """raise Skip("why"): the case cannot run here."""


def real_model():
    """Its path; the case is skipped where there is none."""
    path = os.environ.get("SLUICE_MODEL_SMOLLM2")
    if not path:
        raise Skip("SLUICE_MODEL_SMOLLM2 names no model")
    return path


def is_chosen(name, chosen):
    """fc_09 chooses fc_09_three_at_once."""
    return not chosen or any(name == c or name.startswith(c + "_") for c in chosen)


def run(module):
    """Runs every test_* and fc_* of a module (or those named); the exit code is that of a test program."""
    tests = [(n, f) for n, f in vars(module).items() if n.startswith(("test_", "fc_", "soak_", "cluster_")) and callable(f)]
    bare = [n for n, f in tests if not n.startswith("test_") and not hasattr(f, "case")]
    assert not bare, f"no @case above {bare}"
    chosen = sys.argv[1:]
    tests = [(n, f) for n, f in tests if is_chosen(n, chosen)]
    if not tests:
        print(f"no test is called {chosen}")
        return 2
    failed = skipped = 0
    for name, test in tests:
        started = time.monotonic()
        try:
            test()
            print(f"ok    {name} ({time.monotonic() - started:.1f} s)", flush=True)
        except Skip as e:
            skipped += 1
            print(f"skip  {name}: {e}", flush=True)
        except Exception:
            failed += 1
            traceback.print_exc()
            print(f"FAIL  {name} ({time.monotonic() - started:.1f} s)", flush=True)
    print(f"{len(tests)} tests, {failed} failed, {skipped} skipped")
    return 1 if failed else 77 if skipped == len(tests) else 0
