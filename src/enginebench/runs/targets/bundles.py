"""Bundles that EngineBench opens itself, as a target to measure, and engines to call, from a bundle or another file.

Nothing in a bundle is run, and it is held to the rules that its programs keep.
"""

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, overload
from weakref import finalize

from msgspec.structs import replace

from enginebench.core import judging
from enginebench.core.engine_api import SharedEngine
from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.protocols import Engine, Loadable
from enginebench.core.records import Artifact, EngineSpec, MeasureSpec, Result, TensorSpec
from enginebench.core.store import BUNDLE, is_bundle, read_record
from enginebench.engines.registry import find_device, find_entry
from enginebench.measure.machine import describe_machine
from enginebench.runs.bundles import BUNDLE_SCHEMA, Bundle, check_name
from enginebench.runs.child.isolate import run_child
from enginebench.runs.child.jobs import BuildJob
from enginebench.runs.child.opening import build_graph, open_for
from enginebench.runs.folder import RunFolder, Stored
from enginebench.runs.targets.scratch import open_scratch
from enginebench.runs.trust import trust_artifact, trust_engine

# The default of `enginebench build`.
BUILD_LIMIT_S = 7200.0


def read_bundle_folder(root: Path) -> Bundle:
    """Read the record of a bundle; refuse one that is damaged, newer, holds links or names files outside of it."""
    if fault := judging.find_link(root):
        raise ArtifactError(fault)
    bundle = read_record(root / BUNDLE, Bundle, BUNDLE_SCHEMA)
    home = Path(bundle.artifact.path).parent
    for name in (
        bundle.artifact.path,
        *(f.path for f in bundle.files),
        *((home / f.path).as_posix() for f in bundle.artifact.files),
    ):
        check_name(name)
    return bundle


def find_problems(root: Path, bundle: Bundle, cpu_flags: tuple[str, ...], gpus: tuple[str, ...]) -> Iterator[str]:
    """A sentence for each way in which the bundle, or this machine, is not what was measured."""
    yield from judging.find_changes(root, ((file.path, file.sha256) for file in bundle.files))
    yield from judging.find_other_versions(bundle.runtime)
    yield from judging.find_missing(bundle.instructions, cpu_flags, bundle.precision)
    if bundle.artifact.kind == "plan":
        yield from judging.find_other_gpu(bundle.gpu, gpus)


def open_bundle(root: Path, *, force: bool = False) -> tuple[Bundle, Artifact]:
    bundle = read_trusted(root)
    machine = describe_machine()
    problems = list(find_problems(root, bundle, machine.cpu_flags, tuple(gpu.name for gpu in machine.gpus)))
    if problems and not force:
        raise ArtifactError(
            f"{root}: {'. '.join(problems)}. Deliver it again on the machine where it is to run, or open it with force"
        )
    for problem in problems:
        warnings.warn(f"{root}: continuing anyway: {problem}", stacklevel=3)
    artifact = replace(bundle.artifact, path=str(root.absolute() / bundle.artifact.path))
    return bundle, trust_artifact(artifact, root)


def read_trusted(root: Path) -> Bundle:
    """Read the record of a bundle whose engine has no option that would run code or open a file elsewhere."""
    bundle = read_bundle_folder(root)
    trust_engine(bundle.engine.backend, bundle.engine.options, root)
    return bundle


def open_as_stored(root: Path) -> Stored:
    """Open a bundle as a stored configuration: measured again with the same settings, on the bundle's own files."""
    bundle, artifact = open_bundle(root)
    result = Result(
        id=bundle.row,
        model=bundle.model,
        engine=bundle.engine,
        measure=MeasureSpec(scope=bundle.scope, seed=bundle.check_seed),
        requested_precision=bundle.engine.precision,
        status="ok",
        artifacts=(artifact,),
    )
    return Stored(result=result, chain=(artifact,))


