"""The generated artifacts have the layouts of the real ones."""

import json
import re
from pathlib import Path

import pytest

import trtexec_artifacts as made


@pytest.fixture
def real() -> Path:
    return made.find_real_artifacts()


def generalize(text: str) -> list[str]:
    """Lines with every number as N and every stamp as one word."""
    lines = [re.sub(r"\[\d\d/.*?\] ", "STAMP ", line).rstrip() for line in text.splitlines()]
    return [re.sub(r"\d+(?:\.\d+)?(?:e[-+]\d+)?", "N", line) for line in lines]


@pytest.mark.parametrize(("folder", "version", "build"), [("10.16", 101600, 72), ("11.1", 110100, 106)])
def test_a_generated_log_is_a_part_of_the_real_one_in_its_order(
    real: Path, folder: str, version: int, build: int
) -> None:
    there = iter(generalize((real / "trtexec-gpu" / folder / "exact-50.stdout").read_text()))
    missing = [line for line in generalize(made.make_log(version, build)) if line not in there]
    assert missing == []


def test_a_generated_timing_file_has_the_real_layout(real: Path) -> None:
    for path in sorted(real.glob("trtexec-gpu/*/exact-50.times.json")):
        assert set(generalize(path.read_text())) == set(generalize(made.make_times().decode())), path


def test_a_generated_profile_has_the_real_layout(real: Path) -> None:
    for path in sorted(real.glob("trtexec-gpu/*/load-export.profile.json")):
        assert generalize(path.read_text()) == generalize(made.make_profile().decode()), path


@pytest.mark.parametrize(("folder", "version"), [("8.6.1", 8), ("10.16", 10), ("11.1", 11)])
def test_generated_layer_names_have_the_real_layout(real: Path, folder: str, version: int) -> None:
    there = json.loads((real / "trtexec-gpu" / folder / "load-export.layers.json").read_text())
    here = json.loads(made.make_layers(version=version, detailed=False))
    assert list(there) == list(here)
    assert there["Layers"] == here["Layers"]


def test_generated_detailed_layers_have_the_real_keys(real: Path) -> None:
    there = json.loads((real / "trtexec-gpu" / "10.16" / "detailed-build.layers.json").read_text())
    here = json.loads(made.make_layers())
    assert [list(layer) for layer in here["Layers"]] == [list(layer) for layer in there["Layers"]]
    assert [list(tensor) for tensor in here["Layers"][0]["Inputs"]] == [
        list(tensor) for tensor in there["Layers"][0]["Inputs"]
    ]
