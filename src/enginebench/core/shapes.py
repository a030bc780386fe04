"""Shapes of inputs: which axes are open, and what a user's shapes make of them. Without NumPy: a dry run needs this."""

import re
from collections.abc import Mapping, Sequence
from math import prod

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.engine_api import concrete_shape as concrete_shape
from enginebench.core.engine_api import default_shape, pad_length
from enginebench.core.engine_api import find_batch_axes as find_batch_axes
from enginebench.core.engine_api import fits_shape as fits_shape
from enginebench.core.engine_api import format_shape as format_shape
from enginebench.core.errors import UsageError
from enginebench.core.records import Artifact, EngineSpec, TensorSpec, TrafficCell

# The name of a first axis that takes any number of entries.
BATCH_AXIS = "batch"
# The option of an ENGINE that pads the shapes of a mix, and its value besides a multiple of lengths.
PAD, LARGEST = "pad", "largest"
# The option of a TensorRT engine with the shapes that a finished plan runs with.
PLAN_SHAPES = "shapes"
# Axes between commas, up to the end, to the next of min/opt/max or to the next name.
_COMMAS = re.compile(r"(?<=[:/])\s*\d+(?:\s*,\s*\d+)+(?=\s*(?:$|/|,[^,]*:))")
# Inputs, and shapes of a mix, that a heading lists; a decoder with a cache has fifty.
_SHOWN = 4


def join_axes(text: str) -> str:
    """Shapes with an x between their axes, where they are all written as trtexec's users do: `NAME:1,3,8,8`."""
    return _COMMAS.sub(lambda match: "x".join(map(str.strip, match[0].split(","))), text)


def find_size(engine: EngineSpec) -> tuple[int, str]:
    """Return (batch, shapes where a run has several, or its mix); configurations that differ here do different work."""
    return engine.batch, format_bucket(engine)


def format_bucket(engine: EngineSpec) -> str:
    """Format the shapes of a configuration where a run has several; a mix as `--traffic` takes it."""
    return format_traffic(engine.traffic) if engine.traffic else format_shapes(engine.shapes)


def name_size(engine: EngineSpec) -> str:
    """Name what a call of a configuration takes: `batch 8`, `batch 1, ids:1x128`, or its mix."""
    return format_mix(engine.traffic) or ", ".join(filter(None, (f"batch {engine.batch}", format_bucket(engine))))


def format_traffic(cells: Sequence[TrafficCell]) -> str:
    """Format a mix of requests: `batch=1:0.7,batch=8:0.3`."""
    return ",".join(f"{name}:{cell.weight:.3g}" for name, cell in zip(name_cells(cells), cells, strict=True))


def format_mix(cells: Sequence[TrafficCell]) -> str:
    """Format a mix for a heading: `batch=1:0.7,batch=8:0.3`; of more shapes than a line holds their number."""
    return format_traffic(cells) if len(cells) <= _SHOWN else f"mix of {len(cells)} shapes"


def format_whole_traffic(cells: Sequence[TrafficCell]) -> str:
    """Format a mix with the shapes of all inputs: `ids:1x8,mask:1x8:0.5; ids:1x16,mask:1x16:0.5`.

    Unlike `format_traffic` it is equal for equal mixes alone: axes that all cells of a mix share stand there, too.
    """
    return "; ".join(f"{format_shapes(cell.shapes) or f'batch={cell.batch}'}:{cell.weight:.9g}" for cell in cells)


def name_cells(cells: Sequence[TrafficCell]) -> list[str]:
    """Name each cell of a mix, no two alike: `batch=8`, or the shape of the inputs that differ between cells, `1x128`.

    Where those have several shapes, each stands there, in the order of the inputs: `1x3x4+1x8x4`.
    """
    names = list(dict.fromkeys(name for cell in cells for name in cell.shapes))
    varied = [name for name in names if len({cell.shapes.get(name) for cell in cells}) > 1] or names
    if not varied:
        return [f"batch={cell.batch}" for cell in cells]
    shapes = [[format_shape(cell.shapes.get(name, ())) for name in varied] for cell in cells]
    alike = all(len(set(own)) == 1 for own in shapes)
    return ["+".join(own[:1] if alike else own) for own in shapes]


