"""The parts of benchmarks/gpu.sh: rows of the image models on a GPU, stored, packed, and shown as a short table.

The claims of docs/gpu.md and docs/results.md rest on this.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from statistics import geometric_mean

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import EngineBenchError
from enginebench.core.names import configuration_id, format_engine, parse_engine
from enginebench.core.records import MeasureSpec, Precision, Result, Scope
from enginebench.measure.machine import describe_machine
from enginebench.runs.campaign import Campaign
from enginebench.runs.folder import RunFolder, RunRecord, RunRequest, holds_run
from enginebench.runs.plan import PlannedConfiguration, plan_configurations, resolve
from enginebench.runs.reporting import describe_stored
from enginebench.runs.targets.sources import gather_sources
from enginebench.stats.quantiles import median
from enginebench.stats.validity import HALVES_RATIO, compare_halves

DEVICE = "cuda:0"
# What the head parts measure in full is not measured again.
BATCHES = {
    "resnet18": (32, 256),
    "resnet50": (1, 256),
    "mobilenet_v3_small": (1, 32, 256),
    "efficientnet_b0": (1, 32, 256),
}
# What the timed loop needs on the host is one thread; four leave room for what a runtime does beside it.
THREADS = 4
GPU_TESTS = ("tests/engines/torch/test_cuda_engine.py",)
FULL_PROCESSES = 10
# Models are exported beside each other, which nobody times; more at once run out of host memory before cores.
PLANNED_AT_ONCE = 8
TIME_LIMIT_S = 0.6

GRAPH = "pytorch-cudagraph"
GRAPH_NHWC = "pytorch-cudagraph:channels_last=1"
GRAPH_FOLDED = "pytorch-cudagraph:channels_last=1,fold_bn=1"
REDUCE = "pytorch-compile:mode=reduce-overhead"
FOLDED = "pytorch-compile:channels_last=1,cuda_graph=1,fold_bn=1"
# What folding does, done by the compiler; PyTorch's cache of traced graphs does not take frozen ones: 12 s a process.
FROZEN = "pytorch-compile:channels_last=1,cuda_graph=1,freezing=1"
ORT = "ort-cuda:cuda_graph=1,prefer_nhwc=1"
ORT_FUSED = "ort-cuda:cuda_graph=1,fuse_conv_bias=1,prefer_nhwc=1"
DEFAULTS = "pytorch:defaults=1"


class Cell(Struct, frozen=True):
    """One row to measure; `full` gives it ten processes."""

    engine: str
    precision: Precision
    full: bool = False
    scope: Scope = "compute"
    cache: str = "hot"


# The rows that a reader compares first; the first is the baseline, and ONNX Runtime's best is the sixth.
HEAD = (
    Cell("pytorch", "fp32", full=True),
    Cell(DEFAULTS, "tf32", full=True),
    Cell(GRAPH, "fp32", full=True),
    Cell(GRAPH_FOLDED, "fp16", full=True),
    Cell(FOLDED, "fp16", full=True),
)
# The same question at every batch of every model: the baseline, and a row of each kind of engine that was best at
# batch 1 (folding costs the plain graph up to a fifth at large batches).
SHORT = (
    Cell("pytorch", "fp32"),
    Cell(GRAPH_FOLDED, "fp16"),
    Cell(FOLDED, "fp16"),
    Cell(ORT, "fp16"),
    Cell(ORT_FUSED, "fp16"),
)
COPIES = (Cell(GRAPH_FOLDED, "fp16", scope="io"), Cell(ORT, "fp16", scope="io"))
COPIES_B32 = (Cell(GRAPH_FOLDED, "fp16", scope="io"), Cell(ORT_FUSED, "fp16", scope="io"))
# One change at a time: what the best rows owe to graphs, to fusion, to their precision, and to a warm cache.
SETTINGS_B1 = (
    Cell("pytorch", "fp32"),
    Cell("pytorch:channels_last=1", "fp16"),
    Cell("pytorch-compile", "fp16"),
    Cell(GRAPH_NHWC, "fp16"),
    Cell(GRAPH_FOLDED, "fp16"),
    Cell(FOLDED, "fp16"),
    Cell(FROZEN, "fp16"),
    Cell("ort-cuda:prefer_nhwc=1", "fp16"),
    Cell(ORT, "fp16"),
    Cell(ORT_FUSED, "fp16"),
    Cell(GRAPH, "tf32"),
    Cell(GRAPH_FOLDED, "fp16", cache="cold"),
)
SETTINGS_B32 = (
    Cell("pytorch", "fp32"),
    Cell(GRAPH_NHWC, "fp16"),
    Cell(GRAPH_FOLDED, "fp16"),
    Cell(REDUCE, "fp16"),
    Cell(f"{REDUCE},channels_last=1", "fp16"),
    Cell(FOLDED, "fp16"),
    Cell(FROZEN, "fp16"),
    Cell("ort-cuda:cuda_graph=1", "fp16"),
    Cell(ORT, "fp16"),
    Cell(ORT_FUSED, "fp16"),
    Cell(GRAPH_FOLDED, "fp16", cache="cold"),
)
SMALL = (
    Cell("pytorch", "fp32", scope="io"),
    Cell(GRAPH, "fp32", scope="io"),
    Cell("ort-cuda:cuda_graph=1", "fp32", scope="io"),
    Cell(GRAPH, "fp32"),
)

# Part -> (model, rows by batch). A process takes 3 (ort) to 12 s (compiled), most of it imports.
PARTS: dict[str, tuple[str, dict[int, tuple[Cell, ...]]]] = {
    "resnet18": ("resnet18", {1: (*HEAD, Cell(ORT, "fp16", full=True), *COPIES)}),
    "resnet50": ("resnet50", {32: (*HEAD, Cell(ORT_FUSED, "fp16", full=True), *COPIES_B32)}),
    **{f"{model}-batches": (model, dict.fromkeys(batches, SHORT)) for model, batches in BATCHES.items()},
    "resnet18-settings": ("resnet18", {1: SETTINGS_B1}),
    "resnet50-settings": ("resnet50", {32: SETTINGS_B32}),
    # What an FPGA at the end of a line is compared with: copies belong to it.
    "digits-mlp": ("digits-mlp", {1: SMALL}),
}


class Printer:
    """Progress as lines with the time that has passed."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def begin(self, total: int) -> None:
        self.say(f"{total} processes")

    def say(self, text: str) -> None:
        # One write: rows are built by several threads.
        sys.stdout.write(f"[{time.monotonic() - self._start:7.1f} s] {text}\n")
        sys.stdout.flush()

    step = say

    def advance(self) -> None: ...


