"""Answers as they come: what of them is kept for which metric, how many are compared, and how few stay."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enginebench.core.errors import UsageError
from enginebench.core.records import Task
from enginebench.runs.child.arrays import (
    CHECKED_VALUES,
    KEPT_VALUES,
    limit_calls,
    load_arrays,
    load_outputs,
    reduce_outputs,
    save_arrays,
    save_outputs,
)
from enginebench.runs.child.collecting import Collector, score_outputs, unpack_outputs
from enginebench.runs.child.jobs import Labelled, ScoreJob
from enginebench.runs.child.perform.outputs import Entries, OutputSource, collect_outputs
from enginebench.runs.scoring import score_file
from enginebench.stats.metrics.metric import Facts, Targets

CODE = """
import numpy as np
def each(outputs, targets):
    return [float(o.argmax() == t) for o, t in zip(outputs, targets)]
def whole(outputs, targets):
    if len(targets) < 10:
        raise ValueError("too few")
    return float(np.mean([o.argmax() == t for o, t in zip(outputs, targets)]))
def strict(outputs, targets):
    if not np.isfinite(outputs).all():
        raise ValueError("Input contains NaN")
    return (outputs.argmax(1) == targets).astype(float)
def shown(outputs, targets):
    return float(sum((s > 0).sum() for s in outputs["scores"]))
def read(outputs, targets):
    return float(np.mean([o == t for o, t in zip(outputs, targets)]))
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "collected_metrics.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "collected_metrics", raising=False)


def collect(
    names: tuple[str, ...], outputs: dict[str, Any], values: Any, step: int = 4, task: Task | None = None, **more: Any
) -> dict[str, Any]:
    n = len(values)
    collector = Collector(names, Targets(values=values, **more), n, task)
    for start in range(0, n, step):
        places = range(start, min(start + step, n))
        collector.add(places, {name: array[start : start + step] for name, array in outputs.items()})
    return collector.collect()


FACTS = Facts(name="top1", higher_is_better=True, share=True)
LOGITS = np.random.default_rng(0).standard_normal((30, 7)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 7, 30)


def test_a_metric_of_all_samples_gets_all_outputs(tmp_path: Path) -> None:
    kept = collect(("collected_metrics:whole",), {"out": LOGITS}, LABELS)
    assert sorted(kept) == ["outputs/out", "targets"] and (kept["outputs/out"] == LOGITS).all()
    save_arrays(tmp_path / "a.npz", kept)
    score = score_outputs(ScoreJob(metric="collected_metrics:whole", labelled_path="a.npz", reference_path="a.npz"))
    assert score.value.value == pytest.approx((LOGITS.argmax(1) == LABELS).mean())
    assert score.delta is not None and score.delta.value == 0


def test_shapes_may_differ_from_sample_to_sample(tmp_path: Path) -> None:
    collector = Collector(("collected_metrics:whole",), Targets(values=LABELS[:12]), 12, None)
    for i in reversed(range(12)):
        collector.add([i], {"a/b": LOGITS[i : i + 1, : 3 + i % 4]})
    save_arrays(tmp_path / "a.npz", collector.collect())
    outputs = unpack_outputs(collector.collect())
    assert [a.shape for a in outputs["a/b"]] == [(3 + i % 4,) for i in range(12)]
    score_outputs(ScoreJob(metric="collected_metrics:whole", labelled_path="a.npz"))


def test_one_engines_outputs_may_be_too_much_for_a_metric() -> None:
    broken = LOGITS.copy()
    broken[20] = np.nan
    kept = collect(("collected_metrics:strict", "top1"), {"out": broken}, LABELS)
    assert "Input contains NaN (collected_metrics.py:11" in str(kept["failure/collected_metrics:strict"])
    assert "counts/top1" in kept


def test_text_is_what_a_metric_of_text_gets(tmp_path: Path) -> None:
    lines = np.eye(3)[np.array([[1, 1, 2], [2, 0, 0]])]
    kept = collect(("collected_metrics:read",), {"out": lines}, ["ab", "b"], task="text", vocabulary=("-", "a", "b"))
    assert kept["outputs/out"].tolist() == ["ab", "b"]
    save_arrays(tmp_path / "a.npz", kept)
    assert score_outputs(ScoreJob(metric="collected_metrics:read", labelled_path="a.npz")).value.value == 1.0


def test_what_cannot_be_wrong_is_left_out() -> None:
    kept = collect(("top1", "top5"), {"out": LOGITS[:, :5]}, LABELS % 5)
    assert list(kept) == ["counts/top1"]
    with pytest.raises(UsageError, match="--metric top5 cannot be wrong about so few classes"):
        collect(("top5",), {"out": LOGITS[:, :5]}, LABELS % 5)


@pytest.mark.parametrize(
    ("metric", "values", "said"),
    [
        ("top1", np.zeros((30, 2), int), "labels of shape (30, 2); expected (30,), one for each sample"),
        ("f1", np.zeros((30, 2), int), "outputs have shape [30, 7], targets [30, 2]"),
        ("mae", np.zeros((30, 2)), "outputs have shape [30, 7], targets [30, 2]"),
    ],
)
def test_shapes_are_reported_of_all_samples_not_of_those_that_came_together(
    metric: str, values: Any, said: str
) -> None:
    kept = collect((metric,), {"out": LOGITS}, values, step=4)
    assert said in str(kept[f"failure/{metric}"])


