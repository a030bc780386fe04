"""`build`: from an ONNX file, or a PyTorch model, to an engine file."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypedDict

import click
from msgspec import Struct, field
from msgspec.structs import replace

from enginebench import door
from enginebench.core.aoti import is_package
from enginebench.core.commands import advise_dynamic_batch, format_command
from enginebench.core.errors import UsageError
from enginebench.core.names import format_precision, parse_precision, require_precision, slug
from enginebench.core.plan_notes import write_note
from enginebench.core.recipes import FEW_BITS, find_graph_precision
from enginebench.core.records import AheadOfTime, Artifact, EngineSpec, ModelSource, Precision, ResultWarning
from enginebench.core.store import bring_files, copy_file, explain_writing, hash_file
from enginebench.core.text import clean_text
from enginebench.core.warnings import format_warning, make_warning
from enginebench.engines.abilities import Change, Composed
from enginebench.engines.registry import (
    accepts,
    check_options,
    choose_plan_builder,
    find_device,
    find_entry,
    name_library,
    read_engine,
)
from enginebench.measure.pin import default_threads
from enginebench.models.zoo import require_packages, resolve_model
from enginebench.options import (
    CalibCache,
    Extra,
    InputDtype,
    Normalize,
    Opt,
    PathLike,
    Printed,
    Progress,
    Trtexec,
    Unpack,
    Wait,
    verb,
)
from enginebench.runs.child.environments import find_environment, require_available, strip_environment
from enginebench.runs.child.isolate import run_child
from enginebench.runs.child.jobs import BuildJob, BuildResponse, ProbeJob, Proof, SourceJob
from enginebench.runs.child.proving import make_record_warning
from enginebench.runs.lock import lock_devices
from enginebench.runs.progress import Reporter, report_steps
from enginebench.runs.request import join_argv, merge_options, read_normalize, use_trtexec
from enginebench.runs.targets.scratch import open_scratch
from enginebench.runs.trust import allow_model
from enginebench.stats.effective import check_precision
from enginebench.verbs.common import open_composing, open_progress, read_device, to_path
from enginebench.verbs.quantize import open_calibration, quantize

# Importing TensorRT takes seconds.
CHECK_TIMEOUT_S = 120.0


class DryRunning(TypedDict, total=False):
    dry_run: Annotated[bool, Opt("Print trtexec's command as one shell line; run nothing.", False, feature="trtexec")]
    tensorrt_version: Annotated[
        str | None,
        Opt("With --dry-run: write the command for this version, installed or not.", metavar="V", feature="trtexec"),
    ]


class BuildDocument(Struct, frozen=True, kw_only=True):
    schema: str = "enginebench.build/1"
    artifact: Artifact
    lowered: Artifact | None
    build_s: float
    command: tuple[str, ...] | None
    tensorrt_version: str | None
    effective_precision: dict[str, float] | None
    warnings: tuple[ResultWarning, ...] = field(name="caveats")


# TensorRT's own tool, where it is known.
USUAL = choose_plan_builder()


class BuildOptions(Progress, total=False):
    engine: Annotated[str, Opt("trtexec, tensorrt, tensorrt-rtx or pytorch-aoti, with key=value options.", USUAL)]
    precision: Annotated[
        str | None,
        Opt(
            "Precision of the engine. [that of the graph]",
            more="A graph in another one is quantized first, with a note",
        ),
    ]
    batch: Annotated[
        int | None,
        Opt(
            "Batch for a dynamic axis without given shapes. [1]",
            ge=1,
            more="Beside shapes it is refused, since they decide what is built; but with `--weak-typing --calib` it is "
            "the batch to calibrate with",
        ),
    ]
    workspace_mb: Annotated[int | None, Opt("Scratch memory for one layer. [the GPU's memory]", ge=1)]
    min_shapes: Annotated[str | None, Opt("Smallest shapes: NAME:1x3x224x224, several separated by commas.")]
    opt_shapes: Annotated[str | None, Opt("Shapes to tune for.")]
    max_shapes: Annotated[str | None, Opt("Largest shapes.")]
    profile: Annotated[
        Sequence[str],
        Opt("One more optimization profile; can be repeated.", (), metavar="NAME:MIN/OPT/MAX", multiple=True),
    ]
    timing_cache: Annotated[PathLike | None, Opt("File that keeps timings between builds.", path="new file")]
    optimization_level: Annotated[int | None, Opt("How hard the builder searches. [3]", ge=0, le=5)]
    version_compatible: Annotated[bool, Opt("The plan also runs on later versions of the same major version.", False)]
    hardware_compatibility: Annotated[
        Literal["none", "ampere+", "sameComputeCapability"], Opt("Other GPUs that the plan also runs on.", "none")
    ]
    compute_capability: Annotated[
        str | None,
        Opt(
            "GPUs that a plan of tensorrt-rtx is for, such as 8.6,8.9,12.0. [all from 8.0 that have the precision]",
            metavar="LIST",
        ),
    ]
    plugins: Annotated[Sequence[PathLike], Opt("A plugin library; can be repeated.", (), multiple=True, path="file")]
    refit: Annotated[bool, Opt("Allow the weights to be replaced later.", False)]
    strip: Annotated[bool, Opt("Leave out the weights; refit them later.", False)]
    use_dla: Annotated[
        int | None, Opt("DLA core of a Jetson that runs what it can, and the GPU the rest.", ge=0, le=1, metavar="CORE")
    ]
    weak_typing: Annotated[bool, Opt("Set the precision by builder flags (TensorRT 10 and older).", False)]
    calib: Annotated[
        PathLike | None,
        Opt(
            "Ranges, or arrays or images to take them from.",
            metavar="calib.json|F.npy|F.npz|DIR",
            path="any",
            more="The graph gets Q/DQ nodes of these ranges first. Under weak typing `tensorrt` runs TensorRT's own "
            "calibrator on the entries and keeps its cache; `trtexec` takes `--calib-cache` only",
        ),
    ]
    calib_cache: CalibCache
    trtexec: Trtexec
    extra: Extra
    device: Annotated[str | None, Opt("cuda:N; also cpu for pytorch-aoti. [cuda:0; cpu for pytorch-aoti]")]
    input_dtype: InputDtype
    normalize: Normalize
    timeout: Annotated[float, Opt("Seconds that the build may take.", 7200.0, ge=1)]
    wait: Wait


class BuildPrinted(DryRunning, Printed, total=False):
    explain: Annotated[
        bool,
        Opt(
            "With --tensorrt-version 11 or later: list what of this command, its cache and its graph must change.",
            False,
            feature="trtexec",
            more="The command may be one of TensorRT 10 or older, also trtexec's own, after `--`",
        ),
    ]


Out: TypeAlias = Annotated[PathLike, Opt("The engine file. [F.plan; MODEL.pt2 for pytorch-aoti]", path="new file")]


@verb(BuildOptions)
def build(onnx: PathLike, out: Out, **options: Unpack[BuildOptions]) -> BuildDocument:
    """Build an engine file from F.onnx, or from a PyTorch model, which is exported first unless for pytorch-aoti.

    Example: enginebench build model.onnx --precision fp16 --out model.plan

    The log, the layers and the timing cache are kept beside the engine. Arguments after -- go to trtexec unchanged.

    Args:
        onnx: the graph, or a MODEL as `run` takes it; pytorch-aoti takes no graph.

    Raises:
        UsageError: options that contradict each other, or that the engine does not have.
        DependencyError: the engine cannot be had here.
        ArtifactError: the graph cannot be quantized or built; names the first error and the log.
    """
    package = find_entry(read_engine(options["engine"])[0]).takes == "torch"
    model, spec = os.fspath(onnx), None if package else plan_engine(os.fspath(onnx), options)
    with open_progress(options["progress"]) as reporter:
        if spec is None:
            return build_package(model, Path(out), options, reporter)
        return build_engine(model, Path(out), spec, options, reporter)


@door.command(build, "F.onnx|MODEL", "[ARG]...", shown=BuildPrinted)
def command(
    onnx: str, arguments: tuple[str, ...], out: str | None, shown: BuildPrinted, **options: Unpack[BuildOptions]
) -> None:
    package = find_entry(read_engine(options["engine"])[0]).takes == "torch"
    own = Path(onnx).with_suffix(".plan") if onnx.lower().endswith(".onnx") else f"{slug(onnx)}.plan"
    target = Path(out or (f"{slug(onnx)}.pt2" if package else own))
    check_dry_run(shown)
    options["extra"] = (*options["extra"], *map(shlex.quote, arguments))
    if not shown["dry_run"]:
        return door.show(build(onnx, target, **options), shown, print_build)
    if package:
        raise UsageError(f"--dry-run shows the command of trtexec; {options['engine']} has none. Leave it out")
    spec, before = plan_engine(onnx, options), list[str]()
    with open_progress(False) as reporter:
        artifact = make_build_graph(onnx, name_folder(target), options, reporter, dry=True)
    source = Path(artifact.path)
    if is_made(onnx, options):
        before.append(f"{onnx}: its graph would be written to {source} first")
    check_batch_axis(artifact, spec)
    changes: tuple[Change, ...] = ()
    if shown["explain"]:
        ranges = list_engine_options({**options, "weak_typing": True})
        sources = {key: ranges[key] for key in ("calib_cache", "calib_data") if key in ranges}
        spec = replace(spec, options={**sources, **spec.options})  # the graph takes them, not the builder
        spec, changes = open_composing(spec).adapt_build(artifact, str(target), spec, shown["tensorrt_version"] or "")
    if needs_graph(spec, artifact.precision):
        graph = quantized_path(source, spec)
        before.append(f"{source} is {artifact.precision}; it would be quantized to {graph} first")
        artifact = replace(artifact, path=str(graph))
    composed = open_composing(spec).compose_build(artifact, str(target), spec, shown["tensorrt_version"])
    return print_dry_run(composed, before, shown, changes)


def print_build(document: BuildDocument, _: object) -> None:
    artifact = document.artifact
    tool = name_library(artifact.made_by)
    click.echo(
        f"{artifact.path}: {artifact.precision}, {tool} {document.tensorrt_version}, "
        f"{sum(f.size_bytes for f in artifact.files) / 2**20:.1f} MiB, built in {document.build_s:.1f} s, "
        f"sha256 {artifact.sha256[:12]}"
    )
    if document.effective_precision:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in document.effective_precision.items())
        click.echo(f"time by precision: {shares}")
    for warning in document.warnings:
        click.echo(format_warning(warning))
    if artifact.kind == "plan":
        click.echo(f"log and layers: {artifact.path}.build/plans", err=True)


class DryRun(Struct, frozen=True, kw_only=True):
    """The command line that would run, and what would be done before it."""

    schema: str = "enginebench.dry-run/1"
    command: tuple[str, ...]
    tensorrt_version: str
    before: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()


def check_dry_run(shown: DryRunning) -> None:
    """Check that no option was given that this run, dry or real, would ignore."""
    if shown["tensorrt_version"] is not None and not shown["dry_run"]:
        raise UsageError("--tensorrt-version only writes a command without running it; add --dry-run")
    if shown.get("explain") and shown["tensorrt_version"] is None:
        raise UsageError("--explain compares with another version: add --dry-run --tensorrt-version 11.0, or later")


def print_dry_run(composed: Composed, before: Sequence[str], shown: Printed, changes: tuple[Change, ...] = ()) -> None:
    """Print the commands that would run on stdout, and what changes or happens before them on stderr."""
    plan = DryRun(
        command=composed.argv, tensorrt_version=composed.version, before=(*before, *composed.warnings), changes=changes
    )
    for change in changes:
        click.echo(clean_text(f"{change.part} {change.item}: {change.change}"), err=True)
    for text in plan.before:
        click.echo(text, err=True)
    if shown["as_json"]:
        door.print_json(plan)
        return
    for command in filter(None, (change.command for change in changes)):
        click.echo(command)
    click.echo(shlex.join(plan.command))


def list_engine_options(options: BuildOptions) -> dict[str, str]:
    """The `key=value` options of an engine that are options of their own here."""
    weak = options["weak_typing"]
    cache, data, timing = (to_path(options[name]) for name in ("calib_cache", "calib", "timing_cache"))
    compatible = options["hardware_compatibility"]
    settings = {
        **{name: options[name] for name in ("workspace_mb", "min_shapes", "opt_shapes", "max_shapes")},
        **{name: options[name] for name in ("optimization_level", "compute_capability")},
        **{name: int(options[name]) or None for name in ("version_compatible", "refit", "strip", "weak_typing")},
        "profiles": "\n".join(options["profile"]),
        "timing_cache": timing and timing.absolute(),
        "hardware_compatibility": None if compatible == "none" else compatible,
        "plugins": "\n".join(map(str, options["plugins"])),
        "calib_cache": cache.absolute() if cache and weak else None,
        "calib_data": data.absolute() if data and weak else None,
        "extra": join_argv(options["extra"]),
        "dla": options["use_dla"],
    }
    return {key: str(value) for key, value in settings.items() if value not in (None, "")}


def is_made(model: str, options: BuildOptions) -> bool:
    """Whether the graph is made first: exported, or changed to take bytes."""
    wish = read_normalize(options["input_dtype"], options["normalize"])
    return wish is not None or resolve_model(model).kind != "onnx"


def name_folder(out: Path) -> Path:
    """Return the folder of the log, the layers and a generated graph."""
    return out.with_name(f"{out.name}.build").absolute()


def make_build_graph(
    model: str, folder: Path, options: BuildOptions, reporter: Reporter, *, dry: bool = False
) -> Artifact:
    """Return the graph to build from: the user's own, else one made in `folder` (with `dry` only described)."""
    from enginebench.models.onnx.source import read_onnx_head

    if not is_made(model, options):
        return read_onnx_head(Path(model))
    with open_scratch() as scratch:
        made = make_build_source(model, scratch, options, reporter, onnx=True)
        if not dry:
            with open_folder(folder):
                bring_files(made.files, Path(made.path).parent, folder)
    return replace(made, path=str(folder / Path(made.path).name))


