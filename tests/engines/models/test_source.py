import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from enginebench.core import errors
from enginebench.core.errors import ArtifactError, BackendUnavailable, ModelError, UsageError
from enginebench.core.records import Artifact, Availability, ModelSource
from enginebench.core.shapes import concrete_shape, find_built_batch
from enginebench.models.check_inputs import read_examples
from enginebench.models.precision.quantize import quantize
from enginebench.models.task import hash_preprocess
from enginebench.models.torch import source as torch_source
from enginebench.models.torch import torchvision_import
from enginebench.models.torch.source import load_module, make_torch_artifact
from enginebench.models.torch.weights import calibrate_batch_norm, draw_zeros, seed_torch
from enginebench.models.zoo import DATA_DIR
from enginebench.runs.child.jobs import SourceJob, SourceResponse
from enginebench.runs.child.perform.sources import make_source
from enginebench.runs.folder import RunRequest
from enginebench.runs.plan import PlannedConfiguration, plan_configurations, resolve
from enginebench.runs.traffic import read_traffic

WriteModule = Callable[[str, str], None]
FACTORIES = """
import random
import numpy as np
import torch
from torch import nn

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(30, 4)
        self.head = nn.Linear(4, 2)
    def forward(self, ids, mask):
        hidden = self.table(ids) * mask
        return {"logits": self.head(hidden), "extra": [hidden.sum(-1)], "note": None}

def pair(): return Two(), (torch.zeros(2, 5, dtype=torch.int64), torch.ones(2, 5, 1))
def alone(): return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
def half(): return nn.Linear(3, 2).half(), (torch.zeros(1, 3).half(),)
def brain(): return nn.Linear(3, 2).bfloat16(), (torch.zeros(1, 3).bfloat16(),)
class Inside(nn.Module):
    def forward(self, x):
        return x.float() * 2

def brain_inside(): return Inside(), (torch.zeros(1, 3).bfloat16(),)
def waves(): return Inside(), torch.zeros(1, 3, dtype=torch.complex64)
def on_meta(): return nn.Linear(3, 2, device="meta"), torch.zeros(1, 3)
def zeros():
    module = nn.Linear(3, 2)
    nn.init.zeros_(module.weight)
    return module, torch.zeros(1, 3)

class Shuffled(nn.Linear):
    def __init__(self):
        super().__init__(8, 8)
        self.order = [*np.random.permutation(8).tolist(), random.random()]

def shuffled(): return Shuffled(), torch.zeros(1, 8)
def breaks():
    raise KeyError("no such checkpoint")

def program():
    return torch.export.export(nn.Linear(3, 2).eval(), (torch.ones(1, 3),))

def module_of_program():
    return nn.Sequential(program().module()), torch.ones(1, 3)

class Writer(nn.Module):
    def forward(self, x):
        return x.add_(1) * 2

class Silent(nn.Module):
    def forward(self, x):
        return {"text": "none"}

def writer():
    return Writer(), torch.zeros(1, 3)

def silent():
    return Silent(), torch.zeros(1, 3)

def returns_text(): return "a module"
def bad_examples(): return nn.Linear(3, 2), ([1, 2, 3],)
class Sum(nn.Module):
    def __init__(self, large, small):
        super().__init__()
        self.large = nn.Parameter(torch.ones(4, dtype=large))
        self.small = nn.Parameter(torch.ones(1, dtype=small))
    def forward(self, x):
        return x + self.large * self.small

def __getattr__(name):
    kind, *types = name.split("_")
    if kind != "sum":
        raise AttributeError(name)
    large, small = (getattr(torch, text) for text in types)
    return lambda: (Sum(large, small), torch.ones(1, 4, dtype=large))

number = 3
"""


@pytest.fixture(autouse=True)
def user_models(write_user_module: WriteModule) -> None:
    write_user_module("user_models", FACTORIES)


@pytest.mark.parametrize("large", ["float64", "float32"])
@pytest.mark.parametrize("small", ["float64", "float32"])
def test_a_module_in_fp64_is_warned_about(tmp_path: Path, large: str, small: str) -> None:
    artifact = make_torch_artifact(f"user_models:sum_{large}_{small}", tmp_path)
    codes = [warning.code for warning in artifact.warnings if warning.code == "unnamed_precision"]
    assert codes == ["unnamed_precision"] * (large == "float64") and artifact.precision == "fp32"


