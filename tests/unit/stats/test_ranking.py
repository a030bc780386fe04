"""The answers of a run, from results alone: nothing of how they are shown is needed for them."""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import enginebench
from enginebench.core.records import Artifact, Result, ResultWarning
from enginebench.core.warnings import make_warning
from enginebench.stats.alike import assess_outputs
from enginebench.stats.assessment import compare_configurations
from enginebench.stats.diff import diff_results
from enginebench.stats.drift import default_limits, measure_drift
from enginebench.stats.metrics.scores import loses_too_much
from enginebench.stats.ranking import Rules, find_quality, rank_results
from samples import make_drift, make_implausible, make_result

SOURCE = Path(enginebench.__file__).parent
AGREE = make_drift(1e-6)


def make_rows(top1: float) -> list[Result]:
    fast = make_result("ort", "int8", median_ms=5, drift=AGREE, accuracy=top1, seed=2)
    return [make_result(median_ms=20, accuracy=0.98), fast]


@pytest.mark.parametrize(
    ("top1", "kept"), [(0.98, True), (0.97, True), (0.98 - 0.01 - 1e-12, True), (0.9699, False), (0.5, False)]
)
def test_run_and_diff_allow_the_same_loss(top1: float, kept: bool) -> None:
    base, cand = make_rows(top1)
    recommended = rank_results([base, cand]).recommended
    assert recommended is not None and (recommended.id == cand.id) is kept
    same_name = replace(base, id=cand.id, engine=cand.engine, requested_precision="int8")
    (row,) = diff_results([same_name], [cand]).rows
    assert any("top-1" in failure for failure in row.failures) is not kept
    assert loses_too_much(base.scores[0], cand.scores[0]) is not kept


def make_noisy(engine: str, precision: str, snr_db: float, **more: Any) -> Result:
    drift = make_drift(0.1)
    output = replace(drift.outputs[0], snr_db=snr_db, centred_cosine_mean=0.99 if snr_db > 15 else 0.91)
    passed = snr_db >= default_limits(precision)["snr"]  # by the limits of its own format alone
    return make_result(engine, precision, drift=replace(drift, outputs=(output,), passed=passed), **more)


def test_nothing_is_rejected_that_is_nearer_to_the_reference_than_something_accepted() -> None:
    """As of efficientnet-lite0: BF16 at 19.4 dB was rejected beside INT8 at 7.3 dB, which was named."""
    base = make_result(median_ms=20)
    bf16, int8 = make_noisy("ort", "bf16", 19.45, median_ms=2), make_noisy("ort", "int8", 7.3, median_ms=5, seed=2)
    ranking = rank_results([base, bf16, int8])
    assert [row.outputs for row in ranking.assessments] == ["same", "within_limits", "within_limits"]
    assert ranking.recommended is not None and ranking.recommended.id == bf16.id
    told = [[str(c) for c in row.result.warnings if c.code == "noisier_than_usual"] for row in ranking.assessments]
    assert [len(texts) for texts in told] == [0, 1, 0]
    assert "noisier than BF16 usually is: 19.4 dB, expected 20 or more" in told[1][0]
    alone = rank_results([base, bf16]).assessments[1]
    assert (alone.outputs, alone.agreement.outputs_agree) == ("changed", False)
    assert rank_results([base, bf16], Rules(requested=("bf16", "int8"))).assessments[1].outputs == "within_limits"
    own = rank_results([base, bf16, int8], Rules(limits={"snr": 20.0})).assessments[1]
    assert own.outputs == "changed" and not own.result.warnings, "the user's own limits are held as they are"


def test_a_label_of_many_that_differs_in_fp32_is_counted() -> None:
    """99 % must agree, so that a near tie is no other network; one of 1000 is far more than rounding makes."""

    def list_texts(differing: int, of: int = 1000, precision: str = "fp32") -> list[str]:
        labels = np.arange(of).reshape(10, -1)
        drift = measure_drift({"y": labels}, {"y": labels + (labels < differing)}, default_limits("fp32"))
        base = make_result(median_ms=20)
        row = make_result("ort", precision, drift=replace(drift, reference=base.id), median_ms=2)
        (_, assessment) = rank_results([base, row]).assessments
        assert assessment.outputs in ("same", "within_limits", "not_judged")
        return [str(w) for w in assessment.result.warnings if w.code == "noisier_than_usual"]

    (text,) = list_texts(1)
    assert "noisier than FP32 usually is: 1 of 1000 labels of y differ" in text
    assert not list_texts(0) and not list_texts(1, of=100_000) and not list_texts(1, precision="int8")


