"""What the sections of a run's report hold, before anything draws them, and JUnit XML."""

from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from enginebench.core.names import configuration_id, find_configurations, shorten_ids
from enginebench.core.records import Result
from enginebench.core.warnings import make_warning
from enginebench.report.run import sections
from enginebench.report.run.diff import format_junit
from enginebench.report.run.remarks import list_remarks, list_warnings, name_having
from enginebench.report.run.rows import RunDocument, describe_run
from enginebench.report.run.sections import list_facts, list_tables
from enginebench.report.table import Table
from enginebench.stats.diff import diff_results
from samples import make_drift, make_machine, make_result

AGREE = make_drift(1e-6)


def describe(*results: Result, **spec: object) -> RunDocument:
    return describe_run(model="m", machine=make_machine(), spec=spec, results=results)


def test_the_rate_is_shown_where_calls_overlap() -> None:
    for scope, shown in (("compute", False), ("pipelined", True)):
        result = make_result()
        run = describe(replace(result, measure=replace(result.measure, scope=scope)))
        (table,) = (part for section in list_tables(run) for part in section.parts if isinstance(part, Table))
        assert [column.wide for column in table.columns if column.title == "images/s"] == [not shown]


def test_what_was_timed_in_bytes_says_so() -> None:
    timed = replace(make_result(), shapes={"x": (1, 3)})
    told = [list_facts(describe(timed, normalize=n))[1] for n in (None, {"mean": [0.5]}, {"input": "x"})]
    assert told == ["1x3", "1x3 in bytes", "1x3, x in bytes"]


def test_a_warning_names_its_configurations_and_the_range_of_its_figures() -> None:
    tool = make_result("trtexec", identity="t")
    tool = replace(tool, measurements=tuple(replace(m, clock="device") for m in tool.measurements))
    made_up = [
        make_warning("random_weights", seed=0, reason="asked"),
        make_warning("random_inputs", seed=0, cure="give --inputs F.npz"),
    ]
    document = describe(*(replace(row, warnings=(*row.warnings, *made_up)) for row in (make_result(), tool)))
    found, told = list_warnings(document).lines, "and outputs were compared on random inputs (seed 0); give --weights"
    assert [label for label, text in found if told in text] == ["all"]
    every = {name: (name.lower(), "of A" * name.isupper()) for name in "abcdeA"}
    assert [name_having(some, every) for some in ("ab", "abcd", "aA")] == ["a, b", "all but e", "a; of A: all"]
    batches = {f"{name}{n}": (name, f"batch {n}") for n in (1, 8) for name in "ab"}
    assert [name_having(some, batches) for some in (("a1", "a8"), ("a1", "b1", "a8"))] == [
        "a",
        "batch 1: all; batch 8: a",
    ]
    assert ("trtexec fp32", "times are of the device clock; ratios compare device clocks") in found
    assert any(label == "trtexec fp32" and text.startswith("no ratio: clocks differ") for label, text in found)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("ort-fp32", ["ort-fp32-b1", "ort-fp32-b8"]),
        ("ort-fp32-b8", ["ort-fp32-b8"]),
        ("ort-fp16", []),
        ("or", []),
        ("ort-int8@cpu", ["ort-int8.cpu-b1"]),
        ("ort-int8", ["ort-int8.cpu-b1"]),
        ("openvino-fp32", ["openvino-fp32-b1"]),
        ("openvino-int8@nncf:mixed", ["openvino-int8.nncf-mixed-b1"]),
        ("ort-fp32-b1-compute-t1-hot", ["ort-fp32-b1"]),
    ],
)
def test_a_shortened_id_fits_the_configurations_that_it_could_mean(text: str, fits: list[str]) -> None:
    rows = [make_result("ort"), make_result("ort", batch=8), make_result("ort", "int8@cpu"), make_result("openvino")]
    rows.append(make_result("openvino", "int8@nncf:mixed"))
    rows = [replace(row, id=configuration_id(row.engine, row.requested_precision, row.measure)) for row in rows]
    assert find_configurations(text, rows) == [f"{name}-compute-t1-hot" for name in fits]
    shown = shorten_ids(describe_run(model="m", machine=None, spec={}, results=rows).rows)
    assert {short: find_configurations(short, rows) for short in shown.values()} == {v: [k] for k, v in shown.items()}


def test_an_id_names_the_precision_that_ran_unless_that_is_another_configuration() -> None:
    module = make_result("pytorch")
    module = replace(module, engine=replace(module.engine, precision="int8"))  # what asked for fp32 ran in int8
    other = make_result("ort", "int8@cpu")

    def shorten(*rows: Result) -> dict[str, str]:
        shown = shorten_ids(describe_run(model="m", machine=None, spec={}, results=rows).rows)
        assert all(find_configurations(short, rows) == [one] for one, short in shown.items())
        return shown

    assert list(shorten(module, other).values()) == ["pytorch-int8", "ort-int8@cpu"]
    assert find_configurations("pytorch-fp32", [module, other]) == [module.id]  # as it was asked for still fits
    asked = replace(make_result("pytorch", "int8"), id="pytorch-int8-of-its-own")
    asked = replace(asked, requested_precision="int8")
    assert list(shorten(module, asked).values()) == ["pytorch-fp32", "pytorch-int8"]
    half = replace(module, id="second", requested_precision="fp16")
    assert list(shorten(module, half).values()) == ["pytorch-fp32", "pytorch-fp16"]  # two that ran alike