def test_outputs_that_do_not_fit_are_the_users_to_mend() -> None:
    kept = collect(("top1",), {"out": LOGITS}, LABELS + 7)
    assert "expected 0 to 6" in str(kept["failure/top1"]) and "counts/top1" not in kept


@pytest.mark.parametrize(("values", "calls"), [(10, 32), (CHECKED_VALUES // 8, 8), (CHECKED_VALUES * 2, 2), (0, 32)])
def test_large_outputs_are_compared_a_few_times(values: int, calls: int) -> None:
    assert limit_calls(32, values) == calls
    assert limit_calls(1, values) == 1


def test_the_first_calls_stay(tmp_path: Path) -> None:
    path, large = tmp_path / "a.npz", np.arange(4 * KEPT_VALUES // 2, dtype=np.float32).reshape(8, -1)
    save_outputs(path, {"y": large, "z": np.arange(4)}, 4)  # two entries a call, and one
    before = path.stat().st_size
    reduce_outputs(path)
    found, calls = load_outputs(path)
    assert calls == 2 and path.stat().st_size < 0.6 * before
    assert np.array_equal(found["y"], large[:4]) and found["z"].tolist() == [0, 1]
    reduce_outputs(path)
    assert load_outputs(path)[1] == 2


def test_small_outputs_and_those_of_older_versions_stay_whole(tmp_path: Path) -> None:
    save_outputs(tmp_path / "a.npz", {"y": np.ones((6, 2))}, 6)
    save_arrays(tmp_path / "old.npz", {"y": np.ones((4, KEPT_VALUES), np.float16)})
    for name in ("a.npz", "old.npz"):
        before = load_arrays(tmp_path / name)
        reduce_outputs(tmp_path / name)
        assert load_arrays(tmp_path / name)["y"].shape == before["y"].shape


def collect_some(places: list[int], outputs: Any, names: tuple[str, ...] = ("top1", "collected_metrics:whole")) -> Any:
    collector = Collector(names, Targets(values=LABELS), len(LABELS), None)
    for place in places:
        collector.add([place], {"out": outputs[place : place + 1]})
    return collector.collect()


def test_fewer_samples_are_scored_as_such_and_held_against_the_same_samples(tmp_path: Path) -> None:
    # Right on every sample that it answered; the other side is right on some, and is asked about these alone.
    right = np.eye(7)[LABELS]
    few = [21, 3, 8, 27, 5, 11, 0, 14, 19, 2, 7]
    save_arrays(tmp_path / "few.npz", collect_some(few, right))
    save_arrays(tmp_path / "all.npz", collect_some([*range(30)], LOGITS))
    hits = LOGITS.argmax(1) == LABELS
    (score,) = score_file([FACTS], tmp_path / "few.npz", tmp_path / "all.npz")
    assert (score.value.value, score.value.n) == (1.0, 11)
    assert score.delta is not None and score.delta.n == 11
    assert score.delta.value == pytest.approx(1 - hits[few].mean())
    (score,) = score_file([FACTS], tmp_path / "all.npz", tmp_path / "few.npz")
    assert (score.value.value, score.value.n) == (hits.mean(), 30)
    assert score.delta is not None and score.delta.value == pytest.approx(hits[few].mean() - 1)
    job = ScoreJob(metric="collected_metrics:whole", labelled_path="few.npz", reference_path="all.npz")
    whole = score_outputs(job)
    assert (whole.value.value, whole.value.n) == (1.0, 11)
    assert whole.delta is not None and whole.delta.value == pytest.approx(1 - hits[few].mean())


def test_sides_without_a_sample_in_common_have_no_difference(tmp_path: Path) -> None:
    for name, places in (("a.npz", [0, 1, 2]), ("b.npz", [10, 11, 12])):
        save_arrays(tmp_path / name, collect_some(places, LOGITS, ("top1",)))
    (score,) = score_file([FACTS], tmp_path / "a.npz", tmp_path / "b.npz")
    assert score.value.n == 3 and score.delta is None


@pytest.mark.parametrize(("seconds", "answered"), [(None, 30), (4.5, 5), (0.0, 1), (1e9, 30)])
def test_a_tool_that_takes_its_time_computes_a_drawn_part(seconds: float | None, answered: int) -> None:
    ticks = iter(range(1000))
    asked: list[int] = []

    def call(feeds: Any) -> Any:
        asked.append(int(feeds["i"][0]))
        return {"out": LOGITS[feeds["i"]]}

    entries = Entries(
        n=30,
        group=lambda step: [range(i, i + step) for i in range(0, 30, step)],
        feed=lambda places, step: {"i": np.array(places)},
        preprocess_sha256=None,
        label=lambda classes: LABELS,
    )
    labelled = Labelled(data="x", n=30, input_size=None, metrics=("top1",), targets=None, task=None)
    source = OutputSource(call, 1, seconds, seed=3, clock=lambda: float(next(ticks)))
    kept, _ = collect_outputs(source, entries, labelled)
    assert len(asked) == len(set(asked)) == len(kept["counts/top1"]) == answered
    if 1 < answered < 30:
        assert asked != sorted(asked) and kept["places"].tolist() == sorted(asked)
        assert kept["counts/top1"][:, 0].tolist() == (LOGITS.argmax(1) == LABELS)[sorted(asked)].tolist()
