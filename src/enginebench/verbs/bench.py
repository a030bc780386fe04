"""`bench`: one engine, or two engines side by side, interleaved now."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, get_args

import click
from msgspec import Struct
from msgspec.structs import replace

from enginebench import door
from enginebench import options as opts
from enginebench.core.commands import COMMAND, format_command
from enginebench.core.errors import ArtifactError, ParseError, UsageError
from enginebench.core.features import find_hooks
from enginebench.core.hooks import ToolDifference
from enginebench.core.names import PLAN_SUFFIXES, parse_precision
from enginebench.core.records import Placing, Result
from enginebench.core.shapes import set_plan_shapes
from enginebench.core.store import bring_files, copy_file, encode, hash_file, is_bundle, read_record, write_atomic
from enginebench.engines.abilities import PROCESS, KeepsLog
from enginebench.engines.registry import check_options, find_entry, open_backend, read_engine
from enginebench.measure.machine import describe_machine
from enginebench.options import Opt, PathLike, Unpack, verb
from enginebench.runs.bundles import Bundle
from enginebench.runs.child.environments import strip_environment
from enginebench.runs.folder import ARTIFACTS, RunFolder, RunRequest, Stored, begin_record, check_named_files, holds_run
from enginebench.runs.lock import lock_devices, lock_folder
from enginebench.runs.plan import PlannedConfiguration, check_engines_here, list_devices, with_suffix
from enginebench.runs.progress import Reporter
from enginebench.runs.request import merge_options, name_settings, pass_on, use_trtexec
from enginebench.runs.targets.bundles import find_configuration, open_as_stored, read_target
from enginebench.verbs import common
from enginebench.verbs.benches import Bench
from enginebench.verbs.build import DryRunning, check_dry_run, print_dry_run
from enginebench.verbs.diff import DiffPrinted, write_verdict
from enginebench.verbs.requests import make_measure, make_request
from enginebench.verbs.runs import note_folder

if TYPE_CHECKING:
    from enginebench.runs.targets import sides


class BenchOptions(opts.Modules, opts.Timing, opts.Shared, total=False):
    precision: opts.Precision
    batch: opts.Batch
    against: Annotated[
        opts.Side | None,
        Opt(
            "ENGINE, ENGINE@TARGET, the file of a stored result, or a bundle; if TARGET is a bundle, also its RUN.",
            metavar="SIDE",
            more="It is the base of the ratio",
        ),
    ]
    beside: Annotated[
        opts.Side | None,
        Opt(
            "Time TARGET and this other engine each alone, and each while the other is called without a pause.",
            metavar="SIDE",
            more="In a process of its own, and in one process ([several models](life.md#several-models-at-once))",
        ),
    ]
    against_precision: Annotated[str | None, Opt("Precision of the other side. [--precision]", metavar="PRECISION")]
    gate: Annotated[
        bool,
        Opt(
            "Exit with code 4 if TARGET is slower, its outputs differ, or it cannot be compared.",
            False,
            more="Also if the sides were requested in one precision and ran in two",
        ),
    ]
    margin: opts.Margin
    limit: opts.Limit
    percentile: Annotated[str | Sequence[float], Opt("Percentiles to report, separated by commas.", "50,90,95,99")]
    input_size: opts.InputSize
    timeout: opts.Timeout
    wait: opts.Wait
    cuda_graph: Annotated[
        bool | None, Opt("Launch as a CUDA graph. [the engine's default]", names="--cuda-graph/--no-cuda-graph")
    ]
    profile_index: Annotated[int | None, Opt("Optimization profile of a plan.", ge=0)]
    extra: opts.Extra
    trtexec: opts.Trtexec
    env: opts.Env
    builds: opts.Builds
    out: Annotated[PathLike | None, Opt("Folder of the results. [results/bench-TARGET-TIME]", program=True)]


class BenchPrinted(DiffPrinted, DryRunning, opts.Trusting, total=False):
    log: Annotated[
        str | None,
        Opt(
            "Write everything trtexec prints for TARGET to this file.",
            metavar="F",
            path="new file",
            feature="trtexec",
            more="The build, if there was one, then each process; refused for engines that run no tool",
        ),
    ]
    out: Annotated[
        str | None,
        Opt(
            "Folder of the results, F.json beside it. [results/bench-TARGET-TIME]", metavar="DIR|F.json", path="new any"
        ),
    ]


Engine: TypeAlias = Annotated[
    str | None,
    Opt(
        "ENGINE[:key=value,...]; required unless TARGET is a bundle.",
        more="A bundle brings its own with batch, threads and settings",
    ),
]


@verb(BenchOptions)
def bench(target: opts.Model, engine: Engine = None, **options: Unpack[BenchOptions]) -> Bench:
    """Measure one engine on TARGET; with --against, compare it with another one.

    Example: enginebench bench digits-cnn --engine ort --against pytorch

    With --against both sides get the same inputs and are measured now, interleaved, so that neighbouring trials form
    pairs: a comparison that a CI job can rely on.

    Args:
        target: a model as `run` takes it, an engine file, or a bundle, which brings its engine and settings.

    Raises:
        UsageError: a value or a combination that cannot be.
        ModelError: a model cannot be found, built or exported, or something in a module cannot leave this process.
        BackendUnavailable: an engine cannot run here.
        MeasurementError: a configuration is not ok.
        GateFailed: under `gate`, the candidate is slower, its outputs differ, or the sides cannot be compared.
    """
    root = common.choose_root(options["out"], f"bench-{Path(common.name_model(target)).stem}")
    with open_bench_request(target, engine, options) as (request, reporter), note_folder(root, resume=False):
        results = bench_sides(request, root, reporter=reporter, wait=options["wait"], command=COMMAND.get())
        return Bench(root, tuple(results), options["margin"]).check(gate=options["gate"])


@door.command(bench, "TARGET", "[ARG]...", shown=BenchPrinted)
def command(
    target: str, arguments: tuple[str, ...], engine: str | None, shown: BenchPrinted, **options: Unpack[BenchOptions]
) -> None:
    from enginebench.report.bench import list_bench
    from enginebench.stats.diff import diff_results

    options["extra"] = (*options["extra"], *map(shlex.quote, arguments))
    if options["against"] is None and (shown["junit"] or shown["summary"]):
        raise UsageError(TWO_SIDES)
    check_dry_run(shown)
    if shown["dry_run"] and options["against"] is not None:
        raise UsageError("--dry-run prints the command of one side only; leave out --against")
    with open_bench_request(target, engine, options, dry=shown["dry_run"]) as (request, reporter):
        if shown["log"] is not None and find_entry(name := request.own.engines[0][0]).find_program is None:
            raise UsageError(f"engine {name} runs inside EngineBench and has no log; --log is for trtexec")
        if shown["dry_run"]:
            print_timing_command(Path(target), request.own, shown)
            return
        stem = Path(target).stem if target.endswith(".onnx") or is_bundle(Path(target)) else target
        out = Path(shown["out"]) if shown["out"] is not None else None
        file = out if out is not None and out.suffix.lower() == ".json" else None
        root = common.choose_root(out if file is None else None, f"bench-{stem}")
        results = bench_sides(request, root, reporter=reporter, wait=options["wait"], command=COMMAND.get())
    if shown["log"] is not None and (logs := find_logs(root, results[-1])):
        write_atomic(Path(shown["log"]), b"".join(path.read_bytes().rstrip(b"\n") + b"\n" for path in logs))
    done = Bench(root, tuple(results), options["margin"])
    if file is not None:
        write_atomic(file, encode(done.document))
    door.show(done.document, shown, door.tables(partial(list_bench, machine=results[-1].machine)))
    if not shown["as_json"]:
        click.echo(f"\nStored in {root}", err=True)
    if shown["junit"] or shown["summary"]:  # also of a side that failed
        verdict = diff_results(results[:1], results[1:], options["margin"], neighbours=True, same_inputs=True)
        write_verdict(verdict, shown, gate=options["gate"])
    done.check(gate=options["gate"])


class BenchRequest(Struct, frozen=True, kw_only=True):
    """The requests of a `bench`: of TARGET, and of the other side if there is one."""

    own: RunRequest
    other: RunRequest | None = None
    stored: Stored | None = None  # the other side, if it runs again on exactly the artifact of a stored result
    beside: bool = False  # the sides are measured alone and beside each other, not compared

    @property
    def sides(self) -> list[RunRequest]:
        return [self.own, *filter(None, [self.other])]


@contextmanager
def open_bench_request(
    target: opts.Model, engine: str | None, options: BenchOptions, *, dry: bool = False
) -> Iterator[tuple[BenchRequest, Reporter]]:
    """Yield the request that the options make, complete and checked, and the reporter; children can open a module.

    Args:
        dry: nothing runs: see `make_request`.
    """
    from enginebench.runs.targets.sides import parse_side

    check_bench_options(options, dry=dry)
    common.remember_environments(options["env"])
    bundle = read_bundle(target, engine, options)
    against = options["against"]
    if bundle is not None and isinstance(against, str | os.PathLike) and holds_run(Path(against)):
        against = find_configuration(Path(against), bundle)
    name, own = read_bench_engine(engine, bundle, options)
    with (
        common.take_model(target, options["example_inputs"]) as taken,
        common.take_side(against or options["beside"] or "", options["example_inputs"]) as other,
        common.open_progress(options["progress"]) as reporter,
    ):
        precision = parse_precision(options["against_precision"] or options["precision"])
        side = parse_side(other, taken.text, precision) if other else None
        use_trtexec(options["trtexec"], (name, side.engine[0]) if side else (name,))
        batch = options["batch"]
        if batch is None and not options["input_shape"] and own.get("implicit_batch", "").isdecimal():
            batch = int(own["implicit_batch"])
        measure = make_measure(
            options,
            options["seed"],
            percentiles=read_percentiles(options["percentile"]),
            builds=options["builds"],
            margin=options["margin"] if against is not None else None,
        )
        request = make_request(
            taken.text,
            options,
            engines=[(name, own)],
            precisions=[parse_precision(options["precision"])],
            batches=common.parse_batches(batch, options, taken),
            measure=measure,
            declared=BenchOptions,
            bundle=bundle,
            dry=dry,
        )
        bench_request = add_side(request, side, beside=options["beside"] is not None)
        if not dry:
            validate_bench(bench_request)
        yield bench_request, reporter


def check_bench_options(options: BenchOptions, *, dry: bool) -> None:
    """Check which options go together."""
    check_beside(options)
    if options["against"] is None and options["gate"]:
        raise UsageError(TWO_SIDES)
    if options["against"] is None and options["against_precision"]:
        raise UsageError("--against-precision is that of the other side; add --against SIDE")
    if options["against"] is None and options["limit"]:
        raise UsageError("--limit is for outputs that are compared with those of the other side; add --against SIDE")
    if dry and options["input_dtype"] is not None:
        raise UsageError("--dry-run opens no model: export it with --input-dtype uint8, and give the graph")


def read_bundle(target: opts.Model, engine: str | None, options: BenchOptions) -> Bundle | None:
    """Return the bundle that TARGET is, if it is one; it brings what these options set, and refuses them."""
    if not isinstance(target, str | os.PathLike):
        return None
    fixed: dict[str, object] = {"--engine": engine, "--extra": options["extra"]}
    settings = ("batch", "threads", "input_shape", "inputs", "input_size", "input_dtype", "profile_index", "cuda_graph")
    return read_target(str(target), fixed | {f"--{name.replace('_', '-')}": options.get(name) for name in settings})


def read_bench_engine(engine: str | None, bundle: Bundle | None, options: BenchOptions) -> tuple[str, dict[str, str]]:
    """Return the engine of TARGET with its options, those among them that have flags of their own in `bench`."""
    name, own = read_engine(engine or "") if bundle is None else (bundle.engine.backend, bundle.engine.options)
    own = merge_options(name, own, name_settings(options["cuda_graph"], options["profile_index"], ()))
    return pass_on([(name, own)], options["extra"])[0]


def add_side(request: RunRequest, side: sides.Side | None, *, beside: bool = False) -> BenchRequest:
    """Return the request of both sides; a UsageError if a stored one has another batch or thread count.

    With `beside` the other side is a model of its own, which the options about inputs and weights do not mean; nor
    does the batch that a bundle brings, where its graph fixes another.
    """
    if side is None:
        return BenchRequest(own=request)
    for name, mine, theirs in (("batch", request.batches[0], side.batch), ("threads", request.threads, side.threads)):
        if theirs not in (None, mine):
            raise UsageError(f"the stored result has {name} {theirs}, this side has {mine}; give --{name} {theirs}")
    other = replace(request, model=side.target, engines=(side.engine,), precisions=(side.precision,))
    if beside:
        any_batch = request.any_batch or is_bundle(Path(request.model))
        other = replace(
            other, any_batch=any_batch, input_shapes=None, input_size=None, normalize=None, weights="default"
        )
    return BenchRequest(own=request, other=other, stored=side.stored, beside=beside)


def validate_bench(request: BenchRequest) -> None:
    """Check a complete request before anything is waited for or built; that of TARGET is checked already."""
    for spec in (spec for side in request.sides for spec in common.list_specs(side)):
        check_options(strip_environment(spec))
        common.check_command(spec, request.own.measure)  # of a tool that times itself
    if request.other is not None and request.stored is None:
        check_named_files(request.other)
        check_engines_here(request.other.engines, request.other.precisions, request.other.device)


def check_beside(options: BenchOptions) -> None:
    """Check the options that do not go with --beside, which gives no verdict on the two."""
    refused = {
        "--against": options["against"] is not None,
        "--gate": options["gate"],
        "--inputs": options["inputs"] is not None,  # of which model?
        "--builds": options["builds"] is not None,
        "--scope pipelined": options["scope"] == "pipelined",
    }
    for name, is_there in refused.items():
        if options["beside"] is not None and is_there:
            raise UsageError(f"{name} does not go with --beside. Leave one of them out")


TWO_SIDES = "--gate, --junit and --summary need a verdict on two sides; add --against SIDE"


def read_percentiles(percentiles: str | Sequence[float]) -> tuple[float, ...]:
    """Return the percentiles of `50,99,99.9`, or of a list."""
    pieces = percentiles.split(",") if isinstance(percentiles, str) else percentiles
    try:
        values = tuple(float(piece) for piece in pieces)
    except ValueError:
        values = ()
    if not values or not all(0 < value < 100 for value in values):
        raise UsageError(f"--percentile {percentiles!r}: expected numbers between 0 and 100, separated by commas")
    return values


def print_timing_command(target: Path, request: RunRequest, shown: BenchPrinted) -> None:
    """Print the command that would time the plan `target`; a graph would be built first."""
    from enginebench.models.onnx.source import read_onnx_head

    if not target.suffix:
        make = format_command("export", str(target))
        raise UsageError(f"a dry run opens no model: give an .onnx file ({make}) or a plan")
    (spec,), before = common.list_specs(request), list[str]()
    spec = set_plan_shapes(spec, request.input_shapes)  # of a graph, too, since a dry run cannot fix its axes
    artifact = common.name_plan(target)
    if target.suffix.lower() not in PLAN_SUFFIXES:
        artifact = replace(read_onnx_head(target), path=str(target.with_suffix(".plan")))
        build = format_command("build", str(target), options=[("--dry-run", None)])
        before.append(f"{artifact.path} would be built from {target} first: {build}")
    version = shown["tensorrt_version"]
    print_dry_run(common.open_composing(spec).compose_measure(artifact, spec, request.measure, version), before, shown)


def bench_sides(
    request: BenchRequest, root: Path, *, reporter: Reporter, wait: bool = True, command: tuple[str, ...] = ()
) -> list[Result]:
    """Measure TARGET; if there is another side, both interleaved, and return that side's result first.

    Both sides get the inputs of the other side's model, whose outputs are the reference of the comparison; or, where
    each is measured alone and beside the other, inputs of their own.
    """
    from enginebench.runs.campaign import Campaign
    from enginebench.runs.targets.ahead import check_ahead, check_compared_ahead
    from enginebench.runs.targets.sources import choose_scoring
    from enginebench.stats.ranking import Rules

    own, folder = request.own, RunFolder(root)
    folder.check_free()
    (check_ahead if request.beside else check_compared_ahead)([own] if request.stored else request.sides)
    record = begin_record(own, describe_machine(), verb="bench", command=command)
    devices = [device for side in request.sides for device in list_devices(side)]
    with lock_folder(root, reporter.say) as warnings, lock_devices(devices, wait=wait, on_wait=reporter.say):
        scoring = choose_scoring(own) if own.metrics or own.targets else None
        folder.create(record)
        configurations = plan_sides(request, folder, reporter)
        folder.write_record(
            replace(record, rows=tuple(configuration.id for configuration in configurations), notes=warnings)
        )
        campaign = Campaign(
            folder,
            configurations,
            record.machine,
            timeout_s=own.timeout_s,
            reporter=reporter,
            scoring=scoring,
            task=own.task,
            rules=Rules(limits=own.limits),
            checks_graph=False,
        )
        results = campaign.run()
        if reasons := [reason for explain in find_hooks(ToolDifference) for reason in explain(results)]:
            results[-1] = replace(results[-1], warnings=(*results[-1].warnings, *reasons))
            folder.write_result(results[-1])
        _copy_tool_files(root, results[-1])
        return results


def plan_sides(request: BenchRequest, folder: RunFolder, reporter: Reporter) -> list[PlannedConfiguration]:
    """Return the configurations of a bench, those of the other side first; their sources are made now."""
    own = _plan_side(folder, request.own, None, ARTIFACTS, reporter)
    if request.other is None:
        is_plan = Path(request.own.model).suffix.lower() in PLAN_SUFFIXES
        graph = find_graph(Path(request.own.model)) if is_plan else None
        return [replace(own, graph=str(graph.absolute())) if graph else own]
    suffix = "other" if request.beside else "against"
    base = with_suffix(_plan_side(folder, request.other, request.stored, suffix, reporter), suffix)
    if request.beside:
        return place_beside(base, own)
    mine, theirs = own.engine.batch, base.engine.batch
    if mine != theirs:
        advice = f"give --batch {max(mine, theirs)}, or export both with a dynamic batch"
        raise UsageError(f"{request.own.model} runs at batch {mine}, {request.other.model} at {theirs}: {advice}")
    return [replace(configuration, inputs_of=base.model) for configuration in (base, own)]


def place_beside(other: PlannedConfiguration, own: PlannedConfiguration) -> list[PlannedConfiguration]:
    """Return both configurations alone, and each beside the other, in each placing; the other one's first."""
    listed: list[PlannedConfiguration] = []
    for side, neighbour in ((other, own), (own, other)):
        listed.append(side)
        listed += [
            replace(with_suffix(side, f"beside-{placing}"), beside=(neighbour.id, placing))
            for placing in get_args(Placing)
        ]
    return listed


