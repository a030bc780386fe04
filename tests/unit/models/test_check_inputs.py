"""Made-up inputs that reach further than usual ones: what they hold, and what they leave as it is."""

import numpy as np
import pytest

from enginebench.core.records import TensorSpec
from enginebench.models.check_inputs import FEWEST_DATA, make_check_sets

IDS = TensorSpec(name="input_ids", dtype="int64", shape=("batch", 16), values=(0, 499))
MASK = TensorSpec(name="attention_mask", dtype="int64", shape=("batch", 16), values=(1, 1))
IMAGE = TensorSpec(name="x", dtype="float32", shape=("batch", 3, 8, 8))


def test_masks_have_padding_and_integers_reach_both_ends() -> None:
    sets = make_check_sets([IDS, MASK], seed=0)
    assert list(sets) == ["masks"]
    masks = np.concatenate([entry["attention_mask"] for entry in sets["masks"]])
    assert set(np.unique(masks)) == {0, 1} and (masks.max(axis=1) == 1).all() and masks.dtype == np.int64
    assert any((np.diff(row) <= 0).all() and row[-1] == 0 for row in masks), "padding behind"
    assert any((np.diff(row) >= 0).all() and row[0] == 0 for row in masks), "padding before"
    for entry in sets["masks"]:
        assert {0, 499} <= set(entry["input_ids"].ravel().tolist())


def test_an_examples_ids_reach_the_last_row_of_their_table() -> None:
    ids = TensorSpec(name="ids", dtype="int64", shape=(2, 16), values=(3, 9), widest=(0, 499))
    (entry, *_) = make_check_sets([ids], seed=0)["masks"]
    assert entry["ids"].shape == (1, 16) and {entry["ids"].min(), entry["ids"].max()} == {0, 499}


def test_floats_are_large_negative_and_zero_and_are_nudged_by_rounding_steps() -> None:
    sets = make_check_sets([IMAGE], seed=0)
    assert list(sets) == ["large", "nudged"]
    arrays = [entry["x"] for entry in sets["large"]]
    assert max(np.abs(array).max() for array in arrays) > 1000
    assert any((array < 0).all() for array in arrays) and any((array == 0).all() for array in arrays)
    for array, entry in zip(arrays, sets["nudged"], strict=True):
        np.testing.assert_allclose(entry["x"], array, rtol=5e-7)
        assert (entry["x"] != array).any() or (array == 0).all()


def test_integers_of_unknown_range_are_negative_too_where_the_type_has_them() -> None:
    kinds = {d: TensorSpec(name="n", dtype=d, shape=("batch", 9)) for d in ("int64", "int8", "uint8")}
    ends = {
        dtype: (min(int(e["n"].min()) for e in entries), max(int(e["n"].max()) for e in entries))
        for dtype, spec in kinds.items()
        for entries in [make_check_sets([spec], seed=0)["integers"]]
    }
    assert ends == {"int64": (-1000, 1000), "int8": (-128, 127), "uint8": (0, 255)}


def test_states_are_not_zero_and_bounded_floats_stay_within_their_bounds() -> None:
    state = TensorSpec(name="h0", dtype="float32", shape=(2, "batch", 8), values=(0, 0))
    picture = TensorSpec(name="p", dtype="float32", shape=("batch", 16), values=(0, 255))
    sets = make_check_sets([state, picture], seed=0)
    assert all(entry["h0"].any() for entry in sets["masks"])
    pictures = np.concatenate([entry["p"] for entry in sets["large"]])
    assert pictures.min() == 0 and pictures.max() == 255


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec(name="threshold", dtype="float32", shape=(), values=(0.5, 0.5)),
        TensorSpec(name="scales", dtype="float32", shape=(FEWEST_DATA - 1,)),
        TensorSpec(name="sr", dtype="int64", shape=(), values=(16000, 16000)),
        TensorSpec(name="scale_factor", dtype="float32", shape=("batch", 2), values=(1, 1)),
        TensorSpec(name="words", dtype="str", shape=("batch", 9)),
    ],
)
def test_settings_and_text_stay_as_they_are(spec: TensorSpec) -> None:
    assert make_check_sets([spec], seed=0) == {}


def test_a_graph_gets_the_entries_of_its_module() -> None:
    fixed = TensorSpec(name="x", dtype="float32", shape=(4, 3, 8, 8))
    graph, module = (make_check_sets([spec], seed=3, batch=4) for spec in (IMAGE, fixed))
    for name, entries in graph.items():
        for a, b in zip(entries, module[name], strict=True):
            np.testing.assert_array_equal(a["x"], b["x"])
