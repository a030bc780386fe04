"""A small stored run that has everything a report can show; also the generator of the newest `tests/data/result-N`.

    python tests/helpers/stored_run.py DIR

The folder under `tests/data` was written once by the version that its name gives and is never written again: a later
version must still read it.
"""

import sys
from pathlib import Path

from msgspec.structs import replace

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "src")]

from enginebench.core.records import Block, LayerTime, Measurement, Result, ResultWarning, StageTime
from enginebench.core.store import encode
from enginebench.runs.folder import TUNE_FILE, Named, RunFolder, RunRecord, RunRequest, Searched
from samples import make_drift, make_machine, make_measurements, make_result

# Names that a model, an engine option, a layer or a log could carry.
EVIL = '<img src=x onerror="window.hacked=1"></script><script>window.hacked=1</script>{{7*7}} & "quoted"'
COMMAND = ("enginebench", "run", "resnet18", "--engines", "pytorch,ort,openvino", "--out", "a folder")


def make_results(*, processes: int = 6, n: int = 40, evil: bool = False) -> list[Result]:
    """Six rows: FP32 and INT8 with proof and accuracy, a profile, stages, marked blocks, a skipped, a failed one."""
    noise = ResultWarning(code="foreign_cpu", message="other processes used the CPU", advice="stop them")
    random = ResultWarning(code="random_weights", message="the weights are random", advice="pass --weights FILE")
    rows = [
        _measure("pytorch", "fp32", 61.0, 0, processes, n, {"fp32": 1.0}, 0.99, warnings=(random,)),
        _measure("ort", "fp32", 33.0, 1, processes, n, {"fp32": 1.0}, 0.99, warnings=(random, noise)),
        _measure("ort", "int8@cpu", 12.0, 2, processes, n, {"int8": 0.83, "fp32": 0.17}, 0.985, warnings=(random,)),
        _measure("openvino", "int8@nncf", 9.0, 3, processes, n, {"int8": 0.9, "fp32": 0.1}, 0.97, warnings=(random,)),
        make_result("ort-cuda", status="skipped", reason="no CUDA device"),
        make_result("openvino", "bf16", status="failed", reason="the child died with signal 11"),
    ]
    name, kinds = EVIL if evil else "conv", ("fp32", "int8")
    layers = tuple(LayerTime(name=f"{name} {i}", mean_ns=1e5 + 1e4 * i, precision=kinds[i % 2]) for i in range(40))
    stages = (("decode", 4.0), ("copy_in", 0.5), ("compute", 12.0), ("postprocess", 0.1))
    staged = tuple(StageTime(name=name, latency_ns=[int(ms * 1e6)] * 9) for name, ms in stages)
    rows[2] = replace(rows[2], layers=layers, stages=staged)
    rows[1] = replace(rows[1], measurements=_disturb(rows[1]))
    if evil:
        warning, engine = (
            ResultWarning(code="fallback", message=EVIL, advice=EVIL),
            replace(rows[1].engine, options={"x": EVIL}),
        )
        rows[1] = replace(rows[1], engine=engine, warnings=(warning,))
        rows[5] = replace(rows[5], reason=EVIL)
        rows = [replace(row, model=EVIL) for row in rows]
    return rows


def _measure(
    engine: str,
    precision: str,
    median_ms: float,
    seed: int,
    processes: int,
    n: int,
    proof: dict[str, float],
    accuracy: float,
    warnings: tuple[ResultWarning, ...],
) -> Result:
    drift = None if engine == "pytorch" else make_drift(0.12 if "int8" in precision else 1.8e-6)
    row = make_result(engine, precision, median_ms, drift=drift, accuracy=accuracy, warnings=warnings, seed=seed)
    measured = make_measurements(median_ms, processes=processes, n=n, seed=seed)
    dated = tuple(replace(m, started_utc=f"2026-11-01T10:{m.trial:02d}:00+00:00") for m in measured)
    return replace(row, measurements=dated, effective_precision=proof, machine=make_machine())


def _disturb(row: Result) -> tuple:  # type: ignore[type-arg]
    """The measurements with the second half of the second process marked."""
    second = row.measurements[1]
    n = len(second.latency_ns)
    blocks = (
        Block(start=0, stop=n // 2, duration_ns=1000, foreign_cpu_cores=0.0),
        Block(start=n // 2, stop=n, duration_ns=1000, foreign_cpu_cores=0.9, marks=("foreign_cpu",)),
    )
    return (row.measurements[0], replace(second, blocks=blocks), *row.measurements[2:])


def make_results_with_warnings(n: int = 200) -> list[Result]:
    """The same six rows: `ort fp32` and `openvino int8@nncf` are suspect, `ort int8@cpu` is invalid."""
    rows = make_results(n=n)
    for place, processes in ((1, 3), (2, 6), (3, 2)):
        rows[place] = replace(rows[place], measurements=_spoil(rows[place].measurements, processes))
    return rows


def _spoil(measurements: tuple[Measurement, ...], processes: int) -> tuple[Measurement, ...]:
    """The measurements with every sample of the first `processes` taken beside a busy neighbour."""
    noisy = Block(start=0, stop=len(measurements[0].latency_ns), duration_ns=1000, foreign_cpu_cores=0.9)
    noisy = replace(noisy, marks=("foreign_cpu",))
    return tuple(replace(m, blocks=(noisy,)) if i < processes else m for i, m in enumerate(measurements))


def write_run(root: Path, results: list[Result], command: tuple[str, ...] = COMMAND) -> Path:
    """The run's folder, as `enginebench run` leaves it, without artifacts."""
    folder = RunFolder(root)
    record = RunRecord(
        request=RunRequest(model="resnet18", engines=(("pytorch", {}), ("ort", {}), ("openvino", {}))),
        machine=make_machine(),
        started_utc="2026-11-01T10:00:00+00:00",
        rows=tuple(result.id for result in results),
        command=command,
    )
    folder.create(record)
    for result in results:
        folder.write_result(result)
    return root


def write_final(root: Path, winner: str | None, challenger_ms: float = 4.7) -> Path:
    """The final of a search: a setting of ort against the defaults of ort and of PyTorch, which is far slower."""
    alike = make_drift(1e-6)
    rows = [
        make_result("ort:spinning=never", median_ms=challenger_ms, sd=0.1, seed=1, drift=alike, identity="challenger"),
        make_result("pytorch", median_ms=10.0, seed=2, identity="pytorch-fp32-b1"),
        make_result("ort", median_ms=5.0, seed=3, drift=alike, identity="default"),
    ]
    folder = RunFolder(write_run(root, rows))
    folder.write_record(replace(folder.read_record(), verb="tune"))
    (root / TUNE_FILE).write_bytes(encode(Searched(winner=Named(id=winner) if winner else None)))
    return root


if __name__ == "__main__":
    write_run(Path(sys.argv[1]), make_results(n=24))
