"""Latency against throughput: series, the largest batch within a limit, the page, the picture."""

from msgspec.structs import replace

from enginebench.report.run.batches import describe_limit, find_largest, list_batches, make_batches
from enginebench.report.run.rows import Row, RunDocument
from reports import write_markdown
from samples import make_estimate, make_run


def make_rows() -> list[Row]:
    """`a` at batches 8, 1 and 32, the last out of memory; `b` at one batch only."""
    template = make_run().rows[0]

    def make(engine: str, batch: int, p99_ms: float | None) -> Row:
        return replace(
            template,
            engine=engine,
            batch=batch,
            p50_ms=make_estimate(p99_ms / 2) if p99_ms else None,
            p99_ms=make_estimate(p99_ms) if p99_ms else None,
            throughput_per_s=1000 * batch / p99_ms if p99_ms else None,
            status="ok" if p99_ms else "failed",
        )

    return [make("a", 8, 4.0), make("a", 1, 1.0), make("a", 32, None), make("b", 1, 2.0)]


def read(rows: list[Row]) -> list[tuple[str, ...]]:
    (table,) = make_batches(rows)
    return [tuple(column.text(row) for column in table.columns) for row in table.rows]  # type: ignore[union-attr]


def test_series_are_the_engines_with_several_batches_in_order() -> None:
    (series,) = list_batches(make_rows())
    assert [(row.engine, row.batch) for row in series] == [("a", 1), ("a", 8), ("a", 32)]
    assert [line[-1] for line in read(make_rows())] == ["1.00", "2.00", ""]


def test_other_scopes_and_cold_rows_are_not_mixed_in() -> None:
    rows = [replace(row, scope="io") for row in make_rows()] + [replace(row, cache="cold") for row in make_rows()]
    assert list_batches(rows) == []


def test_the_largest_batch_keeps_to_the_limit() -> None:
    for limit, largest in ((0.5, None), (1.0, 1), (3.9, 1), (4.0, 8), (100.0, 8)):
        (series,) = list_batches(make_rows())
        assert getattr(find_largest(series, limit), "batch", None) == largest
    assert describe_limit(list_batches(make_rows()), 4.0) == ["a fp32: batch 8 is the largest within p99 4 ms."]
    assert describe_limit(list_batches(make_rows()), 0.5) == ["a fp32: no batch that was measured within p99 0.5 ms."]
    assert describe_limit(list_batches(make_rows()), None) == []


def test_a_batch_that_failed_shows_that() -> None:
    assert read(make_rows())[2] == ("a", "fp32", "32", "failed", "", "", "")


def test_a_batch_that_cannot_be_relied_on_says_so() -> None:
    def doubt(row: Row) -> Row:
        estimate = row.p99_ms and replace(row.p99_ms, supported=False)
        return replace(row, validity="suspect", p99_ms=estimate) if row.batch == 8 else row

    series = list_batches([doubt(row) for row in make_rows()])
    assert read([doubt(row) for row in make_rows()])[1][3:5] == ("~ 2.00", "4.00?")
    assert describe_limit(series, 4.0) == [
        "a fp32: batch 8 is the largest within p99 4 ms (too few samples for a p99, disturbed)."
    ]


def test_an_invalid_batch_keeps_to_no_limit() -> None:
    rows = [replace(row, validity="invalid") if row.batch == 8 else row for row in make_rows()]
    series = list_batches(rows)
    assert describe_limit(series, 4.0) == ["a fp32: batch 1 is the largest within p99 4 ms."]
    none = list_batches([replace(row, validity="invalid") for row in make_rows()])
    assert describe_limit(none, 4.0) == ["a fp32: only batches whose configurations are disturbed meet p99 4 ms."]


def test_the_page_of_a_run_has_the_table() -> None:
    document = replace_rows(make_run(), make_rows())
    page = write_markdown(replace(document, spec={"p99_limit_ms": 4.0}))
    assert "## Latency against throughput" in page
    assert "batch 8 is the largest within p99 4 ms" in page
    assert "Latency against" not in write_markdown(make_run())


def replace_rows(document: RunDocument, rows: list[Row]) -> RunDocument:
    return replace(document, rows=tuple(rows), fastest=None, recommended=None, headlines=())
