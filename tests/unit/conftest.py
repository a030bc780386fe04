"""The command line and its children without processes; and nothing of this tier imports PyTorch when collected."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from enginebench.core.commands import COMMAND, VERB
from in_process import children, cli

__all__ = ["children", "cli"]

HEAVY = ("torch", "openvino", "nncf")


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makemodule() -> Iterator[Any]:
    """A module of this tier imports what is heavy inside a test, or lies in `tests/engines`."""
    before = set(sys.modules)
    module = yield
    if module is not None:
        _ = module.obj  # imports it
        heavy = [name for name in HEAVY if name in sys.modules and name not in before]
        assert not heavy, (
            f"{module.path} imports {', '.join(heavy)}: import it in the test, or move it to tests/engines"
        )
    return module


@pytest.fixture(autouse=True)
def forget_verbs() -> None:
    """A command that another test ran in this process is not at work any more."""
    COMMAND.set(())
    VERB.set("run")
