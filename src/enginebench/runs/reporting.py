"""Makes documents and files from a stored run."""

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import MissingDependency, UsageError
from enginebench.core.features import find
from enginebench.core.records import Result
from enginebench.core.store import encode, read_record, write_atomic
from enginebench.report.charts import load_vega, render_png
from enginebench.report.csv_table import format_csv
from enginebench.report.markdown import format_sections
from enginebench.report.page import format_page
from enginebench.report.run.charts import draw_run
from enginebench.report.run.columns import list_fields
from enginebench.report.run.deploy import Deployment
from enginebench.report.run.head import format_versus
from enginebench.report.run.rows import Row, RunDocument, describe_run, find_best_p99, group_rows
from enginebench.report.run.sections import list_report
from enginebench.report.run.series import label_rows
from enginebench.report.run.series import list_stage_medians as list_run_stages
from enginebench.report.run.shown import shorten_document
from enginebench.report.stages import list_stages
from enginebench.report.table import Chart
from enginebench.runs.folder import RunFolder, RunRecord, check_inside, hide_home
from enginebench.stats.condensed import CondensedResult
from enginebench.stats.ranking import Ref, Rules, rank_results
from enginebench.stats.stages import StagesDocument

FOOTER = (
    "p50: geometric mean of the medians of all trials. p99: nearest rank of all calls. Speed-up: ratio of medians of "
    "paired trials, with its 95% interval."
)
FORMATS = ("html", "md", "csv", "json", "png")
FILES = {"html": "report.html", "md": "report.md", "csv": "table.csv", "json": "report.json"}
# What differs by less than this part of the difference in p99 is no reason for it.
TELLING = 0.1
# What the folder of a bundle is called, unless something there is called so.
SHIP = "ship"
# These need the extra `report`; without it the others are written, and a note says how to install it.
DRAWN = ("html", "png")


class Written(Struct, frozen=True, kw_only=True):
    paths: tuple[Path, ...]
    notes: tuple[str, ...] = ()
    deployment: Deployment | None = None  # of a run whose record was given


def describe_stored(record: RunRecord, results: Sequence[Result]) -> RunDocument:
    """The document of a run from its stored rows.

    The final of a search recommends what the search says to take, and has its rows against that one: the search has
    proof that nothing in the final is faster, or none that something is.
    """
    request, searched = record.request, record.verb == "tune"
    results = sorted(results, key=lambda result: result.id != record.winner) if searched else results
    known = {result.id for result in results}
    machine = record.machine  # a configuration may have seen a GPU that nothing else named
    seen = next((r.machine.gpus for r in results if r.machine and r.machine.gpus), ())
    document = describe_run(
        model=" against ".join(dict.fromkeys(r.model for r in results[::-1])) or Path(request.model).name,
        machine=machine and replace(machine, gpus=machine.gpus or seen),
        spec=msgspec.to_builtins(request),
        results=results,
        rules=Rules(
            baseline_engine="" if searched else request.baseline or "pytorch",  # without a name it is the first row
            max_metric_drop=request.max_metric_drop,
            p99_limit_ms=request.p99_limit_ms,
            limits=request.limits,
            requested=request.list_requested(),
        ),
    )
    missing = tuple(row for row in record.rows if row not in known)
    document = replace(
        document, missing=missing, took_s=record.took_s, notes=record.notes, p99_reasons=explain_p99(document, results)
    )
    return _recommend(document, [r for r in results if r.id == record.winner]) if searched else document


def explain_p99(document: RunDocument, results: Sequence[Result]) -> dict[str, str]:
    """Of each headline whose p99 another configuration beats: the stage and the layer in which they differ most."""
    rows, known = {row.id: row for row in document.rows}, {result.id: result for result in results}
    groups = {row.id: group for group in group_rows(document.rows) for row in group}
    join, found = find("offers", "join_layers"), {}

    def time_stages(row: Row) -> dict[str, float]:
        """Medians of what was timed apart, in ms."""
        apart = {"GPU time": row.p50_device_ms, "enqueue time": row.enqueue_ms}
        stages = {point["stage"]: point["ms"] for point in list_run_stages([known[row.id]], {row.id: ""})}
        return stages | {name: time.value for name, time in apart.items() if time}

    for row in (rows[headline.id] for headline in document.headlines):
        if best := find_best_p99(row, groups[row.id]):
            theirs, own = time_stages(best), time_stages(row)
            gap = row.p99_ms.value - best.p99_ms.value if row.p99_ms and best.p99_ms else 0.0
            stages = sorted(theirs.keys() & own, key=lambda name: (-abs(theirs[name] - own[name]), name))
            parts = [(name, theirs[name], own[name]) for name in stages[:1]]
            joined = join(known[best.id].layers, known[row.id].layers) if join else ()
            both = [(one.candidate.layers[0], one.base, one.candidate) for one in joined if one.base and one.candidate]
            parts += [(f"layer {name}", a.average_ms, b.average_ms) for name, a, b in both[:1]]
            telling = [part for part in parts if abs(part[1] - part[2]) >= TELLING * gap]
            found[row.id] = ", ".join(f"{name} {format_versus(a, b)}" for name, a, b in telling)
    return found