def make_build_source(model: str, scratch: Path, options: BuildOptions, reporter: Reporter, *, onnx: bool) -> Artifact:
    """Make the model like `run`, with `onnx` as a graph."""
    from enginebench.runs.targets.sources import make_sources

    require_packages(model)
    allow_model(model)
    normalize = read_normalize(options["input_dtype"], options["normalize"])
    job = SourceJob(
        source=ModelSource(model=model, normalize=normalize),
        out_dir=str(scratch),
        batch=options["batch"] or 1,
        onnx=onnx,
        needs_onnx=onnx,
    )
    return make_sources(job, threads=default_threads(), timeout_s=options["timeout"], reporter=reporter)[-1]


def plan_engine(onnx: str, build_options: BuildOptions) -> EngineSpec:
    """Return the requested engine; without a requested precision in that of the graph."""
    from enginebench.models.onnx.source import read_onnx_head

    (name, own), precision, batch = (
        read_engine(build_options["engine"]),
        build_options["precision"],
        build_options["batch"],
    )
    if (device := read_device(build_options["device"] or "cuda:0")) == "cpu":
        raise UsageError("--device cpu: plans are built on a GPU; give cuda:N, for example cuda:0")
    head = read_onnx_head(Path(onnx)) if precision is None and resolve_model(onnx).kind == "onnx" else None
    wanted, recipe = (head.precision, None) if head else parse_precision(precision or "fp32")
    use_trtexec(build_options["trtexec"], (name,))
    options = list_engine_options(build_options)
    options = merge_options(name, own, options)
    if batch is not None:
        # Checks that no shapes override a given batch, unless there are arrays to calibrate on, which it would cut.
        shapes = options.keys() & {"min_shapes", "opt_shapes", "max_shapes", "profiles"}
        if shapes and "calib_data" not in options:
            raise UsageError(
                "--batch sets a dynamic axis without shapes; here the shapes decide that. Leave out --batch, or put "
                "the batch into the shapes"
            )
    spec = EngineSpec(backend=name, options=options, device=device, precision=wanted, recipe=recipe, batch=batch or 1)
    check_options(strip_environment(spec))
    return spec