def list_cells(engine: EngineSpec) -> list[EngineSpec]:
    """Return the engine for each shape that it serves: of a mix one for each cell, else itself."""
    cells = engine.traffic
    return [replace(engine, batch=cell.batch, shapes=cell.shapes, traffic=()) for cell in cells] or [engine]


def find_padding(engine: EngineSpec, inputs: Sequence[TensorSpec]) -> dict[str, tuple[int, int]]:
    """Return {axis: (multiple, longest)} by which a configuration pads the shapes of its mix; {} if it does not.

    `pad=N` pads the lengths in which the shapes differ, `pad=largest` these and the batch.
    """
    pad, places = engine.options.get(PAD, ""), find_batch_axes(inputs)
    lengths: dict[str, set[int]] = {}
    for cell in list_cells(engine) if pad else ():
        for spec in inputs:
            shape = cell.shapes.get(spec.name) or concrete_shape(spec, cell.batch)
            for i, axis in enumerate(spec.shape):
                if isinstance(axis, str) and (pad == LARGEST or i != places[spec.name]):
                    lengths.setdefault(axis, set()).add(shape[i])
    varied = {axis: max(own) for axis, own in lengths.items() if len(own) > 1}
    return {axis: (longest if pad == LARGEST else int(pad), longest) for axis, longest in varied.items()}


def pad_cells(engine: EngineSpec, inputs: Sequence[TensorSpec]) -> list[EngineSpec]:
    """Return the engine for each shape that it serves, as `list_cells` does, in the shape that it is padded to."""
    padding, places = find_padding(engine, inputs), find_batch_axes(inputs)

    def pad(cell: EngineSpec) -> EngineSpec:
        batch, shapes = cell.batch, dict(cell.shapes)
        for spec in inputs:
            old = shapes.get(spec.name) or concrete_shape(spec, cell.batch)
            pairs = zip(spec.shape, old, strict=True)
            new = tuple(pad_length(n, *padding[str(axis)]) if axis in padding else n for axis, n in pairs)
            if (place := places[spec.name]) is not None:
                batch = new[place]
            if shapes:
                shapes[spec.name] = new
        return replace(cell, batch=batch, shapes=shapes)

    return [pad(cell) for cell in list_cells(engine)] if padding else list_cells(engine)


def measure_padding(engine: EngineSpec, inputs: Sequence[TensorSpec]) -> float:
    """Return how many times as many input values a mean request has after padding."""

    def count(cells: Sequence[EngineSpec]) -> float:
        shapes = ([cell.shapes.get(s.name) or concrete_shape(s, cell.batch) for s in inputs] for cell in cells)
        weights = [cell.weight for cell in engine.traffic]
        return sum(weight * sum(map(prod, own)) for weight, own in zip(weights, shapes, strict=True))

    return count(pad_cells(engine, inputs)) / (count(list_cells(engine)) or 1.0)


