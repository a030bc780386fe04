"""Format numbers and foreign text for people: this is the only place where units and digits are chosen."""

import math
from collections.abc import Iterable
from typing import Literal

from enginebench.core.records import Estimate

TimeUnit = Literal["us", "ms", "s"]

UNITS_PER_MS: dict[TimeUnit, float] = {"us": 1000.0, "ms": 1.0, "s": 0.001}
_NEXT_UNIT: dict[TimeUnit, TimeUnit] = {"us": "ms", "ms": "s", "s": "s"}
# From here on a figure is written in the next larger unit: 78808 us is not read at a glance. 9999.5 is rounded to it.
FIVE_DIGITS = 9999.5
# The smallest of several times keeps its unit where the larger one would leave it fewer digits than this.
LEAST_FIGURE = 0.1
# An interval whose ends are farther apart than so many times is not printed beside its ratio.
WIDEST = 4.0


def choose_unit(times_ms: Iterable[float]) -> TimeUnit:
    """Choose the unit of several times: one in which the smallest has a digit before the point, and none has five.

    If no unit does both, that of the smallest: `format_in_unit` gives a figure of five digits a unit of its own.
    """
    times = [time for time in times_ms if time > 0] or [1.0]
    unit: TimeUnit = "us" if min(times) < 1 else "ms"
    larger = _NEXT_UNIT[unit]
    if max(times) * UNITS_PER_MS[unit] >= FIVE_DIGITS and min(times) * UNITS_PER_MS[larger] >= LEAST_FIGURE:
        return larger
    return unit


def format_in_unit(value: float | None, unit: TimeUnit) -> str:
    """Format `value`, which is in `unit`, with three digits; from five digits before the point in a larger unit: `78.8
    ms`."""
    if value is None or value < FIVE_DIGITS or unit == "s":
        return format_digits(value)
    larger = _NEXT_UNIT[unit]
    return f"{format_significant(value * UNITS_PER_MS[larger] / UNITS_PER_MS[unit])} {larger}"


def format_alone(time_ms: float) -> str:
    """Format a time in milliseconds in the unit that suits it: `10.1 us`, `2.31 ms`, `12.3 s`."""
    unit = choose_unit([time_ms])
    return f"{format_significant(time_ms * UNITS_PER_MS[unit])} {unit}"


def format_ms(time_ms: float, digits: int = 3) -> str:
    """Format a time in milliseconds, in seconds from five digits on: `2.31 ms`, `0 ms`, `12.3 s`."""
    if time_ms < FIVE_DIGITS:
        return f"{format_significant(time_ms, digits)} ms"
    return f"{format_significant(time_ms * UNITS_PER_MS['s'], digits)} s"


def format_before_after(before_ms: float | None, after_ms: float | None) -> str:
    """Format a time before and after in one unit: `2.31 -> 2.29 ms`; `-` if unknown."""
    unit = choose_unit(ms for ms in (before_ms, after_ms) if ms)
    sides = ("-" if not ms else format_significant(ms * UNITS_PER_MS[unit]) for ms in (before_ms, after_ms))
    return f"{' -> '.join(sides)} {unit}"


def format_rate(per_second: float) -> str:
    """Format a rate per second, in thousands from five digits on, then in millions: `421`, `4821`, `68.2k`, `215M`."""
    if not math.isfinite(per_second):
        return str(per_second)
    units = ("", "k", "M", "G")
    steps = next((i for i in range(len(units)) if per_second / 1000**i < FIVE_DIGITS), len(units) - 1)
    return f"{format_significant(per_second / 1000**steps)}{units[steps]}"


def format_significant(value: float, digits: int = 3) -> str:
    """Format `value` with so many significant digits and no exponent in the usual range: 0.0123, 3.09, 121, 4821,
    78,800.

    Thousands are separated from five digits on, where no larger unit was chosen before.
    """
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude < -4 or magnitude > 8:
        return f"{value:.{digits - 1}e}"
    rounded = round(value, digits - 1 - magnitude) if magnitude < digits else round(value)
    magnitude = math.floor(math.log10(abs(rounded)))
    decimals = max(0, digits - 1 - magnitude)
    return f"{rounded:,.{decimals}f}" if abs(rounded) >= FIVE_DIGITS else f"{rounded:.{decimals}f}"


def format_time(utc: str) -> str:
    """Format a time of day: `2026-11-26 17:01 UTC`; "" if unknown."""
    return f"{utc[:16].replace('T', ' ')} UTC" if utc else ""


def format_digits(value: float | None, missing: str = "") -> str:
    """Format three digits, or `missing` if there is no figure."""
    return missing if value is None else format_significant(value)


def format_verdict(verdict: str | None) -> str:
    """Format a verdict for people: `not_shown` is inconclusive."""
    return "inconclusive" if verdict == "not_shown" else (verdict or "").replace("_", " ")


def format_small(value: float) -> str:
    """Format a difference with one digit and an exponent: 2e-06, 1e-01, 0."""
    return "0" if value == 0 else f"{value:.0e}"


def format_range(estimate: Estimate, unit: str = "", times: float = 1.0) -> str:
    """Format an estimate, `times` as large: `2.02x (1.95 to 2.10)`, or `2.02x` without an interval."""
    value = format_significant(times * estimate.value) + unit
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} ({format_significant(times * estimate.low)} to {format_significant(times * estimate.high)})"


def format_latency(estimate: Estimate) -> str:
    """Format a time in milliseconds with its interval, in a readable unit: `2.02 ms (1.95 to 2.10)`."""
    unit = choose_unit([estimate.value])
    return format_range(estimate, f" {unit}", UNITS_PER_MS[unit])


def has_narrow_interval(ratio: Estimate) -> bool:
    """Whether a ratio has an interval that tells something: two trials may give one of 0.12 to 210."""
    return ratio.low is not None and ratio.high is not None and 0 < ratio.high <= WIDEST * ratio.low


def format_ratio(estimate: Estimate) -> str:
    """Format the interval of a ratio, `6.7 - 7.7x`; without one that tells something, `about 7.2x`.

    With as many digits as distinguish its ends from each other, and each end from 1.
    """
    low, high = estimate.low, estimate.high
    if low is None or high is None or not has_narrow_interval(estimate):
        return f"about {format_significant(estimate.value, 2)}x"
    width = high - low
    if not 0 < width < math.inf:
        return f"{format_significant(estimate.value)}x"
    if not 0 < high < 2 * low:
        return f"{format_significant(low, 2)} - {format_significant(high, 2)}x"
    decimals = max(-math.floor(math.log10(width)), 1 if high < 10 else 0)
    if any(float(f"{end:.{decimals}f}") == 1 != end for end in (low, high)):
        decimals += 1
    return f"{low:.{decimals}f} - {high:.{decimals}f}x"


def format_weight(weight: float) -> str:
    """Format the fraction of requests that a shape of a mix has: `9%`, `<1%`."""
    return "<1%" if weight < 0.005 else f"{weight:.0%}"
