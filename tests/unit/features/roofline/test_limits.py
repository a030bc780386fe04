"""A run beside stored peaks: its rows get bounds, and whoever beats one is doubted."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from enginebench.core.errors import ModelError
from enginebench.core.peaks import UNITS, Peak, PeakKind, Peaks
from enginebench.core.records import Artifact, Bound, EngineSpec, LayerTime, MeasureSpec, Precision, Result
from enginebench.core.store import write_atomic
from enginebench.features.roofline.jobs import GraphWork, NodeWork, TensorWork
from enginebench.features.roofline.joining import join_layers
from enginebench.features.roofline.limits import (
    Limits,
    bound_layers,
    bound_model,
    bound_nodes,
    choose_limits,
    count_bytes,
    find_least_ms,
    limit_layers,
)
from enginebench.features.roofline.stored_peaks import find_peak_store, name_file, store_peaks
from enginebench.measure.machine import describe_machine
from enginebench.runs.folder import RunFolder, RunRecord, RunRequest, read_results
from enginebench.runs.main_job import run_model
from enginebench.runs.reporting import describe_stored
from enginebench.stats.engine_profile import list_layer_warnings
from enginebench.stats.profile import list_bound_warnings, share_of_limit
from in_process import Children
from reporters import Silent


def tensor(values: int) -> TensorWork:
    return TensorWork(values=values, bytes_each=4)


# x -> conv(w) -> relu -> gemm(v) -> y
GRAPH = GraphWork(
    nodes=(
        NodeWork(name="conv", op="Conv", inputs=("x", "w"), outputs=("a",), macs=8_000_000, unit="conv"),
        NodeWork(name="relu", op="Relu", inputs=("a",), outputs=("b",)),
        NodeWork(name="view", op="Reshape", inputs=("b",), outputs=("c",), moves=True),
        NodeWork(name="gemm", op="Gemm", inputs=("c", "v"), outputs=("y",), macs=1_000, unit="gemm"),
    ),
    tensors={
        "x": tensor(1000),
        "w": tensor(500),
        "a": tensor(2000),
        "b": tensor(2000),
        "c": tensor(2000),
        "v": tensor(100_000),
        "y": tensor(10),
    },
    outputs=("y",),
)
LIMITS = Limits(
    rates={"conv": {"fp32": 80.0, "int8": 160.0}, "gemm": {"fp32": 40.0, "int8": 100.0}},
    levels=((32_000, 100.0), (None, 10.0)),
    call_ms=0.001,
)


def peak(
    kind: PeakKind, value: float, precision: Precision | None = None, threads: int | None = 1, **more: object
) -> Peak:
    ends = {"value": value, "low": value, "high": value}
    return Peak(**{"kind": kind, "precision": precision, "threads": threads, "unit": UNITS[kind], **ends, **more})


def layer(name: str, ms: float, **more: object) -> LayerTime:
    return replace(LayerTime(name=name, mean_ns=ms * 1e6, precision="fp32", kind=name), **more)


def test_a_group_is_bound_by_its_products_or_by_its_bytes() -> None:
    conv = bound_nodes(GRAPH, {"conv", "relu"}, LIMITS, "fp32")
    gemm = bound_nodes(GRAPH, {"view", "gemm"}, LIMITS, "fp32")
    assert conv is not None and gemm is not None
    assert bound_nodes(GRAPH, {"view"}, LIMITS, "fp32") is bound_nodes(GRAPH, set(), LIMITS, "fp32") is None
    assert (conv.bound_by, conv.bound_ms) == ("compute", pytest.approx(8e6 / 80e9 * 1e3))
    assert gemm.bound_by == "bandwidth"
    assert gemm.bound_ms == pytest.approx((32_000 / 100 + (408_040 - 32_000) / 10) / 1e6)  # c, v, y


def test_what_stays_inside_a_group_is_not_compulsory() -> None:
    nodes = {node.name: node for node in GRAPH.nodes}
    apart = count_bytes(GRAPH, [nodes["conv"]], "fp32") + count_bytes(GRAPH, [nodes["relu"]], "fp32")
    fused = count_bytes(GRAPH, [nodes["conv"], nodes["relu"]], "fp32")
    assert apart - fused == 4 * 2 * 2000  # a, written and read again
    assert count_bytes(GRAPH, [nodes["conv"], nodes["relu"]], "int8") == fused / 4
    # Of rows those that a stride looks at.
    strided = replace(GRAPH.nodes[0], read_shares={"x": 0.25})
    graph = replace(GRAPH, nodes=(strided, *GRAPH.nodes[1:]))
    assert count_bytes(graph, [strided], "fp32") == count_bytes(GRAPH, [GRAPH.nodes[0]], "fp32") - 0.75 * 4000


def test_a_working_set_that_fits_into_a_cache_is_charged_at_its_rate() -> None:
    assert find_least_ms(32_000, LIMITS) == pytest.approx(32_000 / 100e6)
    assert find_least_ms(42_000, LIMITS) == pytest.approx(32_000 / 100e6 + 10_000 / 10e6)
    disturbed = replace(LIMITS, levels=((32_000, 5.0), (None, 10.0)))  # a cache is never slower than memory
    assert find_least_ms(32_000, disturbed) == pytest.approx(32_000 / 10e6)
    # An unknown precision is held against the fastest.
    assert LIMITS.find_rate("conv", None) == LIMITS.find_rate("conv", "bf16") == 160
    assert LIMITS.find_rate("gemm", "fp32") == 40  # never against convolutions: Winograd is not a product's
    assert LIMITS.find_rate("conv", "fp32") == 80
    assert Limits(rates={"gemm": {"int8": 9.0}}, levels=LIMITS.levels).find_rate("conv", "int8") == 9


def test_peaks_of_fewer_threads_hold_and_of_other_devices_do_not() -> None:
    peaks = [
        peak("gemm", 50, "fp32"),
        peak("gemm", 45, "fp32", 2),
        peak("gemm", 9e9, "fp32", None, device="cuda:0"),
        peak("l1", 100, capacity_bytes=32_000),
        peak("l1", 180, threads=2, capacity_bytes=64_000),
        peak("memory", 10),
        peak("call", 2.0),
        peak("call", 3.0, threads=2),
    ]
    two = choose_limits(peaks, "cpu", 2)
    assert two is not None
    assert two.rates["gemm"]["fp32"] == 50  # noise took the second thread's gain; one thread reached 50
    assert two.levels == ((64_000, 180), (None, 10))
    assert two.call_ms == pytest.approx(0.002) and two.launch_ms == 0
    assert choose_limits(peaks, "cpu", 1) != two
    assert choose_limits(peaks, "cpu", 3) is None
    assert choose_limits(peaks, "cuda:1", 1) is None


def test_absorbed_nodes_never_make_a_bound_larger() -> None:
    """An addition of a large tensor that nobody tells may have been done elsewhere."""
    add = NodeWork(name="add", op="Add", inputs=("y", "huge"), outputs=("z",))
    graph = GraphWork(
        nodes=(*GRAPH.nodes, add), tensors=GRAPH.tensors | {"huge": tensor(10**8), "z": tensor(10**8)}, outputs=("z",)
    )
    layers = [layer("conv", 1), layer("gemm", 1)]
    found = bound_layers(join_layers(layers, graph), graph, LIMITS, "fp32").layers[1]
    alone = bound_nodes(graph, {"gemm"}, LIMITS, "fp32")
    assert "add" in found.onnx_nodes
    assert alone is not None and found.bound == alone


def test_what_beats_its_bound_is_warned_about() -> None:
    bound = Bound(bound_ms=2.0, bound_by="compute")
    assert share_of_limit(bound, 4.0) == 0.5
    assert share_of_limit(None, 4.0) is share_of_limit(bound, 0.0) is share_of_limit(bound, None) is None
    assert list_bound_warnings(bound, 2.1) == list_bound_warnings(None, 1.0) == ()
    (warning,) = list_bound_warnings(bound, 1.6)
    assert warning.code == "beats_bound" and "125%" in warning.message
    times = {"fine": 3.0, "tick": 1.9995, "wrong": 1.0}
    fine, tick, wrong = (layer(name, ms, bound=bound) for name, ms in times.items())
    assert list_layer_warnings([fine, tick], 1e3) == ()
    assert list_layer_warnings([fine, tick, wrong], 3e6) == ()  # of a clock that cannot tell
    (warning,) = list_layer_warnings([fine, tick, wrong], 1e3)
    assert warning.message.startswith("the time of wrong is shorter than") and "200%" in warning.message


REQUEST = RunRequest(
    model="digits-mlp", engines=(("fake", {"latency_us": "200"}),), measure=MeasureSpec(warmup=1, iters=5, processes=2)
)


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEBENCH_CEILINGS", str(tmp_path / "store"))


def store(rate: float) -> None:
    known = (peak("gemm", rate, "fp32"), peak("memory", 10.0), peak("call", 1.0))
    store_peaks(Peaks(machine=describe_machine(), peaks=known))


@pytest.mark.parametrize(("rate", "beaten"), [(40.0, False), (1e-3, True)])
def test_a_configuration_gets_its_bound_and_beating_it_is_a_warning(tmp_path, children, rate, beaten) -> None:
    """At 1 MAC a nanosecond the network takes some microseconds; at a millionth of 40, longer than it took."""
    store(rate)
    run_model(REQUEST, tmp_path / "r", reporter=Silent())
    record, results = read_results(tmp_path / "r")
    (row,) = describe_stored(record, results).rows
    assert row.limit.bound_ms is not None and row.limit.of_limit is not None and row.p50_ms is not None
    assert row.limit.of_limit == pytest.approx(row.limit.bound_ms / row.p50_ms.value)
    assert (row.limit.of_limit > 1, "beats_bound" in {c.code for c in row.warnings}) == (beaten, beaten)
    assert (row.validity == "suspect") or not beaten
    assert (tmp_path / "r" / "ceilings.json").is_file(), "what the bounds were made of lies beside the rows"


@pytest.mark.parametrize("damaged", [True, False])
def test_a_run_says_why_stored_peaks_are_not_used(damaged: bool, tmp_path: Path, children: Children) -> None:
    if damaged:
        write_atomic(find_peak_store() / name_file(describe_machine()), b"{")
    reporter = Silent()
    run_model(REQUEST, tmp_path / "r", reporter=reporter)
    assert any('no "of peak" column: the stored roofline' in text for text in reporter.said) is damaged
    record, results = read_results(tmp_path / "r")
    assert describe_stored(record, results).rows[0].limit.bound_ms is None


def test_a_run_whose_engines_need_no_graph_has_one_counted(tmp_path: Path, children: Children) -> None:
    pytest.importorskip("torch")
    store(40.0)
    run_model(replace(REQUEST, engines=(("pytorch", {}),)), tmp_path / "r", reporter=Silent())
    record, results = read_results(tmp_path / "r")
    assert [source.kind for source in record.sources] == ["torch"]
    assert describe_stored(record, results).rows[0].limit.bound_ms is not None
    assert not list((tmp_path / "r").rglob("*.onnx")), "the graph was made to be counted, and is no artifact of the run"


def test_a_configuration_whose_graph_cannot_be_made_says_so(tmp_path, children, monkeypatch) -> None:
    pytest.importorskip("torch")

    def fail(*_: object, **__: object) -> None:
        raise ModelError("its branches depend on its inputs")

    store(40.0)
    monkeypatch.setattr("enginebench.features.roofline.limits.make_sources", fail)
    reporter = Silent()
    run_model(replace(REQUEST, engines=(("pytorch", {}),)), tmp_path / "r", reporter=reporter)
    assert any("none can be exported: its branches depend on its inputs" in text for text in reporter.said)
    record, results = read_results(tmp_path / "r")
    assert describe_stored(record, results).rows[0].limit.bound_ms is None


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
