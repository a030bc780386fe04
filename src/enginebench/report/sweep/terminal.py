"""A sweep in a terminal: the matrix by model, machine and engine, the machines, and what failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from enginebench.core.caveats import find_sentence, format_caveat
from enginebench.core.records import Caveat, Estimate
from enginebench.core.text import clean_text, count_of
from enginebench.report.narrow import Fitted
from enginebench.report.numbers import format_interval, format_range, format_significant
from enginebench.report.sweep.document import SweepCell, SweepDocument, SweepRow, Tuned

# More rows than anybody reads in a terminal; the page has them all.
MOST_SHOWN = 60


def print_sweep(document: SweepDocument, console: Console) -> None:
    """Prints the cells with figures, the machines, and the reasons of cells without."""
    measured = [cell for cell in document.cells if cell.row is not None and cell.row.status == "ok"]
    table = _make_table(("model", "machine", "engine", "prec."), ("batch", "p50 ms", "p99 ms", "speed-up"))
    for cell in measured[:MOST_SHOWN]:
        table.add_row(*_list_cells(cell))
    console.print(Fitted(table, [6, 4, 7]))  # p99, batch, speed-up
    if len(measured) > MOST_SHOWN:
        console.print(Text(f"{count_of(len(measured), 'rows')}, the first {MOST_SHOWN} shown"))
    for line in describe_doubts([cell.row for cell in measured if cell.row]):
        console.print(_clean(line))
    console.print()
    _print_machines(document, console)
    for found in document.interference:
        ratio = format_range(found.ratio, "x") if found.ratio else found.verdict
        console.print(_clean(f"company on {found.machine_kind}: {found.model} takes {ratio} of its time alone"))
    for tuned in document.tuned:
        console.print(_clean(describe_tuned(tuned)))
    _print_failed(document, console)


def describe_tuned(tuned: Tuned) -> str:
    """What a search over settings came to, as one sentence."""
    where = f"tuned on {tuned.machine_kind}: {tuned.model.rpartition('/')[2]}, batch {tuned.batch}"
    if tuned.reason:
        return f"{where}: no answer: {tuned.reason}"
    if tuned.beaten and tuned.ratio:
        return (
            f"{where}: {tuned.winner} is {format_range(tuned.ratio, 'x')} as fast as the best default, {tuned.default}"
        )
    anew = ""
    if tuned.ratio and tuned.verdict:
        ratio, verdict = format_range(tuned.ratio, "x"), tuned.verdict.replace("_", " ")
        anew = f"; {tuned.challenger} was {ratio} as fast when it was measured anew: {verdict}"
    if not tuned.finished:
        last = anew or f"; {tuned.challenger or tuned.winner or 'nobody'} led the race"
        return f"{where}: not finished, its budget ended before the final gave a verdict{last}. Raise tune_budget_s"
    return f"{where}: the best default, {tuned.default}, was not beaten{anew}"


def describe_doubts(rows: Sequence[SweepRow]) -> Iterator[str]:
    """What the marks in the table stand for, then every doubt with the number of its rows, the commonest first."""
    if any(e is not None and not e.supported for row in rows for e in (row.p50_ms, row.p99_ms, row.speedup)):
        yield "? a single process, or too few samples for this percentile"
    alike: dict[object, list[Caveat]] = {}
    for caveat in (caveat for row in rows for caveat in row.caveats):
        alike.setdefault(find_sentence(caveat), []).append(caveat)
    for found in sorted(alike.values(), key=len, reverse=True):
        yield f"{len(found)} of {count_of(len(rows), 'rows')}: {format_caveat(*found)}"


def _list_cells(cell: SweepCell) -> list[Text]:
    row = cell.row
    assert row is not None
    names = (cell.model.rpartition("/")[2], cell.machine_kind, cell.engine, cell.precision, str(cell.batch))
    texts = [*map(_clean, names), _show(row.p50_ms), _show(row.p99_ms), _show(row.speedup, "x")]
    if row.validity != "valid":
        texts[5].append(f"\n{row.validity}", style="bold")  # at the p50, as in the table of a run
    return texts


def _show(figure: Estimate | None, unit: str = "") -> Text:
    """With a question mark where its samples or processes cannot carry it."""
    return Text("" if figure is None else format_interval(figure, unit=unit) + ("" if figure.supported else "?"))


def show_speedup(row: SweepRow) -> str:
    """The ratio to the baseline of the same model on the same machine."""
    return format_interval(row.speedup, unit="x") if row.speedup else ""


def _print_machines(document: SweepDocument, console: Console) -> None:
    table = _make_table(("machine", "environment", "processor"), ("rows", "kernel ms", "an hour"))
    for machine in document.machines:
        kernel = format_significant(machine.reference_ms) if machine.reference_ms else ""
        price = format_significant(machine.price_per_hour) if machine.price_per_hour is not None else ""
        device = ", ".join(machine.gpus) or machine.cpu_model
        table.add_row(
            *map(_clean, (machine.machine_kind, machine.id, device, str(machine.rows), kernel, price)),
        )
    console.print(Fitted(table, [5, 4, 3, 1]))
    if len(document.machines) > 1:
        console.print(Text("Rows of two machines, or of two environments, are shown beside each other, not compared."))


def _print_failed(document: SweepDocument, console: Console) -> None:
    for reason, count in list(count_reasons(document).items())[:20]:
        console.print(_clean(f"{count} without figures: {reason}"))
    for text in document.unread[:10]:
        console.print(_clean(f"not read: {text}"))


def count_reasons(document: SweepDocument) -> dict[str, int]:
    """How many cells have no figures for the same reason."""
    found: dict[str, int] = {}
    for cell in document.failed:
        found[cell.reason] = found.get(cell.reason, 0) + 1
    return found


def print_cells(cells: Sequence[tuple[str, ...]], console: Console) -> None:
    """Prints the matrix of a sweep that is planned."""
    table = _make_table(("model", "machine", "engine", "prec."), ("batch", "scope"))
    for cell in cells[:MOST_SHOWN]:
        table.add_row(*map(_clean, (cell[0].rpartition("/")[2], *cell[1:])))
    console.print(Fitted(table, [5]))
    console.print(
        Text(f"{count_of(len(cells), 'rows')}" + (f", the first {MOST_SHOWN} shown" if len(cells) > MOST_SHOWN else ""))
    )


def print_kinds(kinds: Sequence[tuple[str, int, int, int, float]], start_s: float, console: Console) -> None:
    """Prints what each kind of machine has to do, and how long that takes at most."""
    table = _make_table(("machine",), ("models", "rows", "processes", "at most"))
    for name, groups, rows, processes, seconds in kinds:
        table.add_row(*map(_clean, (name, str(groups), str(rows), str(processes), show_duration(seconds))))
    console.print(Fitted(table, [1, 2, 3]))
    console.print(
        Text(
            f"Time of one machine of the kind: all timed calls at their limit, and {start_s:.1f} s for the start of a "
            "process, as just measured here. Imports and builds of engines come on top."
        )
    )


def show_duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _make_table(left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in left:
        table.add_column(heading, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _clean(text: str) -> Text:
    return Text(clean_text(text))
