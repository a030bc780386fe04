"""The assertions of the pytest plug-in: what passes, what fails with its table, and what is inconclusive."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import enginebench
from enginebench import Bench, UsageError
from enginebench.core.records import Result
from enginebench.models.task import load_digits
from enginebench.pytest_plugin import Inconclusive, ModelAssertions, is_side
from samples import make_machine, make_run
from stored_run import write_run
from two_sides import SAME, WRONG, disturb, make_drift, make_sides

pytestmark = pytest.mark.usefixtures("children")


@pytest.fixture
def assertions(tmp_path: Path) -> ModelAssertions:
    return ModelAssertions(tmp_path / "measured")


@pytest.fixture
def strict(tmp_path: Path) -> ModelAssertions:
    return ModelAssertions(tmp_path / "strict", strict=True)


@pytest.fixture
def update(tmp_path: Path) -> ModelAssertions:
    return ModelAssertions(tmp_path / "update", update=True)


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """Real inputs, so that outputs are judged."""
    images = load_digits().select(held_out=True).images[:40]
    path = tmp_path / "digits.npz"
    np.savez(path, input=np.asarray(images, np.float32).reshape(len(images), -1))
    return path


@pytest.mark.parametrize(("snr", "changed"), [(200, True), (1, False)])
def test_outputs_are_held_to_the_limits(
    assertions: ModelAssertions, tiny_onnx: Path, digits: Path, snr: int, changed: bool
) -> None:
    """Eight bits differ from FP32, by more than one limit allows and less than the other."""
    given: dict[str, Any] = {"precision": "int8@cpu", "inputs": digits, "limit": {"snr": snr}}
    if not changed:
        (first, *_) = assertions.assert_same_outputs(tiny_onnx, **given).rows
        assert first.outputs == "within_limits" and first.precision == "int8"
        return
    with pytest.raises(AssertionError) as failed:
        assertions.assert_same_outputs(tiny_onnx, **given)
    text = str(failed.value)
    assert text.startswith("the outputs of ort int8@cpu changed: ") and "limit" in text.splitlines()[0]
    assert "engine" in text and "ort" in text and "OUTPUTS" in text, "the table is there"


def test_outputs_that_nobody_can_judge_are_inconclusive(
    assertions: ModelAssertions, strict: ModelAssertions, tiny_onnx: Path
) -> None:
    with pytest.warns(Inconclusive, match="the outputs of fake fp32 were not judged") as seen:
        assertions.assert_same_outputs(tiny_onnx, engine="fake")
    assert Path(seen[0].filename).name != "pytest_plugin.py"
    with pytest.raises(AssertionError, match="inconclusive: the outputs of fake fp32 were not judged"):
        strict.assert_same_outputs(tiny_onnx, engine="fake")


def test_the_precision_that_ran_is_what_counts(assertions: ModelAssertions, tiny_onnx: Path, digits: Path) -> None:
    run = assertions.assert_precision(tiny_onnx, "int8@cpu", at_least=0.01, inputs=digits)
    assert 0.01 <= (run.rows[0].effective_precision or {})["int8"] < 1
    with pytest.raises(AssertionError) as failed:
        assertions.assert_precision(tiny_onnx, "int8@cpu", at_least=1.0, inputs=digits)
    assert re.match(r"ort ran \d+% of the time in int8; expected at least 100%\n\n.*\n", str(failed.value))
    for fraction in (0, 1.5, float("nan")):
        with pytest.raises(ValueError, match="expected a fraction"):
            assertions.assert_precision(tiny_onnx, "int8", at_least=fraction)


def test_exactly_the_fraction_that_is_expected_is_enough(
    assertions: ModelAssertions, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = make_run()
    row = replace(document.rows[0], effective_precision={"int8": 0.75})
    monkeypatch.setattr(assertions, "_check_outputs", lambda *arguments: (document, row))
    assertions.assert_precision("m.onnx", "int8", at_least=0.75)
    with pytest.raises(AssertionError, match="ort ran 75% of the time in int8; expected at least 76%"):
        assertions.assert_precision("m.onnx", "int8", at_least=0.76)


class Measured:
    """Stands in for `bench`: what it measured is made up, so that no busy machine decides a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: dict[str, Any] = {}
        self.sides: Sequence[Result] = ()
        monkeypatch.setattr(enginebench, "bench", self)

    def __call__(self, model: object, engine: str, **options: Any) -> Bench:
        self.asked = {"model": model, "engine": engine, **options}
        sides = self.sides if "against" in options else self.sides[-1:]
        return Bench(write_run(options["out"], list(sides)), tuple(sides), options["margin"])


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    return Measured(monkeypatch)


def place(side: Result, cpu_model: str = "EPYC") -> Result:
    """The side as a machine measured it."""
    return replace(side, machine=make_machine(cpu_model=cpu_model))


ALIKE = make_drift(**SAME)


@pytest.mark.parametrize("median_ms", [10.0, 20.0])
def test_what_is_faster_or_equivalent_passes(assertions: ModelAssertions, measured: Measured, median_ms: float) -> None:
    measured.sides = make_sides(median_ms, ALIKE)
    done = assertions.assert_not_slower("m.onnx", engine="ort", than="ort@b.onnx", precision="int8", threads=2)
    assert done.results == tuple(measured.sides) and measured.asked.pop("out")
    assert measured.asked == {
        "model": "m.onnx",
        "engine": "ort",
        "against": "ort@b.onnx",
        "precision": "int8",
        "threads": 2,
        "margin": 0.02,
        "progress": False,
    }