def read_target(target: str, fixed: Mapping[str, object]) -> Bundle | None:
    """The bundle that TARGET is; None of any other target."""
    if not is_bundle(Path(target)):
        if not fixed["--engine"]:
            raise UsageError("--engine is missing: name the engine for TARGET; only a bundle contains its own")
        return None
    named = [name for name, value in fixed.items() if value not in (None, ())]
    if named:
        raise UsageError(f"{target} is a bundle and brings its engine, with its settings; leave {named[0]} out")
    return read_trusted(Path(target))


def find_configuration(run: Path, bundle: Bundle) -> Path:
    path = RunFolder(run).configuration_path(bundle.row)
    if not path.is_file():
        raise UsageError(
            f"{run} has no configuration {bundle.row}, which the bundle was made of. Name the file of another result"
        )
    return path


class LoadedEngine(SharedEngine):
    """A loaded engine: call it with the inputs by name, or `bind`, `run`, `fetch`. Closes with its `with` block.

    Threads may share it: calls are made one after another. One engine for each thread is faster. What else the engine
    can do (`threads`, `effective_precision`, ...) it can do here, too.

    Args:
        place: what it needs while it is open, its folder for one; closed after it, at the latest with the program.
    """

    def __init__(self, engine: Engine, stack: ExitStack) -> None:
        super().__init__(engine)
        self._leave = finalize(self, stack.close)

    def __getattr__(self, name: str) -> Any:
        if name == "_engine":  # of an object that was never made
            raise AttributeError(name)
        return getattr(self._engine, name)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The engine's inputs."""
        specs: tuple[TensorSpec, ...] = self._engine.inputs
        return specs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The engine's outputs."""
        specs: tuple[TensorSpec, ...] = self._engine.outputs
        return specs

    def close(self) -> None:
        """Free the engine, once no call is under way; may be called twice."""
        super().close()
        self._leave()


class LoadedBundle(LoadedEngine):
    """The engine of a bundle, and the bundle's record."""

    def __init__(self, engine: Engine, stack: ExitStack, bundle: Bundle) -> None:
        super().__init__(engine, stack)
        self.bundle = bundle


def load_bundle(root: Path, *, force: bool = False) -> LoadedBundle:
    """Load the engine of a bundle with the settings of its measurement.

    A user's own PyTorch module is built by the source in the bundle.
    """
    bundle, artifact = open_bundle(root, force=force)
    if bundle.module is not None and bundle.module.flat and bundle.module.file:
        sys.path.append(str(root.absolute()))
        artifact = replace(artifact, model=f"{bundle.module.file.removesuffix('.py')}:{bundle.module.name}")
    with ExitStack() as stack:
        backend = open_for(bundle.engine, str(stack.enter_context(open_scratch())))
        assert isinstance(backend, Loadable)  # engines that time themselves are never delivered
        return LoadedBundle(backend.load(artifact, bundle.engine), stack.pop_all(), bundle)


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
    from enginebench.runs.child.perform.sources import take_file

    where = find_device(engine, device)
    spec = EngineSpec(backend=engine, options=dict(options or {}), device=where, batch=batch, threads=threads)
    with ExitStack() as stack:
        scratch = stack.enter_context(open_scratch())
        backend = open_for(spec, str(scratch))
        if not isinstance(backend, Loadable):
            raise UsageError(
                f"engine {engine} times itself and returns no arrays; to run a plan use the engine tensorrt"
            )
        (source,) = take_file(Path(path), scratch)
        if source.kind == "onnx":  # a graph runs in the precision that it is in
            spec = replace(spec, precision=source.precision, recipe=source.recipe)
        if source.kind == "onnx" and find_entry(engine).builder.crashes:
            job = BuildJob(source=str(Path(path).absolute()), engine=spec, out_dir=str(scratch), prove=False)
            artifact = run_child(job, timeout_s=BUILD_LIMIT_S).artifact
        else:
            artifact = build_graph(backend, source, spec, str(scratch), lambda text: None)
        return LoadedEngine(backend.load(artifact, spec), stack.pop_all())
