"""Remarks and warnings beside the tables of a run."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from enginebench.core.names import format_precision
from enginebench.core.precisions import REORDER, UNKNOWN
from enginebench.core.records import ResultWarning
from enginebench.core.warnings import find_sentence, format_kinds
from enginebench.report.numbers import format_significant
from enginebench.report.run.head import IN_HEAD, format_name, name_configurations
from enginebench.report.run.rows import Row, RunDocument
from enginebench.report.table import Notes
from enginebench.stats.effective import list_shares


def list_remarks(document: RunDocument) -> list[str]:
    """List configurations that are slower than the same engine with more bits, beyond the interval."""
    by_id = {row.id: row for row in document.rows}
    several = len({row.batch for row in document.rows}) > 1
    sentences = []
    for row in document.rows:
        wider, ratio = row.comparison.wider, row.comparison.ratio_to_wider
        if wider and ratio and ratio.high is not None and ratio.high < 1:
            where = f", batch {row.batch}," if several else ""
            other = format_precision(by_id[wider].precision, by_id[wider].recipe)
            requested = row.requested_precision or row.precision
            where += f", asked for in {requested}," if requested != row.precision else ""
            seen = f"{format_name(row)}{where} is slower than the same engine in {other}"
            sentences.append(f"{seen} ({format_significant(ratio.value)}x): {_format_cause(row)}.")
    return sentences


def _format_cause(row: Row) -> str:
    """Format why lower precision gained no time, by the runtime's own record."""
    shares = row.effective_precision
    if not shares:
        return "the engine keeps no record of what ran, so that the cause is not known"
    fractions = list_shares(shares)
    if any(warning.code == "enqueue_bound" for warning in row.warnings):
        return f"{fractions}; the GPU waits for the host, so that faster kernels gain nothing"
    own, reorder, unknown = (shares.get(name or "", 0.0) for name in (row.requested_precision, REORDER, UNKNOWN))
    rest = 1 - own - reorder - unknown
    if unknown > max(own, reorder, rest):
        return f"{fractions}; for the largest part the engine's record has no precision"
    if own >= reorder + rest:
        return f"{fractions}; the largest part are {row.requested_precision} kernels, which gain too little here"
    if reorder > max(own, rest):
        return f"{fractions}; the largest part moves values between types and layouts"
    return f"{fractions}; most of it did not run in {row.requested_precision}"


def name_measured_configurations(rows: Sequence[Row]) -> dict[str, str]:
    """Return row id -> its name, with the settings in which measured rows differ: `ort fp32, batch 8`."""
    texts = {"batch": "batch {}", "threads": "{} threads", "cache": "{} cache", "scope": "scope {}"}
    names = name_configurations(rows)
    measured = [row for row in rows if row.n] or rows
    settings = ("batch", "setup.bucket", "scope", "cache", "device", "threads")
    varied = [name for name in settings if len({attrgetter(name)(row) for row in measured}) > 1]

    def list_settings(row: Row) -> list[str]:
        # The threads of the host are no setting of what runs on a GPU.
        own = [one for one in varied if one != "threads" or row.device == "cpu"]
        return [texts.get(one, "{}").format(attrgetter(one)(row)) for one in own]

    return {row.id: ", ".join([names[row.id], *list_settings(row)]) for row in rows}


def list_warnings(document: RunDocument) -> Notes:
    """List every warning once, with the configurations that have it, and the ranges of figures in which it differs."""
    return Notes(lines=tuple((having, text) for having, text, _ in _gather_warnings(document)), kind="list")


def count_warnings(document: RunDocument) -> int:
    """Count the warnings that are not in the head already; why something was not run or failed is below the tables."""
    return sum(not (having == "all" and code in IN_HEAD) for having, _, code in _gather_warnings(document))


def _gather_warnings(document: RunDocument) -> Iterator[tuple[str, str, str]]:
    """Yield (names of the configurations that have it, the sentence, its code) for each warning."""
    names, whole = name_configurations(document.rows), name_measured_configurations(document.rows)
    rows = [row for row in document.rows if row.n]
    every = {row.id: (names[row.id], whole[row.id].removeprefix(names[row.id]).removeprefix(", ")) for row in rows}
    notes = gather_notes([(row.id, [*_list_own(row), *row.warnings]) for row in rows])
    return ((name_having(having, every), text, code) for having, text, code in notes)


def gather_notes(noted: Iterable[tuple[str, Iterable[ResultWarning | str]]]) -> Iterator[tuple[list[str], str, str]]:
    """Yield (ids that have it, the sentence, its code) for each warning in order; all made-up data of the same ids is
    one."""
    alike: dict[Hashable, list[tuple[str, ResultWarning | str]]] = {}
    for name, note in ((name, note) for name, notes in noted for note in notes):
        alike.setdefault(find_sentence(note) if isinstance(note, ResultWarning) else note, []).append((name, note))
    kinds: dict[Hashable, list[list[ResultWarning]]] = {}
    gathered: dict[Hashable, tuple[list[str], str, str]] = {}
    for key, members in alike.items():
        names, warnings = (
            [name for name, _ in members],
            [note for _, note in members if isinstance(note, ResultWarning)],
        )
        code = warnings[0].code if warnings else ""
        key = (*names,) if code in ("random_weights", "random_inputs") else key
        kinds.setdefault(key, []).append(warnings)
        gathered[key] = names, format_kinds(kinds[key]) if warnings else str(key), code
    yield from gathered.values()


def name_having(having: Iterable[str], every: Mapping[str, tuple[str, str]]) -> str:
    """Format `all`, `batch 8: all but ort fp32` or names, the shortest; "" for a single one. `every`: id -> (name,
    setting)."""
    some, named = {*having}, dict[str, str]()
    if some >= every.keys():
        return "all" if len(every) > 1 else ""
    settings = dict.fromkeys(setting for _, setting in every.values())
    for setting in settings:
        alike = [(one, name) for one, (name, own) in every.items() if own == setting]
        names, rest = (", ".join(n for one, n in alike if (one in some) == has) for has in (True, False))
        if names:
            named[setting] = min(names, f"all but {rest}", key=len) if rest else "all"
    if len(named) == len(settings) and len({*named.values()}) == 1:  # the same ones with every setting
        return named.popitem()[1]
    return "; ".join(": ".join(filter(None, pair)) for pair in named.items())


def _list_own(row: Row) -> Iterator[str]:
    """Yield remarks on a row for which there is no warning."""
    if row.status == "partial":
        yield f"not finished: {row.reason or 'not all of its trials were measured'}"
    if row.clock not in (None, "host") and not row.modelled:
        yield f"times are of the {row.clock} clock; ratios compare device clocks"
    if row.outputs == "changed":
        yield f"outputs changed: {row.outputs_reason}"
    elif row.agreement.outputs_agree is False and not row.outputs_reason.startswith(
        "random"
    ):  # which has its own warning
        yield f"outputs not judged: {row.outputs_reason}"
    if row.n and row.agreement.outputs_agree is None and row.is_reference is False:
        yield "outputs were not compared with those of another configuration"
    if row.comparison.speedup_reason:
        yield f"no ratio: {row.comparison.speedup_reason}"
