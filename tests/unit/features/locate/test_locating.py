"""The parent of a search: what is not searched, what it prints, and what is left of a search that ends early."""

import shlex
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from msgspec.structs import replace

from enginebench.core.errors import ChildFailed
from enginebench.core.records import EngineSpec, FileHash, ModelSource
from enginebench.core.store import encode, hash_file
from enginebench.features.locate import locating
from enginebench.features.locate.jobs import KNOWN, SideJob
from enginebench.features.locate.sections import explain_fault, list_located, write_notes
from enginebench.report.located import FoundFault, Located, LocatedSide, WayAround
from enginebench.report.markdown import format_sections
from enginebench.runs.folder import RunFolder
from enginebench.runs.progress import Silent
from enginebench.runs.targets.sides import OpenSide, SideRequest, open_side, parse_side
from enginebench.verbs.bench import command as bench_command
from enginebench.verbs.drift import list_calls
from graphs import UNKEPT_NORM, write_graph
from samples import make_result

FAULT = FoundFault(
    node="scaled",
    kind="Mul",
    tensor="scaled",
    nodes=("squares", "scaled"),
    hidden_by=("squares",),
    snr_db=12.34,
    largest=0.5,
    ways=(WayAround(engine="ort:disable=GeluFusion+LayerNormFusion"),),
)


@pytest.fixture
def side(tmp_path: Path) -> OpenSide:
    graph = write_graph(tmp_path / "a b.onnx", UNKEPT_NORM, opset=13)
    return OpenSide(text=f"ort@{graph.path}", model=graph.path, artifact=graph, engine=EngineSpec(backend="ort"))


def locate(sides: list[OpenSide], scratch: Path) -> Located:
    return locating.locate_faults(sides, [{}], slice_mb=1, scratch=scratch, out=None, reporter=Silent())


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), ChildFailed("the engine ended its process")])
def test_what_was_known_is_kept(side: OpenSide, tmp_path: Path, monkeypatch: Any, failure: BaseException) -> None:
    def fail(job: SideJob, **others: object) -> LocatedSide:
        path = Path(job.out_dir) / KNOWN
        path.parent.mkdir(parents=True)
        path.write_bytes(encode(LocatedSide(text=job.text, state="leaves", fault=FAULT)))
        raise failure

    monkeypatch.setattr(locating, "run_child", fail)
    located = locate([side, side], tmp_path)
    assert located.interrupted is isinstance(failure, KeyboardInterrupt)
    assert located.sides[0].fault is not None and located.sides[0].fault.node == "scaled"
    assert len(located.sides) == (1 if located.interrupted else 2)
    assert format_sections(list_located(MagicMock(located=located))).count("leaves its graph") == 1


