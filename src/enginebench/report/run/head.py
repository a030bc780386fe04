"""The head of a report, the same lines in every format: USE, OUTPUTS and TRUST, from the document's headlines."""

import math
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import get_args

from msgspec import Struct

from enginebench.core.entry import AS_IT_IS, EAGER
from enginebench.core.limits import MOST
from enginebench.core.names import show_engine
from enginebench.core.records import Estimate, Outputs, Validity
from enginebench.core.text import count_of, list_some
from enginebench.report.numbers import (
    UNITS_PER_MS,
    choose_unit,
    format_alone,
    format_rate,
    format_significant,
    format_small,
    has_narrow_interval,
)
from enginebench.report.run.rows import Row, RunDocument, find_best_p99, group_rows, name_items
from enginebench.stats.compare import MIN_TRIALS
from enginebench.stats.headline import ALWAYS_FASTER, Headline, Rejected
from enginebench.stats.needs import format_figure as format_need

_OUTPUTS: dict[Outputs, str] = {name: name.replace("_", " ") for name in get_args(Outputs)}
_TIMES: dict[Validity, str] = {"valid": "good", "suspect": "medium", "invalid": "low", "implausible": "low"}
# The words of TRUST for a warning that all configurations share; the last three of `IN_HEAD` are in OUTPUTS.
_SHARED = {
    "foreign_cpu": "other programs used the CPU",
    "foreign_gpu": "other programs used the GPU",
    "throttled": "throttled",
    "clock_drift": "changing clock",
    "not_settled": "times still changing after warm-up",
    "not_watched": "not watched for other programs",
}
IN_HEAD = {*_SHARED, "too_few_trials", "random_weights", "random_inputs"}
# What to do about a ratio that is not good, where it is not to repeat the run on a quiet machine.
_ADVICE = dict.fromkeys(("1 trial each, no interval", "few trials"), "repeat with more trials")
# Configurations that a tie names; the others are counted.
TIES_NAMED = 3
# Of those with implausible times, the first have their reason, the next their names; the others are counted.
IMPLAUSIBLE_EXPLAINED = 2
IMPLAUSIBLE_NAMED = 3


class HeadLine(Struct, frozen=True):
    """A labelled line, and those that continue it."""

    label: str
    lines: tuple[str, ...]


def format_name(row: Row, *, brief: bool = False) -> str:
    """Format `openvino fp32`, `ort int8 (cpu)`, `ort fp32 (against)`; `brief`: without the options of the engine."""
    name = show_engine(row.engine, row.precision, row.recipe, row.mix, brief=brief)
    return f"{name} (against)" if row.id.endswith("-against") else name


def name_configurations(rows: Sequence[Row]) -> dict[str, str]:
    """Return row id -> `ort int8 (cpu)`, with the engine's options only where another row would have the same name."""
    plain = {row.id: format_name(row, brief=True) for row in rows}
    plain |= {
        row.id: f"{plain[row.id]} (not {row.requested_precision})"
        for row in rows
        if row.requested_precision not in (None, row.precision)
    }
    engines: dict[str, set[str]] = {}
    for row in rows:
        engines.setdefault(plain[row.id], set()).add(row.engine)
    return {row.id: plain[row.id] if len(engines[plain[row.id]]) == 1 else format_name(row) for row in rows}


def format_head(document: RunDocument) -> list[HeadLine]:
    """Return USE, OUTPUTS and TRUST of a run, always in this order."""
    headlines = document.headlines
    if not headlines:
        none = HeadLine(
            "USE", (f"none: {_explain_none(document)}", *_format_implausible(document.rows), *format_missing(document))
        )
        return [none, HeadLine("OUTPUTS", ("not judged",)), HeadLine("TRUST", ("no times",))]
    rows = {row.id: row for row in document.rows}
    # Of each headline, the parts in which they differ.
    settings = [(f"batch {h.batch}", h.shapes, h.scope, f"{h.cache} cache") for h in headlines]
    differs = [len(set(column)) > 1 for column in zip(*settings, strict=True)]
    labels = [", ".join(compress(parts, differs)) for parts in settings]
    where = [f"{text}: " if text else "" for text in labels]
    pairs = zip(where, headlines, strict=True)
    lines = [line for setting, headline in pairs for line in _format_use(document, headline, rows, setting)]
    return [
        HeadLine("USE", (*lines, *format_missing(document))),
        HeadLine("OUTPUTS", tuple(_join_alike(where, [_format_outputs(h, rows[h.id]) for h in headlines]))),
        HeadLine("TRUST", tuple(_join_alike(where, [_format_trust(document, h) for h in headlines]))),
    ]