def build_package(model: str, out: Path, options: BuildOptions, reporter: Reporter) -> BuildDocument:
    """Build a package of a PyTorch model, which is made like that of `run`, in a temporary folder."""
    from enginebench.runs.targets.ahead import check_source_ahead

    (name, own), (precision, recipe) = read_engine(options["engine"]), parse_precision(options["precision"] or "fp32")
    if "aoti" not in accepts(name):
        raise UsageError(f"engine {name} builds while it loads, so there is no file to keep. Use bench or run")
    if unused := [*list_engine_options(options), *filter(options.get, ("calib", "calib_cache"))]:
        raise UsageError(
            f"engine {name} takes no {', '.join(unused)}; it has --precision, --batch, --device and --input-dtype"
        )
    if is_package(Path(model)):
        raise UsageError(f"{model} is a package already; {name} builds from the model that it was made of")
    if out.suffix != ".pt2":
        raise UsageError(f"--out {out}: PyTorch opens packages whose names end in .pt2")
    if recipe is not None or precision in FEW_BITS:
        raise UsageError(
            f"build makes packages in floats, not in {precision}; "
            f"`{format_command('run', 'MODEL', options=[('--precisions', precision)])}` keeps one"
        )
    device, batch = read_device(options["device"] or "cpu"), options["batch"] or 1
    threads = default_threads()
    spec = EngineSpec(backend=name, options=own, device=device, precision=precision, batch=batch, threads=threads)
    check_options(spec)
    require_available(spec)
    read_normalize(options["input_dtype"], options["normalize"])  # before anything is waited for
    check_source_ahead(ModelSource(model=model))
    if (kind := resolve_model(model).kind) == "onnx":
        raise UsageError(f"{model} is of kind {kind}; {name} builds from a PyTorch model")
    with open_scratch() as scratch, lock_devices((device,), wait=options["wait"], on_wait=reporter.say):
        artifact = make_build_source(model, scratch, options, reporter, onnx=False)
        reporter.step(f"{model}: building with {name}")
        job = BuildJob(source=artifact, engine=spec, out_dir=str(scratch))
        response = run_child(job, timeout_s=options["timeout"], on_note=report_steps(reporter, model))
        return place_build(response, out, precision, device)


