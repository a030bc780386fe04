"""`bisect`: the first version of a package with which an engine is slower, or its outputs differ."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, Unpack

from msgspec import Struct
from msgspec.structs import replace

from enginebench import door
from enginebench import options as opts
from enginebench.core.errors import EngineBenchError, MeasurementError, UsageError
from enginebench.core.limits import REGRESSION_MARGIN
from enginebench.core.names import parse_precision
from enginebench.core.records import Estimate, Result, Verdict
from enginebench.engines.registry import ENTRIES, read_engine
from enginebench.features.versions.env import install_environment, list_versions
from enginebench.features.versions.upgrade import describe_change, state_change
from enginebench.options import Opt, PathLike, pick, verb
from enginebench.report.numbers import format_range, format_ratio, format_verdict
from enginebench.report.table import Section, list_texts, make_notes, make_table
from enginebench.runs import request as requests
from enginebench.runs.child.places import OPTION, list_environments
from enginebench.runs.folder import RunRequest, default_folder
from enginebench.runs.progress import Reporter
from enginebench.runs.targets.sides import Side
from enginebench.stats.diff import diff_results, find_losses
from enginebench.stats.metrics.scores import find_score, loses_too_much
from enginebench.verbs.bench import bench_sides
from enginebench.verbs.given import choose_batches, judge_by, open_progress, read_metrics, read_share, share, take_model

By = Literal["time", "drift", "metric"]
Judgement = Literal["good", "bad", "not_shown", "not_comparable"]
# An inconclusive version is measured again with this many times the processes, at most so often.
MORE, TRIES = 2, 3


class TriedVersion(Struct, frozen=True, kw_only=True):
    """One measurement of a version against the good one. `ratio` is good over candidate: below 1, slower."""

    version: str
    judgement: Judgement
    repetitions: int
    verdict: Verdict = "not_comparable"
    ratio: Estimate | None = None
    outputs_agree: bool | None = None
    metric_change: float | None = None  # candidate less good, in the metric's unit; None: not what is asked
    reasons: tuple[str, ...] = ()


class BisectDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `bisect`. `first_bad` is None where nothing is bad, or where `undecided` names several."""

    schema: str = "enginebench.bisect/1"
    package: str
    engine: str
    by: By
    metric: str | None = None  # that decides, where `by` is "metric"
    good: str
    bad: str
    first_bad: str | None = None
    last_good: str | None = None
    undecided: tuple[str, ...] = ()
    verdict: Verdict
    ratio: Estimate | None
    changed: tuple[str, ...]  # what the engines' own records show otherwise in the first bad version
    tried: tuple[TriedVersion, ...]


class BisectOptions(opts.Modules, opts.Judging, opts.Timing, opts.Shared, total=False):
    engine: Annotated[str | None, Opt("ENGINE[:key=value,...] that is measured. [the one that the package is for]")]
    margin: Annotated[float | str, Opt("How much slower is bad: 5% or 0.05.", REGRESSION_MARGIN, metavar="M")]
    drift: Annotated[bool, Opt("Bad means other outputs, not longer times.", False)]
    data: Annotated[
        PathLike | None, Opt("Labelled data for --metric, and for the ranges of 8-bit graphs.", metavar="DIR|digits")
    ]
    precision: Annotated[str, Opt("Precision, with a recipe as in int8@cpu.", "fp32")]
    batch: opts.Batch
    timeout: opts.Timeout
    out: Annotated[PathLike | None, Opt("Folder of the measurements. [results/bisect-...]", path="folder")]


Package: TypeAlias = Annotated[str, Opt("The package whose versions are tried.", metavar="NAME", required=True)]
Good: TypeAlias = Annotated[str, Opt("A version that is good; 1.24 is the newest 1.24.", metavar="V", required=True)]
Bad: TypeAlias = Annotated[str, Opt("A later version that is bad.", metavar="V", required=True)]


