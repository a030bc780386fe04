"""How the terminal, the page, markdown, a notebook and CSV lay out three made-up runs."""

from pathlib import Path

import snapshots

EXPECTED = Path(__file__).with_name("snapshots.txt")


def test_every_form_of_the_three_runs_is_as_it_was() -> None:
    assert snapshots.render_all().splitlines() == EXPECTED.read_text("utf-8").splitlines(), (
        "if that is meant: make tables"
    )


def test_no_line_is_wider_than_its_terminal_and_nothing_hostile_is_raw() -> None:
    for form in snapshots.render_all().split("######## ")[1:]:
        title, _, text = form.partition("\n")
        assert not {"\x1b", "\u202e"} & set(text), title
        if "terminal" in title:
            width = int(title.split(", ")[1].split()[0])
            lines = [line for line in text.splitlines() if "enginebench " not in line]  # a command stays on one line
            assert max(map(len, lines)) <= width, title
