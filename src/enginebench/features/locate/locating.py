"""Search the sides of a comparison, each in a process of its own, and keep what is known when a search ends early."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from enginebench.core.commands import format_command
from enginebench.core.errors import EngineBenchError
from enginebench.core.names import format_engine
from enginebench.core.protocols import Array
from enginebench.features.locate.jobs import KNOWN, PairJob, SideJob
from enginebench.features.locate.repro import find_free_folder
from enginebench.models.precision.exclusion import COMMENT, write_exclusion
from enginebench.report.located import FoundFault, Located, LocatedSide, WayAround
from enginebench.runs.child.arrays import save_arrays
from enginebench.runs.child.isolate import run_child
from enginebench.runs.progress import Reporter, report_steps
from enginebench.runs.targets.sides import SIDE_TIMEOUT_S, OpenSide

EXCLUDED_FILE, KEPT_FILE = "exclude.txt", "kept.onnx"
LENT = "What it was built as gives no tensors: it was built anew, and in parts, from its graph."

OTHER = "If its own outputs differ all the same, it was built from another graph, or with other settings."


def locate_faults(
    sides: Sequence[OpenSide],
    calls: Sequence[Mapping[str, Array]],
    *,
    slice_mb: int,
    scratch: Path,
    out: Path | None,
    reporter: Reporter,
) -> Located:
    """The hook FaultLocator."""
    paths = [scratch / f"call-{i}.npz" for i in range(len(calls))]
    for path, feeds in zip(paths, calls, strict=True):
        save_arrays(path, feeds)
    located, interrupted = _locate_sides(sides, paths, slice_mb=slice_mb, scratch=scratch, out=out, reporter=reporter)
    kinds = {side.artifact.kind for side in sides}
    if interrupted or kinds != {"onnx"} or len({side.artifact.sha256 for side in sides}) == 1:
        return Located(sides=located, interrupted=interrupted)
    pair_job = PairJob(
        artifacts=(sides[0].artifact, sides[1].artifact),
        engine=sides[1].engine,
        graph=str((out / KEPT_FILE).absolute()) if out is not None else None,
        call=str(paths[0].absolute()),
        out_dir=str(scratch / "pair"),
        slice_mb=slice_mb,
    )
    try:
        response = run_child(
            pair_job, timeout_s=SIDE_TIMEOUT_S, on_note=report_steps(reporter, "one graph beside the other")
        )
    except KeyboardInterrupt:
        return Located(sides=located, interrupted=True)
    except EngineBenchError as error:
        return Located(sides=located, unpaired=str(error))
    if (writable := list_writable(response.excluded)) and out is not None:
        remark = "nodes that add most of the noise, or overflow: `quantize --exclude`"
        write_exclusion(out / EXCLUDED_FILE, writable, [remark])
    return Located(
        sides=located,
        between=response.between and add_commands(response.between, sides[1]),
        further=response.further,
        noise=response.noise,
        excluded=response.excluded,
        excluded_snr_db=response.excluded_snr_db,
    )


def _locate_sides(
    sides: Sequence[OpenSide],
    calls: Sequence[Path],
    *,
    slice_mb: int,
    scratch: Path,
    out: Path | None,
    reporter: Reporter,
) -> tuple[tuple[LocatedSide, ...], bool]:
    """Return what each side does to its own graph, and whether the user ended the search; two equal sides search once.

    Args:
        calls: the files of the inputs.
        out: where the smallest model that still shows a fault is written; None: nowhere.
    """
    located: list[LocatedSide] = []
    lent = [lend_graph(side, sides) for side in sides]
    for i, side in enumerate(lent):
        repeated = next((one for one in lent[:i] if one.engine == side.engine and one.artifact == side.artifact), None)
        if repeated is not None:
            located.append(replace(located[lent.index(repeated)], text=side.text))
            continue
        if (why := explain_unsearched(side)) is not None:
            located.append(LocatedSide(text=side.text, state="unknown", why=why))
            continue
        faults = sum(one.state == "leaves" for one in located)
        repro = find_free_folder(out, faults) if out is not None else None
        job = SideJob(
            text=side.text,
            artifact=side.artifact,
            engine=side.engine,
            calls=tuple(str(path.absolute()) for path in calls),
            out_dir=str(scratch / str(i)),
            slice_mb=slice_mb,
            repro_dir=str(repro.absolute()) if repro is not None else None,
        )
        side_result, interrupted = search(job, reporter)
        if side.artifact is not sides[i].artifact and not side_result.why:
            why = f"{LENT} {OTHER}" if side_result.state == "keeps" else LENT
            side_result = replace(side_result, why=why)
        if side_result.fault is not None:
            side_result = replace(side_result, fault=add_commands(side_result.fault, side))
        located.append(side_result)
        if interrupted:
            return tuple(located), True
    return tuple(located), False


def search(job: SideJob, reporter: Reporter) -> tuple[LocatedSide, bool]:
    """Return what is known of a side, and whether the user ended the search."""
    try:
        return run_child(job, timeout_s=SIDE_TIMEOUT_S, on_note=report_steps(reporter, job.text)), False
    except KeyboardInterrupt:
        return read_known(job, ""), True
    except EngineBenchError as error:  # an engine may end its process at a graph that was cut for it
        return read_known(job, str(error)), False


def read_known(job: SideJob, why: str) -> LocatedSide:
    """Read what a search that ended early had found; `why`: what ended it, unless the user did."""
    path = Path(job.out_dir) / KNOWN
    stored = msgspec.json.decode(path.read_bytes(), type=LocatedSide) if path.is_file() else None
    return replace(stored or LocatedSide(text=job.text, state="unknown"), why=why)


def list_writable(names: Sequence[str]) -> list[str]:
    """Return the names that a line of a list holds: without line breaks, blanks at an end, or the mark of a remark."""
    return [name for name in names if name.strip().splitlines() == [name] and not name.startswith(COMMENT)]


def add_commands(fault: FoundFault, side: OpenSide) -> FoundFault:
    """Add to each way around the command that measures it; of a stored configuration on the graph in its folder."""
    engine, at, target = side.text.partition("@")
    if not at or Path(side.text).exists():  # a stored result, or a bundle
        if side.artifact.kind != "onnx":
            return fault
        engine, target = format_engine(side.engine), os.path.relpath(side.artifact.path)
    return replace(fault, ways=tuple(add_command(way, engine, target) for way in fault.ways))


def add_command(way: WayAround, engine: str, target: str) -> WayAround:
    """Add the command that measures a way around beside the faulty engine; one graph alone where outputs are added."""
    if way.change and not way.graph:
        return way
    options = [("--engine", way.engine), ("--against", f"{engine}@{target}" if way.graph else engine)]
    return replace(way, command=format_command("bench", way.graph or target, options=options))


def lend_graph(side: OpenSide, sides: Sequence[OpenSide]) -> OpenSide:
    """Return a side that was built from a graph with that graph, its own or that of the other one: it is built anew."""
    if side.artifact.kind not in ("onnx", "torch") and side.graph is not None:
        return replace(side, artifact=side.graph)
    graphs = (other.artifact for other in sides if other.artifact.kind == "onnx")
    same = (graph for graph in graphs if (graph.precision, graph.recipe) == (side.engine.precision, side.engine.recipe))
    if side.artifact.kind in ("onnx", "torch") or (graph := next(same, None)) is None:
        return side
    return replace(side, artifact=graph)


def explain_unsearched(side: OpenSide) -> str | None:
    """Explain why a side cannot be searched; None if it can."""
    if side.engine.backend == "pytorch":
        return "pytorch runs a module operation by operation, as it is written: its own graph is all that it has"
    if side.artifact.kind != "onnx" and side.engine.backend != "pytorch-compile":
        return f"{side.engine.backend} runs no graph here ({side.artifact.kind}), so that none can be cut"
    return None