def _recommend(document: RunDocument, winner: Sequence[Result]) -> RunDocument:
    """The document with the row that a search says to take as the recommended one, its headline without a ratio."""
    row = next((row for row in document.rows if row.id in {result.id for result in winner}), None)
    found = rank_results(winner).headlines
    if row is None or not found:  # also one that failed
        return replace(document, recommended=None, recommended_by="search", headlines=(), headline=None)
    outputs = {"outputs": row.outputs, "outputs_reason": row.outputs_reason}
    searched = tuple(replace(h, state="searched", **outputs) for h in found)
    speedup = row.speedup.value if row.speedup else None
    ref = Ref(id=row.id, engine=row.engine, precision=row.precision, batch=row.batch, speedup=speedup)
    return replace(document, recommended=ref, recommended_by="search", headlines=searched, headline=searched[0])


def write_reports(
    root: Path,
    document: RunDocument,
    formats: Sequence[str] = FORMATS,
    *,
    record: RunRecord | None = None,
    results: Sequence[Result] = (),
) -> Written:
    """Writes the reports of a run into its folder; notes say what is missing without the extra `report`."""
    formats = check_formats(formats)
    stages = []
    for path in sorted(root.glob("stages*.json")):  # of `stages --out` in a run's folder
        check_inside(root, path)
        stages.append(read_record(path, StagesDocument))
    shown = shorten_document(document)
    charts: list[Chart] = []
    notes: tuple[str, ...] = ()
    try:
        if set(formats) & set(DRAWN):
            load_vega()
            charts = draw_run(shown, results, stages, partial(read_whole, root))
    except MissingDependency as error:
        notes = (f"no report.html and no charts: {error}",)
    pictures = write_pictures(root, charts) if "png" in formats else []
    texts = [name for name in formats if name in FILES and not (name in DRAWN and notes)]
    paths = [root / FILES[name] for name in texts]

    deployment = plan_deployment(root, record, results) if record else None

    def render(name: str) -> bytes:
        if name == "json":
            return encode(document, indent=2)
        if name == "csv":
            return format_csv(list_fields(), document.rows).encode()
        command, started = (record.command, record.started_utc) if record else ((), "")
        sections = list_report(shown, charts=charts, command=command, started_utc=started, deployment=deployment)
        sections += list_stages(*stages)
        if name == "md":
            return format_sections(sections, pictures=[path.name for path in pictures]).encode()
        title = f"{shown.model}: engines compared"
        return format_page(title, sections, bundle=load_vega(), labels=label_rows(shown), footer=FOOTER).encode()

    for name, path in zip(texts, paths, strict=True):
        write_atomic(path, render(name))
    return Written(paths=(*paths, *pictures), notes=notes, deployment=deployment)


def read_whole(root: Path, result: Result) -> Result:
    """The row with its samples: read again, if it was condensed."""
    whole = RunFolder(root).read_result(result.id) if isinstance(result, CondensedResult) else None
    return whole or result


def plan_deployment(root: Path, record: RunRecord, results: Sequence[Result]) -> Deployment | None:
    """What can be delivered of a run, as `deliver` says; None where that feature is not there.

    Folders are named as seen from the working folder of this process, which is where its commands will be typed.
    """
    plan = find("offers", "plan_delivery")
    if plan is None:
        return None
    deliveries = {result.id: plan(root, record.request, result) for result in results}
    names = itertools.chain([SHIP], (f"{SHIP}-{i}" for i in itertools.count(2)))
    out = next(name for name in names if not Path(name).exists())  # `deliver` writes into no folder that is there
    return Deployment(folder=hide_home(str(root)), out=out, deliveries=deliveries)


def check_formats(names: Sequence[str]) -> list[str]:
    formats = [name.strip() for name in names if name.strip()]
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        found = f"unknown format {', '.join(unknown)}" if unknown else "no format is given"
        raise UsageError(f"{found}; known: {', '.join(FORMATS)}")
    return formats


def write_pictures(root: Path, charts: Sequence[Chart]) -> list[Path]:
    """The PNG files of those charts that have a picture."""
    drawn = {root / f"{chart.name}.png": chart.spec for chart in charts if chart.picture}
    for path, spec in drawn.items():
        write_atomic(path, render_png(spec))
    return [*drawn]
