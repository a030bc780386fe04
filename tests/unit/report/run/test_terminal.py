"""The closing table: what it says, in 80 columns, and nothing that a hostile name could do."""

from __future__ import annotations

import io
import re
from itertools import pairwise

import pytest
from msgspec.structs import replace
from rich.console import Console

from enginebench.core.records import Result
from enginebench.report.run.answers import list_remarks
from enginebench.report.run.rows import RunDocument, describe_run
from enginebench.report.run.terminal import print_run
from samples import make_drift, make_result, make_run
from stored_run import make_doubtful_results


def show(document: RunDocument, width: int = 80, warnings: bool = False) -> str:
    out = io.StringIO()
    print_run(document, Console(file=out, width=width), warnings=warnings)
    return out.getvalue()


@pytest.mark.parametrize("accuracy", [False, True])
@pytest.mark.parametrize("processes", [1, 2, 10])
def test_fits_80_columns(accuracy: bool, processes: int) -> None:
    text = show(make_run(processes=processes, accuracy=accuracy))
    assert max(map(len, text.splitlines())) <= 80
    for part in ("engine", "prec.", "p50 ms", "p99 ms", "images", "speed-up", "diff", "notes", "61.", "skipped"):
        assert part in text
    assert ("top-1" in text) is accuracy
    assert "…" not in text


def test_rows_read_as_measured() -> None:
    text = show(make_run())
    row = next(line for line in text.splitlines() if line.startswith("openvino") and "fp32" in line)
    assert row.split() == ["openvino", "fp32", "30.3", "±0.3", "32.6", "32.9", "2.02x", "±0.03", "2e-06"]
    assert ":mode=reduce-overhead" in text
    assert "failed: the child died with signal 11" in text


def test_a_row_that_is_not_to_be_relied_on_says_so_under_its_figure() -> None:
    lines = show(describe_run(model="m", machine=None, spec={}, results=make_doubtful_results())).splitlines()
    assert max(map(len, lines)) <= 80
    seen = {}
    for figure, mark in pairwise(lines):
        if " ±" in figure and figure.startswith(("pytorch", "ort", "openvino")):
            start = figure.index(" ±") - 6
            end = figure.index(" ", figure.index("±"))
            seen[figure[:15]] = mark[start:end].strip() if not mark.startswith(("ort", "openvino", "pytorch")) else ""
    assert seen == {
        "pytorch  fp32  ": "",
        "ort      fp32  ": "suspect",
        "ort      int8  ": "invalid",
        "openvino int8  ": "suspect",
    }


def test_p99_that_n_cannot_carry_is_marked() -> None:
    assert "?" in show(make_run(processes=1)) and "too few samples for this percentile" in show(make_run(processes=1))
    assert "?" not in show(make_run())


def test_batches_are_tables_of_their_own() -> None:
    rows = [make_result(), make_result(batch=8, median_ms=70)]
    text = show(describe_run(model="m", machine=None, spec={}, results=rows))
    assert "m, batch 1, compute, cpu, 1 thread" in text and "m, batch 8, compute" in text


def test_short_times_are_in_microseconds() -> None:
    text = show(describe_run(model="m", machine=None, spec={}, results=[make_result(median_ms=0.029)]))
    assert "p50 us" in text and "28.99 ±0.19" in text
    assert text.startswith("MEASURED  pytorch fp32   29.0 us")


def test_control_characters_and_markup_of_names_stay_text() -> None:
    evil = make_result(status="failed", reason="\x1b[2J\x07[red]gone[/red]\nnext\u202eline", identity="x")
    text = show(describe_run(model="m\x1b]0;title\x07[bold]", machine=None, spec={}, results=[evil]))
    assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text
    assert "[red]gone[/red] nextline" in text and "[bold]" in text


def test_ascii_terminals_get_no_plus_minus_sign() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_run(make_run(), Console(file=out, width=80))
    out.seek(0)
    assert "+-" in out.read()


def remark(*results: Result) -> str:
    return " ".join(list_remarks(describe_run(model="m", machine=None, spec={}, results=results)))


AGREE = make_drift(1e-6)


def test_the_largest_batch_within_the_limit_is_named() -> None:
    rows = [make_result(median_ms=m, batch=b, identity=f"b{b}", seed=b) for b, m in ((1, 2), (8, 9), (32, 30))]
    document = describe_run(model="m", machine=None, spec={"p99_limit_ms": 15.0}, results=rows, p99_limit_ms=15.0)
    assert "pytorch fp32: batch 8 is the largest within p99 15 ms" in " ".join(show(document).split())


def test_what_is_slower_for_less_precision_is_named() -> None:
    text = remark(
        make_result(median_ms=20),
        make_result("ort", median_ms=3, drift=AGREE, seed=1),
        make_result("ort", "int8", median_ms=5, drift=AGREE, seed=2),
        make_result("openvino", "int8", median_ms=2, drift=make_drift(0.1, centred=0.95), seed=3),
    )
    assert "ort int8 is slower than the same engine in fp32 (0.6" in text
    assert "keeps no record of what ran, so that the cause is not known" in text


@pytest.mark.parametrize(
    ("shares", "cause"),
    [
        ({"int8": 0.7, "fp32": 0.3}, "70 % of time in int8, 30 % in fp32; the largest part are int8 kernels"),
        ({"reorder": 0.6, "int8": 0.4}, "40 % in int8; the largest part moves values between types"),
        ({"fp32": 0.5, "int8": 0.4, "reorder": 0.1}, "10 % in reorder; the largest part did not run in int8."),
    ],
)
def test_it_says_why_less_precision_is_slower(shares: dict[str, float], cause: str) -> None:
    slow = replace(make_result("ort", "int8", median_ms=5, drift=AGREE, seed=2), effective_precision=shares)
    text = remark(make_result(median_ms=20), make_result("ort", median_ms=3, drift=AGREE, seed=1), slow)
    assert "ort int8 is slower than the same engine in fp32 (0.6" in text and cause in text


def test_notes_of_one_row_name_its_doubts() -> None:
    tool = make_result("trtexec", identity="t")
    tool = replace(tool, measurements=tuple(replace(m, clock="device") for m in tool.measurements))
    text = " ".join(
        show(describe_run(model="m", machine=None, spec={}, results=[make_result(), tool]), warnings=True).split()
    )
    assert "times are of the device clock" in text and "no speed-up: clocks differ" in text


def test_warnings_are_counted_until_they_are_asked_for() -> None:
    counted, printed = " ".join(show(make_run()).split()), " ".join(show(make_run(), warnings=True).split())
    assert "Warnings (1) enginebench report DIR --warnings" in counted and "Warnings (" not in printed
    assert "the weights are random" in printed and "the weights are random" not in counted
    assert "failed: the child died with signal 11" in counted  # is no warning


def test_rows_of_a_table_stand_fastest_first() -> None:
    lines = show(make_run()).splitlines()
    seen = [line.split()[0] for line in lines if re.match(r"(pytorch|ort|openvino)\S*  +(fp32|int8|bf16)", line)]
    assert seen[:2] == ["openvino", "ort"] and seen.index("pytorch") > 3
