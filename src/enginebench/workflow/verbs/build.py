"""The verb `build`: from an ONNX file to an engine file."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from enginebench.analyze.effective import judge_precision
from enginebench.backends.registry import accepts, check_options, find_device, find_entry, read_engine
from enginebench.core.caveats import make_caveat
from enginebench.core.errors import ArtifactError, ParseError, UsageError
from enginebench.core.names import known, parse_precision
from enginebench.core.plan_notes import write_note
from enginebench.core.records import AheadOfTime, Artifact, Caveat, EngineSpec, Precision
from enginebench.core.store import copy_file, hash_file, read_record
from enginebench.workflow.child.elsewhere import find_available
from enginebench.workflow.child.isolate import child_environment, run_child
from enginebench.workflow.child.jobs import BuildAnswer, BuildJob, ProbeJob, Proof
from enginebench.workflow.child.places import enter, find_place
from enginebench.workflow.child.proving import doubt_record
from enginebench.workflow.lock import lock_devices
from enginebench.workflow.progress import Reporter
from enginebench.workflow.request import merge_options
from enginebench.workflow.verbs.dry_run import check_batch_axis, needs_graph, open_composing, quantized_path

# Importing TensorRT takes seconds.
CHECK_TIMEOUT_S = 120.0


class BuildDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `build`."""

    schema: str = "enginebench.build/1"
    artifact: Artifact
    lowered: Artifact | None
    build_s: float
    command: tuple[str, ...] | None
    tensorrt_version: str | None
    effective_precision: dict[str, float] | None
    caveats: tuple[Caveat, ...]


class BuildSettings(Struct, frozen=True, kw_only=True):
    """What can be said of a build beside engine, precision and batch."""

    workspace_mb: int | None = None
    min_shapes: str | None = None
    opt_shapes: str | None = None
    max_shapes: str | None = None
    profile: tuple[str, ...] = ()
    timing_cache: Path | None = None
    optimization_level: int | None = None
    version_compatible: bool = False
    hardware_compatibility: str = "none"
    plugins: tuple[Path, ...] = ()
    refit: bool = False
    strip: bool = False
    weak_typing: bool = False
    calib: Path | None = None
    calib_cache: Path | None = None
    compute_capability: str | None = None
    trtexec: str | None = None
    extra: tuple[str, ...] = ()

    def list_options(self) -> dict[str, str]:
        """The `key=value` options of an engine that these settings are."""
        weak = self.weak_typing
        settings = {
            "workspace_mb": self.workspace_mb,
            "min_shapes": self.min_shapes,
            "opt_shapes": self.opt_shapes,
            "max_shapes": self.max_shapes,
            "profiles": "\n".join(self.profile),
            "timing_cache": self.timing_cache and self.timing_cache.absolute(),
            "optimization_level": self.optimization_level,
            "version_compatible": int(self.version_compatible) or None,
            "hardware_compatibility": None if self.hardware_compatibility == "none" else self.hardware_compatibility,
            "plugins": "\n".join(str(path) for path in self.plugins),
            "refit": int(self.refit) or None,
            "strip": int(self.strip) or None,
            "weak_typing": int(weak) or None,
            "calib_cache": self.calib_cache.absolute() if self.calib_cache and weak else None,
            "calib_data": self.calib.absolute() if self.calib and weak else None,
            "compute_capability": self.compute_capability,
            "path": self.trtexec,
            "extra": shlex.join(self.extra),
        }
        return {key: str(value) for key, value in settings.items() if value not in (None, "")}


def plan_engine(
    onnx: Path, engine: str, precision: str | None, batch: int | None, device: str, settings: BuildSettings
) -> EngineSpec:
    """The engine that is asked for; without a precision in that of the graph.

    Raises:
        UsageError: settings that contradict each other, or that the engine does not have.
    """
    from enginebench.models.onnx.source import read_onnx_head

    name, own = read_engine(engine)
    wanted, recipe = parse_precision(precision) if precision else (read_onnx_head(onnx).precision, None)
    options = settings.list_options()
    if name != "trtexec" and options.keys() & {"path", "extra"}:
        raise UsageError(f"--trtexec, --extra and arguments after -- are for the engine trtexec, not for {name}")
    if name == "trtexec" and "calib_data" in options:
        raise UsageError(
            "trtexec cannot calibrate on data; give --calib-cache instead of --calib, or use --engine tensorrt"
        )
    options = merge_options(name, own, options)
    if batch is not None:
        _check_batch(options)
    spec = EngineSpec(backend=name, options=options, device=device, precision=wanted, recipe=recipe, batch=batch or 1)
    check_options(enter(spec))
    return spec


