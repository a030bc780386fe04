"""How far builds of one engine differ, and what the best of them gains: K builds from nothing, measured in turns.

    python benchmarks/builds.py                       # on a GPU: pytorch-compile, resnet50 b32 FP16, 8 builds
    python benchmarks/builds.py --device cpu          # the same of digits-cnn, FP32, batch 1, 4 builds
    python benchmarks/builds.py --engine tensorrt     # any engine that builds

On a GPU builds of pytorch-compile are made one after another, since its compiler times a few settings of each kernel
itself; plans of TensorRT are made beside each other where the GPU has room for it.

The claims of docs/versions.md rest on this.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import enginebench
from enginebench.report.markdown import format_sections
from enginebench.report.run.sections import format_builds, make_builds
from enginebench.report.table import Section
from enginebench.runs import building

# (model, precision, batch, builds, processes) by kind of device
DEFAULTS = {"cuda": ("resnet50", "fp16", 32, 8, 24), "cpu": ("digits-cnn", "fp32", 1, 4, 12)}


def main() -> int:
    """0; an engine that cannot run ends it with the reason."""
    options = parse_arguments()
    model, precision, batch, builds, processes = DEFAULTS[options.device.partition(":")[0]]
    if options.alone:
        building.split_runs = lambda rows, machine: [[row] for row in rows]
    begin = time.perf_counter()
    with TemporaryDirectory(prefix="enginebench-") as scratch:
        bench = enginebench.bench(
            options.model or model,
            options.engine,
            precision=options.precision or precision,
            batch=options.batch or batch,
            device=options.device,
            builds=options.builds or builds,
            processes=options.processes or processes,
            time_limit=options.time_limit,
            out=options.out or Path(scratch) / "r",
            progress=True,
        )
        show(bench, time.perf_counter() - begin)
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="pytorch-compile")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--model")
    parser.add_argument("--precision")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--builds", type=int)
    parser.add_argument("--processes", type=int, help="of all builds together")
    parser.add_argument("--time-limit", type=float, default=1.0, help="seconds of timed calls in one process")
    parser.add_argument("--alone", action="store_true", help="one build after another")
    parser.add_argument("--out", type=Path, help="folder in which the rows stay")
    return parser.parse_args()


def show(bench: enginebench.Bench, seconds: float) -> None:
    """The figures of the builds, each build on its own, and the warnings."""
    row, (result,) = bench.row, bench.results
    print(format_sections([Section(parts=tuple(make_builds([row])))], level=2))
    medians = row.costs.builds.medians_ms if row.costs.builds else ()
    for i, (build, median_ms) in enumerate(zip(result.builds, medians, strict=False), start=1):
        print(f"build {i}: {median_ms:.4f} ms, made in {build.build_s:.1f} s, {(build.fingerprint or 'no hash')[:12]}")
    print("\n".join(format_builds([row])))
    print(
        f"built beside: {row.costs.built_beside}; validity: {row.validity}; "
        f"{result.engine_version}; {seconds:.0f} s in all"
    )
    for warning in row.warnings:
        print(f"- {warning.message}")


if __name__ == "__main__":
    sys.exit(main())
