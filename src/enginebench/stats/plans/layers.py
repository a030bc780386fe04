"""`read_layer_info`: read the engine inspector's output (--exportLayerInfo), joined with a profile."""

import math
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from enginebench.core.errors import ParseError
from enginebench.core.precisions import REORDER, UNKNOWN, classify_kernel
from enginebench.core.records import AheadOfTime, LayerProfile, LayerTime, PlannedLayer
from enginebench.core.store import DECODE_ERRORS, JsonObject
from enginebench.stats.layer_records import (
    EngineLayer,
    EngineTensor,
    LayerGroup,
    LayersDocument,
    LayerTensor,
    ProfileDocument,
    group_layers,
    read_layer_metadata,
    split_name,
    sum_times,
)
from enginebench.stats.plans.profile import read_layer_profile
from enginebench.stats.plans.source import decode_json, explain_json, explain_keys, list_keys, read_text

# Data types as inspectors of TensorRT 8 to 11 print them inside "Format/Datatype" and "Weights".
_DTYPES = (
    (re.compile(r"\bBF16\b|\bBFloat16\b", re.I), "bf16"),
    (re.compile(r"\bFP16\b|\bHalf\b|\bFloat16\b", re.I), "fp16"),
    (re.compile(r"\bFP8\b|\bE4M3\b|\bFloat8\w*", re.I), "fp8"),
    (re.compile(r"\bFP4\b|\bE2M1\b|\bFloat4\w*", re.I), "fp4"),
    (re.compile(r"\bFP32\b|\bFloat\b|\bFloat32\b", re.I), "fp32"),
    (re.compile(r"\bUINT8\b", re.I), "uint8"),
    (re.compile(r"\bINT8\b", re.I), "int8"),
    (re.compile(r"\bINT4\b", re.I), "int4"),
    (re.compile(r"\bINT32\b", re.I), "int32"),
    (re.compile(r"\bINT64\b", re.I), "int64"),
    (re.compile(r"\bBOOL\b", re.I), "bool"),
)
# Keys of a layer that someone cut down to what mattered to him; the inspectors that were seen write five or more.
_EXCERPT = 3
# Names of the same thing in inspectors of TensorRT 8 to 11; the first that is there counts.
_TYPE_KEYS = ("ParameterType", "LayerType")
_DTYPE_KEYS = ("Format/Datatype", "Datatype", "Type")
_TACTIC_KEYS = ("TacticName", "TacticValue")
# What a kernel may make of FP32 values.
_SHORTER = frozenset({"tf32", "bf16", "fp16", "fp8", "int8"})
_IO_KEYS = ("Bindings", "I/O Tensors")
# The format that 8.6 prints for an input in bytes, the one type of inputs and outputs that its inspector cannot name.
UNNAMED = "Unknown format"
# Layers that multiply, by what inspectors call them; and those that stand for many operators, which may.
_PRODUCTS = re.compile(
    r"conv(?!er)|correlation|runtime_fusion|gemm|matmul|matrix.?multiply|fully.?connected|einsum|rnn|lstm|attention"
    r"|(?<![a-z])(?:gru|[fm]ha|mha_v\d)(?![a-z])|(?<!quantize)linear",
    re.I,
)
_OPAQUE = re.compile(r"plugin|foreign.?node|myelin", re.I)
# Whole regions that TensorRT's own compiler took over as one layer: a transformer between its first and last operator.
_REGION = re.compile(r"foreign.?node|myelin", re.I)
# Layers of TensorRT's own compiler, which names them after a counter and their operators in abbreviation.
_GENERATED = re.compile(r"__myl|foreign.?node|myelin|kgen", re.I)
# Layers that only change layout, type or place of data.
_OVERHEAD_TYPES = frozenset({"reformat", "cast", "identity", "copy", "devicetoshapehost", "noop"})
_OVERHEAD_NAMES = ("Reformatting CopyNode", "[HostToDeviceCopy]", "[DeviceToHostCopy]")
_QUANTIZE = re.compile(r"(?:^|/)(?:Quantize|Dequantize)Linear", re.I)


