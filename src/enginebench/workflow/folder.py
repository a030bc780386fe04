"""A run's folder: `run.json`, `rows/`, `artefacts/`, and the paths between them.

Inside the folder's files every path is relative to it, so that a folder can be moved, and shows nobody's home.
"""

from __future__ import annotations

import itertools
import os
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, ParseError, UsageError
from enginebench.core.names import slug
from enginebench.core.records import Artifact, Machine, MeasureSpec, Precision, Recipe, Result
from enginebench.core.store import encode, hash_file, read_record, read_result, write_atomic

RUN_SCHEMA = "enginebench.run-record/1"


class RunRequest(Struct, frozen=True, kw_only=True):
    """What was asked for: enough to plan the same rows again."""

    model: str
    engines: tuple[tuple[str, dict[str, str]], ...]
    precisions: tuple[tuple[Precision, Recipe | None], ...] = (("fp32", None),)
    batches: tuple[int, ...] = (1,)
    device: str = "cpu"
    threads: int = 1
    measure: MeasureSpec = MeasureSpec()
    weights: str = "default"
    input_size: int | None = None
    input_shapes: dict[str, tuple[int, ...]] | None = None
    baseline: str | None = None
    timeout_s: float = 600.0
    quick: bool = False
    data: str | None = None  # labelled data for accuracy, and for ranges; "digits" for the digits models if None
    calibration_method: str = "minmax"
    max_top1_drop: float = 1.0  # in points
    p99_limit_ms: float | None = None


class RunRecord(Struct, frozen=True, kw_only=True):
    """`run.json`: what was asked, on which machine, and the rows in their order."""

    schema: str = RUN_SCHEMA
    request: RunRequest
    machine: Machine
    started_utc: str
    rows: tuple[str, ...]
    command: tuple[str, ...] = ()
    sources: tuple[Artifact, ...] = ()
    problems: dict[str, str] = {}  # PRECISION -> why no graph could be made in it


def hide_home(text: str) -> str:
    """`text` with the user's home folder written as `~`."""
    home = str(Path.home())
    return "~" + text[len(home) :] if text == home or text.startswith(home + os.sep) else text


def show_home(text: str) -> str:
    """What `hide_home` was given."""
    return str(Path(text).expanduser()) if text.startswith("~") else text


def default_folder(model: str, now: datetime | None = None) -> Path:
    """`results/<slug of model>-<utc time>`, numbered where a run of the same second lies there already."""
    stamp = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    name = Path(model).stem if model.endswith(".onnx") else model
    first = Path("results") / f"{slug(name)}-{stamp}"
    others = (first.with_name(f"{first.name}-{i}") for i in itertools.count(2))
    return first if not first.exists() else next(path for path in others if not path.exists())


def check_inside(root: Path, path: Path) -> None:
    """Returns if nothing on the way from `root` to `path` leads elsewhere: a folder may come from a stranger.

    `root` itself may be a link, since the user named it.

    Raises:
        ArtifactError: a part of the way is a symbolic link, goes up, or the end is neither a plain file nor missing.
    """
    if ".." in path.relative_to(root).parts:
        raise ArtifactError(f"{path} leads out of the folder {root}; it is not read")
    here = root
    for part in path.relative_to(root).parts:
        here = here / part
        if here.is_symlink():
            raise ArtifactError(
                f"{here} is a symbolic link; links inside a run's folder are not followed. Copy the file"
            )
    if here.exists() and not here.is_file():
        raise ArtifactError(f"{here} is no plain file; it is not read")


