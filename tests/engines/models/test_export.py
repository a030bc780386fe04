import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from msgspec.structs import replace
from torch import nn

from enginebench.core import blame
from enginebench.core.errors import MissingDependency, ModelError, UsageError
from enginebench.core.records import Artifact, TensorSpec
from enginebench.features.roofline.counting import describe_work
from enginebench.models.check_inputs import read_examples
from enginebench.models.onnx.source import read_onnx, read_packaged_onnx
from enginebench.models.task import feed_digits, load_digits
from enginebench.models.torch import export
from enginebench.models.torch.export import FixesBatch, compare_with_torch, export_onnx, set_batch_axes
from enginebench.models.torch.source import load_module, make_torch_artifact

WriteModule, UserModel = Callable[[str, str], None], Callable[[str], Artifact]


@pytest.fixture
def mlp(tmp_path: Path) -> Artifact:
    return make_torch_artifact("digits-mlp", tmp_path / "torch")


def test_a_static_export_is_checked_leads_back_and_holds_no_path(mlp, tmp_path, capfd) -> None:
    out = tmp_path / "Übung 模型" / "digits mlp.onnx"
    artifact = export_onnx(mlp, out, batch=3)
    assert capfd.readouterr().out == ""
    assert artifact.inputs == (TensorSpec(name="input", dtype="float32", shape=(3, 64)),)
    assert artifact.outputs == (TensorSpec(name="output", dtype="float32", shape=(3, 10)),)
    assert (artifact.kind, artifact.model, artifact.path) == ("onnx", "digits-mlp", str(out))
    assert (artifact.weights, artifact.parent_sha256) == ("trained", mlp.sha256)
    assert artifact.preprocess_sha256 == mlp.preprocess_sha256 == read_onnx(out).preprocess_sha256
    assert {"torch", "onnx", "onnxscript", "onnxruntime"} == set(artifact.made_by)
    check = artifact.export_check
    assert check is not None and check.batches == (3, 3)
    assert 0 <= check.max_rel_diff < 1e-5 and check.max_abs_diff < 1e-4
    assert [p.name for p in out.parent.iterdir()] == ["digits mlp.onnx"]
    export_onnx(mlp, tmp_path / "a.onnx")
    for data in ((tmp_path / "a.onnx").read_bytes(), Path(read_packaged_onnx("digits-cnn").path).read_bytes()):
        assert b"site-packages" not in data and b".py" not in data


@pytest.mark.parametrize("opset", [17, 18, 21])
def test_the_opset_is_the_one_asked_for(opset: int, mlp: Artifact, tmp_path: Path) -> None:
    assert export_onnx(mlp, tmp_path / "a.onnx", opset=opset).opset == opset


