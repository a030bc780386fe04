"""One session of a search: begun or continued, run within its budget, stored as documents and as a run."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from enginebench.core.commands import format_command
from enginebench.core.entry import find_kind
from enginebench.core.errors import MissingDependency, add_note, refuse_all
from enginebench.core.features import find_hook
from enginebench.core.hooks import FaultLocator, ModelBound
from enginebench.core.names import format_options, format_precision
from enginebench.core.precisions import REORDER
from enginebench.core.recipes import BF16
from enginebench.core.records import Artifact, Bound, LayerTime, Machine, Result
from enginebench.core.shapes import PAD, measure_padding
from enginebench.core.store import encode, write_atomic
from enginebench.core.text import count_of
from enginebench.engines.registry import find_installed
from enginebench.features.tune.expected import Expectations
from enginebench.features.tune.mixed import MixedProposer
from enginebench.features.tune.proposals import (
    LowerLevels,
    Proposer,
    Remaining,
    list_known,
    list_padded,
    make_proposer,
    read_gains,
    split_first,
)
from enginebench.features.tune.records import (
    Budget,
    Candidate,
    Finalist,
    FrontierPoint,
    SearchRecord,
    SearchRequest,
    TuneDocument,
    TuneRef,
    read_search,
    write_search,
)
from enginebench.features.tune.region_graphs import RegionProposer
from enginebench.features.tune.search import NO_TIME, Search
from enginebench.features.tune.sections import FOOTER, SHOWN, draw_frontier, list_tune_page
from enginebench.features.tune.space import Arm, Goal, Setting, list_arms, list_stream_counts, list_thread_counts
from enginebench.features.tune.track import CandidatePlanner, TimedTrack
from enginebench.features.tune.under_load import LoadTrack
from enginebench.measure.machine import describe_machine
from enginebench.measure.pin import count_stream_threads, default_threads
from enginebench.report.charts import load_vega, render_png
from enginebench.report.numbers import format_ratio, format_significant
from enginebench.report.page import format_page
from enginebench.runs.campaign import Campaign
from enginebench.runs.families import find_families
from enginebench.runs.folder import (
    TUNE_FILE,
    TUNE_PAGE,
    RunFolder,
    RunRecord,
    RunRequest,
    allow_request,
    begin_record,
    check_named_files,
    holds_run,
    read_results,
)
from enginebench.runs.lock import lock_devices, lock_folder
from enginebench.runs.main_job import continue_record, find_sources
from enginebench.runs.plan import list_devices, list_here
from enginebench.runs.progress import Reporter
from enginebench.runs.reporting import describe_stored, write_reports
from enginebench.runs.results import has_changed, has_outputs
from enginebench.runs.targets.ahead import check_ahead
from enginebench.runs.targets.sources import choose_scoring, fit_scoring, note_unlabelled
from enginebench.stats.assessment import compare_configurations
from enginebench.stats.metrics.scores import find_score
from enginebench.stats.needs import find_costs, format_figure
from enginebench.stats.quantiles import median
from enginebench.stats.ranking import Rules, find_front, find_quality, round_quality
from enginebench.stats.traffic import name_padded
from enginebench.stats.validity import find_worst

# What a cost is shown as, and how many of these a nanosecond is.
UNITS: dict[Goal, str] = {"latency": "ms a sample", "throughput": "ms a sample", "capacity": "ms a request"}
MS = 1e-6
COSINE = "centred cosine"
# Settings that pad whose price is described; more sentences would hide the others.
PADDED = 4
# What a setting and a reference to it have in common.
SHARED = ("threads", "streams", "max_batch", "max_wait_ms", "method", "graph")


def describe_search(search: Search, machine: Machine, *, proposed_by: Sequence[str]) -> TuneDocument:
    request, final = search.record.request, search.final
    challenger = search.record.finalists[0] if search.record.finalists else search.leader
    comparison = final.compare(final.best_default) if final and final.best_default else None
    gain = comparison.ratio.value if comparison and comparison.ratio else None
    beaten = bool(final and final.beaten)
    winner = _find(search, final.winner) if final is not None else challenger
    notes = []
    validity = comparison.ratio_validity if comparison else None
    # An inconclusive verdict has the reason beside it.
    if comparison and validity not in (None, "good") and comparison.verdict != "not_shown":
        why = f": {comparison.ratio_reason}" if comparison.ratio_reason else ""
        notes.append(f"The ratio to the best default is {validity.replace('_', ' ')}{why}.")
    failed = [name for name in final.defaults if name in final.failed] if final else []
    for name in failed:
        notes.append(f"The default {name} failed in the final; it may be faster than the best that is named.")
    untried = [*search.record.untried, *(one.candidate for one in search.lost if one.reason == NO_TIME)]
    if untried:
        listed = f"{', '.join(untried[:SHOWN])}{', ...' if len(untried) > SHOWN else ''}"
        count = sum(setting.name in untried for setting in search.defaults)
        notes.append(f"No time was left for {count_of(len(untried), 'settings')}: {listed}.")
        if count:
            notes[-1] += f" {count_of(count, 'defaults')} among them may be faster than those that were measured."
    winner_gain = None
    if beaten:
        winner_gain = gain
    elif final:
        winner_gain = 1.0
    candidates = _describe_candidates(search)
    finalists = tuple(_describe_finalist(search, setting) for setting in dict.fromkeys(search.record.finalists))
    return TuneDocument(
        model=Path(request.run.model).name,
        machine=machine,
        device=request.run.device,
        goal=request.goal,
        unit=UNITS[request.goal],
        winner=_refer(search, winner, winner_gain),
        default=_refer(search, _find(search, final.best_default) if final else None, 1.0),
        challenger=_refer(search, challenger, gain),
        beaten=beaten,
        verdict=comparison.verdict if comparison else None,
        ratio=comparison.ratio if comparison else None,
        ratio_validity=comparison.ratio_validity if comparison else None,
        notes=tuple(notes),
        dropped=tuple(search.lost),
        frontier=find_frontier(candidates),
        final=finalists,
        candidates=candidates,
        quality_of=_name_metric(search) or COSINE,
        generations=len(search.record.generations),
        processes=search.processes,
        budget_s=request.budget_s,
        spent_s=search.record.spent_s,
        finished=search.record.finished,
        proposed_by=tuple(proposed_by),
        validity=find_worst(one.validity for one in finalists),
        warnings=machine.warnings,
    )


def find_locating(root: Path, results: Iterable[Result]) -> str:
    """Return the command that locates where the first changed outputs leave the reference; "" where there are none."""
    if find_hook(FaultLocator) is None:
        return ""
    for result in results:
        if has_outputs(result) and has_changed(result) and result.drift and result.drift.reference:
            files = [root / "rows" / f"{name}.json" for name in (result.drift.reference, result.id)]
            if all(file.is_file() for file in files):
                return format_command("drift", *map(str, files), options=[("--locate", None)])
    return ""


def _find(search: Search, name: str | None) -> Setting | None:
    return next((setting for setting in search.record.finalists if setting.name == name), None)


def _refer(search: Search, setting: Setting | None, speedup: float | None) -> TuneRef | None:
    if setting is None:
        return None
    result = search.track.find_result(setting, final=search.final is not None)
    return TuneRef(
        id=result.id if result and search.final is not None else None,
        candidate=setting.name,
        engine=format_options(setting.engine, setting.options),
        precision=format_precision(setting.precision, setting.recipe),
        batch=result.engine.batch if result else 1,
        speedup=speedup,
        **{name: getattr(setting, name) for name in SHARED},
    )


def _describe_candidates(search: Search) -> tuple[Candidate, ...]:
    metric = _name_metric(search)
    defaults = {setting.name for setting in search.defaults}
    candidates = []
    for one in search.tried:
        result = search.track.find_result(one.setting)
        candidates.append(
            Candidate(
                candidate=one.setting.name,
                id=result.id if result else "",
                default=one.setting.name in defaults,
                speed=1 / one.cost if one.cost else None,
                processes=search.track.count_laps(one.setting),
                quality=measure_quality(result, metric) if result and one.cost else None,
                graph=one.setting.graph,
                validity=search.track.assess_trials(one.setting)[0],
            )
        )
    return tuple(sorted(candidates, key=lambda candidate: -(candidate.speed or 0.0)))


def _name_metric(search: Search) -> str | None:
    """Return the metric that decides about the settings; None without labelled samples."""
    results = (search.track.find_result(one.setting) for one in search.tried)
    return next((result.scores[0].metric for result in results if result and result.scores), None)


def measure_quality(result: Result, metric: str | None) -> float | None:
    """Return the score, higher if better; without labels the least centred cosine of the outputs to the reference's."""
    cosines = [o.centred_cosine_mean for o in result.drift.outputs] if result.drift else []
    likeness = min((c for c in cosines if c is not None), default=None)
    score = find_score(result.scores, metric) if metric else None
    return find_quality(score, likeness, by_metric=metric is not None, is_truth=False)


