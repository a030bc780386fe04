"""USE, OUTPUTS and TRUST: every state of the head, and that all formats print the same lines."""

import re

import pytest
from msgspec.structs import replace

from enginebench.core.records import Artifact, Block, Drift, MeasureSpec, Result, ResultWarning
from enginebench.report.markdown import escape
from enginebench.report.numbers import format_ratio
from enginebench.report.page import format_fragment
from enginebench.report.run.head import format_head
from enginebench.report.run.rows import RunDocument, describe_run
from enginebench.report.run.sections import list_sections
from enginebench.stats.ranking import Rules
from reports import show, write_markdown, write_page
from samples import make_drift, make_estimate, make_implausible, make_machine, make_result

AGREE = make_drift(1e-6)
GROSS = make_drift(9.0, passed=False, centred=0.1)
RANDOM = ResultWarning(code="random_weights", message="weights are random")


def describe(*results: Result, **more: object) -> RunDocument:
    return describe_run(model="m", machine=make_machine(), spec={}, results=results, rules=Rules(**more))  # type: ignore[arg-type]


def head(*results: Result, **more: object) -> dict[str, str]:
    return {line.label: " | ".join(line.lines) for line in format_head(describe(*results, **more))}


def ort(median_ms: float = 10, precision: str = "fp32", drift: Drift | None = AGREE, **more: object) -> Result:
    return make_result("ort", precision, median_ms, drift=drift, seed=1, **more)  # type: ignore[arg-type]


PYTORCH = make_result(median_ms=20, drift=AGREE)


def spoil(result: Result) -> Result:
    """The row with every sample taken beside a busy neighbour, and what its calls take at least."""
    n = len(result.measurements[0].latency_ns)
    noisy = Block(start=0, stop=n, duration_ns=1, foreign_cpu_cores=0.9, marks=("foreign_cpu",))
    return replace(result, measurements=tuple(replace(m, blocks=(noisy,), least_ns=17e6) for m in result.measurements))


def test_a_clearly_lower_p99_of_another_configuration_is_named() -> None:
    document = describe(PYTORCH, ort())
    slow, fast = (make_estimate(value, 0.99 * value, 1.01 * value) for value in (90.0, 21.0))
    rows = {row.engine: row for row in document.rows}
    pytorch, winner = replace(rows["pytorch"], p99_ms=fast), replace(rows["ort"], p99_ms=slow)
    part = "enqueue time 1.00 against 9.00 ms"
    found = format_head(replace(document, rows=(pytorch, winner), p99_reasons={winner.id: part}))[0].lines
    assert found[1:] == (f"on p99 pytorch fp32 leads: 21.0 ms against 90.0; largest difference: {part}",)
    unknown = replace(winner, p99_ms=replace(slow, supported=False))
    refused = replace(document.headlines[0], refused=(pytorch.id,))
    apart = replace(document, rows=(pytorch, winner), headlines=(refused,))
    assert format_head(apart)[0].lines == found[:1], "what may not be named leads in nothing"
    for pair in ((pytorch, unknown), (replace(pytorch, clock="tool"), winner)):  # trtexec's, without the launch
        assert format_head(replace(document, rows=pair))[0].lines == found[:1]


def test_among_equals_the_outputs_decide_and_what_the_user_has_comes_first() -> None:
    int8 = make_result("openvino", "int8", 9.98, drift=AGREE, seed=2)
    found = head(PYTORCH, int8, ort())["USE"]
    assert found.startswith("ort fp32   10") and "; ort fp32 keeps the same outputs" in found
    found = head(make_result(median_ms=10, drift=AGREE), ort(9.99))["USE"]
    assert found.startswith("pytorch fp32   10") and "; pytorch fp32 is what you have" in found
    # The first row is not preferred where the user has none of them.
    rows = [make_result(name, median_ms=ms, processes=1) for name, ms in (("openvino", 10.05), ("tensorrt", 9.9))]
    found = head(rows[0], replace(rows[1], drift=replace(AGREE, reference=rows[0].id)))["USE"]
    assert found.startswith("tensorrt fp32   9.") and "openvino fp32 may be as fast (too few trials to tell)" in found


