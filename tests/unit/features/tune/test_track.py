"""Who may race, and the rows of settings: which graph each starts from, and what makes two of them different."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError
from enginebench.core.records import Artifact, MeasureSpec, Result, ResultWarning, TensorSpec
from enginebench.features.tune import track
from enginebench.features.tune.proposals import LowerLevels, Tried
from enginebench.features.tune.space import Arm, Setting
from enginebench.features.tune.track import CandidatePlanner, find_refusal
from enginebench.runs.child.jobs import QuantizeJob
from enginebench.runs.folder import RunRequest
from enginebench.runs.plan import resolve
from enginebench.runs.targets.sources import Sources
from reporters import Silent
from samples import make_drift, make_implausible, make_result


def make_row(
    name: str = "c",
    *,
    passed: bool = True,
    cosine: float = 0.999,
    nonfinite: int = 0,
    score: float | None = None,
    status: str = "partial",
    compared: bool = True,
    unlike: tuple[str, ...] = (),
) -> Result:
    found = make_drift(0.2, passed=passed, nonfinite=nonfinite, centred=cosine)
    output = replace(found.outputs[0], mean_abs_diff=0.1, cosine_mean=cosine, snr_db=40.0, top1_agreement=0.99)
    drift = replace(found, outputs=(output,), limits={"centred_cosine": 0.9}, reference="r", unlike=unlike)
    told = {"status": status, "reason": "it broke" if status != "partial" else None, "accuracy": score}
    made = make_result("fake", drift=drift if compared else None, processes=0, identity=name, **told)  # type: ignore[arg-type]
    return made if name == "r" else replace(made, requested_precision="int8")


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


def test_outputs_that_padding_changed_are_refused_in_words() -> None:
    row = make_row(passed=False, cosine=0.7)
    padded = replace(row, engine=replace(row.engine, options={"pad": "32"}))
    assert "taken over the padded length without a mask" in str(find_refusal(padded, make_row("r")))
    assert "padded" not in str(find_refusal(row, make_row("r")))


def test_with_labels_the_score_decides() -> None:
    assert find_refusal(make_row(), make_row("r")) is None
    assert find_refusal(make_row("r", passed=False), make_row("r")) is None, "the reference agrees with itself"
    assert find_refusal(make_row(), None) is not None, "nobody looked at its answers"
    base = make_row("r", score=0.76)
    assert find_refusal(make_row(score=0.755, passed=False, cosine=0.5), base) is None
    assert "top1 0.73 against 0.76: it loses 0.03, and may lose 0.01" in str(find_refusal(make_row(score=0.73), base))
    assert find_refusal(make_row(score=0.73), base, max_drop=0.05) is None
    assert find_refusal(make_row(), base) == "it has no top1"
    assert "not finite" in str(find_refusal(make_row(score=0.76, nonfinite=1), base))


def test_a_score_does_not_excuse_fp32_whose_outputs_changed() -> None:
    """40 dB are plenty for INT8; in FP32 they are another network, which happens to score alike."""
    base, row = make_row("r", score=0.76), make_row(score=0.76)
    assert find_refusal(row, base) is None
    assert "snr 40 below 60" in str(find_refusal(replace(row, requested_precision="fp32"), base))


def test_a_search_holds_all_reduced_precisions_to_the_coarsest_that_was_asked_for() -> None:
    row = replace(make_row(cosine=0.95), requested_precision="bf16")
    assert "centred_cosine 0.95 below 0.99" in str(find_refusal(row, make_row("r"), requested=("fp32", "bf16")))
    assert find_refusal(row, make_row("r"), requested=("fp32", "bf16", "int8")) is None


def test_what_was_held_against_fp32_that_does_not_race_is_judged_by_its_drift() -> None:
    """As where the default in FP32 failed, which was to judge."""
    rows = [make_row(), make_row(passed=False, cosine=0.7)]
    apart = [replace(row, drift=replace(row.drift, elsewhere=True)) for row in rows if row.drift]
    assert [find_refusal(row, None) is None for row in (*rows, *apart)] == [False, False, True, False]


@pytest.mark.parametrize(("cosine", "score", "races"), [(0.93, 0.1, True), (0.27, None, True), (0.1, None, False)])
def test_random_weights_refuse_what_is_grossly_wrong_alone(cosine: float, score: float | None, races: bool) -> None:
    random = ResultWarning(code="random_weights", message="the weights are random")
    row = replace(make_row(passed=False, cosine=cosine, score=score), warnings=(random,), requested_precision="int8")
    base = make_row("r", score=None if score is None else 5 * score)
    assert (find_refusal(row, base) is None) is races
    assert find_refusal(replace(row, warnings=()), base) is not None


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


TENSOR = TensorSpec(name="x", dtype="float32", shape=("batch", 4))
GRAPH = Artifact(kind="onnx", model="m", path="/m.onnx", sha256="0", files=(), inputs=(TENSOR,), outputs=(TENSOR,))
INT8 = replace(GRAPH, precision="int8", recipe="cpu", sha256="8", parent_sha256="0")
REQUEST = RunRequest(model="m", engines=(("ort", {}),), precisions=(("fp32", None), ("int8", None)))
SETTING = Setting(engine="ort", precision="int8", recipe="cpu", threads=2)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that were asked for: (method, precision, recipe, folder)."""
    asked: list[Any] = []

    def make(request: RunRequest, job: QuantizeJob, reporter: object) -> Artifact:
        asked.append((job.method, job.precision, job.recipe, Path(job.calibration_path).parent))
        if job.recipe == "nncf":
            raise ArtifactError("no such thing")
        return replace(INT8, recipe=job.recipe, sha256=f"{job.method} {job.recipe}")

    monkeypatch.setattr(track, "make_graph", make)
    return asked