def explain_no_padding(engine: EngineSpec, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str | None:
    """Return why a configuration cannot pad the shapes of its mix, and cut its outputs back; None if it can."""
    if not find_padding(engine, inputs):
        return (
            f"{PAD}={engine.options[PAD]} has nothing to pad: in the shapes of --traffic no length differs; a batch is "
            f"padded by {PAD}={LARGEST}"
        )
    opened = sorted(find_open_outputs(inputs, outputs))
    if opened:
        axes = ", ".join(f"{spec.name} ({format_shape(spec.shape)})" for spec in outputs if spec.name in opened)
        return f"outputs of padded inputs could not be cut back: no input has all dynamic axes of {axes}"
    return None


def count_entries(engine: EngineSpec) -> float:
    """Return the entries of a call; of a mix, of its mean request."""
    return sum(cell.weight * cell.batch for cell in engine.traffic) or engine.batch


def size_artifact(artifact: Artifact, engine: EngineSpec) -> Artifact:
    """The artifact with the inputs of the engine's batch and shapes; a PyTorch module takes them along any axis."""
    shapes = engine.shapes
    if artifact.kind != "torch":
        return replace(artifact, inputs=size_axes(artifact.inputs, shapes)) if shapes else artifact
    sized = batch_artifact(artifact, engine.batch)
    inputs = ((s, (*s.shape[:1], *shapes.get(s.name, s.shape)[1:])) for s in sized.inputs)
    return replace(sized, inputs=tuple(replace(s, shape=shape) for s, shape in inputs))


def batch_artifact(source: Artifact, batch: int) -> Artifact:
    """Return the artifact with `batch` in its shapes: a PyTorch module takes any batch."""
    if source.kind != "torch" or not source.inputs or not source.inputs[0].shape or takes_whole(source.inputs):
        return source
    built = source.inputs[0].shape[0]

    def rebatch(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(replace(s, shape=(batch, *s.shape[1:])) if s.shape[:1] == (built,) else s for s in specs)

    return replace(source, inputs=rebatch(source.inputs), outputs=rebatch(source.outputs))


def open_artifact(artifact: Artifact, engine: EngineSpec) -> Artifact:
    """The artifact with the axes open in which the cells of a mix differ, as a graph has them."""
    if artifact.kind != "torch":
        return artifact
    sides = [size_artifact(artifact, cell) for cell in list_cells(engine)]

    def widen(columns: Sequence[TensorSpec]) -> TensorSpec:
        shape: list[int | str] = []
        for index, lengths in enumerate(zip(*(spec.shape for spec in columns), strict=True)):
            if len(set(lengths)) == 1:
                shape.append(lengths[0])
            else:
                shape.append(name_axis(columns[0].name, index))
        sizes = tuple(axis if i and isinstance(axis, int) else 0 for i, axis in enumerate(columns[0].shape))
        return replace(columns[0], shape=tuple(shape), sizes=sizes)

    return replace(
        artifact,
        inputs=tuple(widen(column) for column in zip(*(side.inputs for side in sides), strict=True)),
        outputs=tuple(widen(column) for column in zip(*(side.outputs for side in sides), strict=True)),
    )


def find_own_batch(module: Artifact) -> int | None:
    """The only batch that a PyTorch model takes; None if it takes others, or has no batch."""
    return next((shapes.smallest[0] for shapes in module.allowed.values()), None) if module.kind == "torch" else None


def explain_own_batch(model: str, own: int, batch: int) -> str:
    """Explain that a PyTorch model takes one batch only, which is not the requested."""
    return f"{model} takes a batch of {own} only, not {batch}: give --batch {own}"


def find_built_batch(module: Artifact) -> int:
    """The batch of the inputs that a PyTorch model was described with; 1 of one that takes no batch."""
    first = next((spec.shape[0] for spec in module.inputs[:1] if spec.shape), 1)
    return first if isinstance(first, int) else 1


def free_batch(artifact: Artifact) -> Artifact:
    """The artifact; a PyTorch one takes any batch, whatever it was built with, unless it fixes one."""
    built = next((spec.shape[0] for spec in artifact.inputs[:1] if spec.shape), "")
    # Of a PyTorch model with an open first axis no axis is a batch.
    if artifact.kind != "torch" or isinstance(built, str) or find_own_batch(artifact):
        return artifact

    def free(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(replace(s, shape=(BATCH_AXIS, *s.shape[1:])) if s.shape[:1] == (built,) else s for s in specs)

    return replace(artifact, inputs=free(artifact.inputs), outputs=free(artifact.outputs))


def find_plan_batch(plan: Artifact) -> int | None:
    """The batch that the profile of a finished plan is tuned for; None where that is not known, or there is none."""
    shapes = (allowed.best or allowed.smallest for allowed in plan.allowed.values())
    return next((shape[0] for shape in shapes if shape), None)


def takes_whole(inputs: Sequence[TensorSpec]) -> bool:
    """Whether the inputs have no batch, so that they are fed in the lengths of their examples."""
    return any(isinstance(spec.shape[0], str) for spec in inputs[:1] if spec.shape) and not any(
        axis is not None for axis in find_batch_axes(inputs).values()
    )


def find_open_outputs(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> set[str]:
    """The outputs with an axis whose length no input shows: it depends on the values."""
    input_axes = {BATCH_AXIS, *(axis for spec in inputs for axis in spec.shape)}
    return {
        spec.name for spec in outputs if any(isinstance(axis, str) and axis not in input_axes for axis in spec.shape)
    }


def size_axes(specs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]]) -> tuple[TensorSpec, ...]:
    """The specs with the lengths that these shapes give their open axes; the axes stay open."""
    lengths, batch_axes = match_axes(specs, shapes), find_batch_axes(specs)

    def size(spec: TensorSpec) -> TensorSpec:
        pairs = enumerate(zip(spec.shape, default_shape(spec), strict=False))
        sizes = tuple(
            0 if isinstance(axis, int) or i == batch_axes[spec.name] else lengths.get(axis, old)
            for i, (axis, old) in pairs
        )
        return replace(spec, sizes=sizes) if any(sizes) else spec

    return tuple(map(size, specs))


def carry_specs(parent: Sequence[TensorSpec], made: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return the specs of a graph made from another, with axis names, sizes and values of the other's specs."""
    parent_specs = {spec.name: spec for spec in parent}
    whole = parent[0].name if takes_whole(parent) else None  # its first axis is no batch in what was made either

    def carry(spec: TensorSpec) -> TensorSpec:
        old = parent_specs.get(spec.name)
        if old is None or len(old.shape) != len(spec.shape):
            return spec
        kept = old.shape[: int(spec.name == whole)]
        pairs = zip(old.shape, (*kept, *spec.shape[len(kept) :]), strict=True)
        shape = tuple(was if isinstance(was, str) and isinstance(now, str) else now for was, now in pairs)
        return replace(spec, shape=shape, sizes=old.sizes, values=old.values, widest=old.widest)

    return tuple(map(carry, made))


# What tools write for an axis without a name.
NAMELESS = ("", "?", "-1", "None", "*")


def name_axis(name: str, index: int) -> str:
    """The name of an open axis of a tensor, if its graph gives it none."""
    return BATCH_AXIS if index == 0 else f"{name}_axis{index}"


def name_axes(name: str, axes: Sequence[int | str]) -> tuple[int | str, ...]:
    """The axes of a tensor, each open one with a name of its own where the graph gives none.

    Some tools write the same for every axis that they do not know: "?", or the name that the first axis has.
    """
    named: list[int | str] = []
    for i, axis in enumerate(axes):
        repeats_first = i > 0 and isinstance(axis, str) and axis == axes[0]
        if axis in NAMELESS or repeats_first:
            named.append(name_axis(name, i))
        else:
            named.append(axis)
    return tuple(named)


def match_axes(
    specs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]], batches: Mapping[str, int | None] | None = None
) -> dict[str, int]:
    """{name of a dynamic axis: its length in `shapes`}, without those of `batches`, {input name: its batch axis}."""
    expected = {spec.name: spec.shape for spec in specs}
    batch_axes = find_batch_axes(specs) if batches is None else batches
    lengths: dict[str, int] = {}
    for name, shape in shapes.items():
        text = f"--input-shape {name}:{format_shape(shape)}"
        if name not in expected:
            raise UsageError(f"{text}: no such input; the inputs are {', '.join(expected)}")
        if not fits_shape(expected[name], shape):
            raise UsageError(f"{text}: the model takes {format_shape(expected[name])}")
        for index, (axis, length) in enumerate(zip(expected[name], shape, strict=True)):
            if index == batch_axes[name] or not isinstance(axis, str):
                continue
            if lengths.setdefault(axis, length) != length:
                raise UsageError(f"{text}: axis {axis!r} is {lengths[axis]} elsewhere, and {length} here")
    shared = {spec.shape[i] for spec in specs if (i := batch_axes[spec.name]) is not None}
    return {axis: length for axis, length in lengths.items() if axis not in shared}


def fix_shapes(specs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]]) -> tuple[TensorSpec, ...]:
    """The specs with the axes that `match_axes` finds the length of."""
    lengths = match_axes(specs, shapes)
    return tuple(
        replace(spec, shape=tuple(lengths.get(axis, axis) if isinstance(axis, str) else axis for axis in spec.shape))
        for spec in specs
    )


