"""What MLPerf LoadGen writes: its detail log, JSON on every line behind a tag."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from enginebench.core.errors import ParseError
from enginebench.core.records import Caveat, Validity
from enginebench.core.store import DECODE_ERRORS

# Source: LoadGen 6.0.17, logging.cc (the tag) and results.cc (the keys).
TAG = b":::MLLOG "
DETAIL, SUMMARY = "mlperf_log_detail.txt", "mlperf_log_summary.txt"
Scenario = Literal["single", "multi", "server", "offline"]


class LoadgenPoint(Struct, frozen=True, kw_only=True):
    """What LoadGen says of an engine in its own log; times in ms."""

    row: str
    scenario: Scenario
    valid: bool
    qps: float | None  # its target
    achieved_per_s: float | None
    p50_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    mean_ms: float | None = None
    queries: int | None = None
    late: int | None = None  # queries beyond the limit; of the scenario `server`
    early_stopping: str | None = None
    reasons: tuple[str, ...] = ()  # why the result is not valid
    files: tuple[str, ...] = ()
    version: str | None = None
    validity: Validity = "valid"  # by what others did to the machine meanwhile
    caveats: tuple[Caveat, ...] = ()


def read_detail(path: Path) -> dict[str, Any]:
    """Every key of a detail log with its last value.

    Raises:
        ParseError: the file cannot be read, or a line is no entry of such a log.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ParseError(path, "", str(error.strerror), "LoadGen's detail log") from error
    found: dict[str, Any] = {}
    for number, line in enumerate(lines, 1):
        if not line.startswith(TAG):
            continue
        try:
            entry = msgspec.json.decode(line.removeprefix(TAG), type=dict[str, Any])
            found[str(entry["key"])] = entry["value"]
        except (*DECODE_ERRORS, KeyError) as error:
            raise ParseError(path, f"line {number}", str(error), "an entry with key and value") from error
    if "result_validity" not in found:
        raise ParseError(path, "", f"{len(found)} entries and no result", "a log that LoadGen ended with its result")
    return found


def describe_loadgen(
    detail: Mapping[str, Any], *, row: str, scenario: Scenario, files: tuple[str, ...]
) -> LoadgenPoint:
    """The result in a detail log."""

    def find_ms(key: str) -> float | None:
        """Of queries of several samples the whole query counts."""
        query = key.replace("percentile_latency", "percentile_per_query_latency").replace("mean_", "mean_query_")
        value = detail.get(query, detail.get(key))
        return None if value is None else value / 1e6

    return LoadgenPoint(
        row=row,
        scenario=scenario,
        valid=detail["result_validity"] == "VALID",
        qps=detail.get("effective_target_qps") if scenario == "server" else None,
        achieved_per_s=_find_rate(detail),
        p50_ms=find_ms("result_50.00_percentile_latency_ns"),
        p90_ms=find_ms("result_90.00_percentile_latency_ns"),
        p99_ms=find_ms("result_99.00_percentile_latency_ns"),
        mean_ms=find_ms("result_mean_latency_ns"),
        queries=detail.get("result_query_count"),
        late=detail.get("result_overlatency_query_count"),
        early_stopping=_clean(detail.get("early_stopping_result")),
        reasons=tuple(_list_reasons(detail)),
        files=files,
        version=detail.get("loadgen_version"),
    )


def _find_rate(detail: Mapping[str, Any]) -> float | None:
    """Samples a second; of queries that follow one another LoadGen gives queries, with or without its own overhead."""
    for key in (
        "result_completed_samples_per_sec",
        "result_samples_per_second",
        "result_qps_without_loadgen_overhead",
        "result_qps_with_loadgen_overhead",
    ):
        if detail.get(key):
            return float(detail[key]) * (detail.get("effective_samples_per_query", 1) if "qps" in key else 1)
    return None


def _list_reasons(detail: Mapping[str, Any]) -> list[str]:
    unmet = {
        "result_perf_constraints_met": "the limit does not hold",
        "result_min_duration_met": "it did not last long enough",
        "result_min_queries_met": "there were too few queries",
        "early_stopping_met": "early stopping is not satisfied",
    }
    return [text for key, text in unmet.items() if detail.get(key) is False]


def _clean(text: str | None) -> str | None:
    return None if text is None else " ".join(text.replace("*", " ").split())