def find_frontier(candidates: Sequence[Candidate]) -> tuple[FrontierPoint, ...]:
    """Return the candidates that no other beats in both speed and quality, fastest first.

    Rounded to the digits that decide in a run: kernels that round otherwise are not better.
    """
    points = [
        FrontierPoint(candidate=c.candidate, id=c.id, speed=c.speed, quality=round_quality(c.quality))
        for c in candidates
        if c.speed is not None and c.quality is not None
    ]
    return tuple(find_front(points, lambda point: (-point.speed, point.quality)))


def _describe_finalist(search: Search, setting: Setting) -> Finalist:
    final = search.final
    result = search.track.find_result(setting, final=True)
    comparison = final.compare(setting.name) if final and setting.name != final.challenger else None
    validity, warnings = search.track.assess_trials(setting, final=True)
    return Finalist(
        candidate=setting.name,
        id=result.id if result else "",
        default=setting in search.record.finalists[1:],
        cost=final.estimate(setting.name, MS) if final else None,
        verdict=comparison.verdict if comparison else None,
        ratio=comparison.ratio if comparison else None,
        reason=(final and final.failed.get(setting.name))
        or ("; ".join(comparison.reasons) if comparison else None)
        or None,
        validity=validity,
        warnings=warnings,
    )


PICTURE = "frontier.png"


