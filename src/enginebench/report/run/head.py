"""The head of a report, the same lines in every format: FASTEST, OUTPUTS and TRUST, from the document's headlines."""

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import get_args

from msgspec import Struct

from enginebench.core.names import show_engine
from enginebench.core.records import Estimate, Outputs, Validity
from enginebench.core.text import count_of
from enginebench.report.numbers import UNITS_PER_MS, choose_unit, format_digits, format_significant, format_small
from enginebench.report.run.rows import Row, RunDocument, find_best_p99, name_items
from enginebench.stats.compare import MIN_REPETITIONS
from enginebench.stats.headline import Headline

_OUTPUTS: dict[Outputs, str] = {name: name.replace("_", " ") for name in get_args(Outputs)}
_TIMES: dict[Validity, str] = {"valid": "good", "suspect": "medium", "invalid": "low"}
# Of a warning that all configurations share, what TRUST says of it; the last three are in OUTPUTS.
_SHARED = {
    "foreign_cpu": "other programs used the CPU",
    "foreign_gpu": "other programs used the GPU",
    "throttled": "throttled",
    "clock_drift": "changing clock",
    "not_settled": "not settled",
    "no_device_telemetry": "GPU not watched",
    "no_foreign_cpu_figure": "other programs not watched",
}
TOLD = {*_SHARED, "single_process", "random_weights", "random_inputs"}
# Configurations that a tie names; of more their number is told.
_NAMED = 3


class HeadLine(Struct, frozen=True):
    """A labelled line, and those that continue it."""

    label: str
    lines: tuple[str, ...]


def format_name(row: Row, *, brief: bool = False) -> str:
    """`openvino fp32`, `ort int8 (cpu)`, `ort fp32 (against)`; `brief`: without the options of the engine."""
    return show_engine(row.engine, row.precision, row.recipe, row.mix, brief=brief) + " (against)" * row.id.endswith(
        "-against"
    )


def name_rows(rows: Sequence[Row]) -> dict[str, str]:
    """Row id -> `ort int8 (cpu)`, with the options of the engine only where another row would have the same name."""
    plain = {row.id: format_name(row, brief=True) for row in rows}
    plain |= {
        row.id: f"{plain[row.id]}, not {row.requested_precision}"
        for row in rows
        if row.requested_precision not in (None, row.precision)
    }
    known: dict[str, set[str]] = {}
    for row in rows:
        known.setdefault(plain[row.id], set()).add(row.engine)
    return {row.id: plain[row.id] if len(known[plain[row.id]]) == 1 else format_name(row) for row in rows}


def format_head(document: RunDocument) -> list[HeadLine]:
    """FASTEST, OUTPUTS and TRUST of a run, always in this order; MEASURED where there is nothing to compare."""
    found = document.headlines
    if not found:
        why = "the search named no winner" if document.recommended_by == "search" else "nothing was measured"
        none = HeadLine("FASTEST", (f"none: {why}", *format_missing(document)))
        return [none, HeadLine("OUTPUTS", ("not judged",)), HeadLine("TRUST", ("no times",))]
    rows = {row.id: row for row in document.rows}
    only = all(headline.state == "only" for headline in found)
    # Of each headline, the parts in which they differ.
    settings = [(f"batch {h.batch}", h.shapes, h.scope, f"{h.cache} cache") for h in found]
    differs = [len(set(column)) > 1 for column in zip(*settings, strict=True)]
    told = [", ".join(compress(parts, differs)) for parts in settings]
    where = [f"{text}: " if text else "" for text in told]
    pairs = zip(where, found, strict=True)
    lines = [line for name, headline in pairs for line in _format_fastest(document, headline, rows, name)]
    return [
        HeadLine("MEASURED" if only else "FASTEST", (*lines, *format_missing(document))),
        HeadLine("OUTPUTS", tuple(_join_alike(where, [_format_outputs(h, rows[h.id]) for h in found]))),
        HeadLine("TRUST", tuple(_join_alike(where, [_format_trust(document, h) for h in found]))),
    ]


