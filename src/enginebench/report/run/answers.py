"""The answer of a run in plain sentences, no stronger than its figures; every format prints the same ones."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from msgspec import Struct

from enginebench.analyze.compare import NOUNS
from enginebench.analyze.diff import DiffDocument, DiffRow
from enginebench.analyze.effective import list_shares
from enginebench.analyze.metrics.tasks import name_metric
from enginebench.analyze.ranking import Ref
from enginebench.core.caveats import find_sentence, format_caveat
from enginebench.core.names import format_precision
from enginebench.core.precisions import REORDER, UNKNOWN
from enginebench.core.records import Caveat
from enginebench.core.text import count_of
from enginebench.report.numbers import format_range, format_significant
from enginebench.report.run.rows import Row, RunDocument
from enginebench.report.scores import find_metric

# Rows in TF32 that stand for what PyTorch does on a GPU, the nearest first: without a setting it convolves in TF32, but
# multiplies matrices in FP32.
DEFAULT_SETTINGS = {"pytorch:defaults=1": "with its default settings", "pytorch": "in TF32, near its default settings,"}


def name_row(row: Row) -> str:
    """`openvino fp32`, `ort int8@cpu`."""
    return f"{row.engine} {format_precision(row.precision, row.recipe, row.mix)}"


def state_answer(document: RunDocument) -> list[str]:
    """The closing sentences: the fastest engine whose outputs agree, and what else must be said beside it."""
    rows = {row.id: row for row in document.rows}
    sentences = _state_searched(document, rows)
    return [*sentences, *_state_ranked(document, rows), *state_missing(document)]


def _state_ranked(document: RunDocument, rows: dict[str, Row]) -> list[str]:
    """What the ranking of the rows says."""
    if document.fastest is None:
        return [_state_nothing(document)]
    fastest = rows[document.fastest.id]
    sentences = [_state_fastest(document, document.fastest, fastest, rows)]
    sentences += _state_disagreement(document, fastest)
    sentences += _state_default_settings(document, fastest)
    sentences += _state_recommended(document, rows)
    sentences += _state_pareto(document, fastest)
    sentences += _state_batch(document, fastest)
    sentences += _state_slower_precisions(document)
    return sentences


def state_missing(document: RunDocument) -> list[str]:
    """The rows that the answer knows nothing of, so that another one may stand first."""
    if not document.missing:
        return []
    told = count_of(len(document.missing), "rows")
    return [
        f"Nothing is stored of {told}, which could change this answer: {', '.join(document.missing)}. Never begun, or "
        "gone from rows/: put the files back, or measure again with --resume."
    ]


def _state_searched(document: RunDocument, rows: dict[str, Row]) -> list[str]:
    """What a search says to take, whose proof stands in its own document."""
    if document.recommended_by != "search" or document.recommended is None:
        return []
    row = rows[document.recommended.id]
    return [f"The search that measured these rows says to take {row.id}{_qualify(row)}."]


def _state_nothing(document: RunDocument) -> str:
    if not any(row.n for row in document.rows):
        return "Nothing was measured, so there is no fastest engine."
    agreeing = [row for row in document.rows if row.n and row.outputs_agree]
    if not agreeing:
        return "No engine can be named: of the rows that were measured, none is known to agree in its outputs."
    kinds = {_find_hindrance(row): None for row in agreeing}
    return f"No engine can be named: the rows whose outputs agree are {' or '.join(kinds)}. See the notes."


def _find_hindrance(row: Row) -> str:
    """Why a row whose outputs agree is named by no answer."""
    if row.status != "ok":
        return "not finished"
    if row.modelled:
        return "modelled, not measured,"
    return "invalid" if row.validity == "invalid" else "not comparable with the baseline"


def _state_fastest(document: RunDocument, ref: Ref, row: Row, rows: dict[str, Row]) -> str:
    base = rows.get(row.baseline or "")
    if base is None or row.speedup is None:
        return f"Fastest engine whose outputs agree: {name_row(row)}."
    if sum(bool(r.n) for r in document.rows) == 1:
        return f"Only {name_row(row)} was measured; there is nothing to compare it with."
    if row.processes < 2:
        return _state_single(row, base)
    if row.id == base.id:
        return f"No engine whose outputs agree had a lower median than the baseline, {name_row(base)}{_qualify(base)}."
    ratio = f"{format_range(row.speedup, 'x')} as fast as {name_row(base)}{_qualify(row, base)}"
    if row.verdict == "faster":
        tied = [rows[i] for i in ref.tied_with if i in rows and i != base.id]
        close = [name_row(other) for other in tied if other.processes > 1]
        also = f"; it was not shown to be faster than {_join(close)}" if close else ""
        also += "; rows of one process were not compared with it" if len(close) < len(tied) else ""
        return f"Fastest engine whose outputs agree: {name_row(row)}, {ratio}{also}."
    return (
        f"No engine was shown to be more than {document.margin:.0%} faster than {name_row(base)}: the lowest median "
        f"whose outputs agree is that of {name_row(row)}, {ratio}{_state_needed(row)}."
    )


def _state_single(row: Row, base: Row) -> str:
    if row.id == base.id:
        seen = f"the baseline, {name_row(base)}{_qualify(base)}"
    else:
        value = format_significant(row.speedup.value) if row.speedup else "?"
        seen = f"{name_row(row)}, {value}x as fast as {name_row(base)}{_qualify(row, base)}"
    return (
        f"Lowest median of the engines whose outputs agree: {seen}. One process each: an indication, not a verdict "
        "(run without --quick for that)."
    )


def _qualify(*rows: Row) -> str:
    """Behind a ratio: which of its rows are not to be relied on; nothing if all of them are valid and finished."""
    marked: dict[str, list[str]] = {}
    for row in rows:
        for mark in list_marks(row):
            marked.setdefault(mark, []).append(name_row(row))
    texts = [f"rows marked {mark}: {', '.join(dict.fromkeys(names))}" for mark, names in sorted(marked.items())]
    return f" ({'; '.join(texts)})" if texts else ""


def list_marks(row: Row) -> list[str]:
    """Why a row's times are not to be taken as they stand: not finished, suspect, invalid, modelled."""
    marks: list[str] = [row.status] if row.status != "ok" else []
    return marks + ([row.validity] if row.validity != "valid" else []) + (["modelled"] if row.modelled else [])


