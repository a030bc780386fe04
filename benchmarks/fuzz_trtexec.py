"""Damages trtexec artifacts at random for a while and reads them: no exception but ParseError, no hang, no memory.

    python benchmarks/fuzz_trtexec.py [--seconds 600] [--seed 1000]

A reader that takes more than ten seconds, or a process that grows beyond 1 GB, ends the run like an exception does;
target and seed are printed. Put them into FOUND in tests/unit/features/trtexec/test_fuzz.py.

The claims of benchmarks/README.md rest on this.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import time
import warnings
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "helpers"))

from trtexec_mutations import list_targets_once, try_one

HANG_S = 10
MEMORY_BYTES = 1 << 30


def stop_hang(signum: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"a reader took more than {HANG_S} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1000, help="the first seed")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, stop_hang)
    warnings.simplefilter("error")
    names = list(list_targets_once())
    end, seed, runs, failures = time.monotonic() + options.seconds, options.seed, 0, 0
    while time.monotonic() < end:
        for name in names:
            signal.alarm(HANG_S)
            try:
                try_one(name, seed)
            except Exception as error:
                failures += 1
                print(f'("{name}", {seed}),  # {type(error).__name__}: {str(error)[:200]}', flush=True)
            runs += 1
        seed += 1
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > MEMORY_BYTES:
            raise SystemExit(f"more than {MEMORY_BYTES} bytes of memory at seed {seed}")
    signal.alarm(0)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{runs} artifacts, seeds {options.seed} to {seed - 1}, {failures} failures, peak {peak_mb:.0f} MB")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