def format_missing(document: RunDocument) -> list[str]:
    """The configurations without results, so that another one may stand first."""
    if not document.missing:
        return []
    told = count_of(len(document.missing), "configurations")
    return [f"{told} without results, which could change this: {', '.join(document.missing)}. Continue with --resume"]


def _format_fastest(document: RunDocument, headline: Headline, rows: dict[str, Row], where: str) -> Iterator[str]:
    row = rows[headline.id]
    names = name_rows(document.rows)
    name, unit = names[row.id], choose_unit([row.p50_ms.value] if row.p50_ms else [])
    figure = f"{format_significant(row.p50_ms.value * UNITS_PER_MS[unit])} {unit}" if row.p50_ms else ""
    if row.batch > 1 and row.throughput_per_s:
        rate = f"{row.throughput_per_s:,.0f}" if row.throughput_per_s >= 100 else format_digits(row.throughput_per_s)
        figure += f", {rate} {name_items([row])}/s"
    figure += ", modelled" * row.modelled
    whole = "" if row.status == "ok" else f" ({row.status})"
    ratio = _format_ratio(headline, rows, names)
    ratio = "" if headline.tie_reason and headline.tie_reason in ratio else ratio  # said once
    limit = headline.rejected.limit if headline.rejected else ""
    cure = f". Accept it with --limit {limit}" if limit else ""
    what = "what you have" if headline.is_today and not document.spec.get("baseline") else "the baseline"
    if headline.state == "tie":
        n, noun = (row.builds.builds, "builds") if row.builds else (row.processes, "trials")
        few = f"are too close to call after {count_of(n, noun)} each"
        few = few if n < MIN_REPETITIONS else "do not differ significantly"
        few = f"cannot be ranked: {headline.tie_reason}" if headline.tie_reason else few
        equal = f"are equal within {document.margin:.0%}" if headline.equivalent else few
        tied = [name, *(names[i] for i in headline.tied_with)]
        *first, last = [*tied[:_NAMED], *([f"{len(tied) - _NAMED} more"] if len(tied) > _NAMED else [])]
        yield f"{where}no clear winner: {', '.join(first)} and {last} {equal}"
        choice = ", ".join(what if why == "what you have" else why for why in headline.choice)
        yield f"take {name}{whole}: {choice}   {figure}{ratio}"
    elif headline.state == "none_agrees" and headline.rejected:
        yield f"{where}none with the same outputs: {_format_rejected(headline, names, ' and ')}{cure}"
        yield f"keep {name}, {what}   {figure}"
    elif headline.state == "baseline":
        kind = " of those within the limits" if headline.rejected else ""
        single = "   (1 trial each: no interval)" if row.processes < 2 else ""
        yield f"{where}{name}{whole}, {what}: no other configuration{kind} is faster   {figure}{single}"
    elif headline.state == "searched":
        yield f"{name}   {figure}   as reported by the search that measured these"
    elif headline.outputs == "changed":
        yield f"{where}none with the same outputs: {name}{whole} changes them   {figure}{ratio}"
    else:
        yield f"{where}{name}{whole}   {figure}{ratio}"
    if headline.strict_ratio is not None:
        yield f"{_format_factor(headline.strict_ratio)} strict fp32"
    if headline.rejected and headline.state != "none_agrees":
        yield f"{_format_rejected(headline, names, ', but ')}: not recommended{cure}"
    best, reason = find_best_p99(row, document.rows), document.p99_reasons.get(row.id)
    if best and best.p99_ms and row.p99_ms:
        why = f"; largest difference: {reason}" if reason else ""
        yield f"by p99 {names[best.id]} is faster: {format_versus(best.p99_ms.value, row.p99_ms.value)}{why}"
    if not headline.keeps_p99 and document.p99_limit_ms is not None:
        yield f"no configuration keeps p99 within {document.p99_limit_ms:g} ms"
    elif document.p99_limit_ms is not None and row.p99_ms and not row.p99_ms.supported:
        yield "too few samples for a p99: whether it meets the limit is unknown"


