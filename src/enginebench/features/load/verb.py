"""`load`: latency under an open-loop request load, and the highest rate that is within a limit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import click
from msgspec.structs import asdict, replace

from enginebench import door
from enginebench.core.errors import (
    BackendUnavailable,
    EngineBenchError,
    MissingDependency,
    ParseError,
    UsageError,
    add_note,
)
from enginebench.core.records import Artifact, MeasureSpec
from enginebench.core.shapes import free_batch
from enginebench.core.store import encode, is_bundle, read_record, write_atomic
from enginebench.core.text import TIME, count_of, stamp_utc
from enginebench.engines.registry import ENTRIES, find_device, find_entry, read_engines
from enginebench.features.load.scenario import Scenario
from enginebench.measure.machine import describe_machine
from enginebench.measure.pin import count_stream_threads
from enginebench.options import (
    InputSize,
    Model,
    Modules,
    Opt,
    PathLike,
    Printed,
    Shared,
    Texts,
    Traffic,
    Trusting,
    Unpack,
    Wait,
    verb,
)
from enginebench.report.charts import load_vega, render_png
from enginebench.report.page import format_page
from enginebench.report.table import Section
from enginebench.runs.child.isolate import run_child
from enginebench.runs.child.jobs import PrepareJob
from enginebench.runs.folder import RunFolder, RunRequest, check_inside, hide_home
from enginebench.runs.lock import lock_devices, lock_folder
from enginebench.runs.plan import PlannedConfiguration, check_engines_here, list_devices
from enginebench.runs.progress import Reporter
from enginebench.runs.targets.bundles import open_as_stored, read_target
from enginebench.verbs import common
from enginebench.verbs.requests import make_request, read_mix

if TYPE_CHECKING:
    from enginebench.features.load.document import LoadDocument, LoadSettings
    from enginebench.features.load.rates import LoadCandidate
    from enginebench.runs.reporting import Written

Numbers: TypeAlias = int | str | Iterable[int] | None
# The document, in the folder of a load.
DOCUMENT = "load.json"
FORMATS = ("html", "png")  # of its report, beside the document


class LoadOptions(Modules, Shared, total=False):
    precision: Annotated[Texts, Opt("Precisions, separated by commas.", "fp32")]
    scenario: Annotated[
        Scenario, Opt("One request at a time, eight at a time, requests at a rate, or all at once.", "server")
    ]
    qps: Annotated[float | None, Opt("Requests per second.", ge=1e-6, metavar="N")]
    find_capacity: Annotated[bool, Opt("Find the highest rate within --p99-limit-ms.", False)]
    p99_limit_ms: Annotated[float | None, Opt("Limit on the --percentile of latency.", gt=0, metavar="X")]
    percentile: Annotated[float, Opt("The percentile that the limit is on.", 99.0, gt=50, lt=100)]
    arrivals: Annotated[
        PathLike, Opt("poisson, constant, or a file with one time in seconds on each line.", "poisson", metavar="KIND")
    ]
    duration: Annotated[float | None, Opt("Seconds of a point. [10; of a probe 3]", gt=0, metavar=TIME)]
    rounds: Annotated[
        int, Opt("Searches for the capacity of each engine, interleaved; a verdict needs 6.", 1, ge=1, le=100)
    ]
    time_budget: Annotated[float, Opt("Seconds that all searches together may take.", 900.0, gt=0, metavar=TIME)]
    streams: Annotated[Numbers, Opt("Streams of the engine, each with --threads; several by commas. [1]", metavar="S")]
    max_batch: Annotated[Numbers, Opt("Requests computed together at most; several by commas. [1]", metavar="B")]
    max_wait_ms: Annotated[float, Opt("How long a request waits for others to fill its batch.", 0.0, ge=0)]
    traffic: Traffic
    input_size: InputSize
    wait: Wait
    resume: Annotated[
        bool, Opt("Continue the load in --out with the same options, except --rounds and --time-budget.", False)
    ]
    out: Annotated[PathLike | None, Opt("Folder. [results/load-TARGET-TIME]", path="new folder")]


Engine: TypeAlias = Annotated[
    Texts | None, Opt("ENGINE[:key=value,...]; several, separated by commas, are interleaved. A bundle brings its own.")
]


@verb(LoadOptions)
def load(target: Model, engine: Engine = None, **options: Unpack[LoadOptions]) -> LoadDocument:
    """Measure latency of TARGET under an open-loop request load.

    Example: enginebench load digits-cnn --engine ort --qps 100 --duration 3

    Requests are scheduled in advance and released by a separate process; latency counts from the scheduled time, so
    a stalled engine cannot hide its queue.

    Args:
        target: a model as `run` takes it, an engine file, or a bundle.

    Raises:
        UsageError: a value or a combination that cannot be.
        DependencyError: no engine can run here.
        MeasurementError: no request had a response.
        KeyboardInterrupt: what was measured is kept in `out`.
    """
    root = common.choose_root(options["out"], f"load-{common.name_model(target)}")
    return measure_load(target, engine, options, root, lambda document: write_load(root, document))


@door.command(load, "TARGET", shown=Trusting)
def command(target: str, engine: str | None, shown: Printed, **options: Unpack[LoadOptions]) -> None:
    from enginebench.features.load.sections import list_load

    root = common.choose_root(options["out"], f"load-{target}")

    def show(document: LoadDocument) -> None:
        notes = write_load(root, document)
        door.show(document, shown, door.tables(list_load))
        if not shown["as_json"]:
            click.echo(f"\nStored in {root}", err=True)
        for note in notes:
            click.echo(note, err=True)

    measure_load(target, engine, options, root, show)


def measure_load(
    target: Model, engine: Texts | None, options: LoadOptions, root: Path, keep: Callable[[LoadDocument], object]
) -> LoadDocument:
    """Measure the load of these options; `keep` gets its document, also an unfinished one."""
    from enginebench.features.load.document import LoadSettings

    if options["resume"] and options["out"] is None:
        raise UsageError("--resume needs --out DIR, the folder of the load to continue")
    devices = list(dict.fromkeys(common.read_device(text) for text in options["device"].split(",")))
    options["device"] = devices[0]
    has_inputs = options["inputs"] is not None
    settings = LoadSettings(
        scenario=options["scenario"],
        qps=options["qps"],
        find_capacity=options["find_capacity"],
        percentile=options["percentile"],
        max_wait_ms=options["max_wait_ms"],
        rounds=options["rounds"],
        devices=tuple(devices) if len(devices) > 1 else (),
        limit_ms=options["p99_limit_ms"],
        arrivals=str(options["arrivals"]),
        duration_s=options["duration"],
        streams=common.read_numbers("streams", options["streams"] or 1),
        max_batches=common.read_numbers("max-batch", options["max_batch"] or 1),
        traffic=read_mix(
            options["traffic"], options, {"--inputs": has_inputs and "requests are drawn from them as they are"}
        ),
        time_budget_s=options["time_budget"],
    )
    check_settings(settings)
    with common.begin(target, options) as (taken, reporter):
        fixed = {"--engine": engine, "--threads": options["threads"], "--input-shape": options["input_shape"]}
        bundle = read_target(taken.text, fixed | {"--input-dtype": options["input_dtype"]})
        # Threads of each stream are, unless given, its part of the cores that the generator leaves.
        options["threads"] = options["threads"] or count_stream_threads(max(settings.streams))
        request = make_request(
            taken.text,
            options,
            engines=read_engines(engine) if engine else [],
            precisions=common.read_precisions(options["precision"]),
            batches=(1,),
            measure=MeasureSpec(seed=options["seed"], processes=1),
            bundle=bundle,
            traffic=settings.traffic,
        )
        check_engines_of_mix(request)
        for device in devices[1:]:
            check_engines_here(request.engines, request.precisions, device)
        document = load_target(
            request, settings, root, reporter=reporter, wait=options["wait"], resume=options["resume"], on_partial=keep
        )
    keep(document)
    return document


def check_engines_of_mix(request: RunRequest) -> None:
    """Check that each engine can take requests of several shapes, without being made anew for each under load."""
    if request.traffic and is_bundle(Path(request.model)):
        raise UsageError("--traffic is for a model with its engines; a bundle has its own shapes")
    for name, _ in request.engines if request.traffic else ():
        device = find_device(name, request.device)
        entry = find_entry(name).describe_on(device)
        if not (entry.any_batch or entry.for_shapes):
            raise UsageError(
                f"--traffic: {name} on {device} is made for one shape; name engines that take several: "
                f"{', '.join(list_engines_of_mix())}"
            )


def list_engines_of_mix() -> list[str]:
    return [name for name, entry in ENTRIES.items() if entry.describe_on("cpu").for_shapes]


class Loading:
    """One call of `load` in progress, and the document of its points so far."""

    def __init__(
        self, request: RunRequest, settings: LoadSettings, root: Path, reporter: Reporter, earlier: LoadDocument | None
    ) -> None:
        from enginebench.features.load.rates import Prober

        self._request, self._settings = request, settings
        self._folder, self._reporter = RunFolder(root), reporter
        self._machine, self._model = describe_machine(), request.model
        self._started_utc = earlier.started_utc if earlier else stamp_utc()
        seed, timeout_s = request.measure.seed, request.timeout_s
        self._prober = Prober(
            settings, seed=seed, timeout_s=timeout_s, reporter=reporter, earlier=earlier, keep=self._store
        )

    def describe(self, finished: bool = True) -> LoadDocument:
        from enginebench.features.load.document import LoadDocument

        points, pilots = ([], []) if finished else self._prober.earlier
        capacities = [row.capacity for row in self._prober.rows.values() if row.capacity is not None]
        settings = self._settings
        return LoadDocument(
            model=self._model,
            scenario=settings.scenario,
            arrivals=hide_home(settings.arrivals),
            limit_ms=settings.limit_ms,
            percentile=settings.percentile,
            seed=self._request.measure.seed,
            points=(*self._prober.points, *points),
            pilots=(*self._prober.pilots, *pilots),
            capacity=max(capacities, key=lambda capacity: capacity.passes_qps or 0.0, default=None),
            rows=tuple(self._prober.rows.values()),
            verdicts=self._prober.verdicts,
            machine=self._machine,
            finished=finished,
            warnings=self._machine.warnings,
            settings=replace(settings, arrivals=hide_home(settings.arrivals)),
            preparation_s=self._prober.preparation_s,
            started_utc=self._started_utc,
        )

    def _store(self) -> None:
        write_atomic(self._folder.root / DOCUMENT, encode(self.describe(finished=False), indent=2))

    def run(self) -> LoadDocument:
        with self._prober.time_preparing():
            benches = self._prepare()
        if self._settings.find_capacity:
            self._prober.find_capacities(benches)
        else:
            for bench in benches:
                with self._prober.catch_failure(bench):
                    self._prober.probe(bench)
            self._prober.raise_failure(benches)
        return self.describe()

    def _prepare(self) -> list[LoadCandidate]:
        """Make every candidate that can run; the others are stored with the reason."""
        from enginebench.features.load.rates import LoadCandidate, make_bench, name_row
        from enginebench.runs.targets.sides import plan_target

        settings, benches, failures = self._settings, list[LoadCandidate](), list[EngineBenchError]()
        for row in plan_target(self._request, self._folder.artifacts, self._reporter):
            self._model = row.model
            shapes = itertools.product(settings.streams, settings.max_batches)
            named = [name_row(row.engine, streams=s, max_batch=b, max_wait_ms=settings.max_wait_ms) for s, b in shapes]
            named = [replace(candidate, devices=settings.devices) for candidate in named]
            try:
                artifact = self._build(row)
            except UsageError:
                raise
            except EngineBenchError as error:
                self._prober.rows[named[0].id] = replace(named[0], reason=str(error))
                failures.append(error)
                continue
            for described in [replace(candidate, artifact=artifact.sha256) for candidate in named]:
                self._prober.rows[described.id] = described
                artifacts, seed = self._folder.artifacts, row.measure.seed
                benches.append(make_bench(described, artifact, model=row.inputs_model, out_dir=artifacts, seed=seed))
        if not benches:
            if len(failures) == 1:
                raise failures[0]
            raise BackendUnavailable("; ".join(dict.fromkeys(str(error) for error in failures)))
        return benches

    def _build(self, row: PlannedConfiguration) -> Artifact:
        """Build what the engine loads, and run it once on the check inputs."""
        from enginebench.features.load.rates import widen_profile
        from enginebench.models.samples import find_samples
        from enginebench.runs.checking import CHECK_SAMPLES
        from enginebench.runs.results import label

        if row.skip is not None or row.source is None:
            raise BackendUnavailable(str(row.skip))
        self._reporter.step(f"{label(row)}: build and check")
        job = PrepareJob(
            model=row.inputs_model,
            artifact=row.source,
            engine=widen_profile(row.engine, row.source, max(self._settings.max_batches)),
            out_dir=str(self._folder.artifacts.absolute()),
            outputs_path=str(self._folder.outputs_path(row.id).absolute()),
            samples=CHECK_SAMPLES,
            seed=row.measure.seed,
            prove=False,
            inputs=find_samples(self._folder.artifacts),
        )
        return free_batch(run_child(job, timeout_s=self._request.timeout_s).artifact)


def write_load(root: Path, document: LoadDocument) -> tuple[str, ...]:
    """Write load.json, and with the extra `report` its page and pictures; notes list what is missing."""
    write_atomic(root / DOCUMENT, encode(document, indent=2))
    return report_load(root, document, FORMATS).notes


def read_load(root: Path) -> LoadDocument:
    from enginebench.features.load.document import LoadDocument
    from enginebench.stats.capacity import agrees_with_probes

    check_inside(root, root / DOCUMENT)
    document = read_record(root / DOCUMENT, LoadDocument)
    for i, row in enumerate(document.rows):
        ends = {None, *(end for search in row.rounds for end in (search.passes_qps, search.fails_qps))}
        joined = row.capacity is None or {row.capacity.passes_qps, row.capacity.fails_qps} <= ends
        if not joined or not all(map(agrees_with_probes, row.rounds)):
            fault = "a capacity that its probes do not show"
            raise ParseError(root / DOCUMENT, f"$.rows[{i}]", fault, "one that they do")
    return document


def report_load(root: Path, document: LoadDocument, formats: Sequence[str]) -> Written:
    """Write the page (html) and the pictures (png) of a load."""
    from enginebench.features.load.sections import FOOTER, draw_load, list_load
    from enginebench.runs.reporting import Written

    if not set(formats) & set(FORMATS):
        raise UsageError(f"the report of a load is {' and '.join(FORMATS)}; asked for {', '.join(formats)}")
    try:
        bundle, pictures = load_vega(), draw_load(document)
        files = {f"{picture.name}.png": render_png(picture.spec) for picture in pictures if "png" in formats}
        if "html" in formats:
            title, sections = f"{document.model} under load", list_load(document, pictures)
            files["report.html"] = format_page(title, sections, bundle=bundle, footer=FOOTER).encode()
    except MissingDependency as error:
        return Written(paths=(), notes=(f"no report.html and no charts: {error}",))
    for name in files:
        check_inside(root, root / name)
    for name, data in files.items():
        write_atomic(root / name, data)
    return Written(paths=tuple(root / name for name in files))


def report_any(
    path: str, formats: Sequence[str], options: Mapping[str, Any]
) -> tuple[Written, LoadDocument, Callable[[LoadDocument], list[Section]]] | None:
    """The files of the report on a load, its document, and what lists its sections; None if a folder holds none."""
    from enginebench.features.load.sections import list_load

    root = Path(path)
    if not (root / DOCUMENT).is_file():
        return None
    document = read_load(root)
    return report_load(root, document, formats), document, list_load


def load_target(
    request: RunRequest,
    settings: LoadSettings,
    root: Path,
    *,
    reporter: Reporter,
    wait: bool = True,
    resume: bool = False,
    on_partial: Callable[[LoadDocument], object] = lambda document: None,
) -> LoadDocument:
    """Measure the load; after an interruption or an error `on_partial` gets the document so far."""
    from enginebench.runs.targets.ahead import check_ahead

    earlier = resume_load(request, settings, root) if resume else None
    if not resume:
        check_unloaded(root)
        check_ahead([request])
    loading = Loading(request, settings, root, reporter, earlier)
    devices = (*list_devices(request), *settings.devices[1:])
    with lock_folder(root, reporter.say), lock_devices(devices, wait=wait, on_wait=reporter.say):
        if not resume:  # another load may have begun and ended there before its lock was taken
            check_unloaded(root)
        RunFolder(root).drop_compiled()
        try:
            return loading.run()
        except (KeyboardInterrupt, EngineBenchError) as error:
            document = loading.describe(finished=False)
            if document.points or isinstance(error, KeyboardInterrupt):
                on_partial(document)
            if document.points and isinstance(error, KeyboardInterrupt):
                add_note(error, f"{count_of(len(document.points), 'points')} are kept in {root}")
            raise


def check_unloaded(root: Path) -> None:
    """Check that a load can begin in the folder: it holds none."""
    if (root / DOCUMENT).exists():
        raise UsageError(f"{root} holds a load already; continue it with --resume or choose another --out")


def resume_load(request: RunRequest, settings: LoadSettings, root: Path) -> LoadDocument:
    """Read the interrupted load; raises UsageError if its options differ, but for --rounds and --time-budget."""
    from enginebench.runs.main_job import list_changes

    if not (root / DOCUMENT).exists():
        raise UsageError(f"{root} holds no load to continue: there is no {DOCUMENT}. Leave --resume out to begin")
    document, target = read_load(root), Path(request.model)
    model = open_as_stored(target).result.model if is_bundle(target) else request.model
    requested = {"model": Path(model).name, "seed": request.measure.seed, **asdict(settings)}
    requested["arrivals"] = hide_home(settings.arrivals)
    stored = {
        "model": Path(document.model).name,
        "seed": document.seed,
        **(asdict(document.settings) if document.settings else {}),
    }
    free = ("rounds", "time_budget_s")
    differ = [name for name in requested if name not in free and stored.get(name) != requested[name]]
    changes = [f"{name} was {stored.get(name)}, not {requested[name]}" for name in differ]
    if document.machine is not None:
        changes += list_changes(document.machine, describe_machine())
    if changes:
        raise UsageError(f"{root} cannot be continued: {'; '.join(changes)}. Ask as before, or start a new load")
    return document


def check_settings(settings: LoadSettings) -> None:
    from enginebench.features.load.arrivals import MAX_SERVERS, read_arrivals
    from enginebench.features.load.rates import POINT_S

    qps, arrivals, find_capacity = settings.qps, settings.arrivals, settings.find_capacity
    server, trace = settings.scenario == "server", arrivals not in ("poisson", "constant")
    if settings.devices and settings.scenario not in ("server", "offline"):
        raise UsageError(f"--device with several GPUs shares requests out; {settings.scenario} has one at a time")
    if len(settings.devices) > MAX_SERVERS or "cpu" in settings.devices:
        raise UsageError(f"--device {','.join(settings.devices)}: several devices are at most {MAX_SERVERS} GPUs")
    if not server and (qps or find_capacity or arrivals != "poisson"):
        needs = "--qps, --find-capacity and --arrivals are for --scenario server"
        raise UsageError(f"{needs}; {settings.scenario} has no rate")
    if find_capacity and settings.limit is None:
        raise UsageError("--find-capacity needs a limit: add --p99-limit-ms X")
    if find_capacity and (qps or trace):
        raise UsageError("--find-capacity chooses the rates itself: leave out --qps and the file of --arrivals")
    if server and not (qps or find_capacity or trace):
        raise UsageError("--scenario server needs a rate: --qps N, --find-capacity, or a file of --arrivals")
    if trace and qps:
        raise UsageError(f"the file {arrivals} defines when requests come: leave out --qps")
    if trace:
        read_arrivals(Path(arrivals))
    seconds = settings.duration_s or POINT_S
    if qps and qps * seconds < 1:
        raise UsageError(
            f"--qps {qps:g} for {seconds:g} s is less than one request: give --duration {math.ceil(1 / qps)} or more, "
            f"or --qps {1 / seconds:.3g} or more"
        )
