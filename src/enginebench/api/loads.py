"""`load`: latency under arrivals, and the rate at which a limit breaks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from enginebench.api import checks as given
from enginebench.api.checks import Model, PathLike, Shapes
from enginebench.api.progress import open_progress
from enginebench.report.load.document import LoadDocument, LoadSettings, Scenario
from enginebench.workflow.folder import default_folder
from enginebench.workflow.targets.bundles import fill_request, read_target
from enginebench.workflow.verbs.load import check_settings, load_target, make_request, write_load


def load(
    target: Model,
    engine: str | Iterable[str] | None = None,
    *,
    example_inputs: object = None,
    precision: str | Iterable[str] = "fp32",
    scenario: Scenario = "server",
    qps: float | None = None,
    find_capacity: bool = False,
    p99_limit_ms: float | None = None,
    percentile: float = 99.0,
    arrivals: str | PathLike = "poisson",
    duration: float | None = None,
    rounds: int = 1,
    time_budget: float = 900.0,
    streams: int | str | Iterable[int] = 1,
    max_batch: int | str | Iterable[int] = 1,
    max_wait_ms: float = 0.0,
    input_size: int | None = None,
    wait: bool = True,
    resume: bool = False,
    out: PathLike | None = None,
    device: str = "cpu",
    threads: int | None = None,
    seed: int = 0,
    input_shape: Shapes | None = None,
    inputs: PathLike | None = None,
    ort_extension: PathLike | Sequence[PathLike] = (),
    weights: PathLike = "default",
    progress: bool | None = None,
) -> LoadDocument:
    """What engines carry under arrivals: every point, and the capacities.

    The document, its page and its pictures lie in `out`, too.

    Args:
        target: a model as `run` takes it, an engine file, or a bundle.
        engine: ENGINE[:key=value,...], or several, which take turns; a bundle brings its own.
        example_inputs: of a module: a tensor as `forward` takes it, a tuple of them, or {parameter: tensor}.
        precision: fp32, tf32, fp16, bf16, int8 or fp8, with a recipe as in int8@cpu; or several.
        scenario: single, multi, server or offline.
        qps: requests a second; of the scenario `server`.
        find_capacity: look for the highest rate at which `p99_limit_ms` holds.
        p99_limit_ms: limit on the percentile of the latency.
        percentile: that the limit is on.
        arrivals: poisson, constant, or a file with one time in seconds on each line.
        duration: seconds of a point, and of each probe at least; by default 10 and 3.
        rounds: searches of each engine, in turns; a verdict needs 6.
        time_budget: seconds that all searches together may take.
        streams: of the engine, each with `threads`; several make a configuration each.
        max_batch: requests that are computed together at most; several make a configuration each.
        max_wait_ms: how long a request waits for others to fill its batch.
        input_size: height and width of the model's images.
        wait: if another run holds the device, wait for it; else raise DeviceBusy.
        resume: continue the load that `out` holds, asked as before; `rounds` and `time_budget` may be others.
        out: a folder; by default `results/load-TARGET-TIME`.
        device: cpu or cuda:N.
        threads: of each stream; by default all cores but one, shared among the streams.
        seed: of arrivals, inputs and random weights.
        input_shape: {input: shape}, or texts as on the command line.
        inputs: your own: an .npz file, a folder of them, or package.module:function; by default made up.
        ort_extension: libraries of custom operators for ONNX Runtime, or the module onnxruntime_extensions.
        weights: default, random, or the file of a state dict.
        progress: None: a bar in a notebook, silence elsewhere. True: also on stderr. False: never.

    Raises:
        UsageError: a value or a combination that cannot be.
        DependencyError: no engine can run here.
        MeasurementError: nothing was answered.
        KeyboardInterrupt: what was measured is kept in `out`.
    """
    given.check(scenario=scenario, qps=qps, p99_limit_ms=p99_limit_ms, percentile=percentile, duration=duration)
    given.check(rounds=rounds, time_budget=time_budget, max_wait_ms=max_wait_ms, input_size=input_size)
    shared = given.read_shared(device, threads, seed, input_shape, weights, inputs, ort_extension)
    settings = LoadSettings(
        scenario=scenario,
        qps=qps,
        find_capacity=find_capacity,
        limit_ms=p99_limit_ms,
        percentile=percentile,
        arrivals=os.fspath(arrivals),
        duration_s=duration,
        streams=given.read_batches(streams, None) or (1,),
        max_batches=given.read_batches(max_batch, None) or (1,),
        max_wait_ms=max_wait_ms,
        rounds=rounds,
        time_budget_s=time_budget,
    )
    check_settings(settings)
    with given.take_model(target, example_inputs) as taken, open_progress(progress) as reporter:
        root = Path(out) if out is not None else default_folder(f"load-{taken.name}")
        bundle = read_target(taken.text, {"--engine": engine, "--threads": threads, "--input-shape": input_shape})
        request = make_request(
            shared,
            taken.text,
            given.read_engines(engine) if engine else [],
            given.read_precisions(precision),
            input_size=input_size,
            streams=max(settings.streams),
        )
        request = request if bundle is None else fill_request(request, bundle)

        def keep(document: LoadDocument) -> None:
            write_load(root, document)

        document = load_target(request, settings, root, reporter=reporter, wait=wait, resume=resume, on_partial=keep)
    keep(document)
    return document
