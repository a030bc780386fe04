"""What engines say of graphs that they do not take, told in one sentence that begins with the operator."""

from pathlib import Path

import onnxruntime
import openvino
import pytest
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, UnsupportedOperator
from enginebench.core.records import Artifact, EngineSpec
from enginebench.engines.backends.onnxruntime.ort import OrtBackend
from enginebench.engines.backends.openvino.openvino import OpenvinoBackend
from enginebench.engines.refusals import explain_refusal, find_operator, shorten_words
from graphs import write_graph


def write_one(path: Path, operator: str, kind: str = "float") -> Artifact:
    """One operator on [n, 4, 4]."""
    return write_graph(path, f"({kind}[n, 4, 4] x) => ({kind}[n, 4, 4] y) {{ [only] y = {operator} (x) }}")


@pytest.mark.parametrize(
    ("backend", "operator", "kind"),
    [
        (OpenvinoBackend(), "Det", "float"),
        (OpenvinoBackend(), "my.own.Fancy", "float"),
        (OrtBackend(), "my.own.Fancy", "float"),
        (OrtBackend(), "Acosh", "double"),
    ],
    ids=["openvino-det", "openvino-custom", "ort-custom", "ort-double"],
)
def test_the_message_begins_with_the_operator_and_the_log_has_every_word(backend, operator, kind, tmp_path) -> None:
    artifact = write_one(tmp_path / "m.onnx", operator, kind)
    spec = EngineSpec(backend="any", precision=artifact.precision)
    with pytest.raises(UnsupportedOperator) as caught:
        backend.load(artifact, spec)
    text = str(caught.value)
    assert text.startswith(f"{operator}: ") and "\n" not in text and len(text) < 500
    assert "[ONNXRuntimeError]" not in text and "src/" not in text
    assert len(caught.value.log) > 50 and operator.rpartition(".")[2] in caught.value.log


def test_a_graph_whose_shapes_do_not_fit_is_explained_by_both_engines(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    write_graph(path, "g (float[3, 4] x) => (float[a, b] y) { y = MatMul (x, x) }")
    for load in (
        lambda: onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]),
        lambda: openvino.Core().read_model(path),
    ):
        with pytest.raises(Exception, match="ncompatible") as caught:
            load()
        found = explain_refusal("it cannot read m.onnx", caught.value)
        assert str(found).startswith("MatMul: it cannot read m.onnx: ") and "ncompatible" in str(found)


def test_lengths_that_a_graph_does_not_take_are_explained(tmp_path: Path) -> None:
    text = "g (float[n, m] x) => (float[3, 4] y) { t = Constant <value = int64[2] {3, 4}> () y = Reshape (x, t) }"
    artifact = write_graph(tmp_path / "m.onnx", text)
    sized = replace(artifact, inputs=(replace(artifact.inputs[0], sizes=(0, 5)),))
    with pytest.raises(
        ArtifactError, match=r"cannot compile the graph: Requested output shape \[3,4\] is incompatible"
    ):
        OpenvinoBackend().load(sized, EngineSpec(backend="openvino", precision="fp32"))


def test_words_without_an_operator_are_told_as_they_are() -> None:
    found = explain_refusal("X cannot load m.onnx", RuntimeError("Protobuf parsing failed."))
    assert type(found) is ArtifactError
    assert str(found) == "X cannot load m.onnx: Protobuf parsing failed."
    assert str(explain_refusal("X cannot", RuntimeError())) == "X cannot: RuntimeError"


def test_operators_and_reasons_in_messages_that_were_seen() -> None:
    failed = (
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Gather node. "
        "Name:'g' Status Message: indices element out of data bounds"
    )
    assert find_operator(failed) == "Gather" and shorten_words(failed).startswith("Non-zero status code")
    several = "Summary:\n-- No conversion rule found for operations: DynamicQuantizeLSTM, ai.onnx.ml.ZipMap"
    assert find_operator(several) == "DynamicQuantizeLSTM"
    assert shorten_words(several) == "No conversion rule found for operations: DynamicQuantizeLSTM, ai.onnx.ml.ZipMap"
    assert find_operator("Det-17 is odd") is None
    assert len(shorten_words("x" * 10_000)) < 400
    older = "Unsupported model IR version: 14, max supported IR version: 13"
    under = "ONNX Runtime only *guarantees* support. Opset 28 is under development, so. Support is till opset 26."
    for words, told in ((older, "IR version 14, this version reads up to 13"), (under, "opset 28, this")):
        assert shorten_words(words).startswith(f"the file has {told}")
    for mixed in ("m must have the same dtype, but got A and B", "Input type (a) and bias type (b) should be the same"):
        assert shorten_words(mixed).endswith("the model casts in its forward. Give the engine cast=autocast")
