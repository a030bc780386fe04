"""The script that times the loop around nothing: what it prints, not how fast this machine is."""

import json
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "loop_overhead.py"


def test_it_prints_one_line_of_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["loop_overhead.py", "--json"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["ns_per_sample"] > 0
    assert found["within_limit"] is (found["ns_per_sample"] < 500)
    assert ended.value.code == (0 if found["within_limit"] else 1)
