"""The time of whole processes: start, first output and a number of calls; and how much two of them slow each other.

Interference is that of the means of calls: engines that take turns on a core leave the median of short calls as it is,
and make a few of them wait for milliseconds.
"""

from collections.abc import Sequence
from statistics import fmean

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.records import Block, Estimate, Mark, Measurement, Placing, Result
from enginebench.core.shapes import name_size
from enginebench.stats.assessment import compare_configurations, name_result
from enginebench.stats.needs import find_first_output_s
from enginebench.stats.summary import estimate_p50

# A process is marked like its calls, if more of them than this were.
MOSTLY = 0.5
_PLACES: dict[Placing, str] = {"process": "a process of its own", "thread": "one process"}


def spend_lives(result: Result, calls: int) -> Result:
    """Return a configuration each of whose trials has one time: that of a new process with so many calls.

    Start and calls are those of the trial's own process, at its mean. A trial whose start was not measured has no time.
    """
    lives = [_spend_life(measurement, calls) for measurement in result.measurements]
    return replace(result, measurements=tuple(lives))


def _spend_life(measurement: Measurement, calls: int) -> Measurement:
    return spend_calls(measurement, find_first_output_s(measurement), calls)


def spend_calls(measurement: Measurement, start_s: float | None, calls: int) -> Measurement:
    """Return a trial with one time: that of a start and so many calls at its mean; without one if the start is None."""
    bare = replace(
        measurement,
        latency_ns=[],
        blocks=(),
        device_ns=None,
        enqueue_ns=None,
        h2d_ns=None,
        d2h_ns=None,
        staging_ns=None,
    )
    if start_s is None or not measurement.latency_ns:
        return bare
    life_ns = round(start_s * 1e9 + calls * fmean(measurement.latency_ns))
    return replace(bare, latency_ns=[life_ns], blocks=(_join_blocks(measurement.blocks, life_ns),))


def _join_blocks(blocks: Sequence[Block], duration_ns: int) -> Block:
    """Return one block with what most of the blocks have in common."""
    marks: list[Mark] = sorted({mark for block in blocks for mark in block.marks})
    kept = [mark for mark in marks if sum(mark in block.marks for block in blocks) > MOSTLY * len(blocks)]
    foreign = [block.foreign_cpu_cores for block in blocks if block.foreign_cpu_cores is not None]
    return Block(
        start=0,
        stop=1,
        duration_ns=duration_ns,
        marks=tuple(kept),
        foreign_cpu_cores=fmean(foreign) if foreign else None,
    )


class LifeCosts(Struct, frozen=True, kw_only=True):
    """The costs of a configuration in seconds: once, in each process, and with each call."""

    id: str
    build_s: float
    start_s: float
    call_s: float
    call_low_s: float | None = None  # the interval of `call_s`; None: one trial has none
    call_high_s: float | None = None


class Lead(Struct, frozen=True, kw_only=True):
    """A configuration that costs the least from so many calls on."""

    id: str
    first: int  # calls
    last: int | None  # None: from `first` on, however many
    sure: bool = True  # False: from `first` on only if its calls take less time, which their intervals do not show


def find_leads(costs: Sequence[LifeCosts], *, with_build: bool = False) -> list[Lead]:
    """Return which configuration costs the least for 1 call and more, in the order of calls.

    One process makes all calls; `with_build` counts building, too.
    """
    once = {one.id: one.start_s + (one.build_s if with_build else 0.0) for one in costs}
    left, first, leads = list(costs), 1, list[Lead]()
    before: LifeCosts | None = None
    while left:
        best = min(left, key=lambda one: (once[one.id] + first * one.call_s, one.call_s))
        faster = [one for one in left if one.call_s < best.call_s]
        # The first number of calls for which a faster one costs less.
        turns = [int((once[one.id] - once[best.id]) / (best.call_s - one.call_s)) + 1 for one in faster]
        turn = max(first + 1, min(turns)) if turns else None
        sure = before is None or _is_sure(best, before)
        leads.append(Lead(id=best.id, first=first, last=None if turn is None else turn - 1, sure=sure))
        if turn is None:
            break
        left, first, before = faster, turn, best
    return leads


def _is_sure(one: LifeCosts, before: LifeCosts) -> bool:
    """Whether the calls of one are faster than those of the other by their intervals."""
    return one.call_high_s is not None and before.call_low_s is not None and one.call_high_s < before.call_low_s


class Interference(Struct, frozen=True, kw_only=True):
    """The mean of a configuration's calls alone, and its ratios beside the other one to that, over paired trials."""

    id: str
    name: str
    model: str
    size: str  # of a call: its batch, and its shapes or its mix where there are such
    alone_ms: Estimate | None
    process: Estimate | None = None  # the other one in a process of its own
    thread: Estimate | None = None  # in a thread of this process
    reasons: tuple[str, ...] = ()  # why a ratio is missing, or not good


def list_interference(results: Sequence[Result]) -> tuple[Interference, ...]:
    """Return the interference of each configuration that was timed alone; those beside another follow it."""
    sides: list[tuple[Result, dict[Placing, Result]]] = []
    for result in results:
        if result.beside is None:
            sides.append((result, {}))
        elif sides:
            sides[-1][1][result.beside] = result
    return tuple(_describe_side(alone, beside) for alone, beside in sides)


def _describe_side(alone: Result, beside: dict[Placing, Result]) -> Interference:
    ratios: dict[Placing, Estimate | None] = {}
    reasons: list[str] = []
    for placing, result in beside.items():
        comparison = compare_configurations(_take_means(result), _take_means(alone))
        ratios[placing] = comparison.ratio
        failed = [one.reason for one in (result, alone) if one.reason]
        why = "; ".join(failed or comparison.reasons) if comparison.ratio is None else comparison.ratio_reason
        if why:
            reasons.append(f"beside the other in {_PLACES[placing]}: {why}")
    return Interference(
        id=alone.id,
        name=name_result(alone),
        model=alone.model,
        size=name_size(alone.engine),
        alone_ms=estimate_p50(_take_means(alone).measurements) if alone.measurements else None,
        process=ratios.get("process"),
        thread=ratios.get("thread"),
        reasons=tuple(reasons),
    )


def _take_means(result: Result) -> Result:
    """Return the configuration with one time in each trial, the mean of its calls."""
    return replace(result, measurements=tuple(spend_calls(m, 0.0, 1) for m in result.measurements))