def format_input_shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The shapes that were timed: `1x3x224x224` of one input, `ids 1x128, mask 1x128` of more."""
    texts = [format_shape(shape) for shape in shapes.values()]
    if len(texts) == 1:
        return texts[0]
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(f"{name} {shape}" for name, shape in list(zip(shapes, texts, strict=True))[:_SHOWN]) + more


def format_shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Shapes as trtexec reads them; a name with a colon, comma or space stands in single quotation marks."""
    return ",".join(f"{quote_name(name)}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())


def read_shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Read shapes as `format_shapes` writes them, and as trtexec's users write them; names may contain colons."""
    shapes: dict[str, tuple[int, ...]] = {}
    for piece in re.findall(r"(?:'[^']*'|[^,])+", join_axes(text)):  # a comma in a name stands between quotation marks
        name, _, dims = piece.rpartition(":")
        shapes[name.strip().strip("'")] = read_dims(dims, piece)
        if not name:
            raise UsageError(f"shape {piece!r}: expected NAME:1x3x224x224")
    return shapes


def read_dims(text: str, piece: str) -> tuple[int, ...]:
    """Read `1x3x224x224`, of the text `piece`."""
    dims = text.split("x")
    if not all(d.isdecimal() for d in dims):
        raise UsageError(f"shape {piece!r}: {text!r} is not of the form 1x3x224x224")
    return tuple(map(int, dims))


def set_plan_shapes(engine: EngineSpec, shapes: Mapping[str, tuple[int, ...]] | None) -> EngineSpec:
    """Return the engine with the shapes that a finished plan runs with, unless it names its own.

    As in the shapes of a graph, a leading 1 stands for the batch. Only TensorRT can read the inputs of a plan. So the
    shapes are an option of the engine, which a user may give, too, and which results store. `find_plan_shapes` reads
    it.
    """
    if not shapes:
        return engine
    if all(shape[0] == 1 for shape in shapes.values()):
        shapes = {name: (engine.batch, *shape[1:]) for name, shape in shapes.items()}
    return replace(engine, options={PLAN_SHAPES: format_shapes(shapes), **engine.options})


def find_plan_shapes(options: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes that a finished plan runs with, by the options of its engine; {}: those of its profile."""
    return read_shapes(options.get(PLAN_SHAPES, ""))


def drop_plan_shapes(engine: EngineSpec) -> EngineSpec:
    """Return the engine without shapes for the inputs of a plan; other engines have an option of that name, too."""
    if ":" not in engine.options.get(PLAN_SHAPES, ""):
        return engine
    return replace(engine, options={key: value for key, value in engine.options.items() if key != PLAN_SHAPES})


def quote_name(name: str) -> str:
    """A tensor's name as trtexec reads it inside a list."""
    return name if re.fullmatch(r"[\w./\-]+", name) else f"'{name}'"


class TensorWork(Struct, frozen=True, kw_only=True):
    """The size of one tensor of a graph whose work is counted: how many values, in how many bytes each."""

    values: int
    bytes_each: float
    floating: bool = True  # an engine may keep it in a shorter type

    def count_bytes(self, widest: float | None = None) -> float:
        """Bytes of the tensor where no value takes more than `widest`; whole numbers stay as they are."""
        each = self.bytes_each if widest is None or not self.floating else min(widest, self.bytes_each)
        return self.values * each
