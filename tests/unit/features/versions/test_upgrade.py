"""The upgrade report: rows of two environments of stored runs, each against its twin."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.core.names import configuration_id
from enginebench.core.records import Artifact, LayerTime, Result, TensorSpec
from enginebench.features.versions.upgrade import (
    describe_change,
    describe_upgrade,
    diff_environments,
    format_changes,
    pair_layers,
)
from enginebench.report.markdown import format_sections
from enginebench.report.run.diff import list_diff
from enginebench.runs.child.arrays import save_outputs
from enginebench.runs.folder import RunFolder, RunRequest, begin_record
from enginebench.stats.diff import DiffDocument
from samples import make_machine, make_result

LOGITS = TensorSpec(name="logits", dtype="float32", shape=("batch", 10))
GRAPH = Artifact(kind="onnx", model="m", path="", sha256="0", files=(), inputs=(LOGITS,), outputs=(LOGITS,))
BETWEEN = "old , new"


def make_row(env: str | None, median_ms: float = 10.0, precision: str = "fp32", **more: object) -> Result:
    engine = "ort" if env is None else f"ort:env={env}"
    row = make_result(engine, precision, median_ms, sd=0.001, **more)  # type: ignore[arg-type]
    versions = {"onnxruntime": {"old": "1.23.2", "new": "1.31.1"}.get(env or "", "1.30.0"), "numpy": "2.4.6"}
    name = configuration_id(row.engine, row.requested_precision, row.measure)
    return replace(row, id=name, artifacts=(GRAPH,), machine=make_machine(versions=versions))


def store(root: Path, *rows: Result, answers: dict[str, float] | None = None) -> Path:
    """A run's folder; `answers`: id -> how far its answers lie from zero noise."""
    folder = RunFolder(root)
    folder.create(begin_record(RunRequest(model="m", engines=()), make_machine(), rows=tuple(row.id for row in rows)))
    truth = np.random.default_rng(0).standard_normal((32, 10)).astype(np.float32)
    for row in rows:
        folder.write_result(row)
        off = (answers or {}).get(row.id, 0.0)
        if off is not None:
            save_outputs(folder.outputs_path(row.id), {"logits": truth + np.float32(off)}, 32)
    return root


def diff(root: Path, *rows: Result, **options: Any) -> DiffDocument:
    return diff_environments([store(root, *rows)], BETWEEN, 0.02, **options)


def test_each_configuration_is_held_against_its_twin(tmp_path: Path) -> None:
    rows = [make_row("old"), make_row("new", 11.0), make_row("old", 5.0, "int8@cpu"), make_row("new", 5.0, "int8@cpu")]
    one = store(tmp_path / "a", make_row(None), *rows)
    two = store(tmp_path / "b", make_row("old"), make_row("new", 8.0))
    found = diff_environments([one, two], BETWEEN, 0.02)
    verdicts = [(row.id, row.verdict, row.outputs_agree) for row in found.rows]
    assert verdicts == [
        ("resnet18 ort fp32 b1", "slower", True),
        ("resnet18 ort int8@cpu b1", "equivalent", True),
        ("resnet18 ort fp32 b1", "faster", True),
    ]
    assert (found.verdict, found.gate_failed) == ("slower", True)
    change = found.rows[0].change
    assert change is not None and change.versions == {"onnxruntime": ("1.23.2", "1.31.1")}
    assert (change.max_abs_diff, change.samples) == (0.0, 32)


def test_the_current_environment_is_the_one_after_if_none_is_named(tmp_path: Path) -> None:
    root = store(tmp_path / "a", make_row("old"), make_row(None), make_row(None, 3.0, "int8@cpu"))
    found = diff_environments([root], "old", 0.02)
    assert [(row.verdict, row.outputs_agree) for row in found.rows] == [("equivalent", True)]
    assert not found.gate_failed


def test_outputs_that_differ_fail_the_gate_however_fast(tmp_path: Path) -> None:
    rows = make_row("old"), make_row("new", 5.0)
    found = diff_environments([store(tmp_path / "a", *rows, answers={rows[1].id: 0.5})], BETWEEN, 0.02)
    (row,) = found.rows
    assert row.verdict == "not_comparable" and row.outputs_agree is False
    assert "the outputs are not within the limits" in row.failures[0] and found.gate_failed
    assert row.change is not None and row.change.max_abs_diff == pytest.approx(0.5, rel=1e-3)


