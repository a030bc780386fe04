"""Notes stored next to a finished plan: the request that it was built for, which the plan does not record."""

from pathlib import Path

from msgspec import Struct

from enginebench.core.errors import ParseError
from enginebench.core.records import Artifact, Normalize, Precision, Recipe, ShapeRange
from enginebench.core.store import encode, hash_file, read_record, write_atomic

# Fields that a note and an artifact have in common.
KEPT = ("recipe", "allowed", "made_with", "preprocess_sha256", "normalize")


class PlanNote(Struct, frozen=True, kw_only=True):
    """The request for the plan with this hash, and the shapes that its first profile allows."""

    schema: str = "enginebench.plan-note/1"
    sha256: str
    requested_precision: Precision | None
    recipe: Recipe | None = None
    allowed: dict[str, ShapeRange] = {}
    made_with: dict[str, str] = {}
    preprocess_sha256: str | None = None
    normalize: Normalize | None = None


def write_note(plan: Path, artifact: Artifact, requested: Precision | None) -> None:
    """Note beside `plan` with which request its original `artifact` was made."""
    kept = {name: getattr(artifact, name) for name in KEPT}
    note = PlanNote(sha256=hash_file(plan), requested_precision=requested, **kept)
    write_atomic(_name_note(plan), encode(note, indent=2))


def read_note(plan: Path) -> PlanNote | None:
    """Read the note next to `plan`; None if there is none, or its hash is of other bytes."""
    try:
        note = read_record(_name_note(plan), PlanNote)
    except ParseError:
        return None
    return note if note.sha256 == hash_file(plan) else None


def _name_note(plan: Path) -> Path:
    return plan.with_name(f"{plan.name}.json")
