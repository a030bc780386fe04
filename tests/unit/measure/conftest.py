"""Machines laid out as files: proc, sys and etc under a folder of the test."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from machines import LayOut


@pytest.fixture
def lay_out(tmp_path: Path) -> LayOut:
    """Writes files under a root with a blank and a non-ASCII letter in its path, and returns the root."""
    root = tmp_path / "machine é 1"

    def write(files: Mapping[str, str]) -> Path:
        root.mkdir(exist_ok=True)
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return root

    return write
