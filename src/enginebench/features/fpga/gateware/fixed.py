"""Fixed-point primitives as gateware: functions from Amaranth values to Amaranth values, combinational.

Each equals its namesake in `enginebench.features.fpga.integers` bit for bit. Registers are the caller's choice.
"""

from typing import Any, TypeAlias

from amaranth import C, Mux, Value

from enginebench.features.fpga.integers import Rounding

# An Amaranth expression; Amaranth itself is untyped.
Expression: TypeAlias = Any


def saturate(value: Expression, low: int, high: int) -> Expression:
    """`value` held between two constants; as wide as the constants need."""
    number = Value.cast(value)
    held = Mux(number < low, C(low), Mux(number > high, C(high), number))
    if low >= 0:
        return held[: high.bit_length() or 1]
    return held[: max((-low - 1).bit_length(), high.bit_length()) + 1].as_signed()


def round_up(floor: Expression, half: Expression, sticky: Expression, rounding: Rounding) -> Expression:
    """Whether one is added to `floor`: `half` is the first bit behind it, `sticky` says that any after that is set."""
    if rounding == "floor":
        return C(0)
    number = Value.cast(floor)
    negative = number[-1] if number.shape().signed else C(0)
    tie = {"half_even": number[0], "half_away": ~negative, "half_up": C(1)}[rounding]
    return half & (sticky | tie)