def read_layer_info(path: Path, *, profile: ProfileDocument | None = None) -> LayersDocument:
    """Read the layers of an engine from --exportLayerInfo of TensorRT 8.2 to 11: types, precisions, tactics and ONNX
    operators."""
    return summarize_inspection(read_engine_document(read_text(path), path), path, profile)


def read_engine_document(text: str, path: Path) -> JsonObject:
    try:
        document = decode_json(text)
    except DECODE_ERRORS as error:
        raise explain_json(error, path, len(text.encode()), "the JSON of --exportLayerInfo") from error
    if isinstance(document, list) and document and all(isinstance(item, str) for item in document):
        document = {"Layers": document}
    if not isinstance(document, dict) or not isinstance(document.get("Layers"), list):
        raise ParseError(
            path,
            "$",
            f"no list Layers (keys there: {', '.join(list_keys(document)) or 'none'})",
            "{'Layers': [...], 'Bindings' or 'I/O Tensors': [...]}, as --exportLayerInfo writes it",
            "A newer TensorRT may have renamed it",
        )
    return document


def summarize_inspection(document: JsonObject, path: Path, profile: ProfileDocument | None = None) -> LayersDocument:
    """Summarize an inspector's document that was read before, as `read_layer_info` does."""
    layers = [read_layer(item, index, path) for index, item in enumerate(document["Layers"])]
    require_keys(document["Layers"], path)
    notes = note_layers(document, layers)
    if profile is not None:  # equal names are joined in order
        times: dict[str, list[tuple[float | None, float | None]]] = {}
        for one in sorted(profile.layers, key=lambda layer: layer.position or 0):
            times.setdefault(one.name, []).append((one.average_ms, one.share))
        figures = [queue.pop(0) if (queue := times.get(layer.name)) else (None, None) for layer in layers]
        layers = [
            msgspec.structs.replace(layer, average_ms=average, share=share)
            for layer, (average, share) in zip(layers, figures, strict=True)
        ]
        unmatched = sum(map(len, times.values()))
        notes += [f"{unmatched} layers of the profile are not in the engine"] if unmatched else []
    timed = profile is not None and any(layer.average_ms is not None for layer in layers)
    shares_of: Literal["time", "layers"] = "time" if timed else "layers"
    measure = partial(measure_group, layers=layers, timed=timed)
    return LayersDocument(
        path=str(path),
        layers=tuple(layers),
        by_precision=group_layers(layers, lambda layer: layer.counted_as, measure),
        by_type=group_layers(layers, lambda layer: layer.type or UNKNOWN, measure),
        overhead=measure_group([layer for layer in layers if layer.overhead], layers, timed),
        io=read_io(document, layers),
        shares_of=shares_of,
        notes=tuple(notes),
    )


def read_layer(item: Any, index: int, path: Path) -> EngineLayer:
    """Read one layer: a plain name with the default verbosity, an object with `--profilingVerbosity=detailed`."""
    if isinstance(item, str):
        return EngineLayer(name=item, onnx_nodes=split_name(item), overhead=is_overhead(item, None))
    if not isinstance(item, dict) or not isinstance(item.get("Name"), str):
        actual = f"keys {', '.join(map(str, item))[:400]}" if isinstance(item, dict) else type(item).__name__
        raise ParseError(path, f"$.Layers[{index}]", actual, "a name, or an object with the key Name")
    name = item["Name"]
    kind = first_text(*map(item.get, _TYPE_KEYS))
    inputs, outputs = (
        tuple(read_tensor(tensor) for tensor in as_list(item.get(side)) if isinstance(tensor, dict))
        for side in ("Inputs", "Outputs")
    )
    nodes = read_layer_metadata(first_text(item.get("Metadata"))) or split_name(name)
    return EngineLayer(
        name=name,
        type=kind,
        precision=choose_precision(item, inputs, outputs, nodes),
        precision_in=next((t.dtype for t in inputs if t.dtype), None),
        precision_out=next((t.dtype for t in outputs if t.dtype), None),
        inputs=inputs,
        outputs=outputs,
        onnx_nodes=nodes,
        tactic=first_text(*map(item.get, _TACTIC_KEYS)),
        overhead=is_overhead(name, kind),
    )


