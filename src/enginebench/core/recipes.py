"""Recipes of eight bits, each one record: the precisions it makes, what it needs, its tools, its engines."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from enginebench.core.records import ArtifactKind, EngineSpec, Precision, Recipe

# What adds the tool of the recipes for PyTorch modules.
TORCHAO = 'pip install "enginebench[torchao]"'
# GPUs' matrix units take eight bits in steps of this many values. Source: PyTorch, aten/src/ATen/native/cuda/Blas.cpp.
STEP = 16
# What a recipe starts from beside the graph: ranges of its values, the data to take them from itself, or neither.
Needs = Literal["ranges", "data", "nothing"]


class RecipeRecord(Struct, frozen=True, kw_only=True):
    """The way in which a graph, or a PyTorch module, is quantized to eight bits."""

    precisions: tuple[Precision, ...] = ("int8",)
    needs: Needs = "ranges"
    tools: tuple[str, ...] = ("onnx", "onnxruntime")
    itself: tuple[Precision, ...] = ()  # further ones, of the engines that start from no graph of the recipe
    engines: tuple[str, ...] = ()  # the only ones that compute its nodes in eight bits; (): all that read Q/DQ nodes
    weights_only: bool = False  # activations stay floats
    makes: ArtifactKind = "onnx"
    starts: dict[str, Recipe | None] = {}  # engine -> the recipe of what it starts from, if that is another
    devices: dict[str, str] = {}  # engine -> the one kind of device on which it takes this recipe
    by_name: bool = False  # slow to build: if there is a graph, `run` leaves it out unless it or its engine is named


# Engines that cast a graph in FP32 themselves, and gain by it: OpenVINO computes MobileNetV3 in BF16 twice as fast from
# it (1.25 ms, 2.45 from one that was cast before; AMD EPYC, one thread, 2026-11-26).
CASTS: frozenset[tuple[str, Precision]] = frozenset({("openvino", "bf16")})
# Instructions that multiply in BF16: with them OpenVINO needs no other graph to be up to twice as fast as in FP32.
BF16 = {"avx512_bf16", "amx_bf16"}

# Precisions that recipes make; all others are cast.
FEW_BITS: tuple[Precision, ...] = ("int8", "fp8", "int4")

# Recipes that a graph can be made by, the default first. "weak" has no graph of its own, and "qat" is what is left.
RECIPES: dict[Recipe, RecipeRecord] = {
    "tensorrt": RecipeRecord(precisions=("int8", "fp8")),
    "cpu": RecipeRecord(),
    "nncf": RecipeRecord(needs="data", tools=("onnx", "nncf")),
    "nncf:mixed": RecipeRecord(needs="data", tools=("onnx", "nncf")),
    "smooth": RecipeRecord(needs="data", tools=("onnx", "nncf")),
    "dynamic": RecipeRecord(
        itself=("fp8",),
        needs="nothing",
        engines=("ort", "openvino", "pytorch-compile"),
        starts={"openvino": "w8", "pytorch-compile": None},
        devices={"pytorch-compile": "cuda"},
    ),
    "w8": RecipeRecord(needs="nothing", tools=("onnx",), engines=("ort", "openvino"), weights_only=True),
    "w4": RecipeRecord(
        precisions=("int4",), needs="nothing", tools=("onnx",), engines=("ort", "openvino"), weights_only=True
    ),
    "pt2e": RecipeRecord(
        needs="data",
        tools=("torchao",),
        engines=("pytorch-compile",),
        makes="torch",
        devices={"pytorch-compile": "cpu"},
        by_name=True,
    ),
    "static": RecipeRecord(
        precisions=("fp8",),
        needs="data",
        tools=(),
        engines=("pytorch-compile",),
        makes="torch",
        devices={"pytorch-compile": "cuda"},
        by_name=True,
    ),
}


def makes(recipe: Recipe, precision: Precision | None) -> bool:
    """Whether there is such a recipe of a precision."""
    return recipe not in RECIPES or precision in (*RECIPES[recipe].precisions, *RECIPES[recipe].itself)


def list_recipes(precision: Precision) -> tuple[Recipe, ...]:
    """The recipes that make graphs in a precision, the default first; none for what is cast."""
    graphs = {name: record for name, record in RECIPES.items() if record.makes == "onnx"}
    return tuple(name for name, record in graphs.items() if precision in record.precisions)


def find_needs(precision: Precision | None, recipe: Recipe | None) -> Needs:
    """Return what a graph in this precision needs beside the graph itself; a cast needs nothing."""
    recipes = list_recipes(precision) if precision is not None else ()
    if not recipes:
        return "nothing"
    return RECIPES[recipe if recipe in RECIPES else recipes[0]].needs


def quantizes_weights_only(recipe: Recipe | None) -> bool:
    """Whether graphs of the recipe have weights of few bits, and activations in floats."""
    return recipe in RECIPES and RECIPES[recipe].weights_only


def find_start(engine: str, recipe: Recipe | None) -> Recipe | None:
    """The recipe of the model that an engine starts from; None: it quantizes one in FP32 itself, or nothing at all."""
    return RECIPES[recipe].starts.get(engine, recipe) if recipe in RECIPES else recipe


def find_graph_precision(engine: str, precision: Precision | None) -> Precision | None:
    """The precision of the graph from which an engine makes one: TF32 is a setting, and so is what it casts itself."""
    return "fp32" if precision == "tf32" or (engine, precision) in CASTS else precision


def choose_module_recipe(engine: str, precision: Precision | None, device: str) -> Recipe | None:
    """Return the recipe of eight bits of an engine that starts from PyTorch modules; None if it has none."""
    if precision not in ("int8", "fp8"):
        return None
    recipe: Recipe
    if precision == "fp8":
        recipe = "static"
    elif device == "cpu":
        recipe = "pt2e"
    else:
        recipe = "dynamic"
    return recipe if engine in RECIPES[recipe].engines else None


def refuse_recipe(spec: EngineSpec, kind: ArtifactKind) -> str | None:
    """Return why an engine that starts from artifacts of this kind cannot run its recipe; None if it can."""
    if spec.recipe not in RECIPES or _takes(spec, kind, RECIPES[spec.recipe], spec.precision):
        return None
    record, engine = RECIPES[spec.recipe], spec.backend
    takes = (o.precisions[0] + "@" + name for name, o in RECIPES.items() if _takes(spec, kind, o, o.precisions[0]))
    engines = _list_engines(record, spec.precision)
    listed = ", ".join(f"{one} on {record.devices[one]}" if one in record.devices else one for one in engines)
    here = f"{engine}{f' on {spec.device}' if engine in engines else ''} takes {', '.join(takes) or 'no recipe'}"
    return f"{spec.precision}@{spec.recipe} runs only on {listed or 'engines of graphs'}; {here}"


def _list_engines(record: RecipeRecord, precision: Precision | None) -> tuple[str, ...]:
    makes_precision = precision in record.precisions
    return tuple(one for one in record.engines if makes_precision or record.starts.get(one, "") is None)


def _takes(spec: EngineSpec, kind: ArtifactKind, record: RecipeRecord, precision: Precision | None) -> bool:
    if record.engines or kind == "torch":
        device = spec.device.partition(":")[0]
        there = record.devices.get(spec.backend, device) == device
        return there and spec.backend in _list_engines(record, precision)
    return True
