"""A run beside stored ceilings: its rows get bounds, and whoever beats one is doubted."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from enginebench.core.ceilings import UNITS, Ceiling, CeilingKind, Ceilings
from enginebench.core.errors import ModelError
from enginebench.core.records import Artifact, EngineSpec, LayerTime, MeasureSpec, Precision, Result
from enginebench.features.roofline.limits import bound_model, limit_layers
from enginebench.measure.machine import describe_machine
from enginebench.runs.ceilings import store_ceilings
from enginebench.runs.folder import RunFolder, RunRecord, RunRequest, read_results
from enginebench.runs.main_job import run_model
from enginebench.runs.reporting import describe_stored
from in_process import Children
from reporters import Silent

REQUEST = RunRequest(
    model="digits-mlp", engines=(("fake", {"latency_us": "200"}),), measure=MeasureSpec(warmup=1, iters=5, processes=2)
)


def ceiling(kind: CeilingKind, value: float, precision: Precision | None = None) -> Ceiling:
    return Ceiling(kind=kind, precision=precision, threads=1, value=value, unit=UNITS[kind], low=value, high=value)


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEBENCH_CEILINGS", str(tmp_path / "store"))


def store(rate: float) -> None:
    known = (ceiling("gemm", rate, "fp32"), ceiling("memory", 10.0), ceiling("call", 1.0))
    store_ceilings(Ceilings(machine=describe_machine(), ceilings=known))


@pytest.mark.parametrize(("rate", "beaten"), [(40.0, False), (1e-3, True)])
def test_a_row_gets_its_bound_and_beating_it_is_a_doubt(
    tmp_path: Path, children: Children, rate: float, beaten: bool
) -> None:
    """At 1 MAC a nanosecond the network takes some microseconds; at a millionth of 40, longer than it took."""
    store(rate)
    run_model(REQUEST, tmp_path / "r", reporter=Silent())
    record, results = read_results(tmp_path / "r")
    (row,) = describe_stored(record, results).rows
    assert row.bound_ms is not None and row.of_limit is not None and row.p50_ms is not None
    assert row.of_limit == pytest.approx(row.bound_ms / row.p50_ms.value)
    assert (row.of_limit > 1, "beats_bound" in {c.code for c in row.caveats}) == (beaten, beaten)
    assert (row.validity == "suspect") or not beaten
    assert (tmp_path / "r" / "ceilings.json").is_file(), "what the bounds were made of lies beside the rows"


def test_without_ceilings_of_this_machine_the_run_says_how_to_get_them(tmp_path: Path, children: Children) -> None:
    reporter = Silent()
    run_model(REQUEST, tmp_path / "r", reporter=reporter)
    assert any("no column" in text and "enginebench roofline" in text for text in reporter.said)
    record, results = read_results(tmp_path / "r")
    assert describe_stored(record, results).rows[0].bound_ms is None


def test_a_run_whose_engines_need_no_graph_has_one_counted(tmp_path: Path, children: Children) -> None:
    store(40.0)
    run_model(replace(REQUEST, engines=(("pytorch", {}),)), tmp_path / "r", reporter=Silent())
    record, results = read_results(tmp_path / "r")
    assert [source.kind for source in record.sources] == ["torch"]
    assert describe_stored(record, results).rows[0].bound_ms is not None
    assert not list((tmp_path / "r").rglob("*.onnx")), "the graph was made to be counted, and is no artifact of the run"


def test_a_row_whose_graph_cannot_be_made_says_so(
    tmp_path: Path, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ModelError("its branches depend on its inputs")

    store(40.0)
    monkeypatch.setattr("enginebench.features.roofline.limits.make_sources", fail)
    reporter = Silent()
    run_model(replace(REQUEST, engines=(("pytorch", {}),)), tmp_path / "r", reporter=reporter)
    assert any("none can be exported: its branches depend on its inputs" in text for text in reporter.said)
    record, results = read_results(tmp_path / "r")
    assert describe_stored(record, results).rows[0].bound_ms is None


def test_the_layers_of_a_plan_stay_without_limits_and_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan holds no graph to count; found as a StopIteration."""
    store(40.0)
    plan = Artifact(kind="plan", path="m.plan", sha256="0", files=(), model="m", inputs=(), outputs=())
    monkeypatch.setattr("enginebench.features.roofline.limits.make_sources", lambda *_, **__: (plan,))
    engine, layers = EngineSpec(backend="fake"), [LayerTime(name="conv", mean_ns=1.0)]
    found = limit_layers(replace(REQUEST, model="m.plan"), tmp_path, (engine, plan, {}), layers, Silent())
    assert [layer.name for layer in found.layers] == ["conv"] and "m.plan holds no ONNX graph" in found.notes[0]


def test_one_bound_holds_for_all_settings_of_a_search(tmp_path: Path, children: Children) -> None:
    """The same whichever row is asked, in the best of the precisions; without peaks the reason."""
    record, (row,) = measured(tmp_path / "r")
    folder = RunFolder(tmp_path / "r")
    assert bound_model(folder, record, row, 9.0, Silent())[0] is None
    assert "enginebench roofline" in bound_model(folder, record, row, 9.0, Silent())[1]
    store(40.0)
    bound, why = bound_model(folder, record, row, 9.0, Silent())
    fused = replace(row, layers=(LayerTime(name="all", mean_ns=1.0),), engine=replace(row.engine, precision="int8"))
    assert bound is not None and why == "" and bound_model(folder, record, fused, 9.0, Silent())[0] == bound


def measured(root: Path) -> tuple[RunRecord, list[Result]]:
    run_model(REQUEST, root, reporter=Silent())
    return read_results(root)
