"""Names and documents that somebody else wrote: no character of them reaches a terminal, a page or a picture raw."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import enginebench
from enginebench.core.errors import ParseError
from enginebench.core.records import ResultWarning
from enginebench.core.text import HIDDEN, clean_text, clean_texts
from enginebench.core.warnings import format_warning
from enginebench.report.charts import render_png, style_chart
from enginebench.runs.folder import read_results
from enginebench.runs.reporting import describe_stored
from enginebench.verbs.report import write_report
from processes import Cli, environment
from reports import show
from stored_run import make_results, write_run

# Control characters, marks that reverse the direction of writing, escape sequences; markup of rich, markdown, HTML.
EVIL = "a\x01b\u202ec\u2067d\x1b[31me[red]f[/red]|<img src=x>`g"
DEEP = "[" * 10**5 + "]" * 10**5


@pytest.fixture
def evil_run(tmp_path: Path) -> Path:
    """A run every one of whose scores is by a metric of that name."""
    rows = [replace(r, scores=tuple(replace(s, metric=EVIL) for s in r.scores)) for r in make_results()]
    return write_run(tmp_path / "r", rows)


def test_pictures_of_a_run_are_drawn_whatever_its_names_hold(evil_run: Path) -> None:
    """In a process of its own: what a renderer cannot take ends the process."""
    script = "import sys; from pathlib import Path; from enginebench.verbs.report import write_report\n"
    script += "print(len(write_report(Path(sys.argv[1]), ['png', 'html']).paths))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(evil_run)],
        env=environment(evil_run.parent, draws=True),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr[-500:]) == (0, "")
    assert int(done.stdout) > 3


def test_every_text_of_a_specification_is_clean() -> None:
    class Chart:
        def to_dict(self, **_: object) -> dict[str, Any]:
            return {"mark": "point", "data": {"values": [{EVIL: EVIL}]}, "encoding": {"x": {"field": EVIL}}}

    spec = style_chart(Chart(), EVIL, EVIL)
    assert clean_texts(spec) == spec
    assert spec["data"]["values"] == [{clean_text(EVIL): clean_text(EVIL)}]
    assert render_png(spec).startswith(b"\x89PNG")


def test_names_are_text_in_every_form_of_a_report(evil_run: Path) -> None:
    write_report(evil_run, ["html", "md", "csv"])
    record, results = read_results(evil_run)
    terminal = show(describe_stored(record, results), 200)
    texts = {
        path.name: path.read_text("utf-8") for path in evil_run.glob("*.*") if path.suffix in (".html", ".md", ".csv")
    }
    for name, text in {**texts, "terminal": terminal}.items():
        assert not [c for c in "\x01\x1b\u202e\u2067" if c in text], name
    assert "[red]f[/red]" in terminal, "no markup of the terminal"
    (heading,) = (line for line in texts["report.md"].splitlines() if line.startswith("| engine | precision | p50"))
    assert "<img" not in heading and "&lt;img src=x&gt;" in heading
    assert {line.count("|") for line in texts["report.md"].splitlines() if "| ref. |" in line} == {heading.count("|")}
    assert "<img src=x>" not in texts["report.html"]


def test_a_warning_of_a_stored_configuration_is_clean_wherever_it_is_reported() -> None:
    assert format_warning(ResultWarning(code="fallback", message=EVIL, advice=EVIL)).isprintable()


@pytest.mark.parametrize("character", ["\u202e", "\u2066", "\u200f", "\u061c", "\x85", "\x9b", "\u2028", "\ufeff"])
def test_marks_that_hide_or_reverse_are_removed(character: str) -> None:
    assert character not in clean_text(f"a{character}b")


def test_what_python_calls_printable_is_shown_as_it_is() -> None:
    import unicodedata

    printable = (chr(code) for code in range(0x110000) if chr(code).isprintable())
    assert not [c for c in printable if unicodedata.category(c) in HIDDEN]


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("place", ["rows", "run.json"])
def test_brackets_nested_too_deep_are_a_damaged_file(tmp_path: Path, place: str, opening: str) -> None:
    folder = write_run(tmp_path / "r", make_results())
    path = sorted((folder / "rows").iterdir())[0] if place == "rows" else folder / place
    depth = 10**6  # Python 3.14 reads 10**5: it stops by the size of the stack
    deep = opening * depth + ("1" if "{" in opening else "") + ("}" if "{" in opening else "]") * depth
    path.write_text(path.read_text("utf-8").rstrip().removesuffix("}") + f', "unknown": {deep}}}', "utf-8")
    with pytest.raises(ParseError, match=f"{path.name}.*found brackets nested too deep"):
        read_results(folder)
    with pytest.raises(ParseError):
        enginebench.read(path)


@pytest.mark.parametrize("command", ["report r", "diff r r", "baseline save x r", "report s", "parse layers deep.json"])
@pytest.mark.feature("trtexec", "'parse ")
@pytest.mark.feature("sweep", "'report s'")
def test_verbs_say_of_such_a_file_that_it_is_damaged(cli: Cli, tmp_path: Path, command: str) -> None:
    row = sorted((write_run(tmp_path / "r", make_results()) / "rows").iterdir())[0]
    document = json.dumps({"schema": "enginebench.result/1", "x": 0})
    row.write_text(document.replace("0", DEEP), "utf-8")
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "sweep.json").write_text(document.replace("0", DEEP), "utf-8")
    (tmp_path / "deep.json").write_text(DEEP, "utf-8")
    done = cli(*command.split())
    assert (done.returncode, "Traceback" in done.stderr) == (5, False), done.stderr
    assert cli("history", ".").returncode == 0
