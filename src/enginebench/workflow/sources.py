"""MODEL to the artefacts that engines start from, made in a child so that the parent stays light."""

from __future__ import annotations

from enginebench.core.errors import ArtifactError
from enginebench.core.names import format_engine
from enginebench.core.records import Artifact, ArtifactKind, EngineSpec
from enginebench.workflow.campaign import Reporter, child_environment
from enginebench.workflow.isolate import run_child
from enginebench.workflow.jobs import SourceAnswer, SourceJob


def make_sources(job: SourceJob, *, threads: int, timeout_s: float, reporter: Reporter) -> tuple[Artifact, ...]:
    """The torch artefact and its ONNX export, or the ONNX graph alone.

    Raises:
        ModelError: the model cannot be built or exported.
        MissingDependency: it needs a package that is not installed.
        ChildFailed: the process that built it died or hung.
    """
    reporter.step(f"{job.model}: loading")
    answer = run_child(
        job,
        timeout_s=timeout_s,
        environment=child_environment(threads),
        on_note=lambda text: reporter.step(f"{job.model}: {text}"),
    )
    assert isinstance(answer, SourceAnswer)
    return answer.artifacts


def choose_source(sources: tuple[Artifact, ...], engine: EngineSpec, kind: ArtifactKind) -> Artifact:
    """The artefact that an engine starts from.

    Raises:
        ArtifactError: none is of the kind that it takes.
    """
    for artifact in sources:
        if artifact.kind == kind:
            return artifact
    have = ", ".join(a.kind for a in sources)
    raise ArtifactError(f"{format_engine(engine)} starts from an artefact of kind {kind}; there is only {have}")
