"""Tables on narrow terminals: which row a figure belongs to is never lost, and what is left out is said."""

import pytest
from click.testing import CliRunner

from enginebench.door import program as group
from enginebench.models.zoo import BUILTIN
from enginebench.report.history.table import HistoryDocument, HistoryRow, list_history
from reports import draw


def make_history() -> HistoryDocument:
    rows = [
        HistoryRow(
            path="a.json",
            run="a",
            id=engine,
            started_utc="2026-11-23T06:01:00Z",
            model="digits-mlp",
            engine=engine,
            engine_version="1",
            precision=precision,
            recipe=None,
            batch=1,
            scope="compute",
            cache="hot",
            device="cpu",
            threads=1,
            status="ok",
            validity="suspect",
            clock=None,
            n=419432,
            processes=6,
            p50_ms=0.003011,
            p99_ms=0.00773,
            mean_ms=0.004,
            reference_ms=None,
            metric=None,
            score=None,
            build_s=None,
            size_bytes=None,
            cpu_model=None,
            gpu=None,
        )
        for engine, precision in (("ort", "fp32"), ("pytorch", "int8"))
    ]
    return HistoryDocument(rows=tuple(rows))


@pytest.mark.parametrize("width", [60, 40])
def test_a_row_keeps_its_name_and_its_median(width: int) -> None:
    lines = draw(list_history(make_history(), 20), width).splitlines()
    names = {"model", "engine", "precision", "p50", "ort", "pytorch", "fp32", "int8", "0.003011"}
    assert names <= set(" ".join(lines).split())
    assert "…" not in "".join(lines) and max(map(len, lines)) <= width
    assert any(line.startswith(f"  not shown in {width} columns: ") for line in lines)


def test_80_columns_hold_every_figure() -> None:
    assert "not shown" not in draw(list_history(make_history(), 20), 80)


@pytest.mark.parametrize("width", [60, 40])
def test_models_keep_their_names(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    found = CliRunner().invoke(group, ["models"])
    assert all(name in found.output.split() for name in BUILTIN)
    assert f"not shown in {width} columns: " in found.output
