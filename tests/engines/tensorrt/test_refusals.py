"""Our rules for quantized graphs against NVIDIA's own parser and builder: TensorRT for RTX judges, without a GPU."""

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from processes import ROOT
from refusal_graphs import CHANGED, make_broken, make_left_to_parser, make_sound

BROKEN, LEFT = make_broken(), make_left_to_parser()
GRAPHS = {
    "sound": make_sound(),
    "broken": {name: model for name, (model, _) in BROKEN.items()},
    "left": {name: model for name, (model, _) in LEFT.items()},
}
# A scale that is no constant ends the builder with a segmentation fault.
CRASHING = ("scale is an input", "scale is computed")


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """{kind: {graph: what RTX says}}, by the script that asks any of NVIDIA's parsers."""
    if find_spec("tensorrt_rtx_bindings") is None:
        pytest.skip('TensorRT for RTX is not installed: pip install "enginebench[tensorrt-rtx]"')
    folder = tmp_path_factory.mktemp("graphs")
    for kind, graphs in GRAPHS.items():
        (folder / kind).mkdir()
        for name, model in graphs.items():
            (folder / kind / f"{name}.onnx").write_bytes(model.SerializeToString())
    command = [ROOT / "benchmarks" / "parser_verdicts.py", folder, folder / "out.json", "--build"]
    command += ["--module", "tensorrt_rtx_bindings", "--jobs", "1"]
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = json.loads((folder / "out.json").read_bytes())["graphs"]
    return {kind: {name: said[f"{kind}/{name}.onnx"] for name in graphs} for kind, graphs in GRAPHS.items()}


def test_what_breaks_no_rule_is_taken(verdicts: dict[str, dict[str, Any]]) -> None:
    assert {name: said for name, said in verdicts["sound"].items() if said["verdict"] != "taken"} == {}


def test_what_breaks_a_rule_is_refused_or_given_another_meaning(verdicts: dict[str, dict[str, Any]]) -> None:
    """The list of what may differ is no longer than it must be."""
    assert {name for name, said in verdicts["broken"].items() if said["verdict"] == "taken"} == set(CHANGED)


def test_graphs_that_end_the_builder_break_a_rule(verdicts: dict[str, dict[str, Any]]) -> None:
    assert tuple(name for name, said in verdicts["broken"].items() if said["verdict"] == "crashed") == CRASHING


def test_the_parser_names_the_node_of_what_is_left_to_it(verdicts: dict[str, dict[str, Any]]) -> None:
    for name, said in verdicts["left"].items():
        assert (said["verdict"], said["by"]) == ("refused", "parser"), (name, said)
        assert LEFT[name][1] in [error["node_name"] for error in said["errors"]], (name, said)
