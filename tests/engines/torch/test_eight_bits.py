"""PyTorch modules in eight bits, by torchao."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

from calls import run_on
from enginebench.core.errors import ModelError
from enginebench.core.records import Artifact, EngineSpec, Normalize, Recipe, ShapeRange, TensorSpec
from enginebench.core.shapes import free_batch
from enginebench.engines.backends.torch import module as linears
from enginebench.engines.backends.torch.entries import PYTORCH_COMPILE
from enginebench.engines.pytorch_module import place_module
from enginebench.engines.registry import open_backend
from enginebench.models.precision.calibration_data import open_data
from enginebench.models.task import complete_normalize, take_bytes
from enginebench.models.torch import eight_bits
from enginebench.models.torch.eight_bits import quantize_module
from enginebench.models.torch.flat import Flat
from enginebench.models.torch.source import load_module, make_torch_artifact
from enginebench.stats.effective import check_precision

pytest.importorskip("torchao")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
OPTIONS = {key: option.default for key, option in PYTORCH_COMPILE.list_options("cuda").items()}


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, Artifact]:
    """(digits-cnn, the same in INT8)."""
    folder = tmp_path_factory.mktemp("huit bits")
    artifact = make_torch_artifact("digits-cnn", folder)
    data = open_data("digits", model="digits-cnn", inputs=artifact.inputs, n=32)
    return artifact, quantize_module(artifact, "pt2e", data, folder / "m.pt2", "minmax", threads=1)


def quantize_net(
    base: Artifact, net: nn.Module, shape: tuple[int, ...], path: Path, names: str = "a", recipe: Recipe = "pt2e"
) -> Artifact:
    inputs = tuple(TensorSpec(name=name, dtype="float32", shape=shape) for name in names)
    artifact = replace(base, model="net", inputs=inputs, warnings=(), preprocess_sha256=None)
    data = open_data("fake", model="net", inputs=inputs, n=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("enginebench.models.torch.eight_bits.load_module", lambda _: Flat(net, None, tuple(names)).eval())
        return quantize_module(artifact, recipe, data, path / "m.pt2", "minmax", threads=1)


@pytest.mark.parametrize("batch", [1, 3])
def test_static_int8_runs_in_integer_kernels_at_any_batch(module, batch, tmp_path) -> None:
    exact, made = map(free_batch, module)
    assert (made.kind, made.precision, made.recipe, made.parent_sha256) == ("torch", "int8", "pt2e", exact.sha256)
    feeds = open_data("digits", model="digits-cnn", inputs=exact.inputs, n=batch).read(0, batch)
    with torch.inference_mode():
        truth = load_module(exact)(*map(torch.from_numpy, feeds.values())).numpy()
    backend: Any = open_backend("pytorch-compile", load_module, tmp_path)
    spec = EngineSpec(backend="pytorch-compile", precision="int8", recipe="pt2e", batch=batch)
    with backend.load(backend.build(made, spec, tmp_path), spec) as engine:
        found = next(iter(run_on(engine, feeds).values()))
        assert engine.effective_precision()["int8"] > 0.1
    assert float((found * truth).sum() / np.linalg.norm(found) / np.linalg.norm(truth)) > 0.99


def test_bytes_are_normalized_once_in_a_quantized_module(tmp_path: Path) -> None:
    exact = make_torch_artifact("digits-cnn", tmp_path)
    made = take_bytes(exact, complete_normalize(Normalize(), "digits-cnn"))
    data, floats = (open_data("digits", model="digits-cnn", inputs=a.inputs, n=32) for a in (made, exact))
    small = quantize_module(made, "pt2e", data, tmp_path / "m.pt2", "minmax", threads=1)
    levels, expected = (torch.from_numpy(d.read(0, 4)["input"]) for d in (data, floats))
    with torch.inference_mode():
        found, truth = (load_module(small)(levels), load_module(exact)(expected))
    assert levels.dtype == torch.uint8
    assert float((found * truth).sum() / found.norm() / truth.norm()) > 0.99


def test_int8_that_generated_code_computes_in_floats_is_shown_as_fp32(module, tmp_path) -> None:
    # With one row and few weights PyTorch 2.13 turns the product into a sum, before it looks for oneDNN's kernels.
    made = quantize_net(module[0], nn.Linear(16, 10), (1, 16), tmp_path)
    backend: Any = open_backend("pytorch-compile", load_module, tmp_path)
    spec = EngineSpec(backend="pytorch-compile", precision="int8", recipe="pt2e")
    with backend.load(backend.build(made, spec, tmp_path), spec) as engine:
        engine.bind({"a": np.ones((1, 16), np.float32)})
        engine.run()
        assert check_precision("int8", engine.effective_precision())[0] == "fp32"


def test_two_inputs_keep_their_batch_open_and_bare_products_with_weights_count(module, tmp_path) -> None:
    class Pair(nn.Module):  # type: ignore[misc]  # PyTorch is not followed by mypy
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.weights = nn.Linear(8, 8), nn.Parameter(torch.ones(3, 8, 8))

        def forward(self, a: Any, b: Any) -> Any:
            first, second, third = self.weights
            return (self.layer(a) + self.layer(b)) @ first @ second @ third.mT * (a @ b.mT).sum()

    small = quantize_net(module[0], Pair(), (1, 8), tmp_path, "ab")
    assert "40% of the products with weights" in {c.code: c.message for c in small.warnings}["low_coverage"]
    made = load_module(small)
    assert [made(torch.ones(n, 8), torch.ones(n, 8)).shape for n in (1, 5)] == [(1, 8), (5, 8)]


def test_what_gives_no_ranges_or_has_nothing_to_quantize_is_refused(module, tmp_path) -> None:
    inputs = (replace(module[0].inputs[0], shape=(16, 1, 8, 8)),)
    only = {"input": ShapeRange(smallest=inputs[0].shape, largest=inputs[0].shape)}
    artifact = replace(module[0], inputs=inputs, allowed=only)
    data = open_data("digits", model="digits-cnn", inputs=inputs, n=12)
    with pytest.raises(ModelError, match="takes 16 entries in a call, and digits has 12"):
        quantize_module(artifact, "pt2e", data, tmp_path / "m.pt2", "minmax", threads=1)
    with pytest.raises(ModelError, match="no convolution or linear layer"):
        quantize_net(module[0], nn.ReLU(), (1, 8), tmp_path)


def test_dynamic_int8_takes_linear_layers_or_refuses(torch_artifact: Artifact) -> None:
    spec = EngineSpec(backend="pytorch-compile", precision="int8", recipe="dynamic")
    two = nn.Sequential(nn.Linear(32, 16), nn.Linear(16, 10))
    made = linears.load_quantized(torch_artifact, spec, OPTIONS, lambda _: two)
    assert [type(layer.weight).__name__ for layer in made._module] == ["Int8Tensor", "Parameter"]
    spec = EngineSpec(backend="pytorch-compile", precision="fp8", recipe="dynamic")
    with pytest.raises(ModelError, match=r"fp8@dynamic covers linear layers.* small has none"):
        linears.load_quantized(torch_artifact, spec, OPTIONS, lambda _: nn.Conv2d(3, 16, 1))


class Tokens(nn.Module):  # type: ignore[misc]
    """Two linear layers that FP8 takes, one that it does not, and positions that a program makes where it runs."""

    def __init__(self, past: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.last, self.past = nn.Linear(32, 64), nn.Linear(64, 16), nn.Linear(16, 3), past

    def forward(self, a: Any) -> Any:
        hidden = self.first(a + torch.arange(32, dtype=a.dtype)).relu()
        rest = nn.functional.linear(hidden, self.second.weight) if self.past else 0
        return self.last(self.second(hidden) + rest)


class Columns(nn.Module):  # type: ignore[misc]
    """One layer by two names, of small values, on what is transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16, bias=False), nn.Linear(16, 48)
        self.again = self.first
        self.first.weight.data *= 1e-5
        self.last.weight.data *= 1e10

    def forward(self, a: Any) -> Any:
        columns = a.transpose(1, 2)
        return self.last(self.first(columns) + self.again(columns.relu()))