def test_only_what_is_equal_within_the_margin_is_as_fast() -> None:
    equal = make_result("openvino", median_ms=9.99, drift=AGREE, seed=2)
    assert "is as fast (equal within 2%); " in head(PYTORCH, equal, ort())["USE"]
    apart = [
        replace(one, latency_ns=[ns * (3 if i % 2 else 1 / 3) for ns in one.latency_ns])
        for i, one in enumerate(equal.measurements)
    ]
    found = head(PYTORCH, replace(equal, measurements=tuple(apart)), ort())["USE"]
    assert "may be as fast (no significant difference); " in found


def test_all_that_tie_with_the_named_one_are_named_also_those_that_the_fastest_beats() -> None:
    """Ties are not transitive: the fastest clearly beats openvino, and what the user has varies, and ties with both."""
    factors = (0.9, 1.15, 0.92, 1.12, 0.9, 1.15)
    own = make_result(median_ms=10.1, drift=AGREE, sd=0.001)
    varied = [
        replace(m, latency_ns=[int(ns * factor) for ns in m.latency_ns])
        for m, factor in zip(own.measurements, factors, strict=False)
    ]
    third = make_result("openvino", median_ms=10.6, drift=AGREE, sd=0.001, seed=2)
    found = head(replace(own, measurements=tuple(varied)), ort(sd=0.001), third)["USE"]
    assert found.startswith("pytorch fp32") and "pytorch fp32 is what you have" in found
    assert "ort fp32 and openvino fp32 may be as fast (no significant difference)" in found


@pytest.mark.parametrize(
    ("trials", "line"),
    [
        (3, "faster than openvino fp32 in every trial, but too few trials to tell"),
        (6, "not significantly faster than openvino fp32, though faster in every trial"),
    ],
)
def test_one_that_was_faster_in_every_trial_is_not_called_as_fast(trials: int, line: str) -> None:
    """As beside others: no trial of the one is slower than any of the other, yet the interval is too wide."""
    other = make_result("openvino", median_ms=10, drift=AGREE, sd=0.001, processes=trials, seed=2)
    slowed = [
        replace(m, latency_ns=[int(ns * factor) for ns in m.latency_ns])
        for m, factor in zip(other.measurements, (1.05, 1.06, 1.5, 1.05, 3.0, 1.06), strict=False)
    ]
    rows = [make_result(median_ms=40, drift=AGREE, processes=trials), ort(processes=trials, sd=0.001)]
    found = head(*rows, replace(other, measurements=tuple(slowed)))["USE"]
    assert found.startswith("ort fp32   9.9") and f" | {line}" in found


def start_after(result: Result, seconds: float) -> Result:
    return replace(result, measurements=tuple(replace(m, load_s=seconds, first_run_s=0.0) for m in result.measurements))


@pytest.mark.parametrize(
    ("other_s", "reason"), [(0.056, "has the lowest median"), (0.1, "starts sooner (0.05 s against")]
)
def test_a_start_that_noise_explains_is_no_reason_to_choose(other_s: float, reason: str) -> None:
    other = start_after(make_result("openvino", median_ms=10, drift=AGREE, seed=1), other_s)
    assert f"ort fp32 {reason}" in head(PYTORCH, start_after(ort(), 0.05), other)["USE"]


def test_what_changes_the_outputs_is_not_recommended() -> None:
    output = replace(GROSS.outputs[0], flips=120, agreement=0.88)
    flipped = replace(GROSS, n=1000, outputs=(output,), limits={"agreement": 0.9})
    int8, openvino = ort(4, "int8", flipped), make_result("openvino", median_ms=10, drift=AGREE, seed=3)
    found = head(PYTORCH, int8, openvino)["USE"]
    assert "ort int8 is 4.9" in found
    assert "x, but changes 120 of 1000 predictions. To accept it: --limit agreement=0.88" in found
    # As many may change: what broke its limit is another figure.
    few = replace(flipped, outputs=(replace(flipped.outputs[0], flips=12),), limits={"agreement": 0.9, "snr": 60.0})
    found = head(PYTORCH, ort(4, "int8", few), openvino)["USE"]
    assert "changes the outputs (logits: correlation with the reference is 0.1, limit 0.9). To accept it" in found
    named = replace(few, outputs=(replace(few.outputs[0], name="boxes; scores (all)"),))  # as a model may
    found = head(PYTORCH, ort(4, "int8", named), openvino)["USE"]
    assert "changes the outputs (boxes; scores (all): correlation with the reference is 0.1, limit 0.9)." in found
    # What accepts it is the figure that was named, where several are broken.
    both = replace(few, outputs=(replace(output, centred_cosine_mean=0.885, agreement=None, flips=None, snr_db=5.0),))
    both = replace(both, limits={"centred_cosine": 0.9, "snr": 6.0})
    found = head(PYTORCH, ort(4, "int8", both), openvino)["USE"]
    assert "correlation with the reference is 0.885, limit 0.9). To accept it: --limit centred_cosine=0.885" in found
    alone = head(PYTORCH, int8)["USE"]
    kept = "pytorch fp32   2.*what you have: nothing faster keeps the outputs.*ort int8 is 4.9.*, but changes 120 of"
    assert re.match(kept, alone)
    assert describe(PYTORCH, int8).recommended.id == PYTORCH.id  # type: ignore[union-attr]


