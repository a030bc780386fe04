"""`bench`: one engine, or two side by side, and what it returns."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from enginebench.analyze.compare import Comparison
from enginebench.api import checks as given
from enginebench.api.checks import Model, PathLike, Shapes, Side
from enginebench.api.progress import open_progress
from enginebench.api.runs import note_folder
from enginebench.api.tables import make_frame
from enginebench.backends.registry import read_engine
from enginebench.core.errors import BackendUnavailable, GateFailed, MeasurementError, UsageError
from enginebench.core.limits import MARGIN
from enginebench.core.names import parse_precision
from enginebench.core.records import Cache, Result, Scope
from enginebench.report.bench import BenchDocument, describe_bench, list_bench, list_rows, state_verdict
from enginebench.report.page import format_fragment
from enginebench.report.run.rows import Row
from enginebench.report.terminal import format_text
from enginebench.workflow.folder import default_folder, holds_run
from enginebench.workflow.request import PERCENTILES, choose_row_batch, merge_options, name_settings, use_trtexec
from enginebench.workflow.targets.bundles import fill_request, find_row, read_target
from enginebench.workflow.targets.stored import parse_side
from enginebench.workflow.verbs.bench import bench_sides

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False, eq=False)
class Bench:
    """One measured row, or two with a verdict.

    Attributes:
        folder: where the rows lie.
        results: the row; with a comparison the base first, then the candidate.
        margin: of the verdict.
    """

    folder: Path
    results: tuple[Result, ...]
    margin: float = MARGIN

    @cached_property
    def document(self) -> BenchDocument:
        """Every figure, as `enginebench bench --json` prints it; computed from the samples."""
        return describe_bench(self.results, margin=self.margin)

    @property
    def row(self) -> Row:
        """The row of the engine that was asked for."""
        return self.document.row

    @property
    def against(self) -> Row | None:
        """The row of the other side."""
        return self.document.against

    @property
    def comparison(self) -> Comparison | None:
        """The verdict on the two sides, with its ratio; None of a single row."""
        return self.document.comparison

    @property
    def answer(self) -> str:
        """The verdict in a sentence; of a single row, nothing."""
        return state_verdict(self.comparison) if self.comparison else ""

    def to_pandas(self) -> pandas.DataFrame:
        """The columns of `table.csv` as a pandas DataFrame, the rows' ids as its index.

        Raises:
            MissingDependency: pandas is not installed.
        """
        return make_frame(list_rows(self.document))

    def check(self, *, gate: bool = False) -> Bench:
        """The bench itself, if every row of it was measured.

        Args:
            gate: also demand that the candidate is not slower and answers alike.

        Raises:
            BackendUnavailable: an engine cannot run here.
            MeasurementError: a row is not ok.
            GateFailed: the candidate is slower, answers otherwise, or the sides cannot be compared.
        """
        for result in self.results:
            if result.status == "skipped":
                raise BackendUnavailable(f"{result.id}: {result.reason}")
            if result.status != "ok":
                raise MeasurementError(f"{result.id}: {result.reason or result.status}")
        if gate and self.comparison is not None and self.comparison.failures:
            raise GateFailed(f"the gate failed. {self.answer}")
        return self

    def __repr__(self) -> str:
        return format_text(list_bench(self.document))

    def _repr_html_(self) -> str:
        return format_fragment(list_bench(self.document))


def bench(
    target: Model,
    engine: str | None = None,
    *,
    example_inputs: object = None,
    precision: str = "fp32",
    batch: int | None = None,
    against: Side | None = None,
    against_precision: str | None = None,
    gate: bool = False,
    margin: float = MARGIN,
    percentile: Iterable[float] = PERCENTILES,
    input_size: int | None = None,
    timeout: float = 900.0,
    wait: bool = True,
    cuda_graph: bool | None = None,
    profile_index: int | None = None,
    extra: Sequence[str] = (),
    trtexec: str | None = None,
    env: Mapping[str, PathLike] | None = None,
    builds: int | None = None,
    out: PathLike | None = None,
    warmup: int | None = None,
    iters: int | None = None,
    time_limit: float = 3.0,
    processes: int | None = None,
    scope: Scope = "compute",
    cache: Cache = "hot",
    device: str = "cpu",
    threads: int | None = None,
    seed: int = 0,
    input_shape: Shapes | None = None,
    inputs: PathLike | None = None,
    ort_extension: PathLike | Sequence[PathLike] = (),
    weights: PathLike = "default",
    progress: bool | None = None,
) -> Bench:
    """One engine measured on a target; with `against` another beside it, in turns, and a verdict.

    Args:
        target: a model as `run` takes it, an engine file, or a bundle, which brings its engine and settings.
        engine: ENGINE[:key=value,...].
        example_inputs: of modules: a tensor as `forward` takes it, a tuple of them, or {parameter: tensor}.
        precision: fp32, tf32, fp16, bf16, int8 or fp8, with a recipe as in int8@cpu.
        batch: by default that of the example inputs or of `input_shape`, else 1.
        against: the base: ENGINE (on the same target), ENGINE@TARGET, the file of a stored row, a bundle, or
            (ENGINE, model); of a bundle also the folder of its run.
        against_precision: of the base; by default that of `precision`.
        gate: raise GateFailed if the engine is slower, answers otherwise, or cannot be compared.
        margin: of the verdict, as a share.
        percentile: percentiles beside p50 and p99.
        input_size: height and width of the model's images.
        timeout: seconds that one process may take.
        wait: if another run holds the device, wait for it; else raise DeviceBusy.
        cuda_graph: launch as a CUDA graph; by default the engine's own choice.
        profile_index: optimization profile of a plan.
        extra: further arguments for trtexec.
        trtexec: the executable of engine trtexec.
        env: {name: virtual environment or python} for `env=NAME` of an engine, beside those that were made.
        builds: build each engine that builds so many times, from nothing; the build is then the unit of a comparison.
        out: the folder of the rows; by default `results/bench-TARGET-TIME`.
        warmup: exact number of warm-up calls; by default until they have settled.
        iters: exact number of timed calls; by default until they have settled.
        time_limit: seconds of timed calls in one process.
        processes: fresh processes a row, exactly; by default 6 to 10, as many as the verdicts need.
        scope: compute, or io: with the inputs' way in and the outputs' way out.
        cache: hot, or cold: a GPU's L2 is flushed before every call.
        device: cpu or cuda:N.
        threads: of every engine; by default the physical cores.
        seed: of inputs, and of random weights.
        input_shape: {input: shape}, or texts as on the command line.
        inputs: your own: an .npz file, a folder of them, or package.module:function; by default made up.
        ort_extension: libraries of custom operators for ONNX Runtime, or the module onnxruntime_extensions.
        weights: default, random, or the file of a state dict.
        progress: None: a bar in a notebook, silence elsewhere. True: also on stderr. False: never.

    Raises:
        UsageError: a value or a combination that cannot be.
        ModelError: a model cannot be found, built or exported, or something in a module cannot leave this process.
        BackendUnavailable: an engine cannot run here.
        MeasurementError: a row is not ok.
        GateFailed: under `gate`.
    """
    given.name_environments(env)
    shared = given.read_shared(device, threads, seed, input_shape, weights, inputs, ort_extension)
    timing = given.read_timing(warmup, iters, time_limit, processes, scope, cache)
    given.check(
        batch=batch, builds=builds, margin=margin, input_size=input_size, timeout=timeout, profile_index=profile_index
    )
    if against is None and (gate or against_precision):
        raise UsageError(f"{'gate=True' if gate else 'against_precision'} needs against=SIDE: it is about two sides")
    fixed: dict[str, object] = {"--engine": engine, "--batch": batch, "--threads": threads}
    fixed |= {"--input-shape": input_shape}
    fixed |= {"--inputs": shared.inputs, "--input-size": input_size}
    fixed |= {"--profile-index": profile_index, "--cuda-graph": cuda_graph}
    bundle = read_target(str(target), fixed) if isinstance(target, str | os.PathLike) else None
    if bundle is not None and isinstance(against, str | os.PathLike) and holds_run(Path(against)):
        against = find_row(Path(against), bundle)
    name, options = read_engine(engine or "") if bundle is None else (bundle.engine.backend, bundle.engine.options)
    options = merge_options(name, options, name_settings(cuda_graph, profile_index, extra))
    with (
        given.take_model(target, example_inputs) as taken,
        given.take_side(against if against is not None else "", example_inputs) as other,
        open_progress(progress) as reporter,
    ):
        batches = choose_row_batch(batch, options, shared.read_shapes())
        request = shared.make_request(
            taken.text,
            engines=[(name, options)],
            precisions=[parse_precision(precision)],
            batches=given.read_batches(batches, None if input_shape else taken.batch),
            measure=timing.make_measure(
                shared.seed,
                percentiles=given.read_percentiles(percentile),
                builds=builds,
                margin=margin if other else None,
            ),
            input_size=input_size,
        )
        side = parse_side(other, taken.text, parse_precision(against_precision or precision)) if other else None
        use_trtexec(trtexec, (name, side.engine[0]) if side else (name,))
        request = request if bundle is None else fill_request(request, bundle)
        folder = Path(out) if out is not None else default_folder(f"bench-{Path(taken.name).stem}")
        with note_folder(folder):
            results = bench_sides(replace(request, timeout_s=timeout), side, folder, reporter=reporter, wait=wait)
            return Bench(folder, tuple(results), margin).check(gate=gate)
