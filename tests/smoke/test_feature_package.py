"""A feature from another package: its verb, its step after a run, and its section of the report."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from enginebench.models.zoo import DATA_DIR
from processes import ROOT, environment

PLUGIN = ROOT / "tests" / "feature_plugin"
# Added to the module in its place on the path: which process imports it.
LOG = "\n\nimport sys\nwith open({path!r}, 'a') as log:\n    print(sys.orig_argv, file=log)\n"
METADATA = "Metadata-Version: 2.1\nName: enginebench-note\nVersion: 0.1\nSummary: Notes on a run.\n"


def install(site: Path, log: Path) -> None:
    """Leave what an installation of the package leaves."""
    info = site / "enginebench_note-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    points = re.search(r'features"\]\n((?:.*=.*\n)+)', (PLUGIN / "pyproject.toml").read_text("utf-8"))
    assert points
    (info / "entry_points.txt").write_text("[enginebench.features]\n" + points[1].replace('"', ""))
    source = (PLUGIN / "enginebench_note.py").read_text("utf-8")
    (site / "enginebench_note.py").write_text(source + LOG.format(path=str(log)))


def test_a_package_brings_a_verb_a_step_and_a_section_and_is_imported_by_no_process_that_measures(
    tmp_path: Path,
) -> None:
    log, variables = tmp_path / "imports.txt", environment(tmp_path)
    install(tmp_path / "site", log)
    variables["PYTHONPATH"] += f":{tmp_path / 'site'}"

    def run(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "enginebench", *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, env=variables, text=True, capture_output=True, timeout=240)
        assert done.returncode == code, done.stderr
        return done

    help_text = " ".join(run("--help").stdout.split())
    assert "note Notes on a run. (enginebench-note 0.1)" in help_text
    assert "Did you mean note" in run("notee", code=2).stderr
    document: dict[str, Any] = json.loads(run("doctor", "--json").stdout)
    brought = ["hook ReportSections", "hook RunFinished", "verb note"]
    assert {"package": "enginebench-note 0.1", "brings": brought, "reason": None, "fix": None} in document["features"]
    assert not log.exists(), "metadata are enough"

    run("run", DATA_DIR / "digits-mlp.onnx", "--engines", "fake", "--baseline", "fake", "--quick", "--out", "r")
    (process,) = log.read_text().splitlines()
    assert "'run'" in process and "enginebench.runs.child" not in process
    assert "holds no run of enginebench" in run("note", "site", "x", code=2).stderr
    run("note", "r", "before the upgrade")
    run("report", "r", "--format", "md")
    page = (tmp_path / "r" / "report.md").read_text("utf-8")
    assert re.search(r"## Notes\s.*: 1 of 1 configurations are ok\s.*before the upgrade", page, re.DOTALL)


def test_the_page_shows_the_package() -> None:
    page = (ROOT / "docs" / "add-a-feature.md").read_text("utf-8")
    blocks = dict(re.findall(r"^```(toml|python)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    texts = {name: (PLUGIN / name).read_text("utf-8") for name in ("pyproject.toml", "enginebench_note.py")}
    assert [blocks["toml"], blocks["python"]] == list(texts.values())
    assert sum(len(text.splitlines()) for text in texts.values()) < 100
