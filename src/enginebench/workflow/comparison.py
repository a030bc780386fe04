"""The verb `bench`: one engine, or two engines side by side, interleaved now."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from enginebench.backends.registry import accepts, find_installed, takes
from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.names import ENGINES, parse_engine
from enginebench.core.records import Artifact, ArtifactKind, EngineSpec, Precision, Recipe, Result
from enginebench.core.store import read_result
from enginebench.measure.machine import describe_machine
from enginebench.workflow.building import put_file
from enginebench.workflow.campaign import Campaign, Reporter
from enginebench.workflow.folder import RunFolder, RunRecord, RunRequest
from enginebench.workflow.lock import lock_device
from enginebench.workflow.plan import PlannedRow, plan_rows, plan_stored, with_suffix
from enginebench.workflow.reconcile import explain_difference
from enginebench.workflow.sources import gather_sources

# What an engine makes and takes back: OpenVINO its own graph. What else it takes, the registry says.
REOPENED: tuple[ArtifactKind, ...] = ("openvino",)


class Stored(Struct, frozen=True, kw_only=True):
    """A stored row, and the artefacts from the first source to the one that its engine is to be opened from."""

    result: Result
    chain: tuple[Artifact, ...]

    @property
    def spec(self) -> EngineSpec:
        """The engine as it was asked for: a relabelled row is named after what ran, its graph is the same."""
        return replace(self.result.engine, precision=self.result.requested_precision)


class Side(Struct, frozen=True, kw_only=True):
    """One side of a comparison: an engine, in a precision, on a target."""

    engine: tuple[str, dict[str, str]]
    target: str
    precision: tuple[Precision, Recipe | None] = ("fp32", None)
    batch: int | None = None
    threads: int | None = None
    stored: Stored | None = None  # of a stored row: measured again on the very artefact that it was measured on


def parse_side(text: str, target: str, precision: tuple[Precision, Recipe | None] = ("fp32", None)) -> Side:
    """The side that `text` names: `ENGINE@TARGET`, `ENGINE` (on the same target), or the file of a stored row.

    Raises:
        UsageError: it is none of them.
        ParseError: the stored row is damaged.
        ArtifactError: its artefact is gone, or was changed since.
    """
    if text.endswith(".json") and Path(text).exists():
        return _read_side(Path(text))
    engine, sep, named = text.partition("@")
    if engine.partition(":")[0] not in ENGINES:
        raise UsageError(f"{text!r} is neither ENGINE@TARGET nor the file of a stored row (rows/....json)")
    return Side(engine=parse_engine(engine), target=named if sep else target, precision=precision)


def _read_side(path: Path) -> Side:
    """A stored row as a side: its engine on its own artefact, to be measured again."""
    stored = open_stored(path)
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
    """The row of a file with the artefact that its engine loaded last, or was built from where that cannot be reopened.

    Raises:
        ParseError: the row is damaged.
        ArtifactError: it has no such artefact, or the artefact is gone or was changed since.
    """
    result = read_result(path)
    kinds = (*accepts(result.engine.backend), *REOPENED)
    places = [i for i, artifact in enumerate(result.artifacts) if artifact.kind in kinds]
    if not places:
        raise ArtifactError(
            f"{path} holds no artefact that {result.engine.backend} could start from; the row is {result.status}. "
            "Name another row, or ENGINE@TARGET"
        )
    folder = RunFolder(path.absolute().parent.parent)
    chain = tuple(folder.absolute(artifact) for artifact in result.artifacts[: places[-1] + 1])
    if not Path(chain[-1].path).is_absolute() or not Path(chain[-1].path).is_file():
        raise ArtifactError(
            f"{path}: its artefact {chain[-1].path} does not lie in the run's folder. Name ENGINE@TARGET in place of "
            "the row"
        )
    folder.verify(chain[-1])
    return Stored(result=result, chain=chain)


def bench_sides(
    request: RunRequest,
    against: Side | None,
    root: Path,
    *,
    reporter: Reporter,
    wait: bool = True,
    command: tuple[str, ...] = (),
) -> list[Result]:
    """The result of the one engine of `request`; with `against` the other side's first, both measured in turns.

    Raises:
        DeviceBusy: another run holds the device, and `wait` is false.
        UsageError: the sides differ in batch or threads, which would compare unlike things.
    """
    folder = RunFolder(root)
    record = RunRecord(
        request=request,
        machine=describe_machine(),
        started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        rows=(),
        command=command,
    )
    folder.create(record)
    with lock_device(request.device, wait=wait, on_wait=reporter.say):
        rows = [_plan_side(folder, request, "artefacts", reporter)]
        if against is not None:
            rows.insert(0, with_suffix(_plan_other(folder, request, against, reporter), "against"))
        folder.write_record(replace(record, rows=tuple(row.id for row in rows)))
        campaign = Campaign(folder, rows, record.machine, timeout_s=request.timeout_s, reporter=reporter)
        return _explain(folder, campaign.run())


def _explain(folder: RunFolder, results: list[Result]) -> list[Result]:
    """The results, the last one with what makes two TensorRT engines give one plan two times."""
    reasons = explain_difference(results)
    if reasons:
        results[-1] = replace(results[-1], caveats=(*results[-1].caveats, *reasons))
        folder.write_result(results[-1])
    return results


def _request_of(request: RunRequest, side: Side) -> RunRequest:
    for name, mine, theirs in (("batch", request.batches[0], side.batch), ("threads", request.threads, side.threads)):
        if theirs not in (None, mine):
            raise UsageError(f"the stored row has {name} {theirs}, this side has {mine}; give --{name} {theirs}")
    return replace(request, model=side.target, engines=(side.engine,), precisions=(side.precision,))


def _plan_other(folder: RunFolder, request: RunRequest, side: Side, reporter: Reporter) -> PlannedRow:
    """The row of the other side: a stored one on its own artefact, any other from its target."""
    other = _request_of(request, side)
    if side.stored is None:
        return _plan_side(folder, other, "against", reporter)
    chain = (*side.stored.chain[:-1], bring_artifact(side.stored.chain[-1], folder.root.absolute() / "against"))
    spec = side.stored.spec
    return plan_stored(side.stored.result.model, spec, chain, request.measure, find_installed(spec.backend))


def bring_artifact(artifact: Artifact, home: Path) -> Artifact:
    """The artefact with its files in `home`, so that the folder of a comparison can be read by itself."""
    place = Path(artifact.path)
    for file in artifact.files:
        put_file(place.parent / file.path, home / file.path)
    return replace(artifact, path=str(home / place.name))


def _plan_side(folder: RunFolder, request: RunRequest, place: str, reporter: Reporter) -> PlannedRow:
    """The one row of a request, its sources made in a folder of their own."""
    found = gather_sources(request, folder.root / place, reporter)
    (row,) = plan_rows(request, found.artifacts, probe=find_installed, takes=takes, problems=found.problems)
    return row