def list_detailed(items: list[Any]) -> list[JsonObject]:
    """Return the layers that an inspector describes in detail, with five keys or more; fewer are an excerpt."""
    return [item for item in items if isinstance(item, dict) and len(item) > _EXCERPT]


def require_keys(items: list[Any], path: Path) -> None:
    """Raise a ParseError when detailed layers lack the keys of their columns; it names the keys that they have.

    One layer may lack a key; when all do, it was renamed, and a column would be silently empty.
    """
    layers = list_detailed(items)
    tensors = [tensor for item in layers for tensor in [*as_list(item.get("Inputs")), *as_list(item.get("Outputs"))]]
    tensors = [tensor for tensor in tensors if isinstance(tensor, dict)]
    for location, objects, wanted in (
        ("$.Layers[*]", layers, _TYPE_KEYS),
        ("$.Layers[*]", layers, ("Inputs", "Outputs")),
        ("$.Layers[*].Inputs[*]", tensors, _DTYPE_KEYS),
    ):
        if objects and not any(key in item for item in objects for key in wanted):
            expected = "the keys of --exportLayerInfo with --profilingVerbosity=detailed"
            raise explain_keys(path, location, " or ".join(wanted), objects[0], expected, "a newer TensorRT")


def first_text(*values: Any) -> str | None:
    return next((value for value in values if isinstance(value, str) and value), None)


def read_tensor(item: JsonObject) -> LayerTensor:
    """Read one tensor; TensorRT 8 to 11 put layout and type into one text."""
    text = first_text(*map(item.get, _DTYPE_KEYS))
    name, dimensions, shape = first_text(item.get("Name")) or "", item.get("Dimensions"), None
    if isinstance(dimensions, list) and all(isinstance(d, int) and not isinstance(d, bool) for d in dimensions):
        shape = tuple(dimensions)
    return LayerTensor(name=name, dtype=read_dtype(text), shape=shape, format=text)


def read_dtype(text: str | None) -> str | None:
    """Return "fp16" for "Channel major FP16 format where channel % 8 == 0"."""
    return next((name for pattern, name in _DTYPES if text and pattern.search(text[:200])), None)


def choose_precision(
    item: JsonObject, inputs: tuple[LayerTensor, ...], outputs: tuple[LayerTensor, ...], nodes: tuple[str, ...] = ()
) -> str | None:
    """Return the precision in which a layer computes, as far as its types and the name of its kernel show it; else
    None.

    Eight and sixteen bits are multiplied as they are. FP32 values may be shortened on their way into the multipliers,
    above all to TF32, which TensorRT allows by default; only the kernel's name shows it. The inputs and outputs of a
    region of many operators do not show the precision inside. A plan of several shapes shows no types ("N/A due to
    dynamic shapes") but those of weights: then the kernel decides.
    """
    weights, region = item.get("Weights"), is_region(item["Name"], first_text(item.get("LayerType")))
    # Of its weights, else of its first input, else of its output, which alone would be wrong: an INT8 convolution may
    # write FP16.
    dtype = next((tensor.dtype for tensor in (*inputs, *outputs) if tensor.dtype), None)
    if isinstance(weights, dict) and weights.get("Count"):
        dtype = read_dtype(first_text(weights.get("Type"))) or dtype
    kernel = classify_kernel(first_text(item.get("TacticName")) or "")
    if dtype != "fp32" and not region:
        return dtype or (kernel if kernel in {"fp32", *_SHORTER} else None)
    if kernel in _SHORTER:
        return kernel
    if region:
        return "fp32" if kernel == "fp32" else None
    return None if kernel != "fp32" and may_multiply(item, nodes) else "fp32"


