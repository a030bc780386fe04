"""The figures of a mix of requests, on samples whose answer is known."""

import numpy as np
import pytest
from msgspec.structs import replace

from enginebench.core.records import EngineSpec, Measurement, MeasureSpec, Result, TrafficCell
from enginebench.stats.compare import comparable
from enginebench.stats.condensed import condense_result, summarize_result
from enginebench.stats.traffic import draw_requests, list_cell_times

CELLS = (TrafficCell(weight=0.75, batch=1), TrafficCell(weight=0.25, batch=8))


def make_trial(trial: int, cells_ns: list[list[int]]) -> Measurement:
    means = [round(sum(c.weight * ns for c, ns in zip(CELLS, one, strict=True))) for one in zip(*cells_ns, strict=True)]
    return Measurement(
        clock="host", latency_ns=means, cells_ns=cells_ns, blocks=(), stop_rule="iterations", trial=trial
    )


def make_result(trials: int = 6, n: int = 4000) -> Result:
    """One-sided noise, as times have: exponential, beside 1 and 8 ms."""
    rng = np.random.default_rng(1)
    noise = [rng.exponential(scale, (trials, n)) for scale in (1e5, 4e5)]
    measured = [
        make_trial(
            trial,
            [np.rint(base + own[trial]).astype(int).tolist() for base, own in zip((1e6, 8e6), noise, strict=True)],
        )
        for trial in range(trials)
    ]
    engine = EngineSpec(backend="ort", traffic=CELLS)
    return Result(
        id="a",
        model="m",
        engine=engine,
        measure=MeasureSpec(),
        requested_precision="fp32",
        status="ok",
        measurements=tuple(measured),
    )


def test_requests_are_drawn_by_the_weights_of_their_cells() -> None:
    requests = draw_requests(make_trial(0, [[1] * 10_000, [8] * 10_000]), [0.75, 0.25])
    assert 13_000 < len(requests) < 13_700 and set(requests) == {1.0, 8.0}
    assert float(np.mean(requests == 8)) == pytest.approx(0.25, abs=0.02)


def test_where_a_round_has_the_weights_every_call_is_a_request_in_its_order() -> None:
    trial = make_trial(0, [[1, 2], [8, 9]])
    trial = replace(trial, cells_ns=[[1, 1, 1, 2, 2, 2], [8, 9]])
    assert draw_requests(trial, [0.75, 0.25]).tolist() == [1, 1, 1, 8, 2, 2, 2, 9]


def test_the_percentiles_of_a_mix_are_those_of_its_requests_not_of_its_rounds() -> None:
    result = make_result()
    summary = summarize_result(result)
    assert summary is not None
    assert summary.p50.value == pytest.approx(0.75 * 1.07 + 0.25 * 8.28, rel=0.02)
    # p90 is the 60 % quantile of the large requests: a quarter of all, of which those beyond p90 are 0.4.
    assert summary.p90.value == pytest.approx(8 - 0.4 * np.log(0.4), rel=0.01)
    assert summary.p99.value == pytest.approx(8 - 0.4 * np.log(0.04), rel=0.02)
    assert summary.throughput_per_s == pytest.approx(1000 * (0.75 + 8 * 0.25) / summary.mean.value)


def test_each_cell_has_times_of_its_own_also_once_its_samples_are_condensed() -> None:
    result = make_result()
    for kept in (result, condense_result(result)):
        first, second = list_cell_times(kept)
        assert (first.name, first.weight, second.name) == ("batch=1", 0.75, "batch=8")
        assert first.p50_ms.value == pytest.approx(1.0693, rel=0.005)
        assert second.p50_ms.value == pytest.approx(8.277, rel=0.005)
        assert second.p50_ms.low is not None and second.p50_ms.low < second.p50_ms.value


def test_a_mix_is_not_compared_with_one_of_its_shapes() -> None:
    mixed = make_result(n=40)
    single = replace(mixed, engine=replace(mixed.engine, traffic=()))
    assert comparable(mixed, mixed, neighbours=True) == []
    (reason,) = comparable(mixed, single, neighbours=True)
    assert "traffic" in reason and "one shape" in reason and "batch=8:0.25" in reason


def test_mixes_that_differ_in_an_axis_that_each_has_throughout_are_not_compared() -> None:
    def serve(width: int) -> Result:
        cells = [TrafficCell(weight=0.5, shapes={"ids": (1, length), "image": (1, width)}) for length in (8, 16)]
        return replace(make_result(), engine=EngineSpec(backend="ort", traffic=tuple(cells)))

    assert comparable(serve(4), serve(4), neighbours=True) == []
    (reason,) = comparable(serve(4), serve(5), neighbours=True)
    assert "image:1x4" in reason and "image:1x5" in reason
