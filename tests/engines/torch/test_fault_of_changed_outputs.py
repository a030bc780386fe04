"""Whether the export or the engine is at fault where outputs are not those of PyTorch: one that is wrong of each."""

import json
from pathlib import Path
from typing import Any

import pytest

from enginebench.engines import ort
from in_process import children, cli
from processes import Cli

__all__ = ["children", "cli"]

# An error of 0.3 beside values of 1, and beside one of a thousand: small enough for the check of the export, which is
# held to a thousandth of the largest value, and far beyond what FP32 may differ by.
MODULE = """
import torch

class Scaled(torch.nn.Module):
    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong
        self.scale = torch.nn.Parameter(torch.tensor([1000.0] + [1.0] * 15))

    def forward(self, x):
        scaled = x * self.scale
        exporting = torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export()
        return scaled + torch.tensor([0.0] + [0.3] * 15) if self.wrong and exporting else scaled

def make_right():
    return Scaled(False).eval(), (torch.randn(4, 16),)

def make_wrong_when_exported():
    return Scaled(True).eval(), (torch.randn(4, 16),)
"""


def run(cli: Cli, folder: Path, factory: str) -> dict[str, Any]:
    """The row of ONNX Runtime."""
    (folder / "scaled.py").write_text(MODULE)
    few = ("--quick", "--iters", "5", "--warmup", "1", "--json", "--out", "r")
    done = cli("run", f"scaled:{factory}", "--engines", "pytorch,ort", *few)
    row: dict[str, Any] = next(row for row in json.loads(done.stdout)["rows"] if row["engine"] == "ort")
    return row


def list_faults(row: dict[str, Any]) -> list[str]:
    return [warning["message"] for warning in row["caveats"] if warning["template"] in TEMPLATES]


TEMPLATES = ("outputs_differ.export", "outputs_differ.engine")
UNOPTIMIZED = "ONNX Runtime without graph optimizations"


def test_an_export_that_is_wrong_is_at_fault(cli: Cli, tmp_path: Path) -> None:
    row = run(cli, tmp_path, "make_wrong_when_exported")
    assert row["outputs"] == "changed"
    expected = f"the exported graph differs from PyTorch even with {UNOPTIMIZED}: the export is at fault, not ort fp32"
    assert [message.replace(" b4", "") for message in list_faults(row)] == [expected]


def test_an_engine_that_is_wrong_is_at_fault(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = ort.OrtEngine.fetch
    monkeypatch.setattr(ort.OrtEngine, "fetch", lambda self: {name: a + 0.3 for name, a in right(self).items()})
    row = run(cli, tmp_path, "make_right")
    assert row["outputs"] == "changed"
    expected = f"the exported graph gives PyTorch's outputs with {UNOPTIMIZED}: ort fp32 is at fault, not the export"
    assert [message.replace(" b4", "") for message in list_faults(row)] == [expected]


def test_where_all_is_right_none_is_at_fault(cli: Cli, tmp_path: Path) -> None:
    row = run(cli, tmp_path, "make_right")
    assert row["outputs"] == "same"
    assert list_faults(row) == []