def _state_needed(row: Row) -> str:
    if row.verdict == "equivalent":
        return ", which is equivalent"
    needed = row.tell_needed()
    return f"; {needed} would show a difference or none" if needed else ""


def _state_disagreement(document: RunDocument, fastest: Row) -> list[str]:
    """Rows that would have been faster, had their answers been the same."""
    wrong = [
        row
        for row in document.rows
        if row.outputs_agree is False
        and row.status == "ok"
        and _kind(row) == _kind(fastest)
        and row.speedup
        and fastest.speedup
        and row.speedup.value > fastest.speedup.value
    ]
    if not wrong:
        return []
    return [f"Faster, but with other outputs: {_join([name_row(row) for row in wrong])}{_qualify(*wrong)}."]


def _state_default_settings(document: RunDocument, fastest: Row) -> list[str]:
    """Against strict FP32 alone a headline flatters: where PyTorch's own default was measured, that ratio too."""
    for engine, words in DEFAULT_SETTINGS.items():
        for row in document.rows:
            default = row.engine == engine and row.precision == "tf32" and _kind(row) == _kind(fastest)
            if default and row.speedup and fastest.speedup and row.id != fastest.id:
                ratio = fastest.speedup.value / row.speedup.value
                return [f"Against PyTorch {words} it is {format_significant(ratio)}x{_qualify(fastest, row)}."]
    return []


def _kind(row: Row) -> tuple[int, str, str, str]:
    return row.batch, row.bucket, row.scope, row.cache