def test_random_weights_are_seeded_calibrated_and_marked(tmp_path: Path) -> None:
    def make(seed: int, folder: str) -> Artifact:
        return make_torch_artifact("mobilenet_v3_small", tmp_path / folder, weights="random", seed=seed, input_size=64)

    first, again, other = make(0, "a"), make(0, "b"), make(1, "c")
    assert first.sha256 == again.sha256 != other.sha256
    assert first.weights == "random"
    assert [warning.code for warning in first.warnings] == ["random_weights"]
    assert "34 BatchNorm layers calibrated" in first.warnings[0].message
    assert first.inputs[0].shape == (1, 3, 64, 64)
    module = load_module(first)
    with torch.inference_mode():
        outputs = module(torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(5)))
    # Without calibration it is 6.5e-10: rounding noise. The bound lies between the two by orders of magnitude.
    assert float(outputs.std()) > 1e-4


def test_making_and_loading_leave_the_callers_generator_alone(tmp_path: Path) -> None:
    def draw() -> tuple[float, float, float]:
        return float(torch.rand(1)), np.random.mtrand.random(), random.random()

    with seed_torch(7):
        expected = draw()
    with seed_torch(7):
        artifact = make_torch_artifact("user_models:shuffled", tmp_path)
        orders = [load_module(artifact).module.order for _ in range(2)]
        assert orders[0] == orders[1], "what is in no state dict is the same in each process"
        assert draw() == expected


