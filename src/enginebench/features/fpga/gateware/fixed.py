"""Fixed-point primitives as gateware: functions from Amaranth values to Amaranth values, combinational.

Each equals its namesake in `enginebench.features.fpga.integers` bit for bit. Registers are the caller's choice.
"""

from typing import Any, TypeAlias

from amaranth import C, Mux, Value

# An Amaranth expression; Amaranth itself is untyped.
Expression: TypeAlias = Any


def saturate(value: Expression, low: int, high: int) -> Expression:
    """`value` held between two constants; as wide as the constants need."""
    number = Value.cast(value)
    held = Mux(number < low, C(low), Mux(number > high, C(high), number))
    if low >= 0:
        return held[: high.bit_length() or 1]
    return held[: max((-low - 1).bit_length(), high.bit_length()) + 1].as_signed()


def round_up(floor: Expression, half: Expression, sticky: Expression) -> Expression:
    """Whether one is added to `floor`, ties to even: `half` is the bit behind it, `sticky` that any after is set."""
    return half & (sticky | Value.cast(floor)[0])