def build_engine(model: str, out: Path, spec: EngineSpec, options: BuildOptions, reporter: Reporter) -> BuildDocument:
    """Build the engine file `out`. Log, layers and cache stay in `<out>.build`, where a repeat finds the plan.

    A graph in another precision than the requested one is quantized first, unless typing is weak; `reporter` notes it.
    """
    from enginebench.runs.builds import run_in_memory

    calib, calib_cache = to_path(options["calib"]), to_path(options["calib_cache"])
    if "plan" not in accepts(spec.backend):
        raise UsageError(f"engine {spec.backend} builds while it loads, so there is no file to keep. Use bench or run")
    if out.exists() and Path(model).exists() and out.samefile(model):
        raise UsageError(f"--out {out} is the graph itself, which the engine file would replace; choose another --out")
    made = is_made(model, options)
    # A builder that times nothing needs no GPU.
    require_available(spec if find_entry(spec.backend).builder.tunes else replace(spec, device="cpu"))
    artifact = make_build_graph(model, name_folder(out), options, reporter)
    onnx = Path(artifact.path)
    check_batch_axis(artifact, spec)
    if find_entry(spec.backend).find_program is not None:  # a wrong option is refused before a graph is quantized
        open_composing(spec).compose_build(artifact, str(out), spec, None)
    warnings = artifact.warnings if made else ()
    warnings += list_range_warnings(artifact, calib, calib_cache) if spec.options.get("weak_typing") == "1" else ()
    if needs_graph(spec, artifact.precision):
        # Probe the engine, where it runs, for what its version is known not to build.
        ahead = ProbeJob(engine=spec.backend, to_build=(artifact, strip_environment(spec)))
        run_child(ahead, timeout_s=CHECK_TIMEOUT_S, environment=find_environment(spec))
        original, onnx = onnx, quantized_path(onnx, spec)
        reporter.say(f"{original} is {artifact.precision}; quantizing it to {onnx} first")
        to = format_precision(require_precision(spec.precision), spec.recipe)
        quantize(original, to, onnx, calib=calib, calib_cache=calib_cache, threads=spec.threads, progress=False)
    elif (calib or calib_cache) and spec.options.get("weak_typing") != "1":
        needless = "it needs no --calib or --calib-cache; leave them out"
        raise UsageError(f"{onnx} is {artifact.precision} already; {needless}")
    spec = replace(spec, device=find_device(spec.backend, spec.device))
    reporter.step(f"{onnx.name}: building with {spec.backend}")
    # A builder that times kernels: a run beside it would spoil its choice, and it would spoil the run's times.
    busy = (spec.device,) if find_entry(spec.backend).builder.tunes else ()
    with open_folder(name_folder(out)) as folder, lock_devices(busy, wait=options["wait"], on_wait=reporter.say):
        spec = store_calibration(spec, artifact, folder)
        job = BuildJob(source=str(onnx.absolute()), engine=spec, out_dir=str(folder))
        on_note = report_steps(reporter, onnx.name)
        response = run_in_memory(
            job, lambda less: run_child(less, timeout_s=options["timeout"], on_note=on_note), reporter.say
        )
    built = replace(response.artifact, normalize=artifact.normalize, preprocess_sha256=artifact.preprocess_sha256)
    if spec.options.get("weak_typing") == "1" and (ranges := calib or calib_cache):
        built = replace(built, made_with=built.made_with | {"calibration": ranges.name})
    response = replace(response, artifact=built)
    document = place_build(response, out, require_precision(spec.precision), spec.device, warnings)
    write_note(out, response.artifact, spec.precision)
    return document