@pytest.mark.parametrize("arguments", [{"batch": 0}, {"opset": 12}, {"opset": 99}])
def test_impossible_requests_are_usage_errors(arguments: dict[str, int], mlp: Artifact, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        export_onnx(mlp, tmp_path / "a.onnx", **arguments)  # type: ignore[arg-type]


def test_large_weights_go_beside_the_graph_and_a_missing_runtime_is_named(mlp, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(export, "SINGLE_FILE_BYTES", 0)
    artifact = export_onnx(mlp, tmp_path / "big.onnx", dynamic_batch=True)
    assert [f.path for f in artifact.files] == ["big.onnx", "big.onnx.data"]
    onnxruntime.InferenceSession(artifact.path, providers=["CPUExecutionProvider"])
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingDependency, match=r"enginebench\[ort\]"):
        export_onnx(mlp, tmp_path / "a.onnx")


@pytest.mark.parametrize("name", ["digits-cnn", "digits-mlp"])
def test_shipped_onnx_is_the_shipped_state_dict(name: str, tmp_path: Path) -> None:
    packaged = read_packaged_onnx(name)
    assert (packaged.model, packaged.weights, packaged.inputs[0].shape[0]) == (name, "trained", "batch")
    held_out = load_digits().select(held_out=True)
    inputs = feed_digits(name, held_out.images)
    session = onnxruntime.InferenceSession(packaged.path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {packaged.inputs[0].name: inputs})
    with torch.inference_mode():
        expected = load_module(make_torch_artifact(name, tmp_path))(torch.from_numpy(inputs)).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_array_equal(found.argmax(1), expected.argmax(1))
    assert np.mean(found.argmax(1) == held_out.labels) > 0.97


USER_MODELS = """
import torch
from torch import nn

@torch.library.custom_op("enginebench_tests::mystery", mutates_args=())
def mystery(x: torch.Tensor) -> torch.Tensor:
    return x.clone()

@mystery.register_fake
def _(x):
    return torch.empty_like(x)

class Strange(nn.Module):
    def forward(self, x):
        return mystery(x) + 1

class FixedBatch(nn.Module):
    def forward(self, x):
        return x + torch.zeros(2, 3)

class Branching(nn.Module):
    def forward(self, x):
        return x if float(x.sum()) > 0 else -x

class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.module = nn.Linear(3, 3)
        self.inner = nn.Sequential(nn.Linear(3, 4), nn.Module())
        self.inner[1].module = nn.Linear(4, 2)
        self.x = nn.Parameter(torch.ones(3))
    def forward(self, x, output):
        return self.inner[1].module(self.inner[0](self.module(x * self.x).tanh() + output))

def nested(): return Nested(), (torch.zeros(1, 3), torch.zeros(1, 3))
def strange(): return Strange(), torch.zeros(1, 3)
def fixed(): return FixedBatch(), torch.zeros(2, 3)
def branching(): return Branching(), torch.zeros(1, 3)
def traced(): return torch.jit.trace(nn.Linear(8, 4), torch.zeros(2, 8)), torch.zeros(1, 8)
class BrainInside(nn.Linear):
    def forward(self, x):
        with torch.autocast("cpu"):
            return super().forward(x).float()

def double(): return nn.Sequential(nn.Linear(8, 4), nn.GELU()).double(), torch.zeros(1, 8).double()
def brain_inside(): return BrainInside(8, 4), torch.zeros(1, 8)
class Packing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(3, 4, batch_first=True)
    def forward(self, rows, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)
        return self.layer(packed)[1][0]

def packing(): return Packing(), (torch.zeros(2, 5, 3), torch.tensor([5, 3]))
class Deciding(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x * 2
        return x - 1

def deciding(): return Deciding(), torch.zeros(4, 8)
def half(): return nn.Linear(8, 4).half(), torch.zeros(1, 8).half()
"""


@pytest.fixture
def user_model(write_user_module: WriteModule, tmp_path: Path) -> UserModel:
    if "user_exports" not in sys.modules:  # an operator can be registered once in a process
        write_user_module("user_exports", USER_MODELS)
    return lambda name: make_torch_artifact(f"user_exports:{name}", tmp_path / "torch", batch=2)


def test_what_has_no_translation_or_branches_on_values_is_explained(user_model: UserModel, tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"yesterday's")
    words = r"operator enginebench_tests.mystery has no ONNX translation \(user_exports.py:15: return mystery"
    with pytest.raises(ModelError, match=words):
        export_onnx(user_model("strange"), tmp_path / "a.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == b"yesterday's"
    assert not list(tmp_path.glob(".*.partial-*"))
    with pytest.raises(ModelError, match=r"it branches on the values of a tensor \(user_exports.py:23: return x if"):
        export_onnx(user_model("branching"), tmp_path / "a.onnx")
    installed = Path(sysconfig.get_path("purelib"), "torchvision", "ops", "boxes.py")
    assert blame._is_users(str(installed)) and not blame._is_users(torch.__file__), "PyTorch alone"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("packing", r"it packs sequences \(pack_padded_sequence\), whose .*user_exports.py:\d+.*Give the layer"),
        ("deciding", r"a shape or a branch depends on the values of a tensor \(user_exports.py:\d+.*torch.where"),
    ],
)
def test_what_cannot_be_exported_is_named_with_what_still_runs(
    user_model: UserModel, tmp_path: Path, name: str, said: str
) -> None:
    with pytest.raises(ModelError, match=said + r".*\. The PyTorch engines still run it$"):
        export_onnx(user_model(name), tmp_path / "a.onnx")


