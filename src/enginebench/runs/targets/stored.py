"""The sides of a comparison as the user names them: an engine on a target, or a stored row."""

from pathlib import Path

from msgspec import Struct

from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.names import PLAN_SUFFIXES
from enginebench.core.records import Precision, Recipe
from enginebench.core.store import is_bundle, read_result
from enginebench.engines.registry import find_entry, has_engine, read_engine
from enginebench.runs.folder import RunFolder, Stored
from enginebench.runs.targets.bundles import open_as_stored
from enginebench.runs.trust import allow_engines, allow_model, holds_refused, trust_engine


class Side(Struct, frozen=True, kw_only=True):
    engine: tuple[str, dict[str, str]]
    target: str
    precision: tuple[Precision | None, Recipe | None] = ("fp32", None)
    batch: int | None = None
    threads: int | None = None
    stored: Stored | None = None  # for a stored row, which is measured again on exactly the same artifact


def parse_side(text: str, target: str, precision: tuple[Precision, Recipe | None] = ("fp32", None)) -> Side:
    """The side that `text` names: `ENGINE@TARGET`, `ENGINE` (on the same target), a stored row's file, or a bundle."""
    if text.endswith(".json") and Path(text).exists():
        return _make_side(open_stored(Path(text)))
    if is_bundle(Path(text)):
        return _make_side(open_as_stored(Path(text)))
    engine, sep, named = text.partition("@")
    if not has_engine(engine.partition(":")[0]):
        plan = Path(text).suffix.lower() in PLAN_SUFFIXES and "@" not in text
        raise UsageError(
            f"{text!r} is neither ENGINE@TARGET, nor the file of a stored result (rows/....json), nor a bundle"
            + (f". Name the engine of a plan: tensorrt@{text} or trtexec@{text}" if plan else "")
        )
    side = Side(engine=read_engine(engine), target=named if sep else target, precision=precision)
    allow_engines([side.engine])
    allow_model(side.target)
    return side


def _make_side(stored: Stored) -> Side:
    spec = stored.spec
    return Side(
        engine=(spec.backend, spec.options),
        target=stored.result.model,
        precision=(spec.precision, spec.recipe),
        batch=spec.batch,
        threads=spec.threads,
        stored=stored,
    )


def open_stored(path: Path) -> Stored:
    """The row of a file, with the artifact that its engine loaded or, if that cannot be reopened, was built from."""
    result = read_result(path)
    entry = find_entry(result.engine.backend)
    kinds = (*entry.accepts, *entry.reopens)
    places = [i for i, artifact in enumerate(result.artifacts) if artifact.kind in kinds]
    places = [i for i in places if not holds_refused(result.artifacts[i])] or places  # else it is built again
    if not places:
        raise ArtifactError(
            f"{path} holds no artifact that {result.engine.backend} could start from; the result is {result.status}. "
            "Name another result, or ENGINE@TARGET"
        )
    folder = RunFolder(path.absolute().parent.parent)
    chain = tuple(folder.absolute(artifact) for artifact in result.artifacts[: places[-1] + 1])
    place = Path(chain[-1].path)
    if not place.is_absolute() or not place.is_file():
        fault = "is no longer there" if place.is_absolute() else "does not lie in the run's folder"
        raise ArtifactError(f"{path}: its artifact {place} {fault}. Name ENGINE@TARGET instead of the result")
    trust_engine(result.engine.backend, result.engine.options, path)
    return Stored(result=result, chain=(*chain[:-1], folder.open(chain[-1])))
