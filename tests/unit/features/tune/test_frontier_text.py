"""The picture of a search: every candidate with two figures, and a line along those that nothing beats."""

import pytest

from enginebench.features.tune.document import Candidate, FrontierPoint, TuneDocument
from enginebench.features.tune.sections import draw_frontier, list_points
from enginebench.features.tune.sections import list_tune_page
from enginebench.measure.machine import describe_machine
from enginebench.report.charts import render_png
from enginebench.report.page import format_page


def make_candidate(name, speed, quality, *, default=False, graph=""):
    return Candidate(candidate=name, id=name, default=default, speed=speed, processes=3, quality=quality, graph=graph)


@pytest.fixture
def document():
    candidates = (
        make_candidate("fp32", 0.8, 1.0, default=True),
        make_candidate("int8", 1.2, 0.7, default=True),
        make_candidate("mix <b>", 1.0, 0.96, graph="mix"),
        make_candidate("worse", 0.7, 0.9),
        make_candidate("failed", None, None),
    )
    return TuneDocument(
        model="m",
        machine=describe_machine(),
        goal="latency",
        unit="ms",
        winner=None,
        default=None,
        challenger=None,
        beaten=False,
        verdict=None,
        ratio=None,
        dropped=(),
        frontier=tuple(
            FrontierPoint(candidate=c.candidate, id=c.id, speed=c.speed, quality=c.quality) for c in candidates[:3]
        ),
        final=(),
        candidates=candidates,
        quality_of="centred cosine",
        generations=1,
        processes=9,
        budget_s=60.0,
        spent_s=50.0,
        finished=True,
    )


def test_points_say_what_kind_they_are_and_who_is_on_the_frontier(document):
    points = {point["candidate"]: point for point in list_points(document)}
    assert {name: point["kind"] for name, point in points.items()} == {
        "fp32": "default",
        "int8": "default",
        "mix <b>": "mixed precision",
        "worse": "other setting",
    }
    assert [name for name, point in points.items() if point["front"]] == ["fp32", "int8", "mix <b>"]


def test_the_picture_is_drawn_and_stands_on_the_page(document):
    pytest.importorskip("altair")
    spec = draw_frontier(document)
    assert "centred cosine" in str(spec) and render_png(spec)[:4] == b"\x89PNG"
    page = format_page("t", list_tune_page(document, spec), bundle="/* vegaEmbed */")
    assert 'data-chart="frontier"' in page and "mix <b>" not in page.replace(r"mix \u003cb>", "")


def test_without_the_library_the_page_has_its_table(document):
    page = format_page("t", list_tune_page(document))
    assert 'data-chart="frontier"' not in page and "mix &lt;b&gt;" in page
