"""Tampering and drift of versions: the bundle's own program and our reader say the same before anything runs."""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundles import ask
from enginebench.core.errors import ArtifactError, ParseError
from enginebench.runs.targets.bundles import find_problems, load_engine, read_bundle


def edit(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Writes `bundle.json` with a change in it."""
    document = json.loads((bundle / "bundle.json").read_text("utf-8"))
    change(document)
    (bundle / "bundle.json").write_text(json.dumps(document), "utf-8")


def flip(bundle: Path) -> None:
    path = bundle / "model" / "model.onnx"
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)


DIFFERENCES = {
    "a changed model": (flip, "model/model.onnx was changed"),
    "a changed program": (lambda b: (b / "preprocess.py").write_text("x = 1\n"), "preprocess.py was changed"),
    "a missing file": (lambda b: (b / "labels.json").unlink(), "labels.json is missing"),
    "another version": (
        lambda b: edit(b, lambda d: d["runtime"].update(onnxruntime="1.0.0")),
        "onnxruntime 1.0.0 was measured; here is",
    ),
    "another CPU": (lambda b: edit(b, lambda d: d.update(instructions=["amx_int9"])), "with amx_int9"),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_a_difference_is_said_and_force_goes_on(bundle: Path, what: str) -> None:
    change, text = DIFFERENCES[what]
    change(bundle)
    done = ask(bundle, "--check")
    assert done.returncode == 1
    assert text in done.stderr and "--force" in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""
    forced = ask(bundle, "--check", "--force").stderr
    assert "continuing anyway: " in forced and text in forced
    with pytest.raises(ArtifactError, match=text.partition(";")[0]):
        load_engine(bundle)


def test_force_opens_with_a_warning(bundle: Path) -> None:
    (bundle / "labels.json").unlink()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with load_engine(bundle, force=True) as predict:
            assert predict({"input": np.zeros((1, 64), np.float32)})["output"].shape == (1, 10)
    assert ["labels.json is missing" in str(w.message) for w in said if w.category is UserWarning] == [True]


def link(bundle: Path) -> None:
    model = bundle / "model" / "model.onnx"
    shutil.move(model, bundle.parent / "elsewhere.onnx")
    model.symlink_to(bundle.parent / "elsewhere.onnx")


NAMES = ("../secret", "/etc/passwd", "model/../../x", "a\\b", ".hidden", "model/.x", "a b", "", "model//x", "x\n")
TRAPS = {
    "a link": (link, "symbolic link"),
    **{
        f"a file named {name!r}": (lambda b, name=name: edit(b, lambda d: d["files"][0].update(path=name)), "expected")
        for name in NAMES
    },
    "a model elsewhere": (lambda b: edit(b, lambda d: d["artifact"].update(path="../model.onnx")), "expected"),
}

# The program has our own rule for names (`core/judging.py`); that it goes by it is asked of the first one.
JUDGED_ALIKE = [f"a file named {name!r}" for name in NAMES[1:]]


@pytest.mark.parametrize("what", TRAPS)
def test_what_leads_out_of_a_bundle_is_refused_whatever_is_forced(bundle: Path, what: str) -> None:
    trap, text = TRAPS[what]
    trap(bundle)
    if what not in JUDGED_ALIKE:
        done = ask(bundle, "--check", "--force")
        assert done.returncode == 1 and "Refused" in done.stderr and text in done.stderr
    with pytest.raises(ArtifactError, match=text):
        load_engine(bundle, force=True)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"schema": "enginebench.bundle/9"}'])
def test_a_damaged_document_is_an_error_of_ours(bundle: Path, text: str) -> None:
    (bundle / "bundle.json").write_text(text)
    with pytest.raises(ParseError):
        read_bundle(bundle)


def test_the_plan_of_another_gpu_is_named(bundle: Path) -> None:
    edit(bundle, lambda d: (d["artifact"].update(kind="plan"), d.update(gpu="NVIDIA H200")))
    problems = list(find_problems(bundle, read_bundle(bundle), (), ("NVIDIA L4",)))
    assert problems == ["the plan was built for NVIDIA H200; here is NVIDIA L4"]
    assert list(find_problems(bundle, read_bundle(bundle), (), ("NVIDIA H200",))) == []


def test_a_missing_runtime_names_the_command(bundle: Path) -> None:
    edit(bundle, lambda d: d["requirements"].update({"no-such-runtime": "1.0"}))
    done = ask(bundle, "--check")
    assert done.returncode == 1 and "no-such-runtime not installed. pip install -r" in done.stderr