@pytest.mark.parametrize("model", ["resnet18", "timm:vit_tiny_patch16_224"])
def test_loading_draws_no_weight(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = make_torch_artifact(model, tmp_path, weights="random")
    untouched: list[bool] = []

    @contextmanager
    def watch(seed: int) -> Iterator[None]:
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        yield
        untouched.append(torch.equal(before, torch.get_rng_state()))

    monkeypatch.setattr(torch_source, "seed_torch", watch)
    weights = load_module(artifact).state_dict()
    assert untouched == [True]
    stored = torch.load(artifact.path, weights_only=True)
    assert weights.keys() == stored.keys()
    assert all(torch.equal(weights[name], stored[name]) for name in stored)


def test_statistics_are_those_of_the_inputs_and_weights_that_begin_as_zeros_are_drawn() -> None:
    layer = nn.BatchNorm1d(4)
    module = nn.Sequential(nn.Linear(4, 4), layer, nn.Dropout(0.9)).eval()
    with torch.no_grad():
        module[0].weight.copy_(3 * torch.eye(4))
        module[0].bias.fill_(2)
    assert calibrate_batch_norm(module, [torch.zeros(1, 4)], seed=0) == 1
    assert layer.num_batches_tracked == 4, "more change little, and are most of the time that a model takes to load"
    # 32 standard normal draws: the mean of 3x + 2 lies within 5 standard errors (3 / sqrt(32)), the variance near 9.
    assert torch.allclose(layer.running_mean, torch.tensor(2.0), atol=5 * 3 / 32**0.5)
    assert torch.all((layer.running_var > 3) & (layer.running_var < 20))
    assert (layer.momentum, layer.training, module[2].training) == (0.1, False, False)
    assert calibrate_batch_norm(nn.Linear(2, 2), [torch.zeros(1, 2)], seed=0) == 0

    # Behind a head of zeros, which torchvision gives its vision transformers, every engine answers the same.
    def make() -> nn.Module:
        module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        nn.init.zeros_(module[1].weight)
        nn.init.zeros_(module[1].bias)
        return module

    one, other = make(), make()
    kept = one[0].weight.clone()
    assert draw_zeros(one, seed=3) == draw_zeros(other, seed=3) == 1
    assert one[1].weight.all() and torch.equal(one[1].weight, other[1].weight)
    assert torch.equal(one[0].weight, kept) and not one[1].bias.any()
    assert draw_zeros(one, seed=3) == 0


def test_pretrained_weights_are_used_where_they_can_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = make_torch_artifact("mobilenet_v3_small", tmp_path / "a", weights="random", seed=3, input_size=32)
    state = torch.load(given.path, weights_only=True)
    monkeypatch.setattr(torch_source, "fetch_pretrained", lambda ref: state)
    artifact = make_torch_artifact("mobilenet_v3_small", tmp_path / "b", input_size=32)
    assert (artifact.weights, artifact.warnings, artifact.sha256) == ("pretrained", (), given.sha256)


def test_timm_is_built_with_its_own_and_with_another_size(tmp_path: Path) -> None:
    artifact = make_torch_artifact("timm:mobilenetv3_small_100", tmp_path, weights="random", input_size=48, batch=2)
    assert (artifact.inputs[0].shape, artifact.outputs[0].shape) == ((2, 3, 48, 48), (2, 1000))
    assert set(artifact.made_by) == {"torch", "timm", "torchvision"}
    assert artifact.preprocess_sha256 == hash_preprocess("timm:mobilenetv3_small_100", 48)
    assert load_module(artifact)(torch.zeros(2, 3, 48, 48)).shape == (2, 1000)
    transformer = make_torch_artifact("timm:vit_tiny_patch16_224", tmp_path, weights="random", input_size=32)
    assert load_module(transformer)(torch.zeros(1, 3, 32, 32)).shape == (1, 1000)
    with pytest.raises(ModelError, match="did you mean timm:resnet18"):
        make_torch_artifact("timm:resnet1", tmp_path)


def test_weights_from_a_file_plain_or_wrapped_or_unusable(tmp_path: Path) -> None:
    plain = torch.load(DATA_DIR / "digits-mlp.pt", weights_only=True)
    torch.save({"state_dict": plain, "epoch": 3}, tmp_path / "Gewichte ü.pt")
    artifact = make_torch_artifact("digits-mlp", tmp_path / "out", weights=str(tmp_path / "Gewichte ü.pt"))
    assert artifact.weights == "file"
    assert artifact.sha256 == make_torch_artifact("digits-mlp", tmp_path / "other").sha256

    def message(weights: Path) -> str:
        with pytest.raises(ModelError) as caught:
            make_torch_artifact("digits-mlp", tmp_path / "out", weights=str(weights))
        assert caught.value.exit_code == 5
        return str(caught.value)

    assert "no such file" in message(tmp_path / "absent.pt")
    (tmp_path / "empty.pt").touch()
    assert "cannot be read as a state dict" in message(tmp_path / "empty.pt")
    (tmp_path / "cut.pt").write_bytes((DATA_DIR / "digits-mlp.pt").read_bytes()[:5000])
    assert "cannot be read as a state dict" in message(tmp_path / "cut.pt")
    torch.save(nn.Linear(2, 2), tmp_path / "module.pt")
    assert "it is a pickle of torch.nn.modules.linear.Linear, which is not opened" in message(tmp_path / "module.pt")
    torch.save({"model": plain, "optimizer": {"lr": 0.1, "state": {}}}, tmp_path / "training.pt")
    assert make_torch_artifact("digits-mlp", tmp_path / "o", weights=str(tmp_path / "training.pt")).weights == "file"
    torch.save({"model": plain, "ema": plain, "epoch": 3}, tmp_path / "two.pt")
    assert "'model', 'ema' are state dicts; expected names to tensors" in message(tmp_path / "two.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    assert "expected names to tensors" in message(tmp_path / "list.pt")
    assert "do not fit" in message(DATA_DIR / "digits-cnn.pt")
    # As the weights of PyTorch's own quantization are kept.
    packed = type("Packed", (nn.Identity,), {"get_extra_state": lambda _: (1, 2)})()
    with pytest.raises(ModelError, match=r"more than tensors: _extra_state \(tuple\)\. PyTorch"):
        torch_source.write_state(packed, tmp_path / "packed.pt")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"model": "resnet18", "batch": 0}, "at least 1"),
        ({"model": "digits-cnn", "input_size": 9}, "only 8x8 images"),
        ({"model": "digits-cnn", "input_shapes": {"x": (1, 1, 8, 8)}}, "the inputs are input"),
        ({"model": "digits-cnn", "input_shapes": {"input": (0, 1, 8, 8)}}, "axis below 1"),
        ({"model": "rsnet18"}, "did you mean resnet18"),
    ],
)
def test_impossible_requests_are_usage_errors(arguments: dict[str, object], expected: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=expected):
        make_torch_artifact(out_dir=tmp_path, **arguments)  # type: ignore[arg-type]


