"""A run as it comes from a machine: the rows that the tests of the report render."""

from typing import Any

import numpy as np
from msgspec.structs import replace

from enginebench.core import records
from enginebench.core.names import parse_engine, parse_precision
from enginebench.core.warnings import make_warning
from enginebench.report.run.rows import RunDocument, describe_run

ENGINES = {
    "pytorch": ("fp32", 61.3),
    "pytorch-compile": ("fp32", 56.0),
    "pytorch-compile:mode=reduce-overhead": ("fp32", 57.2),
    "ort": ("fp32", 33.5),
    "openvino": ("fp32", 30.3),
    "ort:graph_optimization_level=disable": ("fp32", 44.1),
    "ort:int8": ("int8@cpu", 12.7),
    "openvino:int8": ("int8@nncf", 9.2),
}


def make_measurements(
    median_ms: float, *, processes: int = 10, n: int = 60, sd: float = 0.01, seed: int = 0
) -> tuple[records.Measurement, ...]:
    """Seeded lognormal samples: process medians with deviation `sd`, samples within them with 3 %."""
    rng = np.random.default_rng(seed)
    found = []
    for trial in range(processes):
        centre = median_ms * 1e6 * np.exp(rng.normal(0, sd))
        samples = np.rint(centre * np.exp(rng.normal(0, 0.03, n))).astype(int)
        found.append(
            records.Measurement(
                clock="host",
                latency_ns=samples.tolist(),
                blocks=(records.Block(start=0, stop=n, duration_ns=int(samples.sum()), foreign_cpu_cores=0.01),),
                stop_rule="settled",
                trial=trial,
                warmup_settled=True,
                reference_ns=[1_000_000, 1_001_000],
                call_overhead_ns=90.0,
            )
        )
    return tuple(found)


def make_drift(max_abs: float, *, passed: bool = True, nonfinite: int = 0, centred: float = 0.99999) -> records.Drift:
    output = records.OutputDrift(
        name="logits",
        mean_abs_diff=max_abs / 10,
        max_abs_diff=max_abs,
        mean_rel_diff=max_abs / 5,
        cosine_mean=0.99999,
        cosine_min=0.9999,
        centred_cosine_mean=centred,
        snr_db=90.0,
        top1_agreement=1.0,
        top5_agreement=1.0,
        nonfinite=nonfinite,
    )
    return records.Drift(n=64, outputs=(output,), passed=passed, reference="pytorch-fp32-b1")


def make_scores(value: float | None, n: int = 450, **more: object) -> tuple[records.Score, ...]:
    """A row's scores: one, of top-1 unless `more` says otherwise; None: none."""
    fields: dict[str, Any] = {"metric": "top1", "share": True, **more}
    return () if value is None else (records.Score(value=replace(make_estimate(value), n=n), **fields),)


def make_implausible(result: records.Result) -> records.Result:
    """The row as if its engine had skipped its work in every trial."""
    warning = make_warning("implausible_time.repeated", first_ms=9.0, again_ms=0.1)
    return replace(result, measurements=tuple(replace(m, warnings=(warning,)) for m in result.measurements))


def make_result(
    engine: str = "pytorch",
    precision: str = "fp32",
    median_ms: float = 10.0,
    *,
    batch: int = 1,
    processes: int = 10,
    status: records.Status = "ok",
    reason: str | None = None,
    drift: records.Drift | None = None,
    accuracy: float | None = None,
    warnings: tuple[records.ResultWarning, ...] = (),
    sd: float = 0.01,
    seed: int = 0,
    identity: str = "",
) -> records.Result:
    """One row; its samples are seeded by `seed`."""
    if engine.endswith(":int8"):
        engine = engine.removesuffix(":int8")
    backend, options = parse_engine(engine)
    kind, recipe = parse_precision(precision)
    measured = status in ("ok", "partial")
    return records.Result(
        id=identity or f"{engine}-{precision}-b{batch}",
        model="resnet18",
        engine=records.EngineSpec(backend=backend, options=options, precision=kind, recipe=recipe, batch=batch),
        measure=records.MeasureSpec(processes=processes),
        requested_precision=kind,
        status=status,
        reason=reason,
        measurements=make_measurements(median_ms, processes=processes, sd=sd, seed=seed) if measured else (),
        drift=drift,
        scores=make_scores(accuracy),
        warnings=warnings,
        build_s=1.2,
        size_bytes=46_800_000,
    )


def make_estimate(value: float, low: float | None = None, high: float | None = None) -> records.Estimate:
    return records.Estimate(value=value, low=low, high=high, level=0.95, n=10, method="given")


def make_machine(**changes: object) -> records.Machine:
    fields: dict[str, object] = {
        "os": "Linux 6.1",
        "arch": "x86_64",
        "cpu_model": "Xeon",
        "cpu_flags": ("avx2", "avx512_vnni"),
        "cores_physical": 2,
        "cores_logical": 2,
        "cpus_allowed": (0, 1),
        "cpu_quota_cores": None,
        "memory_bytes": 24 << 30,
        "memory_limit_bytes": None,
        "governor": "performance",
        "cpu_mhz": 2500.0,
        "cpu_max_mhz": None,
        "load_1m": 0.1,
        "virtual": "kvm",
        "last_level_cache_bytes": 32 << 20,
        "default_threads": 1,
        "versions": {"torch": "2.13.0"},
    }
    return records.Machine(**(fields | changes))  # type: ignore[arg-type]


def make_run(*, processes: int = 10, accuracy: bool = False) -> RunDocument:
    """Eight measured rows, one skipped, one failed; the INT8 rows drift."""
    random = records.ResultWarning(
        code="random_weights",
        message="the weights are random (no download possible)",
        advice="pass --weights FILE; speeds hold, accuracy and drift say little",
    )
    results = []
    for seed, (engine, (precision, median_ms)) in enumerate(ENGINES.items()):
        drift = None if engine == "pytorch" else make_drift(0.12 if "int8" in engine else 1.8e-6)
        told = {"warnings": (random,), "accuracy": 0.9911 if accuracy else None}
        results.append(make_result(engine, precision, median_ms, processes=processes, drift=drift, seed=seed, **told))
    results.append(make_result("ort-cuda", status="skipped", reason="no CUDA device; onnxruntime-gpu is not installed"))
    results.append(
        make_result("openvino", "bf16", status="failed", reason="the child died with signal 11 (segmentation fault)")
    )
    return describe_run(model="resnet18", machine=make_machine(), spec={}, results=results)


def make_scene(n: int = 3, boxes: int = 6, seed: int = 3) -> dict[str, np.ndarray]:
    """Boxes with a mask each, and a figure of the whole picture."""
    rng = np.random.default_rng(seed)
    low = rng.uniform(0, 80, (n, boxes, 2))
    return {
        "boxes": np.concatenate([low, low + 15], axis=2),
        "scores": rng.uniform(0.5, 1, (n, boxes)),
        "labels": rng.integers(0, 4, (n, boxes)),
        "masks": rng.standard_normal((n, boxes, 4, 4)),
        "depth": rng.standard_normal((n, 9)),
    }


def reorder(scene: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    order = np.random.default_rng(5).permutation(scene["scores"].shape[1])
    return {name: array[:, order] if name != "depth" else array for name, array in scene.items()}
