"""The report of `stages`: the time between file and label."""

from operator import attrgetter

from msgspec.structs import replace

from enginebench.core.text import count_of
from enginebench.core.warnings import format_warning
from enginebench.report.numbers import FIVE_DIGITS, format_in_unit, format_ms, format_rate, format_significant
from enginebench.report.table import Column, Section, list_texts, make_notes, make_table
from enginebench.stats.stages import StagesDocument

NAMES = {
    "decode": "decode JPEG",
    "preprocess": "resize, normalise",
    "copy_in": "copy in",
    "compute": "compute",
    "copy_out": "copy out",
    "postprocess": "top 5",
}
_COLUMNS = (
    Column("stage", attrgetter("name")),
    Column("p50 ms", lambda stage: format_in_unit(stage.p50_ms, "ms"), attrgetter("p50_ms"), align="decimal"),
    Column("p99 ms", lambda stage: format_in_unit(stage.p99_ms, "ms"), attrgetter("p99_ms"), align="decimal"),
    Column("share", lambda stage: f"{stage.share:.0%}", attrgetter("share"), align="right", bar=True),
)


def name_stages(document: StagesDocument) -> dict[str, str]:
    """Return stage -> its name, with the device where that is not the host. A model of bytes normalises in its
    graph."""
    names = NAMES | ({"preprocess": "resize", "compute": "normalise, compute"} if document.takes_bytes else {})
    where = "" if document.device == "cpu" else f" ({document.device})"
    on_device = ("copy_in", "compute", "copy_out")
    return {name: text + where if name in on_device else text for name, text in names.items()}


def list_stages(*measured: StagesDocument) -> list[Section]:
    """List several engines side by side, then each."""
    documents = [one for document in measured for one in (document, *document.others)]
    if not documents:
        return []
    names = [f"{one.engine} {one.precision}, batch {one.batch}" for one in documents]
    names_of_stages = name_stages(documents[0]).values()
    times = [(name, [one.stages[i].p50_ms for one in documents]) for i, name in enumerate(names_of_stages)]
    times.append(("from file to label", [one.total_p50_ms for one in documents]))
    rates = [
        ("images/s, one after another", [one.serial_per_s for one in documents]),
        ("images/s, overlapped", [one.overlapped_per_s for one in documents]),
    ]
    texts = [(name, *(format_in_unit(value, "ms") for value in values)) for name, values in times]
    texts += [(name, *map(format_rate, values)) for name, values in rates]
    table = make_table(list_texts(["p50 ms of a batch"], names), texts, file="stages-compared")
    together = [Section(title="From file to label", parts=(table,))] if len(documents) > 1 else []
    return [*together, *map(_list_one, documents)]


def _list_one(document: StagesDocument) -> Section:
    """List the time from file to label and what bounds the rate, then a line for each stage, and the warnings."""
    title = f"{document.model}, {document.engine} {document.precision}, {document.device}, batch {document.batch}"
    p50, p99 = map(format_ms, (document.total_p50_ms, document.total_p99_ms))
    whole = f"from file to label: p50 {p50}, p99 {p99}"
    texts = [*format_rates(document), *map(format_warning, document.warnings)]
    names = name_stages(document)
    stages = [replace(stage, name=names.get(stage.name, stage.name)) for stage in document.stages]
    table = make_table(_COLUMNS, stages, file="stages")
    return Section(title=title, parts=(*make_notes([whole]), table, *make_notes(texts)))


def format_rates(document: StagesDocument) -> list[str]:
    """List sentences: one after another, overlapped, what each side could do alone, and the copies by the device's
    clock."""
    sizes = document.image_bytes
    unit, bytes_of_unit = ("MB", 1e6) if sizes["max"] >= FIVE_DIGITS * 1000 else ("kB", 1e3)
    smallest, largest = (format_significant(sizes[name] / bytes_of_unit) for name in ("min", "max"))
    bounds = document.bounds_per_s
    slower = min(bounds, key=lambda name: bounds[name])
    lanes = f"{count_of(document.lanes, 'batches')} on their way" if document.lanes > 1 else "one batch at a time"
    sentences = [
        f"{document.n_images} images ({document.images}), {smallest} to {largest} {unit}.",
        f"One stage after another: {format_rate(document.serial_per_s)} images per second.",
        f"Overlapped ({document.decoders} decoding threads, {lanes}): "
        f"{format_rate(document.overlapped_per_s)} a second, {document.overlap_gain:.2f} times as many.",
        f"Alone, decoding and preprocessing could do {format_rate(bounds['decode_and_preprocess'])} a second and the "
        f"engine {format_rate(bounds['engine'])}: the bound is {slower.replace('_', ' ')}.",
    ]
    if (times := document.device_times) is not None:
        parts = {"copy in": times.h2d_ms, "compute": times.compute_ms, "copy out": times.d2h_ms}
        whole = sum(parts.values()) or 1.0
        listed = ", ".join(f"{name} {format_ms(ms)} ({ms / whole:.0%})" for name, ms in parts.items())
        sentences.append(f"By the GPU's own clock: {listed}.")
    return sentences