def test_fp32_and_tf32_keep_their_own_limits_whatever_else_was_asked_for() -> None:
    rows = [make_result(median_ms=20), make_noisy("ort", "fp32", 45), make_noisy("ort", "tf32", 25, identity="t")]
    rows += [make_noisy("ort", "int8", 7.3)]
    found = [row.outputs for row in rank_results(rows).assessments]
    assert found == ["same", "changed", "changed", "within_limits"]


def test_a_score_excuses_int8_and_no_fp32_whose_outputs_changed() -> None:
    base = make_result(median_ms=20, accuracy=0.98)
    fp32 = make_noisy("ort", "fp32", 36, median_ms=2, accuracy=0.98)
    int8 = make_noisy("openvino", "int8", 3, median_ms=5, accuracy=0.98, seed=2)
    ranking = rank_results([base, fp32, int8])
    assert ranking.recommended is not None and ranking.recommended.id == int8.id
    rejected = ranking.headlines[0].rejected
    assert rejected is not None and rejected.id == fp32.id and "changes the outputs" in rejected.reason


@pytest.mark.parametrize(
    ("rejected", "limit"),
    [
        (make_noisy("ort", "bf16", 15.5, median_ms=2), "snr=15.5"),
        (make_noisy("ort", "fp32", 45, median_ms=2), "snr=45"),  # rounded by some kernel
        (make_noisy("ort", "fp32", 7.4, median_ms=2), ""),  # another network
        (make_noisy("ort", "tf32", 7.4, median_ms=2), ""),
    ],
)
def test_a_limit_is_offered_only_for_outputs_that_are_rounded(rejected: Result, limit: str) -> None:
    assert rejected.drift is not None
    figures = replace(rejected.drift.outputs[0], centred_cosine_mean=0.99999)
    rejected = replace(rejected, drift=replace(rejected.drift, outputs=(figures,)))
    base = make_result(median_ms=20)
    assert find_offered(base, rejected) == limit
    for template in ("outputs_differ.optimizer", "outputs_differ.engine", "outputs_differ.export"):
        facts = {"kept": "ort:opt=none", "cause": "optimizer changes", "tool": "ONNX Runtime", "engine": "ort"}
        wrong = make_warning(template, **facts)
        assert find_offered(base, replace(rejected, warnings=(wrong,))) == "", template


def find_offered(*rows: Result) -> str:
    """Return the `--limit` with which the rejected configuration would be accepted."""
    rejected = rank_results(rows).headlines[0].rejected
    assert rejected is not None
    return rejected.limit


def test_noise_of_random_weights_is_judged_alike_for_all_reduced_precisions() -> None:
    """Half of what varies is noise: too much for 16 bits alone, and not where 8 bits were asked for, too."""
    random = ResultWarning(code="random_weights", message="the weights are random")
    bf16, int8 = (replace(make_noisy("ort", p, 10), warnings=(random,)) for p in ("bf16", "int8"))
    assert bf16.drift is not None
    output = replace(bf16.drift.outputs[0], centred_cosine_mean=0.4)
    bf16 = replace(bf16, drift=replace(bf16.drift, outputs=(output,)))
    base = make_result(median_ms=20)
    assert rank_results([base, bf16]).assessments[1].outputs == "changed"
    found = rank_results([base, bf16, int8]).assessments[1]
    assert found.outputs == "not_judged" and [c.code for c in found.result.warnings] == ["random_weights"]


