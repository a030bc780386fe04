"""An ONNX graph with the axes that a user named the length of, so that every engine runs and builds for that shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from onnx import ModelProto, ValueInfoProto

from enginebench.core.records import Artifact, TensorSpec
from enginebench.core.shapes import match_axes
from enginebench.core.store import write_atomic
from enginebench.models.onnx_source import load_graph, read_onnx


def fix_axes(source: Artifact, shapes: Mapping[str, tuple[int, ...]]) -> Artifact:
    """The graph with its open axes fixed to `shapes`, saved beside `source`; an open first axis stays: it is the batch.

    Args:
        source: an ONNX artefact.
        shapes: input name to whole shape; inputs that are not named stay as they are.

    Raises:
        UsageError: an input is unknown, or a shape contradicts the graph.
    """
    lengths = match_axes(source.inputs, shapes)
    if not lengths:
        return source
    path = Path(source.path)
    model = load_graph(path)
    _fix(model, source.inputs, lengths)
    # Beside the original: weights in external data are found relative to the file.
    target = path.with_name(f"{path.stem}.fixed{path.suffix}")
    write_atomic(target, model.SerializeToString())
    fixed = read_onnx(target)
    told = ", ".join(f"{axis}={length}" for axis, length in lengths.items())
    return replace(fixed, path=str(target), model=source.model, made_by={**source.made_by, "axes": told})


def _fix(model: ModelProto, inputs: Sequence[TensorSpec], lengths: Mapping[str, int]) -> None:
    """Writes the lengths into the graph. An input's axis without a name of its own goes by that of the artefact."""
    names = {spec.name: spec.shape for spec in inputs}
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for place, axis in enumerate(_list_axes(value)):
            name = axis.dim_param
            if not name and axis.dim_value <= 0 and value.name in names:
                name = str(names[value.name][place])
            if name in lengths:
                axis.dim_value = lengths[name]


def _list_axes(value: ValueInfoProto) -> Iterator[Any]:
    yield from value.type.tensor_type.shape.dim
