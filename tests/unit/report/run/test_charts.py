"""Charts of a run: which there are, that Vega takes them, and what they hold."""

import json
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from enginebench.core.errors import MissingDependency
from enginebench.core.records import Result
from enginebench.report.charts import leave_room, render_png
from enginebench.report.run.charts import Chart, _draw_quality, draw_run
from enginebench.report.run.rows import describe_run
from samples import make_machine, make_result
from stored_run import EVIL, make_results

NAMES = [
    "speedup", "latency_hist", "percentiles", "latency_over_time", "pareto", "stages", "per_layer_time", "precision",
]  # fmt: skip


def draw(results: list[Result]) -> list[Chart]:
    return draw_run(describe_run(model="m", machine=make_machine(), spec={}, results=results), results)


@pytest.fixture(scope="module")
def charts() -> dict[str, Chart]:
    return {chart.name: chart for chart in draw(make_results())}


def test_every_chart_that_the_rows_can_fill(charts: dict[str, Chart]) -> None:
    assert list(charts) == NAMES
    assert [c.name for c in draw([make_result()])] == ["speedup", "latency_hist", "percentiles", "latency_over_time"]
    assert draw([make_result(status="failed", reason="died")]) == []


@pytest.mark.parametrize("name", NAMES)
def test_vega_draws_it_without_a_warning(
    charts: dict[str, Chart], name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert render_png(charts[name].spec, scale=1).startswith(b"\x89PNG")
    assert "WARN" not in capfd.readouterr().err


def test_layers_are_the_thirty_slowest_by_precision(charts: dict[str, Chart]) -> None:
    (rows,) = find_values(charts["per_layer_time"].spec)
    assert len(rows) == 31 and rows[0]["name"] == "conv 39" and rows[-1]["name"] == "(10 more layers)"
    assert {row["kind"] for row in rows[:30]} == {"int8", "fp32"}


def test_two_profiled_rows_have_two_pictures() -> None:
    results = make_results()
    twice = [results[2], *results[:2], *results[3:]]
    twice[1] = make_results()[2]
    charts = [c for c in draw([results[2], replace(results[2], id="other")]) if c.section == "layers"]
    assert [(c.name, c.picture) for c in charts] == [("per_layer_time", True), ("per_layer_time_2", False)]
    assert len({c.row for c in charts}) == 2


def test_the_picture_of_layers_is_of_the_fastest_row() -> None:
    results = make_results()
    charts = draw([replace(row, layers=results[2].layers) for row in results[:3]])
    assert [c.row for c in charts if c.name == "per_layer_time"] == ["ort int8 (cpu)"]
    others = [c.name for c in charts if c.section == "layers" and not c.picture]
    assert others == ["per_layer_time_1", "per_layer_time_2"]


def test_charts_hide_what_the_page_hides(charts: dict[str, Chart]) -> None:
    import vl_convert

    for name in set(NAMES) - {"per_layer_time"}:
        spec = charts[name].spec
        assert {"name": "hidden", "value": []} in spec["params"], name
        svg = vl_convert.vegalite_to_svg(spec)
        hidden = {**spec, "params": [{"name": "hidden", "value": ["ort fp32", "ort int8 (cpu)"]}]}
        assert len(vl_convert.vegalite_to_svg(hidden)) < len(svg), name


def test_names_in_charts_are_data() -> None:
    for chart in draw(make_results(evil=True)):
        text = json.dumps({**chart.spec, "datasets": None})
        if chart.name != "per_layer_time":
            assert EVIL[:12] not in text.replace("\\", "") or "sort" in text, chart.name
        assert render_png(chart.spec, scale=1).startswith(b"\x89PNG")


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
        chart = _draw_quality(points, "top-1")
        assert chart is not None and said in str(chart.spec)
    none = _draw_quality([{**point, "row": name, "pareto": False} for name in "ab"], "top-1")
    assert none is not None and "no clear winner" in str(none.spec) and "diamond'" not in str(none.spec["title"])


def test_the_longest_bar_leaves_room_for_its_text() -> None:
    scale = leave_room(13.2, 14).to_dict()
    assert scale["domainMin"] == 0 and scale["domainMax"] == {"expr": "13.2 * width / max(width - 94, 94)"}
    for longest in (0.0, float("inf"), float("nan")):  # bars of nothing, and of a damaged profile, have no longest
        assert leave_room(longest, 3).to_dict() == {}