def test_a_graph_that_is_itself_in_eight_bits_is_judged_on_made_up_inputs() -> None:
    """Its reference is the same graph as written: made-up inputs cost neither side anything."""
    random = ResultWarning(code="random_inputs", message="the inputs are random")
    source = Artifact(kind="onnx", model="m.onnx", path="m.onnx", sha256="0" * 64, files=(), inputs=(), outputs=())
    for decibels, expected in ((10, "within_limits"), (5, "changed")):
        engine = make_noisy("openvino", "int8", decibels)
        assert engine.drift is not None
        drift = replace(engine.drift, reference_kind="ort_unoptimized")
        given = replace(engine, drift=drift, artifacts=(replace(source, precision="int8"),), warnings=(random,))
        verdict, why = assess_outputs(given, is_reference=False)
        assert verdict == expected, why
    converted = replace(given, drift=replace(drift, passed=True), artifacts=(source, *given.artifacts))
    assert assess_outputs(converted, is_reference=False)[0] == "not_judged"


def test_quality_is_of_one_kind_for_all_configurations() -> None:
    assert find_quality(None, 0.5, by_metric=True, is_truth=True) is None
    assert find_quality(None, None, by_metric=False, is_truth=True) == 1.0
    assert find_quality(None, 0.5, by_metric=False, is_truth=False) == 0.5


def read_defaults(path: Path, name: str) -> list[str]:
    """What `name` is given wherever it is an annotated field or an argument with a default."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    fields = [node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)]
    found = [field.value for field in fields if isinstance(field.target, ast.Name) and field.target.id == name]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            pairs = [*zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
            pairs += zip(node.args.args[::-1], node.args.defaults[::-1], strict=False)
            found += [default for argument, default in pairs if argument.arg == name]
    return [ast.unparse(value) for value in found if value is not None]


def test_the_margin_has_one_definition() -> None:
    defaults = [text for path in SOURCE.rglob("*.py") for text in read_defaults(path, "margin")]
    others = {"CAPACITY_MARGIN", "REGRESSION_MARGIN"}  # of a rate, and of versions: each defined once, too
    assert len(defaults) > 2 and set(defaults) - {"None"} - others == {"MARGIN"}


def test_unlike_clocks_are_ordered_by_the_one_that_all_have() -> None:
    """As on an H100: trtexec 27.0 us by its own clock, `tensorrt` 34.3 by the host's and 25.7 by the GPU's."""
    rows = []
    for seed, (engine, host, device) in enumerate(
        [("pytorch", 67.3, 58), ("tensorrt", 34.3, 25.7), ("trtexec", 27, 27)]
    ):
        row = make_result(engine, median_ms=host, processes=4, drift=AGREE, sd=0.014, seed=seed)
        measured = [replace(m, device_ns=[int(ns * device / host) for ns in m.latency_ns]) for m in row.measurements]
        clock = "tool" if engine == "trtexec" else "host"
        rows.append(replace(row, measurements=tuple(replace(m, clock=clock) for m in measured)))
    (headline,) = rank_results(rows).headlines
    assert headline.id == "tensorrt-fp32-b1" and headline.tied_with == ("trtexec-fp32-b1",)
    assert headline.choice == ("was faster in every trial by the device clock of all",)


def test_an_implausible_time_is_never_named_and_nobody_is_held_against_it() -> None:
    cheat = make_implausible(make_result("ort:x=1", median_ms=0.1, drift=AGREE, seed=3, identity="cheat"))
    rows = [cheat, make_result(median_ms=20, drift=AGREE), make_result("openvino", drift=AGREE, seed=2)]
    for baseline, base in (("pytorch", "pytorch-fp32-b1"), ("ort:x=1", None)):
        ranking = rank_results(rows, Rules(baseline_engine=baseline))
        (headline,) = ranking.headlines
        assert ranking.fastest and ranking.recommended
        assert {headline.id, ranking.fastest.id, ranking.recommended.id} == {"openvino-fp32-b1"}
        assert headline.baseline == base and headline.rejected is None
        first, *others = ranking.assessments
        assert (first.validity, first.pareto, first.speedup) == ("implausible", False, None)
        assert {row.baseline for row in others} == {base}
    assert headline.ratio_reason == "ort:x=1 fp32 has an implausible time"
    assert rank_results([cheat]).fastest is None
    found = compare_configurations(rows[1], cheat)
    assert (found.verdict, found.ratio) == ("not_comparable", None) and "are implausible" in found.ratio_reason
