"""Where the time goes from file to label, for a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from enginebench.analyze.stages import StagesDocument
from enginebench.core.caveats import format_caveat
from enginebench.core.text import clean_text, count_of
from enginebench.report.numbers import format_significant

NAMES = {
    "decode": "decode JPEG",
    "preprocess": "resize, normalise",
    "copy_in": "copy in",
    "compute": "compute",
    "copy_out": "copy out",
    "postprocess": "top 5",
}
BAR_WIDTH = 24


def print_stages(document: StagesDocument, console: Console) -> None:
    """Prints the table of stages, the rates, what bounds them, and what is doubtful."""
    title = f"{document.model}, {document.engine} {document.precision}, {document.device}, batch {document.batch}"
    table = build_stages_table(document)
    doubts = map(format_caveat, document.caveats)
    sentences = [Text(clean_text(sentence)) for sentence in (*describe_rates(document), *doubts)]
    console.print(Group(Text(clean_text(title), style="bold"), table, *sentences))


def build_stages_table(document: StagesDocument) -> Table:
    """One line a stage, with a bar for its share of the mean, and the sum."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("stage", "p50 ms", "p99 ms", "share", ""):
        table.add_column(name, justify="left" if name in ("stage", "") else "right")
    for stage in document.stages:
        bar = "#" * round(BAR_WIDTH * stage.share)
        times = (format_significant(stage.p50_ms, 3), format_significant(stage.p99_ms, 3))
        table.add_row(NAMES[stage.name], *times, f"{stage.share:.0%}", bar)
    totals = (format_significant(document.total_p50_ms, 3), format_significant(document.total_p99_ms, 3))
    table.add_row("file to label", *totals, "", "")
    return table


def describe_rates(document: StagesDocument) -> list[str]:
    """Sentences: one after another, overlapped, what each side could do alone, and the copies by the device's clock."""
    sizes = document.image_bytes
    bounds = document.bounds_per_s
    slower = min(bounds, key=lambda name: bounds[name])
    lanes = f"{count_of(document.lanes, 'batches')} on their way" if document.lanes > 1 else "one batch at a time"
    sentences = [
        f"{document.n_images} pictures ({document.images}), {sizes['min'] // 1000} to {sizes['max'] // 1000} kB.",
        f"One stage after another: {document.serial_per_s:.0f} pictures a second.",
        f"Overlapped ({document.decoders} decoding threads, {lanes}): "
        f"{document.overlapped_per_s:.0f} a second, {document.overlap_gain:.2f} times as many.",
        f"Alone, decoding and preprocessing could do {bounds['decode_and_preprocess']:.0f} a second and the engine "
        f"{bounds['engine']:.0f}: the bound is {slower.replace('_', ' ')}.",
    ]
    if (times := document.device_times) is not None:
        sentences.append(
            f"By the GPU's own clock: copy in {times.h2d_ms:.3f} ms, compute {times.compute_ms:.3f} ms, copy out "
            f"{times.d2h_ms:.3f} ms."
        )
    return sentences