def _state_recommended(document: RunDocument, rows: dict[str, Row]) -> list[str]:
    ref, limits = document.recommended, _list_limits(document)
    if document.recommended_by == "search":
        return []
    if ref is None:
        return [f"No row keeps to the {limits}."]
    row, p99 = rows[ref.id], rows[ref.id].p99_ms
    unsure = "p99" in limits and p99 is not None and not p99.supported
    doubt = " (too few samples for a p99)" if unsure else ""
    if document.fastest and ref.id == document.fastest.id:
        return [f"Whether it keeps to the p99 limit is not known{doubt}."] if unsure else []
    return [f"Recommended, the fastest within the {limits}: {name_row(row)}{doubt}{_qualify(row)}."]


def _list_limits(document: RunDocument) -> str:
    """The limits that a recommended row keeps to, in words."""
    metric = find_metric(document.rows) if document.recommended_by == "metric" else None
    named = [f"limit of {name_metric(metric)}"] if metric else []
    return " and the ".join([*named, *(["p99 limit"] if document.p99_limit_ms is not None else [])])


def _state_pareto(document: RunDocument, fastest: Row) -> list[str]:
    """The rows, timed as the fastest was, between which only the user can choose.

    Where all rows have one precision there is no such choice.
    """
    front = [row for row in document.rows if row.pareto and _kind(row) == _kind(fastest)]
    if len({row.precision for row in document.rows if row.status == "ok"}) < 2 or len(front) < 2:
        return []
    metric = find_metric(document.rows)
    quality = name_metric(metric) if metric else "agreement with the reference"
    named = f"{_join([name_row(row) for row in front])}{_qualify(*front)}"
    return [f"No other row is both faster and better in {quality}: {named}."]


def _state_batch(document: RunDocument, fastest: Row) -> list[str]:
    """Of which batch the sentences before are true, where there are several; another may turn the order round."""
    buckets = len({row.bucket for row in document.rows}) > 1
    if len({row.batch for row in document.rows}) < 2 and not buckets:
        return []
    if buckets:
        return [f"All this is of {fastest.bucket}; the other shapes have tables of their own."]
    return [f"All this is of batch {fastest.batch}; the other batches have tables of their own."]


def _state_slower_precisions(document: RunDocument) -> list[str]:
    """Rows that gave up precision and are slower for it, beyond both intervals."""
    sentences = []
    several = len({row.batch for row in document.rows}) > 1
    plain = [row for row in reversed(document.rows) if row.precision == row.requested_precision == "fp32"]
    fp32 = {_find_engine(row): row for row in plain}  # the first one of each
    for row in document.rows:
        # A relabelled row is still one that was asked to be faster.
        own = fp32.get(_find_engine(row))
        if row.requested_precision == "fp32" or not own or not row.speedup or not own.speedup:
            continue
        low, high = own.speedup.low, row.speedup.high
        if low is not None and high is not None and high < low:
            ratio = format_significant(row.speedup.value / own.speedup.value)
            where = f", batch {row.batch}," if several else ""
            seen = f"{name_row(row)}{where} is slower than the same engine in fp32 ({ratio}x){_qualify(row, own)}"
            sentences.append(f"{seen}: {_state_cause(row)}.")
    return sentences


def _state_cause(row: Row) -> str:
    """Where the time of a row that gave up precision went, by the runtime's own record."""
    shares = row.effective_precision
    if not shares:
        return "the engine keeps no record of what ran, so that the cause is not known"
    told = list_shares(shares)
    own, reorder, unknown = (shares.get(name or "", 0.0) for name in (row.requested_precision, REORDER, UNKNOWN))
    rest = 1 - own - reorder - unknown
    if unknown > max(own, reorder, rest):
        return f"{told}; of the largest part the engine's record does not say in what it ran"
    if own >= max(reorder, rest):
        return f"{told}; the largest part are {row.requested_precision} kernels, which gain too little here"
    if reorder > rest:
        return f"{told}; the largest part moves values between types and layouts"
    return f"{told}; the largest part did not run in {row.requested_precision}"


def _find_engine(row: Row) -> tuple[object, ...]:
    """What rows of one engine have in common that differ in their precision."""
    return row.engine, row.batch, row.bucket, row.scope, row.cache, row.device, row.threads


