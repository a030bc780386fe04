"""The chart bundle: made once, read from the cache after that, never half."""

import os
import subprocess
import sys
from pathlib import Path

from enginebench.report.charts import load_bundle
from processes import ROOT


def test_a_new_home_makes_its_own(tmp_path: Path) -> None:
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HOME": str(tmp_path), "XDG_CACHE_HOME": ""}
    code = "from enginebench.report.charts import load_bundle; load_bundle()"
    subprocess.run([sys.executable, "-c", code], env=variables, check=True)
    (kept,) = (tmp_path / ".cache" / "enginebench").iterdir()
    assert not kept.is_symlink() and kept.stat().st_size > 500_000
    assert load_bundle(kept.parent) == kept.read_text()