def test_a_baseline_that_failed_costs_the_ratio_alone() -> None:
    found = head(make_result(status="failed", reason="died"), ort(), make_result("openvino", median_ms=12, drift=AGREE))
    assert found["USE"] == "ort fp32   10.0 ms | no ratio: pytorch fp32 failed"
    found = head(make_result("openvino", status="skipped"), ort(), PYTORCH, baseline_engine="openvino")
    assert found["USE"] == "ort fp32   10.0 ms | no ratio: openvino fp32 did not run"


def test_few_trials_name_nobody_whose_lead_chance_explains() -> None:
    for processes in (1, 3):
        near = make_result("openvino", median_ms=10.02, processes=processes, drift=AGREE, seed=2)
        base = make_result(median_ms=25, processes=processes, drift=AGREE)
        found = head(base, near, ort(processes=processes))["USE"]
        close = "openvino fp32 may be as fast (too few trials to tell)"
        assert found.startswith("ort fp32") and close in found and "what you have" not in found


def test_few_trials_call_nothing_as_fast_that_is_far_behind_in_each() -> None:
    slow = make_result(median_ms=20, processes=2, drift=AGREE)
    first, second = slow.measurements
    apart = replace(second, latency_ns=[2 * ns for ns in second.latency_ns])  # so that the interval reaches below 1
    found = head(replace(slow, measurements=(first, apart)), ort(2, processes=2))["USE"]
    assert found.startswith("ort fp32   2.") and "as fast" not in found
    found = head(PYTORCH, make_result("openvino", median_ms=2.1, processes=1, drift=AGREE), ort(1, processes=1))["USE"]
    assert found.startswith("ort fp32   1.") and "as fast" not in found
    found = head(PYTORCH, make_result("openvino", median_ms=1.9, processes=1, drift=AGREE), ort(1, processes=1))["USE"]
    assert "| openvino fp32 took about 1.9 times as long (1 trial); more trials settle it" in found
    found = head(PYTORCH, make_result("openvino", median_ms=1.1, processes=1, drift=AGREE), ort(1, processes=1))["USE"]
    assert "may be as fast (too few trials to tell)" in found


def test_of_few_trials_the_fastest_is_named_whether_its_outputs_were_judged_or_not() -> None:
    """As with many trials; what the user has, and surer outputs, decide only among those of about one speed."""
    base = make_result(median_ms=27, processes=2, drift=AGREE)
    unjudged = make_result("openvino", "bf16", 8.6, processes=2, drift=AGREE, warnings=(RANDOM,))
    graph = ort(17, processes=1)
    found = describe(base, graph, unjudged).headlines[0]
    assert (found.id, found.outputs, found.near) == (unjudged.id, "not_judged", ())
    assert [(one.id, one.n) for one in found.behind] == [(graph.id, 1)] and 1.9 < found.behind[0].factor < 2.1
    near = make_result("openvino", "bf16", 10, processes=1, drift=AGREE)
    kept = make_result(median_ms=11.5, processes=1, drift=AGREE)
    assert describe(kept, near).headlines[0].id == kept.id
    # The head names a few of those that are behind.
    times = {"a": 4, "b": 5, "c": 6, "d": 7, "e": 7, "f": 7}
    many = [make_result(name, median_ms=ms, processes=1, drift=AGREE) for name, ms in times.items()]
    last = format_head(describe(PYTORCH, *many))[0].lines[-1]
    assert last.startswith("b fp32 took about 1.2 times as long (1 trial), c fp32 about 1.5 times (1 trial), ")
    assert last.endswith(", 2 more also took longer; more trials settle it")


