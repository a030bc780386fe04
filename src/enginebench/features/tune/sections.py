"""The result of `tune` as sections: the conclusion, the final, its warnings, and the dropped candidates with
reasons."""

import re
from collections import Counter
from collections.abc import Iterator

import msgspec

from enginebench.core.text import clean_text, count_of
from enginebench.features.tune.records import Candidate, Finalist, TuneDocument
from enginebench.report.charts import GREY, Point, Spec, chart_rows, finish, import_altair
from enginebench.report.numbers import format_range, format_ratio, format_time, format_verdict
from enginebench.report.run.charts import PALETTE
from enginebench.report.run.remarks import gather_notes, name_having
from enginebench.report.run.sections import name_machine
from enginebench.report.table import Chart, Column, Notes, Section, list_texts, make_notes, make_table

FOOTER = (
    "In each round every remaining candidate runs in one fresh process. A candidate is dropped once it is, with 95% "
    "confidence, not faster than the leader by more than the margin. The winner is re-measured to avoid selection bias."
)
# Dropped candidates that are shown on a terminal; the page has all.
SHOWN = 8


def list_tune(document: TuneDocument) -> list[Section]:
    document = _shorten_names(document)
    more = [Section(parts=tuple(make_notes(["tune.html has all of them"])))] if len(document.dropped) > SHOWN else []
    return [*_list_outcome(document), *_list_dropped(document, SHOWN), *more]


def list_tune_page(document: TuneDocument, picture: Spec | None = None) -> list[Section]:
    document = _shorten_names(document)
    speed = Column(
        "speed over the leader's",
        lambda one: "-" if one.speed is None else f"{one.speed:.3f}x",
        lambda one: one.speed,
        align="right",
    )
    quality = Column(
        document.quality_of,
        lambda one: "-" if one.quality is None else f"{one.quality:.4f}",
        lambda one: one.quality,
        align="right",
    )
    setting = Column("setting", lambda one: one.candidate)
    count = Column("trials", lambda one: str(one.processes), lambda one: one.processes, align="right")
    role = Column("", _format_role)
    every = make_table((setting, speed, count, quality, role), document.candidates, file="candidates")
    front = make_table((setting, speed, quality), document.frontier, file="frontier")
    text = "No other setting is both faster and as good; speeds are those of the race."
    chart = [Chart(name=NAME, title=TITLE, description=DESCRIPTION, spec=picture)] if picture else []
    frontier = Section(title=TITLE, name="frontier", parts=(*make_notes([text]), *chart, front))
    return [
        *_list_outcome(document),
        *_list_dropped(document, len(document.dropped)),
        Section(title="All settings", name="settings", parts=(every,)),
        *([frontier] if len(document.frontier) > 1 else []),
    ]


def _format_role(candidate: Candidate) -> str:
    marks = ["default"] if candidate.default else []
    if candidate.validity != "valid":
        marks.append("~")
    return ", ".join(marks)


def _shorten_names(document: TuneDocument) -> TuneDocument:
    """Drop the number of threads from names of settings where it is no setting.

    It is none if all have the same, nor for what runs on a GPU.
    """
    threads = re.compile(r" \d+ threads?\b")
    counts = {match[0] for one in document.candidates if (match := threads.search(one.candidate))}
    shortened = {threads.sub("", one.candidate) for one in document.candidates}
    all_differ = len(shortened) == len(document.candidates)
    if len(counts) != 1 and (document.device == "cpu" or not all_differ):
        return document
    text = msgspec.json.encode(document).decode()
    for count in counts:
        text = text.replace(count, "")
    return msgspec.json.decode(text, type=TuneDocument)


def _list_outcome(document: TuneDocument) -> list[Section]:
    same = {one.threads for one in (document.winner, document.default, document.challenger) if one}
    threads = same.pop() if len(same) == 1 else None
    machine = name_machine(document.machine, document.device, threads)
    facts = [f"goal: {document.goal}", machine, format_time(document.started_utc)]
    batch = document.winner.batch if document.winner and document.goal == "latency" else 1
    warnings = make_notes(list_final_warnings(document), "list")
    conclusion = make_notes([*format_outcome(document)])
    challenger = document.challenger and document.challenger.candidate

    def format_part(row: Finalist) -> str:
        """The parts that a setting has in the final: it may be the challenger, the default, or both."""
        parts = ["challenger"] if row.candidate == challenger else []
        if row.default:
            parts.append("default")
        return ", ".join(parts)

    def format_cost(row: Finalist) -> str:
        mark = "" if row.validity == "valid" else "~ "
        return mark + (format_range(row.cost, times=batch) if row.cost else row.reason or "-")

    columns = (
        Column("final", lambda row: row.candidate),
        Column("", format_part),
        Column(document.unit if batch == 1 else f"ms a batch of {batch}", format_cost),
        Column(
            "challenger is",
            lambda one: f"{format_ratio(one.ratio)}, {format_verdict(one.verdict)}" if one.ratio else "-",
        ),
    )
    final = make_table(columns, document.final, file="final")
    locating = Notes(lines=(("Locate it", document.locating),), kind="command")
    return [
        Section(title=f"{document.model} tuned · {' · '.join(filter(None, facts))}", parts=tuple(conclusion)),
        *([Section(title="Final", name="final", parts=(final,))] if document.final else []),
        *([Section(title="Warnings", name="warnings", parts=tuple(warnings))] if warnings else []),
        *([Section(title="Where outputs changed", parts=(locating,))] if document.locating else []),
    ]


