"""A fact that is not printed is a fault; the tests of the command line stand on that."""

import pytest

from printed_facts import find_fault


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (["a = 1"], "a = 2\n"),
        (["second", "first"], "first\nsecond\n"),  # the order
        (["x", "x"], "x\n"),  # one line is one fact
        (["left...right"], "left\nright\n"),
        ([], "a line that nobody expects\n"),
        (['b[1].c = "d"'], '{"b": [{"c": "d"}, {"c": "e"}]}'),
    ],
)
def test_a_fact_that_is_not_printed_is_a_fault(facts: list[str], text: str) -> None:
    assert find_fault(facts, text)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (["a...c"], "a b c\n"),
        (["..."], "anything\n"),
        (["a", "..."], "a\n"),
        (["schema = ", "b[0].c = 0.333333"], '{"schema": "x/1", "b": [{"c": 0.33333333333}]}'),
        ([], ""),
    ],
)
def test_a_fact_that_is_printed_is_none(facts: list[str], text: str) -> None:
    assert find_fault(facts, text) is None
