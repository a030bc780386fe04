"""Search a side that compiles a PyTorch module: the operation, its smallest form, the ways around it."""

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
import torch
from msgspec.structs import replace

from enginebench.core.errors import EngineBenchError
from enginebench.core.names import format_options
from enginebench.core.records import EngineSpec
from enginebench.core.store import encode, write_atomic
from enginebench.engines.registry import complete_options
from enginebench.features.locate.describing import describe_fault, make_located_side, start_timer
from enginebench.features.locate.jobs import KNOWN, SideJob
from enginebench.features.locate.judging import find_leaving
from enginebench.features.locate.nonfinite import explain_beginning
from enginebench.features.locate.program import Arrays
from enginebench.features.locate.repro import PROGRAMS, WRITTEN, Example, find_tolerance, run_program, write_report
from enginebench.features.locate.search import Fault, Search
from enginebench.features.locate.shrink import drop_steps
from enginebench.features.locate.timing import compare_times
from enginebench.features.locate.torch_program import TorchProgram, name_arguments
from enginebench.report.located import FoundFault, LocatedSide, Reproduction, WayAround
from enginebench.runs.child.arrays import load_arrays, save_arrays
from enginebench.runs.child.jobs import NoteCall
from enginebench.stats.drift import find_coarsest

MB = 1_000_000
# Seconds for making what shows a fault smaller: each try is compiled.
REDUCING_S = 60.0


def search_module(job: SideJob, note: NoteCall) -> LocatedSide:
    precision = find_coarsest((job.artifact.precision, job.engine.precision))
    for call in job.calls:
        program = TorchProgram(job.artifact, job.engine, load_arrays(Path(call)), Path(job.out_dir), note)
        program.record(job.slice_mb * MB)
        search = Search(program, precision, note)
        if (fault := search.find_first()) is not None:
            return explain_fault(job, search, program, fault, note)
    if not search.outputs:
        return replace(make_located_side(search, job.text), why="none of its outputs can be compared")
    begins = explain_beginning(program, program.outputs)
    return replace(make_located_side(search, job.text), state="keeps", overflowed=begins)


def explain_fault(job: SideJob, search: Search, program: TorchProgram, fault: Fault, note: NoteCall) -> LocatedSide:
    """Say all that can be found out about a fault; what is known is stored before each step."""
    described, has_time = describe_fault(search, fault), start_timer(REDUCING_S)
    located = replace(make_located_side(search, job.text), state="leaves", fault=described)

    def update(**parts: object) -> LocatedSide:
        nonlocal described, located
        described = replace(described, **parts)
        located = replace(located, fault=described)
        write_atomic(Path(job.out_dir) / KNOWN, encode(located))
        return located

    update()
    note("dropping operations")
    smallest = drop_steps(search, fault, has_time)
    module = program.cut(smallest.indices, smallest.wanted, program.values)
    reproduction = Reproduction(nodes=len(smallest.indices), hurried=not has_time())
    update(reproduction=reproduction)
    if job.repro_dir is not None:
        note("writing the reproduction")
        written = write_module(Path(job.repro_dir), program, module, smallest, job.engine, described)
        update(reproduction=replace(reproduction, folder=job.repro_dir, shown=written))
    ways = list[WayAround]()
    for engine in list_engines(job.engine):
        note(f"time of {format_options(engine.backend, engine.options)}")
        if (way := measure_way(search, program, engine)) is not None:
            ways.append(way)
            update(ways=tuple(ways))
    return located


def write_module(
    folder: Path, program: TorchProgram, module: object, fault: Fault, engine: EngineSpec, described: FoundFault
) -> bool:
    """Write the operations as an exported program, run the program that shows their fault, and write the report."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in WRITTEN:
        (folder / name).unlink(missing_ok=True)
    feeds = program.pick_fed(module, program.values)
    with torch.inference_mode():
        arguments = tuple(torch.from_numpy(array) for array in feeds.values())
        torch.export.save(torch.export.export(module, arguments, strict=False), str(folder / "model.pt2"))
    save_arrays(folder / "inputs.npz", name_arguments(feeds))
    expected = [program.values[name] for name in fault.wanted]
    mode = complete_options(engine)["mode"]
    tolerance = find_tolerance(fault.deviations.values(), expected)
    settings = {"threads": engine.threads, "device": engine.device, "mode": mode, "tolerance": tolerance}
    write_atomic(folder / "settings.json", msgspec.json.format(msgspec.json.encode(settings), indent=2) + b"\n")
    shutil.copyfile(PROGRAMS / "repro_torch.py", folder / "repro.py")
    shown = run_program(folder)
    files = {name: f"x{i}" for i, name in enumerate(feeds)} | {name: f"y{i}" for i, name in enumerate(fault.wanted)}
    steps = [program.steps[i] for i in fault.indices]
    example = Example(
        nodes=[(step.kind, step.inputs, step.outputs) for step in steps],
        names=files,
        expected={name: program.values[name] for name in fault.wanted},
        actual=program.compute(fault.indices, fault.wanted, program.values, program.values),
        deviations=fault.deviations,
    )
    write_atomic(folder / "report.md", write_report(example, engine, described, shown).encode())
    return shown


def list_engines(engine: EngineSpec) -> Sequence[EngineSpec]:
    """List what is tried in place of a compiler's settings: its defaults, then no compiler."""
    plain = replace(engine, options={})
    return [*([plain] if engine.options else []), replace(plain, backend="pytorch")]


def measure_way(search: Search, program: TorchProgram, engine: EngineSpec) -> WayAround | None:
    """Measure the whole module on an engine beside the faulty one; None if its outputs leave the reference, too."""
    indices = [i for i in range(len(program.steps)) if i not in program.drawing]
    module = program.cut(indices, search.outputs, search.fed)
    feeds: Arrays = program.pick_fed(module, program.values)
    expected = {name: program.values[name] for name in search.outputs}
    try:
        with program.load(module, feeds, expected, engine) as loaded:
            loaded.bind(dict(feeds))
            loaded.run()
            if find_leaving(expected, loaded.fetch(), search.precision):
                return None
        loads = [partial(program.load, module, feeds, expected, one) for one in (program.engine, engine)]
        slowdown = compare_times(loads, feeds)
    except EngineBenchError:
        return None
    return WayAround(engine=format_options(engine.backend, engine.options), slowdown=slowdown)
