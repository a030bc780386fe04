"""Layer times of any engine, as sections and as files."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from enginebench.core.store import write_document
from enginebench.core.text import count_of
from enginebench.core.warnings import format_warning
from enginebench.report.csv_table import write_table
from enginebench.report.layer_names import fold_names
from enginebench.report.numbers import format_ms, format_significant
from enginebench.report.table import Section, Table, list_texts, make_notes, make_table
from enginebench.stats.engine_profile import EngineLayerTime, EngineProfileDocument
from enginebench.stats.layer_records import LayerGroup, ProfiledLayer

# Digits of a mean of a few runs under a profiler, which has no more.
_DIGITS = 4
# Digits of figures that a tool measured itself.
DIGITS = 5


def list_engine_profile(document: EngineProfileDocument, topk: int) -> list[Section]:
    """List the slowest layers, the time by precision, and the time outside of all layers."""
    engine = f"{document.model}, {document.engine} {document.precision}, {document.device}, batch {document.batch}"
    limited = document.bound_ms is not None
    shown = document.layers[:topk]
    lines = [
        (
            name,
            layer.type or "-",
            layer.precision or "-",
            _format_ms(layer.average_ms),
            format_share(layer.share),
            format_limit(layer.of_limit, layer.bound_by),
        )
        for layer, name in zip(shown, fold_names([layer.name for layer in shown]), strict=True)
    ]
    if document.unmapped_share is not None:
        unmapped_ms = _format_ms(document.unmapped_share * document.average_ms)
        share = format_share(document.unmapped_share)
        lines.append(("unmapped: no node of the graph", "-", "-", unmapped_ms, share, "-"))
    columns = list_texts(["layer", "type", "precision"], ["ms", "share", *(["of peak"] if limited else [])])
    texts = [*format_times(document, topk), *document.notes, *map(format_warning, document.warnings)]
    groups = list_layer_groups("precision", document.by_precision)
    return [Section(title=engine, parts=(make_table(columns, lines), groups, *make_notes(texts)))]


def format_times(document: EngineProfileDocument, topk: int) -> list[str]:
    """Format how many layers ran how often, and their sum against a run without the profiler."""
    hidden = len(document.layers) - topk
    shown = f"; {count_of(hidden, 'layers')} not shown" if hidden > 0 else ""
    waits = document.remainder_ms >= 0 and any(warning.code == "enqueue_bound" for warning in document.warnings)
    texts = [
        f"{count_of(len(document.layers), 'layers')}, "
        f"{format_ms(document.average_ms, _DIGITS)} in one run by {document.profiler}, "
        f"mean of {count_of(document.count, 'runs')}{shown}",
        f"without the profiler {format_ms(document.end_to_end_ms, _DIGITS)} "
        f"(median, {document.end_to_end_clock} clock): "
        + format_remainder(document.remainder_ms, document.end_to_end_ms)
        + (": the GPU waits for the host" if waits else ""),
    ]
    if document.bound_ms is not None:
        near = format_limit(document.of_limit, document.bound_by)
        texts.append(f"the least time by this machine's best rates is {format_ms(document.bound_ms, _DIGITS)}, {near}")
    return texts


def format_limit(of_limit: float | None, bound_by: str | None) -> str:
    """Format a fraction of the bound, and what sets the bound: `63% compute`."""
    return "-" if of_limit is None else f"{of_limit:.0%} {bound_by}"


def _format_ms(value_ms: float) -> str:
    return format_significant(value_ms, _DIGITS)


def write_engine_profile(document: EngineProfileDocument, out: Path) -> list[Path]:
    """Write profile.json, and per_layer_times.csv as `parse profile` writes it."""
    table = write_layer_times(document.layers, out / "per_layer_times.csv")
    return [write_document(document, out / "profile.json"), table]


def write_layer_times(layers: Iterable[ProfiledLayer | EngineLayerTime], path: Path) -> Path:
    """Write a line for each layer of a profile of any engine, slowest first."""
    rows = [[layer.name, layer.total_ms, layer.average_ms, layer.median_ms, layer.share] for layer in layers]
    return write_table(path, ["layer", "total_ms", "average_ms", "median_ms", "share"], rows)


def list_layer_groups(title: str, groups: Mapping[str, LayerGroup]) -> Table:
    lines = [
        (name, str(group.layers), format_layer_cell(group.average_ms), format_share(group.share))
        for name, group in groups.items()
    ]
    return make_table(list_texts([title], ["layers", "ms", "share"]), lines)


def format_layer_cell(value: float | None, digits: int = DIGITS) -> str:
    return "-" if value is None else format_significant(value, digits)


def format_remainder(remainder_ms: float, whole_ms: float | None) -> str:
    """Format the time outside of all layers, or by how much the layers add up to more than the whole."""
    if remainder_ms < 0:
        return f"the layers add up to {format_ms(-remainder_ms, _DIGITS)} more under the profiler"
    share = remainder_ms / whole_ms if whole_ms else None
    return f"{format_ms(remainder_ms, _DIGITS)} ({format_share(share)}) lie in no layer"


def format_share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
