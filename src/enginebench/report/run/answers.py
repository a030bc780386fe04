"""What must be said beside the tables of a run: remarks, notes and warnings; every format prints the same ones."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from msgspec import Struct

from enginebench.analyze.compare import NOUNS
from enginebench.analyze.diff import DiffDocument, DiffRow
from enginebench.analyze.effective import list_shares
from enginebench.analyze.metrics.tasks import name_metric
from enginebench.core.caveats import find_sentence, format_caveat
from enginebench.core.names import format_precision
from enginebench.core.precisions import REORDER, UNKNOWN
from enginebench.core.records import Caveat
from enginebench.report.numbers import format_significant
from enginebench.report.run.rows import Row, RunDocument


def name_row(row: Row) -> str:
    """`openvino fp32`, `ort int8@cpu`."""
    return f"{row.engine} {format_precision(row.precision, row.recipe, row.mix)}"


def list_marks(row: Row) -> list[str]:
    """Why a row's times are not to be taken as they stand: not finished, suspect, invalid, modelled."""
    marks: list[str] = [row.status] if row.status != "ok" else []
    return marks + ([row.validity] if row.validity != "valid" else []) + (["modelled"] if row.modelled else [])


def list_remarks(document: RunDocument) -> list[str]:
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
        if "not_given" in (row.ratio_validity, own.ratio_validity):
            continue
        low, high = own.speedup.low, row.speedup.high
        if low is not None and high is not None and high < low:
            ratio = format_significant(row.speedup.value / own.speedup.value)
            where = f", batch {row.batch}," if several else ""
            seen = f"{name_row(row)}{where} is slower than the same engine in fp32 ({ratio}x)"
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


Note = str | Caveat


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
    doubts = [note for note in alike if isinstance(note, Caveat)]
    return format_caveat(*doubts) if doubts else str(alike[0])


def _list_notes(row: Row) -> list[Note]:
    unsaid = "not all of its processes were measured" if row.status == "partial" else "no reason recorded"
    notes: list[Note] = [f"{row.status}: {row.reason or unsaid}"] if row.status != "ok" else []
    if row.requested_precision not in (None, row.precision):
        notes.append(f"{row.requested_precision} was asked for, {row.precision} ran")
    if row.clock not in (None, "host"):
        notes.append("modelled, not measured" if row.modelled else f"times are of the {row.clock} clock")
    if row.outputs == "changed":
        notes.append("outputs do not agree with the reference within the limits")
    elif row.outputs_agree is False:
        notes.append(f"outputs not judged: {row.outputs_reason}")
    if row.n and row.outputs_agree is None and row.is_reference is False:
        notes.append("outputs were not compared with those of another row")
    if row.speedup_reason or row.ratio_validity == "not_given":
        notes.append(f"no speed-up: {row.speedup_reason or row.ratio_reason}")
    return [*notes, *row.caveats]


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
