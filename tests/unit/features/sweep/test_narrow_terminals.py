"""The table of a sweep on narrow terminals."""

import pytest
from msgspec.structs import replace

from enginebench.core.caveats import make_caveat
from enginebench.core.records import Estimate
from enginebench.features.sweep.document import SweepCell, SweepDocument, SweepRow
from enginebench.features.sweep.sections import list_sweep
from reports import draw
from samples import make_estimate


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


def _doubt(figure: Estimate) -> Estimate:
    return replace(figure, supported=False)


@pytest.mark.parametrize("width", [60, 40])
def test_a_row_keeps_its_name_and_its_median(width: int) -> None:
    lines = draw(list_sweep(make_sweep()), width).splitlines()
    assert {"model", "engine", "ort", "fp32", "~", "p50"} <= set(" ".join(lines).split())
    assert "…" not in "".join(lines) and max(map(len, lines)) <= width
    assert any(line.startswith(f"  not shown in {width} columns: ") for line in lines)


def test_a_sweep_marks_doubt_where_the_number_stands() -> None:
    lines = draw(list_sweep(make_sweep()), 80).splitlines()
    assert "not shown" not in "\n".join(lines)
    (single,) = [line for line in lines if "  openvino" in line]
    assert single.split()[-4:] == ["0.0139?", "0.0654", "about", "0.014x"]
    (disturbed,) = [line for line in lines if " ort " in line]
    assert "~ 0.00631" in disturbed and "?" not in disturbed
    assert any("1 of 2 rows: measured in a single trial" in line for line in lines)
    assert any("? a single trial" in line for line in lines)
