"""Layer times of any engine, for a terminal of 80 columns and as files."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from enginebench.analyze.limits.layers import EngineProfileDocument
from enginebench.analyze.trtexec.records import ProfileDocument
from enginebench.core.caveats import format_caveat
from enginebench.core.text import clean_text, count_of
from enginebench.report.layer_names import fold_names
from enginebench.report.numbers import format_significant
from enginebench.report.trtexec.files import write_document, write_layer_times
from enginebench.report.trtexec.terminal import build_groups, format_share, make_table, say

# Of 80 columns; longer names take more lines.
_NAME_WIDTH = 38
_TYPE_WIDTH = 14
_LIMIT_WIDTH = 16
# A mean of a few runs under a profiler has no more.
_DIGITS = 4


def render_engine_profile(document: EngineProfileDocument, topk: int) -> RenderableType:
    """The slowest layers, the time by precision, and what no layer explains.

    Args:
        document: of the profile.
        topk: layers shown.
    """
    engine = f"{document.model}, {document.engine} {document.precision}, {document.device}, batch {document.batch}"
    limited = document.bound_ms is not None
    table = make_table(["layer", "type", "precision"], ["ms", "share", *(["of limit"] if limited else [])])
    table.columns[0].max_width = _NAME_WIDTH - (_LIMIT_WIDTH if limited else 0)
    table.columns[1].max_width = _TYPE_WIDTH
    shown = document.layers[:topk]
    for layer, name in zip(shown, fold_names([layer.name for layer in shown]), strict=True):
        texts = [name, layer.type or "-", layer.precision or "-"]
        cells = [_format_ms(layer.average_ms), format_share(layer.share)]
        table.add_row(*map(say, texts), *cells, *([format_limit(layer.of_limit, layer.bound_by)] if limited else []))
    if document.unmapped_share is not None:
        note = [say("unmapped: no node of the graph"), say("-"), say("-")]
        unmapped_ms = document.unmapped_share * document.average_ms
        table.add_row(
            *note, _format_ms(unmapped_ms), format_share(document.unmapped_share), *(["-"] if limited else [])
        )
    parts: list[RenderableType] = [Text(clean_text(engine), style="bold"), table, Text("")]
    parts += [build_groups("precision", document.by_precision), Text("")]
    parts += [say(sentence) for sentence in describe_times(document, topk)]
    doubts = [format_caveat(caveat) for caveat in document.caveats]
    return Group(*parts, *(say(note) for note in (*document.notes, *doubts)))


def describe_times(document: EngineProfileDocument, topk: int) -> list[str]:
    """Sentences: how many layers in how many runs, and their sum against a run without the profiler."""
    hidden = len(document.layers) - topk
    shown = f"; {count_of(hidden, 'layers')} not shown" if hidden > 0 else ""
    share = document.remainder_ms / document.end_to_end_ms if document.end_to_end_ms else None
    unexplained = f"{_format_ms(document.remainder_ms)} ms ({format_share(share)}) lie in no layer"
    if any(caveat.code == "enqueue_bound" for caveat in document.caveats):
        unexplained += ": the GPU waits for the host"
    cost = f"{_format_ms(-document.remainder_ms)} ms less than under the profiler"
    limit = []
    if document.bound_ms is not None:
        limit = [
            f"the least time by this machine's best rates is {_format_ms(document.bound_ms)} ms, "
            f"{format_limit(document.of_limit, document.bound_by)}"
        ]
    return [
        f"{count_of(len(document.layers), 'layers')}, "
        f"{_format_ms(document.average_ms)} ms in one run by {document.profiler}, "
        f"mean of {count_of(document.count, 'runs')}{shown}",
        f"without the profiler {_format_ms(document.end_to_end_ms)} ms (median, {document.end_to_end_clock} clock): "
        + (unexplained if document.remainder_ms >= 0 else cost),
        *limit,
    ]


def format_limit(of_limit: float | None, bound_by: str | None) -> str:
    """`63% compute`: how near something is to its bound, and what sets that."""
    return "-" if of_limit is None else f"{of_limit:.0%} {bound_by}"


def _format_ms(value_ms: float) -> str:
    return format_significant(value_ms, _DIGITS)


def write_engine_profile(document: EngineProfileDocument, profile: ProfileDocument, out: Path) -> list[Path]:
    """profile.json, and per_layer_times.csv as `parse profile` writes it.

    Args:
        document: of the profile.
        profile: the same layers.
        out: a folder; it is made.
    """
    table = write_layer_times(profile, out / "per_layer_times.csv")
    return [write_document(document, out / "profile.json"), table]