def test_shapes_are_checked_before_weights_are_downloaded_and_files_have_no_module(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(torch_source, "fetch_pretrained", lambda ref: pytest.fail("asked for weights"))
    with pytest.raises(ModelError, match="does not run on inputs of shape 1x4x32x32"):
        make_torch_artifact("mobilenet_v3_small", tmp_path, input_shapes={"input": (1, 4, 32, 32)})
    path = DATA_DIR / "digits-cnn.onnx"
    with pytest.raises(UsageError, match="no PyTorch module"):
        make_torch_artifact(str(path), tmp_path)


@pytest.mark.parametrize(("channels", "message"), [(4, "of 1 BatchNorm layer calibrated"), (1, "are the initial ones")])
def test_a_module_of_a_fixed_batch_is_calibrated_on_it_where_it_can_be(channels: int, message: str) -> None:
    class Fixed(nn.BatchNorm1d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.view(channels, 2))

    module = Fixed(2).eval()
    _, (warning,) = torch_source._randomize(module, (torch.zeros(1, channels * 2),), 0, "as asked")
    assert message in warning.message and module.num_batches_tracked == (4 if channels > 1 else 0)


def test_a_changed_or_missing_state_dict_is_noticed(tmp_path: Path) -> None:
    artifact = make_torch_artifact("digits-mlp", tmp_path)
    path = Path(artifact.path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="was changed"):
        load_module(artifact)
    path.unlink()
    with pytest.raises(ArtifactError, match="does not exist"):
        load_module(artifact)
    with pytest.raises(ArtifactError, match="expected 'torch'"):
        load_module(msgspec.structs.replace(artifact, kind="onnx"))


def describe(artifact: Artifact) -> list[tuple[str, str, tuple[int | str, ...]]]:
    return [(spec.name, spec.dtype, spec.shape) for spec in artifact.inputs]


def test_what_a_factory_may_return(tmp_path: Path) -> None:
    artifact = make_torch_artifact("user_models:pair", tmp_path / "out", batch=3)
    assert describe(artifact) == [("ids", "int64", (3, 5)), ("mask", "float32", (3, 5, 1))]
    assert [(s.name, s.shape) for s in artifact.outputs] == [("outputs.logits", (3, 5, 2)), ("outputs.extra.0", (3, 5))]
    assert (artifact.weights, artifact.preprocess_sha256) == ("file", None)
    first = load_module(artifact)(torch.ones(1, 5, dtype=torch.int64), torch.ones(1, 5, 1))
    again = load_module(artifact)(torch.ones(1, 5, dtype=torch.int64), torch.ones(1, 5, 1))
    assert isinstance(first, tuple) and len(first) == 2
    assert torch.equal(first[0], again[0])  # the state was stored: a second call of the factory changes nothing
    artifact = make_torch_artifact("user_models:module_of_program", tmp_path)
    assert load_module(artifact)(torch.ones(1, 3)).shape == (1, 2)
    shapes = {"mask": (2, 7, 1), "ids": (2, 7)}
    artifact = make_torch_artifact("user_models:pair", tmp_path, input_shapes=shapes)
    assert describe(artifact) == [("ids", "int64", (2, 7)), ("mask", "float32", (2, 7, 1))]
    own = load_module(make_torch_artifact("user_models:zeros", tmp_path))
    drawn = load_module(make_torch_artifact("user_models:zeros", tmp_path, weights="random"))
    assert own.module.weight.abs().sum() == 0 and drawn.module.weight.abs().sum() > 0


def test_factories_need_shapes_and_give_the_precision_of_their_parameters(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--input-shape"):
        make_torch_artifact("user_models:alone", tmp_path)
    artifact = make_torch_artifact("user_models:alone", tmp_path, input_shapes={"image": (2, 3, 9, 9)})
    assert (artifact.inputs[0].name, artifact.inputs[0].shape) == ("input", (2, 3, 9, 9))
    assert artifact.outputs[0].shape == (2, 4, 7, 7)
    with pytest.raises(UsageError, match="an input size does not apply"):
        make_torch_artifact("user_models:alone", tmp_path, input_size=32)
    artifact = make_torch_artifact("user_models:half", tmp_path)
    assert (artifact.precision, artifact.inputs[0].dtype) == ("fp16", "float16")
    with pytest.raises(ModelError, match="dtype bfloat16, which no engine takes"):
        make_torch_artifact("user_models:brain", tmp_path)
    with pytest.raises(ModelError, match="'input' has dtype bfloat16, which no engine takes"):
        make_torch_artifact("user_models:brain_inside", tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("user_models:par", "did you mean pair"),
        ("user_models:number", "number is an int; expected a function"),
        ("user_models:breaks", "the factory failed: KeyError: 'no such checkpoint'"),
        ("user_models:returns_text", "returned str; expected a torch.nn.Module"),
        ("user_models:program", "or (module, example inputs). Give its .module()"),
        ("user_models:bad_examples", "the example inputs are (list), and they cannot be used: there is no tensor"),
        ("user_models:writer", "writes into its input 'input'"),
        ("user_models:silent", "returns no tensor (dict); expected at least one"),
        ("user_models:waves", "'input' has dtype complex64, which no engine takes"),
        ("user_models:on_meta", "the module holds no weights that could be measured: Cannot copy out of meta tensor"),
        ("no_such_module_at_all:factory", "cannot import no_such_module_at_all: ModuleNotFoundError"),
        ("user_broken:factory", "cannot import user_broken: SyntaxError"),
        ("user_broken.py:factory", "A module is meant, not its file: user_broken:factory"),
    ],
)
def test_bad_factories_are_named(text: str, expected: str, write_user_module: WriteModule, tmp_path: Path) -> None:
    write_user_module("user_broken", "def factory(:")
    with pytest.raises(ModelError) as caught:
        make_torch_artifact(text, tmp_path)
    assert expected in str(caught.value)


def test_torchvision_comes_without_the_compiler_and_with_what_its_operators_need() -> None:
    code = """
import sys
from enginebench.models.torch.torchvision_import import import_torchvision
vision = import_torchvision()
assert callable(vision.models.resnet18)
assert not [name for name in sys.modules if name.startswith("torch._dynamo")]
import torch
from torch._dynamo.utils import is_compile_supported
assert is_compile_supported("cpu") is not None and callable(torch._dynamo.reset)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
    code = """
import importlib, sys
from types import ModuleType
from enginebench.models.torch import torchvision_import as t
good = ModuleType("torchvision")
real = importlib.import_module
def matching(name): return good
t.importlib.import_module = matching
assert t.import_torchvision() is good and not t._libraries
def half(name):
    if not t._libraries:
        sys.modules["torchvision.ops"] = ModuleType("torchvision.ops")
        raise RuntimeError("operator torchvision::nms does not exist")
    assert "torchvision.ops" not in sys.modules
    part = ModuleType(name)
    part._roi_align = None
    return good if name == "torchvision" else part
t.importlib.import_module = half
assert t.import_torchvision() is good and len(t._libraries) == 1
print("done")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout.strip(), done.stderr) == ("done", "")


