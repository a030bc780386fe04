"""What lies beside a plan is believed of these bytes alone, and is nothing that a reader must have."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from enginebench.core.plan_notes import PlanNote, read_note, write_note
from enginebench.core.records import Artifact, ShapeRange
from enginebench.core.shapes import find_plan_batch
from enginebench.verbs.given import name_plan

RANGE = ShapeRange(smallest=(1, 3), largest=(8, 3), best=(4, 3))


@pytest.fixture
def plan(tmp_path: Path) -> Artifact:
    path = tmp_path / "net.plan"
    path.write_bytes(b"a plan")
    return replace(name_plan(path), recipe="tensorrt", allowed={"input": RANGE})


def test_a_note_says_how_its_plan_was_asked_for(plan: Artifact) -> None:
    assert read_note(Path(plan.path)) is None
    write_note(Path(plan.path), plan, "int8")
    note = read_note(Path(plan.path))
    assert isinstance(note, PlanNote)
    assert (note.requested_precision, note.recipe, note.allowed) == ("int8", "tensorrt", {"input": RANGE})
    Path(plan.path).write_bytes(b"another plan")
    assert read_note(Path(plan.path)) is None, "of other bytes"


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"schema": "enginebench.build/1"}', "\x00"])
def test_another_file_of_that_name_is_no_note(plan: Artifact, text: str) -> None:
    Path(f"{plan.path}.json").write_text(text)
    assert read_note(Path(plan.path)) is None


def test_the_batch_of_a_plan_is_that_which_it_is_tuned_for(plan: Artifact) -> None:
    assert find_plan_batch(plan) == 4
