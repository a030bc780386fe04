"""Named baselines: copies of stored results, without artifacts, that later runs are compared with."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, EngineBenchError, UsageError
from enginebench.core.names import slug
from enginebench.core.records import Result
from enginebench.core.store import explain_access, explain_writing
from enginebench.runs.folder import RunFolder, read_configurations, read_results
from enginebench.stats.validity import explain_implausible, is_implausible

BASELINE_SCHEMA = "enginebench.baseline/1"
# Inside the default folder of runs, so that both are kept, or ignored, together.
DEFAULT_STORE = Path("results") / "baselines"


class Baseline(Struct, frozen=True, kw_only=True):
    """One saved baseline, as `baseline list` shows it; `reason`: why it cannot be read."""

    name: str
    path: str
    model: str = ""
    rows: int = 0
    left_out: tuple[str, ...] = ()  # ids of configurations that were not saved, since their times are implausible
    started_utc: str = ""
    cpu_model: str = ""
    reason: str | None = None


class BaselineList(Struct, frozen=True, kw_only=True):
    """The JSON document of `baseline list`."""

    schema: str = BASELINE_SCHEMA
    store: str
    baselines: tuple[Baseline, ...]


def find_store(store: Path | None = None) -> Path:
    """The folder of baselines: the one given, else `$ENGINEBENCH_BASELINES`, else `results/baselines`."""
    return store or Path(os.environ.get("ENGINEBENCH_BASELINES") or DEFAULT_STORE)


def store_baseline(name: str, run: Path, store: Path | None = None, *, force: bool = False) -> Baseline:
    """Copy the measured configurations of a run under `name`; samples and settings, no artifacts.

    Those whose times are implausible are left out: nothing may be compared with them.

    Raises:
        UsageError: the name is not lower-case as a slug, or it is taken.
        ArtifactError: the run has no measured configuration, or none with times that a correct engine can have.
    """
    target = _find_path(name, store)
    if target.exists() and not force:
        raise UsageError(f"a baseline {name!r} exists in {target.parent}; choose another name or pass --force")
    record, results = read_results(run)
    measured = [result for result in results if result.measurements]
    if not measured:
        raise ArtifactError(f"{run} has no measured configuration; there is nothing to compare with")
    kept = [result for result in measured if not is_implausible(result.measurements)]
    if not kept:
        why = explain_implausible(measured[0].measurements)
        raise ArtifactError(
            f"{run} has implausible times alone ({measured[0].id}: {why}); expected one configuration whose times a "
            "correct engine can have. Measure another engine"
        )
    # Written to a folder next to it and moved in one step: after a kill the old one or the new one is there.
    with explain_writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".saving-") as scratch:
            made, old = Path(scratch) / "new", Path(scratch) / "old"
            folder = RunFolder(made)
            folder.create(replace(record, rows=tuple(result.id for result in kept), sources=()))
            for result in kept:
                folder.write_result(result)
            if target.exists():
                target.rename(old)
            made.rename(target)
    left_out = tuple(result.id for result in measured if result not in kept)
    return replace(_describe(target), left_out=left_out)


def read_baselines(store: Path | None = None) -> BaselineList:
    """All saved baselines by name; one that cannot be read is listed with the reason."""
    store_path = find_store(store)
    folders: list[Path] = []
    with explain_access(f"cannot list {store_path}"), suppress(FileNotFoundError):
        folders = sorted(path for path in store_path.iterdir() if path.is_dir() and not path.name.startswith("."))
    return BaselineList(store=str(store_path), baselines=tuple(_describe(path) for path in folders))


def delete_baseline(name: str, store: Path | None = None) -> Path:
    """Remove a baseline and return its former folder."""
    target = _find_path(name, store)
    # A folder without `run.json` was not written by `baseline save`: it is not removed.
    if target.is_symlink() or not (target / "run.json").is_file():
        raise UsageError(f"there is no baseline {name!r} in {target.parent}; {_list_known(store)}")
    with explain_access(f"cannot remove {target}"):
        shutil.rmtree(target)
    return target


def read_side(text: str, store: Path | None = None) -> list[Result]:
    return read_configurations(find_side(text, store))


def are_neighbours(base: str, cand: str, store: Path | None = None) -> bool:
    """Whether both name configurations of one run, whose trials were interleaved."""
    base_path, candidate_path = find_side(base, store), find_side(cand, store)
    if not (base_path.is_file() and candidate_path.is_file()):
        return False
    return base_path.resolve().parent == candidate_path.resolve().parent


def find_side(text: str, store: Path | None = None) -> Path:
    """The path that `text` names: an existing one (the folder of a run, a stored result), else a baseline's folder."""
    path = Path(text)
    if path.exists():
        return path
    folder = find_store(store) / text
    if slug(text) == text and (folder / "run.json").exists():
        return folder
    raise ArtifactError(f"{text!r} is neither a run's folder nor a stored result nor a baseline; {_list_known(store)}")


def _find_path(name: str, store: Path | None) -> Path:
    if not name or slug(name) != name:
        raise UsageError(f"baseline name {name!r}: expected lower-case letters, digits, dots and hyphens")
    return find_store(store) / name


def _list_known(store: Path | None) -> str:
    names = [baseline.name for baseline in read_baselines(store).baselines]
    return f"baselines: {', '.join(names)}" if names else f"there are no baselines in {find_store(store)}"


def _describe(path: Path) -> Baseline:
    try:
        record, results = read_results(path)
    except EngineBenchError as error:
        return Baseline(name=path.name, path=str(path), reason=str(error))
    return Baseline(
        name=path.name,
        path=str(path),
        model=results[0].model if results else "",
        rows=len(results),
        started_utc=record.started_utc,
        cpu_model=record.machine.cpu_model,
    )