def tune_model(
    request: SearchRequest,
    root: Path,
    *,
    reporter: Reporter,
    resume: bool = False,
    budget_s: float | None = None,
    wait: bool = True,
    command: tuple[str, ...] = (),
    on_partial: Callable[[TuneDocument], None] = lambda document: None,
) -> tuple[TuneDocument, tuple[str, ...]]:
    """Search the settings of every engine for the fastest, and re-measure it against their defaults.

    With `resume` the stored request is continued, which must be of the same model, with `budget_s` seconds in all.
    """
    folder = RunFolder(root)
    allow_request(request.run)
    check_named_files(request.run)
    if resume:
        record, run = read_search(root), continue_record(folder, request.run, "tune")
        # Paths stand in run.json in a form that says nothing about the user.
        record = replace(record, request=replace(record.request, run=run.request))
    else:
        run = begin_record(request.run, describe_machine(), verb="tune", command=command)
        record = SearchRecord(request=request)
        folder.check_free()
        check_ahead([request.run])
    if budget_s is not None:
        record = replace(record, request=replace(record.request, budget_s=budget_s))
    with (
        lock_folder(root, reporter.say) as warnings,
        lock_devices(list_devices(record.request.run), wait=wait, on_wait=reporter.say),
    ):
        if not resume:
            folder.create(run)
            write_search(folder.root, record)
        budget = Budget(record.request.budget_s, record.spent_s)
        search, proposers, before = _open(folder, run, record, budget, reporter)
        notes = (*warnings, *before)
        try:
            search.run()
        except KeyboardInterrupt as interrupt:
            document = _describe_session(search, proposers, run, root, notes)
            write_tune(root, document)
            on_partial(document)
            if search.tried:
                add_note(interrupt, f"what was measured of {count_of(len(search.tried), 'settings')} is kept in {root}")
            raise
    for proposer in proposers:
        if isinstance(proposer, MixedProposer) and (path := proposer.write_best(search.tried)) is not None:
            reporter.say(f"{path}: the nodes that stay in FP32 in the fastest graph of mixed precision")
    stored = replace(folder.read_record(), rows=search.final_rows)
    folder.write_record(stored)
    remains = _bound_winner(search, folder, stored, budget, reporter)
    document = _describe_session(search, proposers, run, root, notes, remains)
    return document, write_tune(root, document, stored)


def _describe_session(
    search: Search,
    proposers: Sequence[Proposer],
    run: RunRecord,
    root: Path,
    notes: Sequence[str],
    remains: Sequence[str] = (),
) -> TuneDocument:
    """Describe the search so far.

    Args:
        notes: what was found before it began.
        remains: how far the winner is from what the machine can do.
    """
    document = describe_search(search, run.machine, proposed_by=[proposer.name for proposer in proposers])
    tellers = (proposer for proposer in proposers if isinstance(proposer, MixedProposer | RegionProposer | Remaining))
    tried = (line for proposer in tellers for line in proposer.describe(search.tried))
    return replace(
        document,
        notes=(*notes, *document.notes, *describe_padding(search), *tried, *remains),
        locating=find_locating(root, read_results(root, condensed=True)[1]),
        started_utc=run.started_utc,
    )


