"""An engine from a file, for use in a program: a plan, a graph, or whatever an engine of this package takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from enginebench.backends.registry import find_device
from enginebench.core.errors import UsageError
from enginebench.core.protocols import Loadable
from enginebench.core.records import EngineSpec
from enginebench.workflow.opening import build_graph, open_for
from enginebench.workflow.perform_sources import take_file
from enginebench.workflow.scratch import open_scratch

if TYPE_CHECKING:
    from enginebench.core.protocols import Engine


@contextmanager
def load_engine(
    path: str | Path,
    engine: str,
    *,
    options: Mapping[str, str] | None = None,
    device: str = "cpu",
    batch: int = 1,
    threads: int = 1,
) -> Iterator[Engine]:
    """The engine of a plan or an ONNX file, ready for `bind`, `run`, `fetch`.

    Args:
        path: a plan for `tensorrt`, an ONNX file for the others (and for `tensorrt`, which then builds a plan first).
        engine: name of the engine.
        options: its `key=value` options.
        device: `cpu` or `cuda:N`; engines for GPUs run on `cuda:0` unless another is named.
        batch: for which a dynamic axis is built.
        threads: of engines on the CPU.

    Raises:
        UsageError: the engine times itself and hands out no arrays.
        ArtifactError: the file cannot be used.
    """
    spec = EngineSpec(
        backend=engine, options=dict(options or {}), device=find_device(engine, device), batch=batch, threads=threads
    )
    with open_scratch() as scratch:
        backend = open_for(spec, str(scratch))
        if not isinstance(backend, Loadable):
            raise UsageError(f"engine {engine} times itself and hands out no arrays; a plan is run by engine tensorrt")
        (source,) = take_file(Path(path), scratch)
        artifact = build_graph(backend, source, spec, str(scratch), lambda text: None)
        with backend.load(artifact, spec) as loaded:
            yield loaded
