"""Tables on narrow terminals: which row a figure belongs to is never lost, and what is left out is said."""

from __future__ import annotations

import io

import pytest
from click.testing import CliRunner
from rich.console import Console

from enginebench.cli.door import group
from enginebench.core.caveats import make_caveat
from enginebench.models.zoo import BUILTIN
from enginebench.report.history.table import HistoryDocument, HistoryRow, print_history
from enginebench.report.sweep.document import SweepCell, SweepDocument, SweepRow
from enginebench.report.sweep.terminal import print_sweep
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
    out = io.StringIO()
    console = Console(file=out, width=width)
    if what == "history":
        print_history(make_history(), console, 20)
    else:
        print_sweep(make_sweep(), console)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 40])
@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("history", {"model", "engine", "prec.", "p50", "ort", "pytorch", "fp32", "int8", "0.003011"}),
        ("sweep", {"model", "engine", "prec.", "ort", "fp32", "suspect", "p50"}),
    ],
)
def test_a_row_keeps_its_name_and_its_median(what: str, names: set[str], width: int) -> None:
    lines = show(what, width)
    assert names <= set(" ".join(lines).split())
    assert "…" not in "".join(lines) and max(map(len, lines)) <= width
    assert any(line.startswith(f"not shown in {width} columns: ") for line in lines)


@pytest.mark.parametrize("what", ["history", "sweep"])
def test_80_columns_hold_every_figure(what: str) -> None:
    assert "not shown" not in "\n".join(show(what, 80))


@pytest.mark.parametrize("width", [60, 40])
def test_models_keep_their_names(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    found = CliRunner().invoke(group, ["models"])
    assert all(name in found.output.split() for name in BUILTIN)
    assert f"not shown in {width} columns: " in found.output


def test_a_sweep_marks_doubt_where_the_number_stands() -> None:
    lines = show("sweep", 80)
    (single,) = [line for line in lines if "openvino" in line]
    assert single.split()[-3:] == ["0.0139?", "0.049..0.077", "0.0139x?"]
    at = next(i for i, line in enumerate(lines) if " ort " in line)
    end = lines[0].index("p50 ms") + len("p50 ms")
    assert lines[at + 1][:end].split()[-1] == "suspect" and "?" not in lines[at]
    assert any(line.startswith("1 of 2 rows: measured in a single process") for line in lines)
    assert any(line.startswith("? a single process") for line in lines)
