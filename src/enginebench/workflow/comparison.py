"""The verb `bench`: one engine, or two engines side by side, interleaved now."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from enginebench.backends.registry import find_entry, find_installed, open_backend, takes
from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.names import ENGINES, parse_engine
from enginebench.core.protocols import KeepsLog
from enginebench.core.records import Precision, Recipe, Result
from enginebench.core.store import read_result, write_atomic
from enginebench.measure.machine import describe_machine
from enginebench.workflow.campaign import Campaign, Reporter
from enginebench.workflow.folder import RunFolder, RunRecord, RunRequest
from enginebench.workflow.lock import lock_devices
from enginebench.workflow.plan import PlannedRow, list_devices, plan_rows, with_suffix
from enginebench.workflow.reconcile import explain_difference
from enginebench.workflow.sources import gather_sources


class Side(Struct, frozen=True, kw_only=True):
    """One side of a comparison: an engine, in a precision, on a target."""

    engine: tuple[str, dict[str, str]]
    target: str
    precision: tuple[Precision, Recipe | None] = ("fp32", None)
    batch: int | None = None
    threads: int | None = None


def parse_side(text: str, target: str, precision: tuple[Precision, Recipe | None] = ("fp32", None)) -> Side:
    """The side that `text` names: `ENGINE@TARGET`, `ENGINE` (on the same target), or the file of a stored row.

    Raises:
        UsageError: it is none of them.
        ParseError: the stored row is damaged.
    """
    if text.endswith(".json") and Path(text).exists():
        return _read_side(Path(text))
    engine, sep, named = text.partition("@")
    if engine.partition(":")[0] not in ENGINES:
        raise UsageError(f"{text!r} is neither ENGINE@TARGET nor the file of a stored row (rows/....json)")
    return Side(engine=parse_engine(engine), target=named if sep else target, precision=precision)


def _read_side(path: Path) -> Side:
    """A stored row as a side: its engine on its own artefact, to be measured again."""
    stored = read_result(path)
    folder = RunFolder(path.parent.parent)
    kind = takes(stored.engine.backend)
    sources = [folder.absolute(a) for a in stored.artifacts if a.kind == kind]
    if kind == "torch":
        target = stored.model
    elif sources:
        folder.verify(sources[0])
        target = sources[0].path
    else:
        raise ArtifactError(f"{path} holds no artefact of kind {kind} that {stored.engine.backend} could start from")
    return Side(
        engine=(stored.engine.backend, stored.engine.options),
        target=target,
        precision=(stored.requested_precision, stored.engine.recipe),
        batch=stored.engine.batch,
        threads=stored.engine.threads,
    )


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
        DeviceBusy: another run holds a device of a side, and `wait` is false.
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
    other = None if against is None else _request_of(request, against)
    devices = [device for asked in filter(None, (request, other)) for device in list_devices(asked)]
    with lock_devices(devices, wait=wait, on_wait=reporter.say):
        rows = [_plan_side(folder, request, "artefacts", reporter)]
        if other is not None:
            rows.insert(0, with_suffix(_plan_side(folder, other, "against", reporter), "against"))
        folder.write_record(replace(record, rows=tuple(row.id for row in rows)))
        campaign = Campaign(folder, rows, record.machine, timeout_s=request.timeout_s, reporter=reporter)
        return _explain(folder, campaign.run())


def keep_log(root: Path, result: Result, out: Path) -> None:
    """Writes what the tool of a row printed, builds and processes in their order, to `out`.

    Args:
        root: the folder of `bench`.
        result: the row; one that failed has a log as well. One for which nothing was run has none, and writes nothing.
        out: where the text goes.

    Raises:
        ArtifactError: the file cannot be written.
    """
    backend: object = open_backend(result.engine.backend, cache_dir=root.absolute() / "artefacts" / "cache")
    assert isinstance(backend, KeepsLog)
    spec = replace(result.engine, precision=result.requested_precision)  # a relabelled row keeps its folder
    logs = backend.find_logs(result.artifacts[-1], spec, result.measure) if result.artifacts else []
    if logs:
        write_atomic(out, b"".join(path.read_bytes().rstrip(b"\n") + b"\n" for path in logs))


def check_log(engine: str) -> None:
    """Returns if an engine is a tool that writes a log.

    Raises:
        UsageError: it is none.
    """
    if not find_entry(engine).executable:
        raise UsageError(f"engine {engine} runs in our own process and has no log of a tool; --log is for trtexec")


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


def _plan_side(folder: RunFolder, request: RunRequest, place: str, reporter: Reporter) -> PlannedRow:
    """The one row of a request, its sources made in a folder of their own."""
    found = gather_sources(request, folder.root / place, reporter)
    (row,) = plan_rows(request, found.artifacts, probe=find_installed, takes=takes, problems=found.problems)
    return row
