"""Numbers as printed: digits, units, intervals that never claim more than was found."""

import pytest

from enginebench.core.text import clean_text
from enginebench.report.numbers import choose_unit, format_range, format_significant, format_small
from samples import make_estimate


@pytest.mark.parametrize(("value", "text"), [
    (33.456, "33.5"), (3.0949, "3.09"), (121.4, "121"), (4821.7, "4822"), (0.01234, "0.0123"), (99.96, "100"),
    (0.0, "0"), (9.996, "10.0"), (1e-7, "1.00e-07"), (123456.7, "123457"), (float("inf"), "inf"),
])  # fmt: skip
def test_significant_digits(value: float, text: str) -> None:
    assert format_significant(value) == text


def test_ranges_and_differences() -> None:
    assert format_range(make_estimate(2.02, 1.95, 2.1), "x") == "2.02x (1.95 to 2.10)"
    assert format_range(make_estimate(2.02), "x") == "2.02x"
    assert [format_small(v) for v in (0.0, 1.8e-6, 0.12)] == ["0", "2e-06", "1e-01"]


@pytest.mark.parametrize(("times", "unit"), [([0.03, 5], "us"), ([1.5, 900], "ms"), ([12_000], "s"), ([], "ms")])
def test_unit_of_a_column(times: list[float], unit: str) -> None:
    assert choose_unit(times) == unit


def test_clean_text_keeps_letters_of_every_language() -> None:
    assert clean_text("Modell-Größe 模型\x1b[31m\x9b\x00\u200b\u2028x") == "Modell-Größe 模型[31m x"