def _explain_none(document: RunDocument) -> str:
    """Explain why no configuration is named."""
    if document.recommended_by == "search":
        return "the search named no winner"
    if document.for_calls is not None and any(row.p50_ms for row in document.rows):
        return "the start of a new process, which --for-calls counts, was not measured"
    return "nothing was measured"


def format_missing(document: RunDocument) -> list[str]:
    """Name the configurations without results, so that another one may stand first."""
    if not document.missing:
        return []
    count = count_of(len(document.missing), "configurations")
    return [f"{count} without results, which could change this: {', '.join(document.missing)}. Continue with --resume"]


def _format_use(document: RunDocument, headline: Headline, rows: dict[str, Row], where: str) -> Iterator[str]:
    """Yield the configuration to use with its time and ratio in one line; then why this one, and what speaks against
    it."""
    row, names = rows[headline.id], name_configurations(document.rows)
    name = names[row.id]
    yield "   ".join(
        part
        for part in (
            where + name + _format_state(document, row),
            _format_life(headline) if headline.for_calls is not None else _format_figure(row),
            _format_ratio(headline, rows, names),
            _format_claim(document, headline),
        )
        if part
    )
    yield from _format_lost_ratio(headline, rows, names)
    if headline.state == "tie":
        yield from _format_tie(document, headline, row, names)
    if headline.strict_ratio is not None:
        yield f"{_format_factor(headline.strict_ratio)} strict fp32"
    if headline.rejected:
        cure = f". To accept it: --limit {headline.rejected.limit}" if headline.rejected.limit else ""
        yield f"{_format_rejected(headline.rejected, names)}{cure}"
    elif headline.outputs == "changed":
        yield "no configuration keeps the outputs of the reference"
    yield from dict.fromkeys(
        warning.message
        for one in document.rows
        for warning in one.warnings
        if warning.template == "outputs_differ.optimizer"
        and (one.batch, one.setup.bucket) == (row.batch, row.setup.bucket)
    )
    alike = [one for group in group_rows(document.rows) if row in group for one in group]
    yield from _format_implausible(alike, names)
    best, reason = find_best_p99(row, document.rows, headline.refused), document.p99_reasons.get(row.id)
    if best and best.p99_ms and row.p99_ms and headline.for_calls is None:
        why = f"; largest difference: {reason}" if reason else ""
        yield f"on p99 {names[best.id]} leads: {format_versus(best.p99_ms.value, row.p99_ms.value)}{why}"
    if headline.for_calls is not None and row.costs.build_s:
        yield f"building it takes {format_need('build', row.costs.build_s)}, once"
    if headline.unmet:
        yield f"no configuration meets all that is needed: {names[row.id]} {'; '.join(headline.unmet)}"
    if not headline.keeps_p99 and document.p99_limit_ms is not None:
        yield f"no configuration keeps p99 within {document.p99_limit_ms:g} ms"
    elif document.p99_limit_ms is not None and row.p99_ms and not row.p99_ms.supported:
        yield "too few samples for a p99: whether it meets the limit is unknown"


def _format_state(document: RunDocument, row: Row) -> str:
    """Format ` (5 of 6 trials)` for a configuration that was not finished."""
    planned = document.spec.get("measure", {}).get("processes", 0)
    if row.status == "partial" and row.processes < planned <= MOST:
        return f" ({row.processes} of {count_of(planned, 'trials')})"
    return "" if row.status == "ok" else f" ({row.status})"


def _format_figure(row: Row) -> str:
    """Format `5.87 ms`, for a batch also `1,363 images/s`."""
    if row.p50_ms is None:
        return ""
    figure = format_alone(row.p50_ms.value)
    if row.times.cells:
        return f"{figure} a request"
    if row.batch > 1 and row.throughput_per_s:
        figure += f", {format_rate(row.throughput_per_s)} {name_items([row])}/s"
    return f"{figure}, modelled" if row.modelled else figure


def _format_life(headline: Headline) -> str:
    """Format `0.31 s for 300 calls in a new process`."""
    calls = count_of(headline.for_calls or 0, "calls")
    figure = f"{format_need('first-output', headline.total_ms.value / 1e3)} for " if headline.total_ms else ""
    return f"{figure}{calls} in a new process"


def _format_claim(document: RunDocument, headline: Headline) -> str:
    """Format why a configuration without a ratio is named: it is the user's own, or the winner of a search."""
    if headline.state == "searched":
        return "as reported by the search that measured these"
    if headline.state == "only":
        return "the only configuration that was measured"
    baseline = _name_baseline(document, headline)
    if headline.state == "none_agrees":
        return f"{baseline}: nothing faster keeps the outputs"
    if headline.state == "baseline":
        kind = "no other configuration within the limits" if headline.rejected else "no other configuration"
        return f"{baseline}: {kind} is faster"
    return ""


