"""Measure what the unoptimized graph, with which engines are compared, adds to a quick run: CPU time and wall time.

    python benchmarks/reference_cost.py MODEL [...]

Each MODEL is run as `enginebench run MODEL --quick` does, with the default engines: of an ONNX graph ONNX Runtime and
OpenVINO, of a module PyTorch as well. CPU time is that of all processes, which other programs change little.

The table in docs/how-we-measure.md rests on this.
"""

import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import enginebench
from enginebench.runs import references


def count_cpu_s() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure_run(model: str) -> tuple[float, float, float, float]:
    """Return (CPU time of the reference, that of the rest, wall time of the reference, that of the rest) in seconds."""
    perform, spent = references.run_child, [0.0, 0.0]

    def run_timed(*args: Any, **options: Any) -> Any:
        cpu, begin = count_cpu_s(), time.perf_counter()
        try:
            return perform(*args, **options)
        finally:
            spent[0] += count_cpu_s() - cpu
            spent[1] += time.perf_counter() - begin

    references.run_child = run_timed
    cpu, begin = count_cpu_s(), time.perf_counter()
    try:
        with tempfile.TemporaryDirectory() as folder:
            enginebench.run(model, quick=True, out=Path(folder) / "run")
    finally:
        references.run_child = perform
    cpu_s, wall_s = count_cpu_s() - cpu, time.perf_counter() - begin
    return spent[0], cpu_s - spent[0], spent[1], wall_s - spent[1]


def main(models: list[str]) -> None:
    print("model | reference, CPU s | the rest, CPU s | share | reference, s | the rest, s")
    for model in models:
        own, rest, own_wall, rest_wall = measure_run(model)
        print(
            f"{Path(model).name} | {own:.1f} | {rest:.1f} | {own / rest:.1%} | {own_wall:.1f} | {rest_wall:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
