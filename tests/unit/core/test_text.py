"""Text, shapes and nested values: what a terminal shows, what a model takes, and how all of it is named."""

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest

from enginebench.core.errors import UsageError
from enginebench.core.records import TensorSpec
from enginebench.core.shapes import match_axes
from enginebench.core.text import clean_lines, count_of, name_type
from enginebench.core.trees import list_leaves, map_leaves, name_arguments, name_output_tensors, read_call, split_made


def test_control_characters_cannot_reach_the_terminal() -> None:
    assert clean_lines("a\x1b[31mb\x07\r\nc\td\u202e") == "a[31mb\nc\td"


def test_one_of_them_has_no_plural() -> None:
    assert (count_of(0, "layers"), count_of(2, "processes")) == ("0 layers", "2 processes")
    for things, said in (("layers", "layer"), ("processes", "process"), ("entries", "entry"), ("batches", "batch")):
        assert count_of(1, things) == f"1 {said}"


def test_a_type_has_its_article() -> None:
    assert [name_type(value) for value in (1, {}, object(), 0.5)] == ["an int", "a dict", "an object", "a float"]


IDS = TensorSpec(name="ids", dtype="int64", shape=("batch", "seq"))
MASK = TensorSpec(name="mask", dtype="int64", shape=("batch", 1, "seq", "seq"))


def test_two_lengths_of_one_axis_are_refused() -> None:
    with pytest.raises(UsageError, match="axis 'seq' is 128 elsewhere, and 64 here"):
        match_axes((IDS, MASK), {"ids": (4, 128), "mask": (4, 1, 64, 64)})


@dataclass
class Pair:
    left: Any
    right: Any


Point = namedtuple("Point", ["x", "y"])
TREE = {"a": [1, Pair(2, OrderedDict(b=3))], "c": UserDict(d=Point(4, None)), 5: "text"}


def test_every_container_is_opened_in_order() -> None:
    assert [(".".join(path), leaf) for path, leaf in list_leaves(TREE)] == [
        ("a.0", 1),
        ("a.1.left", 2),
        ("a.1.right.b", 3),
        ("c.d.x", 4),
        ("c.d.y", None),
        ("5", "text"),
    ]


def test_a_changed_tree_keeps_its_types() -> None:
    made = map_leaves(TREE, lambda leaf: leaf if leaf is None else f"<{leaf}>")
    assert list_leaves(made) == [(path, leaf if leaf is None else f"<{leaf}>") for path, leaf in list_leaves(TREE)]
    assert isinstance(made["a"][1], Pair) and isinstance(made["c"], UserDict) and isinstance(made["c"]["d"], Point)
    assert isinstance(made["a"][1].right, OrderedDict) and TREE["a"][0] == 1  # type: ignore[index]


def takes_ids(ids: Any, mask: Any = None, /, scale: Any = None) -> None: ...
def takes_names(ids: Any, mask: Any = None) -> None: ...
def takes_one(batch: Any) -> None: ...
def takes_any(**inputs: Any) -> None: ...


@pytest.mark.parametrize(
    ("forward", "given", "names"),
    [
        (takes_one, 1, ["input"]),
        (takes_one, {"ids": 1, "mask": 2}, ["input.ids", "input.mask"]),
        (takes_one, {"batch": {"ids": 1}}, ["batch.ids"]),
        (takes_names, {"mask": 1, "ids": 2}, ["mask", "ids"]),
        (takes_names, (1, {"left": 2}), ["ids", "mask.left"]),
        (takes_any, {"x": 1, "y": [2]}, ["x", "y.0"]),
        (takes_ids, [1, 2], ["ids", "mask"]),
        (lambda *xs: None, (1, 2), ["input_0", "input_1"]),
    ],
)
def test_arguments_are_named_by_parameter_and_path(forward: Any, given: Any, names: list[str]) -> None:
    assert [path for path, _ in name_arguments(forward, read_call(forward, given))] == [(name,) for name in names]


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        (1, ["output"]),
        ((1,), ["outputs.0"]),
        ({"logits": 1, "note": "text", "states": (None, 2)}, ["outputs.logits", "outputs.states.1"]),
        ({"a": {"b": 1}, "a.b": 2}, ["outputs.a.b", "outputs.a.b_"]),
        ("text", []),
    ],
)
def test_outputs_are_named_by_path(answer: Any, names: list[str]) -> None:
    assert name_output_tensors(answer, lambda leaf: isinstance(leaf, int)) == names


def test_a_factory_may_return_inputs_and_keyword_arguments() -> None:
    assert split_made("module") == ("module", None, {})
    assert split_made(("module", [1])) == ("module", [1], {})
    assert split_made(("module", (1,), {"scale": 2})) == ("module", (1,), {"scale": 2})
