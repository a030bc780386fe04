"""Configurations without their samples, as a ranking holds them, so that it reads one after the other."""

from array import array

from msgspec.structs import asdict, replace

from enginebench.core.records import Result
from enginebench.core.shapes import count_entries
from enginebench.stats.compare import find_level
from enginebench.stats.summary import Summary, summarize
from enginebench.stats.traffic import draw_requests
from enginebench.stats.trials import condense_trial

# Percentiles that every summary has; others are asked for.
_USUAL = (50.0, 90.0, 95.0, 99.0)


class CondensedResult(Result, frozen=True, kw_only=True):
    """A configuration with condensed trials, and the summary of their samples."""

    summary: Summary | None  # None: it had none


def condense_result(result: Result) -> CondensedResult:
    """Replace the samples of a configuration by what is derived from them."""
    if isinstance(result, CondensedResult):
        return result
    # Arrays, once: a dozen figures are taken of the samples, and each would convert their list anew.
    arrays = [replace(m, latency_ns=array("d", m.latency_ns)) for m in result.measurements]
    summary = summarize_result(replace(result, measurements=tuple(arrays)))
    return CondensedResult(**{**asdict(result), "measurements": tuple(map(condense_trial, arrays))}, summary=summary)


def summarize_result(result: Result) -> Summary | None:
    """Summarize a configuration, with the percentiles that were requested; None without samples."""
    measured = [m for m in result.measurements if m.latency_ns]
    further = [p for p in result.measure.percentiles if p not in _USUAL and 0 < p < 100]
    if not measured:
        return None
    weights = [cell.weight for cell in result.engine.traffic]
    requests = [draw_requests(m, weights) for m in measured] if weights and all(m.cells_ns for m in measured) else []
    return summarize(
        measured,
        batch=count_entries(result.engine),
        percentiles=further,
        level=find_level(result),
        requests_ns=requests,
    )
