"""What is said beside the tables of a run: remarks and warnings."""

from collections.abc import Hashable, Iterable, Iterator, Sequence

from enginebench.core.caveats import find_sentence, format_caveat
from enginebench.core.precisions import REORDER, UNKNOWN
from enginebench.core.records import Caveat
from enginebench.report.numbers import format_significant
from enginebench.report.run.head import TOLD, name_rows, show_name
from enginebench.report.run.rows import Row, RunDocument
from enginebench.report.table import Notes
from enginebench.stats.effective import list_shares

_NOT_RUN = "not run: "


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
        low, high = own.speedup.low, row.speedup.high
        if low is not None and high is not None and high < low:
            ratio = format_significant(row.speedup.value / own.speedup.value)
            where = f", batch {row.batch}," if several else ""
            seen = f"{show_name(row)}{where} is slower than the same engine in fp32 ({ratio}x)"
            sentences.append(f"{seen}: {_state_cause(row)}.")
    return sentences


def _state_cause(row: Row) -> str:
    """Where the time of a row that gave up precision went, by the runtime's own record."""
    shares = row.effective_precision
    if not shares:
        return "the engine keeps no record of what ran, so that the cause is not known"
    told = list_shares(shares)
    if any(caveat.code == "enqueue_bound" for caveat in row.caveats):
        return f"{told}; the GPU waits for the host, so that faster kernels gain nothing"
    own, reorder, unknown = (shares.get(name or "", 0.0) for name in (row.requested_precision, REORDER, UNKNOWN))
    rest = 1 - own - reorder - unknown
    if unknown > max(own, reorder, rest):
        return f"{told}; for the largest part the engine's record has no precision"
    if own >= max(reorder, rest):
        return f"{told}; the largest part are {row.requested_precision} kernels, which gain too little here"
    if reorder > rest:
        return f"{told}; the largest part moves values between types and layouts"
    return f"{told}; the largest part did not run in {row.requested_precision}"


def _find_engine(row: Row) -> tuple[object, ...]:
    """What rows of one engine have in common that differ in their precision."""
    return row.engine, row.batch, row.bucket, row.scope, row.cache, row.device, row.threads


def name_settings(rows: Sequence[Row]) -> dict[str, str]:
    """Row id -> its name, with the settings in which measured rows differ: `ort fp32, batch 8`."""
    texts = {"batch": "batch {}", "threads": "{} threads", "cache": "{} cache", "scope": "scope {}"}
    names = name_rows(rows)
    measured = [row for row in rows if row.n] or rows
    settings = ("batch", "bucket", "scope", "cache", "device", "threads")
    varied = [name for name in settings if len({getattr(row, name) for row in measured}) > 1]
    return {
        row.id: ", ".join([names[row.id], *(texts.get(one, "{}").format(getattr(row, one)) for one in varied)])
        for row in rows
    }


def list_warnings(document: RunDocument) -> Notes:
    """Every warning once, with the configurations that have it, and the ranges of figures in which it differs."""
    names, lines = name_settings(document.rows), []
    for having, every, sentence, _ in _collect_warnings(document):
        told = dict.fromkeys(names[one] for one in having)
        link = "; " if any(", " in name for name in told) else ", "  # names with settings have commas of their own
        lines.append(("all" if every else link.join(told), sentence))
    return Notes(lines=tuple(lines), kind="list")


def count_warnings(document: RunDocument) -> int:
    """Those that are not in the head already; why something was not run stands below the tables."""
    found = _collect_warnings(document)
    return sum(not ((every and code in TOLD) or text.startswith(_NOT_RUN)) for _, every, text, code in found)


def _collect_warnings(document: RunDocument) -> Iterator[tuple[list[str], bool, str, str]]:
    """(ids that have it, whether all measured ones do, the sentence, its code), in the order in which they come."""
    measured = {row.id for row in document.rows if row.n}
    having: dict[Hashable, dict[str, None]] = {}
    found: list[Caveat | str] = []
    for row in document.rows:
        skipped = [f"{_NOT_RUN}{row.reason}"] if row.status == "skipped" and row.reason else []
        notes: list[Caveat | str] = [*_list_own(row), *row.caveats] if row.n else [*skipped]
        found += notes
        for note in notes:
            having.setdefault(find_key(note), {})[row.id] = None
    codes = {find_key(note): note.code for note in found if isinstance(note, Caveat)}
    for key, sentence in word_notes(found).items():
        yield [*having[key]], len(measured) > 1 and measured <= set(having[key]), sentence, codes.get(key, "")


def find_key(note: Caveat | str) -> Hashable:
    """Equal for warnings that one sentence tells."""
    return find_sentence(note) if isinstance(note, Caveat) else note


def word_notes(notes: Iterable[Caveat | str]) -> dict[Hashable, str]:
    """Key -> the one sentence that tells all warnings of that key, in the order in which they first come."""
    alike: dict[Hashable, list[Caveat | str]] = {}
    for note in notes:
        alike.setdefault(find_key(note), []).append(note)
    caveats = {key: [note for note in members if isinstance(note, Caveat)] for key, members in alike.items()}
    return {key: format_caveat(*caveats[key]) if caveats[key] else str(alike[key][0]) for key in alike}


def _list_own(row: Row) -> Iterator[str]:
    """What is to be known of a row that no caveat says."""
    if row.status == "partial":
        yield f"not finished: {row.reason or 'not all of its trials were measured'}"
    if row.clock not in (None, "host") and not row.modelled:
        yield f"times are of the {row.clock} clock; ratios compare device clocks"
    if row.outputs == "changed":
        yield f"outputs changed: {row.outputs_reason}"
    elif row.outputs_agree is False:
        yield f"outputs not judged: {row.outputs_reason}"
    if row.n and row.outputs_agree is None and row.is_reference is False:
        yield "outputs were not compared with those of another configuration"
    if row.speedup_reason:
        yield f"no ratio: {row.speedup_reason}"