def remark(*results: Result) -> str:
    return " ".join(list_remarks(describe(*results)))


@pytest.mark.parametrize(
    ("shares", "cause"),
    [
        ({"int8": 0.7, "fp32": 0.3}, "70% of the time in int8, 30% in fp32; the largest part are int8 kernels"),
        ({"reorder": 0.6, "int8": 0.4}, "40% in int8; the largest part moves values between types"),
        ({"fp32": 0.5, "int8": 0.4, "reorder": 0.1}, "10% in reorder; most of it did not run in int8."),
        (None, "keeps no record of what ran, so that the cause is not known"),
        ({"int8": 0.1, "unknown": 0.8, "fp32": 0.1}, "; for the largest part the engine's record has no precision."),
    ],
)
def test_it_says_why_less_precision_is_slower(shares: dict[str, float] | None, cause: str) -> None:
    slow = replace(make_result("ort", "int8", median_ms=5, drift=AGREE, seed=2), effective_precision=shares)
    text = remark(make_result(median_ms=20), make_result("ort", median_ms=3, drift=AGREE, seed=1), slow)
    assert "ort int8 is slower than the same engine in fp32 (0.6" in text and cause in text
    other = replace(slow, engine=replace(slow.engine, precision="fp32"))
    text = remark(make_result(median_ms=20), make_result("ort", median_ms=3, drift=AGREE, seed=1), other)
    assert "ort fp32, asked for in int8, is slower than the same engine in fp32 (0.6" in text
    waiting = replace(slow, warnings=(make_warning("enqueue_bound", share=1.0),))
    text = remark(make_result(median_ms=20), make_result("ort", median_ms=3, drift=AGREE, seed=1), waiting)
    assert shares is None or "the GPU waits for the host, so that faster kernels gain nothing." in text


def parse(base: list[Result], cand: list[Result], **options: bool) -> ElementTree.Element:
    root = ElementTree.fromstring(format_junit(diff_results(base, cand, **options)))  # type: ignore[arg-type]
    (suite,) = root
    return suite


def test_one_case_a_row() -> None:
    base = [make_result("ort"), make_result("pytorch", median_ms=20), make_result("openvino")]
    cand = [make_result("ort", median_ms=12), make_result("pytorch", median_ms=20, seed=1)]
    suite = parse(base, cand)
    assert [suite.get(name) for name in ("tests", "failures", "skipped", "errors")] == ["3", "2", "0", "0"]
    slower, same, missing = suite
    assert slower.find("failure").get("message") == "slower"  # type: ignore[union-attr]
    assert same.find("failure") is None and "equivalent" in (same.findtext("system-out") or "")
    assert missing.find("failure").text == "only the base has this configuration"  # type: ignore[union-attr]


def test_what_shows_nothing_is_skipped() -> None:
    noisy = {"sd": 0.06, "processes": 6}
    (case,) = parse([make_result(median_ms=10, **noisy)], [make_result(median_ms=9.3, seed=9, **noisy)])  # type: ignore[arg-type]
    assert "trials would show it" in (case.find("skipped").get("message") or "")  # type: ignore[union-attr]
    (case,) = parse([make_result(batch=1)], [make_result(batch=2)], allow_not_comparable=True)
    assert case.find("skipped") is not None and case.find("failure") is None


def test_names_are_text() -> None:
    evil = 'a"]]><x>\x1b\x00&'
    (case,) = parse([replace(make_result(), id=evil)], [make_result(status="failed", reason=evil)])
    assert (case.get("name") or "").startswith('a"]]><x>&')


def test_no_configurations_are_a_failure_and_nothing_but_skipped_ones_is_one_beside_them() -> None:
    suite = parse([], [])
    assert suite.get("tests") == suite.get("failures") == "1"
    gone = [make_result("ort", status="skipped", reason="no")]
    suite = parse(gone, gone)
    assert (suite.get("tests"), suite.get("skipped"), suite.get("failures")) == ("2", "1", "1")
    row, nothing = suite
    assert row.find("skipped") is not None and nothing.find("failure") is not None


@pytest.mark.parametrize(("count", "title"), [(1, "mix of 1 shape"), (2, "mix of 2 shapes")])
def test_the_shapes_of_a_mix_are_counted_in_its_title(count: int, title: str) -> None:
    row = SimpleNamespace(times=SimpleNamespace(cells=("cell",) * count), setup=SimpleNamespace(bucket=""))
    shown = SimpleNamespace(**vars(row), batch=1, scope="compute", cache="hot")
    assert sections._name_setting(cast(Any, shown), ["setup.bucket"]) == title
