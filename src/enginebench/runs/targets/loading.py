"""Loads an engine from a file, for use in a program: from a plan, a graph, or anything else that an engine takes."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import overload

from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.core.protocols import Loadable
from enginebench.core.records import EngineSpec
from enginebench.engines.registry import find_device, find_entry
from enginebench.runs.child.isolate import run_child
from enginebench.runs.child.jobs import BuildJob
from enginebench.runs.child.opening import build_graph, open_for
from enginebench.runs.child.perform.sources import take_file
from enginebench.runs.targets.bundles import LoadedBundle, LoadedEngine, load_bundle
from enginebench.runs.targets.scratch import open_scratch

# As long as `enginebench build` waits where nobody says otherwise.
BUILD_LIMIT_S = 7200.0


@overload
def load_engine(path: str | Path, *, force: bool = False) -> LoadedBundle: ...


@overload
def load_engine(
    path: str | Path,
    engine: str,
    *,
    options: Mapping[str, str] | None = None,
    device: str = "cpu",
    batch: int = 1,
    threads: int = 1,
) -> LoadedEngine: ...


def load_engine(
    path: str | Path,
    engine: str | None = None,
    *,
    options: Mapping[str, str] | None = None,
    device: str = "cpu",
    batch: int = 1,
    threads: int = 1,
    force: bool = False,
) -> LoadedEngine:
    """The engine of a bundle, or that of a plan or an ONNX file: ready to be called, until it is closed.

    Args:
        path: a bundle that `deliver` wrote; with `engine`, a plan for `tensorrt`, and for the others an ONNX file
            (also for `tensorrt`, which then builds a plan first).
        engine: name of the engine; a bundle has its own.
        options: its `key=value` options.
        device: `cpu` or `cuda:N`; engines for GPUs run on `cuda:0` unless another is named.
        batch: the size for which a dynamic axis is built.
        threads: the number of threads of an engine on the CPU.
        force: open a bundle although files, versions or machine are not those that were measured.

    Raises:
        UsageError: the engine times itself and returns no arrays.
        ArtifactError: the file cannot be used, or the bundle or this machine is not what was measured.
    """
    if path == "":  # as a Path it would be the current folder
        raise UsageError("path: the text is empty; expected a bundle, a plan or an ONNX file")
    if engine is None:
        return load_bundle(Path(path), force=force)
    where = find_device(engine, device)
    spec = EngineSpec(backend=engine, options=dict(options or {}), device=where, batch=batch, threads=threads)
    with ExitStack() as place:
        scratch = place.enter_context(open_scratch())
        backend = open_for(spec, str(scratch))
        if not isinstance(backend, Loadable):
            raise UsageError(
                f"engine {engine} times itself and returns no arrays; to run a plan use the engine tensorrt"
            )
        (source,) = take_file(Path(path), scratch)
        if source.kind == "onnx":  # a graph runs in the precision that it is in
            spec = replace(spec, precision=source.precision, recipe=source.recipe)
        if source.kind == "onnx" and find_entry(engine).builds_apart:
            job = BuildJob(source=str(Path(path).absolute()), engine=spec, out_dir=str(scratch), prove=False)
            artifact = run_child(job, timeout_s=BUILD_LIMIT_S).artifact
        else:
            artifact = build_graph(backend, source, spec, str(scratch), lambda text: None)
        return LoadedEngine(backend.load(artifact, spec), place.pop_all())
