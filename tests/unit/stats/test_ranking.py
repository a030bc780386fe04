"""The answers of a run, from results alone: nothing of how they are shown is needed for them."""

import ast
from pathlib import Path

import pytest
from msgspec.structs import replace

import enginebench
from enginebench.core.records import Result
from enginebench.stats.diff import diff_results
from enginebench.stats.metrics.scores import loses_too_much
from enginebench.stats.ranking import find_quality, rank_results
from samples import make_drift, make_result

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


def test_quality_is_of_one_kind_for_all_rows() -> None:
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
