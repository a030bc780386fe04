"""`budget`: what an accelerator behind a link can gain; terms by hand, as bytes over a link, or from stored results."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, Unpack

from enginebench import door
from enginebench.core.errors import ParseError, UsageError
from enginebench.core.records import Result
from enginebench.features.fpga.budget import Budget, BudgetSpec, Transfer, compute_budget
from enginebench.features.fpga.links import parse_link
from enginebench.options import Opt, PathLike, Printed, verb
from enginebench.verbs.given import to_path

if TYPE_CHECKING:
    from enginebench.report.table import Section

# Each stage of `stages`, and the term of the budget that it belongs to.
STAGE_TERMS = {
    "decode": "pre",
    "preprocess": "pre",
    "copy_in": "copy_in",
    "compute": "compute",
    "copy_out": "copy_back",
    "postprocess": "post",
}


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


@door.command(budget, shown=Printed)
def command(shown: Printed, **options: Unpack[BudgetOptions]) -> None:
    door.show(budget(**options), shown, door.tables(list_budget))


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
    from enginebench.report.bench import BenchDocument, describe_bench
    from enginebench.stats.stages import StagesDocument
    from enginebench.verbs.read import read

    document = read(path)
    if isinstance(document, Result):
        document = describe_bench([document])
    if isinstance(document, StagesDocument):
        times, batch = [(stage.name, stage.p50_ms) for stage in document.stages], document.batch
    elif isinstance(document, BenchDocument):
        row = document.row
        if row.p50_ms is None:
            raise ParseError(path, "$.row.p50_ms", "no time", "at least one timed call", f"Its status: {row.status}")
        times, batch = [("compute", row.p50_ms.value)], row.batch
    else:
        raise ParseError(path, "", type(document).__name__, "a stored result, or a document of `bench` or `stages`")
    if batch < 1 or not {name for name, _ in times} <= STAGE_TERMS.keys():
        raise ParseError(path, "$", f"batch {batch}, {dict(times)}", f"a batch, and times of {', '.join(STAGE_TERMS)}")
    terms: dict[str, float] = {}
    for name, time in times:
        terms[STAGE_TERMS[name]] = terms.get(STAGE_TERMS[name], 0.0) + time / batch
    return terms


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