class Notes(Struct, frozen=True, kw_only=True):
    """What must be said beside the table: notes of some rows, numbered from 1, and notes of every measured row."""

    numbers: tuple[tuple[int, ...], ...]  # for every row the numbers of its notes
    numbered: tuple[str, ...]
    common: tuple[str, ...]


class Distrust(Struct, frozen=True):
    """That the figures of a row are not valid."""

    validity: str

    def tell(self, rows: str = "this row") -> str:
        """The note."""
        return f"{self.validity}: do not rely on {rows}"


Note = str | Caveat | Distrust


def collect_notes(rows: Sequence[Row]) -> Notes:
    """The notes of a table; doubts that differ in their figures alone share a number, and stand with the range of them.

    A note that every measured row has stands once for all.
    """
    found = [_list_notes(row) for row in rows]
    wording = word_notes(note for notes in found for note in notes)
    named = [list(dict.fromkeys(map(find_key, notes))) for notes in found]
    measured = [set(keys) for row, keys in zip(rows, named, strict=True) if row.n]
    shared = set.intersection(*measured) if len(measured) > 1 else set()
    index: dict[Hashable, int] = {}
    numbers = [tuple(index.setdefault(key, len(index) + 1) for key in keys if key not in shared) for keys in named]
    if len(measured) < len(rows):  # a row that was skipped has no figures to rely on
        wording |= {key: key.tell("any row that was measured") for key in shared if isinstance(key, Distrust)}
    common = tuple(wording[key] for key in wording if key in shared)
    return Notes(numbers=tuple(numbers), numbered=tuple(wording[key] for key in index), common=common)


def find_key(note: Note) -> Hashable:
    """Equal for notes that one sentence tells."""
    return find_sentence(note) if isinstance(note, Caveat) else note


def word_notes(notes: Iterable[Note]) -> dict[Hashable, str]:
    """Key -> the one sentence that tells all notes of that key, in the order in which they first come."""
    alike: dict[Hashable, list[Note]] = {}
    for note in notes:
        alike.setdefault(find_key(note), []).append(note)
    return {key: _word(members) for key, members in alike.items()}


def _word(alike: Sequence[Note]) -> str:
    first = alike[0]
    if isinstance(first, Distrust):
        return first.tell()
    doubts = [note for note in alike if isinstance(note, Caveat)]
    return format_caveat(*doubts) if doubts else str(first)


def _list_notes(row: Row) -> list[Note]:
    unsaid = "not all of its processes were measured" if row.status == "partial" else "no reason recorded"
    notes: list[Note] = [f"{row.status}: {row.reason or unsaid}"] if row.status != "ok" else []
    if row.requested_precision not in (None, row.precision):
        notes.append(f"{row.requested_precision} was asked for, {row.precision} ran")
    if row.clock not in (None, "host"):
        notes.append("modelled, not measured" if row.modelled else f"times are of the {row.clock} clock")
    if row.outputs_agree is False:
        notes.append("outputs do not agree with the reference within the limits")
    if row.n and row.outputs_agree is None and row.is_reference is False:
        notes.append("outputs were not compared with those of another row")
    if row.speedup_reason:
        notes.append(f"no speed-up: {row.speedup_reason}")
    if row.n and row.validity != "valid":
        notes.append(Distrust(row.validity))
    return [*notes, *row.caveats]


def _join(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def tell_gate(document: DiffDocument, gate: bool) -> str:
    """How the gate ended, behind the margin; nothing where nobody asked for one."""
    return f", gate {'failed' if document.gate_failed else 'passed'}" if gate else ""


def explain_diff_row(row: DiffRow) -> str:
    """Why a row has its verdict, what would decide an open one, and by how much a metric changed."""
    why = list(row.reasons)
    if row.metric and row.metric_change and not any(name_metric(row.metric) in text for text in row.failures):
        why.append(f"{name_metric(row.metric)} {row.metric_change:+.4g}")
    if row.repetitions_needed:
        why.append(f"about {row.repetitions_needed} {NOUNS[row.unit]} would show it")
    why += [text for text in row.failures if text not in ("slower", "not comparable", *row.reasons)]
    return "; ".join(why)
