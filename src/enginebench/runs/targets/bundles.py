"""Bundles that EngineBench opens itself: as a target to measure, and as an engine to call."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import finalize

from msgspec.structs import replace

from enginebench.core.engine_api import Closing
from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.protocols import Loadable
from enginebench.core.records import Artifact, MeasureSpec, Result, TensorSpec
from enginebench.core.store import is_bundle
from enginebench.measure.machine import describe_machine
from enginebench.runs.bundles.reading import find_problems, open_artifact, read_bundle
from enginebench.runs.bundles.record import Bundle
from enginebench.runs.child.opening import open_for
from enginebench.runs.folder import RunFolder, RunRequest, Stored
from enginebench.runs.targets.scratch import open_scratch
from enginebench.runs.trust import trust_artifact, trust_engine

if TYPE_CHECKING:
    from enginebench.core.protocols import Array, Engine, Feeds, RunCall


def open_bundle(root: Path, *, force: bool = False) -> tuple[Bundle, Artifact]:
    """A bundle, and the artifact that its engine opens."""
    bundle = read_trusted(root)
    machine = describe_machine()
    problems = list(find_problems(root, bundle, machine.cpu_flags, tuple(gpu.name for gpu in machine.gpus)))
    if problems and not force:
        raise ArtifactError(
            f"{root}: {'. '.join(problems)}. Deliver it again where it is to run, or open it with force"
        )
    for problem in problems:
        warnings.warn(f"{root}: going on all the same: {problem}", stacklevel=3)
    return bundle, trust_artifact(open_artifact(root, bundle), root)


def read_trusted(root: Path) -> Bundle:
    """What a bundle says of itself; its engine has no option that would run code or open a file elsewhere."""
    bundle = read_bundle(root)
    trust_engine(bundle.engine.backend, bundle.engine.options, root)
    return bundle


def open_as_stored(root: Path) -> Stored:
    """A bundle as a stored row: it is measured again as the row was, on the bundle's own files."""
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
    given = [name for name, value in fixed.items() if value not in (None, ())]
    if given:
        raise UsageError(f"{target} is a bundle and brings its engine, with its settings; leave {given[0]} out")
    return read_trusted(Path(target))


def fill_request(request: RunRequest, bundle: Bundle) -> RunRequest:
    """The request for the very row that a bundle holds."""
    spec = bundle.engine
    return replace(
        request,
        engines=((spec.backend, spec.options),),
        precisions=((spec.precision, spec.recipe),),
        batches=(spec.batch,),
        threads=spec.threads,
        device=spec.device,
        measure=replace(request.measure, scope=bundle.scope, seed=bundle.check_seed),
    )


def find_row(run: Path, bundle: Bundle) -> Path:
    path = RunFolder(run).row_path(bundle.row)
    if not path.is_file():
        raise UsageError(
            f"{run} has no configuration {bundle.row}, which the bundle was made of. Name the file of another result"
        )
    return path


class LoadedEngine(Closing):
    """A loaded engine: call it with the inputs by name, or `bind`, `run`, `fetch`. Closes with its `with` block.

    What else the engine can do (`threads`, `effective_precision`, ...) it can do here, too.

    Args:
        place: what it needs while it is open, its folder for one; closed after it, at the latest with the program.
    """

    def __init__(self, engine: Engine, place: ExitStack) -> None:
        self._engine = engine
        self._leave = finalize(self, place.close)

    def __call__(self, feeds: Feeds) -> dict[str, Array]:
        """The outputs by name."""
        self._engine.bind(feeds)
        self._engine.run()
        return self._engine.fetch()

    def __getattr__(self, name: str) -> Any:
        if name == "_engine":  # of an object that was never made
            raise AttributeError(name)
        return getattr(self._engine, name)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self._engine.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self._engine.outputs

    @property
    def run(self) -> RunCall:
        return self._engine.run

    def bind(self, feeds: Feeds) -> None:
        self._engine.bind(feeds)

    def fetch(self) -> dict[str, Array]:
        return self._engine.fetch()

    def close(self) -> None:
        """Frees the engine; may be called twice."""
        self._engine.close()
        self._leave()


class LoadedBundle(LoadedEngine):
    """The engine of a bundle, and what the bundle says of itself."""

    def __init__(self, engine: Engine, place: ExitStack, bundle: Bundle) -> None:
        super().__init__(engine, place)
        self.bundle = bundle


def load_bundle(root: Path, *, force: bool = False) -> LoadedBundle:
    """The engine of a bundle, set as its row was. Of a user's own PyTorch module this runs the source in the bundle."""
    bundle, artifact = open_bundle(root, force=force)
    if bundle.module is not None and bundle.module.flat and bundle.module.file:
        sys.path.append(str(root.absolute()))
        artifact = replace(artifact, model=f"{bundle.module.file.removesuffix('.py')}:{bundle.module.name}")
    with ExitStack() as place:
        backend = open_for(bundle.engine, str(place.enter_context(open_scratch())))
        assert isinstance(backend, Loadable)  # engines that time themselves are never delivered
        return LoadedBundle(backend.load(artifact, bundle.engine), place.pop_all(), bundle)
