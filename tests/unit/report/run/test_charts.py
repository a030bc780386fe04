"""Charts of a run, and what they are made of: labels, bins, curves, traces."""

import sys
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from enginebench.core.errors import BackendUnavailable, MissingDependency
from enginebench.core.records import Measurement, Result
from enginebench.report.charts import leave_room, render_png
from enginebench.report.run.charts import Chart, _draw_quality, draw_run
from enginebench.report.run.rows import RunDocument, describe_run
from enginebench.report.run.series import (
    bin_rows,
    follow_batches,
    follow_rows,
    label_rows,
    list_stage_medians,
    place_quality,
    trace_rows,
)
from samples import make_drift, make_machine, make_result
from stored_run import make_results

NAMES = [
    "speedup",
    "latency_hist",
    "percentiles",
    "latency_over_time",
    "pareto",
    "stages",
    "per_layer_time",
    "precision",
]


def describe(results: list[Result]) -> RunDocument:
    return describe_run(model="m", machine=make_machine(), spec={}, results=results)


def draw(results: list[Result]) -> list[Chart]:
    return draw_run(describe(results), results)


@pytest.fixture(scope="module")
def charts() -> dict[str, Chart]:
    return {chart.name: chart for chart in draw(make_results())}


def test_every_chart_that_the_configurations_can_fill(charts: dict[str, Chart]) -> None:
    assert list(charts) == NAMES
    assert [c.name for c in draw([make_result()])] == ["latency_hist", "percentiles", "latency_over_time"]
    assert draw([make_result(status="failed", reason="died")]) == []


@pytest.mark.parametrize("name", NAMES)
def test_vega_draws_it_without_a_warning(charts, name, capfd) -> None:
    assert render_png(charts[name].spec, scale=1).startswith(b"\x89PNG")
    assert "WARN" not in capfd.readouterr().err


def test_a_picture_that_the_converter_cannot_draw_is_an_error_of_ours() -> None:
    with pytest.raises(BackendUnavailable, match=r"^a picture cannot be drawn: .*write no pictures"):
        render_png({"mark": 5})


def test_layers_are_the_thirty_slowest_by_precision(charts: dict[str, Chart]) -> None:
    (rows,) = find_values(charts["per_layer_time"].spec)
    assert len(rows) == 31 and rows[0]["name"] == "conv 39" and rows[-1]["name"] == "(10 more layers)"
    assert {row["kind"] for row in rows[:30]} == {"int8", "fp32"}


def test_charts_hide_what_the_page_hides(charts: dict[str, Chart]) -> None:
    import vl_convert

    for name in set(NAMES) - {"per_layer_time"}:
        spec = charts[name].spec
        assert {"name": "hidden", "value": []} in spec["params"], name
        svg = vl_convert.vegalite_to_svg(spec)
        hidden = {**spec, "params": [{"name": "hidden", "value": ["ort fp32", "ort int8 (cpu)"]}]}
        assert len(vl_convert.vegalite_to_svg(hidden)) < len(svg), name


def test_without_the_extra_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(MissingDependency, match=r"enginebench\[report\]"):
        draw(make_results())


def find_values(node: Any) -> list[list[dict[str, Any]]]:
    """Every list of rows that stands in a specification, each once."""
    found: list[list[dict[str, Any]]] = []
    if isinstance(node, dict):
        values = node.get("values")
        if isinstance(values, list) and values and isinstance(values[0], dict):
            found.append(values)
        for value in node.get("datasets", {}).values():
            if value not in found:
                found.append(value)
        for key, value in node.items():
            if key != "datasets":
                found += [v for v in find_values(value) if v not in found]
    if isinstance(node, list):
        for value in node:
            found += [v for v in find_values(value) if v not in found]
    return found


def test_the_caption_speaks_of_a_line_where_one_is_drawn() -> None:
    point = {"per_s": 1.0, "quality": 0.9, "doubt": "", "precision": "fp32", "front": "a", "low": None, "high": None}
    for second, said in ((True, "those on the dashed line"), (False, "those with a diamond")):
        points = [{**point, "row": "a", "pareto": True}, {**point, "row": "b", "pareto": second}]
        spec = str(_draw_quality(points, "top-1", "inputs").spec)
        assert said in spec and "inputs per second" in spec and "images" not in spec
    none = _draw_quality([{**point, "row": name, "pareto": False} for name in "ab"], "top-1", "images")
    assert "none is on the front" in str(none.spec) and "diamond'" not in str(none.spec["title"])


def test_the_longest_bar_leaves_room_for_its_text() -> None:
    scale = leave_room(13.2, 14).to_dict()
    assert scale["domainMin"] == 0 and scale["domainMax"] == {"expr": "13.2 * width / max(width - 94, 94)"}
    for longest in (0.0, float("inf"), float("nan")):  # bars of nothing, and of a damaged profile, have no longest
        assert leave_room(longest, 3).to_dict() == {}


def with_samples(*lists: list[int]) -> Result:
    row = make_result()
    base = row.measurements[0]
    made = tuple(replace(base, latency_ns=values, trial=i, blocks=()) for i, values in enumerate(lists))
    return replace(row, measurements=made)


SHARED, MORE = (",".join(f"{name}_{i}=value" for i in range(20)) for name in ("first", "last"))


def test_long_names_are_cut_in_their_middle_and_numbered_where_they_look_alike() -> None:
    rows = [make_result(f"ort:{SHARED},g={n},{MORE}", identity=str(n)) for n in (1, 2)]
    first, second = label_rows(describe(rows)).values()
    assert len(first) == 46 and first.startswith("ort:first_0") and second == f"{first} #2"