def check_batch_axis(graph: Artifact, spec: EngineSpec) -> None:
    """Check that the graph has the requested batch, or a dynamic axis for it."""
    first = graph.inputs[0].shape[:1] if graph.inputs else ()
    if first and isinstance(first[0], int) and spec.batch not in (1, first[0]):
        raise UsageError(
            f"{graph.path} has a batch of {first[0]}, not {spec.batch}: leave out --batch, or export it with "
            f"{advise_dynamic_batch()}"
        )


def needs_graph(spec: EngineSpec, precision: str | None) -> bool:
    """Return whether the graph must be quantized first: the precision is neither the graph's nor a mere setting."""
    if spec.options.get("weak_typing") == "1":
        return False
    return precision not in (spec.precision, find_graph_precision(spec.backend, spec.precision))


def quantized_path(onnx: Path, spec: EngineSpec) -> Path:
    """Return the file of the graph in another precision, beside the original."""
    recipe = f"-{spec.recipe}" if spec.recipe else ""
    return onnx.with_suffix(f".{spec.precision}{recipe}.onnx")


@contextmanager
def open_folder(folder: Path) -> Iterator[Path]:
    """Yield the folder, created if it does not exist; a created one is removed if the user interrupts the build.

    Partial files of a build that was killed are removed in any case, since its process cannot do that.
    """
    is_new = not folder.exists()
    with explain_writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    except KeyboardInterrupt:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        for part in folder.glob("plans/*.part"):
            part.unlink(missing_ok=True)