def test_unlike_devices_are_ranked_only_if_every_trial_agrees() -> None:
    gpu = [replace(row, engine=replace(row.engine, device="cuda:0")) for row in (ort(19.99), ort(5))]
    base = make_result(median_ms=20, drift=AGREE)
    why = "no verdict against ort fp32 (device: cuda:0 against cpu)"
    assert f"{why}; pytorch fp32 is what you have" in head(base, gpu[0])["USE"]
    assert head(base, gpu[1])["USE"].startswith("ort fp32   5.02 ms")


def test_configurations_are_ranked_by_the_trials_that_all_have() -> None:
    """PyTorch starved in the last four trials, in which one engine was not measured any more."""
    slow = tuple(
        replace(m, latency_ns=[50 * x for x in m.latency_ns]) if m.trial > 5 else m for m in PYTORCH.measurements
    )
    openvino = make_result("openvino", median_ms=8, drift=AGREE, seed=2)
    openvino = replace(openvino, measurements=openvino.measurements[:6])
    assert head(replace(PYTORCH, measurements=slow), ort(), openvino)["USE"].startswith("openvino fp32")


def test_an_engine_that_varies_alone_is_held_to_its_outputs() -> None:
    def vary(row: str) -> ResultWarning:
        return ResultWarning(code="outputs_vary", message="varies", figures={"row": row})

    alone = head(PYTORCH, ort(5, drift=GROSS, warnings=(vary("ort-fp32-b1"),)))
    assert alone["USE"].startswith("pytorch fp32") and "nothing faster keeps the outputs | ort fp32 is" in alone["USE"]
    both = head(PYTORCH, ort(5, drift=GROSS, warnings=(vary("ort-fp32-b1"), vary(PYTORCH.id))))
    assert both["USE"].startswith("ort fp32") and "different outputs for the same inputs" in both["OUTPUTS"]
    lost = ort(5, drift=make_drift(9.0, passed=False, nonfinite=3), warnings=(vary(PYTORCH.id),))
    assert "3 values are not finite" in head(PYTORCH, lost)["USE"]


def test_labels_decide_nothing_where_the_weights_are_random() -> None:
    base = make_result(median_ms=20, accuracy=0.1, warnings=(RANDOM,))
    found = head(base, ort(5, "int8", accuracy=0.05, warnings=(RANDOM,)))
    assert found["USE"].startswith("ort int8") and found["OUTPUTS"].startswith("not judged: random weights")


def test_a_reference_that_is_not_finite_is_not_the_same_and_nor_is_what_equals_it() -> None:
    own = make_drift(0, passed=False, nonfinite=4)
    alike = replace(own, outputs=tuple(replace(output, nonfinite_alike=2) for output in own.outputs))
    rows = replace(PYTORCH, drift=replace(alike, reference=PYTORCH.id)), ort(40, drift=own), ort(5, drift=alike)
    assert head(*rows[:2])["OUTPUTS"] == "not judged: its own outputs are not finite"
    assert head(rows[0], rows[2])["OUTPUTS"] == "not judged: logits: 4 values are not finite, the same on both sides"
    assert "changed" in show(describe(*rows[:2])) and "enginebench deliver" not in show(describe(*rows[::2]))


def test_a_graph_that_is_int8_itself_is_its_own_reference() -> None:
    source = Artifact(kind="onnx", model="m", path="", sha256="", files=(), inputs=(), outputs=(), precision="int8")
    rows = [ort(5, "int8"), make_result("openvino", "int8", 4, drift=replace(AGREE, reference="ort-int8-b1"), seed=2)]
    found = head(*(replace(r, artifacts=(source,)) for r in rows))
    assert found["OUTPUTS"] == "within limits: the model itself is int8"
    plan = head(*(replace(r, artifacts=(replace(source, kind="plan", precision=None),)) for r in rows))
    assert plan["OUTPUTS"] == "within limits"


def test_one_configuration_is_said_to_be_the_only_one_and_none_is_not_measured() -> None:
    first = "ort fp32   8.73 ms   the only configuration that was measured"
    texts = (first, "not judged: nothing was compared with it", "absolute times good")
    assert head(ort(8.7, drift=None)) == dict(zip(("USE", "OUTPUTS", "TRUST"), texts, strict=True))
    assert head(make_result(status="failed"))["USE"] == "none: nothing was measured"
    assert head(PYTORCH, ort(), for_calls=300)["USE"].startswith("none: the start of a new process, which --for-calls")


