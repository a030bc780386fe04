"""History: rows found, read once, shown, exported; nothing outside of the folder is touched."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

import enginebench.runs.history as history
from enginebench.core.errors import MissingDependency, UsageError
from enginebench.core.records import TrafficCell
from enginebench.report.charts import render_png
from enginebench.report.history import OTHERS, collect_trends, draw_trend, export_mlflow, list_history, write_parquet
from enginebench.runs.history import read_history, write_history
from enginebench.verbs.history import command
from reports import draw
from stored_history import runs
from stored_run import EVIL, make_results, make_results_with_warnings, write_run

__all__ = ["runs"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_configurations_that_did_not_change_are_not_read_again(runs, tmp_path, monkeypatch) -> None:
    first = read_history(runs)
    reads: list[Path] = []
    original = history.read_result
    monkeypatch.setattr(history, "read_result", lambda path: reads.append(path) or original(path))
    assert read_history(runs) == first and reads == []
    (changed,) = (runs / "a" / "rows").glob("pytorch-*.json")
    os.utime(changed, ns=(1, 1))
    read_history(runs)
    assert reads == [changed]
    (next((runs / "a" / "rows").glob("ort-cuda-*.json"))).unlink()
    assert len(read_history(runs).rows) == 11


def test_the_latest_configuration_is_the_last(runs: Path) -> None:
    starts = [row.started_utc for row in read_history(runs).rows]
    assert starts == sorted(starts) and len(set(starts)) > 1


def test_a_mix_has_its_shapes_with_their_weights(tmp_path: Path) -> None:
    cells = (TrafficCell(weight=0.75, batch=1), TrafficCell(weight=0.25, batch=8))
    results = [replace(one, engine=replace(one.engine, traffic=cells)) for one in make_results()]
    write_run(tmp_path / "runs" / "mix", results=results)
    assert {row.shapes for row in read_history(tmp_path / "runs").rows} == {"batch=1:0.75,batch=8:0.25"}


def test_figures_over_time_are_in_milliseconds_and_a_bound_on_a_build_is_none() -> None:
    result = replace(next(one for one in make_results() if one.measurements), build_s=3.0)
    latency_ns = [ns for one in result.measurements for ns in one.latency_ns]
    row = history.summarize_row(result, "runs/a/rows/x.json", 0.0)
    assert row.mean_ms == pytest.approx(sum(latency_ns) / len(latency_ns) / 1e6) and row.build_s == 3.0
    assert history.summarize_row(replace(result, built_beside=2), "runs/a/rows/x.json", 0.0).build_s is None


def test_figures_of_an_older_form_are_computed_again(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_history(runs)
    reads, original = list[Path](), history.read_result
    monkeypatch.setattr(history, "_CACHE_FORM", history._CACHE_FORM + 1)
    monkeypatch.setattr(history, "read_result", lambda path: reads.append(path) or original(path))
    assert len(read_history(runs).rows) == 12 and len(reads) >= 12


@pytest.mark.parametrize("content", [b"", b"\x00nonsense", b"\x93\x63\x80\x80"])
def test_a_damaged_cache_is_made_again(runs: Path, tmp_path: Path, content: bytes) -> None:
    document = read_history(runs)
    (kept,) = (tmp_path / "cache" / "enginebench" / "history").iterdir()
    kept.write_bytes(content)
    assert read_history(runs) == document


def test_damaged_files_cost_their_configuration_alone(runs: Path) -> None:
    (runs / "a" / "rows" / "broken.json").write_text('{"schema": "enginebench.result/99"}')
    (runs / "a" / "rows" / "empty.json").write_text("")
    document = read_history(runs)
    assert len(document.rows) == 12
    assert sorted(unread.path for unread in document.unread) == ["a/rows/broken.json", "a/rows/empty.json"]


def test_links_are_not_followed(runs: Path, tmp_path: Path) -> None:
    outside = write_run(tmp_path / "outside", make_results())
    (runs / "linked").symlink_to(outside)
    (runs / "a" / "rows" / "linked.json").symlink_to(next((outside / "rows").iterdir()))
    assert len(read_history(runs).rows) == 12
    with pytest.raises(UsageError, match="is not a folder"):
        read_history(tmp_path / "absent")


def test_a_configuration_that_is_not_to_be_relied_on_says_so(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "doubtful", make_results_with_warnings(n=40))
    document = read_history(tmp_path / "runs")
    measured = {f"{row.engine} {row.precision}": row for row in document.rows if row.n}
    warnings = {"pytorch fp32": "valid", "ort fp32": "suspect", "ort int8": "invalid", "openvino int8": "suspect"}
    assert {name: row.validity for name, row in measured.items()} == warnings
    assert draw(list_history(document, 20), 100).count("~ ") == 3
    points = [point["validity"] for series in collect_trends(list(measured.values())).values() for point in series]
    assert sorted(points) == ["invalid", "suspect", "suspect", "valid"]


def test_pictures_are_drawn_when_their_points_change(runs, tmp_path, monkeypatch) -> None:
    document = read_history(runs)
    drawn: list[str] = []
    monkeypatch.setattr(history, "render_png", lambda spec: drawn.append(spec["title"]["text"]) or b"png")
    written = write_history(document, runs, tmp_path / "out")
    engines = ["openvino", "ort", "pytorch"]
    assert [p.name for p in written.paths] == ["history.csv", *(f"trend-{engine}.png" for engine in engines)]
    assert drawn == [f"Trend of {engine}" for engine in engines]
    write_history(document, runs, tmp_path / "out")
    assert len(drawn) == 3
    (tmp_path / "out" / "trend-ort.png").unlink()
    (tmp_path / "out" / "trend-pytorch.png").write_bytes(b"of another folder with the same --out")
    write_history(document, runs, tmp_path / "out")
    assert drawn[3:] == ["Trend of ort", "Trend of pytorch"]


def test_trends_are_thinned_and_lines_have_colours(runs: Path) -> None:
    row = next(row for row in read_history(runs).rows if row.n)
    rows = [
        replace(row, batch=batch, started_utc=f"2026-01-01T00:{i % 60:02d}:00+00:00", p50_ms=1.0 + i)
        for batch in range(1, 31)
        for i in range(2)
    ]
    (points,) = collect_trends(rows).values()
    assert len({p["series"] for p in points}) == 12 and OTHERS in {p["series"] for p in points}
    (points,) = collect_trends([replace(row, shapes=shapes) for shapes in ("1x3x64x64", "1x3x32x32")]).values()
    assert len({p["series"] for p in points}) == 2, "inputs of other shapes make another line"
    many = collect_trends([replace(row, p50_ms=1.0 + i) for i in range(5000)])
    (points,) = many.values()
    assert len(points) == 600 and points[-1]["p50"] == 5000.0
    assert render_png(draw_trend(EVIL, points[:50])).startswith(b"\x89PNG")


def test_parquet_has_a_column_for_each_field(runs: Path, tmp_path: Path) -> None:
    import pyarrow.parquet

    document = read_history(runs)
    write_parquet(document.rows, tmp_path / "h.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "h.parquet")
    assert table.num_rows == 12
    assert table.column("p50_ms").to_pylist() == [row.p50_ms for row in document.rows]
    assert str(table.schema.field("batch").type) == "int64" and str(table.schema.field("score").type) == "double"


def test_a_missing_exporter_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingDependency, match=r"enginebench\[parquet\]"):
        write_parquet([], tmp_path / "h.parquet")


def test_an_empty_page_of_mlflow_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    class Page(list[object]):
        token = ""

    asked: list[str | None] = []

    def search_runs(identities: list[str], max_results: int, page_token: str | None) -> Page:
        asked.append(page_token)
        assert len(asked) < 3
        page = Page()
        page.token = "second" if page_token is None else ""
        return page

    client = SimpleNamespace(search_runs=search_runs, get_experiment_by_name=lambda _: SimpleNamespace(experiment_id=1))
    tracking = SimpleNamespace(MlflowClient=lambda tracking_uri: client)
    monkeypatch.setitem(sys.modules, "mlflow.tracking", tracking)
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", SimpleNamespace(MlflowException=OSError))
    assert export_mlflow([], "http://x", "e") == (0, 0)
    assert asked == [None, "second"]


@pytest.mark.parametrize("option", ["--site", "--parquet", "--mlflow"])
def test_what_an_option_refuses_leaves_nothing_written(option, tmp_path, monkeypatch) -> None:
    """An empty folder has no site, and without its package there is no table and no store of MLflow."""
    for name in ("pyarrow", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "results").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError if option == "--site" else MissingDependency):
        command.main(["results", option, "new"], standalone_mode=False)
    assert not (tmp_path / "new").exists() and not [*(tmp_path / "results").iterdir()]