def test_a_missing_operator_of_torchvision_is_a_warning_of_the_models_that_need_it(
    write_user_module: WriteModule, tmp_path: Path
) -> None:
    write_user_module(
        "detecting",
        """
import torch
import torchvision
class Boxes(torch.nn.Module):
    def forward(self, x):
        return x[torchvision.ops.nms(x, x[:, 0], 0.5)]
class Regions(torch.nn.Module):
    def forward(self, x):
        return torchvision.ops.roi_align(x, [torch.tensor([[0.0, 0.0, 4.0, 4.0]])], output_size=2)
class Deformed(torch.nn.Module):
    def forward(self, x):
        return torchvision.ops.deform_conv2d(x, torch.zeros(1, 18, 14, 14), torch.ones(4, 3, 3, 3))
def boxes(): return Boxes(), torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.9]])
def regions(): return Regions(), torch.rand(1, 3, 16, 16)
def deformed(): return Deformed(), torch.rand(1, 3, 16, 16)
""",
    )

    def list_codes(model: str) -> list[str]:
        return [warning.code for warning in make_torch_artifact(model, tmp_path, weights="default").warnings]

    torchvision_import.import_torchvision()
    missing = ["environment"] if torchvision_import._libraries else []  # this environment may have the right build
    assert list_codes("detecting:boxes") == missing
    assert "environment" not in list_codes("user_models:pair")  # made later in the same process
    assert list_codes("detecting:regions") == missing
    if missing:
        with pytest.raises(ModelError, match="of another build than PyTorch") as caught:
            make_torch_artifact("detecting:deformed", tmp_path)
        assert "Or import torchvision" not in str(caught.value)  # it has no stand-in


