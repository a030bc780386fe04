"""`enginebench tune` as a process, with real processes behind it."""

import json
from pathlib import Path

import pytest

from processes import Cli

pytestmark = pytest.mark.feature("tune")


def test_a_default_that_nothing_beats_is_an_answer_with_exit_code_0(cli: Cli, tiny_onnx: Path) -> None:
    engine = "fake:latency_us=200,trick=none"  # nothing is left to be set
    done = cli("tune", str(tiny_onnx), "--engines", engine, "--processes", "6", "--out", "t", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "enginebench.tune/1" and not document["beaten"] and document["finished"]
    assert document["winner"]["candidate"].startswith("fake:latency_us=200,trick=none fp32")
    assert len(document["final"]) == 1 and document["final"][0]["cost"]["n"] == 3