def _bound_winner(
    search: Search, folder: RunFolder, stored: RunRecord, budget: Budget, reporter: Reporter
) -> list[str]:
    """Return how far the winner of a search for latency is from the least time; [] without winner or bound."""
    winner = search.final and _find(search, search.final.winner)
    best = search.track.find_result(winner, final=True) if winner else None
    find_bound = find_hook(ModelBound)
    if best is None or search.record.request.goal != "latency" or find_bound is None:
        return []
    return list(format_headroom(best, *find_bound(folder, stored, best, max(1.0, budget.left_s), reporter)))


def tune_run(
    run: RunRequest, root: Path, *, threads: int | None, budget_s: float, reporter: Reporter, wait: bool = True
) -> TuneDocument:
    """Search for a request of another verb; a run in `root` that measured nothing has made the graphs for it."""
    request = SearchRequest(run=run, threads=threads, budget_s=budget_s)
    if made := holds_run(root):
        write_search(root, SearchRecord(request=request))
    return tune_model(request, root, reporter=reporter, resume=made, wait=wait)[0]


def _open(
    folder: RunFolder, run: RunRecord, record: SearchRecord, budget: Budget, reporter: Reporter
) -> tuple[Search, list[Proposer], list[str]]:
    request = record.request
    continued, sources = find_sources(folder, run, reporter, lambda: max(0.1, budget.left_s))
    if continued is not run:
        folder.write_record(continued)
    scoring = fit_scoring(choose_scoring(request.run), request.run, sources.artifacts)
    campaign = Campaign(
        folder,
        [],
        run.machine,
        timeout_s=budget.limit_child,
        reporter=reporter,
        scoring=scoring,
        task=request.run.task,
        rules=Rules(needs=request.run.needs),
    )
    configurations = CandidatePlanner(request.run, sources, folder.artifacts, reporter)
    configurations.find_left = lambda: max(0.1, budget.left_s)
    arms, never = find_arms(request, run.machine, sources.artifacts)
    proposers: list[Proposer] = [make_proposer(arms, request.run.measure.seed, read_gains(folder.root))]
    if any(arm.precision in ("int8", "fp8") for arm in arms):
        proposers.insert(0, RegionProposer(request, arms, configurations, folder, reporter))
        proposers.insert(0, MixedProposer(request, arms, configurations, folder, reporter))
    timed = TimedTrack(request, configurations, campaign)
    proposers.insert(0, LowerLevels(arms, timed.is_changed))
    track = timed if request.goal == "latency" else LoadTrack(request, timed, folder, reporter)
    if isinstance(track, LoadTrack):
        track.find_limit = budget.limit_child
    families, kind = find_families(sources.artifacts), find_kind(request.run.device)
    good = list_known(arms, families, kind)
    expected = Expectations(kind, families, good)
    first, others = split_first(arms, good, expected, request.budget_s)
    first += list_padded([arm for arm in arms if arm.default in first], request.candidates)
    if others:
        proposers.insert(0, Remaining(others, expected))
    store = partial(write_search, folder.root)
    notes = [*continued.notes, *note_unlabelled(scoring), *never]
    search = Search(record, arms, track, proposers, budget, reporter, store=store, combinations=good, first=first)
    configurations.find_spare = lambda: max(0.1, search.find_spare())
    configurations.expect_build = lambda engine: search.record.build_s.get(engine, 0.0)
    return search, proposers, notes


def find_arms(request: SearchRequest, machine: Machine, sources: Sequence[Artifact]) -> tuple[list[Arm], list[str]]:
    """Return the arms to search, and a line for each engine that was named and cannot run."""
    here = list_here(request.run)
    absent = {name: str(find_installed(name).reason) for name, _ in request.run.engines if name not in here}
    engines = tuple((name, options) for name, options in request.run.engines if name in here)
    cores = default_threads()
    threads = list_thread_counts(cores, len(machine.cpus_allowed), request.threads)
    if request.goal != "latency" and request.threads is None:
        threads = (count_stream_threads(1),)  # the generator has a core of its own, where one is to spare
    streams = list_stream_counts(cores)
    run, limit_ms = replace(request.run, engines=engines), request.p99_limit_ms
    one_fp32 = request.fp32_only_judges
    arms, never = list_arms(
        run, request.goal, threads=threads, streams=streams, limit_ms=limit_ms, one_fp32=one_fp32, sources=sources
    )
    if BF16.isdisjoint(machine.cpu_flags):  # engines refuse it
        arms = [replace(a, knobs={n: tuple(v for v in vs if v != "bf16") for n, vs in a.knobs.items()}) for a in arms]
    if all(one_fp32 and arm.precision == "fp32" for arm in arms):
        raise refuse_all([*absent.values(), *never.values()])
    ran = {arm.precision for arm in arms}
    reported = {name: why for name, why in never.items() if not (request.any_engine and name.split()[1] in ran)}
    return arms, [f"Not run: {name}: {why}." for name, why in (absent | reported).items()]


