"""Render a sweep as sections: the fastest configuration of each engine, the machines, searches, and missing results."""

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec.structs import astuple

from enginebench.core.records import Estimate
from enginebench.core.text import count_of
from enginebench.features.sweep.document import SweepCell, SweepDocument, SweepRow, Tuned
from enginebench.features.sweep.records import SweepPlan
from enginebench.report.numbers import format_digits, format_range, format_ratio, format_time, format_verdict
from enginebench.report.run.columns import SPEED_UP
from enginebench.report.run.remarks import gather_notes
from enginebench.report.scores import format_figure
from enginebench.report.table import Column, Section, list_texts, make_notes, make_table

# The most that is readable in a terminal; the page has all rows.
MOST_SHOWN = 60
_AGREE = {True: "same", False: "changed", None: ""}


def _figure(title: str, name: str, spare: int = 0) -> Column:
    """`~` where the times were disturbed, `?` where samples or trials cannot carry the figure."""

    def take(cell: SweepCell) -> Estimate | None:
        estimate: Estimate | None = getattr(cell.row, name, None)
        return estimate

    def text(cell: SweepCell) -> str:
        estimate = take(cell)
        if cell.row is None or estimate is None:
            if name != "p50_ms":
                return ""
            return cell.row.status if cell.row else "not measured"
        mark = "~ " if name == "p50_ms" and cell.row.validity != "valid" else ""
        return mark + "{}" + ("" if estimate.supported else "?")

    return Column(
        title, text, lambda cell: e.value if (e := take(cell)) else None, align="decimal", spare=spare, is_time=True
    )


COLUMNS = (
    Column("model", lambda cell: cell.model),
    Column("machine", lambda cell: cell.machine_kind, spare=4),
    Column("engine", lambda cell: cell.engine),
    Column("precision", lambda cell: cell.precision),
    Column("batch", lambda cell: str(cell.batch), lambda cell: cell.batch, align="right", spare=2),
    _figure("p50", "p50_ms"),
    _figure("p99", "p99_ms", 3),
    Column(
        SPEED_UP,
        lambda cell: format_ratio(cell.row.speedup) if cell.row and cell.row.speedup else "",
        lambda cell: cell.row.speedup.value if cell.row and cell.row.speedup else None,
        align="right",
        spare=1,
    ),
    Column("outputs", lambda cell: _format_outputs(cell.row), wide=True),
    Column(
        "requests/s",
        lambda cell: format_digits(_take_capacity(cell)),
        lambda cell: _take_capacity(cell),
        align="decimal",
        wide=True,
        when=lambda cells: any(map(_take_capacity, cells)),
    ),
    Column(
        "cost per million",
        lambda cell: format_digits(cell.row and cell.row.cost_per_million),
        lambda cell: cell.row and cell.row.cost_per_million,
        align="decimal",
        wide=True,
        when=lambda cells: any(cell.row and cell.row.cost_per_million is not None for cell in cells),
    ),
    Column(
        "energy mJ",
        lambda cell: format_digits(cell.row and cell.row.energy_mj),
        lambda cell: cell.row and cell.row.energy_mj,
        align="decimal",
        wide=True,
        when=lambda cells: any(cell.row and cell.row.energy_mj is not None for cell in cells),
    ),
)


def list_sweep(document: SweepDocument) -> list[Section]:
    measured = [cell for cell in document.cells if cell.row is not None and cell.row.status == "ok"]
    table = make_table(COLUMNS, measured[:MOST_SHOWN], wide=False)
    more = (
        f"{count_of(len(measured), 'configurations')}, the first {MOST_SHOWN} shown"
        if len(measured) > MOST_SHOWN
        else ""
    )
    warnings = make_notes([*format_warnings([cell.row for cell in measured if cell.row])], "list")
    return [
        Section(title=summarize_sweep(document), parts=(table, *make_notes([more] if more else []), *warnings)),
        *list_rest(document),
    ]


def summarize_sweep(document: SweepDocument) -> str:
    """Summarize which engine is the fastest most often, how much was measured, on what, and when."""
    kinds = len({cell.machine_kind for cell in document.cells})
    text = (
        f"{count_of(len(document.cells), 'configurations')} on {kinds} {'kind' if kinds == 1 else 'kinds'} of machine"
    )
    devices = dict.fromkeys(", ".join(machine.gpus) or machine.cpu_model for machine in document.machines)
    text = " · ".join(filter(None, [text, *(devices if len(devices) < 3 else ()), format_time(document.started_utc)]))
    best = [min(cells, key=rank_cell) for cells in group_cells(document, "model", "machine_kind").values()]
    counts = Counter(cell.engine for cell in best if not rank_cell(cell)[0])
    if not counts:
        return text
    engine, count = counts.most_common(1)[0]
    return f"{engine} is the fastest of {count} of {count_of(sum(counts.values()), 'models')} · {text}"


def group_cells(document: SweepDocument, *names: str) -> dict[tuple[str, ...], list[SweepCell]]:
    """The cells by these of their fields, in the order in which they come."""
    groups: dict[tuple[str, ...], list[SweepCell]] = {}
    for cell in document.cells:
        groups.setdefault(tuple(getattr(cell, name) for name in names), []).append(cell)
    return groups


