"""Rows of settings: which graph each starts from, and what makes two of them different."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError
from enginebench.core.records import Artifact, MeasureSpec, TensorSpec
from enginebench.features.tune import track
from enginebench.features.tune.space import Setting
from enginebench.features.tune.track import Rows
from enginebench.runs.child.jobs import QuantizeJob
from enginebench.runs.folder import RunRequest
from enginebench.runs.targets.sources import Sources
from reporters import Silent

TENSOR = TensorSpec(name="x", dtype="float32", shape=("batch", 4))
GRAPH = Artifact(kind="onnx", model="m", path="/m.onnx", sha256="0", files=(), inputs=(TENSOR,), outputs=(TENSOR,))
INT8 = replace(GRAPH, precision="int8", recipe="cpu", sha256="8", parent_sha256="0")
REQUEST = RunRequest(model="m", engines=(("ort", {}),), precisions=(("fp32", None), ("int8", None)))
SETTING = Setting(engine="ort", precision="int8", recipe="cpu", threads=2)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that were asked for: (method, precision, recipe, folder)."""
    asked: list[Any] = []

    def make(request: RunRequest, job: QuantizeJob, reporter: object) -> Artifact:
        asked.append((job.method, job.precision, job.recipe, Path(job.calibration_path).parent))
        if job.recipe == "nncf":
            raise ArtifactError("no such thing")
        return replace(INT8, recipe=job.recipe, sha256=f"{job.method} {job.recipe}")

    monkeypatch.setattr(track, "make_graph", make)
    return asked


def make_rows(*artifacts: Artifact) -> Rows:
    return Rows(REQUEST, Sources(artifacts=artifacts or (GRAPH, INT8)), Path("/place"), Silent())


def test_the_graphs_of_the_request_serve_without_being_made_again(made: list[Any]) -> None:
    row = make_rows().plan(SETTING, MeasureSpec(), "race")
    assert row.source == INT8 and row.skip is None and row.engine.threads == 2 and not made
    assert row.id == "ort-int8.cpu-b1-compute-t2-hot-race" and row.chain == (GRAPH, INT8)


def test_dynamic_int8_of_openvino_is_made_from_weights_alone(made: list[Any]) -> None:
    row = make_rows().plan(replace(SETTING, engine="openvino", recipe="dynamic"), MeasureSpec())
    assert row.source is not None and (row.source.recipe, row.engine.recipe, row.skip) == ("w8", "dynamic", None)
    assert [recipe for _, _, recipe, _ in made] == ["w8"]


def test_a_graph_that_no_search_has_made_is_an_error_of_ours() -> None:
    with pytest.raises(ArtifactError, match=r"the stored search names the graph '\.\./secret', which it has not made"):
        make_rows().plan(replace(SETTING, graph="../secret"), MeasureSpec())


def test_another_method_has_a_graph_and_ranges_of_its_own_made_once(made: list[Any]) -> None:
    found = make_rows()
    entropy = replace(SETTING, method="entropy")
    row, again = found.plan(entropy, MeasureSpec()), found.plan(replace(entropy, threads=1), MeasureSpec())
    assert made == [("entropy", "int8", "cpu", Path("/place/entropy"))]
    assert row.source is not None and row.source.sha256 == "entropy cpu" and again.source == row.source
    assert row.id == "ort-int8.cpu-b1-compute-t2-hot-entropy"


def test_another_recipe_is_made_when_it_is_needed_and_its_lack_costs_its_row(made: list[Any]) -> None:
    found = make_rows()
    row = found.plan(replace(SETTING, recipe="tensorrt"), MeasureSpec())
    assert row.source is not None and row.source.sha256 == "minmax tensorrt" and made[0][3] == Path("/place")
    without = found.plan(replace(SETTING, recipe="nncf"), MeasureSpec())
    assert without.skip == "no graph in int8@nncf: no such thing"
    found.plan(replace(SETTING, recipe="nncf", threads=1), MeasureSpec())
    assert len(made) == 2, "what cannot be made is not tried again"


def test_a_graph_of_a_proposer_stands_in_for_that_of_its_precision(made: list[Any]) -> None:
    found = make_rows()
    found.graphs["half of it"] = replace(INT8, sha256="mixed")
    row = found.plan(replace(SETTING, graph="half of it"), MeasureSpec())
    assert row.source is not None and row.source.sha256 == "mixed" and not made
    assert row.id != found.plan(SETTING, MeasureSpec()).id


def test_no_graph_takes_longer_to_make_than_the_search_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(track, "make_graph", lambda request, *_, **__: asked.append(request.timeout_s) or INT8)
    for left_s in (5.0, 10_000.0):
        found = make_rows(GRAPH)
        found.find_left = lambda left_s=left_s: left_s  # type: ignore[misc]
        found.plan(SETTING, MeasureSpec())
    assert asked == [5.0, REQUEST.timeout_s]
