"""Tables on narrow terminals: which row a figure belongs to is never lost, and what is left out is said."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from enginebench.core.caveats import make_caveat
from enginebench.door import program as group
from enginebench.features.sweep.document import SweepCell, SweepDocument, SweepRow
from enginebench.features.sweep.sections import list_sweep
from enginebench.models.zoo import BUILTIN
from enginebench.report.history.table import HistoryDocument, HistoryRow, list_history
from reports import draw
from samples import make_estimate


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


def make_sweep() -> SweepDocument:
    single, sure = make_estimate(0.0139), make_estimate(0.00631, 0.0062, 0.0064)
    rows = [
        SweepRow(
            id="a",
            status="ok",
            validity="suspect",
            p50_ms=sure,
            p99_ms=make_estimate(0.00968),
            speedup=make_estimate(1.5, 1.45, 1.55),
        ),
        SweepRow(
            id="b",
            status="ok",
            p50_ms=_doubt(single),
            p99_ms=make_estimate(0.0654, 0.049, 0.077),
            speedup=_doubt(single),
            caveats=(make_caveat("single_process"),),
        ),
    ]
    cells = [
        SweepCell(model="zoo/small.onnx", machine_kind="local", engine=engine, precision="fp32", row=row)
        for engine, row in zip(("ort", "openvino"), rows, strict=True)
    ]
    return SweepDocument(store="s", cells=tuple(cells), failed=())


def _doubt(figure):  # type: ignore[no-untyped-def]
    from msgspec.structs import replace

    return replace(figure, supported=False)


def show(what: str, width: int) -> list[str]:
    sections = list_history(make_history(), 20) if what == "history" else list_sweep(make_sweep())
    return draw(sections, width).splitlines()


@pytest.mark.parametrize("width", [60, 40])
@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("history", {"model", "engine", "precision", "p50", "ort", "pytorch", "fp32", "int8", "0.003011"}),
        ("sweep", {"model", "engine", "ort", "fp32", "~", "p50"}),
    ],
)
def test_a_row_keeps_its_name_and_its_median(what: str, names: set[str], width: int) -> None:
    lines = show(what, width)
    assert names <= set(" ".join(lines).split())
    assert "…" not in "".join(lines) and max(map(len, lines)) <= width
    assert any(line.startswith(f"  not shown in {width} columns: ") for line in lines)


@pytest.mark.parametrize("what", ["history", "sweep"])
def test_80_columns_hold_every_figure(what: str) -> None:
    assert "not reported" not in "\n".join(show(what, 80))


@pytest.mark.parametrize("width", [60, 40])
def test_models_keep_their_names(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    found = CliRunner().invoke(group, ["models"])
    assert all(name in found.output.split() for name in BUILTIN)
    assert f"not shown in {width} columns: " in found.output


def test_a_sweep_marks_doubt_where_the_number_stands() -> None:
    lines = show("sweep", 80)
    (single,) = [line for line in lines if "  openvino" in line]
    assert single.split()[-4:] == ["0.0139?", "0.0654", "about", "0.014x"]
    (disturbed,) = [line for line in lines if " ort " in line]
    assert "~ 0.00631" in disturbed and "?" not in disturbed
    assert any("1 of 2 rows: measured in a single trial" in line for line in lines)
    assert any("? a single trial" in line for line in lines)
