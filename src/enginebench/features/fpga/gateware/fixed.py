"""Fixed-point primitives as gateware: functions from Amaranth values to Amaranth values, combinational.

Each equals its namesake in `enginebench.features.fpga.integers` bit for bit. Registers are the caller's choice.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from amaranth import C, Mux, Value, signed

from enginebench.core.errors import UsageError
from enginebench.features.fpga.integers import ROUNDINGS, Rounding

# An Amaranth expression; Amaranth itself is untyped.
Expression: TypeAlias = Any


def saturate(value: Expression, low: int, high: int) -> Expression:
    """`value` held between two constants; as wide as the constants need."""
    number = Value.cast(value)
    held = Mux(number < low, C(low), Mux(number > high, C(high), number))
    if low >= 0:
        return held[: high.bit_length() or 1]
    return held[: max((-low - 1).bit_length(), high.bit_length()) + 1].as_signed()


def shift_right(value: Expression, shift: int, rounding: Rounding = "half_even") -> Expression:
    """`value` / 2**shift, rounded once; `shift` is a constant."""
    if rounding not in ROUNDINGS:
        raise UsageError(f"unknown rounding {rounding!r}; known: {', '.join(ROUNDINGS)}")
    number = Value.cast(value)
    if shift == 0:
        return number
    if len(number) <= shift:  # room for the sign and the bits that are shifted out
        number = number | C(0, signed(shift + 2)) if number.shape().signed else number | C(0, shift + 2)
    floor = number >> shift
    return floor + round_up(floor, number[shift - 1], number[: shift - 1].any() if shift > 1 else C(0), rounding)


def round_up(floor: Expression, half: Expression, sticky: Expression, rounding: Rounding) -> Expression:
    """Whether one is added to `floor`: `half` is the first bit behind it, `sticky` says that any after that is set."""
    if rounding == "floor":
        return C(0)
    number = Value.cast(floor)
    negative = number[-1] if number.shape().signed else C(0)
    tie = {"half_even": number[0], "half_away": ~negative, "half_up": C(1)}[rounding]
    return half & (sticky | tie)


def requantize(
    accumulator: Expression,
    multiplier: Expression,
    shift: int,
    zero_point: int,
    low: int = -128,
    high: int = 127,
    rounding: Rounding = "half_even",
) -> Expression:
    """clamp(round(accumulator * multiplier / 2**shift) + zero_point) in one combinational piece.

    The engine spreads the same steps over pipeline stages; this form is the one that is proved against the reference.
    """
    return saturate(shift_right(accumulator * multiplier, shift, rounding) + zero_point, low, high)