def test_what_cannot_be_compared_with_the_baseline_that_wins_is_named_with_its_reason() -> None:
    found = head(make_result(median_ms=5, drift=AGREE), spoil(ort()))
    assert found["USE"] == "pytorch fp32   5.00 ms   what you have: no other configuration is faster"
    why = "other programs slowed ort fp32, and how much is not known"
    assert found["TRUST"].startswith(f"low: no ratio to it can be given ({why}); repeat when the machine is quiet")


def test_a_side_that_starved_costs_the_ratio_and_not_the_name() -> None:
    found = head(spoil(PYTORCH), ort())
    why = "no ratio to pytorch fp32: other programs slowed pytorch fp32, and how much is not known"
    assert found["USE"] == f"ort fp32   10.0 ms | {why}"
    quiet = "repeat when the machine is quiet"
    assert found["TRUST"] == (
        f"low: no ratio can be given; {quiet}; absolute times low (virtual machine, 1 of 2 configurations disturbed)"
    )
    document = describe(spoil(PYTORCH), ort())
    assert document.rows[1].comparison.ratio_validity == "not_given" and document.recommended is not None
    assert "no ratio: other programs slowed pytorch" in " ".join(show(document, 100, warnings=True).split())


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_random_weights_judge_nothing_and_decide_nothing(precision: str) -> None:
    for drift, alike in ((make_drift(0.08), 0.9999), (make_drift(0.08, passed=False, centred=0.95), 0.95)):
        found = head(PYTORCH, ort(5, precision, drift, warnings=(RANDOM,)))
        assert found["USE"].startswith(f"ort {precision}")
        differs = f"{precision} differs by up to 8e-02 (correlation with the reference {alike})"
        assert found["OUTPUTS"] == f"not judged: random weights. {differs}. Give --weights"
    noisy = head(PYTORCH, ort(5, precision, make_drift(0.3, passed=False, centred=0.3), warnings=(RANDOM,)))["USE"]
    assert noisy.startswith("ort int8" if precision == "int8" else "pytorch fp32"), "sound in 8 bits alone"
    wrong = head(PYTORCH, ort(5, precision, GROSS, warnings=(RANDOM,)))
    assert wrong["USE"].startswith("pytorch fp32") and f"ort {precision} is" in wrong["USE"]


def test_no_rounding_excuses_fp32_that_reads_the_graph_otherwise() -> None:
    """Random weights: 0.67 is what BF16 keeps of ResNet-50, and FP32 all of it."""
    drift = replace(AGREE, passed=False, outputs=make_drift(0.1, centred=0.67).outputs)
    found = head(replace(PYTORCH, warnings=(RANDOM,)), replace(ort(drift=drift), warnings=(RANDOM,)))
    assert found["USE"].startswith("pytorch fp32") and "ort fp32 is" in found["USE"]
    short = replace(ort(drift=drift, precision="bf16"), warnings=(RANDOM,))
    assert head(replace(PYTORCH, warnings=(RANDOM,)), short)["USE"].startswith("ort bf16")


def test_fp32_that_agrees_is_the_same_also_with_random_weights_but_not_on_constant_outputs() -> None:
    assert head(PYTORCH, ort(warnings=(RANDOM,)))["OUTPUTS"] == "same: with random weights"
    constant = replace(AGREE, outputs=(replace(AGREE.outputs[0], centred_cosine_mean=None),))
    assert head(PYTORCH, ort(drift=constant))["OUTPUTS"].startswith("not judged: the model gives the same output")


def test_the_baseline_is_what_the_user_runs_today() -> None:
    today = make_result("pytorch", "tf32", 10, drift=AGREE, seed=4)
    default = make_result("pytorch:defaults=1", "tf32", 12, drift=AGREE, seed=5)
    document = describe(PYTORCH, today, default, ort(5))
    assert document.headline is not None and document.headline.baseline == default.id
    shown = head(PYTORCH, today, default, ort(5))["USE"]
    assert shown.endswith(" | 3.99x strict fp32")
    graph = describe(make_result("openvino", median_ms=5), ort(drift=replace(AGREE, reference="openvino-fp32-b1")))
    assert graph.headline is not None and graph.headline.baseline == "ort-fp32-b1"
    asked = describe(PYTORCH, today, ort(5), baseline_engine="ort")
    assert asked.headline is not None and asked.headline.baseline == "ort-fp32-b1"
    tuned = make_result("openvino:hint=latency", median_ms=12, drift=AGREE, seed=2)
    named = describe(PYTORCH, ort(), tuned, baseline_engine="openvino")
    assert named.headline is not None and named.headline.baseline == tuned.id and not named.headline.is_today