@verb(BisectOptions)
def bisect(
    model: opts.Model, package: Package, good: Good, bad: Bad, **options: Unpack[BisectOptions]
) -> BisectDocument:
    """Find the first version of a package with which an engine is slower on MODEL, or its outputs differ.

    Example: enginebench bisect resnet18 --package torch --good 2.11 --bad 2.13

    Each version gets its own environment and is measured interleaved with the good one. An inconclusive verdict gets
    more trials, not a guess. Bad may also mean worse on labelled samples (--metric). Environments stay for
    the next time: `enginebench env list`.

    Args:
        model: as `run` takes it.

    Raises:
        UsageError: a version does not exist, or they are not in this order.
        BackendUnavailable: the package index cannot be reached, or a version cannot be installed.
        MeasurementError: two versions cannot be compared.
    """
    metrics = read_metrics(options["metric"])
    if options["drift"] and metrics:
        raise UsageError("--drift and --metric both define what is bad; give one of them")
    with take_model(model, options["example_inputs"]) as taken, open_progress(options["progress"]) as reporter:
        request = share(options).make_request(
            taken.text,
            engines=[read_engine(options["engine"] or find_engine_of(package))],
            precisions=[parse_precision(options["precision"])],
            batches=choose_batches(options["batch"], options, taken),
            measure=pick(requests.Timing, options).make_measure(options["seed"], margin=None),
            input_size=None,
        )
        return bisect_package(
            judge_by(request, options),
            package,
            good,
            bad,
            Path(options["out"] or default_folder(f"bisect-{Path(taken.name).stem}-{package}")),
            by="metric" if metrics else "drift" if options["drift"] else "time",
            margin=read_share(options["margin"]),
            reporter=reporter,
        )


@door.command(bisect, "MODEL", shown=opts.Native)
def command(
    model: str, package: str, good: str, bad: str, shown: opts.Printed, **options: Unpack[BisectOptions]
) -> None:
    door.show(bisect(model, package, good, bad, **options), shown, door.tables(list_bisect))


def bisect_package(
    request: RunRequest, package: str, good: str, bad: str, root: Path, *, by: By, margin: float, reporter: Reporter
) -> BisectDocument:
    """The first version that is bad: as `bench --against` the good one, each in an environment of its own.

    `request` has one engine on one model, and the processes of the first try at each version; its first metric decides
    where `by` is metric, whether outputs agree where it is drift.
    """
    versions = cut_range(list_versions(package), package, good, bad)
    ((backend, options),) = request.engines
    tried: list[TriedVersion] = []
    results: dict[str, list[Result]] = {}  # version -> the good row and its own

    def judge(version: str, count: int) -> Judgement:
        try:
            for needed in {versions[0], version}:
                if f"{package}-{needed}" not in list_environments():
                    install_environment(f"{package}-{needed}", [f"{package}=={needed}"], reporter=reporter)
            ends = [(backend, {**options, OPTION: f"{package}-{v}"}) for v in (versions[0], version)]
            reporter.step(f"{package} {version} against {versions[0]}, {count} processes each")
            asked = replace(request, engines=(ends[1],), measure=replace(request.measure, processes=count))
            side = Side(engine=ends[0], target=request.model, precision=request.precisions[0])
            results[version] = bench_sides(asked, side, root / f"{version}-{count}", reporter=reporter)
            tried.append(judge_rows(results[version], version, by, margin, request))
        except EngineBenchError as error:
            if version == versions[-1] or isinstance(error, UsageError):
                raise
            reporter.say(f"{error}; {version} is passed over")
            reasons = (str(error),)
            tried.append(TriedVersion(version=version, judgement="not_comparable", repetitions=count, reasons=reasons))
        found = tried[-1]
        if found.judgement == "not_comparable" and version == versions[-1]:
            why = "; ".join(found.reasons)
            raise MeasurementError(f"{package} {version} cannot be compared with {versions[0]}: {why}")
        return found.judgement

    last_good, first_bad, undecided = find_first_bad(versions, judge, repetitions=request.measure.processes)
    shown = [one for one in tried if one.version == (first_bad or versions[-1])][-1]
    base, cand = results[shown.version]
    return BisectDocument(
        package=package,
        engine=backend,
        by=by,
        metric=request.metrics[0] if by == "metric" else None,
        good=versions[0],
        bad=versions[-1],
        last_good=last_good,
        first_bad=first_bad,
        undecided=undecided,
        verdict=shown.verdict,
        ratio=shown.ratio,
        changed=(*find_losses(base, cand), *state_change(describe_change(request.model, base, cand))),
        tried=tuple(tried),
    )


def find_engine_of(package: str) -> str:
    for name, entry in ENTRIES.items():
        if package.lower() in entry.distributions:
            return name
    raise UsageError(f"no engine needs the package {package}; name the engine with --engine")