def _name_baseline(document: RunDocument, headline: Headline) -> str:
    return "what you have" if headline.is_today and not document.spec.get("baseline") else "the baseline"


def _format_tie(document: RunDocument, headline: Headline, row: Row, names: dict[str, str]) -> Iterator[str]:
    """Yield `openvino fp32 may be as fast (no significant difference); ort fp32 is smaller`; of one that was faster in
    every trial, `not significantly faster than openvino fp32, though faster in every trial`.

    Only what is equal within the margin is as fast: an interval from a third to three times says nothing of the kind.

    For those far behind in few trials: `ort fp32 took about 2.0 times as long (1 trial); more trials settle it`.
    """
    if headline.near:
        yield _format_near(document, headline, row, names)
    if headline.behind:
        first, *others = (
            (names[one.id], f"about {format_significant(one.factor, 2)} times", f"({count_of(one.n, one.unit)})")
            for one in headline.behind[:TIES_NAMED]
        )
        texts = [f"{first[0]} took {first[1]} as long {first[2]}", *map(" ".join, others)]
        if (more := len(headline.behind) - TIES_NAMED) > 0:
            texts.append(f"{more} more also took longer")
        yield f"{', '.join(texts)}; more {headline.behind[0].unit} settle it"


def _format_near(document: RunDocument, headline: Headline, row: Row, names: dict[str, str]) -> str:
    tied = headline.near
    others = [names[one] for one in tied[:TIES_NAMED]]
    if len(tied) > TIES_NAMED:
        others.append(f"{len(tied) - TIES_NAMED} more")
    *first, last = others
    listed = f"{', '.join(first)} and {last}" if first else last
    verb = "may be"
    choice = " and ".join(headline.choice)
    if headline.tie_reason:
        return f"no verdict against {listed} ({headline.tie_reason}); {names[row.id]} {choice}"
    alike = [one for one in document.rows if one.id in (row.id, *tied)]
    n, noun = (
        (row.costs.builds.builds, "builds") if row.costs.builds else (min(one.processes for one in alike), "trials")
    )
    if headline.choice == (ALWAYS_FASTER,) and not headline.equivalent:
        if n < MIN_TRIALS:
            return f"faster than {listed} in every trial, but too few {noun} to tell"
        return f"not significantly faster than {listed}, though faster in every trial"
    if headline.equivalent:
        verb = "are" if len(tied) > 1 else "is"
        difference = f"equal within {document.margin:.0%}"
    elif n < MIN_TRIALS:
        difference = f"too few {noun} to tell"
    else:
        difference = "no significant difference"
    return f"{listed} {verb} as fast ({difference}); {names[row.id]} {choice}"


def _format_implausible(rows: Sequence[Row], names: dict[str, str] | None = None) -> Iterator[str]:
    """Yield configurations whose times are implausible, and why; of many, the names of those behind the first."""
    names = name_configurations(rows) if names is None else names
    reasons: dict[str, str] = {}
    for row in rows:
        for warning in row.warnings:
            if row.validity == "implausible" and warning.code == "implausible_time":
                reasons.setdefault(row.id, warning.message)
    explained, others = list(reasons)[:IMPLAUSIBLE_EXPLAINED], list(reasons)[IMPLAUSIBLE_EXPLAINED:]
    for one in explained:
        yield f"{names[one]} is not ranked, its times are implausible: {reasons[one]}"
    if others:
        yield f"nor are {list_some([names[one] for one in others], IMPLAUSIBLE_NAMED)}"


def format_versus(one: float, other: float) -> str:
    """Format `1.00 ms against 9.00`."""
    unit = choose_unit([one, other])
    first, second = (format_significant(ms * UNITS_PER_MS[unit]) for ms in (one, other))
    return f"{first} {unit} against {second}"


def _format_ratio(headline: Headline, rows: dict[str, Row], names: dict[str, str]) -> str:
    """Format the ratio to the baseline with its interval, `7.17x pytorch fp32 (6.7 to 7.7)`; "" where none is given."""
    base = rows.get(headline.baseline or "")
    if headline.ratio is None or base is None or headline.state in ("only", "searched") or base.id == headline.id:
        return ""
    plain = base.engine in (EAGER, AS_IT_IS) and base.precision == "tf32"
    today = f"{EAGER} as it is ({base.precision})" if plain else names[base.id]
    return f"{_format_factor(headline.ratio)} {today} ({_format_interval(headline.ratio)})"


