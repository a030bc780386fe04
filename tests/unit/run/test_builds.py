"""Builds that memory ends are tried again with less, and say so; others are not."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, ChildFailed, EngineBenchError, TimedOut
from enginebench.core.records import Artifact, EngineSpec
from enginebench.runs.builds import run_in_memory
from enginebench.runs.child.isolate import format_exit
from enginebench.runs.child.jobs import BuildJob, BuildResponse

PLAN = Artifact(kind="plan", model="m", path="m.plan", sha256="", files=(), inputs=(), outputs=())
KILLED = ChildFailed(format_exit(-9))
EXHAUSTED = ArtifactError("TensorRT cannot build m.onnx: Error Code 2: OutOfMemory (Requested size was 1 bytes.)")


class Builds:
    """Fails with these errors in turn, then succeeds; keeps the options of each attempt."""

    def __init__(self, *errors: EngineBenchError) -> None:
        self.errors, self.options, self.lines = list(errors), list[dict[str, str]](), list[str]()

    def run(self, job: BuildJob) -> BuildResponse:
        self.options.append(job.engine.options)
        if self.errors:
            raise self.errors.pop(0)
        return BuildResponse(artifact=PLAN, engine_version=None, build_s=1.0, proof=None)

    def build(self, engine: str = "tensorrt", **options: str) -> BuildResponse:
        spec = EngineSpec(backend=engine, device="cuda:0", options=options)
        job = BuildJob(source="m.onnx", engine=spec, out_dir=str(Path("out")))
        return run_in_memory(job, self.run, self.lines.append)


@pytest.mark.parametrize("error", [KILLED, EXHAUSTED, ChildFailed("std::bad_alloc"), ChildFailed("CUDA out of memory")])
@pytest.mark.parametrize("engine", ["tensorrt", "trtexec"])
def test_a_build_without_memory_gets_less_of_it(engine: str, error: EngineBenchError) -> None:
    builds = Builds(error)
    (warning,) = builds.build(engine).artifact.warnings
    assert builds.options == [{}, {"workspace_mb": "1024", "optimization_level": "2"}]
    assert "the workspace of the build is 1024 MiB, its optimization level 2" in warning.message
    assert len(builds.lines) == 1 and "1024 MiB" in builds.lines[0]


def test_what_the_user_gave_is_never_raised() -> None:
    builds = Builds(KILLED, KILLED)
    builds.build(workspace_mb="300", optimization_level="1", refit="1")
    assert builds.options[1:] == [
        {"workspace_mb": "300", "optimization_level": "1", "refit": "1"},
        {"workspace_mb": "256", "optimization_level": "0", "refit": "1"},
    ]


def test_the_last_failure_is_the_one_to_read() -> None:
    builds = Builds(KILLED, EXHAUSTED, KILLED)
    with pytest.raises(ChildFailed, match="SIGKILL"):
        builds.build()
    assert len(builds.options) == 3


@pytest.mark.parametrize(
    "error", [ArtifactError("Error Code 10: no implementation"), TimedOut("no response within the time-out; killed")]
)
def test_other_failures_are_not_tried_again(error: EngineBenchError) -> None:
    builds = Builds(error)
    with pytest.raises(type(error)):
        builds.build()
    assert len(builds.options) == 1


def test_an_engine_without_a_workspace_is_not_tried_again() -> None:
    builds = Builds(KILLED)
    with pytest.raises(ChildFailed):
        builds.build("ort")
    builds = Builds()
    assert builds.build("ort") == replace(builds.build("ort"), artifact=PLAN) and not builds.lines