def _check_batch(options: Mapping[str, str]) -> None:
    """Checks that no shapes override a given batch, unless there are arrays to calibrate on, which it would cut."""
    shapes = options.keys() & {"min_shapes", "opt_shapes", "max_shapes", "profiles"}
    if shapes and "calib_data" not in options:
        raise UsageError(
            "--batch sets a dynamic axis without shapes; here the shapes say what is built. Leave out --batch, or put "
            "the batch into the shapes"
        )


def build_engine(
    onnx: Path,
    out: Path,
    spec: EngineSpec,
    *,
    calib: Path | None = None,
    calib_cache: Path | None = None,
    timeout_s: float,
    reporter: Reporter,
) -> BuildDocument:
    """Builds the engine file `out`. Log, layers and cache stay in `<out>.build`, where a repeat finds the plan.

    A graph in another precision than asked for is quantized first, unless typing is weak; `reporter` says so.

    Args:
        onnx: the graph.
        out: the engine file.
        spec: the engine and its options.
        calib: ranges or arrays, if the graph must be quantized.
        calib_cache: ranges as TensorRT's text cache, instead of `calib`.
        timeout_s: the build is killed after this time.
        reporter: progress.

    Raises:
        UsageError: the engine builds no file, or its version does not know an option.
        ArtifactError: the graph cannot be quantized or built; the message names the first error and the log.
        MissingDependency: the engine is not installed.
    """
    from enginebench.models.onnx.source import read_onnx_head

    if "plan" not in accepts(spec.backend):
        raise UsageError(f"engine {spec.backend} builds while it loads, so there is no file to keep. Use bench or run")
    if out.exists() and out.samefile(onnx):
        raise UsageError(f"--out {out} is the graph itself, which the engine file would replace; choose another --out")
    artifact = read_onnx_head(onnx)
    check_batch_axis(artifact, spec)
    if find_entry(spec.backend).find_program is not None:  # a wrong option is told before a graph is quantized
        open_composing(spec).compose_build(artifact, str(out), spec, None)
    doubts = judge_ranges(artifact, calib, calib_cache) if spec.options.get("weak_typing") == "1" else ()
    if needs_graph(spec, artifact.precision):
        _check_ahead(artifact, spec)
        onnx = quantize_first(onnx, known(artifact.precision), spec, calib, calib_cache, reporter)
    elif (calib or calib_cache) and spec.options.get("weak_typing") != "1":
        raise UsageError(
            f"{onnx} is {artifact.precision} already; it needs no --calib or --calib-cache; leave them out"
        )
    spec = replace(spec, device=find_device(spec.backend, spec.device))
    reporter.step(f"{onnx.name}: building with {spec.backend}")
    # A builder that times kernels: a run beside it would spoil its choice, and it would spoil the run's times.
    busy = (spec.device,) if find_entry(spec.backend).tunes else ()
    with open_folder(out.with_name(f"{out.name}.build").absolute()) as folder, lock_devices(busy, on_wait=reporter.say):
        answer = run_child(
            BuildJob(source=str(onnx.absolute()), engine=spec, out_dir=str(folder)),
            timeout_s=timeout_s,
            environment=child_environment(spec.threads),
            on_note=lambda text: reporter.step(f"{onnx.name}: {text}"),
        )
    document = describe_build(answer, out, known(spec.precision), spec.device, doubts)
    write_note(out, answer.artifact, spec.precision)
    return document


class _StoredPlan(Struct):
    """What the file beside a stored plan says of the graph, and of the plan itself."""

    record: _PlanRecord
    sha256: str


class _PlanRecord(Struct):
    onnx_sha256: str


def find_graph(plan: Path) -> Path | None:
    """The graph that `build_engine` made a plan of, where it is still beside it in OUT.build, unchanged."""
    from enginebench.models.onnx.source import read_onnx

    folder = plan.with_name(f"{plan.name}.build")
    if not folder.is_dir() or find_spec("onnxruntime") is None:
        return None
    known, sha256 = set(), hash_file(plan)
    for path in folder.glob("plans/*.json"):
        with suppress(ParseError):
            stored = read_record(path, _StoredPlan)
            known |= {stored.record.onnx_sha256} if stored.sha256 == sha256 else set()
    for path in folder.glob("*/*.onnx"):
        with suppress(ArtifactError):
            if read_onnx(path).sha256 in known:
                return path
    return None


def _check_ahead(artifact: Artifact, spec: EngineSpec) -> None:
    """Asks the engine, where it runs, for what its version is known not to build, before a graph is made for it."""
    if find_available(spec).available:
        job = ProbeJob(engine=spec.backend, to_build=(artifact, enter(spec)))
        run_child(job, timeout_s=CHECK_TIMEOUT_S, place=find_place(spec))


