import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def write_user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes a module into a fresh working folder, as a user has one, and forgets it afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(name: str, text: str) -> None:
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")

    return write