def test_the_batch_is_fixed_or_the_axis_as_long_as_the_first_inputs(user_model: UserModel, tmp_path: Path) -> None:
    artifact = user_model("fixed")
    with pytest.raises(FixesBatch, match=r"with a dynamic batch: it takes a batch of 2 only$"):
        export_onnx(artifact, tmp_path / "a.onnx", dynamic_batch=True)
    with pytest.raises(FixesBatch, match=r"batch 5 fails: .* must match the size .*dimension 0$"):
        export_onnx(replace(artifact, allowed={}), tmp_path / "a.onnx", dynamic_batch=True)  # it looks open
    assert export_onnx(artifact, tmp_path / "a.onnx", batch=2).inputs[0].shape == (2, 3)
    image = TensorSpec(name="image", dtype="float32", shape=(1, 3, 8, 8))
    table = TensorSpec(name="table", dtype="float32", shape=(10, 4))
    scalar = TensorSpec(name="scalar", dtype="float32", shape=())
    assert [s.shape for s in set_batch_axes((image, table, scalar), 4)] == [(4, 3, 8, 8), (10, 4), ()]


def test_names_and_halves_go_through_as_they_are(user_model: UserModel, tmp_path: Path) -> None:
    artifact = user_model("nested")
    graph = onnx.load(str(export_onnx(artifact, tmp_path / "a.onnx").path))
    names = {tensor.name for tensor in graph.graph.initializer}
    state = load_module(artifact).state_dict()
    own = {name.removeprefix("module.") for name in state}
    assert own == {"x", "module.weight", "module.bias"} | {
        f"inner.{path}.{kind}" for path in ("0", "1.module") for kind in ("weight", "bias")
    }
    assert own - names == {"x"} and {"module.x"} <= names  # its input is called x, too
    assert "flat.Flat" not in str(graph)
    scopes = {scope for node in describe_work(graph, {}).nodes for scope in node.scopes}
    assert scopes == {"module", "inner.0", "inner.1.module"}
    artifact = export_onnx(user_model("half"), tmp_path / "a.onnx")
    assert (artifact.precision, artifact.inputs[0].dtype) == ("fp16", "float16")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TorchScript is
def test_a_traced_module_runs_and_is_exported(user_model: UserModel, tmp_path: Path) -> None:
    artifact = user_model("traced")
    assert load_module(artifact)(torch.zeros(5, 8)).shape == (5, 4)
    made = export_onnx(artifact, tmp_path / "a.onnx", dynamic_batch=True)
    assert made.export_check is not None and made.export_check.max_rel_diff < 1e-5
    assert made.parent_sha256 == artifact.sha256


@pytest.mark.parametrize(("name", "operator", "type_"), [("brain_inside", "Gemm", "BF16"), ("double", "Erf", "FP64")])
def test_what_the_runtime_lacks_is_checked_elsewhere_and_named(
    name: str, operator: str, type_: str, user_model: UserModel, tmp_path: Path
) -> None:
    made = export_onnx(user_model(name), tmp_path / "a.onnx")
    assert made.export_check is not None and made.export_check.max_rel_diff < 5e-2
    (warning,) = [c for c in made.warnings if c.code == "checked_by_evaluator"]
    assert warning.figures == {"why": f"it has no {operator} in {type_}"} and "module.float()" in warning.advice


def test_a_graph_that_outputs_something_else_is_noticed(mlp: Artifact, tmp_path: Path) -> None:
    artifact = export_onnx(mlp, tmp_path / "a.onnx")
    module = load_module(mlp)
    with torch.no_grad():
        module.head.bias[3] += 0.5
    with pytest.raises(ModelError, match=r"by 0\.5 absolute, .* so that the graph is wrong$"):
        compare_with_torch(module, Path(artifact.path), artifact.inputs, (1, 1), 0, "digits-mlp")
    with torch.no_grad():
        module.head.bias[3] = torch.nan
    with pytest.raises(ModelError, match="which values are finite"):
        compare_with_torch(module, Path(artifact.path), artifact.inputs, (1, 1), 0, "digits-mlp")
    with pytest.raises(ModelError, match="gives shape"):
        compare_with_torch(nn.Flatten(0), Path(artifact.path), artifact.inputs, (1, 1), 0, "digits-mlp")