def is_region(name: str, kind: str | None) -> bool:
    """Whether a layer is a region of TensorRT's own compiler, which does not list its parts."""
    return bool(_REGION.search(kind or "") or name.startswith("{ForeignNode"))


def may_multiply(item: JsonObject, nodes: tuple[str, ...]) -> bool:
    """Whether a layer is a product, or contains operators that are or may be one."""
    kinds = " ".join(filter(None, (first_text(item.get(key)) for key in _TYPE_KEYS)))
    if _PRODUCTS.search(kinds) or _OPAQUE.search(kinds):
        return True
    generated = _GENERATED.search(f"{kinds} {item['Name']}")
    return generated is not None and (not nodes or any(_PRODUCTS.search(node) for node in nodes))


def is_product(layer: EngineLayer) -> bool:
    """Whether a layer is named as a product: a convolution, a matrix product."""
    return bool(_PRODUCTS.search(layer.type or ""))


def is_overhead(name: str, kind: str | None) -> bool:
    """Whether a layer only moves or converts data: reformat, cast, copy, or a (de)quantization of its own."""
    if (kind or "").lower() in _OVERHEAD_TYPES or name.startswith(_OVERHEAD_NAMES):
        return True
    nodes = split_name(name)
    return bool(nodes) and all(_QUANTIZE.search(node) for node in nodes)


def measure_group(group: list[EngineLayer], layers: list[EngineLayer], timed: bool) -> LayerGroup:
    if not timed:
        return LayerGroup(layers=len(group), share=len(group) / len(layers) if layers else None)
    average, total = sum_times(group), sum_times(layers)
    return LayerGroup(layers=len(group), share=average / total if total > 0 else None, average_ms=average)


def read_io(document: JsonObject, layers: list[EngineLayer]) -> tuple[EngineTensor, ...]:
    """Read the engine's inputs and outputs: `Bindings` up to 10, `I/O Tensors` in 11; type and shape from the
    layers."""
    produced = {tensor.name: tensor for layer in layers for tensor in layer.outputs}
    consumed = {tensor.name: tensor for layer in layers for tensor in layer.inputs}
    io = []
    for item in (item for key in _IO_KEYS for item in as_list(document.get(key))):
        tensor = read_tensor(item) if isinstance(item, dict) else LayerTensor(name=str(item))
        # A binding of a second optimization profile is named "input [profile 1]".
        bare = re.sub(r" \[profile \d+\]$", "", tensor.name)
        layer_tensor = produced.get(bare) or consumed.get(bare)
        declared = first_text(item.get("Mode"), item.get("IOMode")) if isinstance(item, dict) else None
        mode: Literal["input", "output"] | None = None
        if declared:
            mode = "input" if "in" in declared.lower() and "out" not in declared.lower() else "output"
        elif layer_tensor:
            mode = "output" if bare in produced else "input"
        dtype, shape = (layer_tensor.dtype, layer_tensor.shape) if layer_tensor else (None, None)
        if layer_tensor and layer_tensor.format == UNNAMED and mode == "input":
            dtype = "uint8"
        io.append(EngineTensor(name=tensor.name, mode=mode, dtype=tensor.dtype or dtype, shape=tensor.shape or shape))
    return tuple(io)


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def note_layers(document: JsonObject, layers: list[EngineLayer]) -> list[str]:
    """List notes on the limits of the reading: lacking keys, regions, and FP32 products that may be shortened to
    TF32."""
    notes = [] if layers else ["the file lists no layers"]
    if layers and all(layer.type is None for layer in layers):
        notes.append("names only: build with --profilingVerbosity=detailed for types, precisions and tactics")
    repeated = [name for name, count in Counter(layer.name for layer in layers).items() if count > 1]
    if repeated:
        notes.append(f"{len(repeated)} layer names occur more than once; their times are joined in order")
    detailed = list_detailed(document["Layers"])
    if detailed and not any(key in item for item in detailed for key in _TACTIC_KEYS):
        there = ", ".join(detailed[0])[:400]
        notes.append(f"no layer has a key {' or '.join(_TACTIC_KEYS)} (keys there: {there}): no tactics")
    if not any(key in document for key in _IO_KEYS):
        there = ", ".join(document)[:400]
        notes.append(f"no key {' or '.join(_IO_KEYS)} (keys there: {there}): inputs and outputs are not known")
    if shortened := sum(layer.precision == "tf32" for layer in layers):
        notes.append(
            f"{shortened} of {len(layers)} layers multiply FP32 values in TF32, as their kernels are named; "
            "--noTF32 at the build keeps them in FP32"
        )
    regions = [layer for layer in layers if layer.precision is None and is_region(layer.name, layer.type)]
    if regions:
        notes.append(
            f"{len(regions)} of {len(layers)} layers are regions that TensorRT's own compiler, Myelin, built: their "
            "precision is not recorded"
        )
    others = [layer for layer in layers if layer not in regions]
    if unsaid := sum(layer.precision is None and layer.precision_in == "fp32" for layer in others):
        notes.append(
            f"{unsaid} of {len(layers)} layers multiply FP32 values in kernels whose names do not show the precision: "
            "it may be in TF32"
        )
    return notes


