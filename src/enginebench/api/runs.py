"""`run`: the main job, and what it returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from enginebench.analyze.ranking import Ref
from enginebench.api import checks as given
from enginebench.api.checks import Axes, Model, PathLike, Shapes
from enginebench.api.deliveries import deliver
from enginebench.api.progress import open_progress
from enginebench.api.tables import make_frame
from enginebench.bundle.writing import check_free
from enginebench.core.errors import EngineBenchError, UsageError
from enginebench.core.records import Cache, Result, Scope, Task
from enginebench.models.zoo import OBJECT
from enginebench.report.page import format_fragment
from enginebench.report.run.head import format_lines
from enginebench.report.run.rows import Row, RunDocument
from enginebench.report.run.sections import list_sections
from enginebench.report.terminal import format_text
from enginebench.workflow.campaign import judge_outcome, judge_precisions
from enginebench.workflow.folder import RunFolder, RunRecord, default_folder
from enginebench.workflow.main_job import run_model
from enginebench.workflow.reporting import FORMATS, Written, check_formats, describe_stored, write_reports
from enginebench.workflow.request import check_baseline, choose_drop, name_default_engines, use_trtexec
from enginebench.workflow.verbs.deliver import DeliverDocument

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False, eq=False)
class Run:
    """A run: its rows, its answer, and the folder in which everything lies.

    Attributes:
        folder: with `run.json`, a file for each row, and the artifacts.
        record: what was asked, and on which machine.
        results: a row each, with its raw samples.
    """

    folder: Path
    record: RunRecord
    results: tuple[Result, ...]

    @cached_property
    def document(self) -> RunDocument:
        """Every figure of the run, as `enginebench run --json` prints it; computed from the samples."""
        return describe_stored(self.record, self.results)

    @property
    def rows(self) -> tuple[Row, ...]:
        """A row for each engine, precision and batch, in the order of the table; times in ms with their intervals."""
        return self.document.rows

    @property
    def answer(self) -> str:
        """The three lines FASTEST, OUTPUTS and TRUST, as every report begins."""
        return "\n".join(format_lines(self.document))

    @property
    def fastest(self) -> Ref | None:
        """The row with the lowest median whose outputs are not known to be changed; None if nothing was measured."""
        return self.document.fastest

    @property
    def recommended(self) -> Ref | None:
        """What the headline says to take, within the limits of accuracy and p99; None if no row keeps to them."""
        return self.document.recommended

    def to_pandas(self) -> pandas.DataFrame:
        """The columns of `table.csv` as a pandas DataFrame, the rows' ids as its index.

        Raises:
            MissingDependency: pandas is not installed.
        """
        return make_frame(self.document)

    def write_report(self, formats: str | Iterable[str] = FORMATS) -> Written:
        """Writes page, tables and pictures into the folder; says which, and why some are missing.

        Args:
            formats: of html, md, csv, json, png.

        Raises:
            UsageError: a format is unknown.
            ArtifactError: the folder cannot be written.
        """
        asked = check_formats(given.list_texts(formats))
        return write_reports(self.folder, self.document, asked, record=self.record, results=self.results)

    def deliver(
        self, out: PathLike, *, row: str | None = None, forms: str | Iterable[str] = (), force: bool = False
    ) -> DeliverDocument:
        """Writes a row as a bundle that runs without EngineBench; see `deliver`.

        Args:
            out: the folder of the bundle; it must be empty or not there.
            row: the row, by its id; by default the recommended one.
            forms: what to write beside the bundle: triton, kserve, dockerfile.
            force: hand it over though it does not pass its own check here.
        """
        return deliver(self.folder, out, row=row, forms=forms, force=force)

    def check(self, *, strict_precision: bool = False) -> Run:
        """The run itself, if the baseline and at least one other row are ok.

        Args:
            strict_precision: also demand that every row ran in the precision that was asked for.

        Raises:
            BackendUnavailable: no row could run here.
            MeasurementError: the baseline, or every other row, is not ok.
            GateFailed: a row ran in another precision.
        """
        judge_outcome(self.results, self.record.request)
        if strict_precision:
            judge_precisions(self.results)
        return self

    def __repr__(self) -> str:
        return format_text(list_sections(self.document, folder=self.folder))

    def _repr_html_(self) -> str:
        return format_fragment(list_sections(self.document, folder=self.folder, warnings=True))


def run(
    model: Model,
    *,
    example_inputs: object = None,
    engines: str | Iterable[str] | None = None,
    precisions: str | Iterable[str] = "fp32",
    batch: int | str | Sequence[int] | None = None,
    quick: bool = False,
    baseline: str | None = None,
    data: PathLike | None = None,
    calibration_method: str = "minmax",
    metric: str | Iterable[str] = (),
    targets: PathLike | None = None,
    task: Task | None = None,
    max_metric_drop: float | None = None,
    max_top1_drop: float | None = None,
    p99_limit_ms: float | None = None,
    load_p99_ms: float | None = None,
    strict_precision: bool = False,
    input_size: int | None = None,
    dynamic_axes: Axes = (),
    timeout: float = 900.0,
    trtexec: str | None = None,
    env: Mapping[str, PathLike] | None = None,
    builds: int | None = None,
    resume: bool = False,
    deliver: PathLike | None = None,
    wait: bool = True,
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
) -> Run:
    """The engines measured on a model, each checked for its answers; stored row by row in a folder.

    Args:
        model: a name (see `list_models`), `timm:NAME`, the path of an .onnx file, `package.module:factory`, or a
            `torch.nn.Module`. A module is measured as a copy in eval mode; it stays as it is itself.
        example_inputs: of a module: a tensor as `forward` takes it, a tuple of them, or {parameter: tensor}.
        engines: ENGINE[:key=value,...], separated by commas or in a list; by default those of the device.
        precisions: fp32, tf32, fp16, bf16, int8, fp8, with a recipe as in int8@cpu.
        batch: one or several; by default that of the example inputs or of `input_shape`, else 1.
        quick: one short process a row: an impression, no claims.
        baseline: the ENGINE that speed-ups refer to; by default pytorch, else the first.
        data: labelled data, a folder or "digits": accuracy, and ranges for int8.
        calibration_method: minmax, entropy or percentile.
        metric: names of built-in metrics, or package.module:function; the first one decides. By default that of `task`.
        targets: the file of right answers to `inputs` or `data`, one for each sample.
        task: what the model is for: how its answers are read, its metric, and what drift means.
        max_metric_drop: what the recommended row may lose of the metric, in its own unit; by default 0.01 of a share,
            1 % of anything else.
        max_top1_drop: the same of top-1 accuracy, in points.
        p99_limit_ms: that the recommended row keeps to.
        load_p99_ms: look for the rate at which the rows that won hold this p99 under arrivals.
        strict_precision: raise GateFailed if a row ran in another precision than asked.
        input_size: height and width of the model's images.
        dynamic_axes: {input: axes} that an export leaves open beside the batch, or texts as on the command line.
        timeout: seconds that one process may take.
        trtexec: the executable of engine trtexec.
        env: {name: virtual environment or python} for `env=NAME` of an engine, beside those that were made.
        builds: build each engine that builds so many times, from nothing; the build is then the unit of a comparison.
        resume: continue the run that `out` holds.
        deliver: a folder for the recommended row as a bundle.
        wait: if another run holds the device, wait for it; else raise DeviceBusy.
        out: the run's folder; by default `results/MODEL-TIME`.
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
        ModelError: the model cannot be found, built or exported, or something in a module cannot leave this process.
        BackendUnavailable: no row could run here.
        MeasurementError: the baseline, or every other row, is not ok. The rows are kept in the folder all the same.
        KeyboardInterrupt: what was measured is kept; a note on the exception says where.
    """
    given.name_environments(env)
    shared = given.read_shared(device, threads, seed, input_shape, weights, inputs, ort_extension)
    timing = given.read_timing(warmup, iters, time_limit, processes, scope, cache)
    given.check(
        calibration_method=calibration_method,
        max_metric_drop=max_metric_drop,
        max_top1_drop=max_top1_drop,
        p99_limit_ms=p99_limit_ms,
    )
    given.check(input_size=input_size, timeout=timeout, builds=builds, task=task, load_p99_ms=load_p99_ms)
    if deliver is not None:
        check_free(Path(deliver))
    if resume and out is None:
        raise UsageError("resume=True needs out=FOLDER, that of the run to continue")
    named = engines if engines is not None else name_default_engines(shared.device)
    chosen = given.read_engines(named)
    check_baseline(baseline, chosen, named if isinstance(named, str) else ",".join(named))
    use_trtexec(trtexec, ("trtexec",) if resume else (name for name, _ in chosen))
    with given.take_model(model, example_inputs) as taken, open_progress(progress) as reporter:
        request = shared.make_request(
            taken.text,
            engines=chosen,
            precisions=given.read_precisions(precisions),
            batches=given.read_batches(batch, None if input_shape else taken.batch),
            measure=timing.make_measure(shared.seed, quick=quick, builds=builds),
            input_size=input_size,
        )
        request = replace(
            request,
            any_engine=engines is None,
            dynamic_axes=given.read_axes(dynamic_axes),
            timeout_s=timeout,
            baseline=baseline,
            quick=quick,
            data=None if data is None else str(data),
            calibration_method=calibration_method,
            metrics=given.read_metrics(metric),
            targets=None if targets is None else str(targets),
            task=task,
            max_metric_drop=choose_drop(max_metric_drop, max_top1_drop, given.read_metrics(metric)),
            p99_limit_ms=p99_limit_ms,
            load_p99_ms=load_p99_ms,
        )
        folder = Path(out) if out is not None else default_folder(taken.name)
        if resume:
            check_same_object(folder, taken.text)
        with note_folder(folder):
            record, results = run_model(request, folder, reporter=reporter, resume=resume, wait=wait)
            done = Run(folder, record, tuple(results)).check(strict_precision=strict_precision)
    if deliver is not None:
        done.deliver(deliver)
    return done


def check_same_object(folder: Path, text: str) -> None:
    """Checks that the run to continue is of this module, if MODEL is a module.

    Raises:
        UsageError: it is of another one.
    """
    stored = RunFolder(folder).read_record().request.model
    if stored != text and OBJECT.fullmatch(text):
        raise UsageError(
            f"{folder} holds a run of {stored}, and this module is {text}: another one, or one whose class a script or "
            "notebook defines, which is another one in each process. Start a new run in another folder; a run of "
            "package.module:factory can be continued anywhere"
        )


@contextmanager
def note_folder(folder: Path) -> Iterator[None]:
    """Adds to an error or an interrupt where that lies which was measured before it."""
    try:
        yield
    except (EngineBenchError, KeyboardInterrupt) as error:
        if any((folder / "rows").glob("*.json")):
            error.add_note(
                f"what was measured is kept: enginebench.read({str(folder)!r}); to go on: the same call with "
                f"out={str(folder)!r}, resume=True"
            )
        raise
