"""Simulated boards, made where the designs may be imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from enginebench.core.errors import MissingDependency
from enginebench.core.records import Artifact

if TYPE_CHECKING:
    from enginebench.features.fpga.board import Board


def make_board(artifact: Artifact, options: Mapping[str, str], cache_dir: Path) -> Board:
    """What the engine `fpga-sim` is given: `enginebench.features.fpga.board.make_board`, imported when it is called."""
    require_module("amaranth")
    from enginebench.features.fpga.board import make_board as make

    return make(artifact, options, cache_dir)


def require_module(module: str) -> None:
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise MissingDependency(f"{module}, which the FPGA designs are written in,", 'pip install "enginebench[fpga]"')
