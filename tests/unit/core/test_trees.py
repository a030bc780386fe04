"""Names and order of what stands in nested arguments and answers."""

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest

from enginebench.core.trees import list_leaves, map_leaves, name_answer, name_arguments, read_call, split_made


@dataclass
class Pair:
    left: Any
    right: Any


Point = namedtuple("Point", ["x", "y"])
TREE = {"a": [1, Pair(2, OrderedDict(b=3))], "c": UserDict(d=Point(4, None)), 5: "text"}


def test_every_container_is_opened_in_order() -> None:
    assert [(".".join(path), leaf) for path, leaf in list_leaves(TREE)] == [
        ("a.0", 1), ("a.1.left", 2), ("a.1.right.b", 3), ("c.d.x", 4), ("c.d.y", None), ("5", "text"),
    ]  # fmt: skip


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
def test_answers_are_named_by_path(answer: Any, names: list[str]) -> None:
    assert name_answer(answer, lambda leaf: isinstance(leaf, int)) == names


def test_a_factory_may_return_inputs_and_keyword_arguments() -> None:
    assert split_made("module") == ("module", None, {})
    assert split_made(("module", [1])) == ("module", [1], {})
    assert split_made(("module", (1,), {"scale": 2})) == ("module", (1,), {"scale": 2})
