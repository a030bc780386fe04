"""Requests that are padded to shapes which many of them share, and outputs that are cut back."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from enginebench.core.engine_api import FeedError, PaddedEngine
from enginebench.core.records import EngineSpec, TensorSpec, TrafficCell
from enginebench.core.shapes import explain_no_padding, find_padding, measure_padding, pad_cells

IDS = TensorSpec(name="ids", dtype="int64", shape=("batch", "length"), sizes=(0, 16))
MASK = TensorSpec(name="mask", dtype="int64", shape=("batch", "length"), sizes=(0, 16))
ROWS = TensorSpec(name="rows", dtype="float32", shape=("batch", "length", 4))
POOLED = TensorSpec(name="pooled", dtype="float32", shape=("batch", 4))
LENGTHS = (3, 8, 20, 40)


def make_mix(pad: str, *cells: TrafficCell) -> EngineSpec:
    lengths = (TrafficCell(weight=0.25, shapes={"ids": (1, n), "mask": (1, n)}) for n in LENGTHS)
    return EngineSpec(backend="ort", options={"pad": pad}, traffic=cells or tuple(lengths))


def list_lengths(pad: str) -> list[int]:
    return [cell.shapes["ids"][1] for cell in pad_cells(make_mix(pad), (IDS, MASK))]


class Recorder:
    """An engine whose rows are the ids, once for each of four, and whose second output sums them."""

    inputs, outputs = (IDS, MASK), (ROWS, POOLED)

    def bind(self, feeds: Mapping[str, Any]) -> None:
        self.feeds = dict(feeds)

    def run(self) -> None:
        self.computed = np.repeat(self.feeds["ids"].astype(np.float32)[..., None], 4, axis=2)

    def fetch(self) -> dict[str, Any]:
        return {"rows": self.computed, "pooled": self.computed.sum(axis=1)}

    def close(self) -> None:
        pass


def ask(engine: PaddedEngine, batch: int, length: int) -> dict[str, Any]:
    ids = np.arange(1, batch * length + 1).reshape(batch, length)
    engine.bind({"ids": ids, "mask": np.ones((batch, length), np.int64)})
    engine.run()
    outputs = engine.fetch()
    assert np.array_equal(outputs["rows"][..., 0], ids)
    assert np.array_equal(outputs["pooled"][:, 0], ids.sum(axis=1))
    return outputs


def test_lengths_are_padded_with_zeros_and_outputs_cut_back() -> None:
    inner = Recorder()
    engine = PaddedEngine(inner, {"length": (16, 40)})
    for length, padded in ((1, 16), (16, 16), (17, 32), (33, 40), (40, 40), (41, 41)):
        ask(engine, 2, length)
        assert inner.feeds["ids"].shape == inner.feeds["mask"].shape == (2, padded)
        assert inner.feeds["mask"].sum() == 2 * length, "no entry of the mask is set in the padding"


def test_a_batch_is_padded_and_outputs_have_its_entries_alone() -> None:
    inner = Recorder()
    outputs = ask(PaddedEngine(inner, {"batch": (8, 8), "length": (4, 4)}), 3, 2)
    assert inner.feeds["ids"].shape == (8, 4)
    assert outputs["rows"].shape == (3, 2, 4) and outputs["pooled"].shape == (3, 4)


def test_lengths_that_disagree_are_not_made_equal_by_padding() -> None:
    engine = PaddedEngine(Recorder(), {"length": (16, 40)})
    with pytest.raises(FeedError, match="axis 'length' is 5 long in 'ids', and 6 in another input"):
        engine.bind({"ids": np.zeros((1, 5), np.int64), "mask": np.zeros((1, 6), np.int64)})


def test_cells_are_padded_to_a_multiple_or_to_the_largest() -> None:
    assert list_lengths("") == list(LENGTHS)
    assert list_lengths("16") == [16, 16, 32, 40]  # to no more than the longest
    assert list_lengths("largest") == [40, 40, 40, 40]
    assert measure_padding(make_mix("16"), (IDS, MASK)) == pytest.approx((16 + 16 + 32 + 40) / sum(LENGTHS))


def test_a_multiple_is_of_lengths_and_the_largest_of_the_batch_too() -> None:
    cells = TrafficCell(weight=0.7, batch=1), TrafficCell(weight=0.3, batch=8)
    assert find_padding(make_mix("largest", *cells), (IDS,)) == {"batch": (8, 8)}
    assert [cell.batch for cell in pad_cells(make_mix("largest", *cells), (IDS,))] == [8, 8]
    assert find_padding(make_mix("4", *cells), (IDS,)) == {}
    both = [TrafficCell(weight=0.5, batch=n, shapes={"ids": (n, 5 * n)}) for n in (1, 4)]
    assert [cell.shapes["ids"] for cell in pad_cells(make_mix("8", *both), (IDS,))] == [(1, 8), (4, 20)]
    assert [(c.batch, c.shapes["ids"]) for c in pad_cells(make_mix("largest", *both), (IDS,))] == [(4, (4, 20))] * 2


def test_what_cannot_be_padded_says_why() -> None:
    assert explain_no_padding(make_mix("16"), (IDS, MASK), (ROWS, POOLED)) is None
    one_length = TrafficCell(weight=1.0, batch=8)
    assert "a batch is padded by pad=largest" in str(explain_no_padding(make_mix("4", one_length), (IDS,), (ROWS,)))
    halved = TensorSpec(name="halves", dtype="float32", shape=("batch", "half length"))
    assert explain_no_padding(make_mix("16"), (IDS, MASK), (ROWS, halved)) == (
        "outputs of padded inputs could not be cut back: no input has all dynamic axes of halves (batchxhalf length)"
    )