def test_what_is_slower_fails_with_the_table(assertions: ModelAssertions, measured: Measured) -> None:
    measured.sides = make_sides(40.0, ALIKE)
    with pytest.raises(AssertionError) as failed:
        assertions.assert_not_slower("m.onnx", than="ort@b.onnx")
    text = str(failed.value)
    assert text.startswith("cand: slower") and text.count("Verdict: slower: 0.498x (") == 1 and "p50 ms" in text


def test_other_outputs_fail_however_fast(assertions: ModelAssertions, measured: Measured) -> None:
    measured.sides = make_sides(10.0, make_drift(**WRONG))
    with pytest.raises(AssertionError, match="cand: the outputs are not within the limits"):
        assertions.assert_not_slower("m.onnx", than="ort@b.onnx")
    measured.sides = make_sides(10.0, None)
    with pytest.raises(AssertionError, match="cand: not comparable; the outputs were not compared"):
        assertions.assert_not_slower("m.onnx", than="ort@b.onnx")


@pytest.mark.parametrize(
    ("sides", "why"),
    [
        (make_sides(10.0, ALIKE, processes=2), "2 of the 6 trials that a verdict needs"),
        (make_sides(20.3, ALIKE, sd=0.05), "the interval reaches across the margin"),
        ([disturb(side, 10) for side in make_sides(40.0, ALIKE)], "other programs slowed"),
    ],
    ids=["few trials", "near the margin", "a busy machine"],
)
def test_what_shows_nothing_is_inconclusive(
    assertions: ModelAssertions, strict: ModelAssertions, measured: Measured, sides: list[Result], why: str
) -> None:
    measured.sides = sides
    with pytest.warns(Inconclusive, match=why):
        assertions.assert_not_slower("m.onnx", than="ort@b.onnx")
    with pytest.raises(AssertionError, match=f"inconclusive: .*{why}"):
        strict.assert_not_slower("m.onnx", than="ort@b.onnx")


def test_a_baseline_is_stored_and_compared_with(
    assertions: ModelAssertions, update: ModelAssertions, measured: Measured, tmp_path: Path
) -> None:
    than = tmp_path / "baselines" / "tiny"
    with pytest.raises(AssertionError, match=r"there is no baseline in .*; store it with: pytest --enginebench-update"):
        assertions.assert_not_slower("m.onnx", than=than)
    base, slower = map(place, make_sides(40.0, ALIKE))
    measured.sides = [base]
    update.assert_not_slower("m.onnx", than=than)
    assert {path.name for path in than.iterdir()} == {"run.json", "rows"}, "samples, no artifacts"
    assertions.assert_not_slower("m.onnx", than=f"{than}/")
    measured.sides = [slower]
    with pytest.raises(AssertionError, match=r"(?s)slower.*base / candidate"):
        assertions.assert_not_slower("m.onnx", than=than)


def test_a_baseline_of_another_machine_is_inconclusive(
    assertions: ModelAssertions, strict: ModelAssertions, update: ModelAssertions, measured: Measured, tmp_path: Path
) -> None:
    base, slower = make_sides(40.0, ALIKE)
    measured.sides = [place(base, "Another CPU")]
    update.assert_not_slower("m.onnx", than=tmp_path / "there")
    measured.sides = [place(slower)]
    with pytest.warns(Inconclusive, match="cpu model: Another CPU against EPYC"):
        assertions.assert_not_slower("m.onnx", than=tmp_path / "there")
    with pytest.raises(AssertionError, match="inconclusive: cpu model"):
        strict.assert_not_slower("m.onnx", than=tmp_path / "there")


def test_an_update_replaces_no_folder_but_a_baseline(
    update: ModelAssertions, measured: Measured, tmp_path: Path
) -> None:
    measured.sides = [*map(place, make_sides(10.0, ALIKE))]
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "model.py").write_text("x = 1\n")
    with pytest.raises(UsageError, match=r"sources is neither a side nor a baseline: it has model\.py"):
        update.assert_not_slower("m.onnx", than=sources)
    with pytest.raises(UsageError, match="a baseline is named by lower-case letters"):
        update.assert_not_slower("m.onnx", than=tmp_path / "My Baseline")
    update.assert_not_slower("m.onnx", than=tmp_path / "one")
    with pytest.raises(AssertionError, match="two assertions would store their baselines in "):
        update.assert_not_slower("m.onnx", than=tmp_path / "one")
    assert (sources / "model.py").read_text() == "x = 1\n"


@pytest.mark.parametrize(
    ("than", "side"),
    [
        *(("ort@main.onnx", True), ("ort:opt=none@a/main.onnx", True), ("pytorch", True), ("fake:latency_us=3", True)),
        *(("baseline/", False), ("tests/baselines/net", False), ("nosuch@main.onnx", True), ("a/b@c", False)),
    ],
)
def test_a_side_and_a_baseline_are_told_apart(than: str, side: bool) -> None:
    assert is_side(than) is side
