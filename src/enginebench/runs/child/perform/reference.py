"""Compute the outputs of an unchanged graph: no optimizer has touched its nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from enginebench.core.engine_api import Closing, flatten_output
from enginebench.core.errors import ArtifactError, importing
from enginebench.core.feeds import check_feeds
from enginebench.core.protocols import Array, Feeds, RunCall
from enginebench.core.records import TEXT, Artifact, ReferenceKind, TensorSpec
from enginebench.core.shapes import fits_shape, format_shape
from enginebench.core.text import name_type
from enginebench.engines.refusals import explaining_refusal
from enginebench.models.onnx.reference import open_reference_session
from enginebench.runs.child.arrays import save_outputs
from enginebench.runs.child.jobs import NoteCall, ReferenceJob, ReferenceResponse
from enginebench.runs.child.perform.build import compute_check_outputs, draw_feeds, save_further
from enginebench.runs.child.perform.outputs import measure_variation, run_engine

# What computes a graph on some inputs: its outputs, in the order in which it declares them.
ComputeCall = Callable[[Feeds], Sequence[Any]]


def compute_reference(job: ReferenceJob, note: NoteCall) -> ReferenceResponse:
    """Saves the graph's outputs for the check's inputs; raises EngineBenchError where a node cannot be run."""
    artifact = job.check.artifact
    note("running")
    with open_graph(job.kind, artifact, job.check.engine.threads) as engine:
        feeds = draw_feeds(job.check, artifact.inputs)
        start = time.perf_counter()
        first = run_engine(engine, feeds[0])
        call_s = time.perf_counter() - start
        # Who takes that long is not asked twice for the same.
        varies = measure_variation(first, run_engine(engine, feeds[0])) if call_s < job.budget_s else 0.0
        save_outputs(Path(job.check.outputs_path), *compute_check_outputs(engine, job.check, feeds, job.budget_s))
        save_further([engine], job.check, artifact, late=time.perf_counter() - start >= job.budget_s)
    return ReferenceResponse(varies=varies)


def open_graph(kind: ReferenceKind, artifact: Artifact, threads: int) -> GraphEngine:
    open_call = open_unoptimized if kind == "ort_unoptimized" else open_evaluator
    return GraphEngine(artifact, open_call(artifact, threads))


def open_unoptimized(artifact: Artifact, threads: int) -> ComputeCall:
    """The graph on ONNX Runtime, which runs its nodes one by one as they stand."""
    with explaining_refusal(f"ONNX Runtime cannot load {Path(artifact.path).name}"):
        session = open_reference_session(artifact.path, artifact.operator_libraries, optimize=False, threads=threads)
    names, text = [spec.name for spec in artifact.outputs], [s.name for s in artifact.inputs if s.dtype == TEXT]

    def compute(feeds: Feeds) -> Sequence[Any]:
        objects = {name: feeds[name].astype(object) for name in text}
        values: Sequence[Any] = session.run(names, {**feeds, **objects})
        return [flatten_output(value) for value in values]

    return compute


def open_evaluator(artifact: Artifact, threads: int) -> ComputeCall:
    """The graph on the evaluator with which the onnx package defines its operators."""
    with importing("onnx, whose reference evaluator computes a graph,", 'pip install "enginebench[ort]"'):
        from onnx.reference import ReferenceEvaluator
    with explaining_refusal(f"onnx's reference evaluator cannot load {Path(artifact.path).name}"):
        evaluator = ReferenceEvaluator(artifact.path)

    def compute(feeds: Feeds) -> Sequence[Any]:
        with np.errstate(all="ignore"):  # divisions by zero are the graph's own, and show in its outputs
            values = evaluator.run([spec.name for spec in artifact.outputs], dict(feeds))
        return [take_declared(spec, value) for spec, value in zip(artifact.outputs, values, strict=True)]

    return compute


class GraphEngine(Closing):
    """An unchanged graph, with the interface of an engine."""

    def __init__(self, artifact: Artifact, compute: ComputeCall) -> None:
        self.inputs, self.outputs = artifact.inputs, artifact.outputs
        self._compute = compute
        self._feeds: Feeds = {}
        self._values: Sequence[Any] = []

    @property
    def run(self) -> RunCall:
        return self._run

    def bind(self, feeds: Feeds) -> None:
        check_feeds(self.inputs, feeds)
        self._feeds = feeds

    def fetch(self) -> dict[str, Array]:
        return {spec.name: value for spec, value in zip(self.outputs, self._values, strict=True)}

    def close(self) -> None:
        self._feeds, self._values = {}, []

    def _run(self) -> None:
        self._values = self._compute(self._feeds)


def take_declared(spec: TensorSpec, value: object) -> Array:
    """Return an output in the dtype that the graph declares; raise ArtifactError if its rank or kind differs.

    Then the evaluator's implementation differs from the operators' definition, and its outputs are no reference.
    """
    array = np.asarray(value) if isinstance(value, np.ndarray | np.generic) else None
    if array is not None and spec.dtype == TEXT:
        return array.astype(str)
    if array is None or not fits_shape(_free_axes(spec), array.shape) or array.dtype.kind in "OUS":
        actual = f"{array.dtype}[{format_shape(array.shape)}]" if array is not None else name_type(value)
        raise ArtifactError(
            f"onnx's reference evaluator gives {actual} for the output {spec.name!r}; the graph declares "
            f"{spec.dtype}[{format_shape(spec.shape)}]"
        )
    return array.astype(spec.dtype)


def _free_axes(spec: TensorSpec) -> tuple[int | str, ...]:
    """The shape in which the first axis, which counts samples, may have any length."""
    return ("batch", *spec.shape[1:]) if spec.shape else ()
