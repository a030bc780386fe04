"""Make documents and reports from a stored run."""

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.entry import EAGER
from enginebench.core.errors import MissingDependency, UsageError
from enginebench.core.features import find_hook, find_hooks
from enginebench.core.hooks import BundlePlan, LayerPairing, ReportSections
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
from enginebench.runs.folder import FORMATS, RunFolder, RunRecord, RunRequest, check_inside, hide_home
from enginebench.stats.condensed import CondensedResult
from enginebench.stats.ranking import Ref, Rules, rank_results
from enginebench.stats.stages import StagesDocument

FOOTER = (
    "p50: geometric mean of the medians of all trials. p99: nearest rank of all calls. Speed-up: ratio of medians of "
    "paired trials, with its 95% interval."
)
FILES = {"html": "report.html", "md": "report.md", "csv": "table.csv", "json": "report.json"}
# A stage whose difference is below this fraction of the difference in p99 does not explain it.
TELLING = 0.1
# Name of a bundle's folder, with a number if it is taken.
SHIP = "ship"
# These need the extra `report`; without it the others are written, and a note says how to install it.
DRAWN = ("html", "png")


class Written(Struct, frozen=True, kw_only=True):
    paths: tuple[Path, ...]
    notes: tuple[str, ...] = ()
    deployment: Deployment | None = None  # None without the record of the run


def make_rules(request: RunRequest) -> Rules:
    """Make the rules by which the configurations of a run are ranked, while it measures and when it is reported."""
    return Rules(
        baseline_engine=request.baseline or EAGER,
        max_metric_drop=request.max_metric_drop,
        p99_limit_ms=request.p99_limit_ms,
        needs=request.needs,
        for_calls=request.for_calls,
        limits=request.limits,
        requested=request.list_requested(),
    )


def describe_stored(record: RunRecord, results: Sequence[Result]) -> RunDocument:
    """Describe a stored run by its results.

    In the final of a search the winner of the search is recommended, and the others are compared with it: the search
    has shown that nothing in the final is faster, or has no evidence that something is.
    """
    request, searched = record.request, record.verb == "tune"
    results = sorted(results, key=lambda result: result.id != record.winner) if searched else results
    stored_ids = {result.id for result in results}
    machine = record.machine  # a configuration may have seen a GPU that nothing else named
    gpus = next((r.machine.gpus for r in results if r.machine and r.machine.gpus), ())
    document = describe_run(
        model=" against ".join(dict.fromkeys(r.model for r in results[::-1])) or Path(request.model).name,
        machine=machine and replace(machine, gpus=machine.gpus or gpus),
        spec=msgspec.to_builtins(request),
        results=results,
        # In the final of a search the first result is the baseline.
        rules=replace(make_rules(request), baseline_engine="") if searched else make_rules(request),
    )
    missing = tuple(row for row in record.rows if row not in stored_ids)
    document = replace(
        document,
        missing=missing,
        took_s=record.took_s,
        parts_s=record.parts_s,
        notes=record.notes,
        p99_reasons=explain_p99(document, results),
    )
    return _recommend(document, [r for r in results if r.id == record.winner]) if searched else document


def explain_p99(document: RunDocument, results: Sequence[Result]) -> dict[str, str]:
    """For each headline whose p99 another configuration beats: the stage and the layer that differ most."""
    rows, results_by_id = {row.id: row for row in document.rows}, {result.id: result for result in results}
    groups = {row.id: group for group in group_rows(document.rows) for row in group}
    pair_layers, reasons = find_hook(LayerPairing), {}

    def time_stages(row: Row) -> dict[str, float]:
        """Medians of the stages that were timed separately, in ms."""
        apart = {"GPU time": row.p50_device_ms, "enqueue time": row.enqueue_ms}
        stages = {point["stage"]: point["ms"] for point in list_run_stages([results_by_id[row.id]], {row.id: ""})}
        return stages | {name: time.value for name, time in apart.items() if time}

    for headline in document.headlines:
        row = rows[headline.id]
        if best := find_best_p99(row, groups[row.id], headline.refused):
            best_ms, own_ms = time_stages(best), time_stages(row)
            gap = row.p99_ms.value - best.p99_ms.value if row.p99_ms and best.p99_ms else 0.0
            stages = sorted(best_ms.keys() & own_ms, key=lambda name: (-abs(best_ms[name] - own_ms[name]), name))
            parts = [(name, best_ms[name], own_ms[name]) for name in stages[:1]]
            joined = pair_layers(results_by_id[best.id].layers, results_by_id[row.id].layers) if pair_layers else ()
            layers = [
                (f"layer {pair.candidate.layers[0]}", pair.base.average_ms, pair.candidate.average_ms)
                for pair in joined
                if pair.base and pair.candidate
            ]
            parts += [(name, a, b) for name, a, b in layers[:1] if a is not None and b is not None]
            decisive = [part for part in parts if abs(part[1] - part[2]) >= TELLING * gap]
            reasons[row.id] = ", ".join(f"{name} {format_versus(a, b)}" for name, a, b in decisive)
    return reasons


def _recommend(document: RunDocument, winner: Sequence[Result]) -> RunDocument:
    """The document with the winner of a search as the recommended configuration, its headline without a ratio."""
    row = next((row for row in document.rows if row.id in {result.id for result in winner}), None)
    headlines = rank_results(winner).headlines
    if row is None or not headlines:  # also one that failed
        return replace(document, recommended=None, recommended_by="search", headlines=(), headline=None)
    outputs = {"outputs": row.outputs, "outputs_reason": row.outputs_reason}
    searched = tuple(replace(h, state="searched", **outputs) for h in headlines)
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
    """Write the reports of a run into its folder; notes list what is missing without the extra `report`."""
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
        for list_sections in find_hooks(ReportSections):
            sections += list_sections(document, root)
        if name == "md":
            return format_sections(sections, pictures=[path.name for path in pictures]).encode()
        title = f"{shown.model}: engines compared"
        return format_page(title, sections, bundle=load_vega(), labels=label_rows(shown), footer=FOOTER).encode()

    for name, path in zip(texts, paths, strict=True):
        write_atomic(path, render(name))
    return Written(paths=(*paths, *pictures), notes=notes, deployment=deployment)


def read_whole(root: Path, result: Result) -> Result:
    """The result with its samples: read again if it was condensed."""
    whole = RunFolder(root).read_result(result.id) if isinstance(result, CondensedResult) else None
    return whole or result


def plan_deployment(root: Path, record: RunRecord, results: Sequence[Result]) -> Deployment | None:
    """Plan which configurations of a run `deliver` accepts; None if that feature is not installed.

    Folders are named as seen from the working folder of this process, which is where its commands will be typed.
    """
    plan = find_hook(BundlePlan)
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
        problem = f"unknown format {', '.join(unknown)}" if unknown else "no format is given"
        raise UsageError(f"{problem}; known: {', '.join(FORMATS)}")
    return formats


def write_pictures(root: Path, charts: Sequence[Chart]) -> list[Path]:
    """Write a PNG file for each chart that has a picture, and list their paths."""
    drawn = {root / f"{chart.name}.png": chart.spec for chart in charts if chart.picture}
    for path, spec in drawn.items():
        write_atomic(path, render_png(spec))
    return [*drawn]