@pytest.mark.parametrize(
    ("kind", "shape", "products"),
    [(Tokens, (32,), [(64, 32), (16, 64)]), (Columns, (16, 3), [(16, 16)] * 2 + [(48, 16)])],
)
def test_static_fp8_keeps_ranges_weights_and_an_open_batch(module, kind, shape, products, tmp_path) -> None:
    torch.manual_seed(0)
    net = kind()
    made = quantize_net(module[0], net, (1, *shape), tmp_path, recipe="static")
    assert (made.kind, made.precision, made.recipe) == ("torch", "fp8", "static")
    assert "low_coverage" not in {c.code for c in made.warnings}
    program: Any = load_module(made)
    called = [node.all_input_nodes for node in program.module.graph.nodes if "_scaled_mm" in str(node.target)]
    weights = [weight.all_input_nodes[0].meta["val"] for _, weight, *_ in called]
    assert [(tuple(w.shape), w.dtype) for w in weights] == [(p, torch.float8_e4m3fn) for p in products]
    for n in (1, 5):
        given = torch.rand(n, *shape, generator=torch.Generator().manual_seed(n))
        with torch.inference_mode():
            found, truth = program(given), net(given)
        off = float((found - truth).norm() / truth.norm())
        assert (found.dtype, 0 < off < 0.1) == (torch.float32, True)


