"""The model of a run's report: what its sections hold, before anything draws them."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from enginebench.core.caveats import make_caveat
from enginebench.core.names import find_rows, row_id, shorten_ids
from enginebench.core.records import MeasureSpec, Result
from enginebench.report.run.columns import list_columns
from enginebench.report.run.remarks import count_warnings, list_remarks, list_warnings
from enginebench.report.run.rows import RunDocument, describe_run
from enginebench.report.run.sections import list_facts, list_report, list_sections, list_tables
from enginebench.report.table import Notes, Table
from enginebench.report.terminal import format_text
from reports import show
from samples import make_drift, make_machine, make_result, make_run
from stored_run import make_doubtful_results

AGREE = make_drift(1e-6)


def describe(*results: Result, **spec: object) -> RunDocument:
    return describe_run(model="m", machine=make_machine(), spec=spec, results=results)


def read(document: RunDocument) -> list[dict[str, list[str]]]:
    """Of each table: title of a column -> the texts beneath it."""
    tables = [part for section in list_tables(document) for part in section.parts if isinstance(part, Table)]
    return [{column.title: [column.text(row) for row in table.rows] for column in table.columns} for table in tables]


def read_lines(document: RunDocument) -> list[tuple[str, str]]:
    return [line for s in list_sections(document) for part in s.parts if isinstance(part, Notes) for line in part.lines]


def test_rows_stand_fastest_first_with_what_they_are_compared_by() -> None:
    (table,) = read(make_run())
    assert table["engine"][:3] == ["openvino", "ort", "openvino"] and len(table["engine"]) == 8
    assert table["precision"][:3] == ["int8 nncf", "int8 cpu", "fp32"]
    assert table["p50 ms"][2] == "30.3" and table["speed-up"][2] == "2.00 - 2.04x"
    assert table["outputs"][2:4] == ["same", "same"]
    baseline = table["engine"].index("pytorch")
    assert (table["speed-up"][baseline], table["outputs"][baseline]) == ("1x", "ref.")


def test_there_is_a_table_for_each_batch_however_the_rows_are_mixed() -> None:
    rows = [
        replace(make_result(engine, precision, ms * batch, batch=batch, seed=i), id=f"{engine}-{precision}-{batch}")
        for i, (engine, ms) in enumerate((("pytorch", 9.0), ("ort", 5.0), ("openvino", 4.0)))
        for precision in ("fp32", "int8")
        for batch in (1, 8)
    ]
    document = describe(*rows)
    assert [section.title for section in list_tables(document)] == ["batch 1", "batch 8"]
    assert [table["engine"] for table in read(document)] == [["openvino"] * 2 + ["ort"] * 2 + ["pytorch"] * 2] * 2


def test_devices_are_a_column_where_they_differ() -> None:
    other = make_result("ort-cuda", median_ms=3, seed=1)
    other = replace(other, engine=replace(other.engine, device="cuda:0"))
    (table,) = read(describe(make_result(), other))
    assert table["device"] == ["cuda:0", "cpu"] and "threads" not in table


def test_one_unit_for_all_times_of_a_table() -> None:
    (table,) = read(describe(make_result(median_ms=0.029), make_result("ort", median_ms=12, seed=1)))
    assert table["p50 us"] == ["29.0", "12038"] and "p99 us" in table


def test_disturbed_times_have_one_mark_and_keep_their_number() -> None:
    (table,) = read(describe(*make_doubtful_results()))
    assert [text[:2] == "~ " for text in table["p50 ms"]] == [True, True, True, False]
    columns = {column.title: column for column in list_columns(describe(*make_doubtful_results()).rows)}
    assert columns["p50 ms"].value is not None


def test_a_precision_that_ran_less_than_asked_says_so() -> None:
    weak = replace(
        make_result("ort", "int8", median_ms=5, seed=1),
        effective_precision={"int8": 0.71, "fp32": 0.29},
        caveats=(make_caveat("low_effective_precision", record="71 %", asked="int8"),),
    )
    whole = replace(make_result("openvino", "int8", median_ms=6, seed=2), effective_precision={"int8": 0.93})
    (table,) = read(describe(make_result(), weak, whole))
    assert table["precision"] == ["int8 71 %", "int8", "fp32"]


def test_inputs_that_are_no_images_are_counted_as_inputs() -> None:
    text = replace(make_result(), shapes={"ids": (1, 128), "mask": (1, 128)})
    assert "inputs/s" in read(describe(text))[0] and "images/s" in read(describe(make_result()))[0]


def test_first_and_second_and_ties_are_told_in_words() -> None:
    document = describe(
        make_result(median_ms=20, drift=AGREE),
        make_result("ort", median_ms=10, drift=AGREE, seed=1),
        make_result("openvino", median_ms=10.001, drift=AGREE, seed=2),
        make_result("tensorrt", median_ms=5, drift=AGREE, seed=3),
    )
    texts = [text for label, text in read_lines(document) if not label]
    assert "1st beats 2nd: yes, 1.99x" in texts
    assert any(text.startswith("2nd and 3rd: ") for text in texts)
    single = describe(make_result(processes=1), make_result("ort", median_ms=8, processes=1, seed=1))
    assert not [text for _, text in read_lines(single) if "1st" in text]


def test_what_all_have_in_common_stands_above() -> None:
    assert list_facts(make_run())[0] == "batch 1" and list_facts(make_run())[-1] == "10 trials each"
    cold = replace(make_result(), measure=MeasureSpec(seed=0, cache="cold", scope="io"))
    assert list_facts(describe(cold))[0] == "batch 1, scope io, cold cache"
    timed = replace(make_result(), shapes={"x": (1, 3)})
    assert [list_facts(describe(timed, normalize=n))[1] for n in (None, {"mean": [0.5]})] == ["1x3", "1x3 in bytes"]


def test_configurations_without_times_are_a_line_for_each_reason() -> None:
    lines = read_lines(make_run())
    assert ("Not run", "ort-cuda: no CUDA device; onnxruntime-gpu is not installed") in lines
    assert ("Failed", "openvino bf16: the child died with signal 11 (segmentation fault)") in lines


def test_the_next_commands_can_be_pasted_and_warnings_are_counted() -> None:
    lines = dict(read_lines(make_run()))
    assert lines["Deploy it"] == "enginebench deliver DIR --row openvino-int8@nncf --out ship"
    assert "Page" in lines and not [label for label in lines if label.startswith("Warnings")], "OUTPUTS has told it"
    doubtful = describe(*make_doubtful_results())
    assert dict(read_lines(doubtful))[f"Warnings ({count_warnings(doubtful)})"] == "enginebench report DIR --warnings"
    assert count_warnings(doubtful) < len(list_warnings(doubtful).lines)


def test_a_page_is_named_where_there_is_one(tmp_path: Path) -> None:
    def is_named() -> bool:
        return "report.html" in format_text(list_sections(make_run(), folder=tmp_path))

    assert not is_named(), "altair is not installed, or the run is not over"
    (tmp_path / "report.html").touch()
    assert is_named()


def test_a_warning_names_its_configurations_and_the_range_of_its_figures() -> None:
    ((label, text),) = [line for line in list_warnings(make_run()).lines if "random" in line[1]]
    assert label == "all" and text.startswith("the weights are random (no download possible); pass --weights FILE")
    tool = make_result("trtexec", identity="t")
    tool = replace(tool, measurements=tuple(replace(m, clock="device") for m in tool.measurements))
    found = list_warnings(describe(make_result(), tool)).lines
    assert ("trtexec fp32", "times are of the device clock; ratios compare device clocks") in found
    assert any(label == "trtexec fp32" and text.startswith("no ratio: clocks differ") for label, text in found)


def test_a_report_has_its_answer_command_and_ratios_before_all_else() -> None:
    first, *others = list_report(make_run())
    assert first.title == "resnet18"
    assert [getattr(part, "kind", "table") for part in first.parts] == ["text", "head", "command", "table"]
    assert [section.name for section in others if section.name][:2] == ["comparison", "warnings"]


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("ort-fp32", ["ort-fp32-b1", "ort-fp32-b8"]), ("ort-fp32-b8", ["ort-fp32-b8"]), ("ort-fp16", []), ("or", []),
        ("ort-int8@cpu", ["ort-int8.cpu-b1"]), ("ort-int8", ["ort-int8.cpu-b1"]), ("openvino", ["openvino-fp32-b1"]),
        ("ort-fp32-b1-compute-t1-hot", ["ort-fp32-b1"]),
    ],
)  # fmt: skip
def test_a_shortened_id_fits_the_rows_that_it_could_mean(text: str, fits: list[str]) -> None:
    rows = [make_result("ort"), make_result("ort", batch=8), make_result("ort", "int8@cpu"), make_result("openvino")]
    rows = [replace(row, id=row_id(row.engine, row.requested_precision, row.measure)) for row in rows]
    assert find_rows(text, rows) == [f"{name}-compute-t1-hot" for name in fits]
    shown = shorten_ids(describe_run(model="m", machine=None, spec={}, results=rows).rows)
    assert {short: find_rows(short, rows) for short in shown.values()} == {v: [k] for k, v in shown.items()}


def remark(*results: Result) -> str:
    return " ".join(list_remarks(describe(*results)))


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
        ({"int8": 0.1, "unknown": 0.8, "fp32": 0.1}, "; for the largest part the engine's record has no precision."),
    ],
)
def test_it_says_why_less_precision_is_slower(shares: dict[str, float], cause: str) -> None:
    slow = replace(make_result("ort", "int8", median_ms=5, drift=AGREE, seed=2), effective_precision=shares)
    text = remark(make_result(median_ms=20), make_result("ort", median_ms=3, drift=AGREE, seed=1), slow)
    assert "ort int8 is slower than the same engine in fp32 (0.6" in text and cause in text
    waiting = replace(slow, caveats=(make_caveat("enqueue_bound.share", share=1.0),))
    text = remark(make_result(median_ms=20), make_result("ort", median_ms=3, drift=AGREE, seed=1), waiting)
    assert "the GPU waits for the host, so that faster kernels gain nothing." in text


def test_the_terminal_has_the_design_of_eighty_columns() -> None:
    lines = show(make_run()).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("resnet18 · batch 1") and lines[2].startswith("  FASTEST  openvino int8 (nncf)   9.1")
