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

from enginebench.core.errors import ArtifactError, BackendUnavailable, MissingDependency, ModelError, UsageError
from enginebench.core.records import Artifact, ModelSource
from enginebench.models.task import hash_preprocess
from enginebench.models.torch import source as torch_source
from enginebench.models.torch import torchvision_import
from enginebench.models.torch.source import load_module, make_torch_artifact
from enginebench.models.torch.weights import calibrate_batch_norm, draw_zeros, seed_torch
from enginebench.models.zoo import DATA_DIR
from enginebench.runs.child.jobs import SourceAnswer, SourceJob
from enginebench.runs.child.perform.sources import make_source

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
def test_a_module_in_fp64_is_doubted(tmp_path: Path, large: str, small: str) -> None:
    artifact = make_torch_artifact(f"user_models:sum_{large}_{small}", tmp_path)
    codes = [caveat.code for caveat in artifact.caveats if caveat.code == "double_precision"]
    assert codes == ["double_precision"] * (large == "float64") and artifact.precision == "fp32"


def test_random_weights_are_seeded_calibrated_and_marked(tmp_path: Path) -> None:
    def make(seed: int, folder: str) -> Artifact:
        return make_torch_artifact("mobilenet_v3_small", tmp_path / folder, weights="random", seed=seed, input_size=64)

    first, again, other = make(0, "a"), make(0, "b"), make(1, "c")
    assert first.sha256 == again.sha256 != other.sha256
    assert first.weights == "random"
    assert [c.code for c in first.caveats] == ["random_weights"]
    assert "34 BatchNorm layers calibrated" in first.caveats[0].message
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


def test_calibrated_statistics_are_those_of_the_inputs() -> None:
    layer = nn.BatchNorm1d(4)
    module = nn.Sequential(nn.Linear(4, 4), layer, nn.Dropout(0.9)).eval()
    with torch.no_grad():
        module[0].weight.copy_(3 * torch.eye(4))
        module[0].bias.fill_(2)
    assert calibrate_batch_norm(module, [torch.zeros(1, 4)], seed=0) == 1
    # 64 standard normal draws: the mean of 3x + 2 lies within 5 standard errors (3 / 8), the variance near 9.
    assert torch.allclose(layer.running_mean, torch.tensor(2.0), atol=5 * 3 / 8)
    assert torch.all((layer.running_var > 3) & (layer.running_var < 20))
    assert (layer.momentum, layer.training, module[2].training) == (0.1, False, False)
    assert calibrate_batch_norm(nn.Linear(2, 2), [torch.zeros(1, 2)], seed=0) == 0


def test_weights_that_begin_as_zeros_are_drawn() -> None:
    """Behind a head of zeros, which torchvision gives its vision transformers, every engine answers the same."""

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
    assert (artifact.weights, artifact.caveats, artifact.sha256) == ("pretrained", (), given.sha256)


def test_timm_is_built_with_its_own_and_with_another_size(tmp_path: Path) -> None:
    artifact = make_torch_artifact("timm:mobilenetv3_small_100", tmp_path, weights="random", input_size=48, batch=2)
    assert (artifact.inputs[0].shape, artifact.outputs[0].shape) == ((2, 3, 48, 48), (2, 1000))
    assert set(artifact.made_by) == {"torch", "timm", "torchvision"}
    assert artifact.preprocess_sha256 == hash_preprocess("timm:mobilenetv3_small_100", 48)
    assert load_module(artifact)(torch.zeros(2, 3, 48, 48)).shape == (2, 1000)
    transformer = make_torch_artifact("timm:vit_tiny_patch16_224", tmp_path, weights="random", input_size=32)
    assert load_module(transformer)(torch.zeros(1, 3, 32, 32)).shape == (1, 1000)


def test_an_unknown_timm_name_lists_near_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="did you mean timm:resnet18"):
        make_torch_artifact("timm:resnet1", tmp_path)


def test_weights_from_a_file_plain_or_wrapped(tmp_path: Path) -> None:
    plain = torch.load(DATA_DIR / "digits-mlp.pt", weights_only=True)
    torch.save({"state_dict": plain, "epoch": 3}, tmp_path / "Gewichte ü.pt")
    artifact = make_torch_artifact("digits-mlp", tmp_path / "out", weights=str(tmp_path / "Gewichte ü.pt"))
    assert artifact.weights == "file"
    assert artifact.sha256 == make_torch_artifact("digits-mlp", tmp_path / "other").sha256


def test_unusable_weights_are_model_errors(tmp_path: Path) -> None:
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
    assert "it holds other Python objects, or is no file of torch.save. Make" in message(tmp_path / "module.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    assert "expected names to tensors" in message(tmp_path / "list.pt")
    assert "do not fit" in message(DATA_DIR / "digits-cnn.pt")


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


def test_shapes_are_checked_before_weights_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_source, "fetch_pretrained", lambda ref: pytest.fail("asked for weights"))
    with pytest.raises(ModelError, match="does not run on inputs of shape 1x4x32x32"):
        make_torch_artifact("mobilenet_v3_small", tmp_path, input_shapes={"input": (1, 4, 32, 32)})


@pytest.mark.parametrize(("channels", "message"), [(4, "of 1 BatchNorm layer calibrated"), (1, "are the initial ones")])
def test_a_module_of_a_fixed_batch_is_calibrated_on_it_where_it_can_be(channels: int, message: str) -> None:
    class Fixed(nn.BatchNorm1d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.view(channels, 2))

    module = Fixed(2).eval()
    _, (caveat,) = torch_source._randomize(module, (torch.zeros(1, channels * 2),), 0, "as asked")
    assert message in caveat.message and module.num_batches_tracked == (8 if channels > 1 else 0)


