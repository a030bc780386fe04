"""The classes of the first pictures of a run, by its first configuration and by the fastest one."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from enginebench.core.errors import EngineBenchError
from enginebench.core.protocols import Array
from enginebench.core.text import clean_text, count_of
from enginebench.models.precision.calibration_data import open_data
from enginebench.models.zoo import find_labels
from enginebench.report.run.head import format_name
from enginebench.report.run.rows import RunDocument
from enginebench.runs.child.arrays import load_outputs
from enginebench.runs.folder import RunFolder, RunRecord
from enginebench.runs.targets.sources import choose_data

PICTURES = 6


def format_top_classes(folder: RunFolder, record: RunRecord, document: RunDocument) -> Iterator[str]:
    """Format the top classes; nothing where classes have no names, weights are random, or there are no pictures."""
    labels, request, sources = find_labels(record.request.model), record.request, record.sources
    if not labels or not document.headlines or any(source.weights == "random" for source in sources):
        return
    # Where the reference was the graph itself, the first measured configuration is shown in its place.
    firsts = [row.id for row in document.rows if row.is_reference] or [row.id for row in document.rows if row.n][:1]
    ids = [*firsts, document.headlines[0].id][-2:]
    shown = {
        row.id: format_name(row) for configuration_id in ids for row in document.rows if row.id == configuration_id
    }
    try:
        names = open_data(
            choose_data(request) or "fake",
            model=request.model,
            inputs=sources[-1].inputs,
            n=PICTURES,
            seed=request.measure.seed,
            input_size=request.input_size,
            split="evaluate",
        ).names
        yield from format_columns(folder, shown, labels, names or ())
    except EngineBenchError:  # of a run whose data are gone, or which keeps no outputs
        return


def format_columns(
    folder: RunFolder, shown: Mapping[str, str], labels: Sequence[str], names: Sequence[str]
) -> Iterator[str]:
    """The best class of each picture for each configuration of `shown` (id -> title), and on how many all agree."""
    scores_by_title = [_read_scores(folder, configuration_id, len(labels)) for configuration_id in shown]
    if not names or not scores_by_title or any(not len(scores) for scores in scores_by_title):
        return
    columns = [("Top class", *names)]
    for title, scores in zip(shown.values(), scores_by_title, strict=True):
        best = scores[: len(names)].argmax(axis=1)
        columns.append((title, *(f"{labels[index]} {scores[i, index]:.0%}" for i, index in enumerate(best))))
    widths = [max(map(len, column)) for column in columns]
    for cells in zip(*columns, strict=False):
        yield clean_text("   ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
    if len(scores_by_title) > 1:
        n = min(map(len, scores_by_title))
        same = np.equal(*(scores[:n].argmax(axis=1) for scores in scores_by_title)).sum()
        yield f"The same class on {same} of {count_of(n, 'images')}"


def _read_scores(folder: RunFolder, configuration_id: str, classes: int) -> Array:
    """Probabilities [pictures, classes] of a configuration's outputs; [0, classes] if they are of another shape."""
    outputs: Any = next(iter(load_outputs(folder.find_outputs(configuration_id))[0].values()), None)
    if outputs is None or outputs.ndim != 2 or outputs.shape[1] != classes:
        return np.zeros((0, classes))
    if outputs.min() >= 0 and np.allclose(outputs.sum(axis=1), 1, atol=1e-2):
        return np.asarray(outputs)
    raised = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))