def list_range_warnings(artifact: Artifact, calib: Path | None, calib_cache: Path | None) -> tuple[ResultWarning, ...]:
    """Return the warnings on the ranges that TensorRT's own calibrator takes under weak typing."""
    from enginebench.models.precision.calibration import explain_external
    from enginebench.runs.child.perform.outputs import check_prepared_alike

    if calib_cache is not None and (calib is None or calib_cache.exists()):  # else the build writes it
        return (explain_external(f"ranges come from the calibration cache {calib_cache.name}"),)
    if calib is None:
        return ()
    if (data := open_calibration(calib, artifact)) is None:
        raise UsageError(f"--calib {calib}: weak typing takes F.npy, F.npz, a folder of images, or --calib-cache")
    check_prepared_alike(artifact, data.preprocess_sha256)
    return data.warnings


def store_calibration(spec: EngineSpec, artifact: Artifact, folder: Path) -> EngineSpec:
    """The spec with the entries to calibrate on as a file of `folder`, and a cache beside it unless one is named.

    Both are named by what they hold: a cache of other entries or of another graph is never read.
    """
    from enginebench.models.precision.calibration_data import keep_batches

    data = open_calibration(Path(spec.options["calib_data"]), artifact) if "calib_data" in spec.options else None
    if data is None:
        return spec
    keep_batches(data, folder / "calibration.npz")
    entries = folder / f"calibration-{hash_file(folder / 'calibration.npz')[:12]}.npz"
    (folder / "calibration.npz").replace(entries)
    cache = entries.with_suffix(f".{hash_file(Path(artifact.path))[:12]}.cache")
    return replace(spec, options={"calib_cache": str(cache), **spec.options, "calib_data": str(entries)})


