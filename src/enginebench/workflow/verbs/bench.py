"""The verb `bench`: one engine, or two engines side by side, interleaved now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from enginebench.backends.abilities import KeepsLog
from enginebench.backends.registry import check_options, find_device, find_entry, find_installed, open_backend, takes
from enginebench.bundle.reading import is_bundle
from enginebench.core.caveats import make_caveat
from enginebench.core.errors import ArtifactError, ParseError, UsageError
from enginebench.core.names import PLAN_SUFFIXES
from enginebench.core.records import Artifact, Caveat, EngineSpec, MeasureSpec, Result
from enginebench.core.store import bring_files, hash_file, read_record, write_atomic
from enginebench.measure.machine import describe_machine
from enginebench.workflow.campaign import Campaign
from enginebench.workflow.child.elsewhere import find_available
from enginebench.workflow.child.places import enter
from enginebench.workflow.folder import ARTIFACTS, RunFolder, RunRecord, RunRequest, check_request
from enginebench.workflow.lock import lock_devices
from enginebench.workflow.plan import PlannedRow, list_devices, plan_rows, plan_stored, with_suffix
from enginebench.workflow.progress import Reporter
from enginebench.workflow.targets.bundles import open_as_stored
from enginebench.workflow.targets.sources import choose_judged, gather_sources
from enginebench.workflow.targets.stored import Side
from enginebench.workflow.targets.stored_row import Stored
from enginebench.workflow.verbs.dry_run import check_command


def explain_difference(results: Sequence[Result]) -> list[Caveat]:
    """Why two rows of one plan differ; empty unless both TensorRT engines ran the same plan.

    The first items are switches that the user can match, the last are differences of the clocks that remain.
    """
    by_engine = {r.engine.backend: r for r in results}
    tool, ours = by_engine.get("trtexec"), by_engine.get("tensorrt")
    if tool is None or ours is None:
        return []
    plans = {r.artifacts[-1].sha256 for r in (tool, ours) if r.artifacts}
    if len(plans) > 1:
        return [make_caveat("environment.plans")]
    return [*compare_switches(tool, ours), *compare_clocks(tool.measure)]


def compare_switches(tool: Result, ours: Result) -> Iterator[Caveat]:
    """One item for each switch that is set differently on the two sides."""
    for option, default, what in (
        ("graph", "1", "CUDA graph"),
        ("spin", "1", "spin-wait"),
        ("profile_index", "0", "optimization profile"),
    ):
        theirs, mine = (read_option(r.engine, option, default) for r in (tool, ours))
        if theirs != mine:
            yield make_caveat("environment.switch", what=what, option=option, theirs=theirs, mine=mine)
    if read_option(tool.engine, "streams", "1") != "1":
        yield make_caveat("environment.streams")


def compare_clocks(measure: MeasureSpec) -> Iterator[Caveat]:
    """What stays when every switch is matched."""
    yield make_caveat("environment.clocks")
    if measure.scope == "io":
        yield make_caveat("environment.copies")


def read_option(engine: EngineSpec, key: str, default: str) -> str:
    """The value of an option that took effect."""
    return engine.options.get(key, default)


def bench_sides(
    request: RunRequest,
    against: Side | None,
    root: Path,
    *,
    reporter: Reporter,
    wait: bool = True,
    command: tuple[str, ...] = (),
) -> list[Result]:
    """The result of the engine of `request`; with `against`, preceded by that of the other side, measured in turns.

    Both sides answer the inputs of the other side's model, whose answers are the reference of the comparison.

    Raises:
        DeviceBusy: another run holds a device of a side and `wait` is false.
        UsageError: the sides differ in batch or threads and cannot be compared, or a tool does not take its options.
    """
    other = None if against is None else _request_of(request, against)
    for side in filter(None, (request, other)):
        _check_side(side)
    if other is not None and against is not None and against.stored is None:
        check_request(other)
    folder = RunFolder(root)
    folder.check_free()
    record = RunRecord(
        request=request,
        machine=describe_machine(),
        started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        rows=(),
        verb="bench",
        command=command,
    )
    judged = choose_judged(request) if request.metrics or request.targets else None
    devices = [device for asked in filter(None, (request, other)) for device in list_devices(asked)]
    with lock_devices(devices, wait=wait, on_wait=reporter.say):
        folder.create(record)
        rows = [_plan_side(folder, request, ARTIFACTS, reporter)]
        if against is None and Path(request.model).suffix.lower() in PLAN_SUFFIXES:
            graph = find_graph(Path(request.model))
            rows = [replace(row, graph=str(graph.absolute()) if graph else None) for row in rows]
        if against is not None and other is not None:
            base = with_suffix(_plan_other(folder, other, against, reporter), "against")
            rows = [replace(row, fed_as=base.model) for row in (base, *rows)]
        folder.write_record(replace(record, rows=tuple(row.id for row in rows)))
        campaign = Campaign(
            folder,
            rows,
            record.machine,
            timeout_s=request.timeout_s,
            reporter=reporter,
            judged=judged,
            task=request.task,
        )
        return _explain(folder, campaign.run())


def _check_side(request: RunRequest) -> None:
    """Checks what can be checked before anything is built: options, and the command of a tool that times itself."""
    ((name, options),), ((precision, recipe),) = request.engines, request.precisions
    device, batch = find_device(name, request.device), request.batches[0]
    spec = EngineSpec(backend=name, options=options, device=device, precision=precision, recipe=recipe, batch=batch)
    check_options(enter(spec))
    check_command(spec, request.measure)


def keep_log(root: Path, result: Result, out: Path) -> None:
    """Writes what the row's tool printed to `out`: builds and processes in their order.

    Args:
        root: the folder of `bench`.
        result: the row; a failed one has a log as well. If nothing ran for it there is no log, and nothing is written.
        out: the file to write.

    Raises:
        ArtifactError: the file cannot be written.
    """
    place = RunFolder(root.absolute()).build_path(result.id, 0) if result.builds else root.absolute() / ARTIFACTS
    backend: object = open_backend(result.engine.backend, cache_dir=place / "cache")
    assert isinstance(backend, KeepsLog)
    spec = replace(result.engine, precision=result.requested_precision)  # a relabelled row keeps its folder
    logs = backend.find_logs(result.artifacts[-1], spec, result.measure) if result.artifacts else []
    if logs:
        write_atomic(out, b"".join(path.read_bytes().rstrip(b"\n") + b"\n" for path in logs))


def check_log(engine: str) -> None:
    """Checks that an engine is a tool that writes a log.

    Raises:
        UsageError: it is not.
    """
    if find_entry(engine).find_program is None:
        raise UsageError(f"engine {engine} runs inside EngineBench and has no log; --log is for trtexec")


def _explain(folder: RunFolder, results: list[Result]) -> list[Result]:
    """The results; the last one says why two TensorRT engines time the same plan differently."""
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
    """The row of the other side: a stored one on its own artifact, any other from its target."""
    if side.stored is None:
        return _plan_side(folder, request, "against", reporter)
    return _plan_stored(folder, request, side.stored, "against")


def _plan_stored(folder: RunFolder, request: RunRequest, stored: Stored, place: str) -> PlannedRow:
    """The row of a stored one, its artifact brought into the folder."""
    chain = (*stored.chain[:-1], bring_artifact(stored.chain[-1], folder.root.absolute() / place))
    spec = stored.spec
    return plan_stored(stored.result.model, spec, chain, request.measure, find_available(spec))


def bring_artifact(artifact: Artifact, home: Path) -> Artifact:
    """The artifact with its files copied to `home`, so that the folder of a comparison is complete."""
    place = Path(artifact.path)
    bring_files(artifact.files, place.parent, home)
    return replace(artifact, path=str(home / place.name))


def _plan_side(folder: RunFolder, request: RunRequest, place: str, reporter: Reporter) -> PlannedRow:
    """The one row of a request, its sources made in a folder of their own; of a bundle the row that it holds."""
    if is_bundle(Path(request.model)):
        return _plan_stored(folder, request, open_as_stored(Path(request.model)), place)
    found = gather_sources(request, folder.root / place, reporter)
    (row,) = plan_rows(request, found.artifacts, probe=find_installed, takes=takes, problems=found.problems)
    return row


class _StoredPlan(Struct):
    """What the file beside a stored plan says of the graph, and of the plan itself."""

    record: _PlanRecord
    sha256: str


class _PlanRecord(Struct):
    onnx_sha256: str


def find_graph(plan: Path) -> Path | None:
    """The graph that `build` made a plan of, where it is still beside it in OUT.build, unchanged."""
    from enginebench.models.onnx.source import read_onnx

    folder = plan.with_name(f"{plan.name}.build")
    if not folder.is_dir() or find_spec("onnxruntime") is None:
        return None
    known, sha256 = set(), hash_file(plan)
    for path in folder.glob("plans/*.json"):
        with suppress(ParseError):
            stored = read_record(path, _StoredPlan)
            known |= {stored.record.onnx_sha256} if stored.sha256 == sha256 else set()
    for path in folder.glob("*/*.onnx"):
        with suppress(ArtifactError):
            if read_onnx(path).sha256 in known:
                return path
    return None
