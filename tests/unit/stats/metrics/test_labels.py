"""Answers as labels: ranks, F1 and overlaps, against scikit-learn and by hand."""

import numpy as np
import pytest

from enginebench.core.errors import FeedError
from enginebench.stats.metrics.labels import count_top, rank_labels, read_labels
from enginebench.stats.metrics.metric import Metric, Targets
from enginebench.stats.metrics.scores import score_counts
from enginebench.stats.metrics.tasks import BUILTIN


def count(metric: Metric, outputs, targets):
    assert metric.count is not None
    return metric.count({"out": np.asarray(outputs)}, Targets(values=np.asarray(targets)))


def measure(name: str, outputs, targets, reference=None):
    """The score by a built-in metric, of these answers."""
    metric = BUILTIN[name](Targets(values=np.asarray(targets)))
    found = count(metric, outputs, targets)
    return score_counts(metric, found, None if reference is None else count(metric, reference, targets))


def test_counts_top1_and_top5():
    logits = np.array([[9, 8, 7, 6, 5, 4], [9, 8, 7, 6, 5, 4], [9, 8, 7, 6, 5, 4]], np.float32)
    top1 = measure("top1", logits, [0, 4, 5])
    assert top1.value.n == 3 and top1.value.value == pytest.approx(1 / 3)
    assert measure("top5", logits, [0, 4, 5]).value.value == pytest.approx(2 / 3)
    assert top1.delta is None and top1.mcnemar_p is None
    assert top1.value.method == "Wilson score interval"
    assert count_top(5)({"out": np.eye(5)}, Targets(values=np.arange(5))) is None
    # Equal logits are ranked as argmax does it.
    assert rank_labels(np.zeros((3, 4)), np.array([0, 1, 3])).tolist() == [0, 1, 3]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_answer_that_is_not_finite_is_wrong(value):
    assert measure("top1", [[5.0, 1.0, 1.0], [5.0, 1.0, value]], [0, 0]).value.value == 0.5


def test_a_class_that_the_graph_names_itself_by_number_or_word_is_compared_as_it_is():
    assert measure("top1", np.array([[3], [7], [1]]), [3, 7, 2]).value.value == pytest.approx(2 / 3)
    assert measure("top1", np.array([["cat"], ["dog"]]), np.array(["cat", "cow"])).value.value == 0.5


def test_difference_is_paired_and_signed():
    right, wrong = [1.0, 0.0], [0.0, 1.0]
    found = measure("top1", [right, right, wrong, wrong], np.zeros(4, int), [right, right, right, right])
    assert found.delta is not None and found.delta.value == -0.5
    assert found.delta.low is not None and found.delta.low < -0.5 < found.delta.high
    assert found.mcnemar_p == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("logits", "labels", "said"),
    [
        (np.zeros(3), np.zeros(3, int), "expected \\[samples, classes\\]"),
        (np.zeros((2, 0)), np.zeros(2, int), "at least one"),
        (np.zeros((2, 3)), np.zeros(3, int), "as many samples"),
        (np.zeros((2, 3)), np.array([0.5, 1]), "whole numbers"),
        (np.zeros((2, 3)), np.array([0, 3]), "0 to 2"),
        (np.zeros((2, 3)), np.array([-1, 2]), "from -1"),
        (np.zeros((2, 3)), np.array(["cat", "dog"]), "needs numbers"),
    ],
)
def test_refuses_what_does_not_fit(logits, labels, said):
    with pytest.raises(FeedError, match=said):
        count_top(1)({"out": logits}, Targets(values=labels))


def test_targets_choose_the_output_by_its_name():
    outputs = {"features": np.zeros((3, 8)), "scores": np.eye(3)}
    assert (count_top(1)(outputs, Targets(values={"scores": np.arange(3)}))[:, 0] == 1).all()
    with pytest.raises(FeedError, match="targets are other, outputs features, scores"):
        count_top(1)(outputs, Targets(values={"other": np.arange(3)}))


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("shape", [(200,), (50, 9)])
def test_f1_is_that_of_scikit_learn(classes, shape):
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(classes)
    right = rng.integers(0, classes, shape)
    scores = rng.standard_normal((*shape, classes)) + np.eye(classes)[right]
    found = measure("f1", scores, right).value.value
    average = "binary" if classes == 2 else "macro"
    assert found == pytest.approx(sklearn.f1_score(right.ravel(), scores.argmax(-1).ravel(), average=average))


def test_one_score_is_yes_from_a_half_on():
    assert read_labels(np.array([[0.5], [0.49]]), np.zeros(2), Targets(values=[0, 0])).tolist() == [1, 0]
    assert measure("f1", np.array([[0.9], [0.2], [0.7], [0.1]]), [1, 0, 0, 1]).value.value == pytest.approx(0.5)
    # Steps that nobody labelled do not count.
    right = np.array([[1, 0, -1, -1], [1, 1, 0, -1]])
    scores = np.eye(2)[np.array([[1, 0, 1, 1], [1, 1, 0, 1]])]
    assert measure("f1", scores, right).value.value == 1.0


def test_mean_iou_is_that_of_scikit_learn():
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    right = rng.integers(0, 4, (6, 10, 12))
    scores = rng.standard_normal((6, 4, 10, 12)) + np.moveaxis(np.eye(4)[right], -1, 1)
    found = measure("miou", scores, right).value.value
    assert found == pytest.approx(sklearn.jaccard_score(right.ravel(), scores.argmax(1).ravel(), average="macro"))
    assert measure("miou", scores.argmax(1), right).value.value == pytest.approx(found)


@pytest.mark.parametrize("metric", ["f1", "miou"])
def test_class_ids_in_floats_are_class_ids_and_logits_are_no_scores(metric):
    right = np.array([[[0, 1], [2, 3]], [[4, 5], [0, 1]]])
    wrong = np.where(right > 0, 6.0, 0.0)
    assert measure(metric, right.astype(np.float32), right).value.value == 1.0
    assert measure(metric, wrong, right).value.value == measure(metric, wrong.astype(int), right).value.value < 0.2
    with pytest.raises(FeedError, match=r"outputs are -3.5 to 1.5 with one value for each target; expected class ids"):
        measure(metric, right - 3.5, right)


def test_a_picture_whose_height_is_the_number_of_classes_has_its_classes_second_and_no_more_than_a_table_holds():
    scores = np.zeros((1, 4, 4, 4))
    scores[0, 2] = 1.0
    assert measure("miou", scores, np.full((1, 4, 4), 2)).value.value == 1.0
    with pytest.raises(FeedError, match="class 4000000; expected class ids below 65536"):
        measure("miou", np.full((1, 2, 2), 4_000_000), np.zeros((1, 2, 2), int))
