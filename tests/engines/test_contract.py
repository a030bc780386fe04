"""The promises of every engine (`enginebench.testing`), each held for each engine that this version ships."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import openvino
import pytest
from msgspec.structs import replace

from calls import run_on
from enginebench.core.errors import ArtifactError, BackendUnavailable, UnsupportedOperator
from enginebench.core.feeds import random_feeds
from enginebench.core.names import format_precision
from enginebench.core.records import Artifact, EngineSpec, Precision, Recipe, TensorSpec
from enginebench.engines import openvino as openvino_file
from enginebench.engines.abilities import CountsWork
from enginebench.engines.backends.onnxruntime.ort import OrtBackend
from enginebench.engines.backends.openvino.openvino import OpenvinoBackend
from enginebench.engines.backends.torch import module as torch_cast
from enginebench.engines.fake import project_feeds
from enginebench.engines.openvino import make_settings
from enginebench.engines.pytorch_module import cast_module
from enginebench.engines.refusals import find_operator, make_refusal, shorten_words
from enginebench.engines.registry import ENTRIES, open_backend, probe, takes
from enginebench.engines.verified import FORCE
from enginebench.testing import CHECKS, INPUT, OUTPUT, Case, Inconclusive, check_batch_may_change, open_case
from graphs import write_graph
from intel import skip_without_provider

# Engines for GPUs keep the same promises in tests of their own, over stand-ins.
SHIPPED = [name for name, entry in ENTRIES.items() if not entry.device]

# PyTorch's compiler imports a module of PyTorch's own that still uses what PyTorch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")


def project(feeds: Any) -> dict[str, np.ndarray]:
    """What `fake` answers: its own rule in place of the network."""
    return project_feeds((INPUT,), (OUTPUT,), feeds)


@pytest.fixture(scope="module", params=SHIPPED)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    name = request.param
    skip_without_provider(name)
    assert probe(name).available, probe(name).reason
    folder = tmp_path_factory.mktemp("cache")
    with open_case(name, expect=project if name == "fake" else None, cache_dir=folder) as case:
        yield case


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_every_engine_keeps_its_promises(case: Case, check: Callable[[Case], None]) -> None:
    if case.entry.name == "pytorch-aoti" and check is check_batch_may_change:
        pytest.skip("a package is of one batch; that others are refused is in torch/test_aoti.py")
    try:
        check(case)
    except Inconclusive as error:
        pytest.skip(f"inconclusive: {error}")


def test_our_own_engines_list_options_and_count_threads_and_work(case: Case) -> None:
    """Both are left to the author of a plug-in; the checks above pass over what is not there."""
    assert case.shared.threads >= 1  # type: ignore[attr-defined]
    assert case.entry.options
    engine: Any = case.shared
    if isinstance(engine, CountsWork):
        engine.bind({INPUT.name: np.zeros((1, *INPUT.shape[1:]), dtype=np.float32)})
        threads, least_ns = engine.threads, engine.count_least_ns()
        assert (least_ns > 0, engine.threads) == (case.entry.name not in ("pytorch-compile", "pytorch-aoti"), threads)


@pytest.mark.parametrize("name", ["ort", "openvino"])
def test_damaged_files_and_artifacts_of_another_graph_are_refused(name, onnx_artifact, tmp_path) -> None:
    backend, spec, path = open_backend(name), EngineSpec(backend=name), tmp_path / "damaged.onnx"
    load: Any = backend.load  # type: ignore[attr-defined]
    for content in (b"", b"not a graph", Path(onnx_artifact.path).read_bytes()[:500]):
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match=r"damaged\.onnx"):
            load(msgspec.structs.replace(onnx_artifact, path=str(path)), spec)
    (taken,), (given,) = onnx_artifact.inputs, onnx_artifact.outputs
    for side, wrong in (("inputs", (taken, "dtype", "float16")), ("outputs", (given, "name", "other"))):
        other = msgspec.structs.replace(wrong[0], **{wrong[1]: wrong[2]})
        with pytest.raises(ArtifactError, match=rf"its artifact has .*{wrong[2]}"):
            load(msgspec.structs.replace(onnx_artifact, **{side: (other,)}), spec)


# Each engine in each precision that it takes: the same network and promises, answers as near as its bits allow.

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
def test_outputs_are_near_and_of_the_types_named(loaded: Any, expect: Any) -> None:
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
            claimed = {spec.precision, "reorder", "unknown"}
            assert spec.backend == "pytorch" or "unknown" in shares.keys() <= claimed, "generated code is not claimed"


@pytest.mark.parametrize("name", ["ort", "openvino"])
def test_a_graph_of_another_precision_is_refused(name: str, graphs: Any, onnx_artifact: Artifact) -> None:
    backend: Any = open_backend(name)
    for artifact, precision, recipe, words in (
        (onnx_artifact, "int8", "cpu", "--to int8@cpu"),
        (onnx_artifact, "fp16", None, "--to fp16"),
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


def test_instructions_are_asked_of_older_versions_and_a_module_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch_cast.torch.cpu, "get_capabilities", raising=False)
    monkeypatch.setattr(torch_cast.torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch_cast.torch.cpu, "_is_amx_tile_supported", lambda: True)
    assert torch_cast.has_instructions("bf16")
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

    ends = (("rows", "float32", ("n", 4)), ("best", "int64", ("n",)))
    outputs = tuple(TensorSpec(name=name, dtype=dtype, shape=shape) for name, dtype, shape in ends)
    artifact = Artifact(kind="torch", model="m", path="", sha256="", files=(), inputs=(), outputs=outputs)
    module = cast_module(Lookup(), artifact, "bf16", autocast=False)
    rows, best = module(torch.tensor([1, 2]), torch.ones(1))
    assert (rows.dtype, best.dtype) == (torch.float32, torch.int64)


# What engines say of graphs that they do not take, told in one sentence that begins with the operator.


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
    text = f"({kind}[n, 4, 4] x) => ({kind}[n, 4, 4] y) {{ [only] y = {operator} (x) }}"
    artifact = write_graph(tmp_path / "m.onnx", text)
    spec = EngineSpec(backend="any", precision=artifact.precision)
    with pytest.raises(UnsupportedOperator) as caught:
        backend.load(artifact, spec)
    text = str(caught.value)
    assert text.startswith(f"{operator}: ") and "\n" not in text and len(text) < 500
    assert "[ONNXRuntimeError]" not in text and "src/" not in text
    assert len(caught.value.log) > 50 and operator.rpartition(".")[2] in caught.value.log


def test_graphs_and_lengths_that_do_not_fit_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    write_graph(path, "g (float[3, 4] x) => (float[a, b] y) { y = MatMul (x, x) }")
    for load in (
        lambda: onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]),
        lambda: openvino.Core().read_model(path),
    ):
        with pytest.raises(Exception, match="ncompatible") as caught:
            load()
        found = make_refusal("it cannot read m.onnx", caught.value)
        assert str(found).startswith("MatMul: it cannot read m.onnx: ") and "ncompatible" in str(found)
    text = "g (float[n, m] x) => (float[3, 4] y) { t = Constant <value = int64[2] {3, 4}> () y = Reshape (x, t) }"
    artifact = write_graph(tmp_path / "m.onnx", text)
    sized = replace(artifact, inputs=(replace(artifact.inputs[0], sizes=(0, 5)),))
    with pytest.raises(ArtifactError, match=r"cannot compile the graph: Requested output shape \[3,4\] is"):
        OpenvinoBackend().load(sized, EngineSpec(backend="openvino", precision="fp32"))


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
    found = make_refusal("X cannot load m.onnx", RuntimeError("Protobuf parsing failed."))
    assert type(found) is ArtifactError
    assert str(found) == "X cannot load m.onnx: Protobuf parsing failed."
    assert str(make_refusal("X cannot", RuntimeError())) == "X cannot: RuntimeError"
