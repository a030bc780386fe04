"""Several builds of one engine in a run: each from nothing, measured in turns, kept whatever happens."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from enginebench.core.errors import ChildFailed, UsageError
from enginebench.core.names import row_id
from enginebench.core.records import Artifact, EngineSpec, MeasureSpec, TensorSpec
from enginebench.core.store import hash_files
from enginebench.measure.machine import describe_machine
from enginebench.runs.builds import compare_answers, count_builds
from enginebench.runs.campaign import Campaign
from enginebench.runs.child.jobs import MeasureJob, PrepareJob
from enginebench.runs.folder import RunFolder
from enginebench.runs.plan import PlannedRow
from in_process import Children
from reporters import Silent

MACHINE = describe_machine()
MEASURE = MeasureSpec(warmup=1, iters=5, processes=6, builds=3)
AXES = ("batch", 4)


@pytest.fixture
def graph(tmp_path: Path) -> Artifact:
    path = tmp_path / "r" / "artefacts" / "toy.onnx"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"a graph")
    sha256, files = hash_files([path], path.parent)
    ends = (TensorSpec(name=name, dtype="float32", shape=AXES) for name in "xy")
    x, y = ((spec,) for spec in ends)
    return Artifact(kind="onnx", model="toy", path=str(path), sha256=sha256, files=files, inputs=x, outputs=y)


def plan(source: Artifact, backend: str = "fake", **options: str) -> PlannedRow:
    engine = EngineSpec(backend=backend, options=options)
    return PlannedRow(
        id=row_id(engine, "fp32", MEASURE),
        model="toy",
        engine=engine,
        measure=MEASURE,
        requested_precision="fp32",
        source=source,
        chain=(source,),
    )


def start(folder: Path, *rows: PlannedRow) -> Campaign:
    return Campaign(RunFolder(folder), rows, MACHINE, timeout_s=60, reporter=Silent())


def test_each_build_is_made_from_nothing_and_measured_in_its_turn(
    graph: Artifact, tmp_path: Path, children: Children
) -> None:
    row = plan(graph, build_sd="0.2")
    (result,) = start(tmp_path / "r", row).run()
    assert result.status == "ok" and len(result.builds) == 3
    places = [job.out_dir for job in children.of(PrepareJob)]
    assert len(set(places)) == 3 and all(f"builds/{row.id}/" in place for place in places)
    assert [m.build for m in result.measurements] == [0, 1, 2, 0, 1, 2]
    assert [job.out_dir for job in children.of(MeasureJob)] == places * 2
    assert [job.artifact.path for job in children.of(MeasureJob)][:3] == [b.artifact.path for b in result.builds]
    assert len({build.fingerprint for build in result.builds}) == 3
    assert [build.max_abs_diff for build in result.builds] == [0.0] * 3
    assert not list((tmp_path / "r" / "artefacts" / "outputs").glob("*.build-*")), "answers that were compared are gone"
    stored = (tmp_path / "r" / "rows" / f"{row.id}.json").read_text()
    assert str(tmp_path) not in stored, "paths are stored relative to the folder"


def test_what_a_killed_run_left_is_not_found_by_the_next_build(
    graph: Artifact, tmp_path: Path, children: Children
) -> None:
    row = plan(graph)
    left = RunFolder(tmp_path / "r").build_path(row.id, 1) / "cache" / "kernel"
    left.parent.mkdir(parents=True)
    left.write_text("chosen by an earlier build")
    start(tmp_path / "r", row).run()
    assert left.parent.parent.is_dir() and not left.exists()


@pytest.mark.parametrize("failing", [1, 2])
def test_a_build_that_fails_costs_its_row_and_says_which(
    graph: Artifact, tmp_path: Path, children: Children, failing: int
) -> None:
    def before(job: Any) -> None:
        if isinstance(job, PrepareJob) and job.out_dir.endswith(f"{failed.id}/{failing + 1}"):
            raise ChildFailed("the builder crashed", "its last words")

    children.before = before
    failed = plan(graph, seed="1")
    bad, good = start(tmp_path / "r", failed, plan(graph, seed="2")).run()
    assert bad.status == "failed" and len(bad.builds) == failing and not bad.measurements
    assert f"while build {failing + 1} of 3 was made: the builder crashed" in (bad.reason or "")
    assert good.status == "ok" and len(good.builds) == 3


def test_an_interrupt_among_the_builds_is_continued_where_it_was(
    graph: Artifact, tmp_path: Path, children: Children
) -> None:
    def before(job: Any) -> None:
        if isinstance(job, PrepareJob) and job.out_dir.endswith("/3"):
            raise KeyboardInterrupt

    children.before = before
    row = plan(graph, build_sd="0.2")
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "r", row).run()
    known = RunFolder(tmp_path / "r").read_result(row.id)
    assert known is not None and len(known.builds) == 2
    children.before, children.jobs = lambda job: None, []
    campaign = start(tmp_path / "r", row)
    campaign.restore()
    (result,) = campaign.run()
    assert [Path(job.out_dir).name for job in children.of(PrepareJob)] == ["3"]
    assert result.status == "ok" and result.builds[:2] == known.builds


def test_only_what_builds_is_built_again(graph: Artifact) -> None:
    assert count_builds(plan(graph)) == count_builds(plan(graph, backend="openvino")) == 3
    assert count_builds(plan(graph, backend="ort")) == 1
    assert count_builds(plan(graph, backend="ort", ahead="1")) == 3
    finished = replace(graph, kind="plan")
    assert count_builds(plan(finished, backend="tensorrt")) == 1
    assert count_builds(plan(replace(graph, kind="openvino"), backend="openvino")) == 1
    once = plan(graph)
    assert count_builds(replace(once, measure=replace(MEASURE, builds=1))) == 1
    with pytest.raises(UsageError, match=r"tensorrt:timing_cache=f would hand on"):
        count_builds(plan(graph, backend="tensorrt", timing_cache="f"))


def test_answers_of_two_builds_are_compared_or_nobody_knows(tmp_path: Path) -> None:
    assert compare_answers(tmp_path / "a.npz", tmp_path / "b.npz") is None
