"""What an engine brings into a bundle: its own files, and next to nothing of ours beside them."""

import ast
from pathlib import Path

import numpy as np
import pytest

from enginebench.core.errors import ArtifactError
from enginebench.features.deliver.writing import CPU, GPU, MODULE, PACKAGE, PROGRAMS, list_sources, write_check

# What it may bring beside them.
KERNEL = {"core/aoti.py", "core/engine_api.py", "core/judging.py", "core/sums.py", "core/trees.py"}
ENGINES = {contents.engine for family in (CPU, GPU) for contents in family.values()}


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_an_engine_imports_the_interface_and_engines_alone(engine: str) -> None:
    others = {source for source in list_sources(f"engines/{engine}.py") if not source.startswith("engines/")}
    assert "core/engine_api.py" in others and others <= KERNEL


COPIED = {PACKAGE / source for source in list_sources(*(f"engines/{engine}.py" for engine in ENGINES), *MODULE)}


@pytest.mark.parametrize("source", sorted({*COPIED, *PROGRAMS.glob("*.py")}), ids=lambda source: source.stem)
def test_what_is_copied_imports_ours_by_relative_paths_alone(source: Path) -> None:
    """Else it would not find it in a bundle, where this package is not."""
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        named += [str(node.module)] if isinstance(node, ast.ImportFrom) and not node.level else []
        assert not [name for name in named if name.partition(".")[0] in ("enginebench", "msgspec", "click", "rich")]


def test_the_programs_around_it_stay_a_few_pages() -> None:
    lines = {path.name: len(path.read_text("utf-8").splitlines()) for path in PROGRAMS.glob("*.py")}
    assert lines["predict.py"] <= 60 and sum(lines.values()) <= 460, lines


def test_outputs_that_are_none_of_the_graphs_are_a_damaged_run(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="output 'y' is none of its graph's: z; the run is damaged"):
        write_check(tmp_path, [{"x": np.zeros(1)}], {"y": np.zeros(1)}, {"z": 1})
