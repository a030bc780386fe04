"""What `tune` found, as text: the answer in sentences, the final as a table, and who was dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from enginebench.core.text import clean_text, count_of
from enginebench.report.numbers import format_range
from enginebench.report.run.remarks import word_notes
from enginebench.report.tune.document import Finalist, TuneDocument

# Dropped candidates that are shown on a terminal; the page has all.
SHOWN = 8


def print_tune(document: TuneDocument, console: Console | None = None) -> None:
    """Prints the answer, the final and the last of those who were dropped."""
    console = console or Console(highlight=False)
    if document.final:
        console.print(make_final_table(document))
    for line in (*state_answer(document), *list_warnings(document)):
        console.print(Text(clean_text(line)))
    if document.dropped:
        console.print(Text(f"\nDropped ({len(document.dropped)}), the last first:"))
    for dropped in document.dropped[: -SHOWN - 1 : -1]:
        console.print(Text(clean_text(f"  {dropped.candidate}: {describe_round(dropped.round)}, {dropped.reason}")))
    if len(document.dropped) > SHOWN:
        console.print(Text("  ... tune.html has all of them"))


def make_final_table(document: TuneDocument) -> Table:
    """A line for each row of the final."""
    table = Table(box=None, pad_edge=False)
    for heading in ("final", "", document.unit, "challenger is"):
        table.add_column(heading, overflow="fold")
    for row in document.final:
        table.add_row(*map(clean_text, list_cells(document, row)))
    return table


def list_cells(document: TuneDocument, row: Finalist) -> tuple[str, str, str, str]:
    """(setting, what it is, its cost, the challenger's speed over its own)."""
    challenger = document.challenger is not None and row.candidate == document.challenger.candidate
    role = ", ".join(name for name, is_it in (("challenger", challenger), ("default", row.default)) if is_it)
    cost = format_range(row.cost) if row.cost else row.reason or "-"
    cost += f" ({row.validity})" if row.validity != "valid" else ""
    return row.candidate, role, cost, _describe_verdict(row) if row.ratio else "-"


def _describe_verdict(row: Finalist) -> str:
    """`1.01x (0.98 to 1.04), not shown: 3 of the 6 repetitions that a verdict needs`."""
    verdict = (row.verdict or "").replace("_", " ")
    why = f": {row.reason}" if row.verdict == "not_shown" and row.reason else ""
    return f"{format_range(row.ratio, 'x')}, {verdict}{why}" if row.ratio else verdict


def state_answer(document: TuneDocument) -> Iterator[str]:
    """The answer, and what it cost."""
    winner, default = document.winner, document.default
    if winner is None:
        yield "No setting was measured."
    elif default is None:
        is_default = any(one.default and one.candidate == winner.candidate for one in document.candidates)
        missing = "No final has measured it anew" if is_default else "It has not been measured against the defaults"
        yield f"So far {winner.candidate}{', a default,' if is_default else ''} leads the race. {missing}."
    elif document.beaten and document.ratio is not None:
        ratio = format_range(document.ratio, "x")
        yield f"{winner.candidate} is {ratio} as fast as the best default, {default.candidate}."
    else:
        yield f"The default was not beaten: take {default.candidate}."
        yield from _explain(document)
    yield from document.notes
    counts = Counter("before the race" if one.round == 0 else "in the race" for one in document.dropped)
    told = ", ".join(f"{count} dropped {when}" for when, count in counts.items())
    yield (
        f"{count_of(len(document.candidates), 'settings')} in {document.generations} generations"
        f"{f', {told}' if told else ''}; {count_of(document.processes, 'measurements')} in {document.spent_s:.0f} s"
        f"{'' if document.finished else ' (not finished)'}."
    )


def _explain(document: TuneDocument) -> Iterator[str]:
    challenger, ratio = document.challenger, document.ratio
    if challenger is None or ratio is None or document.verdict is None:
        return
    yield (
        f"The winner of the race, {challenger.candidate}, was {format_range(ratio, 'x')} as fast when it was measured "
        f"anew: {document.verdict.replace('_', ' ')}{_explain_open(document)}."
    )


def _explain_open(document: TuneDocument) -> str:
    """Why there is no verdict on the challenger against the best default, in brackets; "" if there is one."""
    default = document.default.candidate if document.default else None
    why = next((row.reason for row in document.final if row.candidate == default), None)
    return f" ({why})" if why and document.verdict == "not_shown" else ""


def list_warnings(document: TuneDocument) -> Iterator[str]:
    """Every warning about a row of the final, then those about the machine."""
    for row in document.final:
        yield from (f"{row.candidate}: {text}" for text in word_notes(row.caveats).values())
    if shaky := [one.candidate for one in document.candidates if one.validity != "valid"]:
        yield (
            f"The race was disturbed for {count_of(len(shaky), 'settings')}, which may have been dropped for that: "
            f"{', '.join(shaky[:SHOWN])}{', ...' if len(shaky) > SHOWN else ''}."
        )
    yield from word_notes(document.caveats).values()


def describe_round(number: int) -> str:
    """When somebody was dropped."""
    return "before it raced" if number == 0 else f"round {number}"
