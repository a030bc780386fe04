"""The times of a mix of requests: its cells, and the requests as they come."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from enginebench.core.records import Estimate, Measurement, Result, TrafficCell
from enginebench.core.shapes import find_padding, name_cells, pad_cells
from enginebench.stats.quantiles import Floats, median
from enginebench.stats.summary import estimate_p50

# Of the draw of requests; the same samples give the same figures.
SEED = 0


class CellTimes(Struct, frozen=True, kw_only=True):
    """The times of the calls of one cell of a mix, in ms."""

    name: str
    weight: float
    p50_ms: Estimate
    padded: str = ""  # the shape that it is padded to; "": to none


def draw_requests(measurement: Measurement, weights: Sequence[float]) -> Floats:
    """Return times of requests as they come, round by round, so many of each cell as its weight demands.

    A round has calls of each cell nearly, not exactly, in proportion: of a cell with too many some are left out.
    """
    rounds = len(measurement.latency_ns)
    cells = [np.asarray(own, dtype=np.float64).reshape(rounds, -1) for own in measurement.cells_ns]
    excess = [own.shape[1] / weight for own, weight in zip(cells, weights, strict=True)]
    rng = np.random.default_rng(SEED)
    kept = [rng.random(own.shape) * one < min(excess) for own, one in zip(cells, excess, strict=True)]
    calls, taken = np.concatenate(cells, axis=1), np.concatenate(kept, axis=1)
    requests: Floats = calls[taken]
    return requests


def list_cell_times(result: Result) -> tuple[CellTimes, ...]:
    """Return the times of each cell of a mix over the trials; () of a configuration that serves one shape."""
    measured = [m for m in result.measurements if m.cells_ns]
    if not measured:
        return ()
    cells, names = result.engine.traffic, name_padded(result)
    return tuple(
        CellTimes(name=name, weight=cell.weight, p50_ms=_estimate_cell(measured, i), padded=names[i])
        for i, (name, cell) in enumerate(zip(name_cells(cells), cells, strict=True))
    )


def name_padded(result: Result) -> list[str]:
    """Name the shape that each cell of a mix is padded to; "" where nothing is padded."""
    cells = result.engine.traffic
    inputs = result.artifacts[-1].inputs if result.artifacts else ()
    if not find_padding(result.engine, inputs):
        return [""] * len(cells)
    padded = [
        TrafficCell(weight=own.weight, batch=cell.batch, shapes=cell.shapes)
        for own, cell in zip(cells, pad_cells(result.engine, inputs), strict=True)
    ]
    return name_cells(padded)


def _estimate_cell(measurements: Sequence[Measurement], cell: int) -> Estimate:
    return estimate_p50([keep_cell(m, cell) for m in measurements])


def keep_cell(measurement: Measurement, cell: int) -> Measurement:
    """Return a trial with the calls of one cell of its mix alone."""
    return Measurement(
        clock=measurement.clock,
        latency_ns=[round(median(measurement.cells_ns[cell]))],
        blocks=(),
        stop_rule=measurement.stop_rule,
        trial=measurement.trial,
        build=measurement.build,
    )