class Part(Struct, frozen=True):
    """A part of the script whose rows are planned: what is left is to prepare and to measure them."""

    name: str
    record: RunRecord
    rows: tuple[PlannedConfiguration, ...]
    campaign: Campaign

    def measure(self) -> None:
        """Measures what is not measured yet, and shows the rows as far as they came."""
        try:
            self.campaign.run()
        finally:
            results = list(self.campaign.results.values())
            print_table(self.record, results)
            print_figures(results)


def plan_part(
    name: str, model: str, cells: dict[int, tuple[Cell, ...]], out: Path, processes: int, time_limit_s: float
) -> Part:
    """The part in its folder, taken up where it stopped if it was begun before."""
    wanted = [(batch, cell) for batch, chosen in cells.items() for cell in chosen]
    request = RunRequest(
        model=model,
        engines=_list_engines(wanted),
        precisions=tuple((p, None) for p in dict.fromkeys(cell.precision for _, cell in wanted)),
        batches=tuple(cells),
        device=DEVICE,
        threads=THREADS,
        measure=MeasureSpec(processes=1, time_limit_s=time_limit_s),
        weights="default" if model.startswith("digits") else "random",
        timeout_s=300.0,
    )
    folder, printer = RunFolder(out / name), Printer()
    resume = holds_run(folder.root)
    record = folder.read_record() if resume else _begin(folder, request, printer)
    sources = tuple(folder.absolute(a) for a in record.sources)
    planned = plan_configurations(resolve(request, sources), sources, problems=record.problems)
    rows = choose_rows(planned, wanted, processes)
    record = replace(record, rows=tuple(row.id for row in rows))
    folder.write_record(record)
    campaign = Campaign(folder, rows, record.machine, timeout_s=request.timeout_s, reporter=printer)
    if resume:
        campaign.restore()
    return Part(name, record, tuple(rows), campaign)


