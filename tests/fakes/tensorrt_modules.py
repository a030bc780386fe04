"""The fake `tensorrt` and `cuda.bindings` modules, in this process or for another, one version at a time."""

import sys
from pathlib import Path

import pytest

MODULES = Path(__file__).parent / "modules"
VERSIONS = ("8.6", "10.16", "11.4")
LEAN = "tensorrt_lean_bindings"
RTX = "tensorrt_rtx_bindings"
# Those alone that import either: records of a module that is dropped no longer find their types.
REBUILT = (*("cuda", "tensorrt", "backends.tensorrt.rtx", "backends.tensorrt.tensorrt"), "backends.tensorrt.engine")
OURS = {f"enginebench.engines.{name}" for name in REBUILT}


def forget_modules() -> None:
    """Drops what was imported of either, so that the next import finds another version."""
    for name in list(sys.modules):
        package, _, last = name.rpartition(".")
        if name.split(".")[0] in ("tensorrt", LEAN, RTX, "cuda") or name in OURS:
            del sys.modules[name]
            if package in sys.modules:
                vars(sys.modules[package]).pop(last, None)  # else `from package import last` finds the old one


def use_fakes(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Makes the fakes of a version the ones that are imported from now on, and theirs the one GPU."""
    forget_modules()
    monkeypatch.setattr("enginebench.runs.child.environments.find_gpu_name", {0: "Fake GPU"}.get)
    monkeypatch.setenv("FAKE_TENSORRT_VERSION", version)
    monkeypatch.syspath_prepend(str(MODULES))


def make_lean_site(folder: Path, name: str = LEAN) -> Path:
    """A folder on which the lean runtime, or another module of this name, is all that there is of TensorRT."""
    site = folder / "lean"
    site.mkdir()
    (site / "cuda").symlink_to(MODULES / "cuda")
    (site / name).symlink_to(MODULES / "tensorrt")
    return site


def use_lean(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Makes the fake lean runtime the only TensorRT that is imported from now on."""
    forget_modules()
    monkeypatch.setenv("FAKE_TENSORRT_VERSION", "11.4-lean")
    monkeypatch.syspath_prepend(str(make_lean_site(folder)))


def use_rtx(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Makes the fake TensorRT for RTX the one that is imported from now on, also where the real one is installed."""
    forget_modules()
    monkeypatch.setenv("FAKE_TENSORRT_VERSION", "rtx-1.7")
    monkeypatch.syspath_prepend(str(make_lean_site(folder, RTX)))
