"""`docs/models.md`, ONNX models: every kind that the page names, made small, and run by the engines that it says."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from enginebench.core.errors import ArtifactError
from enginebench.core.feeds import random_feeds
from enginebench.core.protocols import Loadable
from enginebench.core.records import EngineSpec
from enginebench.engines.backends.onnxruntime.ort import OrtBackend
from enginebench.engines.backends.openvino.openvino import OpenvinoBackend
from enginebench.models.onnx.source import read_onnx
from pages import find_section, find_tables, read_page

SECTION = find_section(read_page("models.md"), "## ONNX models")
ENGINES: dict[str, Loadable] = {"ort": OrtBackend(), "openvino": OpenvinoBackend()}
LIBRARY = "onnxruntime_extensions"

value = helper.make_tensor_value_info
WEIGHTS = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)


def save(
    path: Path,
    nodes: list[NodeProto],
    inputs: list[ValueInfoProto],
    outputs: list[ValueInfoProto],
    constants: dict[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    domains: tuple[str, ...] = (),
    external: bool = False,
) -> None:
    tensors = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    opsets = [
        helper.make_opsetid("", opset),
        *(helper.make_opsetid(domain, 3 if domain == "ai.onnx.ml" else 1) for domain in domains),
    ]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8 if opset < 21 else 11)
    onnx.save(model, path, save_as_external_data=external, location="weights.bin", size_threshold=0)


def floats(name: str, *shape: int | str, element: int = TensorProto.FLOAT) -> ValueInfoProto:
    return value(name, element, list(shape))


def product(path: Path, *, rows: int | str = "batch", **options: object) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    save(path, [node], [floats("x", rows, 4)], [floats("y", rows, 4)], {"w": WEIGHTS}, **options)  # type: ignore[arg-type]


def branch(path: Path) -> None:
    sides = [
        helper.make_graph([helper.make_node(op, ["x"], [op])], op, [], [floats(op, "batch", 4)])
        for op in ("Relu", "Neg")
    ]
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "zero"], ["which"]),
        helper.make_node("If", ["which"], ["y"], then_branch=sides[0], else_branch=sides[1]),
    ]
    save(path, nodes, [floats("x", "batch", 4)], [floats("y", "batch", 4)], {"zero": np.float32(0)})


def loop(path: Path) -> None:
    whole, truth = TensorProto.INT64, TensorProto.BOOL
    body = helper.make_graph(
        [helper.make_node("Add", ["sum", "x"], ["next"]), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [value("i", whole, []), value("go", truth, []), floats("sum", "batch", 4)],
        [value("on", truth, []), floats("next", "batch", 4)],
    )
    node = helper.make_node("Loop", ["times", "yes", "x"], ["y"], body=body)
    constants = {"times": np.array(3), "yes": np.array(True)}
    save(path, [node], [floats("x", "batch", 4)], [floats("y", "batch", 4)], constants)


def sequence(path: Path) -> None:
    y = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    save(path, [helper.make_node("SplitToSequence", ["x"], ["y"], axis=1)], [floats("x", "batch", 4)], [y])


def text(path: Path) -> None:
    node = helper.make_node(
        "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_strings=["yes", "no"], values_int64s=[1, 0]
    )
    inputs, outputs = [value("x", TensorProto.STRING, ["batch", 2])], [value("y", TensorProto.INT64, ["batch", 2])]
    save(path, [node], inputs, outputs, domains=("ai.onnx.ml",))


def pipeline(path: Path) -> None:
    to_onnx = pytest.importorskip("skl2onnx").to_onnx
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
    names = np.where(x[:, 0] > 0, "cat", "dog")
    made = to_onnx(make_pipeline(StandardScaler(), LogisticRegression()).fit(x, names), x[:1])
    path.write_bytes(made.SerializeToString())


def half(path: Path) -> None:
    sixteen = TensorProto.FLOAT16
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    inputs, outputs = [floats("x", "batch", 4, element=sixteen)], [floats("y", "batch", 4, element=sixteen)]
    save(path, [node], inputs, outputs, {"w": WEIGHTS.astype(np.float16)})


def quantized(path: Path, *, operators: bool) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Noise(CalibrationDataReader):  # type: ignore[misc]
        left = [{"x": np.random.default_rng(i).standard_normal((2, 4)).astype(np.float32)} for i in range(4)]

        def get_next(self) -> dict[str, np.ndarray] | None:
            return self.left.pop() if self.left else None

    product(path.with_suffix(".whole.onnx"))
    form = QuantFormat.QOperator if operators else QuantFormat.QDQ
    quantize_static(path.with_suffix(".whole.onnx"), path, Noise(), quant_format=form)


def custom(path: Path) -> None:
    pytest.importorskip(LIBRARY)
    node = helper.make_node("StringLength", ["x"], ["y"], domain="ai.onnx.contrib")
    inputs, outputs = [value("x", TensorProto.STRING, ["batch"])], [value("y", TensorProto.INT64, ["batch"])]
    save(path, [node], inputs, outputs, domains=("ai.onnx.contrib",))


KINDS: dict[str, Callable[[Path], None]] = {
    "fixed shapes": lambda path: product(path, rows=2),
    "dynamic axes": product,
    "operator set 7": lambda path: product(path, opset=7),
    "operator set 26": lambda path: product(path, opset=26),
    "external data": lambda path: product(path, external=True),
    "`If`": branch,
    "`Loop`": loop,
    "FP16 inputs": half,
    "INT8 in Q/DQ nodes": lambda path: quantized(path, operators=False),
    "INT8 in operators of its own (QOperator)": lambda path: quantized(path, operators=True),
    "a sequence of tensors as output": sequence,
    "text as input": text,
    "a pipeline of ai.onnx.ml, whose outputs are text and maps": pipeline,
    "custom operators": custom,
}


def read_claims() -> dict[str, dict[str, str]]:
    (table,) = find_tables(SECTION)
    return {row["kind"]: row for row in table}


def test_the_page_names_every_kind() -> None:
    assert list(read_claims()) == list(KINDS)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_runs_what_the_page_says(kind: str, engine: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    KINDS[kind](path)
    claim = read_claims()[kind][f"`{engine}`"]
    artifact = read_onnx(path)
    if claim == "with `--ort-extension`":
        with pytest.raises(ArtifactError, match=r"^ai\.onnx\.contrib\.StringLength: "):
            run(engine, artifact)
        artifact = replace(artifact, operator_libraries=(LIBRARY,))
    if claim == "no":
        with pytest.raises(ArtifactError):
            run(engine, artifact)
        return
    answers = run(engine, artifact)
    assert answers and all(array.size for array in answers.values())


def run(engine: str, artifact: object) -> dict[str, np.ndarray]:
    artifact = replace(artifact, inputs=artifact.inputs)  # type: ignore[type-var, attr-defined]
    spec = EngineSpec(backend=engine, batch=2, precision=artifact.precision, recipe=artifact.recipe)
    with ENGINES[engine].load(artifact, spec) as loaded:
        loaded.bind(random_feeds(loaded.inputs, 2, seed=0))
        loaded.run()
        return loaded.fetch()