def place_build(
    response: BuildResponse, out: Path, requested: Precision, device: str, warnings: tuple[ResultWarning, ...] = ()
) -> BuildDocument:
    """Copy the built file to `out` and describe it, with the precision that ran if that contradicts `requested`."""
    assert response.proof is not None
    ran, list_proof_warnings = _find_plan_precision(requested, response.proof, device, response.artifact.ahead_of_time)
    plan = Path(response.artifact.path)
    copy_file(plan, out)
    return BuildDocument(
        artifact=replace(response.artifact, path=str(out), precision=ran),
        lowered=response.lowered,
        build_s=response.build_s,
        command=read_command(plan.with_suffix(".build.log")),
        tensorrt_version=response.engine_version,
        effective_precision=response.proof.effective_precision,
        warnings=(*response.artifact.warnings, *warnings, *list_proof_warnings),
    )


def _find_plan_precision(
    requested: Precision, proof: Proof, device: str, ahead: AheadOfTime | None
) -> tuple[Precision | None, tuple[ResultWarning, ...]]:
    """The precision that the plan is named after, and warnings: it is usable even if its precision cannot be proved."""
    if ahead is not None:
        products = list_products(ahead, requested)
        why = f"decided ahead of time: {products}; the GPU compiles the plan when it first runs, and bench shows it"
        return requested, (make_warning("unproved_precision", asked=requested, why=why),)
    if proof.failure is not None:
        return requested, (make_record_warning(requested, proof.failure),)
    return check_precision(requested, proof.effective_precision, device)


def list_products(ahead: AheadOfTime, requested: Precision) -> str:
    """The products of a plan by precision, as a sentence has them: "20 of 21 products in int8, 1 in fp32"."""
    total = sum(ahead.products.values())
    # Types alone do not distinguish the two, and the builder may have shortened fp32 to tf32.
    names = {"fp32": "fp32 or tf32"} if requested == "tf32" else {}
    parts = [f"{count} in {names.get(precision, precision)}" for precision, count in ahead.products.items()]
    return ", ".join(parts).replace(" in ", f" of {total} products in ", 1) or "no layer is a product"


def read_command(log: Path) -> tuple[str, ...] | None:
    """Return the command line at the top of a log; None if no program was run."""
    with suppress(OSError, ValueError), log.open(encoding="utf-8", errors="replace") as file:
        if (first := file.readline()).startswith("$ "):
            return tuple(shlex.split(first.removeprefix("$ ")))
    return None
