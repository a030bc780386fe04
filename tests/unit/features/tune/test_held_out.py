"""Limits held against held-out samples: kept by the value, and shown by the interval."""

import numpy as np
import pytest
from msgspec.structs import replace

from enginebench.core.records import Estimate, Score
from enginebench.features.tune.held_out import hold_out, hold_score
from enginebench.stats.drift import limits_between
from samples import make_scene, reorder

RNG = np.random.default_rng(0)
REFERENCE = {"y": RNG.standard_normal((64, 10)).astype(np.float32)}


def add_noise(share: float) -> dict[str, np.ndarray]:
    noise = np.random.default_rng(1).standard_normal((64, 10)).astype(np.float32)
    return {"y": REFERENCE["y"] + np.sqrt(np.float32(share)) * noise}


@pytest.mark.parametrize(
    ("bound", "kept", "shown"), [(0.5, True, True), (0.999, False, False)], ids=["far below", "far above"]
)
def test_a_limit_far_from_the_value_is_decided(bound, kept, shown):
    (held,) = hold_out(REFERENCE, add_noise(0.1), {"centred_cosine": bound})
    assert (held.kept, held.shown) == (kept, shown)
    assert held.value.low < held.value.value < held.value.high and held.value.n == 64


def test_a_limit_inside_the_interval_is_kept_but_not_shown():
    (first,) = hold_out(REFERENCE, add_noise(0.1), {"centred_cosine": 0.5})
    bound = (first.value.low + first.value.value) / 2
    (held,) = hold_out(REFERENCE, add_noise(0.1), {"centred_cosine": bound})
    assert held.kept and not held.shown


def test_every_kind_of_limit_has_its_side():
    limits = {"snr": 5.0, "max_abs": 10.0, "mean_abs": 1.0, "top1": 0.5, "cosine_min": 0.1}
    held = {one.limit: one for one in hold_out(REFERENCE, add_noise(0.1), limits)}
    assert all(one.kept for one in held.values())
    assert held["snr"].shown and held["mean_abs"].shown and held["top1"].shown
    assert held["snr"].value.value == pytest.approx(10.0, abs=0.5)
    assert not held["max_abs"].shown and not held["cosine_min"].shown  # of an extreme no draw says how bad another is
    (broken,) = hold_out(REFERENCE, add_noise(0.1), {"mean_abs": 0.01})
    assert not broken.kept and not broken.shown


def test_decibels_do_not_depend_on_the_size_of_the_answers():
    (found,) = hold_out(REFERENCE, add_noise(0.1), {"snr": 5.0})
    sides = ({"y": side["y"].astype(np.float64) * 1e-200} for side in (REFERENCE, add_noise(0.1)))
    (tiny,) = hold_out(*sides, {"snr": 5.0})
    assert tiny.shown and tiny.value.value == pytest.approx(found.value.value)


def test_the_same_answers_keep_everything():
    assert all(one.kept and one.value.value == 1.0 for one in hold_out(REFERENCE, REFERENCE, {"centred_cosine": 1.0}))


@pytest.mark.parametrize(
    ("higher", "delta", "drop", "kept", "shown"),
    [
        (True, (-0.02, -0.03, -0.01), 0.05, True, True),
        (True, (-0.02, -0.03, -0.01), 0.025, True, False),
        (True, (-0.02, -0.03, -0.01), 0.01, False, False),
        (False, (0.02, 0.01, 0.03), 0.05, True, True),
        (False, (0.02, 0.01, 0.03), 0.025, True, False),
        (False, (0.02, 0.01, 0.03), 0.01, False, False),
    ],
)
def test_a_metric_may_lose_so_much_and_the_interval_says_whether_that_is_shown(higher, delta, drop, kept, shown):
    value, low, high = delta
    change = Estimate(value=value, low=low, high=high, level=0.95, n=100, method="", supported=True)
    score = Score(metric="m", value=change, higher_is_better=higher, share=True, delta=change)
    held = hold_score(score, drop)
    assert (held.kept, held.shown) == (kept, shown)
    assert not hold_score(replace(score, delta=None), drop).kept


def test_answers_that_are_not_finite_keep_nothing():
    broken = {"y": np.where(np.arange(10) == 3, np.nan, REFERENCE["y"]).astype(np.float32)}
    (held,) = hold_out(REFERENCE, broken, {"centred_cosine": 0.1})
    assert not held.kept and not held.shown


def test_a_limit_of_agreement_of_boxes_needs_an_interval():
    scene = make_scene(n=60)
    (held,) = hold_out(scene, reorder(scene), {"agreement": 0.9}, "detection")
    assert held.kept and held.shown and held.value.value == 1.0
    worse = {name: array.copy() for name, array in reorder(scene).items()}
    worse["scores"][::3, 0] = 0.01  # one box of six is gone in every third sample
    (held,) = hold_out(scene, worse, {"agreement": 0.93}, "detection")
    assert held.kept and not held.shown and held.value.low < 0.93 < held.value.value


def test_detectors_that_show_nothing_hold_no_limit():
    one, other = make_scene(), make_scene(seed=8)
    rows = [
        np.concatenate([s["boxes"], s["scores"][..., None] / 5, s["labels"][..., None]], axis=2) for s in (one, other)
    ]
    limits = limits_between("fp32", "fp32", "detection")
    (held,) = hold_out({"out": rows[0]}, {"out": rows[1]}, limits, "detection")
    assert (held.limit, held.value, held.kept, held.shown) == ("agreement", None, False, False)