def _format_interval(ratio: Estimate) -> str:
    """Format `6.7 to 7.7`, or why there is none."""
    if not ratio.low or not ratio.high:
        return "1 trial each, no interval"
    if not has_narrow_interval(ratio):
        return f"{count_of(ratio.n, 'trials')} each, no narrow interval"
    return f"{format_significant(ratio.low)} to {format_significant(ratio.high)}"


def _format_lost_ratio(headline: Headline, rows: dict[str, Row], names: dict[str, str]) -> Iterator[str]:
    """Yield why there is no ratio to the baseline, where one was to be expected."""
    base = rows.get(headline.baseline or "")
    own = headline.state in ("only", "searched") or (base is not None and base.id == headline.id)
    has_ratio = headline.ratio is not None and base is not None
    if not own and not has_ratio and headline.ratio_reason and headline.ratio_reason != headline.tie_reason:
        to = f" to {names[base.id]}" if base is not None else ""
        yield f"no ratio{to}: {headline.ratio_reason}"


def _format_factor(ratio: Estimate) -> str:
    """Format `7.17x`; without an interval that tells something, `about 7.2x`."""
    about, digits = ("", 3) if has_narrow_interval(ratio) else ("about ", 2)
    return f"{about}{format_significant(ratio.value, digits)}x"


def _format_rejected(rejected: Rejected, names: dict[str, str]) -> str:
    speed = f"is {_format_factor(rejected.ratio)}" if rejected.ratio else "is faster"
    return f"{names[rejected.id]} {speed}, but {rejected.reason}"


def _join_alike(where: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Return one line if all headlines have the same text, else one for each."""
    return [texts[0]] if len(set(texts)) == 1 else [f"{name}{text}" for name, text in zip(where, texts, strict=True)]


def _format_outputs(headline: Headline, row: Row) -> str:
    why = headline.outputs_reason
    text = _OUTPUTS[headline.outputs] + (f": {why}" if why else "")
    # Of what was invented, the option that gives the real one.
    options = {"weights": "--weights", "inputs": "--data" if name_items([row]) == "images" else "--inputs"}
    cures = [option for word, option in options.items() if headline.outputs == "not_judged" and f" {word}" in why]
    if not cures or not why.startswith("random"):
        return text
    return f"{text}{_format_difference(row)}. Give {' and '.join(cures)}"


def _format_difference(row: Row) -> str:
    """Format `. int8 differs by up to 8e-02 (correlation with the reference 0.997)`; empty where nothing differs.

    A difference alone says nothing without the size of the outputs: of random weights it may be a millionth.
    """
    most, correlation = row.agreement.max_abs_diff, row.agreement.centred_cosine
    if not most:
        return ""
    alike = "" if correlation is None else f" (correlation with the reference {math.floor(1e4 * correlation) / 1e4:g})"
    return f". {row.precision} differs by up to {format_small(most)}{alike}"


def _format_trust(document: RunDocument, headline: Headline) -> str:
    """Format `good`; else how far the ratio can be trusted, why, what to do, and how far the times themselves can."""
    times, reasons = _TIMES[headline.validity], _explain_times(document, headline)
    absolute = f"absolute times {times}" + (f" ({', '.join(reasons)})" if reasons else "")
    validity = headline.ratio_validity
    if validity is None:
        return absolute
    if validity == "good":
        return "good" if times == "good" and not reasons else f"ratios good; {absolute}"
    if validity == "not_given":
        named = headline.id == headline.baseline and headline.ratio_reason
        why = f"no ratio to it can be given ({headline.ratio_reason})" if named else "no ratio can be given"
        return f"low: {why}; repeat when the machine is quiet; {absolute}"
    advice = _ADVICE.get(headline.ratio_reason, "repeat when the machine is quiet")
    return f"{validity}: {headline.ratio_reason}; {advice}; {absolute}"


def _explain_times(document: RunDocument, headline: Headline) -> list[str]:
    """List why absolute times are not good: what all configurations share, and how many were disturbed."""
    virtual = headline.validity != "valid" and document.machine is not None and document.machine.virtual
    measured = [{warning.code for warning in row.warnings} for row in document.rows if row.n]
    shared = set[str]().union(*measured).intersection(*measured) if len(measured) > 1 else set()
    reasons = ["virtual machine"] if virtual else []
    reasons += [text for code, text in _SHARED.items() if code in shared]
    reasons += [f"{headline.disturbed} of {headline.measured} configurations disturbed"] if headline.disturbed else []
    return reasons
