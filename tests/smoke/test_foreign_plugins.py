"""The suite where others have plug-ins of pytest installed: what these say while they are set up is no failure."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_plugin_that_warns_about_workers_ends_nothing(tmp_path: Path) -> None:
    """As pytest-benchmark up to 5.2 does beside pytest-xdist; here every warning is an error."""
    (tmp_path / "noisy.py").write_text("import warnings\ndef pytest_configure(config): warnings.warn('no workers')\n")
    info = tmp_path / "noisy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: noisy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pytest11]\nbenchmark = noisy\n")
    test = tmp_path / "test_nothing.py"
    test.write_text("import pytest\n@pytest.mark.gpu\ndef test_nothing(): pass\n")
    variables = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    asked = ("-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-p", "no:cacheprovider", "-m", "gpu")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *asked, test], env=variables, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