def test_torchvision_failures_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_with(error: Exception) -> None:
        def fail(name: str) -> None:
            raise error

        monkeypatch.setattr(torchvision_import.importlib, "import_module", fail)

    fail_with(ModuleNotFoundError("No module named 'torchvision'", name="torchvision"))
    with pytest.raises(errors.MissingDependency, match="pip install"):
        torchvision_import.import_torchvision()
    fail_with(ModuleNotFoundError("No module named 'PIL'", name="PIL"))
    with pytest.raises(BackendUnavailable, match="PIL"):
        torchvision_import.import_torchvision()
    fail_with(RuntimeError("something else is broken"))
    with pytest.raises(BackendUnavailable, match="matching version"):
        torchvision_import.import_torchvision()


def test_a_factory_is_fed_with_pictures_and_refuses_them_before_its_export(write_user_module, tmp_path) -> None:
    write_user_module(
        "pics",
        """
import torch
def picture(): return torch.nn.Conv2d(3, 2, 3), (torch.zeros(1, 3, 8, 8),)
def flat(): return torch.nn.Linear(64, 2), (torch.zeros(1, 64),)
""",
    )
    (tmp_path / "flat").mkdir()
    for i in range(3):
        Image.new("RGB", (20, 16), (i, 90, 200)).save(tmp_path / "flat" / f"{i}.png")

    def make(model: str) -> tuple[SourceResponse, list[str]]:
        source = ModelSource(model=f"pics:{model}")
        job = SourceJob(source=source, out_dir=str(tmp_path / model), batch=1, onnx=True, data=str(tmp_path / "flat"))
        notes: list[str] = []
        try:
            return make_source(job, notes.append, lambda early: notes.append(early.artifacts[0].kind)), notes
        except UsageError as error:
            raise UsageError(f"{error} [{', '.join(notes)}]") from error

    answer, notes = make("picture")
    assert [a.kind for a in answer.artifacts] == ["torch", "onnx"]
    assert notes == ["loading the model", "torch", "exporting to ONNX"], "the module can be measured before the export"
    assert len(list((tmp_path / "picture" / "samples").iterdir())) == 3
    with pytest.raises(UsageError, match=r"pics:flat takes input .*--inputs F.npz.*\[loading the model\]"):
        make("flat")


# Modules that take one batch only, and what a run, an export and a comparison make of them.

BATCHES = """
import torch
from torch import nn

class Three(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros(1))
    def forward(self, x):
        self.calls += 1
        return self.inner(x.view(3, 8)) + self.calls

class Joined(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 4)
    def forward(self, parts):
        return self.inner(torch.cat(parts))

class Alone(nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[0] == 1 else x

def alone(): return Alone(), torch.randn(1, 8)
def listed(): return Joined(), ([torch.randn(3, 8), torch.randn(3, 8)],)
def three(): return Three(), torch.randn(3, 8)
def free(): return nn.Linear(8, 4), torch.randn(3, 8)
def steps(): return nn.LSTM(8, 6), torch.randn(5, 3, 8)
def picture(): return nn.Conv2d(3, 5, 3), torch.randn(3, 9, 9)
def state(): return nn.GRU(8, 6, num_layers=2, batch_first=True), (torch.randn(1, 5, 8), torch.zeros(2, 1, 6))
"""


