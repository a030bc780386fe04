"""What is refused before anything is loaded, and how it is said."""

import pytest
from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.core.records import EngineSpec
from enginebench.engines.request import Option, read_number, read_options

KNOWN = {
    "mode": Option(default="a", choices=("a", "b"), meaning="which way"),
    "size": Option(default="3", meaning="how large"),
}
SPEC = EngineSpec(backend="x")


def test_unknown_option_lists_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        read_options(replace(SPEC, options={"colour": "red"}), KNOWN)
    assert str(caught.value) == (
        "engine x has no option 'colour'; known: mode=a|b (which way; default a); size=3 (how large)"
    )
    with pytest.raises(UsageError, match="known: none"):
        read_options(replace(SPEC, options={"colour": "red"}), {})


def test_value_outside_the_choices_is_refused() -> None:
    with pytest.raises(UsageError, match="option mode='c' of engine x must be one of: a, b"):
        read_options(replace(SPEC, options={"mode": "c"}), KNOWN)


@pytest.mark.parametrize("text", ["", "red", "nan", "inf", "-1", "1e999"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="must be a number, zero or more"):
        read_number(SPEC, "size", text)
