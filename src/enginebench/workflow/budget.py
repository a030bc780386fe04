"""Terms of a latency budget from stored results: a row, the document of `bench`, the document of `stages`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enginebench.core.errors import ParseError
from enginebench.core.records import RESULT_SCHEMA, Result
from enginebench.core.store import read_result

# Names of the stages of `stages`, each with the term of the budget that it belongs to.
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


def read_terms(path: Path) -> dict[str, float]:
    """{term of the budget: milliseconds an item} of a stored result. A row of scope `io` counts as compute whole.

    Raises:
        ParseError: the file is missing, damaged, of another kind, or holds no measured time.
    """
    document = _read_document(path)
    schema = str(document.get("schema"))
    if schema == RESULT_SCHEMA:
        return {"compute": _read_row(path, read_result(path))}
    if schema.startswith("enginebench.bench/"):
        row = document.get("row", document)
        return {"compute": _read_estimate(path, "$.p50_ms", row.get("p50_ms")) / _read_batch(path, row)}
    if schema.startswith("enginebench.stages/"):
        return _read_stages(path, document)
    raise ParseError(path, "$.schema", repr(schema), "a stored row, or a document of `bench` or `stages`")


def read_total(path: Path) -> float:
    """Milliseconds an item of a stored result, all its terms together: a baseline."""
    return math.fsum(read_terms(path).values())


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
    """The median of the processes' medians, which every table shows."""
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
