import pytest

from enginebench.core.preprocess import EXTERNAL, differ, is_known, shorten


@pytest.mark.parametrize(
    ("a", "b", "unlike"),
    [("1" * 64, "2" * 64, True), ("1" * 64, "1" * 64, False), ("1" * 64, None, False), (EXTERNAL, "1" * 64, False)],
)
def test_only_known_hashes_differ(a: str | None, b: str | None, unlike: bool) -> None:
    assert differ(a, b) is differ(b, a) is unlike


def test_what_is_known_is_a_hash() -> None:
    assert is_known("1" * 64) and not any(map(is_known, (None, "", EXTERNAL)))
    assert shorten("0123456789abcdef") == "0123456789ab"
