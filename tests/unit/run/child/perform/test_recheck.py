"""Outputs after the timed calls: whose they are, by how far they lie from their own and from the inputs before."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from enginebench.core.errors import UsageError
from enginebench.core.records import Precision
from enginebench.runs.child.perform.recheck import (
    find_early_outputs,
    load_expected,
    measure_strangeness,
    recheck_outputs,
    save_expected,
)

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


class Early:
    """Has the outputs of its inputs as soon as these are bound, or as late as in fetch; or refuses before run."""

    def __init__(self, kind: str) -> None:
        self.kind, self.held, self.bound = kind, {}, {}

    def bind(self, feeds: Any) -> None:
        self.bound = feeds
        self.ready = self.kind != "refuses"
        self.held = self.double(feeds) if self.kind == "in bind" else self.held

    def double(self, feeds: Any) -> Any:
        return {"y": feeds["x"] * 2}

    def run(self) -> None:
        self.held, self.ready = self.double(self.bound), True

    def fetch(self) -> Any:
        if not self.ready:
            raise UsageError("call run first")
        return self.double(self.bound) if self.kind == "in fetch" else self.held


@pytest.mark.parametrize(
    ("kind", "found"), [("in run", False), ("in bind", True), ("in fetch", True), ("refuses", False)]
)
def test_outputs_that_are_there_before_run(kind: str, found: bool) -> None:
    feeds = [{"x": OWN["y"]}, {"x": OTHER["y"] + 0.5}]
    expected = [Early("in run").double(one) for one in feeds]
    warnings = find_early_outputs(cast(Any, Early(kind)), feeds, expected, "fp32")
    assert [one.template for one in warnings] == ["implausible_time.outside_run"] * found


def test_an_engine_may_hand_out_its_inputs_without_a_run() -> None:
    feeds = [{"x": OWN["y"]}, {"x": OTHER["y"]}]
    moved = [{"y": one["x"].T} for one in feeds]
    engine = Early("in bind")
    engine.double = lambda feeds: {"y": feeds["x"].T}  # type: ignore[method-assign]
    assert find_early_outputs(cast(Any, engine), feeds, moved, "fp32") == []


def test_a_large_input_is_not_sorted_for_outputs_that_it_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "isin", lambda *others: pytest.fail("half a second in each trial"))
    feeds = [{"x": OWN["y"]}, {"x": OTHER["y"] + 0.5}]
    expected = [Early("in run").double(one) for one in feeds]
    assert find_early_outputs(cast(Any, Early("in bind")), feeds, expected, "fp32")


def test_inputs_lie_in_the_same_arrays_when_they_are_asked_again() -> None:
    """An engine that knows inputs by their address has the outputs of others; what stays bound outlives the check."""
    engine = Early("in run")
    addresses: list[int] = []
    bind = engine.bind

    def watch(feeds: Any) -> None:
        addresses.append(feeds["x"].ctypes.data)
        bind(feeds)

    engine.bind = watch  # type: ignore[method-assign]
    feeds = [{"x": OWN["y"]}, {"x": OTHER["y"] + 0.5}]
    assert recheck_outputs(cast(Any, engine), feeds, [engine.double(one) for one in feeds], "fp32") == []
    *asked, last = addresses
    assert len(asked) == 3 and len(set(asked)) == 1
    assert last == feeds[1]["x"].ctypes.data