NS_PER_MS = 1_000_000
# A share below this is what sums of a profile's rounded times leave over, and no layer.
ROUNDING = 1e-9


class PlanFiles:
    """The `engines.abilities.PlanReader` that `open_for` gives to engines, which may not read files themselves."""

    def read_precision(self, layers: Path, profile: Path) -> dict[str, float] | None:
        """Return fractions of time by precision, which add up to 1; reformats and casts, which compute nothing, as
        `reorder`.

        Layers without a recorded precision are `unknown`, as are those of the profile that the engine does not list.
        """
        document = read_layer_info(layers, profile=read_layer_profile(profile))
        if document.shares_of != "time":
            return None
        shares: dict[str, float] = {}
        for layer in document.layers:
            shares[layer.counted_as] = shares.get(layer.counted_as, 0.0) + (layer.share or 0.0)
        shares[UNKNOWN] = shares.get(UNKNOWN, 0.0) + max(0.0, 1 - math.fsum(shares.values()))
        ranked = sorted(shares.items(), key=lambda item: -item[1])
        return {name: share for name, share in ranked if share > ROUNDING}

    def read_layers(self, layers: Path, profile: Path) -> LayerProfile:
        """Return the engine's layers in their order, as far as the profile has their times; reformats and casts as
        `reorder`."""
        timed = read_layer_profile(profile)
        document = read_layer_info(layers, profile=timed)
        return LayerProfile(
            layers=tuple(
                LayerTime(
                    name=layer.name,
                    mean_ns=layer.average_ms * NS_PER_MS,
                    precision=REORDER if layer.overhead else layer.precision,
                    kind=layer.type,
                    onnx_nodes=layer.onnx_nodes,
                    tactic=layer.tactic or None,
                )
                for layer in document.layers
                if layer.average_ms
            ),
            runs=timed.count or 1,
            profiler="trtexec's layer profile",
            notes=document.notes,
        )

    def read_ahead(self, layers: Path) -> AheadOfTime:
        """Return the layers of a plan that has not run, and the number of products in each precision."""
        planned = read_layer_info(layers).layers
        products = Counter(_name_input(layer) for layer in planned if is_product(layer))
        return AheadOfTime(
            products=dict(products.most_common()),
            layers=tuple(
                PlannedLayer(name=n.name, kind=n.type, precision=_name_input(n), onnx_nodes=n.onnx_nodes)
                for n in planned
            ),
        )


def _name_input(layer: EngineLayer) -> str:
    """Return the type of a layer's input, before it has run; whether FP32 is multiplied in TF32 is not known then."""
    return layer.precision or layer.precision_in or UNKNOWN