class RunFolder:
    """The files of one run. Nothing is read or made by the constructor."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.artefacts = root / "artefacts"
        self.rows = root / "rows"

    def row_path(self, row_id: str) -> Path:
        return self.rows / f"{row_id}.json"

    def outputs_path(self, row_id: str) -> Path:
        """Where a row's answers to the check inputs lie."""
        return self.artefacts / "outputs" / f"{row_id}.npz"

    def logits_path(self, row_id: str) -> Path:
        """Where a row's answers to the labelled data lie."""
        return self.artefacts / "outputs" / f"{row_id}.labelled.npz"

    def create(self, record: RunRecord) -> None:
        """Makes the folder and its `run.json`.

        Raises:
            UsageError: a run lies there already.
        """
        if (self.root / "run.json").exists():
            raise UsageError(f"{self.root} holds a run already; continue it with --resume or choose another --out")
        self.write_record(record)

    def write_record(self, record: RunRecord) -> None:
        request = replace(record.request, model=hide_home(record.request.model))
        stored = replace(record, request=request, command=tuple(hide_home(word) for word in record.command))
        write_atomic(self.root / "run.json", encode(stored, indent=2))

    def read_record(self) -> RunRecord:
        """The run's record.

        Raises:
            ParseError: there is none, it is damaged, or a newer version wrote it.
        """
        path = self.root / "run.json"
        check_inside(self.root, path)
        record = read_record(path, RunRecord)
        if record.schema != RUN_SCHEMA:
            raise ParseError(path, "$.schema", repr(record.schema), repr(RUN_SCHEMA), "Upgrade enginebench")
        return replace(record, request=replace(record.request, model=show_home(record.request.model)))

    def write_result(self, result: Result) -> None:
        stored = replace(result, artifacts=tuple(self.relative(a) for a in result.artifacts))
        write_atomic(self.row_path(result.id), encode(stored))

    def read_result(self, row_id: str) -> Result | None:
        """The stored row, its artefacts with usable paths; None if it was never begun."""
        if Path(row_id).name != row_id or "\0" in row_id:
            raise ParseError(
                self.root / "run.json", "$.rows", repr(row_id), "the id of a row, which is a plain file name"
            )
        path = self.row_path(row_id)
        check_inside(self.root, path)
        if not path.exists():
            return None
        result = read_result(path)
        if result.id != row_id:
            raise ParseError(path, "$.id", repr(result.id), repr(row_id), "Was the file renamed?")
        return replace(result, artifacts=tuple(self.absolute(a) for a in result.artifacts))

    def relative(self, artifact: Artifact) -> Artifact:
        """The artefact as it is stored: paths inside the folder relative to it, others by name alone."""
        path = Path(artifact.path)
        if not artifact.path or not path.is_absolute():
            return artifact
        inside = path.is_relative_to(self.root.absolute())
        return replace(artifact, path=str(path.relative_to(self.root.absolute()) if inside else path.name))

    def absolute(self, artifact: Artifact) -> Artifact:
        """The artefact with a path that can be opened.

        Raises:
            ArtifactError: its path leads out of the folder.
        """
        if not artifact.path or Path(artifact.path).is_absolute():
            return artifact
        path = self.root.absolute() / artifact.path
        if not path.resolve().is_relative_to(self.root.resolve()):
            raise ArtifactError(f"{self.root}: the stored path {artifact.path!r} leads out of the folder")
        return replace(artifact, path=str(path))

    def verify(self, artifact: Artifact) -> None:
        """Returns if the artefact's files, also those beside the main one, still have the hashes that were stored.

        Raises:
            ArtifactError: it is gone or was changed since.
        """
        if not artifact.files or not artifact.path:
            return
        path = Path(artifact.path)
        if not path.is_file():
            raise ArtifactError(f"{path} is gone; the run cannot be continued. Start a new one")
        for known in artifact.files:
            file = path.parent / known.path
            if Path(known.path).is_absolute() or ".." in Path(known.path).parts:
                raise ArtifactError(f"{path}: its file {known.path!r} would lie outside its folder; it is not read")
            if not file.is_file():
                raise ArtifactError(f"{file} is gone; the run cannot be continued. Start a new one")
            if hash_file(file) != known.sha256:
                raise ArtifactError(f"{file} was changed after the run began (SHA-256 differs). Start a new run")


def holds_run(root: Path) -> bool:
    """Whether a run is stored in the folder, be it damaged."""
    return (root / "run.json").exists()


def read_results(root: Path) -> tuple[RunRecord, list[Result]]:
    """A stored run: its record and every row that was begun, in the run's order."""
    folder = RunFolder(root)
    record = folder.read_record()
    rows = [folder.read_result(row_id) for row_id in record.rows]
    return record, [row for row in rows if row is not None]


def read_rows(path: Path) -> list[Result]:
    """The rows of a run's folder, or the one row of a stored file."""
    if path.is_dir():
        return read_results(path)[1]
    return [read_result(path)]
