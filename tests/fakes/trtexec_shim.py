"""An executable `trtexec` in a folder of its own, which is the fake of one version."""

import sys
from pathlib import Path

FAKE = Path(__file__).with_name("fake_trtexec.py")
VERSIONS = ("8.6.1", "10.0.1", "10.16", "11.0", "11.1")


def install_trtexec(folder: Path, version: str) -> Path:
    """The path of the executable."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "trtexec"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" {version} "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path