@pytest.fixture(autouse=True)
def user_batches(write_user_module: Callable[[str, str], None]) -> None:
    write_user_module("user_batches", BATCHES)


def make(factory: str, folder: Path, **wishes: object) -> SourceResponse:
    job = SourceJob(source=ModelSource(model=f"user_batches:{factory}"), out_dir=str(folder), **wishes)  # type: ignore[arg-type]
    return job.perform(lambda text: None, lambda answer: None)


ENGINES: tuple[tuple[str, dict[str, str]], ...] = (("pytorch", {}), ("ort", {}))


def plan(artifacts: tuple[Artifact, ...], *batches: int) -> list[PlannedConfiguration]:
    wish = RunRequest(model="m", engines=ENGINES, batches=batches or (1,), any_batch=not batches)
    return plan_request(wish, artifacts)


def plan_request(wish: RunRequest, artifacts: tuple[Artifact, ...]) -> list[PlannedConfiguration]:
    problems = {} if len(artifacts) > 1 else {"onnx": "operator x"}
    resolved = resolve(wish, artifacts)
    return plan_configurations(
        resolved, artifacts, probe=lambda name: Availability(engine=name, available=True), problems=problems
    )


def test_every_configuration_runs_at_the_only_batch_where_none_was_asked_for(tmp_path: Path) -> None:
    artifacts = make("three", tmp_path).artifacts
    rows = plan(artifacts)
    assert [(row.engine.batch, row.skip) for row in rows] == [(3, None)] * 2
    assert [a.inputs[0].shape for a in artifacts] == [(3, 8)] * 2
    alone = plan(artifacts[:1])
    assert [row.engine.batch for row in alone] == [3, 3] and alone[0].skip is None  # the graph could not be made


@pytest.mark.parametrize("built", [1, 3, 6])
def test_another_batch_is_refused_with_the_one_that_it_takes(built: int, tmp_path: Path) -> None:
    rows = plan(make("three", tmp_path, batch=built).artifacts, 3, 6)
    reason = "user_batches:three takes a batch of 3 only, not 6: give --batch 3"
    assert [(row.engine.batch, row.skip) for row in rows] == [(3, None), (3, None), (6, reason), (6, reason)]


def test_a_free_batch_stays_free_and_a_state_of_one_entry_fixes_it(tmp_path: Path) -> None:
    names = ("free", "picture", "steps")
    free, picture, steps = (make_torch_artifact(f"user_batches:{name}", tmp_path) for name in names)
    assert (steps.inputs[0].shape, steps.inputs[0].sizes) == (("input_0", 3, 8), (5, 0, 0)), "time comes first"
    assert (free.inputs[0].shape, free.allowed) == ((1, 8), {})
    assert (picture.inputs[0].shape, picture.inputs[0].sizes) == (("input_0", 9, 9), (3, 0, 0))
    assert picture.allowed == {}
    artifact = make_torch_artifact("user_batches:state", tmp_path, batch=4)
    assert {name: shapes.largest for name, shapes in artifact.allowed.items()} == {"input": (1, 5, 8)}


BY_EXAMPLE = """
import torch
from torch import nn

class Looked(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8)
    def forward(self, ids, others): return self.table(ids).mean(1) @ others.T

def eight(): return nn.Sequential(nn.Flatten(), nn.Linear(12, 4)).eval(), torch.randn(8, 3, 4)
def beside(): return Looked().eval(), (torch.randint(3, 20, (4, 12)), torch.randn(10, 8))
def steps(): return nn.LSTM(16, 8).eval(), (torch.randn(7, 3, 16),)
"""


