"""Each engine in each precision that it takes: the same network and promises, answers as near as its bits allow."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from calls import run_on
from enginebench.core.errors import ArtifactError, BackendUnavailable
from enginebench.core.feeds import random_feeds
from enginebench.core.names import format_precision
from enginebench.core.records import Artifact, EngineSpec, Precision, Recipe, TensorSpec
from enginebench.engines import openvino as openvino_file
from enginebench.engines.backends.torch import module as torch_cast
from enginebench.engines.openvino import make_settings
from enginebench.engines.pytorch_module import cast_module
from enginebench.engines.registry import open_backend, takes
from enginebench.engines.verified import FORCE

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")

# Whatever this CPU has instructions for: every one of them must run and answer. Forced where that may be emulation.
ROWS = [
    ("ort", "fp16", None, {}),
    ("ort", "int8", "cpu", {}),
    ("ort", "int8", "tensorrt", {}),
    ("openvino", "fp16", None, {}),
    ("openvino", "bf16", None, {"force": "1"}),
    ("openvino", "int8", "cpu", {}),
    ("openvino", "int8", "tensorrt", {}),
    ("openvino", "int8", None, {"shapes": "dynamic"}),
    ("openvino", "int8", None, {"floats": "bf16", "force": "1"}),
    ("pytorch", "bf16", None, {"force": "1"}),
    ("pytorch", "bf16", None, {"force": "1", "cast": "autocast"}),
    ("pytorch", "fp16", None, {"force": "1"}),
    ("pytorch-compile", "bf16", None, {"force": "1"}),
]
# Cosine with the answer in double precision. 8 bits: rounding at 2^-9 of the largest value, which is about four
# deviations of normal inputs, so noise of about 1 % of each factor; two layers of it stay under 5 %, cosine 0.999.
NEAR = 0.998


@pytest.fixture(scope="module")
def graphs(onnx_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Precision, Any], Artifact]:
    """The small network in any precision."""
    from enginebench.models.precision.calibrate import calibrate
    from enginebench.models.precision.calibration_data import make_fake
    from enginebench.models.precision.quantize import quantize

    folder = tmp_path_factory.mktemp("präzise Netze")
    calibration = calibrate(onnx_artifact, make_fake(onnx_artifact.inputs, 64, 0), threads=1)

    def make(precision: Precision, recipe: Recipe | None) -> Artifact:
        out = folder / f"{precision}-{recipe}.onnx"
        return quantize(onnx_artifact, precision, recipe, out, calibration=calibration, threads=1)

    return make


@pytest.fixture(scope="module")
def loaded(
    request: pytest.FixtureRequest, graphs: Any, torch_artifact: Artifact, loader: Any, tmp_path_factory: Any
) -> Iterator[tuple[Any, Artifact, EngineSpec]]:
    name, precision, recipe, options = request.param
    folder = tmp_path_factory.mktemp("built")
    backend: Any = open_backend(name, loader, folder)
    spec = EngineSpec(backend=name, precision=precision, recipe=recipe, options=options)
    source = torch_artifact if takes(name) == "torch" else graphs(precision, recipe)
    built = backend.build(source, spec, folder)
    with backend.load(built, spec) as engine:
        yield engine, built, spec


def show(row: Any) -> str:
    return f"{row[0]}-{format_precision(row[1], row[2])}" + "".join(f"-{v}" for v in row[3].values())


def infer(engine: Any, feeds: dict[str, np.ndarray]) -> np.ndarray:
    return run_on(engine, feeds)["scores"]


each_row = pytest.mark.parametrize("loaded", ROWS, ids=map(show, ROWS), indirect=True, scope="module")


@each_row
def test_answers_are_near_and_of_the_types_named(loaded: Any, expect: Any) -> None:
    engine, built, spec = loaded
    assert engine.outputs == built.outputs and engine.outputs[0].dtype == "float32"
    assert built.precision == spec.precision or built.kind == "torch"
    for seed in (1, 2, 1):
        feeds = random_feeds(engine.inputs, 1, seed)
        answer, truth = infer(engine, feeds), expect(feeds["image"])
        assert answer.dtype == np.float32 and answer.shape == (1, 5)
        assert float((answer * truth).sum() / np.linalg.norm(answer) / np.linalg.norm(truth)) > NEAR


@each_row
def test_proof_names_what_runtimes_are_known_to_do(loaded: Any) -> None:
    engine, _, spec = loaded
    before = infer(engine, random_feeds(engine.inputs, 1, 5))
    shares = engine.effective_precision()
    assert sum(shares.values()) == pytest.approx(1)
    np.testing.assert_array_equal(engine.fetch()["scores"], before)
    match spec.backend, spec.precision:
        case "ort", "fp16":
            assert "fp16" not in shares and shares["fp32"] > 0.1, "its CPU kernels cast FP16 graphs to FP32"
        case "ort", "int8" if spec.recipe == "cpu":
            assert shares["int8"] > 0.1
        case "openvino", "int8":
            assert shares["int8"] > 0.1
        case "openvino", "fp16" if "FP16" not in openvino_file.read_capabilities():
            assert "fp16" not in shares and "bf16" not in shares
        case "openvino", "bf16" if "BF16" in openvino_file.read_capabilities():
            assert shares["bf16"] > 0.1
        case "pytorch" | "pytorch-compile", _:
            assert shares[spec.precision] > 0.1


@pytest.mark.parametrize("name", ["ort", "openvino"])
def test_a_graph_of_another_precision_is_refused(name: str, graphs: Any, onnx_artifact: Artifact) -> None:
    backend: Any = open_backend(name)
    for artifact, precision, recipe, words in (
        (onnx_artifact, "int8", "cpu", "quantize --to int8@cpu"),
        (onnx_artifact, "fp16", None, "quantize --to fp16"),
        (graphs("int8", "cpu"), "fp32", None, "Ask for int8"),
        (graphs("int8", "cpu"), "int8", "tensorrt", "is int8@cpu, not int8@tensorrt"),
    ):
        spec = EngineSpec(backend=name, precision=precision, recipe=recipe)
        for use in (backend.load, lambda a, s: backend.build(a, s, Path("unused"))):
            with pytest.raises(ArtifactError, match=words):
                use(artifact, spec)


def test_quantized_aware_training_fits_every_recipe(graphs: Any) -> None:
    trained = msgspec.structs.replace(graphs("int8", "cpu"), recipe="qat")
    backend: Any = open_backend("ort")
    with backend.load(trained, EngineSpec(backend="ort", precision="int8", recipe="cpu")) as engine:
        assert infer(engine, random_feeds(engine.inputs, 1, 0)).shape == (1, 5)


@pytest.mark.parametrize(
    ("name", "precision", "words"),
    [
        ("ort", "bf16", "no BF16 convolution"),
        ("ort", "fp8", "no FP8"),
        ("ort", "tf32", "not tf32"),
        ("openvino", "fp8", "not fp8"),
    ],
)
def test_precisions_that_cannot_be_had_say_why(name: str, precision: Any, words: str, load_engine: Any) -> None:
    with pytest.raises(BackendUnavailable, match=words):
        load_engine(name, precision=precision)


@pytest.mark.parametrize(("name", "precision"), [("pytorch", "bf16"), ("pytorch", "fp16"), ("pytorch-compile", "bf16")])
def test_no_instructions_is_a_reason_unless_forced(name, precision, load_engine, monkeypatch) -> None:
    monkeypatch.setattr(torch_cast, "has_instructions", lambda precision: False)
    with pytest.raises(BackendUnavailable, match=rf"no {precision.upper()} instructions.*{name}:force=1"):
        load_engine(name, precision=precision)


def test_openvino_without_bf16_refuses_and_is_forced(graphs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_file, "read_capabilities", lambda: ("FP32", "INT8"))
    backend: Any = open_backend("openvino")
    with pytest.raises(BackendUnavailable, match="no BF16 instructions"):
        backend.load(graphs("bf16", None), EngineSpec(backend="openvino", precision="bf16"))

    def choose_hint(precision: Precision) -> object:
        spec = EngineSpec(backend="openvino", precision=precision)
        return make_settings(spec, {"floats": "fp32"})["INFERENCE_PRECISION_HINT"]

    assert (choose_hint("bf16"), choose_hint("fp16"), choose_hint("int8")) == ("f32", "f32", "f32")
    monkeypatch.setattr(openvino_file, "read_capabilities", lambda: ("FP32", "BF16", "FP16"))
    assert (choose_hint("bf16"), choose_hint("fp16")) == ("bf16", "dynamic")


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"avx512_bf16": True}, (True, False)),
        ({"amx_bf16": True, "avx512_fp16": True}, (True, True)),
        ({"avx512_bf16": False, "cpu_name": "bf16"}, (False, False)),
    ],
)
def test_instructions_are_read_from_the_runtime(capabilities, expected, monkeypatch) -> None:
    monkeypatch.setattr(torch_cast.torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert (torch_cast.has_instructions("bf16"), torch_cast.has_instructions("fp16")) == expected


def test_older_pytorch_is_asked_in_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch_cast.torch.cpu, "get_capabilities", raising=False)
    monkeypatch.setattr(torch_cast.torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch_cast.torch.cpu, "_is_amx_tile_supported", lambda: True)
    assert torch_cast.has_instructions("bf16")


def test_casts_keep_integers_and_every_output() -> None:
    torch = torch_cast.torch

    class Lookup(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(10, 4)

        def forward(self, ids: Any, scale: Any) -> dict[str, Any]:
            rows = self.table(ids) * scale
            assert rows.dtype == torch.bfloat16
            return {"rows": rows, "best": rows.argmax(1)}

    outputs = (
        TensorSpec(name="rows", dtype="float32", shape=("n", 4)),
        TensorSpec(name="best", dtype="int64", shape=("n",)),
    )
    artifact = Artifact(kind="torch", model="m", path="", sha256="", files=(), inputs=(), outputs=outputs)
    module = cast_module(Lookup(), artifact, "bf16", autocast=False)
    rows, best = module(torch.tensor([1, 2]), torch.ones(1))
    assert (rows.dtype, best.dtype) == (torch.float32, torch.int64)


def test_a_module_runs_in_its_own_precision_without_instructions_and_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch_cast, "has_instructions", lambda precision: False)
    own = Artifact(kind="torch", model="m", path="", sha256="", files=(), inputs=(), outputs=(), precision="fp16")
    spec = EngineSpec(backend="pytorch", precision="fp16")
    known = {"force": FORCE}
    assert torch_cast.check_torch_request(own, spec, known)["force"] == "0"
    with pytest.raises(BackendUnavailable, match="finds no FP16 instructions"):
        torch_cast.check_torch_request(msgspec.structs.replace(own, precision="fp32"), spec, known)
    module = torch.nn.Sequential(torch.nn.Linear(2, 2).half(), torch.nn.Linear(2, 2))
    assert cast_module(module, own, "fp16", autocast=False) is module
    assert module[1].weight.dtype == torch.float32
