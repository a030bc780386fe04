"""Fixed point: NumPy against exact fractions, gateware against NumPy, exhaustively at small widths."""

from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from amaranth import signed, unsigned
from hypothesis import given
from hypothesis import strategies as st

import bench
from bench import evaluate
from enginebench.core.errors import UsageError
from enginebench.features.fpga import network
from enginebench.features.fpga.gateware import engine


def requantizer(*settings):
    """Gateware from (accumulator, multiplier), the rest of the settings given."""
    return lambda accumulator, multiplier: bench.requantize(accumulator, multiplier, *settings)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 62))
def test_shift_right_rounds_every_wide_number(value, shift):
    exact = round(Fraction(value, 1 << shift))
    if -(2**63) <= exact < 2**63:
        assert int(network.shift_right(value, shift)) == exact


@given(st.integers(-(2**31), 2**31 - 1), st.integers(1, 2**31 - 1), st.integers(0, 62), st.integers(-128, 127))
def test_requantize_rounds_once_then_saturates(accumulator, multiplier, shift, zero):
    exact = round(Fraction(accumulator * multiplier, 1 << shift)) + zero
    found = network.requantize(accumulator, multiplier, shift, zero)
    assert int(found) == min(127, max(-128, exact))


@pytest.mark.parametrize("shift", [0, 1, 2, 5, 9, 12])
def test_gateware_shift_equals_reference_on_every_number(shift):
    for shape, values in ((signed(9), np.arange(-256, 256)), (unsigned(8), np.arange(256))):
        found = evaluate([shape], partial(bench.shift_right, shift=shift), values)
        assert found.tolist() == network.shift_right(values, shift).tolist()


@pytest.mark.parametrize(("low", "high"), [(-8, 7), (-3, 5), (0, 15), (0, 0), (2, 7), (-128, 127)])
def test_gateware_saturates_every_number(low, high):
    values = np.arange(-512, 512)
    found = evaluate([signed(10)], lambda v: engine.saturate(v, low, high), values)
    assert found.tolist() == np.clip(values, low, high).tolist()


@pytest.mark.parametrize("bits", [16, 24, 32])
def test_gateware_requantizes_at_full_width(bits):
    rng = np.random.default_rng(bits)
    accumulators = rng.integers(-(2**31), 2**31, 300)
    accumulators[:4] = (-(2**31), 2**31 - 1, 0, -1)
    multipliers = rng.integers(2 ** (bits - 2), 2 ** (bits - 1), 300)
    # A third are exact ties: the multiplier is a power of two, the accumulator odd, the shift one place further.
    multipliers[::3], accumulators[::3] = 2 ** (bits - 2), rng.integers(-300, 300, 100) * 2 + 1
    shapes = [signed(32), unsigned(bits - 1)]
    found = evaluate(shapes, requantizer(bits - 1, 3, -128, 127), accumulators, multipliers)
    assert found.tolist() == network.requantize(accumulators, multipliers, bits - 1, 3).tolist()


@given(st.floats(1e-9, 0.99), st.integers(4, 32))
def test_split_scale_is_as_near_as_the_word_allows(scale, bits):
    multiplier, shift = network.split_scale(scale, bits)
    assert 2 ** (bits - 2) <= multiplier < 2 ** (bits - 1)
    assert abs(Fraction(multiplier, 1 << shift) / Fraction(scale) - 1) <= Fraction(1, 2 ** (bits - 1))


@pytest.mark.parametrize(("scale", "bits"), [(0.0, 32), (-1.0, 32), (float("nan"), 16), (float("inf"), 16),
                                             (1e-30, 32), (1e12, 32)])  # fmt: skip
def test_split_scale_refuses_what_has_no_multiplier(scale, bits):
    with pytest.raises(UsageError):
        network.split_scale(scale, bits)
