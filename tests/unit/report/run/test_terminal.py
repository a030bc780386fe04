"""The closing table: what it says, in 80 columns, and nothing that a hostile name could do."""

from __future__ import annotations

import io
from itertools import pairwise

import pytest
from msgspec.structs import replace
from rich.console import Console

from enginebench.core.records import Block, Measurement
from enginebench.report.run.answers import state_answer
from enginebench.report.run.rows import RunDocument, describe_run
from enginebench.report.run.terminal import print_run
from samples import make_drift, make_result, make_run
from stored_run import make_doubtful_results


def show(document: RunDocument, width: int = 80) -> str:
    out = io.StringIO()
    print_run(document, Console(file=out, width=width))
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
    assert "all: the weights are random" in text


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
    assert "Only pytorch fp32 was measured" in text


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


def answer(*results: object, **more: object) -> str:
    return " ".join(state_answer(describe_run(model="m", machine=None, spec={}, results=results, **more)))  # type: ignore[arg-type]


AGREE = make_drift(1e-6)


def test_answer_names_the_fastest() -> None:
    text = answer(make_result(median_ms=20), make_result("ort", median_ms=10, drift=AGREE, seed=1))
    assert text.startswith("Fastest engine whose outputs agree: ort fp32, 1.99x (")
    assert "as fast as pytorch fp32." in text


def test_answer_of_a_single_process_is_an_indication() -> None:
    text = answer(make_result(processes=1), make_result("ort", median_ms=5, processes=1, drift=AGREE))
    assert "an indication, not a verdict" in text and "Fastest" not in text


def test_a_ratio_of_doubtful_rows_is_qualified() -> None:
    base, fast = make_result(median_ms=20), make_result("ort", median_ms=10, drift=AGREE, seed=1)
    noisy = replace(fast, measurements=tuple(replace(m, blocks=mark(m)) for m in fast.measurements))
    assert "rows marked" not in answer(base, fast)
    text = answer(base, noisy)
    assert "as fast as pytorch fp32 (rows marked suspect: ort fp32)" in text
    single = [replace(row, measurements=row.measurements[:1]) for row in (base, noisy)]
    assert "as fast as pytorch fp32 (rows marked suspect: ort fp32)." in answer(*single)


def test_rows_with_other_outputs_and_choices_are_qualified() -> None:
    base, fast = make_result(median_ms=20), make_result("ort", median_ms=10, drift=AGREE, seed=1)
    wrong = make_result("openvino", "int8", median_ms=2, drift=make_drift(9, passed=False, centred=0.9), seed=3)
    noisy = replace(wrong, measurements=tuple(replace(m, blocks=mark(m)) for m in wrong.measurements))
    text = answer(base, fast, noisy)
    assert "Faster, but with other outputs: openvino int8 (rows marked suspect: openvino int8)." in text
    assert "ort fp32 and openvino int8 (rows marked suspect: openvino int8)." in text


def test_answer_says_of_which_batch_it_is() -> None:
    rows = [make_result(median_ms=20), make_result("ort", median_ms=10, drift=AGREE, seed=1)]
    assert "batch" not in answer(*rows)
    text = answer(*rows, make_result(median_ms=80, batch=8, identity="p8"))
    assert "All this is of batch 1; the other batches have tables of their own." in text


def test_the_largest_batch_within_the_limit_is_named() -> None:
    rows = [make_result(median_ms=m, batch=b, identity=f"b{b}", seed=b) for b, m in ((1, 2), (8, 9), (32, 30))]
    document = describe_run(model="m", machine=None, spec={"p99_limit_ms": 15.0}, results=rows, p99_limit_ms=15.0)
    assert "pytorch fp32: batch 8 is the largest within p99 15 ms" in " ".join(show(document).split())


