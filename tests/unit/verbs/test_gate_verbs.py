"""The gate as a CI job sees it: exit codes, JUnit XML, a summary, baselines; each a whole process."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from enginebench.core.records import Result
from processes import Cli
from samples import make_machine, make_measurements
from stored_run import make_results, write_run


def make_measured() -> list[Result]:
    return [replace(row, machine=make_machine()) for row in make_results()[:4]]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_run(tmp_path / "base", make_measured())


def change(tmp_path: Path, index: int, **changes: object) -> Path:
    rows = make_measured()
    rows[index] = replace(rows[index], **changes)
    return write_run(tmp_path / "cand", rows)


def test_the_same_run_passes_and_fills_the_files(cli: Cli, base: Path, tmp_path: Path) -> None:
    (tmp_path / "s.md").write_text("before\n")
    done = cli("diff", base, base, "--gate", "--junit", "j.xml", "--summary", "s.md", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["gate_failed"] is False
    suite = ElementTree.parse(tmp_path / "j.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("4", "0")
    summary = (tmp_path / "s.md").read_text()
    assert (
        summary.startswith("before\n### equivalent (margin 2.0%, gate passed)") and summary.count("| equivalent |") == 4
    )


def test_slower_ends_with_four_and_names_the_row(cli: Cli, base: Path, tmp_path: Path) -> None:
    cand = change(tmp_path, 1, measurements=make_measurements(36.0, processes=6, seed=5))
    done = cli("diff", base, cand, "--gate", "--junit", "j.xml")
    assert done.returncode == 4
    assert "ort-fp32-b1: slower" in done.stderr
    assert ElementTree.parse(tmp_path / "j.xml").getroot()[0].get("failures") == "1"
    assert cli("diff", base, cand).returncode == 0
