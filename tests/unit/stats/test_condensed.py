"""Condensed trials stand for whole ones: rankings say the same of both."""

import numpy as np
import pytest

from enginebench.core.records import Block, EngineSpec, Measurement, MeasureSpec, Result
from enginebench.stats.assessment import compare_configurations
from enginebench.stats.condensed import condense_result
from enginebench.stats.summary import share_marked
from enginebench.stats.trials import condense_trial, count_timed, take_figures
from enginebench.stats.validity import assess_samples, measure_trials


def make_trial(rng: np.random.Generator, number: int, *, busy: float, falls: bool = False) -> Measurement:
    """A trial of 400 calls, the first fraction of which others disturbed."""
    values = 1e6 * np.exp(0.05 * rng.normal(size=400))
    values[: int(400 * busy)] *= 3
    if falls:
        values[:200] *= 2
    stop = int(400 * busy)
    marked = (Block(start=0, stop=stop, duration_ns=1, marks=("foreign_cpu",), foreign_cpu_cores=1.0),) if stop else ()
    return Measurement(
        clock="host",
        latency_ns=[int(v) for v in values],
        blocks=(*marked, Block(start=stop, stop=400, duration_ns=1)),
        stop_rule="settled",
        trial=number,
        device_ns=[int(v * 0.9) for v in values],
        enqueue_ns=[int(v * 0.1) for v in values],
        reference_ns=[1000, 1010],
    )


def make_row(name: str, seed: int, busy: float, *, falls: bool = False) -> Result:
    rng = np.random.default_rng(seed)
    trials = tuple(make_trial(rng, i, busy=busy, falls=falls) for i in range(7))
    engine, measure = EngineSpec(backend=name), MeasureSpec(percentiles=(50.0, 97.5))
    fields = {"model": "m", "requested_precision": "fp32", "status": "ok", "measurements": trials}
    return Result(id=name, engine=engine, measure=measure, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("busy", [0.0, 0.25, 0.75, 0.95, 1.0])
@pytest.mark.parametrize("falls", [False, True])
def test_whole_and_condensed_trials_are_judged_alike(busy: float, falls: bool) -> None:
    base, cand = make_row("base", 1, 0.0), make_row("cand", 2, busy, falls=falls)
    short = [condense_result(row) for row in (base, cand)]
    for whole, condensed in zip((base, cand), short, strict=True):
        assert assess_samples(whole.measurements) == assess_samples(condensed.measurements)
        assert measure_trials(whole.measurements) == measure_trials(condensed.measurements)
        assert share_marked(whole.measurements) == share_marked(condensed.measurements)
    assert compare_configurations(base, cand) == compare_configurations(*short)


def test_a_condensed_configuration_holds_no_samples_and_what_was_derived_from_them() -> None:
    row = condense_result(make_row("base", 1, 0.25))
    assert [len(m.latency_ns) for m in row.measurements] == [1] * 7
    assert sum(map(count_timed, row.measurements)) == 2800
    assert row.summary is not None
    assert row.summary.n == 2800
    assert "97.5" in row.summary.percentiles
    assert condense_result(row) is row


def test_figures_of_trials_without_a_half_or_without_samples() -> None:
    trial = Measurement(clock="host", latency_ns=[5], blocks=(), stop_rule="settled")
    assert take_figures(trial).halves_ns is None
    assert set(take_figures(trial).ladder_ns) == {5.0}
    empty = Measurement(clock="host", latency_ns=[], blocks=(), stop_rule="settled")
    assert condense_trial(empty) is empty