def prepare_parts(names: Sequence[str], out: Path, processes: int, time_limit_s: float) -> dict[str, Part]:
    """All parts: exported several at once, then built and checked one after another, the rows of each side by side."""

    def plan(name: str) -> Part:
        return plan_part(name, *PARTS[name], out, processes, time_limit_s)

    with ThreadPoolExecutor(PLANNED_AT_ONCE) as pool:
        parts = list(pool.map(plan, names))
    for part in parts:
        part.campaign.check()
    return {part.name: part for part in parts}


def _begin(folder: RunFolder, request: RunRequest, printer: Printer) -> RunRecord:
    machine = describe_machine()
    started = datetime.now(UTC).isoformat(timespec="seconds")
    record = RunRecord(request=request, machine=machine, started_utc=started, rows=())
    folder.create(record)
    sources = gather_sources(request, folder.artifacts, printer)
    stored = tuple(folder.relative(a) for a in sources.artifacts)
    return replace(record, sources=stored, problems=sources.problems)


def _list_engines(wanted: Sequence[tuple[int, Cell]]) -> tuple[tuple[str, dict[str, str]], ...]:
    return tuple(parse_engine(engine) for engine in dict.fromkeys(cell.engine for _, cell in wanted))


def choose_rows(
    planned: Sequence[PlannedConfiguration], wanted: Sequence[tuple[int, Cell]], processes: int
) -> list[PlannedConfiguration]:
    """The planned rows that are wanted, in the order wanted, each with its scope, cache and number of processes."""
    found = {
        (row.engine.batch, row.engine.backend, *sorted(row.engine.options.items()), row.engine.precision): row
        for row in planned
    }
    rows = []
    for batch, cell in wanted:
        name, options = parse_engine(cell.engine)
        row = found[(batch, name, *sorted(options.items()), cell.precision)]
        measure = replace(row.measure, processes=processes if cell.full else 1, scope=cell.scope, cache=cell.cache)
        rows.append(replace(row, measure=measure, id=configuration_id(row.engine, row.requested_precision, measure)))
    return rows


def print_table(record: RunRecord, results: Sequence[Result]) -> None:
    """Every row on one line: what it is, host and device medians, p99, and whether it can be believed."""
    document = describe_stored(record, results)
    print(f"\n{document.model}: engine, precision, batch, scope, cache | p50 p99 device enqueue ms | speed-up | ...")
    for row in document.rows:
        times = [row.p50_ms, row.p99_ms, row.p50_device_ms, row.enqueue_ms]
        shown = " ".join(f"{t.value:8.4f}" if t else "       -" for t in times)
        speedup = f"{row.speedup.value:6.2f}" if row.speedup else "     -"
        codes = ",".join(dict.fromkeys(c.code for c in row.warnings))
        shares = " ".join(f"{k}={v:.2f}" for k, v in (row.effective_precision or {}).items())
        print(
            f"{row.engine:52} {row.precision:5} b{row.batch:<3} {row.scope:7} {row.cache:4} | {shown} | {speedup} | "
            f"{row.status} {row.validity} n={row.n} k={row.processes} load={_find_load_s(results, row.id):.1f}s "
            f"mem={_show_device_memory(results, row.id)} mJ={row.costs.energy_mj or 0:.2f} [{shares}] {codes} "
            f"{row.reason or ''}"
        )


