"""`find_refusals` against NVIDIA's own parser and builder: TensorRT for RTX judges every small graph, without a GPU."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from enginebench.models.precision.tensorrt_check import find_refusals
from refusal_graphs import CHANGED, NO_QUANTIZERS, judge_agreement, list_cases, list_crashing
from rtx_judge import Question, Verdict, ask, count_products

CASES = {**list_cases(), **list_crashing()}
# As the builder names GPUs, and as users do.
CAPABILITIES = {"SM75": "7.5", "SM80": "8.0", "SM86": "8.6", "SM89": "8.9", "SM120": "12.0", "SM121": "12.1"}


def check(name: str, rtx: bool = True) -> bool:
    """Whether we refuse a graph for its GPUs."""
    case = CASES[name]
    return bool(find_refusals(case.build(), rtx=rtx, targets=[CAPABILITIES[target] for target in case.targets]))


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    if find_spec("tensorrt_rtx_bindings") is None:
        pytest.skip('TensorRT for RTX is not installed: pip install "enginebench[tensorrt-rtx]"')
    folder = tmp_path_factory.mktemp("graphs")
    questions = []
    for index, case in enumerate(CASES.values()):
        path = folder / f"{index}.onnx"
        path.write_bytes(case.build().SerializeToString())
        questions.append(Question(path, case.targets))
    return dict(zip(CASES, ask(questions), strict=True))


def test_every_graph_is_judged_as_nvidias_builder_judges_it(verdicts: dict[str, Verdict]) -> None:
    found = {name: judge_agreement(name, check(name), verdict.said) for name, verdict in verdicts.items()}
    wrong = {name: (said, verdicts[name].message[-160:]) for name, said in found.items() if said.startswith("too")}
    assert not wrong
    counts = Counter(found.values())
    assert len(found) >= 150 and counts["both take"] > 150 and counts["both refuse"] > 80, counts


def test_the_list_of_what_may_differ_is_not_longer_than_it_must_be(verdicts: dict[str, Verdict]) -> None:
    said = {name: judge_agreement(name, check(name), verdict.said) for name, verdict in verdicts.items()}
    changed = [name for name, kind in said.items() if kind == "listed: another meaning"]
    for begin in CHANGED:
        assert any(name.startswith(begin) for name in changed), f"{begin}: RTX refuses it, too"
    assert {name for name, kind in said.items() if kind == "listed: no Q/DQ nodes"} == set(NO_QUANTIZERS)


def test_graphs_that_end_the_builder_are_refused_before(verdicts: dict[str, Verdict]) -> None:
    for name in list_crashing():
        assert verdicts[name].said == "crashed" and check(name) and check(name, rtx=False), name


def test_the_judge_sees_what_a_plan_computes_in(verdicts: dict[str, Verdict]) -> None:
    """Else a kernel that is given up for floats would pass for one in 8 bits."""
    assert verdicts["Conv: pair, by channel"].products == {"Int8": 1}
    assert verdicts["Conv: in FP8"].products == {"FP8": 1}
    assert verdicts["Conv: pair, axis 1"].products == {"Float": 1}
    assert verdicts["Conv: activation with a scale of shape [1]"].products == {"Float": 1}
    assert count_products("Name: a, LayerType: kgen, Inputs: [ { Datatype: Int8") == {}


# Where the documentation of TensorRT is stricter than what its kin for RTX does.
STRICTER = (
    "Conv: pair, axis 1",
    "Gemm: activation by channel",
    "MatMul: int4 by row",
    "MatMul: int8 in blocks",
    "scale: Identity",
    "Conv: bias int8",
)


REFUSED_BY_BOTH = (
    *("If: zero point 3", "If in If: uint8", "Loop: zero point 3", "function: scale 0"),
    *("Conv: wrong number of scales", "stored weight, fp16 activation", "FP8 for SM86 and SM89"),
)


def test_rules_of_rtx_are_for_rtx_alone() -> None:
    for name in STRICTER:
        assert check(name, rtx=False) and not check(name), name


def test_what_holds_for_both() -> None:
    for name in ("scale: Constant value_float", "MatMul: int4 in blocks", "If: sound", "function: sound"):
        assert not check(name, rtx=False) and not check(name), name
    for name in REFUSED_BY_BOTH:
        assert check(name, rtx=False) and check(name), name


def test_a_refusal_names_the_gpus_that_lack_a_type() -> None:
    model = CASES["FP8 for SM86 and SM89"].build()
    assert find_refusals(model, rtx=True, targets=["8.9", "12.0"]) == []
    reasons = {refusal.reason for refusal in find_refusals(model, rtx=True, targets=["8.6", "8.0", "8.9"])}
    assert reasons == {"GPUs of compute capability 8.0, 8.6 have no float8e4m3fn"}


def test_graphs_are_found_where_they_lie(tmp_path: Path) -> None:
    """The node of a branch and of a function is named, so that it can be found."""
    (refused, *_) = find_refusals(CASES["If: zero point 3"].build())
    assert refused.node == "x_Q" and "'x_zero' is not 0" in refused.reason
    (refused, *_) = find_refusals(CASES["function: zero point 3"].build())
    assert "inner_Q" in refused.node