def make_rows(*artifacts: Artifact) -> CandidatePlanner:
    opened = artifacts or (GRAPH, INT8)
    sources = Sources(plan=resolve(REQUEST, opened), artifacts=opened)
    return CandidatePlanner(REQUEST, sources, Path("/place"), Silent())


def test_a_graph_that_no_search_has_made_is_an_error_of_ours() -> None:
    with pytest.raises(ArtifactError, match=r"the stored search names the graph '\.\./secret', which it has not made"):
        make_rows().plan(replace(SETTING, graph="../secret"), MeasureSpec())


def test_another_method_has_a_graph_and_ranges_of_its_own_made_once(made: list[Any]) -> None:
    found = make_rows()
    entropy = replace(SETTING, method="entropy")
    row, again = found.plan(entropy, MeasureSpec()), found.plan(replace(entropy, threads=1), MeasureSpec())
    assert made == [("entropy", "int8", "cpu", Path("/place/entropy"))]
    assert row.source is not None and row.source.sha256 == "entropy cpu" and again.source == row.source
    assert row.id == "ort-int8.cpu-b1-compute-t2-hot-entropy"


def test_another_recipe_is_made_when_it_is_needed_and_its_lack_costs_its_configuration(made: list[Any]) -> None:
    found = make_rows()
    row = found.plan(replace(SETTING, recipe="tensorrt"), MeasureSpec())
    assert row.source is not None and row.source.sha256 == "minmax tensorrt" and made[0][3] == Path("/place")
    without = found.plan(replace(SETTING, recipe="nncf"), MeasureSpec())
    assert without.skip == "no graph in int8@nncf: no such thing"
    found.plan(replace(SETTING, recipe="nncf", threads=1), MeasureSpec())
    assert len(made) == 2, "what cannot be made is not tried again"


def test_a_graph_of_a_proposer_stands_in_for_that_of_its_precision(made: list[Any]) -> None:
    found = make_rows()
    found.graphs["half of it"] = replace(INT8, sha256="mixed")
    row = found.plan(replace(SETTING, graph="half of it"), MeasureSpec())
    assert row.source is not None and row.source.sha256 == "mixed" and not made
    assert row.id != found.plan(SETTING, MeasureSpec()).id


def test_a_trial_with_an_implausible_time_has_no_cost() -> None:
    row = make_result("ort", processes=1)
    assert track.measure_trial(row, 0).cost is not None
    trial = track.measure_trial(make_implausible(row), 0)
    assert trial.cost is None and trial.reason.startswith("its times are implausible: calls on new inputs")


def test_a_score_is_held_against_the_first_configuration_beside_a_graph_that_judges() -> None:
    base, losing = make_row("first", score=0.76), make_row(score=0.73)
    assert losing.drift is not None
    judged = replace(losing, drift=replace(losing.drift, reference_kind="ort_unoptimized", elsewhere=True))
    assert find_refusal(judged, None) is None, "its outputs are the graph's"
    assert "it loses 0.03" in str(find_refusal(judged, None, scored=base))


def test_lower_levels_are_proposed_where_the_optimizer_changes_the_outputs() -> None:
    arms = [Arm(engine=name, fixed={}, precision="fp32", knobs={"threads": ("1",)}) for name in ("ort", "openvino")]
    tried = [Tried(setting=arm.default, cost=None) for arm in arms]
    found = LowerLevels(arms, lambda setting: True).propose(9, tried)
    assert [setting.options["opt"] for setting in found] == ["extended", "basic", "none"]
    assert LowerLevels(arms, lambda setting: False).propose(9, tried) == []
    assert LowerLevels(arms, lambda setting: True).propose(9, []) == [], "its default was not tried"
    seen = [*tried, Tried(setting=found[0], cost=None)]
    assert LowerLevels(arms, lambda setting: True).propose(1, seen) == found[1:2]
