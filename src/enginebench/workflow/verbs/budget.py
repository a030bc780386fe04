"""The verb `budget`: its terms given by hand, as bytes over a link, or taken from stored results."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from enginebench.core.errors import ParseError, UsageError
from enginebench.core.records import Result
from enginebench.core.store import is_result, read_result
from enginebench.fpga.budget import Budget, BudgetSpec, Transfer, compute_budget
from enginebench.fpga.links import parse_link

# Each stage of `stages`, and the term of the budget that it belongs to.
STAGE_TERMS = {
    "decode": "pre",
    "resize": "pre",
    "preprocess": "pre",
    "normalise": "pre",
    "copy_in": "copy_in",
    "compute": "compute",
    "copy_out": "copy_back",
    "copy_back": "copy_back",
    "postprocess": "post",
    "top_k": "post",
}
LARGEST_DOCUMENT_BYTES = 1 << 30  # a stored row of ten million samples has about 100 MB


class BudgetTerms(Struct, frozen=True, kw_only=True):
    """The terms of a call as they are given: by hand, as bytes over a link, or by stored results."""

    t_pre_ms: float | None = None
    t_copy_in_ms: float | None = None
    t_compute_ms: float | None = None
    t_copy_back_ms: float | None = None
    t_post_ms: float | None = None
    t_call_ms: float = 0.0
    bytes_in: int | None = None
    bytes_out: int | None = None
    frame_bytes_in: int = 0
    frame_bytes_out: int = 0
    link: str | None = None
    batch: int = 1
    source: Path | None = None
    baseline_ms: float | None = None
    baseline_from: Path | None = None


def work_out_budget(terms: BudgetTerms) -> Budget:
    """What a call costs, what bounds it, and what it gains over the baseline.

    Raises:
        UsageError: not one term is given, or one of them twice.
        ParseError: a stored result cannot be read.
    """
    if terms.baseline_ms is not None and terms.baseline_from is not None:
        raise UsageError("--baseline-ms and --baseline-from both set the baseline; keep one")
    given = {
        "pre": terms.t_pre_ms,
        "copy_in": terms.t_copy_in_ms,
        "compute": terms.t_compute_ms,
        "copy_back": terms.t_copy_back_ms,
        "post": terms.t_post_ms,
    }
    sizes = {
        "copy_in": (terms.bytes_in, terms.frame_bytes_in),
        "copy_back": (terms.bytes_out, terms.frame_bytes_out),
    }
    spec = make_spec(
        given,
        make_transfers(sizes, terms.link, given),
        stored=read_terms(terms.source) if terms.source else {},
        call_ms=terms.t_call_ms,
        batch=terms.batch,
        baseline_ms=math.fsum(read_terms(terms.baseline_from).values()) if terms.baseline_from else terms.baseline_ms,
    )
    return compute_budget(spec)


def make_transfers(
    sizes: dict[str, tuple[int | None, int]], link: str | None, given: dict[str, float | None]
) -> dict[str, Transfer]:
    """The copies given in bytes.

    Raises:
        UsageError: bytes without a link, a link without bytes, or a copy given twice.
    """
    asked = {name: size for name, size in sizes.items() if size[0] is not None or size[1]}
    if asked and link is None:
        raise UsageError("bytes are given, but no link to carry them; add --link, for example --link uart:115200")
    if link is None:
        return {}
    carrier = parse_link(link)
    if not asked:
        raise UsageError(f"--link {link} carries nothing; add --bytes-in or --bytes-out")
    for name in asked:
        if given[name] is not None:
            raise UsageError(f"{name} is given as a time and as bytes over a link; keep one")
    return {
        name: Transfer(link=carrier, item_bytes=item or 0, frame_bytes=frame) for name, (item, frame) in asked.items()
    }


def make_spec(
    given: dict[str, float | None],
    transfers: dict[str, Transfer],
    *,
    stored: dict[str, float],
    call_ms: float,
    batch: int,
    baseline_ms: float | None,
) -> BudgetSpec:
    """The spec. A term comes from the first of: a time by hand, bytes over a link, a stored result, zero.

    Raises:
        UsageError: no term is given.
    """
    times = {name: stored.get(name, 0.0) if time is None else time for name, time in given.items()}
    if not transfers and not stored and not call_ms and all(time is None for time in given.values()):
        raise UsageError("no term is given; start with --t-compute-ms, --bytes-in with --link, or --from result.json")
    return BudgetSpec(
        pre_ms=times["pre"],
        copy_in=transfers.get("copy_in", times["copy_in"]),
        compute_ms=times["compute"],
        copy_back=transfers.get("copy_back", times["copy_back"]),
        post_ms=times["post"],
        call_ms=call_ms,
        batch=batch,
        baseline_ms=baseline_ms,
    )


def read_terms(path: Path) -> dict[str, float]:
    """{term of the budget: milliseconds per item} of a stored result. All of a row of scope `io` counts as compute.

    Raises:
        ParseError: the file is missing, damaged, of another kind, or has no measured time.
    """
    document = _read_document(path)
    schema = str(document.get("schema"))
    if is_result(schema):
        return {"compute": _read_row(path, read_result(path))}
    if schema.startswith("enginebench.bench/"):
        row = document.get("row", document)
        return {"compute": _read_estimate(path, "$.p50_ms", row.get("p50_ms")) / _read_batch(path, row)}
    if schema.startswith("enginebench.stages/"):
        return _read_stages(path, document)
    raise ParseError(path, "$.schema", repr(schema), "a stored row, or a document of `bench` or `stages`")


def _read_document(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LARGEST_DOCUMENT_BYTES:
            raise ParseError(path, "", f"{path.stat().st_size} bytes", f"at most {LARGEST_DOCUMENT_BYTES}")
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ParseError(path, "", f"{type(error).__name__}: {error}", "a JSON document of enginebench") from error
    if not isinstance(document, dict):
        raise ParseError(path, "$", type(document).__name__, "a JSON object with a field `schema`")
    return document


def _read_row(path: Path, result: Result) -> float:
    """The median of the processes' medians, as in every table."""
    from enginebench.analyze.quantiles import median

    medians = [median(m.latency_ns) for m in result.measurements if m.latency_ns]
    if not medians:
        raise ParseError(
            path, "$.measurements", "no samples", "at least one timed call", f"Its status: {result.status}"
        )
    return median(medians) / 1e6 / result.engine.batch


def _read_stages(path: Path, document: Mapping[str, Any]) -> dict[str, float]:
    terms: dict[str, float] = {}
    batch = _read_batch(path, document)
    stages = document.get("stages")
    for i, stage in enumerate(stages if isinstance(stages, list) else []):
        name = str(stage.get("name")) if isinstance(stage, dict) else ""
        if name not in STAGE_TERMS:
            raise ParseError(path, f"$.stages[{i}].name", repr(name), f"one of {', '.join(STAGE_TERMS)}")
        term = STAGE_TERMS[name]
        terms[term] = terms.get(term, 0.0) + _read_estimate(path, f"$.stages[{i}].p50_ms", stage.get("p50_ms")) / batch
    if not terms:
        raise ParseError(path, "$.stages", repr(stages)[:60], "a list of stages")
    return terms


def _read_estimate(path: Path, where: str, found: object) -> float:
    value = found.get("value") if isinstance(found, dict) else found
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ParseError(path, where, repr(found)[:60], "a time in milliseconds", "Was the row measured?")
    return float(value)


def _read_batch(path: Path, row: Mapping[str, Any]) -> int:
    batch = row.get("batch", 1)
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise ParseError(path, "$.batch", repr(batch)[:60], "a positive whole number")
    return batch