def _list_dropped(document: TuneDocument, count: int) -> list[Section]:
    lines = []
    for one in reversed(document.dropped[-count:]):
        when = f"round {one.round}" if one.round else "before it raced"
        lines.append((one.candidate, when, one.reason, one.leader or "-", str(one.generation)))
    titles = ("setting", "when", "why", "leader then")
    columns = list_texts(titles, ("generation",), spare=("generation", "leader then"))
    title = f"Dropped ({len(document.dropped)}), the last first"
    table = make_table(columns, lines, file="dropped")
    return [Section(title=title, name="dropped", parts=(table,))] if lines else []


def format_outcome(document: TuneDocument) -> Iterator[str]:
    winner, default = document.winner, document.default
    if winner is None:
        yield "No setting was measured."
    elif default is None:
        raced = {one.candidate: one.speed for one in document.candidates if one.default and one.speed}
        best = next(iter(raced), None)
        role = ", a default," if winner.candidate in raced else ""
        lead = f", about {1 / raced[best]:.2f}x as fast as {best}" if best and not role else ""
        yield f"Take {winner.candidate}{role} so far: it leads the race{lead}. It was not re-measured."
    elif document.beaten and document.ratio is not None:
        ratio = format_range(document.ratio, "x")
        yield f"{winner.candidate} is {ratio} as fast as the best default, {default.candidate}."
        if document.verdict == "not_shown":
            yield f"It is faster in any case; by how much is not settled{_format_open(document)}."
    else:
        ran = [one for one in document.candidates if one.processes]
        why = "The default was not beaten"
        if all(one.default for one in ran):
            why = "The fastest default" if len(ran) > 1 else "No other setting was measured"
        yield f"{why}: take {default.candidate}."
        if document.challenger is not None and document.ratio is not None and document.verdict is not None:
            yield (
                f"The winner of the race, {document.challenger.candidate}, was {format_range(document.ratio, 'x')} as "
                f"fast when it was re-measured: {format_verdict(document.verdict)}{_format_open(document)}."
            )
    yield from document.notes
    counts = Counter("before the race" if one.round == 0 else "in the race" for one in document.dropped)
    drops = ", ".join(f"{count} dropped {when}" for when, count in counts.items())
    yield (
        f"{count_of(len(document.candidates), 'settings')} in {count_of(document.generations, 'generations')}"
        f"{f', {drops}' if drops else ''}; {count_of(document.processes, 'measurements')} in {document.spent_s:.0f} s"
        f"{'' if document.finished else ' (not finished)'}."
    )


def _format_open(document: TuneDocument) -> str:
    """Format why there is no verdict on the challenger against the best default, in brackets; "" if there is one."""
    default = document.default.candidate if document.default else None
    why = next((row.reason for row in document.final if row.candidate == default), None)
    return f" ({why})" if why and document.verdict == "not_shown" else ""


def list_final_warnings(document: TuneDocument) -> Iterator[str | tuple[str, str]]:
    """Yield every warning about configurations of the final, then those about the machine."""
    every = {row.candidate: (row.candidate, "") for row in document.final}
    for having, text, _ in gather_notes([(row.candidate, row.warnings) for row in document.final]):
        yield name_having(having, every), text
    if shaky := [one.candidate for one in document.candidates if one.validity != "valid"]:
        text = f"the race was disturbed for {count_of(len(shaky), 'settings')}, which may have been dropped for that: "
        yield f"{text}{', '.join(shaky[:SHOWN])}{', ...' if len(shaky) > SHOWN else ''}"
    yield from (text for _, text, _ in gather_notes([("", document.warnings)]))


NAME, TITLE = "frontier", "Speed over quality"
DESCRIPTION = "The speed of every setting that was measured over the quality of its outputs, with the Pareto front."
KINDS = {"default": "circle", "mixed precision": "diamond", "other setting": "triangle-up"}
HEIGHT = 320


def draw_frontier(document: TuneDocument) -> Spec:
    alt = import_altair()
    base = chart_rows(list_points(document))
    quality = alt.X("quality:Q", title=document.quality_of, scale=alt.Scale(zero=False))
    speed = alt.Y("speed:Q", title="speed over the leader's", scale=alt.Scale(zero=False))
    kinds = list(KINDS)
    dots = base.mark_point(filled=True, size=80, opacity=1).encode(
        x=quality,
        y=speed,
        color=alt.Color("kind:N", scale=alt.Scale(domain=kinds, range=list(PALETTE[: len(kinds)])), title=None),
        shape=alt.Shape("kind:N", scale=alt.Scale(domain=kinds, range=list(KINDS.values())), title=None),
        tooltip=["candidate:N", alt.Tooltip("speed:Q", format=".3f"), alt.Tooltip("quality:Q", format=".4f")],
    )
    line = (
        base.transform_filter("datum.front")
        .mark_line(interpolate="step-before", color=GREY, strokeDash=[4, 3])
        .encode(x=quality, y=speed)
    )
    return finish(line + dots, TITLE, f"{document.model}; speeds are those of the race", HEIGHT)


def _name_kind(candidate: Candidate) -> str:
    if candidate.default:
        return "default"
    return "mixed precision" if candidate.graph else "other setting"


def list_points(document: TuneDocument) -> list[Point]:
    front = {point.candidate for point in document.frontier}
    return [
        {
            "candidate": clean_text(one.candidate),
            "speed": one.speed,
            "quality": one.quality,
            "front": one.candidate in front,
            "kind": _name_kind(one),
        }
        for one in document.candidates
        if one.speed is not None and one.quality is not None
    ]