def list_rest(document: SweepDocument) -> list[Section]:
    hour = f"an hour{f', {document.currency}' if document.currency else ''}"
    machines = []
    for one in document.machines:
        device = ", ".join(one.gpus) or one.cpu_model
        shown = str(one.rows), format_digits(one.reference_ms), format_digits(one.price_per_hour)
        machines.append((one.machine_kind, one.id, device, *shown))
    figures = ("rows", "kernel ms", hour)
    columns = list_texts(("machine", "environment", "processor"), figures, ("environment", *figures))
    apart = ["Results of two machines, or of two environments, are listed, not compared."]
    company = [
        f"company on {interference.machine_kind}: {interference.model} takes "
        f"{format_ratio(interference.ratio) if interference.ratio else interference.verdict} of its time alone"
        for interference in document.interference
    ]
    tuned = [format_tuned(one) + (f"; see {one.page}" if one.page else "") for one in document.tuned]
    reasons = Counter(cell.reason for cell in document.failed).most_common(50)
    failed = [f"{count} without figures: {reason}" for reason, count in reasons]
    failed += [f"not read: {text}" for text in document.unread[:50]]
    return [
        Section(
            title="Machines",
            name="machines",
            parts=(make_table(columns, machines, file="machines"), *make_notes(apart if len(machines) > 1 else [])),
        ),
        *(
            Section(title=title, name=title.lower().replace(" ", "-"), parts=tuple(make_notes(texts, "list")))
            for title, texts in (("Tuned", tuned), ("Company", company), ("Without figures", failed))
            if texts
        ),
    ]


def rank_cell(cell: SweepCell) -> tuple[bool, bool, bool, float]:
    """Return the sort key of a cell, least first: no figure, changed outputs, warnings, time per inference.

    An implausible time is no figure.
    """
    row = cell.row
    if row is None or row.status != "ok" or row.p50_ms is None or row.validity == "implausible":
        return True, True, True, 0.0
    return False, row.outputs_agree is False, row.validity != "valid", row.p50_ms.value / cell.batch


def format_tuned(tuned: Tuned) -> str:
    """Format the result of a search over settings as one sentence."""
    where = f"tuned on {tuned.machine_kind}: {tuned.model.rpartition('/')[2]}, batch {tuned.batch}"
    if tuned.reason:
        return f"{where}: no response: {tuned.reason}"
    if tuned.beaten and tuned.ratio:
        much = format_range(tuned.ratio, "x")
        return f"{where}: {tuned.winner} is {much} as fast as the best default, {tuned.default}"
    anew = ""
    if tuned.ratio and tuned.verdict:
        ratio, verdict = format_range(tuned.ratio, "x"), format_verdict(tuned.verdict)
        anew = f"; {tuned.challenger} was {ratio} as fast when it was re-measured: {verdict}"
    if not tuned.finished:
        last = anew or f"; {tuned.challenger or tuned.winner or 'nobody'} led the race"
        return f"{where}: not finished, its budget ended before the final gave a verdict{last}. Raise tune_budget_s"
    return f"{where}: the best default, {tuned.default}, was not beaten{anew}"


def format_warnings(rows: Sequence[SweepRow]) -> Iterator[str]:
    """Format what `?` means, then every warning with the number of its configurations, the commonest first."""
    if any(e is not None and not e.supported for row in rows for e in (row.p50_ms, row.p99_ms, row.speedup)):
        yield "? a single trial, or too few samples for this percentile"
    gathered = gather_notes((str(number), row.warnings) for number, row in enumerate(rows))
    for having, text, _ in sorted(gathered, key=lambda one: len(one[0]), reverse=True):
        yield f"{'all' if len(having) == len(rows) else f'{len(having)} of {len(rows)}'}: {text}"


def _format_outputs(row: SweepRow | None) -> str:
    """The deciding score, else whether the outputs are the same."""
    if row is None or row.status != "ok":
        return ""
    return format_figure(row.scores[0].value.value, row.scores[0]) if row.scores else _AGREE[row.outputs_agree]


def _take_capacity(cell: SweepCell) -> float | None:
    return cell.row.capacity.passes_qps if cell.row and cell.row.capacity else None


def list_plan(plan: SweepPlan) -> list[Section]:
    """A sweep that is planned: its matrix, and what each kind of machine has to do and how long that takes at most."""
    cells = [(c.model.rpartition("/")[2], *map(str, astuple(c)[1:])) for c in plan.cells]
    columns = list_texts(("model", "machine", "engine", "precision"), ("batch", "scope"), ("scope",))
    more = f", the first {MOST_SHOWN} shown" if len(cells) > MOST_SHOWN else ""
    work = [(*map(str, astuple(kind)[:-1]), format_duration(kind.at_most_s)) for kind in plan.kinds]
    titles = ("models", "rows", "processes", "at most")
    text = (
        f"Time of one machine of the kind: all timed calls at their limit, and {plan.start_s:.1f} s for the start of a "
        "process, as just measured here. Imports and builds of engines come on top."
    )
    return [
        Section(title=count_of(len(cells), "rows") + more, parts=(make_table(columns, cells[:MOST_SHOWN]),)),
        Section(parts=(make_table(list_texts(("machine",), titles, titles[2::-1]), work), *make_notes([text]))),
    ]


def format_duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