def _copy_tool_files(root: Path, result: Result) -> None:
    """Copy what the configuration's tool wrote to a folder of its name, with one for each of several processes."""
    folders = [log.parent for log in find_logs(root, result) if log.parent.name.startswith(PROCESS)]
    for folder in folders:
        home = root / result.engine.backend / (folder.name if len(folders) > 1 else "")
        for path in filter(Path.is_file, folder.iterdir()):
            copy_file(path, home / path.name)


def find_logs(root: Path, result: Result) -> list[Path]:
    """Return the logs of a configuration's tool, builds and trials in order; empty if nothing ran or it has no tool."""
    if find_entry(result.engine.backend).find_program is None:
        return []
    folder = RunFolder(root.absolute()).build_path(result.id, 0) if result.builds else root.absolute() / ARTIFACTS
    backend: object = open_backend(result.engine.backend, cache_dir=folder / "cache")
    if not isinstance(backend, KeepsLog) or not result.artifacts:
        return []
    spec = replace(result.engine, precision=result.requested_precision)  # a relabelled configuration keeps its folder
    return backend.find_logs(result.artifacts[-1], spec, result.measure)


def _plan_side(
    folder: RunFolder, request: RunRequest, stored: Stored | None, folder_name: str, reporter: Reporter
) -> PlannedConfiguration:
    """Return the one configuration of a request, its sources made in a folder of their own; that of a bundle.

    The artifact of a stored configuration is copied into the folder, so that the folder of a comparison is complete.
    """
    from enginebench.runs.targets import sides

    if stored is None and is_bundle(Path(request.model)):
        stored = open_as_stored(Path(request.model))
    if stored is not None:
        made, home = stored.chain[-1], folder.root.absolute() / folder_name
        bring_files(made.files, Path(made.path).parent, home)
        chain = (*stored.chain[:-1], replace(made, path=str(home / Path(made.path).name)))
        return sides.plan_again(replace(stored, chain=chain), request.measure)
    (configuration,) = sides.plan_target(request, folder.root / folder_name, reporter)
    return configuration


class _PlanRecord(Struct):
    onnx_sha256: str


class _StoredPlan(Struct):
    """The hashes of the graph and of the plan in the file beside a stored plan."""

    record: _PlanRecord
    sha256: str


def find_graph(plan: Path) -> Path | None:
    """Return the graph of a plan that `build` made, if it is still beside it in OUT.build, unchanged; else None."""
    from enginebench.models.onnx.source import read_onnx

    folder = plan.with_name(f"{plan.name}.build")
    if not folder.is_dir() or find_spec("onnxruntime") is None:
        return None
    graph_hashes, sha256 = set(), hash_file(plan)
    for path in folder.glob("plans/*.json"):
        with suppress(ParseError):
            stored = read_record(path, _StoredPlan)
            graph_hashes |= {stored.record.onnx_sha256} if stored.sha256 == sha256 else set()
    for path in folder.glob("*/*.onnx"):
        with suppress(ArtifactError):
            if read_onnx(path).sha256 in graph_hashes:
                return path
    return None
