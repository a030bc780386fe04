"""The transformations of OpenVINO that change a small graph, by its own record of each: it takes none of them off."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import onnx
from onnx import ModelProto

from enginebench.core.store import open_temporary

# Each of about 500 transformations writes the whole graph.
LARGEST_BYTES = 1_000_000
TIMEOUT_S = 30.0
PROGRAM = (
    "import json, sys, openvino; "
    "openvino.compile_model(sys.argv[1], 'CPU', {'INFERENCE_PRECISION_HINT': json.loads(sys.argv[2])})"
)
# GRAPH_NUMBER_NAME.xml, as OpenVINO 2026.4 names what it writes.
WRITTEN = re.compile(r"(?P<graph>.+?)_(?P<number>\d+)_(?P<name>.+)\.xml")


def find_passes(model: ModelProto, hint: str) -> tuple[str, ...]:
    """Find the transformations after which a graph has other operators, in order; () where OpenVINO records none."""
    if model.ByteSize() > LARGEST_BYTES:
        return ()
    with open_temporary() as folder:
        onnx.save(model, str(folder / "model.onnx"))
        command = [sys.executable, "-I", "-c", PROGRAM, "model.onnx", json.dumps(hint)]
        environment = {**os.environ, "OV_ENABLE_SERIALIZE_TRACING": "true"}
        try:
            subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=TIMEOUT_S, check=True)
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
            return ()
        return list_changing(folder)


def list_changing(folder: Path) -> tuple[str, ...]:
    """List the transformations that changed the operators, by the graphs that were written after each."""
    records = [match for path in folder.iterdir() if (match := WRITTEN.fullmatch(path.name))]
    last: dict[str, Mapping[str, int]] = {}
    changing: list[str] = []
    for match in sorted(records, key=lambda one: int(one["number"])):
        try:
            layers = ElementTree.parse(folder / match.string).getroot().iter("layer")
        except ElementTree.ParseError:
            continue
        kinds = Counter(str(layer.get("type")) for layer in layers)
        if last.get(match["graph"], kinds) != kinds:
            changing.append(match["name"].rpartition("::")[2])
        last[match["graph"]] = kinds
    return tuple(dict.fromkeys(changing))