@contextmanager
def open_folder(folder: Path) -> Iterator[Path]:
    """The folder, created if it does not exist; if so, and the user interrupts the build, it goes with it.

    What a build that was killed has left unfinished goes in any case: its process cannot remove it.

    Raises:
        ArtifactError: it cannot be created.
    """
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtifactError(f"cannot create {folder}: {error.strerror}. Choose another --out") from error
    try:
        yield folder
    except KeyboardInterrupt:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        for part in folder.glob("plans/*.part"):
            part.unlink(missing_ok=True)


def judge_ranges(artifact: Artifact, calib: Path | None, calib_cache: Path | None) -> tuple[Caveat, ...]:
    """The caveats on the ranges that TensorRT's own calibrator takes under weak typing.

    Raises:
        ArtifactError: the arrays do not fit the graph, or were prepared for another preprocessing.
    """
    from enginebench.models.precision.calibration import explain_external
    from enginebench.models.precision.calibration_data import open_arrays
    from enginebench.workflow.child.perform.answers import check_prepared_alike

    if calib_cache is not None and (calib is None or calib_cache.exists()):  # else the build writes it
        return (explain_external(f"ranges come from TensorRT's cache {calib_cache.name}"),)
    if calib is None:
        return ()
    data = open_arrays(calib, artifact.inputs, 1)
    check_prepared_alike(artifact, data.preprocess_sha256)
    return data.caveats


def quantize_first(
    onnx: Path, precision: str, spec: EngineSpec, calib: Path | None, calib_cache: Path | None, reporter: Reporter
) -> Path:
    """The graph in the precision of `spec`, written beside the given one."""
    from enginebench.workflow.verbs.quantize import quantize_file

    target = quantized_path(onnx, spec)
    reporter.say(f"{onnx} is {precision}; quantizing it to {target} first")
    quantize_file(
        onnx,
        target,
        to=known(spec.precision),
        recipe=spec.recipe,
        calib=calib,
        calib_cache=calib_cache,
        threads=spec.threads,
        reporter=reporter,
    )
    return target


def describe_build(
    answer: BuildAnswer, out: Path, requested: Precision, device: str, doubts: tuple[Caveat, ...] = ()
) -> BuildDocument:
    """Puts the built file at `out` and describes it, with the precision that ran if that contradicts `requested`."""
    assert answer.proof is not None
    ran, doubts_of_proof = _judge(requested, answer.proof, device, answer.artifact.ahead_of_time)
    plan = Path(answer.artifact.path)
    copy_file(plan, out)
    return BuildDocument(
        artifact=replace(answer.artifact, path=str(out), precision=ran),
        lowered=answer.lowered,
        build_s=answer.build_s,
        command=read_command(plan.with_suffix(".build.log")),
        tensorrt_version=answer.engine_version,
        effective_precision=answer.proof.effective_precision,
        caveats=(*answer.artifact.caveats, *doubts, *doubts_of_proof),
    )


def _judge(
    requested: Precision, proof: Proof, device: str, ahead: AheadOfTime | None
) -> tuple[Precision | None, tuple[Caveat, ...]]:
    """The precision that the plan is named after, and caveats: it is usable even if its precision cannot be proved."""
    if ahead is not None:
        return requested, (
            make_caveat("unproved_precision.ahead", asked=requested, products=list_products(ahead, requested)),
        )
    if proof.failure is not None:
        return requested, (doubt_record(requested, proof.failure),)
    return judge_precision(requested, proof.effective_precision, device)


def list_products(ahead: AheadOfTime, requested: Precision) -> str:
    """The products of a plan by precision, as a sentence has them: "20 of 21 products in int8, 1 in fp32"."""
    total = sum(ahead.products.values())
    # Types alone do not tell them apart, and the builder was told that it may shorten the one to the other.
    names = {"fp32": "fp32 or tf32"} if requested == "tf32" else {}
    parts = [f"{count} in {names.get(precision, precision)}" for precision, count in ahead.products.items()]
    return ", ".join(parts).replace(" in ", f" of {total} products in ", 1) or "no layer is a product"


def read_command(log: Path) -> tuple[str, ...] | None:
    """The command line at the top of a log; None if no program was run."""
    try:
        with log.open(encoding="utf-8", errors="replace") as file:
            first = file.readline()
        return tuple(shlex.split(first.removeprefix("$ "))) if first.startswith("$ ") else None
    except (OSError, ValueError):
        return None
