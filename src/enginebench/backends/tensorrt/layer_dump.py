"""The layers that a builder logs ahead of time, one a line, as the JSON that the engine inspector writes with a GPU."""

from __future__ import annotations

import json
import re

from enginebench.backends.tensorrt.library import LAYERS

# What stands before each value of a line. Names of layers may hold commas, colons and brackets; not these.
_TENSORS = ("Inputs", "Constants", "Outputs")
_FIELD = re.compile(rf", ({'|'.join(('LayerType', *_TENSORS, 'TacticName', 'StreamId', 'Metadata'))}): ")
_AXES = r"Dimensions: \[(?P<axes>[-\d,]*)\]"
_TENSOR = re.compile(rf"\{{ Name: (?P<Name>.*?), {_AXES},.*?Datatype: (?P<Datatype>\w+)")
_BINDING = re.compile(rf" Name: (?P<Name>.*?), IOMode: (?P<IOMode>\w+), DataType: (?P<Datatype>\w+), {_AXES}")


def read_dump(message: str) -> str:
    """The inspector's JSON of the message that begins with `Layers:`, in which each line is a layer."""
    lines, _, rest = message.removeprefix(LAYERS).partition("\nI/O Tensors:\n")
    layers = [read_line(line) for line in lines.splitlines() if line.startswith("Name: ")]
    bindings = [_read_tensor(found) for line in rest.splitlines() if (found := _BINDING.match(line))]
    return json.dumps({"Layers": layers, "I/O Tensors": bindings}, indent=1)


def read_line(line: str) -> dict[str, object]:
    """One layer of `Name: .., LayerType: .., Inputs: [ { Name: .., .. }], ..`."""
    name, *rest = _FIELD.split(line.removeprefix("Name: "))
    fields: dict[str, str] = dict(zip(rest[::2], rest[1::2], strict=True))
    tensors = {key: [_read_tensor(found) for found in _TENSOR.finditer(fields.get(key, ""))] for key in _TENSORS}
    return {"Name": name, **fields, **tensors}


def _read_tensor(found: re.Match[str]) -> dict[str, object]:
    named: dict[str, str] = found.groupdict()
    axes = named.pop("axes")
    return {**named, "Dimensions": [int(axis) for axis in axes.split(",") if axis]}