def test_outputs_that_are_gone_are_not_taken_as_equal(tmp_path: Path) -> None:
    rows = make_row("old"), make_row("new")
    root = store(tmp_path / "a", *rows)
    RunFolder(root).outputs_path(rows[0].id).unlink()
    (row,) = diff_environments([root], BETWEEN, 0.02).rows
    assert row.verdict == "not_comparable" and row.outputs_agree is None
    assert "the outputs were not compared" in row.reasons[0]


def test_worse_accuracy_fails_the_gate(tmp_path: Path) -> None:
    found = diff(tmp_path / "a", make_row("old", accuracy=0.98), make_row("new", accuracy=0.95), metric="top1")
    assert found.rows[0].metric_change == pytest.approx(-0.03)
    assert "top-1" in " ".join(found.rows[0].failures) and found.gate_failed
    with pytest.raises(UsageError, match="--metric miou: no configuration has such a score"):
        diff_environments([tmp_path / "a"], BETWEEN, 0.02, metric="miou")


def test_a_configuration_without_its_twin_is_named(tmp_path: Path) -> None:
    rows = make_row("old"), make_row("new"), make_row("new", 3.0, "int8@cpu"), make_row("old", batch=8)
    found = diff(tmp_path / "a", *rows)
    lacking = {row.id: row.reasons for row in found.rows if row.verdict == "not_comparable"}
    assert lacking == {
        "resnet18 ort fp32 b8": ("only the base has this configuration",),
        "resnet18 ort int8@cpu b1": ("only the candidate has this configuration",),
    }
    (row,) = diff(tmp_path / "b", make_row("old"), make_row("new", status="failed", reason="the child died")).rows
    assert row.verdict == "not_comparable" and "the child died" in " ".join(row.reasons)


def test_a_run_without_an_environment_says_which_it_has(tmp_path: Path) -> None:
    root = store(tmp_path / "a", make_row("old"), make_row(None))
    with pytest.raises(UsageError, match=r"no results of new; it has old, the current environment"):
        diff_environments([root], BETWEEN, 0.02)


def test_layers_meet_by_the_nodes_that_they_compute() -> None:
    """One version fuses the activation, renames the layout, and drops a reorder; the convolution became slower."""

    def layer(name: str, ms: float, kind: str = "Conv") -> LayerTime:
        return LayerTime(name=name, mean_ns=ms * 1e6, kind=kind)

    old = [layer("conv_0", 3.0), layer("relu_1", 0.5, "Relu"), layer("fc", 1.0, "Gemm"), layer("r", 0.2, "Reorder")]
    new = [layer("conv_0 + relu_1", 5.0), layer("fc/WithoutBiases", 1.1, "FullyConnected")]
    joined = pair_layers(old, new)
    assert [(delta.onnx_nodes, round(delta.delta_ms or 0, 3)) for delta in joined] == [
        (("conv_0", "relu_1"), 1.5),
        ((), -0.2),
        (("fc",), 0.1),
    ]
    assert pair_layers(old, []) == []
    nchwc = pair_layers([layer("conv_0_nchwc", 3.0)], [layer("conv_0_token_12", 3.0)])
    assert len(nchwc) == 1 and nchwc[0].base and nchwc[0].candidate


def test_what_changed_is_reported_in_sentences(tmp_path: Path) -> None:
    layers = (LayerTime(name="conv", mean_ns=1e6, kind="Conv"), LayerTime(name="fc", mean_ns=1e6, kind="Gemm"))
    slower = (replace(layers[0], mean_ns=3e6), layers[1])
    rows = replace(make_row("old"), layers=layers), replace(make_row("new", 11.0), layers=slower, build_s=2.4)
    found = diff_environments([store(tmp_path / "a", *rows)], BETWEEN, 0.02)
    versions, told = format_changes(found)
    assert versions == "Versions: onnxruntime 1.23.2 -> 1.31.1."
    assert told.startswith("resnet18 ort fp32 b1: outputs differ by at most 0 over 32 samples")
    assert "build 1.20 -> 2.40 s (+100%)" in told and "size 46.8 MB" in told
    assert "layers 2.00 -> 4.00 ms in one profile of each, most in conv +2 ms" in told
    assert "conv +2 ms" in format_sections(list_diff(found)).replace("\\", "")
    came = replace(rows[1], layers=(*slower, LayerTime(name="x", mean_ns=5e5, kind="Cast")))
    assert describe_upgrade(describe_change("m", rows[0], came))[-1].endswith("conv +2 ms, x (new) +0.5 ms")
    assert format_changes(DiffDocument(rows=(), verdict="faster", gate_failed=False)) == []
