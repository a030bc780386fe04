"""Two versions of a runtime side by side: what an upgrade changes, false alarms, and what the other place costs.

    python benchmarks/versions.py table   # resnet18, mobilenet_v3_small, a transformer; FP32, INT8; about half an hour
    python benchmarks/versions.py same    # one version in two environments, 20 times; about 15 minutes
    python benchmarks/versions.py cost    # a child in another environment against one in this; about 3 minutes

Environments are made with `env make` where they are not there yet, from the package index. `table` prints the rows of
docs/versions.md; a folder of --out that holds a run already is read, not measured again.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import enginebench
from enginebench.engines.registry import find_entry
from enginebench.features.versions.upgrade import format_changes
from enginebench.report.numbers import format_range, format_significant, format_small
from enginebench.runs.child.environments import describe_environment
from enginebench.runs.child.isolate import run_child
from enginebench.runs.child.jobs import ProbeJob
from enginebench.stats.compare import Comparison
from enginebench.stats.diff import DiffRow
from enginebench.stats.intervals import measure_spread

# engine, package, about a year old, newest
RUNTIMES = (("ort", "onnxruntime", "1.23.2", "1.31.1"), ("openvino", "openvino", "2025.3.0", "2026.4.1"))
MODELS = ("resnet18", "mobilenet_v3_small", "timm:vit_tiny_patch16_224")
START_LIMIT_MS, RUN_LIMIT = 50.0, 0.01


def main() -> int:
    """0 where every limit is met."""
    options = parse_arguments()
    return {"table": show_table, "same": show_same, "cost": show_cost}[options.part](options)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("table", "same", "cost"))
    parser.add_argument("--models", default=",".join(MODELS), help="of the table; comma-separated")
    parser.add_argument("--processes", type=int, default=10, help="of each row")
    parser.add_argument("--time-limit", type=float, default=1.0, help="seconds of timed calls in one process")
    parser.add_argument("--rounds", type=int, default=20, help="of `same`, and starts of each kind of `cost`")
    parser.add_argument("--model", default="digits-cnn", help="of `same` and `cost`")
    parser.add_argument("--out", type=Path, help="folder in which the runs of the table stay")
    return parser.parse_args()


def provide(name: str, *requirements: str) -> str:
    """The name of an environment with these packages, made now if it is not there."""
    if name not in {line.name for line in enginebench.list_environments()}:
        print(f"making {name}", file=sys.stderr)
        enginebench.make_environment(name, requirements, progress=True)
    return name


def show_table(options: argparse.Namespace) -> int:
    """The upgrade report of each runtime, as lines of a table, and its sentences."""
    with TemporaryDirectory(prefix="enginebench-") as scratch:
        root = options.out or Path(scratch)
        print("| engine | model | precision | ratio old / new | verdict | answers apart | memory (MB) | build (s) |")
        print("|---|---|---|---:|---|---:|---:|---:|")
        told = []
        for engine, package, *versions in RUNTIMES:
            names = [provide(f"{engine}-{version}", f"{package}=={version}") for version in versions]
            runs = [measure(model, engine, names, root, options) for model in options.models.split(",")]
            document = enginebench.diff(runs, between=",".join(names))
            for row in document.rows:
                print(describe(row, engine), flush=True)
            told += format_changes(document)
    print(f"\n{datetime.now(UTC):%Y-%m-%d}, {enginebench.doctor().machine.cpu_model}\n")
    print("\n".join(told))
    return 0


def measure(model: str, engine: str, names: list[str], root: Path, options: argparse.Namespace) -> Path:
    """The folder of a run of both versions; one that is there already is taken as it is."""
    folder = root / f"{model.replace(':', '-')}-{engine}"
    if not (folder / "run.json").exists():
        engines = [f"{engine}:env={name}" for name in names]
        print(f"{model}: {', '.join(engines)}", file=sys.stderr)
        how = {"processes": options.processes, "time_limit": options.time_limit}
        enginebench.run(model, engines=engines, precisions="fp32,int8", out=folder, **how)
    return folder


def describe(row: DiffRow, engine: str) -> str:
    """One line of the table."""
    change, ratio = row.change, format_range(row.ratio) if row.ratio else "-"
    model, _, precision, _ = row.id.split(" ")
    warning = f": {row.reasons[0]}" if row.verdict == "not_comparable" and row.reasons else ""
    cells = [engine, model, precision, ratio, row.verdict.replace("_", " ") + warning]
    if change is None:
        return f"| {' | '.join([*cells, '-', '-', '-'])} |"
    cells.append("-" if change.max_abs_diff is None else format_small(change.max_abs_diff))
    for pair, factor in ((change.peak_memory_bytes, 1e-6), (change.build_s, 1.0)):
        known = [format_significant(v * factor) for v in (pair.before, pair.after) if v is not None]
        cells.append(" -> ".join(known) or "-")
    return f"| {' | '.join(cells)} |"


def provide_twins() -> tuple[str, str, str]:
    """(engine, two environments): the version of ONNX Runtime that is installed here, twice."""
    engine, package = "ort", "onnxruntime"
    version = describe_installed(package)
    twins = [provide(f"{engine}-{version}{suffix}", f"{package}=={version}") for suffix in ("", "-again")]
    return engine, twins[0], twins[1]


def describe_installed(package: str) -> str:
    """The version of a package in this environment."""
    found = enginebench.doctor().machine.versions.get(package)
    if found is None:
        raise SystemExit(f"{package} is not installed here: {find_entry('ort').fix}")
    return found


def show_same(options: argparse.Namespace) -> int:
    """How often one version in two environments is called equivalent or not shown; the limit is always.

    On a machine that others use rows are invalid, and the verdict is not comparable: that is no answer either.
    """
    engine, one, two = provide_twins()
    verdicts: Counter[str] = Counter()
    for i in range(options.rounds):
        with TemporaryDirectory(prefix="enginebench-") as scratch:
            found = compare(options, f"{engine}:env={two}", f"{engine}:env={one}", Path(scratch) / "r")
        verdicts[found.verdict] += 1
        ratio = format_range(found.ratio, "x") if found.ratio else "; ".join(found.reasons)
        print(f"{i + 1:3} {found.verdict:15} {ratio}", flush=True)
    right = verdicts["equivalent"] + verdicts["not_shown"]
    print(f"the same version: {dict(verdicts)}; equivalent or not shown: {right} of {options.rounds}, limit all")
    return int(right < options.rounds)


def compare(options: argparse.Namespace, engine: str, against: str, out: Path) -> Comparison:
    """The comparison of two engines on the same model, measured in turns."""
    how = {"processes": options.processes, "time_limit": options.time_limit, "margin": 0.02}
    bench = enginebench.bench(options.model, engine, against=against, out=out, **how)
    assert bench.comparison is not None
    return bench.comparison


def show_cost(options: argparse.Namespace) -> int:
    """What a child in another environment costs: its start in ms, and the ratio of the times that it measures."""
    engine, one, _ = provide_twins()
    environment = describe_environment(one)
    kinds: list[Callable[[], object]] = [lambda: start(None), lambda: start(environment)]
    for kind in kinds:
        kind()  # reads its files from the disk
    differences = []
    for i in range(options.rounds):
        order = (0, 1) if i % 2 == 0 else (1, 0)
        times = {k: timed(kinds[k]) for k in order}
        differences.append((times[1] - times[0]) * 1000)
    spread = measure_spread(differences)
    low, high = spread.interval(0.95) or (math.nan, math.nan)
    print(f"start: {spread.mean:+.1f} ms ({low:+.1f} to {high:+.1f}), {options.rounds} pairs; limit {START_LIMIT_MS:g}")
    with TemporaryDirectory(prefix="enginebench-") as scratch:
        found = compare(options, f"{engine}:env={one}", engine, Path(scratch) / "r")
    if found.ratio is None or found.ratio.low is None or found.ratio.high is None:
        print(f"timed region: {found.verdict}: {'; '.join(found.reasons)}")
        return 1
    # Of the ratio here / there: below 1 the other environment is slower.
    added = 1 / found.ratio.value - 1, 1 / found.ratio.high - 1, 1 / found.ratio.low - 1
    shown = "{:+.2%} ({:+.2%} to {:+.2%})".format(*added)
    print(f"timed region: {shown}, {found.ratio.n} pairs of processes; limit of the upper end {RUN_LIMIT:.0%}")
    return int(high > START_LIMIT_MS or added[2] > RUN_LIMIT)


def start(environment: object) -> None:
    """A child that starts, imports what children need, says that `fake` is there, and ends."""
    run_child(ProbeJob(engine="fake"), timeout_s=60, environment=environment)  # type: ignore[arg-type]


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(main())