def print_figures(results: Sequence[Result]) -> None:
    """What must hold on any GPU, with the limit beside each figure."""
    medians = {r.id: _medians(r) for r in results if any(m.latency_ns for m in r.measurements)}
    rows = {_key(r): r for r in results if r.id in medians}
    for key, result in rows.items():
        found = medians[result.id]
        if GRAPH in key[0] and result.measure.scope == "compute":
            gap_us = (found["latency_ns"] - found["device_ns"]) / 1000
            print(f"{result.id}: host clock {gap_us:.1f} us above the events (limit 15, waiting spins)")
        compute = rows.get((*key[:3], "compute", key[4]))
        if result.measure.scope == "io" and compute is not None:
            copies = found["h2d_ns"] + found["d2h_ns"] + found["staging_ns"]
            more = found["latency_ns"] - medians[compute.id]["latency_ns"]
            print(f"{result.id}: io - compute {more / 1000:.1f} us, copies {copies / more:.0%} of it (limit 90 to 110)")
        ratio = compare_halves(result.measurements)
        if ratio is not None:
            print(f"{result.id}: even against odd processes {ratio - 1:.2%} apart (limit {HALVES_RATIO - 1:.0%})")
    for batch in {key[2] for key in rows}:
        fp16 = [medians[r.id]["latency_ns"] for k, r in rows.items() if k[1:] == ("fp16", batch, "compute", "hot")]
        for engine, precision in ((GRAPH, "fp32"), ("pytorch", "fp32"), (DEFAULTS, "tf32")):
            base = rows.get((engine, precision, batch, "compute", "hot"))
            if base is not None and fp16:
                ratio = medians[base.id]["latency_ns"] / min(fp16)
                print(f"batch {batch}: best fp16 row {ratio:.2f} times as fast as {engine} {precision}")


def _key(result: Result) -> tuple[str, str, int, str, str]:
    """Engine, precision, batch, scope, cache."""
    spec, measure = result.engine, result.measure
    return format_engine(spec), spec.precision, spec.batch, measure.scope, measure.cache


def _medians(result: Result) -> dict[str, float]:
    """Geometric mean of the process medians of each field that was measured, in ns: as a row's p50 is taken."""
    fields = ("latency_ns", "device_ns", "h2d_ns", "d2h_ns", "staging_ns")
    found = {name: [v for m in result.measurements if (v := getattr(m, name))] for name in fields}
    return {name: geometric_mean([median(values) for values in lists]) for name, lists in found.items() if lists}


def _find_load_s(results: Sequence[Result], configuration_id: str) -> float:
    """Median seconds that a process took to load the row's engine; 0 where none did."""
    found = [m.load_s for r in results if r.id == configuration_id for m in r.measurements if m.load_s]
    return median(found) if found else 0.0


def _show_device_memory(results: Sequence[Result], configuration_id: str) -> str:
    found = [m.peak_device_memory_bytes for r in results if r.id == configuration_id for m in r.measurements]
    return f"{max(b or 0 for b in found) >> 20}M" if found else "-"


def list_kernels(root: Path) -> None:
    """The heaviest kernels of every row of a run, each with the precision that its name was taken for."""
    from enginebench.engines.proof import classify_kernel, is_device_event, record_profile
    from enginebench.models.task import sample_feeds
    from enginebench.runs.child.opening import open_for
    from enginebench.runs.folder import read_results

    folder = RunFolder(root)
    for result in read_results(root)[1]:
        if result.status != "ok" or result.measure.scope == "io" or result.measure.cache == "cold":
            continue
        artifact = folder.absolute(result.artifacts[-1])
        with open_for(result.engine, str(folder.artifacts)).load(artifact, result.engine) as engine:
            engine.bind(sample_feeds(artifact.inputs, result.model, result.engine.batch, 0, 1)[0])
            kernels = [k for run in record_profile(engine.run, use_device="cuda") for k in run if is_device_event(k)]
        spent: dict[str, int] = {}
        for kernel in kernels:
            spent[kernel.name()] = spent.get(kernel.name(), 0) + kernel.duration_ns()
        print(f"-- {result.id}", flush=True)
        for name in sorted(spent, key=lambda n: -spent[n])[:14]:
            print(f"   {spent[name] / sum(spent.values()):6.1%} {classify_kernel(name):8} {name[:150]}", flush=True)


def pack(root: Path) -> Path:
    """One .tar.xz of the run's record and rows; artifacts, which can be made again, stay out."""
    target = root.with_suffix(".tar.xz")
    with tarfile.open(target, "w:xz") as archive:
        for path in (root / "run.json", *sorted((root / "rows").glob("*.json"))):
            archive.add(path, arcname=str(path.relative_to(root.parent)))
    return target