def test_a_metric_that_is_lost_is_named() -> None:
    rows = [make_result(median_ms=20, accuracy=0.98), ort(5, "int8", accuracy=0.5)]
    assert "ort int8 is 3.9" in head(*rows)["USE"] and "loses too much of top-1" in head(*rows)["USE"]
    kept = head(rows[0], ort(5, "int8", GROSS, accuracy=0.98))
    assert kept["USE"].startswith("ort int8") and kept["OUTPUTS"] == "within limits: top-1 is within its limit"


def test_an_interrupted_configuration_is_named_if_it_leads_with_its_number_of_trials() -> None:
    """A run stopped at trial 5 of 6 named the fastest finished one, while its table began with a faster one."""
    cut = replace(ort(5), status="partial", measure=MeasureSpec(processes=12))
    asked = {"measure": {"processes": 10}}
    cut = replace(cut, measurements=cut.measurements[:5])
    for rows in ((PYTORCH, cut), (replace(PYTORCH, status="partial"), cut)):
        (first, *_) = format_head(replace(describe(*rows), spec=asked))[0].lines
        assert first.startswith("ort fp32 (5 of 10 trials)   5.")
    assert head(PYTORCH, cut)["USE"].startswith("ort fp32 (partial)")
    begun = show(describe(PYTORCH, replace(cut, measurements=())), 200)
    assert "Partial: ort: no trial was finished; --resume continues" in begun


def test_every_format_prints_the_same_lines() -> None:
    document = describe(PYTORCH, ort(), ort(4, "int8", GROSS))
    terminal = re.sub(r"\s+", " ", show(document, 200))
    markdown, page = write_markdown(document), write_page(document)
    notebook = format_fragment(list_sections(document))
    for line in format_head(document):
        for piece in line.lines:
            assert re.sub(r"\s+", " ", piece) in terminal and escape(piece) in markdown
            assert f">{piece}</dd>" in page and piece in notebook


def test_an_implausible_configuration_stands_below_the_named_one_with_its_reason() -> None:
    cheat = make_implausible(make_result("openvino", median_ms=0.1, drift=AGREE, seed=2))
    named = head(PYTORCH, ort(), cheat)["USE"]
    assert named.startswith("ort fp32   10.0 ms")
    assert "openvino fp32 is not ranked, its times are implausible: calls on new inputs take at least 9 ms" in named
    assert "openvino fp32 is not ranked" in head(cheat)["USE"]


def test_of_many_implausible_configurations_two_have_their_reason() -> None:
    cheats = [
        make_implausible(make_result(engine, median_ms=0.1, drift=AGREE, seed=seed))
        for seed, engine in enumerate(("openvino", "pytorch-compile", "fake", "tensorrt", "trtexec", "pytorch-aoti"))
    ]
    named = head(PYTORCH, ort(), *cheats)["USE"]
    assert named.count("its times are implausible") == 2
    assert re.search(r"nor are [\w-]+ fp32, [\w-]+ fp32, [\w-]+ fp32 and 1 more", named)


def test_two_trials_that_differ_much_print_no_interval_of_a_thousand() -> None:
    """Read in a real head: "5.05x pytorch fp32 (0.120 to 213)"."""
    base, found = (
        make_result(name, median_ms=ms, processes=2, sd=0.4, drift=AGREE, seed=seed)
        for name, ms, seed in (("pytorch", 35, 3), ("ort", 7, 4))
    )
    document = describe(base, found)
    speedup = next(row.speedup for row in document.rows if row.engine == "ort")
    assert speedup is not None and speedup.low and speedup.high and speedup.high > 4 * speedup.low
    use = head(base, found)["USE"]
    assert "x pytorch fp32 (2 trials each, no narrow interval)" in use and "about " in use
    assert format_ratio(speedup) == f"about {speedup.value:.2g}x"