def find_first_bad(
    versions: Sequence[str], judge: Callable[[str, int], Judgement], *, repetitions: int
) -> tuple[str | None, str | None, tuple[str, ...]]:
    """(last good, first bad, undecided) of versions, oldest first, the first good by definition.

    Nothing is bad if the last is not. A version between that stays inconclusive, or cannot be measured, is passed over
    for a neighbour; where such are left between the last good and the first bad, all of them are undecided.
    """

    def ask(index: int) -> Judgement:
        tries = (judge(versions[index], repetitions * MORE**attempt) for attempt in range(TRIES))
        return next((found for found in tries if found != "not_shown"), "not_shown")

    good, bad, unknown = 0, len(versions) - 1, set[int]()
    if ask(bad) != "bad":
        return None, None, ()
    while left := [i for i in range(good + 1, bad) if i not in unknown]:
        middle = min(left, key=lambda i: (abs(2 * i - good - bad), i))
        match ask(middle):
            case "good":
                good = middle
            case "bad":
                bad = middle
            case _:
                unknown.add(middle)
    undecided = tuple(versions[good + 1 : bad + 1]) if bad > good + 1 else ()
    return versions[good], None if undecided else versions[bad], undecided


def judge_rows(rows: Sequence[Result], version: str, by: By, margin: float, request: RunRequest) -> TriedVersion:
    (row,) = diff_results(rows[:1], rows[1:], margin, neighbours=True, fed_alike=True).rows
    judgement: Judgement = "not_comparable"
    if by == "time":
        times: dict[Verdict, Judgement] = {
            "slower": "bad",
            "not_shown": "not_shown",
            "not_comparable": "not_comparable",
        }
        judgement = times.get(row.verdict, "good")
    elif by == "drift" and row.outputs_agree is not None:
        judgement = "good" if row.outputs_agree else "bad"
    elif by == "metric":  # the samples are the same each time: more processes would show nothing more
        before, now = (find_score(side.scores, request.metrics[0]) for side in rows)
        if before and now and before.value.n == now.value.n:
            judgement = "bad" if loses_too_much(before, now, request.max_metric_drop) else "good"
    return TriedVersion(
        version=version,
        judgement=judgement,
        repetitions=len(rows[1].measurements),
        verdict=row.verdict,
        ratio=row.ratio,
        outputs_agree=row.outputs_agree,
        metric_change=row.metric_change if by == "metric" else None,
        reasons=row.reasons or row.failures or (row.verdict,),
    )


def cut_range(versions: Sequence[str], package: str, good: str, bad: str) -> list[str]:
    """The versions from the good one to the bad one; `1.24` stands for the newest 1.24."""

    def find(text: str) -> int:
        series = [i for i, v in enumerate(versions) if v == text or re.match(rf"{re.escape(text)}\.", v)]
        if not series:
            rest = f" and {len(versions) - 8} earlier ones" if len(versions) > 8 else ""
            there = f"{', '.join(versions[-8:])}{rest}"
            raise UsageError(f"{package} {text} is not on the package index; there are {there}")
        return versions.index(text) if text in versions else series[-1]

    first, last = find(good), find(bad)
    if first >= last:
        raise UsageError(f"--bad {bad} is not a later version of {package} than --good {good}")
    return list(versions[first : last + 1])


def format_outcome(document: BisectDocument) -> list[str]:
    """The first bad version, by how much it is worse, and what its record shows otherwise."""
    package, bad = document.package, document.bad
    what = {"time": "slower", "drift": "different in its outputs", "metric": f"worse by {document.metric}"}[document.by]
    shown = [one for one in document.tried if one.version == (document.first_bad or bad)][-1]
    much = f" ({format_range(document.ratio, 'x')} as fast)" if document.ratio and document.by == "time" else ""
    if shown.metric_change is not None:
        much = f" ({shown.metric_change:+.4g})"
    if document.first_bad:
        lines = [f"{package} {document.first_bad} is the first that is {what}{much}; {document.last_good} is not."]
    elif document.undecided:
        named = ", ".join(document.undecided)
        lines = [f"The first that is {what} is among {named}: those between are inconclusive. Raise --processes."]
        left = [one for one in document.tried if one.judgement == "not_comparable"]
        lines += [f"{one.version}: {'; '.join(one.reasons)}." for one in left]
    elif document.by == "drift" and shown.outputs_agree:
        lines = [f"The outputs of {package} {bad} agree with those of {document.good}."]
    else:
        lines = [f"{package} {bad} is not significantly {what}{much}: verdict {format_verdict(document.verdict)}."]
    return [*lines, *(f"The record differs: {line}." for line in document.changed)]


def list_bisect(document: BisectDocument) -> list[Section]:
    outputs = {True: "same", False: "changed", None: "-"}
    lines = [
        (one.version, format_verdict(one.verdict), outputs[one.outputs_agree], str(one.repetitions), ratio)
        for one, ratio in ((t, format_ratio(t.ratio) if t.ratio else "-") for t in document.tried)
    ]
    columns = list_texts(("version", f"against {document.good}", "outputs"), ("trials", "ratio"))
    return [Section(parts=(*make_notes(format_outcome(document)), make_table(columns, lines)))]
