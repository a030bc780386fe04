"""`budget`: what an accelerator behind a link can gain; terms by hand, as bytes over a link, or from stored results."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

import click

from enginebench import door
from enginebench.core.errors import ParseError, UsageError
from enginebench.core.records import Result
from enginebench.core.store import is_result, read_result
from enginebench.features.fpga.budget import Budget, BudgetSpec, Transfer, compute_budget
from enginebench.features.fpga.links import parse_link
from enginebench.options import Opt, PathLike, Printed, verb
from enginebench.verbs.given import to_path

if TYPE_CHECKING:
    from enginebench.report.table import Section

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


class BudgetOptions(TypedDict, total=False):
    t_pre_ms: Annotated[float | None, Opt("Time to preprocess one item.", ge=0)]
    t_copy_in_ms: Annotated[float | None, Opt("Time to copy one item in; or give --bytes-in and --link.", ge=0)]
    t_compute_ms: Annotated[float | None, Opt("Time to compute one item.", ge=0)]
    t_copy_back_ms: Annotated[float | None, Opt("Time to copy one output back; or give --bytes-out and --link.", ge=0)]
    t_post_ms: Annotated[float | None, Opt("Time to postprocess one item.", ge=0)]
    t_call_ms: Annotated[float, Opt("Fixed time per call, whatever the batch.", 0.0, ge=0)]
    bytes_in: Annotated[int | None, Opt("Bytes of one item.", ge=0)]
    bytes_out: Annotated[int | None, Opt("Bytes of one output.", ge=0)]
    frame_bytes_in: Annotated[int, Opt("Extra bytes per call: header, checksum.", 0, ge=0)]
    frame_bytes_out: Annotated[int, Opt("Extra bytes per output.", 0, ge=0)]
    link: Annotated[
        str | None, Opt("uart:115200, usb2, usb3, eth100, eth1g, pcie3x4, or BYTES_PER_S+LATENCY_US; +usb[:MS].")
    ]
    batch: Annotated[int, Opt("Items per call.", 1, ge=1)]
    source: Annotated[
        PathLike | None,
        Opt("Take terms from a stored result, or from the JSON of bench or stages.", names="--from", path="file"),
    ]
    baseline_ms: Annotated[float | None, Opt("Time per item of what the accelerator would replace.", gt=0)]
    baseline_from: Annotated[PathLike | None, Opt("The same, from a stored result.", path="file")]


class BudgetPrinted(Printed, total=False):
    picture: Annotated[
        str | None, Opt("Draw the terms, and the speed-up by link rate: .html, .svg, .png or .json.", path="file")
    ]


@verb(BudgetOptions)
def budget(**options: Unpack[BudgetOptions]) -> Budget:
    """Estimate the latency of a call to an accelerator from its five terms, and what limits it.

    Example: enginebench budget --bytes-in 64 --bytes-out 1 --link uart:115200

    It reports the percentage of each term, the speed-up, and the link rate and batch at which the accelerator breaks
    even. Give a term as a time, as bytes over a link, or from stored results; options override
    stored results, and a missing term is zero.

    Raises:
        UsageError: not one term is given, or one of them twice.
        ParseError: a stored result cannot be read.
    """
    source, other = to_path(options["source"]), to_path(options["baseline_from"])
    if options["baseline_ms"] is not None and other is not None:
        raise UsageError("--baseline-ms and --baseline-from both set the baseline; keep one")
    given = {
        "pre": options["t_pre_ms"],
        "copy_in": options["t_copy_in_ms"],
        "compute": options["t_compute_ms"],
        "copy_back": options["t_copy_back_ms"],
        "post": options["t_post_ms"],
    }
    sizes = {
        "copy_in": (options["bytes_in"], options["frame_bytes_in"]),
        "copy_back": (options["bytes_out"], options["frame_bytes_out"]),
    }
    spec = make_spec(
        given,
        make_transfers(sizes, options["link"], given),
        stored=read_terms(source) if source else {},
        call_ms=options["t_call_ms"],
        batch=options["batch"],
        baseline_ms=math.fsum(read_terms(other).values()) if other else options["baseline_ms"],
    )
    return compute_budget(spec)


@door.command(budget, shown=BudgetPrinted)
def command(shown: BudgetPrinted, **options: Unpack[BudgetOptions]) -> None:
    document = budget(**options)
    if shown["picture"]:
        from enginebench.features.fpga.budget_chart import save_budget_chart

        curve = [(point.bytes_per_s, point.speedup) for point in document.curve if point.speedup is not None]
        rates = document.link_bytes_per_s, document.break_even_bytes_per_s
        save_budget_chart(Path(shown["picture"]), document.terms_ms, curve, *rates)
        click.echo(f"picture: {shown['picture']}", err=True)
    door.show(document, shown, door.tables(list_budget))


def make_transfers(
    sizes: dict[str, tuple[int | None, int]], link: str | None, given: dict[str, float | None]
) -> dict[str, Transfer]:
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
    """The spec. A term comes from the first of: a time by hand, bytes over a link, a stored result, zero."""
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
    """{term of the budget: milliseconds per item} of a stored result. All of a row of scope `io` counts as compute."""
    document = _read_document(path)
    schema = str(document.get("schema"))
    if is_result(schema):
        return {"compute": _read_row(path, read_result(path))}
    if schema.startswith("enginebench.bench/"):
        row = document.get("row", document)
        return {"compute": _read_estimate(path, "$.p50_ms", row.get("p50_ms")) / _read_batch(path, row)}
    if schema.startswith("enginebench.stages/"):
        return _read_stages(path, document)
    raise ParseError(path, "$.schema", repr(schema), "a stored result, or a document of `bench` or `stages`")


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
    from enginebench.stats.quantiles import median

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
        raise ParseError(path, where, repr(found)[:60], "a time in milliseconds", "Was it measured?")
    return float(value)


def _read_batch(path: Path, row: Mapping[str, Any]) -> int:
    batch = row.get("batch", 1)
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise ParseError(path, "$.batch", repr(batch)[:60], "a positive whole number")
    return batch


def list_budget(budget: Budget) -> list[Section]:
    from enginebench.report.table import Section, list_texts, make_notes, make_table

    lines = [(name, f"{time:.6g}", f"{budget.shares[name]:.1%}") for name, time in budget.terms_ms.items()]
    table = make_table(list_texts(("term",), ("ms", "share")), [*lines, ("total", f"{budget.total_ms:.6g}", "")])
    return [Section(parts=(table, *make_notes(describe_budget(budget))))]


def describe_budget(budget: Budget) -> list[str]:
    lines = []
    if budget.throughput_serial_per_s and budget.throughput_pipelined_per_s:
        verb = "set" if budget.bottleneck == "copies" else "sets"
        lines.append(
            f"throughput: {budget.throughput_serial_per_s:.4g}/s with one call after another, "
            f"{budget.throughput_pipelined_per_s:.4g}/s pipelined ({budget.bottleneck} {verb} the pace)"
        )
    if budget.compute_gain_bound is not None:
        lines.append(f"if compute took no time: {budget.compute_gain_bound:.4g}x faster than now")
    if budget.speedup is not None:
        bound = f"; at most {budget.speedup_bound:.4g}x with compute at zero" if budget.speedup_bound else ""
        lines.append(f"speed-up over {budget.baseline_ms:g} ms per item: {budget.speedup:.4g}x{bound}")
    if budget.break_even_bytes_per_s is not None:
        here = f"the link carries {budget.link_bytes_per_s:.6g}"
        lines.append(f"breaks even at {budget.break_even_bytes_per_s:.6g} bytes/s; {here}")
    if budget.break_even_batch is not None:
        lines.append(f"breaks even from a batch of {budget.break_even_batch}")
    return lines + list(budget.notes)