@pytest.mark.parametrize(
    ("kind", "names", "recipe", "low"),
    [
        (nn.TransformerEncoderLayer, "a", "pt2e", []),
        (nn.TransformerEncoderLayer, "a", "static", []),
        (nn.TransformerDecoderLayer, "ab", "static", [1 / 3]),
    ],
)
def test_layers_that_pytorch_fuses_are_found(module, kind, names, recipe, low, tmp_path) -> None:
    made = quantize_net(module[0], kind(32, 4, 64, batch_first=True), (1, 8, 32), tmp_path, names, recipe)
    assert [c.figures["share"] for c in made.warnings if c.code == "low_coverage"] == low


def test_static_fp8_runs_on_another_device_and_gives_rows_to_matrix_units(module, tmp_path, monkeypatch) -> None:
    made = quantize_net(module[0], Tokens(), (1, 32), tmp_path, recipe="static")
    spec = EngineSpec(backend="pytorch-compile", precision="fp8", recipe="static", device="meta")
    placed = place_module(load_module(made), made, spec, OPTIONS)
    assert placed(torch.ones(2, 32, device="meta")).device.type == "meta"
    found = []
    monkeypatch.setattr(torch, "_scaled_mm", lambda a, b, *_, **__: found.append(a.stride()) or a @ b)
    with torch._subclasses.FakeTensorMode():
        eight_bits._Fp8Linear(nn.Linear(16, 32), torch.ones(()))(torch.empty(1, 16, 4).transpose(1, 2))
    assert found == [(16, 1)]


hooked = nn.Linear(32, 16)
hooked.register_forward_hook(lambda layer, given, answer: 2 * answer)


@pytest.mark.parametrize(
    ("net", "why"),
    [
        (nn.Conv2d(3, 16, 1), "has no linear layer whose sizes are multiples of 16"),
        (hooked, "has no linear layer whose sizes are multiples of 16 and which has no hooks"),
        (Tokens(past=True), "cannot be quantized by static: '_Fp8Linear' object has no attribute 'weight'"),
    ],
)
def test_static_fp8_refuses_what_it_would_get_wrong(module, net, why, tmp_path) -> None:
    shape = (1, 3, 4, 4) if isinstance(net, nn.Conv2d) else (1, 32)
    with pytest.raises(ModelError, match=why):
        quantize_net(module[0], net, shape, tmp_path, recipe="static")
