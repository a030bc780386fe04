"""`docs/python.md` is one script, and runs as a user would run it; what it says of functions and errors is so."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec.structs import replace

import enginebench
from enginebench.core.errors import ArtifactError
from enginebench.core.feeds import random_feeds
from enginebench.core.protocols import Loadable
from enginebench.core.records import EngineSpec
from enginebench.engines.backends.onnxruntime.ort import OrtBackend
from enginebench.engines.backends.openvino.openvino import OpenvinoBackend
from enginebench.models.onnx.source import read_onnx
from graphs import quantize_on_noise, write_text
from pages import find_code, find_section, find_tables, read_page
from processes import environment

PAGE = read_page("python.md")
# The pages whose blocks are one script each; other blocks of Python need a GPU.
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.long
def test_the_page_runs_as_a_script(tmp_path: Path) -> None:
    """A plain script: no guard around it, and its class is one of `__main__`."""
    pytest.importorskip("torch")
    script = tmp_path / "page.py"
    script.write_text("\n".join(BLOCKS), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "silent"
    assert "Net@" in done.stdout
    assert "did you mean digits-cnn or digits-mlp?" in done.stdout
    assert any(folder.name.startswith("net-") for folder in (tmp_path / "results").iterdir())


def test_functions_errors_and_returns_stand_in_the_tables() -> None:
    (table,) = find_tables(find_section(PAGE, "## The functions"))
    named = set()
    for row in table:
        same = row["function"] == "the same"
        # A method stands beside the function that it is short for.
        named |= {name for name in find_code(row["command line" if same else "function"]) if "." not in name}
    assert named == {name for name in enginebench.__all__ if name.islower()}
    (table,) = find_tables(find_section(PAGE, "## Errors"))
    listed = {name: int(row["exit code of the command line"]) for row in table for name in find_code(row["error"])}
    kinds = {n: getattr(enginebench, n) for n in enginebench.__all__ if isinstance(getattr(enginebench, n), type)}
    errors = {name: kind.exit_code for name, kind in kinds.items() if issubclass(kind, enginebench.EngineBenchError)}
    del errors["EngineBenchError"]
    assert listed == errors
    (table,) = find_tables(find_section(PAGE, "## The functions"))
    for row in table:
        kind, *members = find_code(row["returns"]) or [""]
        if kind in ("Run", "Bench"):
            known = {*dir(getattr(enginebench, kind)), "results", "folder", "record"}
            assert {member.removesuffix("()") for member in members} <= known


# `docs/models.md`, ONNX models: every kind that the page names, made small, and run by the engines that it says.

SECTION = find_section(read_page("models.md"), "## ONNX models")
ENGINES: dict[str, Loadable] = {"ort": OrtBackend(), "openvino": OpenvinoBackend()}
LIBRARY = "onnxruntime_extensions"

WEIGHTS = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
SQUARE = "(float[batch, 4] x) => (float[batch, 4] y)"
BRANCH = """{
    most = ReduceMax <keepdims = 0> (x)
    which = Greater (most, zero)
    y = If (which) <
        then_branch = yes () => (float[batch, 4] a) { a = Relu (x) },
        else_branch = no () => (float[batch, 4] b) { b = Neg (x) }
    >
}"""
LOOP = """{
    y = Loop (times, yes, x) <
        body = step (int64 i, bool go, float[batch, 4] sum) => (bool on, float[batch, 4] next) {
            next = Add (sum, x)
            on = Identity (go)
        }
    >
}"""
SEQUENCE = "(float[batch, 4] x) => (seq(float[batch, 1]) y) { y = SplitToSequence <axis = 1> (x) }"
TEXT = """(string[batch, 2] x) => (int64[batch, 2] y) {
    y = ai.onnx.ml.LabelEncoder <keys_strings = ["yes", "no"], values_int64s = [1, 0]> (x)
}"""
HALF = "(float16[batch, 4] x) => (float16[batch, 4] y) { y = MatMul (x, w) }"


def product(path: Path, *, rows: int | str = "batch", opset: int = 17) -> None:
    text = f"{SQUARE} {{ y = MatMul (x, w) }}".replace("batch", str(rows))
    write_text(path, text, {"w": WEIGHTS}, opset)


def external(path: Path) -> None:
    product(path)
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin", size_threshold=0)


def pipeline(path: Path) -> None:
    to_onnx = pytest.importorskip("skl2onnx").to_onnx
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
    names = np.where(x[:, 0] > 0, "cat", "dog")
    made = to_onnx(make_pipeline(StandardScaler(), LogisticRegression()).fit(x, names), x[:1])
    path.write_bytes(made.SerializeToString())


def quantized(path: Path, *, operators: bool) -> None:
    from onnxruntime.quantization import QuantFormat

    product(path.with_suffix(".whole.onnx"))
    form = QuantFormat.QOperator if operators else QuantFormat.QDQ
    quantize_on_noise(path.with_suffix(".whole.onnx"), path, (2, 4), quant_format=form)


def custom(path: Path) -> None:
    pytest.importorskip(LIBRARY)
    write_text(path, "(string[batch] x) => (int64[batch] y) { y = ai.onnx.contrib.StringLength (x) }")


KINDS: dict[str, Callable[[Path], object]] = {
    "fixed shapes": lambda path: product(path, rows=2),
    "dynamic axes": product,
    "operator set 7": lambda path: product(path, opset=7),
    "operator set 26": lambda path: product(path, opset=26),
    "external data": external,
    "`If`": lambda path: write_text(path, f"{SQUARE} {BRANCH}", {"zero": np.float32(0)}),
    "`Loop`": lambda path: write_text(path, f"{SQUARE} {LOOP}", {"times": np.array(3), "yes": np.array(True)}),
    "FP16 inputs": lambda path: write_text(path, HALF, {"w": WEIGHTS.astype(np.float16)}),
    "INT8 in Q/DQ nodes": lambda path: quantized(path, operators=False),
    "INT8 in integer operators (QOperator)": lambda path: quantized(path, operators=True),
    "a sequence of tensors as output": lambda path: write_text(path, SEQUENCE),
    "text as input": lambda path: write_text(path, TEXT),
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
