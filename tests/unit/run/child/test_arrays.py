"""Answers in files: how many are compared, and how few stay."""

from pathlib import Path

import numpy as np
import pytest

from enginebench.runs.child.arrays import (
    CHECKED_VALUES,
    KEPT_VALUES,
    limit_calls,
    load_answers,
    load_arrays,
    reduce_answers,
    save_answers,
    save_arrays,
)


@pytest.mark.parametrize(("values", "calls"), [(10, 32), (CHECKED_VALUES // 8, 8), (CHECKED_VALUES * 2, 2), (0, 32)])
def test_large_answers_are_compared_a_few_times(values: int, calls: int) -> None:
    assert limit_calls(32, values) == calls
    assert limit_calls(1, values) == 1


def test_the_first_calls_stay(tmp_path: Path) -> None:
    path, large = tmp_path / "a.npz", np.arange(4 * KEPT_VALUES // 2, dtype=np.float32).reshape(8, -1)
    save_answers(path, {"y": large, "z": np.arange(4)}, 4)  # two entries a call, and one
    before = path.stat().st_size
    reduce_answers(path)
    found, calls = load_answers(path)
    assert calls == 2 and path.stat().st_size < 0.6 * before
    assert np.array_equal(found["y"], large[:4]) and found["z"].tolist() == [0, 1]
    reduce_answers(path)
    assert load_answers(path)[1] == 2


def test_small_answers_and_those_of_older_versions_stay_whole(tmp_path: Path) -> None:
    save_answers(tmp_path / "a.npz", {"y": np.ones((6, 2))}, 6)
    save_arrays(tmp_path / "old.npz", {"y": np.ones((4, KEPT_VALUES), np.float16)})
    for name in ("a.npz", "old.npz"):
        before = load_arrays(tmp_path / name)
        reduce_answers(tmp_path / name)
        assert load_arrays(tmp_path / name)["y"].shape == before["y"].shape
