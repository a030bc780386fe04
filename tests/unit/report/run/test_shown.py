"""What is shown of a run of many configurations."""

from msgspec.structs import replace
from tests.helpers.samples import make_result

from enginebench.core.records import Result
from enginebench.report.run.head import format_head
from enginebench.report.run.rows import RunDocument, describe_run
from enginebench.report.run.sections import list_report, list_sections
from enginebench.report.run.shown import shorten_document


def make_rows(count: int, *, batches: bool) -> list[Result]:
    rows = []
    for i in range(count):
        row = make_result("ort")
        engine = replace(row.engine, batch=i + 1) if batches else replace(row.engine, options={"streams": str(i + 1)})
        rows.append(replace(row, id=f"row-{i}", engine=engine))
    return rows


def describe(rows: list[Result]) -> RunDocument:
    return describe_run(model="m", machine=None, spec={}, results=rows)


def test_a_document_that_fits_stays_as_it_is() -> None:
    document = describe(make_rows(12, batches=False))
    assert shorten_document(document, 12) is document


def test_what_the_head_names_and_the_fastest_are_kept() -> None:
    document = describe(make_rows(30, batches=False))
    short = shorten_document(document, 8)
    assert len(short.rows) == 8
    assert document.headlines[0].id in {row.id for row in short.rows}
    assert short.notes[-1].startswith("Shown: 8 of 30 configurations.")
    assert format_head(short) == format_head(document)  # ties with 29 others, three of them by name


def test_of_many_settings_some_are_shown_whole() -> None:
    document = describe(make_rows(30, batches=True))
    short = shorten_document(document, 8)
    known = {row.id for row in short.rows}
    assert len(known) == 8
    assert all(headline.id in known for headline in short.headlines)
    assert "and what to use in 8 of 30 settings" in short.notes[-1]
    assert list_report(short)
    assert list_sections(short)