ODD_MODELS = """
import torch, torch.nn.functional as F
from torch import nn

class LostAxis(nn.Module):  # a mean that lost its axis: ONNX Runtime 1.2x fuses it into a LayerNormalization, wrongly
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 8))
    def forward(self, x):
        c = x - x.mean(-1)
        return c / torch.sqrt(c.pow(2).mean(-1) + 1e-5) * self.scale

class Masked(nn.Module):  # PyTorch answers zeros to a row that is masked whole, the graph does not
    def forward(self, q, mask): return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

class Steep(nn.Module):  # what an arc tangent of a million keeps in FP32 is mostly rounding
    def forward(self, x): return torch.tan(torch.atan(x * 1e6))

class Cancelling(nn.Module):  # a thousandth of each sum is left
    def __init__(self, share=1e-3):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other = nn.Linear(64, 8, bias=False), nn.Linear(64, 8, bias=False)
        self.other.weight.data = self.one.weight.data * (1 - share)
    def forward(self, x): return self.one(x) - self.other(x)

class NamesFP32(Cancelling):  # does not run in FP64
    def forward(self, x): return super().forward(x) @ torch.eye(8, dtype=torch.float32)

class Even(nn.Module):  # of an input whose values are alike, what is normalized is the rounding of the layer before
    def __init__(self):
        super().__init__()
        self.layer = nn.Hardtanh()
    def forward(self, x): return F.layer_norm(self.layer(x), x.shape[1:], eps=1e-30)

class Noisy(nn.Module):
    def forward(self, x): return x + torch.randn(x.shape[0], 8)

class Counting(nn.Module):
    calls = 0
    def forward(self, x):
        self.calls += 1
        return x * self.calls

def lost_axis(): return LostAxis().eval(), torch.randn(1, 8, 8, generator=torch.manual_seed(0))
def masked():
    mask = torch.ones(2, 1, 8, 8, dtype=torch.bool)
    mask[:, :, 3] = False
    return Masked().eval(), (torch.randn(2, 2, 8, 16, generator=torch.manual_seed(0)), mask)
def steep(): return Steep().eval(), torch.randn(4, 32, generator=torch.manual_seed(0))
def cancelling(): return Cancelling().eval(), torch.randn(4, 64, generator=torch.manual_seed(0))
def steady(): return Cancelling(0.5).eval(), torch.randn(4, 64, generator=torch.manual_seed(0))
def names_fp32(): return NamesFP32().eval(), torch.randn(4, 64, generator=torch.manual_seed(0))
def steady_fp32(): return NamesFP32(0.5).eval(), torch.randn(4, 64, generator=torch.manual_seed(0))
def even(): return Even().eval(), torch.randn(2, 64, generator=torch.manual_seed(0))
def noisy(): return Noisy().eval(), torch.zeros(1, 8)
def counting(): return Counting().eval(), torch.zeros(1, 8)
"""


@pytest.fixture
def odd_model(write_user_module: WriteModule, tmp_path: Path) -> UserModel:
    write_user_module("odd_exports", ODD_MODELS)
    return lambda name: make_torch_artifact(f"odd_exports:{name}", tmp_path / "torch")


def test_a_right_graph_is_exported_though_an_optimizer_breaks_it(odd_model: UserModel, tmp_path: Path) -> None:
    made = export_onnx(odd_model("lost_axis"), tmp_path / "a.onnx")
    assert made.export_check is not None and made.export_check.max_rel_diff < 1e-5
    (warning,) = [c for c in made.warnings if c.code == "optimizer_changes"]
    assert float(warning.figures["share"]) > 0.1 and warning.advice == "ort:opt=none keeps them"


