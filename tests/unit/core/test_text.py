"""Text that cannot move a terminal's cursor."""

from enginebench.core.text import clean_lines, count_of, name_type


def test_control_characters_cannot_reach_the_terminal() -> None:
    assert clean_lines("a\x1b[31mb\x07\r\nc\td\u202e") == "a[31mb\nc\td"


def test_one_of_them_has_no_plural() -> None:
    assert (count_of(0, "layers"), count_of(2, "processes")) == ("0 layers", "2 processes")
    for things, said in (("layers", "layer"), ("processes", "process"), ("entries", "entry"), ("batches", "batch")):
        assert count_of(1, things) == f"1 {said}"


def test_a_type_has_its_article() -> None:
    assert [name_type(value) for value in (1, {}, object(), 0.5)] == ["an int", "a dict", "an object", "a float"]
