"""The main job: describe the machine, make the sources, plan the configurations, measure them, store everything."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.core.features import find_hooks
from enginebench.core.hooks import RunFinished
from enginebench.core.records import Artifact, Machine, Result
from enginebench.core.store import hash_file
from enginebench.measure.machine import describe_machine
from enginebench.runs.alternatives import NextRecipes
from enginebench.runs.building import Begun
from enginebench.runs.builds import builds_slowly
from enginebench.runs.campaign import Campaign
from enginebench.runs.checking import CHECK_SAMPLES, QUICK_SAMPLES
from enginebench.runs.folder import RunFolder, RunRecord, RunRequest, begin_record, trust_request
from enginebench.runs.lock import lock_devices, lock_folder
from enginebench.runs.plan import PlannedConfiguration, list_devices, plan_configurations, resolve
from enginebench.runs.progress import PartTimes, Reporter
from enginebench.runs.reporting import make_rules
from enginebench.runs.results import note_kept
from enginebench.runs.scoring import Scoring
from enginebench.runs.starts import add_cold_starts
from enginebench.runs.targets.ahead import check_ahead
from enginebench.runs.targets.sources import (
    Limit,
    OnModule,
    Sources,
    choose_scoring,
    fit_scoring,
    gather_sources,
    note_unlabelled,
)

# Called with the record of a run, and the results so far.
OnResults: TypeAlias = Callable[[RunRecord, list[Result]], None]


def run_model(
    request: RunRequest,
    root: Path | RunFolder,
    *,
    reporter: Reporter,
    resume: bool = False,
    wait: bool = True,
    locks: Sequence[str] | None = None,
    command: tuple[str, ...] = (),
    on_results: OnResults = lambda record, results: None,
) -> tuple[RunRecord, list[Result]]:
    """Run all configurations, store them under `root`, and return the run's record and the results.

    Args:
        request: what to run. With `resume` the stored request is used, which must be of the same model.
        root: the run's folder; a RunFolder if it also copies its files elsewhere.
        locks: the devices to lock; None: those of the configurations.
        on_results: called with the results so far: once before the export, if there is one, and when the run ends in
            any way, also by an interrupt.
    """
    folder = root if isinstance(root, RunFolder) else RunFolder(root)
    if resume:
        record = continue_record(folder, request)
        effective = record.request
    else:
        folder.check_free()
        check_ahead([request])
        record, effective = begin_record(request, describe_machine(), command=command), request
    devices = list_devices(record.request) if locks is None else locks
    with (
        lock_folder(folder.root, reporter.say) as warnings,
        lock_devices(devices, wait=wait, on_wait=reporter.say),
        ExitStack() as children,
    ):
        start, parts = time.monotonic() - (record.took_s or 0.0), PartTimes(record.parts_s)
        parts.begin("model")
        scoring = choose_scoring(effective)
        if not resume:  # another run may have begun and ended there before its lock was taken
            folder.create(record)
        early = AheadOfExport(folder, record, scoring, reporter, on_results, children, parts)
        record, sources, planned = begin_configurations(folder, record, reporter, early)
        scoring = fit_scoring(scoring, effective, sources.artifacts)
        record = replace(record, notes=tuple(dict.fromkeys((*record.notes, *warnings, *note_unlabelled(scoring)))))
        recipes = NextRecipes(effective, sources.artifacts, folder, reporter)
        campaign = Campaign(
            folder,
            planned,
            record.machine,
            timeout_s=effective.timeout_s,
            reporter=reporter,
            scoring=scoring,
            task=effective.task,
            rules=make_rules(effective),
            samples=count_samples(effective),
            propose=recipes.propose,
        )
        campaign.take_over(early.begun)
        if resume or early.results:
            campaign.restore()
        try:
            campaign.run(parts)
            if effective.for_calls is not None:
                add_cold_starts(folder, record, campaign.results, reporter)
            for finish in find_hooks(RunFinished):
                finish(folder, record, campaign.results, reporter)
        finally:
            record = complete_record(record, campaign.results, recipes, time.monotonic() - start, parts)
            folder.write_record(record)
            on_results(record, list(campaign.results.values()))
    return record, list(campaign.results.values())


def complete_record(
    record: RunRecord, results: dict[str, Result], recipes: NextRecipes, took_s: float, parts: PartTimes
) -> RunRecord:
    """Return the record of a run that ends: with the configurations that nobody requested, and what it took."""
    return replace(
        record,
        rows=tuple(dict.fromkeys((*record.rows, *results))),
        notes=tuple(dict.fromkeys((*record.notes, *recipes.describe(results)))),
        took_s=round(took_s, 1),
        parts_s=parts.end(),
    )


class AheadOfExport:
    """Times the module of a model before it is exported, and begins to check its outputs during the export."""

    def __init__(
        self,
        folder: RunFolder,
        record: RunRecord,
        scoring: Scoring | None,
        reporter: Reporter,
        on_results: OnResults,
        children: ExitStack,
        parts: PartTimes,
    ) -> None:
        """Take what the run knows without the module; `children` ends those that are begun."""
        self._folder, self._record, self._scoring = folder, record, scoring
        self._reporter, self._on_results, self._children, self._parts = reporter, on_results, children, parts
        self.results: list[Result] = []
        self.begun: dict[str, Begun] = {}

    def take(self, module: Artifact) -> None:
        """Measure what runs the module as it is once, so that an interrupted export leaves a figure.

        Then begin to check its outputs, or to compile for a GPU what takes longer: most of an export runs in a single
        thread, and none of it on a GPU.
        """
        request = self._record.request
        configurations = plan_configurations(resolve(request, [module]), [module])
        runnable = [configuration for configuration in configurations if configuration.skip is None]
        first = next((one for one in runnable if not builds_slowly(one.engine)), None)
        if first is None:
            return
        longest = next((one for one in runnable if builds_slowly(one.engine) and one.engine.device != "cpu"), first)
        campaign = Campaign(
            self._folder,
            [first],
            self._record.machine,
            timeout_s=request.timeout_s,
            reporter=self._reporter,
            scoring=fit_scoring(self._scoring, request, [module]),
            samples=count_samples(request),
        )
        self._parts.begin("trials")
        campaign.measure_unchecked(first)
        self._parts.begin("model")
        self.results.extend(campaign.results.values())
        record = replace(self._record, rows=(first.id,))
        self._folder.write_record(record)
        self._on_results(record, self.results)
        if (begun := campaign.begin(longest)) is not None:
            self._children.enter_context(begun.child)
            self.begun[longest.id] = begun


def begin_configurations(
    folder: RunFolder, record: RunRecord, reporter: Reporter, early: AheadOfExport
) -> tuple[RunRecord, Sources, list[PlannedConfiguration]]:
    """Return the record with its sources and configurations, and both."""
    begun = bool(record.sources)
    try:
        record, sources = find_sources(folder, record, reporter, on_module=early.take)
    except KeyboardInterrupt as error:
        note_kept(error, early.results, folder.root)
        raise
    planned = sources.plan_configurations()
    if not begun:
        record = replace(record, rows=tuple(configuration.id for configuration in planned))
        folder.write_record(record)
    return record, sources, planned


def count_samples(request: RunRequest) -> int:
    """Return the number of samples over which outputs are compared."""
    return QUICK_SAMPLES if request.quick else CHECK_SAMPLES


def continue_record(folder: RunFolder, request: RunRequest, verb: str = "run") -> RunRecord:
    """Return the folder's record, checked to fit `request`, and remove code that others compiled."""
    record = folder.read_record()
    if record.verb != verb:
        raise UsageError(f"{folder.root} holds the results of {record.verb}, which {verb} cannot continue")
    if Path(request.model).name != Path(record.request.model).name:
        raise UsageError(
            f"{folder.root} holds a run of {record.request.model}, not of {request.model}. Name that model, or another "
            "--out without --resume"
        )
    model_file = Path(request.model)
    source_files = record.sources[0].files if record.sources and model_file.is_file() else ()
    # Only the named file is read, never another one that a record names.
    if any(file.path == model_file.name and hash_file(model_file) != file.sha256 for file in source_files):
        why = f"{model_file.name} was changed after the run in {folder.root} began (SHA-256 differs)"
        raise UsageError(f"{why}. Start a new run in another folder")
    if changed := list_changes(record.machine, describe_machine()):
        raise UsageError(
            f"{folder.root} cannot be continued here; the results would not be comparable: {'; '.join(changed)}. "
            "Start a new run; `enginebench report` reads this one anywhere"
        )
    trusted = trust_request(record.request, request, folder.root / "run.json")
    folder.drop_compiled()
    return replace(record, request=trusted)


