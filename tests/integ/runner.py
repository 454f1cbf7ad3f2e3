"""What every test file here ends with."""
import sys
import time
import traceback


def run(module):
    """Runs every test_* of a module (or those named); the exit code is that of a test program."""
    tests = [(n, f) for n, f in vars(module).items() if n.startswith("test_")]
    chosen, failed = sys.argv[1:], 0
    for name, test in tests:
        if chosen and name not in chosen:
            continue
        started = time.monotonic()
        try:
            test()
            print(f"ok    {name} ({time.monotonic() - started:.1f} s)", flush=True)
        except Exception:
            failed += 1
            traceback.print_exc()
            print(f"FAIL  {name} ({time.monotonic() - started:.1f} s)", flush=True)
    print(f"{len(chosen) or len(tests)} tests, {failed} failed")
    return 1 if failed else 0