def describe_padding(search: Search) -> Iterator[str]:
    """Yield a sentence on each setting that pads, the fastest first: what that costs over the same setting with the
    exact shapes."""
    costs = {one.setting.name: one.cost for one in search.tried if one.cost is not None}
    padded = [one.setting for one in search.tried if PAD in one.setting.options and one.setting.name in costs]
    sentences = (_describe_padding(search, setting, costs) for setting in sorted(padded, key=lambda s: costs[s.name]))
    listed = [sentence for sentence in sentences if sentence]
    yield from listed[:PADDED]
    if len(listed) > PADDED:
        yield f"{len(listed) - PADDED} more with padding took longer."


def _describe_padding(search: Search, setting: Setting, costs: Mapping[str, float]) -> str:
    """Describe what padding costs; "" where the same setting without it was not timed."""
    exact = replace(setting, options={name: value for name, value in setting.options.items() if name != PAD})
    padded, base = search.track.find_result(setting), search.track.find_result(exact)
    if padded is None or base is None or exact.name not in costs:
        return ""
    ratio = compare_configurations(padded, base).ratio
    # Without an interval, as after one trial, that of the race.
    time = format_ratio(ratio) if ratio else f"about {format_significant(costs[setting.name] / costs[exact.name], 2)}x"
    memory, before = (find_costs(one)["memory"] for one in (padded, base))
    room = ""
    if memory and before:
        room = f" and {format_figure('memory', memory)} of memory instead of {format_figure('memory', before)}"
    names = name_padded(padded)
    values = format_significant(measure_padding(padded.engine, padded.artifacts[-1].inputs))
    return (
        f"Padding: {setting.name} takes {time} the time of the exact shapes{room}, for {values}x the input values in "
        f"{len(set(names))} of {len(names)} shapes."
    )


def write_tune(root: Path, document: TuneDocument, record: RunRecord | None = None) -> tuple[str, ...]:
    """Write `tune.json` and its page, and the reports of the final if there is one; return notes on what is missing."""
    write_atomic(root / TUNE_FILE, encode(document, indent=2))
    notes: tuple[str, ...] = ()
    picture = bundle = None
    if len(document.frontier) > 1:
        try:
            picture, bundle = draw_frontier(document), load_vega()
            write_atomic(root / PICTURE, render_png(picture))
        except MissingDependency as error:
            notes = (f"no chart of the frontier: {error}",)
    title = f"{document.model} tuned for {document.goal}"
    sections = list_tune_page(document, picture if bundle else None)
    write_atomic(root / TUNE_PAGE, format_page(title, sections, bundle=bundle, footer=FOOTER).encode())
    if record is None or not record.rows:
        return notes
    record, results = read_results(root)
    return (*notes, *write_reports(root, describe_stored(record, results), record=record, results=results).notes)


def format_headroom(result: Result, bound: Bound | None, why: str) -> Iterator[str]:
    """Yield sentences on the winner. `bound`: of the model, for all settings; None: unknown, for the reason `why`."""
    host = median([ns for one in result.measurements for ns in one.latency_ns])
    device = median([ns for one in result.measurements for ns in one.device_ns or one.latency_ns])
    if bound is None:
        yield f"What the hardware could do is not known: {why}."
    else:
        left = host / 1e6 / bound.bound_ms
        gain = "more search can gain little" if left < 1.4 else "more search, or another kernel, may pay"
        yield (
            f"It reaches {1 / left:.0%} of the model's roofline, {format_significant(bound.bound_ms)} ms "
            f"({bound.bound_by}): no setting can be more than {format_significant(left, 2)}x as fast; {gain}."
        )
    parts = {"launch and wait": 1 - device / host, "copies": (result.effective_precision or {}).get(REORDER, 0.0)}
    total, alike = sum(layer.mean_ns for layer in result.layers), defaultdict[str, list[LayerTime]](list)
    for layer in result.layers:  # of twelve blocks that differ in a number each layer takes little, and all much
        alike[re.sub(r"\d+", "*", layer.name)].append(layer)
    shares = {
        one[0].name if len(one) == 1 else f"{name} ({len(one)} layers)": sum(layer.mean_ns for layer in one) / total
        for name, one in alike.items()
    }
    parts |= dict(sorted(shares.items(), key=lambda pair: -pair[1])[:3])
    if listed := [f"{name} {share:.0%}" for name, share in parts.items() if share >= 0.005]:
        yield f"Its time goes to: {', '.join(listed)}."