def test_onnx_files_have_no_module(tmp_path: Path) -> None:
    path = DATA_DIR / "digits-cnn.onnx"
    with pytest.raises(UsageError, match="no PyTorch module"):
        make_torch_artifact(str(path), tmp_path)


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


def test_factory_with_two_inputs_and_a_dictionary_of_outputs(tmp_path: Path) -> None:
    artifact = make_torch_artifact("user_models:pair", tmp_path / "out", batch=3)
    assert [(s.name, s.dtype, s.shape) for s in artifact.inputs] == [
        ("ids", "int64", (3, 5)),
        ("mask", "float32", (3, 5, 1)),
    ]
    assert [(s.name, s.shape) for s in artifact.outputs] == [("outputs.logits", (3, 5, 2)), ("outputs.extra.0", (3, 5))]
    assert (artifact.weights, artifact.preprocess_sha256) == ("file", None)
    first = load_module(artifact)(torch.ones(1, 5, dtype=torch.int64), torch.ones(1, 5, 1))
    again = load_module(artifact)(torch.ones(1, 5, dtype=torch.int64), torch.ones(1, 5, 1))
    assert isinstance(first, tuple) and len(first) == 2
    assert torch.equal(first[0], again[0])  # the state was stored: a second call of the factory changes nothing


def test_a_factory_may_return_the_module_of_an_exported_program(tmp_path: Path) -> None:
    artifact = make_torch_artifact("user_models:module_of_program", tmp_path)
    assert load_module(artifact)(torch.ones(1, 3)).shape == (1, 2)


def test_factory_without_examples_needs_shapes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--input-shape"):
        make_torch_artifact("user_models:alone", tmp_path)
    artifact = make_torch_artifact("user_models:alone", tmp_path, input_shapes={"image": (2, 3, 9, 9)})
    assert (artifact.inputs[0].name, artifact.inputs[0].shape) == ("input", (2, 3, 9, 9))
    assert artifact.outputs[0].shape == (2, 4, 7, 7)
    with pytest.raises(UsageError, match="--input-size does not apply"):
        make_torch_artifact("user_models:alone", tmp_path, input_size=32)


def test_shapes_replace_those_of_the_examples_by_name(tmp_path: Path) -> None:
    shapes = {"mask": (2, 7, 1), "ids": (2, 7)}
    artifact = make_torch_artifact("user_models:pair", tmp_path, input_shapes=shapes)
    assert [(s.name, s.dtype, s.shape) for s in artifact.inputs] == [
        ("ids", "int64", (2, 7)),
        ("mask", "float32", (2, 7, 1)),
    ]


def test_precision_is_that_of_the_parameters(tmp_path: Path) -> None:
    artifact = make_torch_artifact("user_models:half", tmp_path)
    assert (artifact.precision, artifact.inputs[0].dtype) == ("fp16", "float16")
    with pytest.raises(ModelError, match="dtype bfloat16, which no engine takes"):
        make_torch_artifact("user_models:brain", tmp_path)
    with pytest.raises(ModelError, match="'input' has dtype bfloat16, which no engine takes"):
        make_torch_artifact("user_models:brain_inside", tmp_path)


def test_random_weights_replace_those_of_a_factory(tmp_path: Path) -> None:
    own = load_module(make_torch_artifact("user_models:zeros", tmp_path))
    drawn = load_module(make_torch_artifact("user_models:zeros", tmp_path, weights="random"))
    assert own.module.weight.abs().sum() == 0 and drawn.module.weight.abs().sum() > 0


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


def test_torchvision_comes_without_the_compiler_and_leaves_it_whole() -> None:
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


def test_torchvision_failures_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_with(error: Exception) -> None:
        def fail(name: str) -> None:
            raise error

        monkeypatch.setattr(torchvision_import.importlib, "import_module", fail)

    fail_with(ModuleNotFoundError("No module named 'torchvision'", name="torchvision"))
    with pytest.raises(MissingDependency, match="pip install"):
        torchvision_import.import_torchvision()
    fail_with(ModuleNotFoundError("No module named 'PIL'", name="PIL"))
    with pytest.raises(BackendUnavailable, match="PIL"):
        torchvision_import.import_torchvision()
    fail_with(RuntimeError("something else is broken"))
    with pytest.raises(BackendUnavailable, match="matching version"):
        torchvision_import.import_torchvision()


def test_torchvision_operators_are_declared_only_where_the_import_needs_it() -> None:
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

    def make(model: str) -> tuple[SourceAnswer, list[str]]:
        source = ModelSource(model=f"pics:{model}")
        job = SourceJob(source=source, out_dir=str(tmp_path / model), batch=1, onnx=True, data=str(tmp_path / "flat"))
        notes: list[str] = []
        try:
            return make_source(job, notes.append), notes
        except UsageError as error:
            raise UsageError(f"{error} [{', '.join(notes)}]") from error

    answer, notes = make("picture")
    assert [a.kind for a in answer.artifacts] == ["torch", "onnx"] and "exporting to ONNX" in notes
    assert len(list((tmp_path / "picture" / "samples").iterdir())) == 3
    with pytest.raises(UsageError, match=r"pics:flat takes input .*--inputs F.npz.*\[loading the model\]"):
        make("flat")
