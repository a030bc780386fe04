"""Recipes of eight bits, each one record: the precisions it makes, what it needs, its tools, its engines."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from enginebench.core.records import Precision, Recipe

# What a recipe starts from beside the graph: ranges of its values, the data to take them from itself, or neither.
Needs = Literal["ranges", "data", "nothing"]


class RecipeRecord(Struct, frozen=True, kw_only=True):
    """How a graph gets its eight bits."""

    precisions: tuple[Precision, ...] = ("int8",)
    needs: Needs = "ranges"
    tools: tuple[str, ...] = ("onnx", "onnxruntime")
    engines: tuple[str, ...] = ()  # the only ones that compute its nodes in eight bits; (): all that read Q/DQ nodes
    weights_only: bool = False  # activations stay floats


# Recipes that a graph can be made by, the default first. "weak" has no graph of its own, and "qat" is what is left.
RECIPES: dict[Recipe, RecipeRecord] = {
    "tensorrt": RecipeRecord(precisions=("int8", "fp8")),
    "cpu": RecipeRecord(),
    "nncf": RecipeRecord(needs="data", tools=("onnx", "nncf")),
    "dynamic": RecipeRecord(needs="nothing", engines=("ort",)),
    "w8": RecipeRecord(needs="nothing", tools=("onnx",), engines=("ort", "openvino"), weights_only=True),
}


def list_recipes(precision: Precision) -> tuple[Recipe, ...]:
    """The recipes that make graphs in a precision, the default first; none for what is cast."""
    return tuple(name for name, record in RECIPES.items() if precision in record.precisions)


def find_needs(precision: Precision | None, recipe: Recipe | None) -> Needs:
    """What a graph in this precision is made from beside the graph; a cast needs nothing."""
    recipes = list_recipes(precision) if precision is not None else ()
    return RECIPES[recipe if recipe in RECIPES else recipes[0]].needs if recipes else "nothing"


def quantizes_weights_only(recipe: Recipe | None) -> bool:
    """Whether graphs of the recipe have weights of few bits, and activations in floats."""
    return recipe in RECIPES and RECIPES[recipe].weights_only


def refuse_recipe(engine: str, recipe: Recipe | None) -> str | None:
    """Why the engine cannot run graphs of a recipe; None if it can."""
    record = RECIPES.get(recipe) if recipe is not None else None
    if record is None or not record.engines or engine in record.engines:
        return None
    others = ", ".join(f"int8@{name}" for name, other in RECIPES.items() if not other.engines)
    return f"int8@{recipe} runs on {', '.join(record.engines)}, not on {engine}, which takes {others}"
