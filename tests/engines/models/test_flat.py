"""A user's module as engines call it: nested inputs and answers, state, values of its examples."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import factories
from enginebench.models.torch.architectures import describe_inputs, examples_of_shapes
from enginebench.models.torch.flat import Flat, find_state, flatten


class Whatever(nn.Module):
    """Answers with what it was called with."""

    def forward(self, *positional: Any, **keywords: Any) -> Any:
        return positional, keywords


def test_tensors_reach_the_module_where_the_examples_stood() -> None:
    flat, examples = flatten(Whatever(), ({"ids": np.zeros(2), "kind": "text"}, [None, torch.ones(3)]), {"scale": 2})
    assert (flat.names, [tuple(e.shape) for e in examples]) == (("input_0.ids", "input_1.1"), [(2,), (3,)])
    ids, other = torch.full((4,), 7.0), torch.zeros(5)
    positional, keywords = flat.answer(ids, other)
    assert positional == ({"ids": ids, "kind": "text"}, [None, other]) and keywords == {"scale": 2}
    assert flat(ids, other) == (ids, other), "what is no tensor is no part of the answer"


def test_a_state_is_found_put_back_and_begun_anew() -> None:
    flat, examples = flatten(*factories.make_counter())
    assert find_state(flat, examples) == ("calls",)
    assert float(flat.module.calls) == 0
    flat.begin_anew(("calls",))
    assert torch.equal(flat(*examples), flat(*examples))
    without = Flat(flat.module)
    assert not torch.equal(without(*examples), without(*examples)), "it does count, left to itself"


class Growing(nn.Module):
    """Remembers every input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(0, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = torch.cat([self.seen, x])
        return self.seen.sum(0)


def test_a_state_that_grows_is_begun_anew_too() -> None:
    flat, examples = flatten(Growing(), torch.ones(1, 4))
    flat.begin_anew(find_state(flat, examples))
    assert torch.equal(flat(*examples), torch.ones(4)) and torch.equal(flat(*examples), torch.ones(4))


def describe(module: nn.Module, given: Any) -> list[tuple[float, float] | None]:
    flat, examples = flatten(module, given)
    return [spec.values for spec in describe_inputs(flat, examples)]


@pytest.mark.parametrize(
    ("given", "values"),
    [
        (torch.zeros(1, 3, 8, 8), [None]),
        (torch.randn(1, 3, 8, 8), [None]),
        (torch.tensor([[0.25, 0.5]]), [(0.25, 0.5)]),
        ((torch.tensor([[3, 9, 5]]), torch.ones(1, 3), torch.tensor(16000)), [(3, 9), (1, 1), (16000, 16000)]),
        ((torch.tensor([[3, 9]]), torch.tensor([[0, 1]]), torch.tensor([[True, False]])), [(3, 9), (1, 1), (1, 1)]),
        ((torch.tensor([[3, 9]]), torch.zeros(1, 2)), [(3, 9), (0, 0)]),
    ],
)
def test_values_are_those_that_the_examples_show(given: Any, values: list[tuple[float, float] | None]) -> None:
    assert describe(Whatever(), given) == values


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(7, 2)

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.bag(ids[0], offsets=offsets[0])


def test_what_looks_up_a_table_stays_within_it_and_offsets_of_bags_are_zeros() -> None:
    assert describe(nn.Sequential(nn.Embedding(7, 2)), torch.zeros(1, 3, dtype=torch.int64)) == [(0, 6)]
    bags = torch.zeros(2, 6, dtype=torch.int64), torch.tensor([[0, 4], [0, 1]])
    assert describe(Bags(), bags) == [(0, 6), (0, 0)]


def test_other_shapes_repeat_the_values_of_the_examples() -> None:
    flat, examples = flatten(factories.Nested(), ({"ids": torch.tensor([[3, 4]]), "mask": torch.ones(1, 2)},))
    ids, mask = examples_of_shapes(flat, examples, {"input.ids": (2, 3), "input.mask": (2, 3)})
    assert ids.tolist() == [[3, 4, 3], [4, 3, 4]] and mask.min() == 1