PROBE_CELLS: dict[int, tuple[Cell, ...]] = {
    4: (
        Cell("pytorch", "fp32"),
        Cell(DEFAULTS, "tf32"),
        Cell(GRAPH, "fp32"),
        Cell(GRAPH_NHWC, "fp16"),
        Cell("pytorch-compile", "fp16"),
        Cell(REDUCE, "fp16"),
        Cell("ort-cuda", "fp32"),
        Cell(ORT, "fp16"),
        Cell(GRAPH_NHWC, "fp16", scope="io"),
        Cell(ORT, "fp16", scope="io"),
        Cell(GRAPH_NHWC, "fp16", cache="cold"),
    )
}


STAGES_CELLS = (
    ("resnet18", 1, Cell(GRAPH_FOLDED, "fp16")),
    ("resnet50", 32, Cell(GRAPH_FOLDED, "fp16")),
    ("resnet50", 32, Cell("pytorch", "fp32")),
    ("resnet50", 32, Cell(ORT_FUSED, "fp16")),
)


def time_stages(out: Path) -> None:
    """Where the time goes from file to label; one JSON document each, and the table."""
    for model, batch, cell in STAGES_CELLS:
        target = out / f"stages-{model}-b{batch}-{row_slug(cell)}.json"
        command = [sys.executable, "-m", "enginebench", "stages", model, "--engine", cell.engine]
        command += ["--precision", cell.precision, "--batch", str(batch), "--device", DEVICE, "--weights", "random"]
        command += ["--n", str(max(64, 4 * batch)), "--decoders", "12", "--threads", str(THREADS), "--out", str(target)]
        subprocess.run(command, check=False)


def row_slug(cell: Cell) -> str:
    """Engine and precision as part of a file's name."""
    return f"{parse_engine(cell.engine)[0]}-{cell.precision}"


def check_machine() -> None:
    """Doctor, the tests that need a GPU, and the two bindings that are checked without PyTorch."""
    here = Path(__file__).parent
    commands = (
        ["nvidia-smi"],
        [sys.executable, "-m", "enginebench", "doctor"],
        [sys.executable, str(here / "gpu_cuda_binding.py")],
        [sys.executable, str(here / "gpu_tensorrt_lean.py")],
        [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *GPU_TESTS],
    )
    for command in commands:
        print(f"$ {' '.join(command)}", flush=True)
        subprocess.run(command, check=False)


def probe(out: Path) -> None:
    """One short row of every engine, and the kernels that it ran, by name."""
    part = plan_part("probe", "resnet18", PROBE_CELLS, out, processes=1, time_limit_s=0.5)
    part.measure()
    list_kernels(out / part.name)


def main() -> int:
    """0 if every part came to an end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("/tmp/enginebench-gpu"), help="where the runs' folders lie")
    parser.add_argument("--processes", type=int, default=FULL_PROCESSES)
    parser.add_argument("--time-limit", type=float, default=TIME_LIMIT_S)
    parser.add_argument("parts", nargs="+", choices=["check", "probe", "stages", *PARTS])
    parser.add_argument("--build", action="store_true", help="build and check rows; a call that follows measures them")
    options = parser.parse_args()
    wanted = [name for name in options.parts if name in PARTS]
    start = time.monotonic()
    try:
        prepared = prepare_parts(wanted, options.work, options.processes, options.time_limit)
    except EngineBenchError as error:
        print(f"failed while rows were built: {error}", flush=True)
        return 1
    print(f"== built and checked {len(wanted)} parts in {time.monotonic() - start:.0f} s", flush=True)
    failed = 0
    for name in [] if options.build else options.parts:
        print(f"== {name}", flush=True)
        start = time.monotonic()
        try:
            if name == "check":
                check_machine()
            elif name == "probe":
                probe(options.work)
            elif name == "stages":
                time_stages(options.out)
            else:
                try:
                    prepared[name].measure()
                finally:  # also when it is interrupted: the same part called again goes on
                    packed = pack(options.work / name)
                    (options.out / packed.name).write_bytes(packed.read_bytes())
        except EngineBenchError as error:
            print(f"{name} failed: {error}", flush=True)
            failed = 1
        print(f"== {name} took {time.monotonic() - start:.0f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
