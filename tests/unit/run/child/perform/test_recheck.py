"""Outputs after the timed calls: whose they are, by how far they lie from their own and from the inputs before."""

from pathlib import Path

import numpy as np
import pytest

from enginebench.core.records import Precision
from enginebench.runs.child.perform.recheck import load_expected, measure_strangeness, save_expected

OWN = {"y": np.array([[1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]], np.float32)}
OTHER = {"y": np.array([[4.0, 1.0, 2.0, 3.0], [3.0, 4.0, 1.0, 2.0]], np.float32)}
HALF = {"y": np.array([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]], np.float32)}


def measure(found: np.ndarray, precision: Precision = "fp32") -> float:
    return measure_strangeness({"y": found}, OWN, OTHER, precision)


@pytest.mark.parametrize(
    ("found", "precision", "strange"),
    [
        (OWN["y"], "fp32", False),
        (OWN["y"] + 1e-3, "fp32", False),  # another order of sums
        (OTHER["y"], "fp32", True),  # of the call before
        (OTHER["y"] + 0.02, "int8", True),  # the same, rounded otherwise
        (HALF["y"], "fp32", True),
        (OWN["y"] * 1.02, "bf16", False),  # another kernel of a short format
        (OWN["y"] * 1.02, "fp32", True),
        (np.full_like(OWN["y"], np.nan), "fp32", True),
    ],
)
def test_outputs_are_those_of_their_inputs(found: np.ndarray, precision: Precision, strange: bool) -> None:
    assert (measure(found, precision) > 0) == strange


def test_where_all_outputs_are_alike_none_is_strange() -> None:
    constant = {"y": np.ones((2, 4), np.float32)}
    assert measure_strangeness(constant, constant, constant, "fp32") == 0
    noisy = {"y": constant["y"] + np.float32(1e-6)}
    assert measure_strangeness(noisy, constant, {"y": constant["y"] + np.float32(2e-6)}, "fp32") == 0


def test_the_length_of_a_list_of_boxes_may_depend_on_a_rounding() -> None:
    labels = {"n": np.array([1, 2, 3])}
    shorter, others = {"n": np.array([1, 2])}, {"n": np.array([7, 8])}
    assert measure_strangeness(shorter, labels, others, "fp32") == 0
    assert measure_strangeness(others, labels, others, "fp32") > 0


def test_expected_outputs_are_kept_apart_by_sample(tmp_path: Path) -> None:
    save_expected(tmp_path / "a.npz", [OWN, OTHER])
    first, second = load_expected(tmp_path / "a.npz")
    assert np.array_equal(first["y"], OWN["y"]) and np.array_equal(second["y"], OTHER["y"])
