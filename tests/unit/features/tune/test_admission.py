"""Who may race."""

import pytest
from msgspec.structs import replace

from enginebench.core.records import Caveat, Drift, EngineSpec, Estimate, MeasureSpec, OutputDrift, Result, Score
from enginebench.features.tune.track import find_refusal


def make_output(cosine: float = 0.999, nonfinite: int = 0) -> OutputDrift:
    return OutputDrift(
        name="y", mean_abs_diff=0.1, max_abs_diff=0.2, mean_rel_diff=0.1, cosine_mean=cosine, cosine_min=cosine,
        centred_cosine_mean=cosine, snr_db=40.0, top1_agreement=0.99, top5_agreement=1.0, nonfinite=nonfinite,
    )  # fmt: skip


def make_row(
    name: str = "c", *, passed: bool = True, cosine: float = 0.999, nonfinite: int = 0, score: float | None = None,
    status: str = "partial", compared: bool = True, unlike: tuple[str, ...] = (),
) -> Result:  # fmt: skip
    drift = Drift(
        n=32, outputs=(make_output(cosine, nonfinite),), limits={"centred_cosine": 0.9}, passed=passed, reference="r",
        unlike=unlike,
    )  # fmt: skip
    value = Estimate(value=score or 0, low=None, high=None, level=0.95, n=100, method="")
    scores = () if score is None else (Score(metric="top1", value=value, share=True),)
    return Result(
        id=name, model="m", engine=EngineSpec(backend="fake"), measure=MeasureSpec(), requested_precision="fp32",
        status=status, drift=drift if compared else None, scores=scores,
        reason="it broke" if status != "partial" else None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (make_row(status="failed"), "it broke"),
        (make_row(status="skipped"), "it broke"),
        (make_row(passed=False, cosine=0.7), "differ too much: centred_cosine 0.7 below 0.9"),
        (make_row(nonfinite=3, passed=False), "not finite"),
        (make_row(passed=False, unlike=("other inputs",)), "cannot be compared: other inputs"),
    ],
)
def test_who_may_not_race_and_why(row: Result, said: str) -> None:
    assert said in str(find_refusal(row, make_row("r")))


def test_who_may_race() -> None:
    assert find_refusal(make_row(), make_row("r")) is None
    assert find_refusal(make_row("r", passed=False), make_row("r")) is None, "the reference agrees with itself"
    assert find_refusal(make_row(), None) is not None, "nobody looked at its answers"


def test_with_labels_the_score_decides() -> None:
    base = make_row("r", score=0.76)
    assert find_refusal(make_row(score=0.755, passed=False, cosine=0.5), base) is None
    assert "top1 0.73 against 0.76: it loses 0.03, and may lose 0.01" in str(find_refusal(make_row(score=0.73), base))
    assert find_refusal(make_row(score=0.73), base, max_drop=0.05) is None
    assert find_refusal(make_row(), base) == "it has no top1"
    assert "not finite" in str(find_refusal(make_row(score=0.76, nonfinite=1), base))


@pytest.mark.parametrize(("cosine", "score", "races"), [(0.93, 0.1, True), (0.2, None, False)])
def test_random_weights_refuse_what_is_grossly_wrong_alone(cosine: float, score: float | None, races: bool) -> None:
    random = Caveat(code="random_weights", message="the weights are random")
    row = replace(make_row(passed=False, cosine=cosine, score=score), caveats=(random,))
    base = make_row("r", score=None if score is None else 5 * score)
    assert (find_refusal(row, base) is None) is races
    assert find_refusal(replace(row, caveats=()), base) is not None


def test_limits_that_are_named_hold_beside_the_score_and_in_place_of_the_usual_ones() -> None:
    base = make_row("r", score=0.76)
    limits = {"centred_cosine": 0.95}
    assert "centred_cosine 0.92 below 0.95" in str(find_refusal(make_row(score=0.76, cosine=0.92), base, limits=limits))
    assert find_refusal(make_row(cosine=0.92), make_row("r"), limits={"centred_cosine": 0.9}) is None
    assert find_refusal(make_row(cosine=0.8, passed=False), make_row("r"), limits={"centred_cosine": 0.7}) is None


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"snr": 60.0}, "snr 40 below 60 (centred cosine 0.9990)"),
        ({"max_abs": 0.1}, "max_abs 0.2 above 0.1 (centred cosine 0.9990)"),
        ({"max_abs": 0.1, "top1": 1.0}, "max_abs 0.2 above 0.1, top1 0.99 below 1 (centred cosine 0.9990)"),
        ({"mean_abs": 0.2, "centred_cosine": 1.0}, "centred_cosine 0.999 below 1"),
    ],
)
def test_a_least_is_missed_below_and_a_most_above(limits: dict[str, float], said: str) -> None:
    assert find_refusal(make_row(), make_row("r"), limits=limits) == f"its outputs differ too much: {said}"