def test_engines_with_long_options_keep_their_own_line_over_batches() -> None:
    engines = [f"ort:{SHARED},mode={mode},{MORE}" for mode in "ab"]
    rows = [make_result(e, batch=b, identity=f"{e}{b}") for e in engines for b in (1, 8)]
    document = describe(rows)
    assert len({point["engine"] for point in follow_batches(document, label_rows(document))}) == 2


def test_bins_hold_every_call_up_to_p999_and_equal_times_have_one_that_can_be_seen() -> None:
    values = list(range(1_000_000, 1_002_000))
    bars, medians = bin_rows([with_samples(values[:1000], values[1000:])], {"pytorch-fp32-b1": "row"})
    assert sum(bar["calls"] for bar in bars) == 1998
    assert bars[0]["from"] == pytest.approx(1.0) and bars[-1]["to"] == pytest.approx(1.001997, abs=1e-5)
    assert [m["ms"] for m in medians] == pytest.approx([1.0005, 1.0015], abs=1e-5)
    bars, _ = bin_rows([with_samples([5_000_000] * 10)], {"pytorch-fp32-b1": "row"})
    assert len(bars) == 1 and bars[0]["from"] < 5 < bars[0]["to"] and bars[0]["calls"] == 10


def test_curves_are_nearest_ranks_and_end_with_the_calls() -> None:
    values = [1_000_000 * i for i in range(1, 1001)]
    curves, thin = follow_rows([with_samples(values, values)], {"pytorch-fp32-b1": "row"})
    at = {round(p["rarity"], 3): p["ms"] for p in curves}
    assert at[0.0] == 1.0 and at[3.0] == 999.0
    middle = min(curves, key=lambda p: abs(p["rarity"] - 1.0))
    assert middle["ms"] == pytest.approx(1000 * (1 - 10 ** -middle["rarity"]), abs=1.01)
    assert {p["line"] for p in thin} == {0, 1}
    curves, _ = follow_rows([with_samples([1_000_000] * 50)], {"pytorch-fp32-b1": "row"})
    assert max(p["rarity"] for p in curves) == pytest.approx(np.log10(50), rel=1e-3)


def test_traces_show_marks_and_the_reference_kernel() -> None:
    row = make_results()[1]
    points, referenced = trace_rows([row], {row.id: "row"})
    assert referenced
    marked = [p for p in points if "marks" in p]
    assert marked and {p["marks"] for p in marked} == {"foreign cpu"}
    assert all(1.9 < p["at"] < 2.5 for p in marked)  # the second half of the second, around its tick
    latency = [p["relative"] for p in points if p["what"] == "latency"]
    assert 0.9 < min(latency) <= 1 <= max(latency) < 1.1


def test_quality_is_accuracy_where_there_is_any_else_the_cosine() -> None:
    document = describe(make_results())
    points, name = place_quality(document, label_rows(document))
    assert name == "top-1"
    assert [p["quality"] for p in points] == [0.99, 0.99, 0.985, 0.97]
    assert points[0]["per_s"] == pytest.approx(1000 / 61, rel=0.02)
    document = describe([replace(row, scores=()) for row in make_results()])
    points, name = place_quality(document, label_rows(document))
    assert name.startswith("centred cosine")
    assert points[0]["quality"] == 1.0


def test_a_baseline_in_less_precision_is_as_far_from_the_reference_as_it_was_measured() -> None:
    """Rows with copies have no FP32 row among them: the first is the baseline of the others, not the reference."""
    copies = make_result("ort", "fp16", drift=make_drift(0.1, centred=0.98))
    row = replace(copies, measure=replace(copies.measure, scope="io"))
    document = describe([make_result(), row])
    points, _ = place_quality(document, label_rows(document))
    assert document.rows[1].baseline == document.rows[1].id
    assert [p["quality"] for p in points] == [1.0, 0.98]


def test_stages_are_those_of_the_configuration_or_its_copies() -> None:
    row = make_results()[2]
    points = list_stage_medians([row], {row.id: "row"})
    assert [p["stage"] for p in points] == ["decode", "copy in", "compute", "postprocess"]
    assert sum(p["share"] for p in points) == pytest.approx(1, abs=1e-3)
    base = make_result().measurements[0]
    copied: Measurement = replace(base, h2d_ns=[1_000_000], device_ns=[5_000_000], d2h_ns=[2_000_000])
    row = replace(make_result(), measurements=(copied,))
    copies = [("copy in", 1.0), ("compute", 5.0), ("copy out", 2.0)]
    assert [(p["stage"], p["ms"]) for p in list_stage_medians([row], {row.id: "r"})] == copies
    staged = replace(row, measurements=(replace(copied, staging_ns=[3_000_000]),))
    assert [(p["stage"], p["ms"]) for p in list_stage_medians([staged], {row.id: "r"})][3:] == [
        ("staging on the host", 3.0)
    ]
    assert list_stage_medians([replace(row, measurements=(copied, base))], {row.id: "r"}) == []


def test_batches_make_lines_of_engines() -> None:
    document = describe([make_result("ort", batch=b, median_ms=b, identity=f"ort{b}") for b in (8, 1)])
    points = follow_batches(document, label_rows(document))
    assert [(p["engine"], p["batch"], p["text"]) for p in points] == [("ort fp32", 1, "1"), ("ort fp32", 8, "8")]
    doubtful = replace(document, rows=tuple(replace(row, validity="invalid") for row in document.rows))
    assert [p["text"] for p in follow_batches(doubtful, label_rows(doubtful))] == ["1 invalid", "8 invalid"]
    assert follow_batches(describe([make_result("ort"), make_result("pytorch")]), {"a": "b"}) == []
