"""Drift sample by sample, and flips against the margin that they had to overcome."""

import numpy as np
import pytest

from enginebench.stats.drift import NEAR_TIE, SNR_CEILING_DB, find_exceeded, measure_drift, measure_samples

REF = np.array([[10.0, 0.0, 0.0], [5.0, 4.9, 0.0], [0.0, 3.0, 1.0]])


def test_samples_by_hand() -> None:
    cand = REF.copy()
    cand[0, 1] = 3.0
    cand[1] = [4.9, 5.0, 0.0]
    first, second, third = measure_samples({"y": REF}, {"y": cand})
    assert (first.index, first.output, first.max_abs_diff, first.mean_abs_diff) == (0, "y", 3.0, 1.0)
    assert first.cosine == pytest.approx(10 / np.sqrt(109))
    assert first.snr_db == pytest.approx(10 * np.log10(100 / 9))
    assert (first.top1_reference, first.top1_candidate, first.top1_agrees) == (0, 0, True)
    assert (second.top1_reference, second.top1_candidate, second.top1_agrees) == (0, 1, False)
    assert second.margin == pytest.approx(0.1)
    assert second.beyond_noise is False
    assert (third.max_abs_diff, third.snr_db, third.margin) == (0.0, SNR_CEILING_DB, 2.0)
    assert first.top5_agrees is None, "three classes cannot disagree in five"


def test_flips_of_near_ties_are_told_from_flips_of_sure_answers() -> None:
    rng = np.random.default_rng(0)
    ref = np.zeros((100, 10))
    ref[:, 0] = 5.0
    ref[:10, 1] = 4.99  # ten near ties
    cand = ref + rng.normal(0, 0.1, ref.shape)
    cand[50] = np.roll(ref[50], 3)  # a sure answer, turned over
    (output,) = measure_drift({"y": ref}, {"y": cand}, {}).outputs
    samples = measure_samples({"y": ref}, {"y": cand})
    assert output.near_ties == 10
    assert output.flips_beyond_noise == 1
    assert output.flips == sum(not s.top1_agrees for s in samples) > 1
    assert [s.index for s in samples if s.beyond_noise and not s.top1_agrees] == [50]


def test_what_moves_all_scores_alike_is_no_noise() -> None:
    (output,) = measure_drift({"y": REF}, {"y": REF + 100}, {}).outputs
    assert (output.flips, output.near_ties) == (0, 0)


def test_noise_at_the_threshold_flips_about_as_often_as_it_should() -> None:
    """A margin of exactly the threshold is overcome in 2.5 % of samples by normal noise."""
    rng = np.random.default_rng(1)
    ref = np.zeros((20000, 2))
    ref[:, 0] = NEAR_TIE
    # Centring two scores halves their variance: noise of deviation sqrt(2) is seen as 1.
    noise = rng.normal(0, 1, ref.shape)
    flipped = (ref + noise).argmax(1) != 0
    assert flipped.mean() == pytest.approx(0.025, abs=0.005)


def test_samples_that_are_not_finite_are_counted_and_judged_by_nothing_else() -> None:
    cand = REF.copy()
    cand[1, 2] = np.nan
    first, second, _ = measure_samples({"y": REF}, {"y": cand})
    assert (second.nonfinite, second.cosine, second.centred_cosine, second.top1_agrees) == (1, None, None, None)
    assert second.max_abs_diff == 0.0
    assert first.nonfinite == 0


def test_one_class_is_no_choice() -> None:
    one = np.ones((3, 1))
    assert measure_drift({"y": one}, {"y": one}, {}).outputs[0].flips is None
    assert measure_samples({"y": one}, {"y": one})[0].top1_agrees is None


def test_every_limit_that_was_not_kept_is_a_sentence() -> None:
    cand = REF + 1
    cand[0, 0] = np.inf
    drift = measure_drift({"y": REF}, {"y": cand}, {"max_abs": 0.5, "cosine": 0.1, "mean_abs": 2.0})
    assert find_exceeded(drift) == ("y: 1 values are not finite", "y: max_abs is 1; the limit is 0.5")
    assert find_exceeded(measure_drift({"y": REF}, {"y": REF}, {"max_abs": 0.5})) == ()