def mark(measurement: Measurement) -> tuple[Block, ...]:
    """A third of the samples marked, which makes a row suspect."""
    n = len(measurement.latency_ns)
    return (
        Block(start=0, stop=n // 3, duration_ns=1, marks=("foreign_cpu",)),
        Block(start=n // 3, stop=n, duration_ns=1),
    )


def test_answer_that_shows_nothing_says_so() -> None:
    text = answer(make_result(), make_result("ort", median_ms=9.95, drift=AGREE, seed=1))
    assert text.startswith("No engine was shown to be more than 2% faster than pytorch fp32")
    noisy = answer(make_result(sd=0.1), make_result("ort", median_ms=9.3, sd=0.1, drift=AGREE, seed=1))
    assert "repetitions would show" in noisy


def test_answer_names_ties_and_faster_rows_with_other_outputs() -> None:
    text = answer(
        make_result(median_ms=20),
        make_result("ort", median_ms=10, drift=AGREE, seed=1),
        make_result("openvino", median_ms=10.02, drift=AGREE, seed=2),
        make_result("ort", "int8", median_ms=4, drift=make_drift(9, passed=False), seed=3),
    )
    assert "it was not shown to be faster than" in text
    assert "Faster, but with other outputs: ort int8." in text


def test_answer_when_the_baseline_wins_and_when_nothing_ran() -> None:
    assert "No engine whose outputs agree had a lower median" in answer(
        make_result(median_ms=5), make_result("ort", drift=AGREE)
    )
    assert answer(make_result(status="failed")) == "Nothing was measured, so there is no fastest engine."


def test_answer_gives_the_ratio_to_default_settings() -> None:
    rows = [
        make_result(median_ms=20),
        make_result("pytorch", "tf32", median_ms=10, drift=AGREE, seed=1),
        make_result("ort", median_ms=5, drift=AGREE, seed=2),
    ]
    assert "Against PyTorch in TF32, near its default settings, it is 2.0" in answer(*rows)
    default = make_result("pytorch", "tf32", median_ms=15, drift=AGREE, seed=3)
    spec = replace(default.engine, options={"defaults": "1"})
    text = answer(*rows, replace(default, id="default", engine=spec))
    assert "Against PyTorch with its default settings it is 3.0" in text


def test_answer_does_not_call_a_row_of_one_process_a_tie() -> None:
    single = make_result("openvino", median_ms=10.02, drift=AGREE, seed=2)
    text = answer(
        make_result(median_ms=20),
        make_result("ort", median_ms=10, drift=AGREE, seed=1),
        replace(single, measurements=single.measurements[:1]),
    )
    assert "not shown to be faster" not in text
    assert "; rows of one process were not compared with it." in text


def test_answer_says_what_is_slower_for_less_precision_and_which_rows_are_choices() -> None:
    text = answer(
        make_result(median_ms=20),
        make_result("ort", median_ms=3, drift=AGREE, seed=1),
        make_result("ort", "int8", median_ms=5, drift=AGREE, seed=2),
        make_result("openvino", "int8", median_ms=2, drift=make_drift(0.1, centred=0.95), seed=3),
    )
    assert "ort int8 is slower than the same engine in fp32 (0.6" in text
    assert "keeps no record of what ran, so that the cause is not known" in text
    assert "No other row is both faster and better in agreement with the reference" in text


@pytest.mark.parametrize(
    ("shares", "cause"),
    [
        ({"int8": 0.7, "fp32": 0.3}, "70 % of time in int8, 30 % in fp32; the largest part are int8 kernels"),
        ({"reorder": 0.6, "int8": 0.4}, "40 % in int8; the largest part moves values between types"),
        ({"fp32": 0.5, "int8": 0.4, "reorder": 0.1}, "10 % in reorder; the largest part did not run in int8."),
    ],
)
def test_answer_says_why_less_precision_is_slower(shares: dict[str, float], cause: str) -> None:
    slow = replace(make_result("ort", "int8", median_ms=5, drift=AGREE, seed=2), effective_precision=shares)
    text = answer(make_result(median_ms=20), make_result("ort", median_ms=3, drift=AGREE, seed=1), slow)
    assert "ort int8 is slower than the same engine in fp32 (0.6" in text and cause in text


def test_recommended_is_named_where_it_is_another_row() -> None:
    text = answer(
        make_result(median_ms=20, accuracy=0.98),
        make_result("ort", "int8", median_ms=5, drift=AGREE, accuracy=0.5, seed=1),
    )
    assert "Recommended, the fastest within the limit of top-1: pytorch fp32." in text


def test_notes_of_one_row_name_its_doubts() -> None:
    tool = make_result("trtexec", identity="t")
    tool = replace(tool, measurements=tuple(replace(m, clock="device") for m in tool.measurements))
    text = " ".join(show(describe_run(model="m", machine=None, spec={}, results=[make_result(), tool])).split())
    assert "times are of the device clock" in text and "no speed-up: clocks differ" in text


def test_what_is_said_of_all_rows_is_not_said_of_a_skipped_one() -> None:
    document = make_run()
    rows = [replace(row, validity="suspect") if row.n else row for row in document.rows]
    assert any(not row.n for row in rows)
    said = " ".join(show(replace(document, rows=tuple(rows))).split())
    assert "suspect: do not rely on any row that was measured" in said and "rely on this row" not in said
    measured = " ".join(show(replace(document, rows=tuple(row for row in rows if row.n))).split())
    assert "suspect: do not rely on this row" in measured
