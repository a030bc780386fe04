"""`budget`: what an accelerator behind a link can gain. T_total = T_pre + T_copy_in + T_compute + T_copy_back + T_post.

Terms are given by hand, as bytes over a link, or come from stored results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from enginebench import door
from enginebench.core.errors import ParseError, UsageError
from enginebench.core.records import Result
from enginebench.options import Opt, PathLike, Printed, Unpack, verb
from enginebench.verbs.common import to_path
from enginebench_fpga.links import Link, parse_link

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from enginebench.report.table import Section

# The largest batch at which a break-even is looked for; beyond a million items a call is no longer a call.
LARGEST_BATCH = 1 << 20
# Far beyond every use, and small enough that no sum or product here leaves 64 bits or the range of a float.
LARGEST_TIME_MS = 1e15
LARGEST_BYTES = 1 << 40
# Points of the curve over the link rate, spread evenly on a logarithmic axis: four decades, ten points each.
CURVE_POINTS = 41
TERMS = ("pre", "copy_in", "compute", "copy_back", "post")
# Each stage of `stages`, and the term of the budget that it belongs to.
STAGE_TERMS = {
    "decode": "pre",
    "preprocess": "pre",
    "copy_in": "copy_in",
    "compute": "compute",
    "copy_out": "copy_back",
    "postprocess": "post",
}


class Transfer(Struct, frozen=True, kw_only=True):
    """A copy over a link: `item_bytes` for each item of the batch, `frame_bytes` once a call."""

    link: Link
    item_bytes: int
    frame_bytes: int = 0

    def size_bytes(self, batch: NDArray[np.int64] | int) -> NDArray[np.int64]:
        return np.asarray(batch, dtype=np.int64) * self.item_bytes + self.frame_bytes


class BudgetSpec(Struct, frozen=True, kw_only=True):
    """The measured or stated terms of one call. Times are milliseconds of one item; a copy is a time or a `Transfer`.

    `call_ms` is paid once a call, whatever the batch (driver, launch). It is listed with the compute, and stays where a
    bound takes the compute away. `baseline_ms` is the time that one item takes on what the accelerator replaces.
    """

    pre: float = 0.0
    copy_in: float | Transfer = 0.0
    compute: float = 0.0
    copy_back: float | Transfer = 0.0
    post: float = 0.0
    call_ms: float = 0.0
    batch: int = 1
    baseline_ms: float | None = None

    @property
    def transfers(self) -> dict[str, Transfer]:
        copies = {"copy_in": self.copy_in, "copy_back": self.copy_back}
        return {name: copy for name, copy in copies.items() if isinstance(copy, Transfer)}

    @property
    def link(self) -> Link | None:
        """The link that a copy goes over; None if both are given as times."""
        return next((copy.link for copy in self.transfers.values()), None)


class CurvePoint(Struct, frozen=True, kw_only=True):
    """The call as it would be on a link that carries this many payload bytes a second."""

    bytes_per_s: float
    total_ms: float
    speedup: float | None


class CallBudget(Struct, frozen=True, kw_only=True):
    """One call, term by term; also the JSON document of `budget`. None: cannot be told, `notes` say why."""

    schema: str = "enginebench.budget/1"
    batch: int
    link: str | None
    terms_ms: dict[str, float]
    total_ms: float
    per_item_ms: float
    shares: dict[str, float]
    bottleneck: str
    throughput_serial_per_s: float | None
    throughput_pipelined_per_s: float | None
    baseline_ms: float | None
    speedup: float | None
    speedup_bound: float | None  # with compute at zero; what a call costs once stays
    compute_gain_bound: float | None  # over this budget, likewise
    break_even_bytes_per_s: float | None
    link_bytes_per_s: float | None
    break_even_batch: int | None
    curve: tuple[CurvePoint, ...] = ()
    notes: tuple[str, ...] = ()


def _time(text: str, default: float | None = None) -> Opt:
    return Opt(text, default, ge=0, le=LARGEST_TIME_MS)


def _bytes(text: str, default: int | None = None) -> Opt:
    return Opt(text, default, ge=0, le=LARGEST_BYTES)


class BudgetOptions(TypedDict, total=False):
    t_pre_ms: Annotated[float | None, _time("Time to preprocess one item.")]
    t_copy_in_ms: Annotated[float | None, _time("Time to copy one item in; or give --bytes-in and --link.")]
    t_compute_ms: Annotated[float | None, _time("Time to compute one item.")]
    t_copy_back_ms: Annotated[float | None, _time("Time to copy one output back; or give --bytes-out and --link.")]
    t_post_ms: Annotated[float | None, _time("Time to postprocess one item.")]
    t_call_ms: Annotated[float, _time("Fixed time per call, whatever the batch.", 0.0)]
    bytes_in: Annotated[int | None, _bytes("Bytes of one item.")]
    bytes_out: Annotated[int | None, _bytes("Bytes of one output.")]
    frame_bytes_in: Annotated[int, _bytes("Extra bytes per call: header, checksum.", 0)]
    frame_bytes_out: Annotated[int, _bytes("Extra bytes per output.", 0)]
    link: Annotated[
        str | None, Opt("uart:115200, usb2, usb3, eth100, eth1g, pcie3x4, or BYTES_PER_S+LATENCY_US; +usb[:MS].")
    ]
    batch: Annotated[int, Opt("Items per call.", 1, ge=1, le=LARGEST_BATCH)]
    source: Annotated[
        PathLike | None,
        Opt("Take terms from a stored result, or from the JSON of bench or stages.", names="--from", path="file"),
    ]
    baseline_ms: Annotated[
        float | None, Opt("Time per item of what the accelerator would replace.", gt=0, le=LARGEST_TIME_MS)
    ]
    baseline_from: Annotated[PathLike | None, Opt("The same, from a stored result.", path="file")]


@verb(BudgetOptions)
def budget(**options: Unpack[BudgetOptions]) -> CallBudget:
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
    asked: Mapping[str, Any] = options
    given: dict[str, float | None] = {name: asked[f"t_{name}_ms"] for name in TERMS}
    link, transfers = None if options["link"] is None else parse_link(options["link"]), {}
    for name, way in (("copy_in", "in"), ("copy_back", "out")):
        item, frame = asked[f"bytes_{way}"], asked[f"frame_bytes_{way}"]
        if item is None and not frame:
            continue
        if link is None:
            raise UsageError("bytes are given, but no link to carry them; add --link, for example --link uart:115200")
        if given[name] is not None:
            raise UsageError(f"{name} is given as a time and as bytes over a link; keep one")
        transfers[name] = Transfer(link=link, item_bytes=item or 0, frame_bytes=frame)
    if link and not transfers:
        raise UsageError(f"--link {options['link']} carries nothing; add --bytes-in or --bytes-out")
    stored = read_terms(source) if source else {}
    if not (transfers or stored or options["t_call_ms"]) and all(time is None for time in given.values()):
        raise UsageError("no term is given; start with --t-compute-ms, --bytes-in with --link, or --from result.json")
    terms = {name: stored.get(name, 0.0) if time is None else time for name, time in given.items()}
    baseline_ms = math.fsum(read_terms(other).values()) if other else options["baseline_ms"]
    spec = BudgetSpec(
        pre=terms["pre"],
        copy_in=transfers.get("copy_in", terms["copy_in"]),
        compute=terms["compute"],
        copy_back=transfers.get("copy_back", terms["copy_back"]),
        post=terms["post"],
        call_ms=options["t_call_ms"],
        batch=options["batch"],
        baseline_ms=baseline_ms,
    )
    return compute_budget(spec)


@door.command(budget)
def command(shown: Printed, **options: Unpack[BudgetOptions]) -> None:
    door.show(budget(**options), shown, door.tables(list_budget))


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
    known = batch >= 1 and all(name in STAGE_TERMS and time >= 0 for name, time in times)
    if not known or not 0 < math.fsum(time for _, time in times) <= LARGEST_TIME_MS:
        raise ParseError(path, "$", f"batch {batch}, {dict(times)}", f"a batch, and times of {', '.join(STAGE_TERMS)}")
    terms: dict[str, float] = {}
    for name, time in times:
        terms[STAGE_TERMS[name]] = terms.get(STAGE_TERMS[name], 0.0) + time / batch
    return terms


def compute_budget(spec: BudgetSpec) -> CallBudget:
    """Every figure of the budget.

    The pipelined throughput lets calls overlap: each term is a stage of its own, and the slowest one sets the pace;
    on a half-duplex link both copies are one stage.

    Source: G. Amdahl, "Validity of the single processor approach", AFIPS 1967, for both bounds.
    """
    terms = {name: float(time) for name, time in compute_terms(spec, spec.batch).items()}
    total = math.fsum(terms.values())
    # What a call costs once, whatever the batch (driver, launch), stays however fast the accelerator is.
    without_compute = math.fsum([spec.call_ms, *(time for name, time in terms.items() if name != "compute")])
    baseline = None if spec.baseline_ms is None else spec.baseline_ms * spec.batch
    stages, link = dict(terms), spec.link  # what goes on at once when calls overlap
    if link is not None and link.half_duplex:
        stages["copies"] = stages.pop("copy_in") + stages.pop("copy_back")
    stage, slowest = max(stages.items(), key=lambda stage: stage[1])
    rate, rate_note = find_break_even_rate(spec)
    batch, batch_note = find_break_even_batch(spec)
    curve = list[CurvePoint]()
    if link is not None:
        for factor in np.logspace(-2, 2, CURVE_POINTS).tolist():
            there = math.fsum(map(float, compute_terms(scale_rate(spec, factor), spec.batch).values()))
            rate_there = link.payload_bytes_per_s * factor
            curve.append(CurvePoint(bytes_per_s=rate_there, total_ms=there, speedup=_divide(baseline, there)))
    return CallBudget(
        batch=spec.batch,
        link=link.name if link else None,
        terms_ms=terms,
        total_ms=total,
        per_item_ms=total / spec.batch,
        shares={name: _divide(time, total) or 0.0 for name, time in terms.items()},
        bottleneck=stage,
        throughput_serial_per_s=_divide(1e3 * spec.batch, total),
        throughput_pipelined_per_s=_divide(1e3 * spec.batch, slowest),
        baseline_ms=spec.baseline_ms,
        speedup=_divide(baseline, total),
        speedup_bound=_divide(baseline, without_compute),
        compute_gain_bound=_divide(total, without_compute),
        break_even_bytes_per_s=rate,
        link_bytes_per_s=link.payload_bytes_per_s if link else None,
        break_even_batch=batch,
        curve=tuple(curve),
        notes=tuple(note for note in (rate_note, batch_note) if note),
    )


def compute_terms(spec: BudgetSpec, batch: NDArray[np.int64] | int) -> dict[str, NDArray[np.float64]]:
    """The five terms of a call, in milliseconds, for one batch or an array of them."""
    count, copies = np.asarray(batch, dtype=np.float64), spec.transfers
    terms = {
        name: 1e3 * copies[name].link.transfer_s(copies[name].size_bytes(batch), answer=name == "copy_back")
        if name in copies
        else getattr(spec, name) * count
        for name in TERMS
    }
    return terms | {"compute": spec.call_ms + terms["compute"]}


def scale_rate(spec: BudgetSpec, factor: float) -> BudgetSpec:
    """The call with links that carry so many times as much."""
    faster = {
        name: replace(copy, link=replace(copy.link, wire_bytes_per_s=copy.link.wire_bytes_per_s * factor))
        for name, copy in spec.transfers.items()
    }
    return replace(spec, **faster)


def find_break_even_rate(spec: BudgetSpec) -> tuple[float | None, str | None]:
    """(payload bytes per second at which the call takes as long as the baseline, or the reason why there is none).

    What goes over the link must fit into what the baseline leaves after all other terms and the link's latencies.
    """
    if spec.baseline_ms is None:
        return None, None
    size = sum(int(copy.size_bytes(spec.batch)) for copy in spec.transfers.values())
    if not size:
        return None, "no break-even link rate: no copy is given in bytes over a link"
    without_bytes = compute_terms(scale_rate(spec, math.inf), spec.batch)
    slack = spec.baseline_ms * spec.batch - math.fsum(map(float, without_bytes.values()))
    if slack <= 0:
        return None, "no link rate breaks even: without its bytes on the wire the call is no faster than the baseline"
    return 1e3 * size / slack, None


def find_break_even_batch(spec: BudgetSpec) -> tuple[int | None, str | None]:
    """(smallest batch whose call takes no longer than the baseline for as many items, or why there is none)."""
    if spec.baseline_ms is None:
        return None, None
    for power in range(LARGEST_BATCH.bit_length()):
        batches = np.arange(1 << power, 2 << power, dtype=np.int64)
        totals = sum(compute_terms(spec, batches).values(), np.zeros(1))
        wins = np.flatnonzero(totals <= spec.baseline_ms * batches)
        if wins.size:
            return int(batches[wins[0]]), None
    return None, f"no batch up to {LARGEST_BATCH:,} breaks even: an item costs more than on the baseline in every one"


def _divide(value: float | None, by: float) -> float | None:
    """The quotient, or None where there is no finite one."""
    return None if value is None or by <= 0 else value / by


def list_budget(budget: CallBudget) -> list[Section]:
    from enginebench.report.numbers import format_rate, format_significant
    from enginebench.report.table import Section, list_texts, make_notes, make_table

    lines = [(name, f"{time:,.6g}", f"{budget.shares[name]:.1%}") for name, time in budget.terms_ms.items()]
    table = make_table(list_texts(("term",), ("ms", "share")), [*lines, ("total", f"{budget.total_ms:,.6g}", "")])
    notes = []
    if budget.throughput_serial_per_s and budget.throughput_pipelined_per_s:
        verb = "set" if budget.bottleneck == "copies" else "sets"
        notes.append(
            f"throughput: {format_rate(budget.throughput_serial_per_s)}/s with one call after another, "
            f"{format_rate(budget.throughput_pipelined_per_s)}/s pipelined ({budget.bottleneck} {verb} the pace)"
        )
    if budget.compute_gain_bound is not None:
        notes.append(f"if compute took no time: {format_significant(budget.compute_gain_bound, 4)}x faster than now")
    if budget.speedup is not None:
        speedup = f"{format_significant(budget.speedup, 4)}x"
        if budget.speedup_bound:
            speedup += f"; at most {format_significant(budget.speedup_bound, 4)}x with compute at zero"
        notes.append(f"speed-up over {budget.baseline_ms:g} ms per item: {speedup}")
    if budget.break_even_bytes_per_s is not None and budget.link_bytes_per_s is not None:
        here = f"the link carries {format_rate(budget.link_bytes_per_s)}"
        notes.append(f"breaks even at {format_rate(budget.break_even_bytes_per_s)} bytes/s; {here}")
    if budget.break_even_batch is not None:
        notes.append(f"breaks even from a batch of {budget.break_even_batch}")
    return [Section(parts=(table, *make_notes([*notes, *budget.notes])))]
