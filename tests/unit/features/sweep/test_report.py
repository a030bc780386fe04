"""The page, the table and the terminal of a sweep; `sweep`, `report` and `history` on the command line."""

import csv
import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from enginebench.core.errors import EngineBenchError, UsageError
from enginebench.core.warnings import make_warning
from enginebench.features.sweep.document import SweepCell, SweepDocument, SweepRow
from enginebench.features.sweep.reporting import read_prices, report_sweep
from enginebench.features.sweep.sections import format_warnings, list_sweep, rank_cell
from enginebench.features.sweep.spec import read_spec
from enginebench.features.sweep.verb import run_sweep
from enginebench.models.zoo import DATA_DIR
from enginebench.report.progress import PlainReporter
from reports import draw
from samples import make_estimate

SPEC = """
engines = [{engines}]
processes = {processes}
iters = 3
warmup = 1
[[model]]
name = "{model}"
"""


@pytest.mark.usefixtures("children")
def test_the_report_has_every_configuration_its_price_and_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a<b>.onnx").write_bytes((DATA_DIR / "digits-mlp.onnx").read_bytes())
    engines = '"fake:latency_us=20", "fake:latency_us=10", "fake:fault=raise"'
    (tmp_path / "sweep.toml").write_text(SPEC.format(engines=engines, processes=1, model="a<b>.onnx"))
    (tmp_path / "prices.toml").write_text('currency = "EUR"\n[per_hour]\nlocal = 3.6\n')
    store = tmp_path / "store"
    reporter = PlainReporter()
    run_sweep(read_spec(tmp_path / "sweep.toml"), str(store), reporter=reporter)
    counted = [(int(done), int(total)) for done, total in re.findall(r"\[(\d+)/(\d+)\]", capsys.readouterr().err)]
    assert counted[-1] == (1, 1) and all(done <= total for done, total in counted)
    document, written = report_sweep(str(store), ("html", "csv", "json"), None, tmp_path / "prices.toml")
    assert [path.name for path in written.paths] == ["report.html", "table.csv", "report.json"]
    with (store / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["ok", "ok", "failed"]
    for row in rows[:2]:
        assert float(row["cost_per_million"]) == pytest.approx(1000 / float(row["throughput_per_s"]))
    assert json.loads((store / "report.json").read_bytes())["currency"] == "EUR" == document.currency
    (tmp_path / "other.toml").write_text("[per_hour]\nlocal = 1\nnolocal = 2\n")
    with pytest.raises(UsageError, match="no machine kind nolocal; there are: local"):
        report_sweep(str(store), ("csv",), None, tmp_path / "other.toml")
    page = (store / "report.html").read_text()
    (group,) = (store / "sweep-pages").iterdir()
    assert group.name in page and "1 without figures: while it was built and checked" in page
    assert "a<b>" not in page and "a<b>" not in group.read_text()


@pytest.mark.parametrize(
    "text", ["[per_hour]\nbox = -1\n", "[per_hour]\nbox = nan\n", "per_hour = 3\n", "x = 1\n", "["]
)
def test_a_price_is_a_number(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(EngineBenchError, match=r"p\.toml"):
        read_prices(tmp_path / "p.toml")


def make_sweep() -> SweepDocument:
    single = replace(make_estimate(0.0139), supported=False)
    sure = make_estimate(0.00631, 0.0062, 0.0064)
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
            p50_ms=single,
            p99_ms=make_estimate(0.0654, 0.049, 0.077),
            speedup=single,
            warnings=(make_warning("too_few_trials", n=1, needed=5),),
        ),
    ]
    cells = [
        SweepCell(model="zoo/small.onnx", machine_kind="local", engine=engine, precision="fp32", row=row)
        for engine, row in zip(("ort", "openvino"), rows, strict=True)
    ]
    return SweepDocument(store="s", cells=tuple(cells), failed=())


def test_a_sweep_marks_warning_where_the_number_stands() -> None:
    lines = draw(list_sweep(make_sweep()), 80).splitlines()
    assert "not shown" not in "\n".join(lines)
    (single,) = [line for line in lines if "  openvino" in line]
    assert single.split()[-4:] == ["13.9?", "65.4", "about", "0.014x"]
    (disturbed,) = [line for line in lines if " ort " in line]
    assert "~ 6.31" in disturbed and "?" not in disturbed
    assert any("1 of 2: measured in 1 of the 5 trials" in line for line in lines)
    assert any("? a single trial" in line for line in lines)


def test_an_implausible_time_is_the_fastest_of_no_model() -> None:
    fast, honest = make_sweep().cells[:2]
    assert fast.row and honest.row
    cheat = replace(fast, row=replace(fast.row, validity="implausible", p50_ms=make_estimate(0.0001)))
    assert min([cheat, honest], key=rank_cell) is honest
    assert rank_cell(cheat)[0]


def test_what_was_random_is_said_of_the_configurations_that_have_it() -> None:
    made_up = (
        make_warning("random_weights", seed=0, reason="as asked"),
        make_warning("random_inputs", seed=0, cure="give --inputs F.npz"),
    )
    rows = [SweepRow(id="a", status="ok", warnings=(warning,)) for warning in made_up]
    assert [line[:6] for line in format_warnings(rows)] == ["1 of 2"] * 2
