"""Links: rates and framing worked by hand."""

import pytest

from enginebench.core.errors import UsageError
from enginebench.features.fpga.links import NAMED, parse_link


@pytest.mark.parametrize(
    ("text", "size", "seconds"),
    [
        ("uart:115200", 69, 69 * 10 / 115200),
        ("uart:921600", 64, 640 / 921600),
        ("uart:3000000", 3, 1e-5),
        ("1e6+50", 1000, 1e-3 + 50e-6),
        ("1e+6", 1000, 1e-3),
        ("1e+6+50", 1000, 1e-3 + 50e-6),
        ("2000000", 1, 5e-7),
        ("1000+0", 1, 1e-3),
        ("usb2", 53248, 1e-3 + 125e-6),
        ("usb3", 1025, 125e-6 + (1024 + 32 + 1 + 32) / 500e6),
        ("eth100", 1, (18 + 66) * 8 / 100e6),  # the shortest frame: 84 bytes with gap and preamble
        ("eth100", 1472, 1538 * 8 / 100e6),  # the longest
        ("eth1g", 2944, 2 * 1538 * 8 / 1e9),
        ("pcie3x4", 256, 1e-6 + 280 / (8e9 * 4 * 128 / 130 / 8)),
    ],
)
def test_transfer_takes_what_framing_and_latency_say(text, size, seconds):
    assert float(parse_link(text).transfer_s(size)) == pytest.approx(seconds, rel=1e-12)


def test_nothing_takes_no_time():
    assert [float(link.transfer_s(0)) for link in NAMED.values()] == [0.0] * len(NAMED)


@pytest.mark.parametrize(("text", "timer_s"), [("uart:115200+usb", 16e-3), ("uart:115200+usb:1", 1e-3)])
def test_usb_serial_timer_is_paid_by_the_way_back_only(text, timer_s):
    link, bare = parse_link(text), parse_link("uart:115200")
    assert float(link.transfer_s(10)) == float(bare.transfer_s(10))
    assert float(link.transfer_s(10, answer=True)) == pytest.approx(float(bare.transfer_s(10)) + timer_s, rel=1e-12)
    assert link.name == text


def test_rate_of_payload_leaves_framing_out():
    assert parse_link("eth100").payload_bytes_per_s == pytest.approx(12.5e6 * 1472 / 1538)
    assert parse_link("uart:115200").payload_bytes_per_s == 11520


@pytest.mark.parametrize(
    "text",
    ["", "uart", "uart:", "uart:0", "uart:-5", "uart:x", "eth", "1e6+", "+5", "0+5", "nan+1", "inf", "1e6+-1",
     "uart:9600+usb:", "uart:9600+usb:0", "usb9", "1e-9", "1e300", "é"],
)  # fmt: skip
def test_what_is_no_link_is_named_with_the_known_ones(text):
    with pytest.raises(UsageError, match="eth1g"):
        parse_link(text)
