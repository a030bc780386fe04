"""Metrics of numbers, against scikit-learn and scipy."""

import numpy as np
import pytest
from scipy.spatial.distance import cosine

from enginebench.core.errors import FeedError
from enginebench.stats.metrics.metric import Targets
from enginebench.stats.metrics.tasks import count_absolute, count_cosine


def test_mean_absolute_error_is_that_of_scikit_learn():
    sklearn = pytest.importorskip("sklearn.metrics")
    found, right = np.random.default_rng(0).standard_normal((2, 30, 4))
    counts = count_absolute({"out": found}, Targets(values=right))
    assert counts.sum(axis=0)[0] / 30 == pytest.approx(sklearn.mean_absolute_error(right, found))


def test_an_axis_of_one_is_no_other_shape():
    counts = count_absolute({"out": np.array([[1.0], [2.0]])}, Targets(values=[1.5, 2.0]))
    assert counts[:, 0].tolist() == [0.5, 0.0]


def test_cosine_is_that_of_scipy():
    found, right = np.random.default_rng(1).standard_normal((2, 5, 8))
    counts = count_cosine({"out": found}, Targets(values=right))
    assert counts[:, 0] == pytest.approx([1 - cosine(a, b) for a, b in zip(found, right, strict=True)])
    assert count_cosine({"out": np.zeros((1, 3))}, Targets(values=np.ones((1, 3))))[0, 0] == 0


def test_shapes_that_differ_are_told():
    with pytest.raises(FeedError, match=r"outputs have shape \[2, 3\], targets \[2, 4\]"):
        count_absolute({"out": np.zeros((2, 3))}, Targets(values=np.zeros((2, 4))))
    with pytest.raises(FeedError, match="differ from sample to sample"):
        count_absolute({"out": [np.zeros(2), np.zeros(3)]}, Targets(values=np.zeros((2, 2))))
