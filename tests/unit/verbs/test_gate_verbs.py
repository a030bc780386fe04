"""The gate as a CI job sees it: exit codes, JUnit XML, a summary, baselines; each a whole process."""

import json
from pathlib import Path
from xml.etree import ElementTree

from msgspec.structs import replace

from processes import Cli
from samples import make_machine
from stored_run import make_results, write_run


def test_the_same_run_passes_and_fills_the_files(cli: Cli, tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", [replace(row, machine=make_machine()) for row in make_results()[:4]])
    (tmp_path / "s.md").write_text("before\n")
    done = cli("diff", base, base, "--gate", "--junit", "j.xml", "--summary", "s.md", "--json", code=0)
    assert json.loads(done.stdout)["gate_failed"] is False
    suite = ElementTree.parse(tmp_path / "j.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("4", "0")
    summary = (tmp_path / "s.md").read_text()
    assert summary.startswith("before\n### equivalent (margin 2.0%, gate passed)")
    assert summary.count("| equivalent |") == 4