def test_given_and_example_inputs_are_used(odd_model: UserModel, tmp_path: Path) -> None:
    artifact = odd_model("masked")
    assert export_onnx(artifact, tmp_path / "a.onnx").export_check is not None  # made-up masks leave every row a one
    examples = read_examples(tmp_path / "torch", artifact.inputs)
    assert len(examples) == 2
    for name, words in (("given", "on your inputs"), ("examples", "on the example inputs")):
        with pytest.raises(ModelError, match=rf"masked {words}: .* the graph is wrong$"):
            export_onnx(artifact, tmp_path / "b.onnx", own_inputs={name: examples})
    assert not (tmp_path / "b.onnx").exists()


@pytest.mark.parametrize(
    ("name", "cause"), [("noisy", r"draws random numbers: two calls"), ("counting", "keeps a state, or draws")]
)
def test_a_cause_is_named_only_if_it_was_established(
    name: str, cause: str, odd_model: UserModel, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=cause):
        export_onnx(odd_model(name), tmp_path / "a.onnx")


def test_a_difference_that_is_rounding_is_a_warning(odd_model: UserModel, tmp_path: Path) -> None:
    made = export_onnx(odd_model("steep"), tmp_path / "a.onnx")
    assert [c.code for c in made.warnings] == ["rounding_dominates"]


def test_rounding_is_estimated_where_that_of_pytorch_happens_to_be_small(
    odd_model: UserModel, tmp_path: Path, monkeypatch
) -> None:
    """The outputs of a graph that are 0.5% off are right where weights with rounding's noise change them as much."""
    ask = export._ask_graph
    monkeypatch.setattr(export, "_ask_graph", lambda *given: [1.005 * output for output in ask(*given)])
    made = export_onnx(odd_model("cancelling"), tmp_path / "a.onnx")
    assert "rounding_dominates" in [c.code for c in made.warnings]
    with pytest.raises(ModelError, match=r"the graph is wrong$"):
        export_onnx(odd_model("steady"), tmp_path / "b.onnx")
    monkeypatch.setattr(export, "ROUNDING_NOISE", 0.0)
    with pytest.raises(ModelError, match=r"the graph is wrong$"):
        export_onnx(odd_model("cancelling"), tmp_path / "c.onnx")


def test_rounding_is_estimated_in_fp32_of_a_module_that_runs_in_that_alone(
    odd_model: UserModel, tmp_path: Path, monkeypatch
) -> None:
    ask = export._ask_graph
    monkeypatch.setattr(export, "_ask_graph", lambda *given: [1.005 * output for output in ask(*given)])
    made = export_onnx(odd_model("names_fp32"), tmp_path / "a.onnx")
    assert "rounding_dominates" in [c.code for c in made.warnings]
    with pytest.raises(ModelError, match=r"expected at most 0.001 of it(?!.*FP64)"):
        export_onnx(odd_model("steady_fp32"), tmp_path / "b.onnx")


def test_rounding_is_estimated_with_noise_on_layers_too(odd_model: UserModel, tmp_path: Path) -> None:
    """An input whose values are alike stays one whatever the weights: here there are none."""
    artifact = odd_model("even")
    alike = {artifact.inputs[0].name: np.full((1, 64), 0.1, np.float32)}
    call = export._Call(inputs="given", where="on your inputs", feeds=alike)
    exact = [np.zeros((1, 64))]
    assert export._measure_rounding(load_module(artifact), call, exact, double=False) > 0.5


@pytest.mark.parametrize(
    ("tool", "error", "said"),
    [
        (
            "onnx.reference.ReferenceEvaluator",
            RuntimeError("no memory\nfor it"),
            "cannot be run on the CPU. .*no memory$",
        ),
        ("onnx.checker.check_model", onnx.checker.ValidationError("not sorted"), "checker refuses: not sorted"),
    ],
)
def test_a_graph_that_a_tool_does_not_take_is_an_error(mlp, tmp_path, monkeypatch, tool, error, said) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(tool, refuse)
    monkeypatch.setattr("onnxruntime.InferenceSession", refuse)
    with pytest.raises(ModelError, match=said):
        export_onnx(mlp, tmp_path / "a.onnx")
