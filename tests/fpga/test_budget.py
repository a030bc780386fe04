"""The budget against cases worked by hand."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.features.fpga.budget import BudgetSpec, Transfer, compute_budget
from enginebench.features.fpga.links import parse_link

# 64 bytes in, 10 out, at 100,000 bytes/s: 0.64 ms and 0.1 ms.
PLAIN = BudgetSpec(
    pre_ms=0.1,
    copy_in=Transfer(link=parse_link("1e5"), item_bytes=64),
    compute_ms=0.2,
    copy_back=Transfer(link=parse_link("1e5"), item_bytes=10),
    post_ms=0.06,
    baseline_ms=2.2,
)


def test_terms_by_hand_add_up():
    spec = BudgetSpec(pre_ms=1, copy_in=2, compute_ms=4, copy_back=2, post_ms=1, baseline_ms=20)
    budget = compute_budget(spec)
    assert budget.terms_ms == {"pre": 1, "copy_in": 2, "compute": 4, "copy_back": 2, "post": 1}
    assert (budget.total_ms, budget.speedup, budget.speedup_bound) == (10, 2, pytest.approx(20 / 6))
    assert budget.shares == {"pre": 0.1, "copy_in": 0.2, "compute": 0.4, "copy_back": 0.2, "post": 0.1}
    assert (budget.throughput_serial_per_s, budget.throughput_pipelined_per_s) == (100, 250)
    assert (budget.bottleneck, budget.compute_gain_bound) == ("compute", pytest.approx(10 / 6))
    assert budget.break_even_bytes_per_s is None and "no copy" in budget.notes[0]
    assert budget.curve == ()


def test_bytes_over_a_link():
    budget = compute_budget(PLAIN)
    assert budget.terms_ms == pytest.approx(
        {"pre": 0.1, "copy_in": 0.64, "compute": 0.2, "copy_back": 0.1, "post": 0.06}
    )
    assert budget.total_ms == pytest.approx(1.1)
    assert budget.speedup == pytest.approx(2)
    assert budget.speedup_bound == pytest.approx(2.2 / 0.9)
    # 74 bytes must fit into 2.2 - 0.1 - 0.2 - 0.06 = 1.84 ms.
    assert budget.break_even_bytes_per_s == pytest.approx(74 / 1.84e-3)
    assert budget.break_even_batch == 1


def test_break_even_rate_breaks_even():
    rate = compute_budget(PLAIN).break_even_bytes_per_s
    link = parse_link(repr(rate))
    there = replace(PLAIN, copy_in=Transfer(link=link, item_bytes=64), copy_back=Transfer(link=link, item_bytes=10))
    assert compute_budget(there).speedup == pytest.approx(1, rel=1e-12)


def test_latencies_leave_less_for_the_bytes():
    link = parse_link("1e5+100")  # 0.1 ms each way
    spec = replace(PLAIN, copy_in=Transfer(link=link, item_bytes=64), copy_back=Transfer(link=link, item_bytes=10))
    assert compute_budget(spec).break_even_bytes_per_s == pytest.approx(74 / 1.64e-3)


def test_batch_spreads_what_a_call_costs_once():
    # A call costs 1 ms, an item 0.125 ms, on the baseline 0.375 ms: 1 + b/8 <= 3b/8 from b = 4.
    spec = BudgetSpec(call_ms=1.0, compute_ms=0.125, baseline_ms=0.375)
    budget = compute_budget(spec)
    assert (budget.break_even_batch, budget.speedup) == (4, pytest.approx(0.375 / 1.125))
    eight = compute_budget(replace(spec, batch=8))
    assert (eight.total_ms, eight.per_item_ms, eight.speedup) == (2.0, 0.25, 1.5)


def test_frame_bytes_are_paid_once_a_call():
    copy = Transfer(link=parse_link("1000"), item_bytes=2, frame_bytes=6)
    budget = compute_budget(BudgetSpec(copy_in=copy, batch=3))
    assert budget.total_ms == pytest.approx(12.0)


def test_uart_of_the_digits_network():
    # 70 bytes there, 16 back at 115200 baud: 86 * 10 / 115200 s; 351 cycles at 12 MHz.
    link = parse_link("uart:115200+usb:1")
    spec = BudgetSpec(
        copy_in=Transfer(link=link, item_bytes=64, frame_bytes=6),
        compute_ms=351 / 12e3,
        copy_back=Transfer(link=link, item_bytes=10, frame_bytes=6),
        baseline_ms=0.022,
    )
    budget = compute_budget(spec)
    assert budget.total_ms == pytest.approx(860 / 115.2 + 1 + 0.02925)
    assert budget.break_even_bytes_per_s is None and "no link rate" in budget.notes[0]
    assert budget.break_even_batch is None and "no batch" in budget.notes[1]


def test_half_duplex_copies_share_the_link():
    usb2 = parse_link("usb2")
    spec = BudgetSpec(copy_in=Transfer(link=usb2, item_bytes=53248), copy_back=Transfer(link=usb2, item_bytes=53248))
    budget = compute_budget(spec)
    assert (budget.bottleneck, budget.throughput_pipelined_per_s) == ("copies", pytest.approx(1e3 / 2.25))


def test_zero_compute_leaves_bounds_open():
    budget = compute_budget(BudgetSpec(compute_ms=1.0, baseline_ms=3.0))
    assert (budget.speedup, budget.speedup_bound, budget.compute_gain_bound) == (3.0, None, None)
    nothing = compute_budget(BudgetSpec(baseline_ms=3.0))
    assert (nothing.total_ms, nothing.speedup, nothing.throughput_serial_per_s) == (0.0, None, None)


def test_curve_passes_through_the_budget():
    budget = compute_budget(PLAIN)
    middle = budget.curve[len(budget.curve) // 2]
    assert (middle.bytes_per_s, middle.speedup) == (pytest.approx(1e5), pytest.approx(2))
    assert [p.total_ms for p in budget.curve] == sorted((p.total_ms for p in budget.curve), reverse=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pre_ms": -1.0}, "pre"),
        ({"compute_ms": math.nan}, "compute"),
        ({"copy_in": math.inf}, "copy_in"),
        ({"copy_back": Transfer(link=parse_link("usb2"), item_bytes=-1)}, "copy_back"),
        ({"copy_in": Transfer(link=parse_link("usb2"), item_bytes=1 << 60)}, "copy_in"),
        ({"batch": 0}, "batch"),
        ({"batch": 1 << 40}, "batch"),
        ({"post_ms": 1e300}, "post"),
        ({"baseline_ms": 0.0}, "baseline"),
    ],
)
def test_what_cannot_be_is_refused(change, said):
    with pytest.raises(UsageError, match=said):
        compute_budget(replace(PLAIN, **change))


times = st.floats(0, 1e3)


@settings(deadline=None, max_examples=10)
@given(times, times, times, times, times, st.floats(1e-3, 1e3))
def test_bounds_hold(pre, copy_in, compute, copy_back, post, baseline):
    spec = BudgetSpec(
        pre_ms=pre, copy_in=copy_in, compute_ms=compute, copy_back=copy_back, post_ms=post, baseline_ms=baseline
    )
    budget = compute_budget(spec)
    if budget.total_ms > 1e-6:
        assert sum(budget.shares.values()) == pytest.approx(1)
        assert budget.throughput_pipelined_per_s >= budget.throughput_serial_per_s * (1 - 1e-12)
    if budget.speedup_bound is not None:
        assert budget.speedup_bound >= budget.speedup * (1 - 1e-12)
