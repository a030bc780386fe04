"""How much longer calls take beside another engine, from trials whose answer was put in."""

import numpy as np
import pytest
from msgspec.structs import replace

from enginebench.core.records import EngineSpec, Measurement, MeasureSpec, Placing, Result, TrafficCell
from enginebench.stats.life import list_interference


def make_result(backend: str, placing: Placing | None, *, slices: float, trials: int = 8) -> Result:
    """Calls of 1 ms, of which one in a hundred waits: the mean is `slices` times as long, the median the same."""
    rng = np.random.default_rng(0)
    measured = []
    for trial in range(trials):
        calls = rng.normal(1e6, 1e4, 400)
        calls[::100] += (slices - 1) * 1e8
        measured.append(
            Measurement(
                clock="host",
                latency_ns=np.rint(calls).astype(int).tolist(),
                blocks=(),
                stop_rule="time_limit",
                trial=trial,
            )
        )
    return Result(
        id=f"{backend}-{placing}",
        model=f"{backend}.onnx",
        engine=EngineSpec(backend=backend),
        measure=MeasureSpec(),
        requested_precision="fp32",
        status="ok",
        beside=placing,
        measurements=tuple(measured),
    )


def test_a_call_that_waits_for_its_turn_counts_though_the_median_stays() -> None:
    results = [
        make_result("openvino", None, slices=1.0),
        make_result("openvino", "process", slices=2.0),
        make_result("openvino", "thread", slices=3.0),
        make_result("ort", None, slices=1.0),
        make_result("ort", "process", slices=1.0),
        make_result("ort", "thread", slices=1.5),
    ]
    first, second = list_interference(results)
    assert (first.name, first.model, second.name) == ("openvino fp32", "openvino.onnx", "ort fp32")
    assert first.alone_ms is not None and first.alone_ms.value == pytest.approx(1.0, rel=0.01)
    for ratio, truth in ((first.process, 2), (first.thread, 3), (second.process, 1), (second.thread, 1.5)):
        assert ratio is not None and ratio.value == pytest.approx(truth, rel=0.01)
        assert ratio.low is not None and ratio.low < truth * 1.01 and ratio.n == 8


def test_a_side_without_times_has_neither_figure_nor_ratio() -> None:
    (side,) = list_interference(
        [make_result("ort", None, slices=1.0, trials=0), make_result("ort", "process", slices=2.0)]
    )
    assert side.alone_ms is None and side.process is None and side.reasons


def test_a_side_says_of_what_size_its_calls_are() -> None:
    mix = (TrafficCell(weight=0.75, batch=1), TrafficCell(weight=0.25, batch=8))
    engines = [
        EngineSpec(backend="ort", batch=4),
        EngineSpec(backend="ort", shapes={"ids": (1, 16)}),
        EngineSpec(backend="ort", traffic=mix),
    ]
    sides = [replace(make_result("ort", None, slices=1.0, trials=1), engine=engine) for engine in engines]
    assert [side.size for side in list_interference(sides)] == [
        "batch 4",
        "batch 1, ids:1x16",
        "batch=1:0.75,batch=8:0.25",
    ]