def list_changes(then: Machine, now: Machine) -> list[str]:
    """Return the differences of two machines that affect times: processor, GPUs, package versions."""
    parts = [
        ("processor", then.cpu_model, now.cpu_model),
        ("GPUs", ", ".join(gpu.name for gpu in then.gpus), ", ".join(gpu.name for gpu in now.gpus)),
        *((name, then.versions.get(name), now.versions.get(name)) for name in {**then.versions, **now.versions}),
    ]
    return [f"{what} was {old or 'none'}, now {new or 'none'}" for what, old, new in parts if old != new]


def find_sources(
    folder: RunFolder, record: RunRecord, reporter: Reporter, limit: Limit = None, on_module: OnModule | None = None
) -> tuple[RunRecord, Sources]:
    """Return the record with its sources, and the artifacts to start from: those of the record, or made now."""
    if record.sources:
        opened = tuple(map(folder.open, record.sources))
        return record, Sources(plan=resolve(record.request, opened), artifacts=opened, problems=record.problems)
    gathered = gather_sources(record.request, folder.artifacts, reporter, limit, on_module)
    stored = tuple(folder.relative(a) for a in gathered.artifacts)
    notes = gathered.plan.list_notes()
    return replace(record, sources=stored, problems=gathered.problems, notes=notes), gathered