def test_the_examples_of_a_factory_give_the_batch_where_nobody_asked_for_one(write_user_module, tmp_path: Path) -> None:
    write_user_module("by_example", BY_EXAMPLE)
    eight, beside, steps = (
        make_torch_artifact(f"by_example:{n}", tmp_path / n, batch=None) for n in ("eight", "beside", "steps")
    )
    assert (
        eight.inputs[0].shape == (8, 3, 4) and make_torch_artifact("by_example:eight", tmp_path).inputs[0].shape[0] == 1
    )
    assert [spec.shape for spec in beside.inputs] == [(4, 12), (10, 8)]
    assert beside.inputs[0].widest == (0, 49), "the whole table, whatever the example looks up"
    assert steps.inputs[0].shape == ("input_0", 3, 16), "steps are no batch"
    assert [find_built_batch(a) for a in (eight, beside, steps)] == [8, 4, 1]
    (entry,) = read_examples(tmp_path / "steps", steps.inputs)
    assert len(read_examples(tmp_path / "eight", eight.inputs)) == 8 and entry["input"].shape == (7, 3, 16)


def test_an_export_has_the_only_batch_and_the_users_entries_run_at_it(tmp_path: Path) -> None:
    given = {"input": np.random.default_rng(0).standard_normal((7, 8), np.float32)}
    assert make_torch_artifact("user_batches:three", tmp_path, user_inputs=given).inputs[0].shape == (3, 8)
    with pytest.raises(errors.FeedError, match=r"input has torch\.float64, not torch\.float32"):
        make_torch_artifact("user_batches:three", tmp_path, user_inputs={"input": given["input"].astype(np.float64)})
    wishes = {"onnx_out": str(tmp_path / "a.onnx"), "any_batch": True, "dynamic_batch": False}
    graph = make("three", tmp_path, **wishes).artifacts[-1]
    assert graph.inputs[0].shape == (3, 8)
    assert graph.export_check is not None and graph.export_check.batches == (3, 3)


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"batch": 6}, "takes a batch of 3 only, not 6: give --batch 3$"),
        ({"any_batch": True, "dynamic_batch": True}, "3 only. Export it with --batch 3, without --dynamic-batch$"),
    ],
)
def test_an_export_says_which_batch_it_can_have(wishes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        make("three", tmp_path, onnx_out=str(tmp_path / "a.onnx"), **{"dynamic_batch": False, **wishes})


@pytest.mark.filterwarnings("ignore")
def test_a_program_runs_at_its_three_and_a_graph_is_not_open_where_one_is_another_branch(tmp_path: Path) -> None:
    graph = make("alone", tmp_path, onnx=True, dynamic_batch=True).artifacts[-1]
    assert graph.inputs[0].shape == (1, 8)
    with pytest.raises(ModelError, match=r"alone at batch 1: .* agree at batch 2, at batch 5: the module branches on"):
        make("alone", tmp_path, onnx_out=str(tmp_path / "a.onnx"), dynamic_batch=True)
    program = torch.export.export(torch.nn.Linear(4, 2).eval(), (torch.randn(3, 4),))
    torch.export.save(program, tmp_path / "p.pt2")
    artifact = make_torch_artifact(str(tmp_path / "p.pt2"), tmp_path / "out")
    assert artifact.inputs[0].shape == (3, 4) and artifact.allowed["input"].smallest == (3, 4)


def test_tensors_in_a_list_are_one_call_in_the_lengths_of_the_example(tmp_path: Path) -> None:
    artifacts = make("listed", tmp_path).artifacts
    for artifact in artifacts:
        assert [concrete_shape(spec, 1) for spec in artifact.inputs] == [(3, 8), (3, 8)]
    assert [(row.engine.batch, row.skip) for row in plan(artifacts)] == [(1, None)] * 2
    assert {row.skip for row in plan(artifacts, 3)} == {"no axis of the inputs can be a batch of 3; leave --batch out"}
    parts = read_traffic("batch=1,batch=3")  # of which the first alone could be served
    for row in plan_request(RunRequest(model="m", engines=ENGINES, batches=(1,), traffic=parts), artifacts):
        assert row.skip == "no axis of the inputs can be a batch of 3; leave it out"
    graph = artifacts[-1]
    assert graph.export_check is not None and graph.export_check.batches == (1, 1)
    made = quantize(graph, "fp16", None, tmp_path / "half.onnx")
    assert made.inputs == graph.inputs
