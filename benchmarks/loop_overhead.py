"""What the timed loop itself costs: nanoseconds a sample around an engine that does nothing.

The limit is 500 ns a sample, all of the loop counted, not only what lies between its two clock readings.

    python benchmarks/loop_overhead.py [--json]

The claims of benchmarks/README.md rest on this.
"""

from __future__ import annotations

import argparse
import json
import statistics
from types import TracebackType
from typing import TYPE_CHECKING

from enginebench.core.records import Measurement, MeasureSpec
from enginebench.measure.loop import measure_engine
from enginebench.measure.machine import describe_machine

if TYPE_CHECKING:
    from enginebench.core.protocols import Array, Feeds

LIMIT_NS = 500.0
REPEATS = 9
SAMPLES = 100_000


class IdleEngine:
    """Does nothing, by Python methods such as real engines have."""

    inputs = ()
    outputs = ()
    _no_outputs: dict[str, Array] = {}

    def bind(self, feeds: Feeds) -> None: ...

    def run(self) -> None: ...

    def fetch(self) -> dict[str, Array]:
        return self._no_outputs

    def close(self) -> None: ...

    def __enter__(self) -> IdleEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def measure_loop_cost() -> list[float]:
    """Nanoseconds a sample, one figure for each repeat."""
    spec = MeasureSpec(warmup=1000, iters=SAMPLES)
    return [_share(measure_engine(IdleEngine(), [{}], spec)) for _ in range(REPEATS)]


def _share(measurement: Measurement) -> float:
    return sum(block.duration_ns for block in measurement.blocks) / len(measurement.latency_ns)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of text")
    as_json = parser.parse_args().json
    costs = measure_loop_cost()
    median, worst = statistics.median(costs), max(costs)
    if as_json:
        print(
            json.dumps(
                {
                    "benchmark": "loop_overhead",
                    "ns_per_sample": median,
                    "ns_per_sample_worst": worst,
                    "repeats": REPEATS,
                    "samples": SAMPLES,
                    "limit_ns": LIMIT_NS,
                    "within_limit": median < LIMIT_NS,
                    "cpu_model": describe_machine().cpu_model,
                }
            )
        )
    else:
        print(f"{median:.0f} ns a sample (worst of {REPEATS} repeats {worst:.0f}; limit {LIMIT_NS:.0f})")
    return 0 if median < LIMIT_NS else 1


if __name__ == "__main__":
    raise SystemExit(main())