def format_versus(one: float, other: float) -> str:
    """`1.00 against 9.00 ms`."""
    unit = choose_unit([one, other])
    return " against ".join(format_significant(ms * UNITS_PER_MS[unit]) for ms in (one, other)) + f" {unit}"


def _format_ratio(headline: Headline, rows: dict[str, Row], names: dict[str, str]) -> str:
    """Behind the time: the ratio to the baseline with its interval, or why none is given."""
    base = rows.get(headline.baseline or "")
    if headline.state in ("only", "searched") or (base is not None and base.id == headline.id):
        return ""
    if headline.ratio is None or base is None:
        return f"   no ratio: {headline.ratio_reason}" if headline.ratio_reason else ""
    plain = base.engine in ("pytorch", "pytorch:defaults=1") and base.precision == "tf32"
    today = f"pytorch as it is ({base.precision})" if plain else names[base.id]
    low, high = headline.ratio.low, headline.ratio.high
    known = f"({format_significant(low)} to {format_significant(high)})" if low and high else ""
    return f"   {_format_factor(headline.ratio)} {today}   {known or '(1 trial each: no interval)'}"


def _format_factor(ratio: Estimate) -> str:
    """`7.17x`; of one trial, which has no interval, `about 7.2x`."""
    about, digits = ("about ", 2) if ratio.low is None else ("", 3)
    return f"{about}{format_significant(ratio.value, digits)}x"


def _format_rejected(headline: Headline, names: dict[str, str], link: str) -> str:
    rejected = headline.rejected
    assert rejected is not None
    how = f"is {_format_factor(rejected.ratio)}" if rejected.ratio else "is faster"
    return f"{names[rejected.id]} {how}{link}{rejected.reason}"


def _join_alike(where: Sequence[str], texts: Sequence[str]) -> list[str]:
    """One line where all headlines have the same text."""
    return [texts[0]] if len(set(texts)) == 1 else [f"{name}{text}" for name, text in zip(where, texts, strict=True)]


def _format_outputs(headline: Headline, row: Row) -> str:
    why = headline.outputs_reason
    text = _OUTPUTS[headline.outputs] + (f": {why}" if why else "")
    # Of what was invented, the option that gives the real one.
    options = {"weights": "--weights", "inputs": "--data" if name_items([row]) == "images" else "--inputs"}
    cures = [option for word, option in options.items() if headline.outputs == "not_judged" and f" {word}" in why]
    if not cures or not why.startswith("random"):
        return text
    seen = f". {row.precision} differs by {format_small(row.max_abs_diff)}" if row.max_abs_diff else ""
    return f"{text}{seen}. Give {' and '.join(cures)}"


def _format_trust(document: RunDocument, headline: Headline) -> str:
    virtual = headline.validity != "valid" and document.machine is not None and document.machine.virtual
    whys = ["virtual machine"] if virtual else []
    measured = [{caveat.code for caveat in row.caveats} for row in document.rows if row.n]
    shared = set[str]().union(*measured).intersection(*measured) if len(measured) > 1 else set()
    whys += [text for code, text in _SHARED.items() if code in shared]
    whys += [f"{headline.disturbed} of {headline.measured} disturbed"] if headline.disturbed else []
    absolute = f"absolute times: {_TIMES[headline.validity]}" + (f" ({', '.join(whys)})" if whys else "")
    if headline.ratio_validity is None:
        return absolute
    said = headline.ratio_validity in ("good", "not_given") or not headline.ratio_reason
    reason = "" if said else f" ({headline.ratio_reason})"
    return f"ratios: {headline.ratio_validity.replace('_', ' ')}{reason}; {absolute}"