def test_that_the_user_ended_a_search_is_said_once(side: OpenSide, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(locating, "run_child", MagicMock(side_effect=KeyboardInterrupt()))
    located = locate([side, side], tmp_path)
    assert located.interrupted and [one.state for one in located.sides] == ["unknown"]
    text = format_sections(list_located(MagicMock(located=located)))
    assert text.count("interrupted") == 1 and "Not searched to its end" in text


def test_the_same_side_is_searched_once_and_the_printed_command_parses(
    side: OpenSide, tmp_path: Path, monkeypatch: Any
) -> None:
    calls = []

    def find(job: SideJob, **others: object) -> LocatedSide:
        calls.append(job)
        return LocatedSide(text=job.text, state="leaves", fault=FAULT)

    monkeypatch.setattr(locating, "run_child", find)
    located = locate([side, replace(side, text="again")], tmp_path)
    assert len(calls) == 1 and [one.text for one in located.sides] == [side.text, "again"]
    assert located.sides[0].fault is not None
    words = shlex.split(located.sides[0].fault.ways[0].command)
    context = bench_command.make_context("bench", words[2:])
    assert context.params["target"] == side.model
    assert context.params["engine"] == "ort:disable=GeluFusion+LayerNormFusion"


def test_a_stored_result_in_a_folder_with_an_at_sign_is_no_engine(side: OpenSide, tmp_path: Path) -> None:
    stored = tmp_path / "runs@1"
    stored.write_text("{}")
    located = LocatedSide(text="x", state="leaves", fault=FAULT)
    assert located.fault is not None
    named = locating.add_commands(located.fault, replace(side, text=str(stored)))
    assert "runs@1" not in named.ways[0].command
    words = shlex.split(named.ways[0].command)
    assert Path(words[2]).resolve() == Path(side.artifact.path).resolve() and words[-1] == "ort"


def test_what_cannot_be_searched_says_why(side: OpenSide, tmp_path: Path) -> None:
    module = replace(side, artifact=replace(side.artifact, kind="torch"), engine=EngineSpec(backend="pytorch"))
    (only,) = locate([module], tmp_path).sides
    assert only.state == "unknown" and "operation by operation" in only.why


def test_a_plan_is_built_anew_from_the_graph_of_the_other_side(side: OpenSide) -> None:
    plan = replace(side, artifact=replace(side.artifact, kind="plan"), engine=EngineSpec(backend="tensorrt"))
    assert locating.lend_graph(plan, [side, plan]).artifact is side.artifact
    shorter = replace(plan, engine=replace(plan.engine, precision="fp16"))
    assert locating.lend_graph(shorter, [side, shorter]) is shorter  # another graph would be another model


def test_the_text_names_the_node_what_hides_it_and_no_side_without_a_search() -> None:
    (notes,) = write_notes(explain_fault(replace(FAULT, node="n" * 10_000)))
    assert max(len(text) for _, text in notes.lines) < 400
    text = " ".join(explain_fault(FAULT))
    assert "The first node is scaled (Mul)" in text and "SNR 12.3 dB" in text
    assert "It disappears when squares is an output: a fusion of these nodes." in text
    equal = " ".join(explain_fault(replace(FAULT, tamed=2, largest=0.0, snr_db=313.1)))
    assert "leaves the reference (2 values that are not finite in the reference are others)." in equal

    class Document:
        located = None

    assert list_located(Document()) == []  # type: ignore[arg-type]


def test_the_entry_that_is_searched_is_the_one_that_differs_most_also_of_integers(side: OpenSide) -> None:
    """Beside an output of floats that agrees, one of decisions differs in the third entry alone."""
    entries = [{"x": np.full((1, 8, 8), i, np.float32)} for i in range(5)]
    spec = replace(side.artifact.inputs[0], shape=("batch", 8, 8))
    artifact = replace(side.artifact, inputs=(spec,))
    scores = np.linspace(0, 1, 20, dtype=np.float32).reshape(5, 4)
    first = {"score": scores, "place": np.zeros((5, 6), np.int64)}
    second = {"score": scores + np.float32(1e-6), "place": np.repeat([[0], [0], [7], [0], [0]], 6, 1)}
    alone, _ = list_calls([(entries, (first, second))], artifact, 4)
    assert alone["x"].shape[0] == 1 and alone["x"].max() == 2


def test_what_a_run_stored_as_the_engines_own_files_is_searched_in_the_graph_of_the_run(tmp_path: Path) -> None:
    """The command that `run` prints for a configuration of OpenVINO said that no graph can be cut."""
    (tmp_path / "artefacts").mkdir()
    graph = write_graph(tmp_path / "artefacts" / "model.onnx", UNKEPT_NORM, opset=13)
    built = tmp_path / "artefacts" / "model.xml"
    built.write_text("<net/>")
    chain = []
    for kind, file in (("onnx", Path(graph.path)), ("openvino", built)):
        recorded = FileHash(path=file.name, sha256=hash_file(file), size_bytes=1)
        chain.append(replace(graph, kind=kind, path=f"artefacts/{file.name}", files=(recorded,)))
    result = replace(make_result("openvino"), artifacts=tuple(chain))
    RunFolder(tmp_path).write_result(result)
    row = tmp_path / "rows" / f"{result.id}.json"
    request = SideRequest(source=ModelSource(model="m"))
    opened = open_side(parse_side(str(row)), request, tmp_path, Silent())
    assert Path(opened.artifact.path) == built
    assert locating.lend_graph(opened, [opened]).artifact.path == graph.path
    Path(graph.path).write_bytes(b"another")
    changed = open_side(parse_side(str(row)), request, tmp_path, Silent())
    assert locating.lend_graph(changed, [changed]) == changed, "what was changed since is not opened"
