"""A static site of stored runs: one table of all their configurations, a page for each run, an index for programs."""

from collections.abc import Sequence
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.text import count_of
from enginebench.report.history import Unread
from enginebench.report.page import format_page
from enginebench.report.run.columns import (
    OUTPUTS,
    SPEED_UP,
    format_ran_precision,
    format_shares,
    is_disturbed,
    name_engine,
)
from enginebench.report.run.rows import Row, RunDocument
from enginebench.report.table import Column, Section, Table, list_texts, make_notes, make_table

INDEX = "index.html"
PARQUET = "index.parquet"
# The card of a data set, as Hugging Face reads it: YAML between two lines of dashes names the table.
# Source: "Manual Configuration" in the documentation of the Hub's data sets.
CARD = """\
---
configs:
- config_name: default
  data_files: {parquet}
---

# Inference measured by EngineBench

{count} of {runs}. `{parquet}` has one line for each, with its interval, the precision that ran, the verdict on its
outputs, its command, and the path of its raw samples under `runs/`. `{index}` is the same as a page.
"""


class SiteRow(Struct, frozen=True, kw_only=True):
    """One configuration of the site, as its index has it. Times in ms."""

    run: str  # the folder of the run, under `runs/`
    id: str
    started_utc: str
    model: str
    processor: str  # that computed it: the GPU's name, else the CPU's
    engine: str
    engine_version: str | None
    precision: str | None  # that ran; None: not known
    requested_precision: str | None
    recipe: str | None
    ran_in: str  # fraction of time in each precision, by the runtime's own record
    batch: int
    shapes: str
    scope: str
    threads: int
    p50_ms: float | None
    p50_low_ms: float | None
    p50_high_ms: float | None
    p99_ms: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    baseline: str | None
    outputs: str
    validity: str
    status: str
    samples: int
    trials: int
    command: str
    raw: str  # the file with the raw samples, relative to the site
    enginebench_version: str | None


class Entry(Struct, frozen=True, kw_only=True):
    """A line of the table: a row of the index with what formats it."""

    site: SiteRow
    row: Row


def make_entry(
    row: Row, document: RunDocument, *, run: str, started_utc: str, command: str, shapes: str, raw: str
) -> Entry:
    """Make the line of one configuration. `run` and `raw` are names that the site gave, not those of stored files."""
    machine, p50, speedup = document.machine, row.p50_ms, row.speedup
    gpus = machine.gpus if machine and row.device != "cpu" else ()
    versions = machine.versions if machine else {}
    return Entry(
        row=row,
        site=SiteRow(
            run=run,
            id=row.id,
            started_utc=started_utc,
            model=document.model,
            processor=", ".join(dict.fromkeys(gpu.name for gpu in gpus)) or (machine.cpu_model if machine else ""),
            engine=row.engine,
            engine_version=row.setup.engine_version,
            precision=row.precision,
            requested_precision=row.requested_precision,
            recipe=row.recipe,
            ran_in=format_shares(row),
            batch=row.batch,
            shapes=shapes,
            scope=row.scope,
            threads=row.threads,
            p50_ms=p50.value if p50 else None,
            p50_low_ms=p50.low if p50 else None,
            p50_high_ms=p50.high if p50 else None,
            p99_ms=row.p99_ms.value if row.p99_ms else None,
            speedup=speedup.value if speedup else None,
            speedup_low=speedup.low if speedup else None,
            speedup_high=speedup.high if speedup else None,
            baseline=row.baseline,
            outputs=row.outputs,
            validity=row.validity,
            status=row.status,
            samples=row.n,
            trials=row.processes,
            command=command,
            raw=raw,
            enginebench_version=versions.get("enginebench"),
        ),
    )


def _format_engine(entry: Entry) -> str:
    """Format the engine with what limits its times, without its options, which have a column of their own."""
    return name_engine(replace(entry.row, engine=entry.site.engine.partition(":")[0]))


def _format_p50(entry: Entry) -> str:
    if entry.row.p50_ms is None:
        return entry.row.status
    return "~ {}" if is_disturbed(entry.row) else "{}"


def _format_interval(entry: Entry) -> str:
    low, high = entry.site.p50_low_ms, entry.site.p50_high_ms
    return f"{low:.3g} to {high:.3g} ms" if low is not None and high is not None else ""


def _format_speedup(entry: Entry) -> str:
    site = entry.site
    if site.speedup is None or site.id == site.baseline:
        return "1x" if site.speedup is not None else ""
    if site.speedup_low is None or site.speedup_high is None:
        return f"about {site.speedup:.2g}x"
    return f"{site.speedup_low:.3g} - {site.speedup_high:.3g}x"


COLUMNS = (
    Column("model", attrgetter("site.model"), link=lambda entry: f"runs/{entry.site.run}/{INDEX}"),
    Column("processor", attrgetter("site.processor")),
    Column("engine", _format_engine),
    Column("precision", lambda entry: format_ran_precision(entry.row)),
    Column("batch", lambda entry: str(entry.site.batch), attrgetter("site.batch"), align="right"),
    Column("p50", _format_p50, attrgetter("site.p50_ms"), align="decimal", is_time=True),
    Column("95% interval", _format_interval, attrgetter("site.p50_low_ms"), align="right"),
    Column("p99", lambda entry: "{}", attrgetter("site.p99_ms"), align="decimal", is_time=True),
    Column(SPEED_UP, _format_speedup, attrgetter("site.speedup"), align="right"),
    Column("ran in", attrgetter("site.ran_in"), hint="fraction of time, by the runtime's own record"),
    Column("outputs", lambda entry: "ref." if entry.row.is_reference else OUTPUTS[entry.row.outputs]),
    Column("times", attrgetter("site.validity")),
    Column("measured", lambda entry: entry.site.started_utc[:10]),
    Column("options", lambda entry: entry.site.engine.partition(":")[2]),
    Column("command", attrgetter("site.command")),
    Column("samples", lambda entry: f"{entry.site.samples:,}" if entry.site.samples else "",
           attrgetter("site.samples"), align="right", link=attrgetter("site.raw")),
)  # fmt: skip


def list_keys(entry: Entry) -> dict[str, str]:
    """List by what a reader filters the table."""
    site = entry.site
    return {
        "label": site.raw,  # by which the page's script finds the row
        "model": site.model,
        "processor": site.processor,
        "engine": site.engine.partition(":")[0],
        "precision": site.precision or "not known",
    }


def format_site(entries: Sequence[Entry], unread: Sequence[Unread], runs: int) -> str:
    """Format the first page: every configuration in one table that sorts and filters."""
    facts = f"{count_of(len(entries), 'configurations')} of {count_of(runs, 'runs')}"
    table = make_table(COLUMNS, entries, title="All configurations", keys=list_keys, file="index")
    sections = [
        Section(title="Measured by EngineBench", parts=(*make_notes([facts]),)),
        Section(title="Configurations", name="configurations", parts=(table,)),
    ]
    if unread:
        columns = list_texts(("folder", "why it could not be read"))
        lines: Table = make_table(columns, [(one.path, one.reason) for one in unread], file="unread")
        sections.append(Section(title="Not read", name="unread", parts=(lines,)))
    return format_page("Measured by EngineBench", sections, footer="Times are in the unit of their column's title.")


def format_card(entries: Sequence[Entry], runs: int) -> str:
    """Format the README of the site as the card of a data set."""
    counts = {"count": count_of(len(entries), "configurations"), "runs": count_of(runs, "runs")}
    return CARD.format(parquet=PARQUET, index=INDEX, **counts)
