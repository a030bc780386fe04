"""Reports, files and pictures made from trtexec's artifacts."""

import csv
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import trtexec_artifacts as made
from enginebench.core.errors import EngineBenchError, MissingDependency
from enginebench.features.trtexec.files import write_layers, write_log, write_profile, write_series, write_times
from enginebench.features.trtexec.folder import read_folder
from enginebench.features.trtexec.log import read_trtexec_log
from enginebench.features.trtexec.report import describe_cases, draw_case, draw_series
from enginebench.features.trtexec.reporting import list_trtexec, report_folder
from enginebench.features.trtexec.times import select_timed
from enginebench.features.trtexec.trace import read_trace
from enginebench.features.trtexec.verb import command as parse_command
from enginebench.features.trtexec.verb import parse_times
from enginebench.report.charts import import_altair, render_png
from enginebench.report.markdown import format_sections
from enginebench.runs.folder import FORMATS
from enginebench.stats.layer_diff import compare_layers
from enginebench.stats.plans.layers import read_layer_info
from enginebench.stats.plans.profile import read_layer_profile
from enginebench.verbs.report import command as report_command
from enginebench.verbs.report import write_report
from pages import find_code, find_section, find_tables, read_page
from trtexec_mutations import damage


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """All artifacts of one run, in a folder whose name has a space and is not ASCII."""
    return made.fill(tmp_path / "ein ördner", n=400)


def render_trtexec_folder(folder: Path, formats: Sequence[str] = ("md", "json", "png")) -> tuple[Path, ...]:
    return report_folder(folder, formats)[0].paths


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def hold(chart: dict[str, Any]) -> int:
    """How many rows of data a specification holds."""
    datasets = [layer["data"]["values"] for layer in [chart, *chart.get("layer", [])] if "data" in layer]
    return sum(map(len, datasets))


def test_the_files_that_help_and_page_promise_are_those_that_are_written(folder: Path, tmp_path: Path) -> None:
    page, help_text = read_page("trtexec.md"), write_report.__doc__ or ""
    written = {path.name for path in render_trtexec_folder(folder, FORMATS)}
    assert {name for name in written if not name.endswith(".png")} == set(re.findall(r"\b\w+\.\w+(?=[ ,])", help_text))
    (table,) = find_tables(find_section(page, "## A whole folder"))
    assert written == {name for row in table for name in find_code(row["file"])}
    asked = "--out", str(tmp_path / "out")
    assert CliRunner().invoke(parse_command, ["times", str(folder / "times.json"), *asked]).exit_code == 0
    (promised,) = re.findall(r"^Files: ((?:.+\n)+)", find_section(page, "### Timing files"), re.MULTILINE)
    names = set(find_code(promised.partition(" A series")[0]))
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    asked = "profile", str(folder / "profile.json"), "--out", str(tmp_path / "layers")
    assert CliRunner().invoke(parse_command, asked).exit_code == 0
    assert (tmp_path / "layers" / "per_layer_time.png").read_bytes().startswith(b"\x89PNG")


def test_a_loaded_plan_has_the_precision_of_its_layers_and_what_is_said_comes_first(folder: Path) -> None:
    log = made.make_log(n=400)
    loaded = [f"{made.STAMP} [I] {line}\n" for line in ("=== Build Options ===", "Precision: FP32", "Load engine: a")]
    (folder / "run.log").write_text("".join(loaded) + log)
    (case,) = describe_cases(read_folder(folder)).cases
    assert (case.precision, case.build_options) == ("fp32", {}), "not FP32, as the log has it"
    (folder / "layers.json").unlink()
    assert describe_cases(read_folder(folder)).cases[0].precision is None, "not that of a build that was none"
    args = (str(folder), "--format", "json", "--model", "m", "--precision", "fp8", "--batch", "8")
    assert CliRunner().invoke(report_command, args).exit_code == 0
    (case,) = json.loads((folder / "report.json").read_text())["cases"]
    assert (case["model"], case["precision"], case["batch"]) == ("m", "fp8", 8)
    assert case["images_per_s"] == 8 * case["throughput_qps"]
    (folder.parent / "empty").mkdir()
    refused = CliRunner().invoke(report_command, [str(folder.parent / "empty"), "--batch", "8"])
    assert "--batch belongs to reports on what trtexec wrote" in str(refused.exception)


def test_a_contradiction_is_said_first(folder: Path) -> None:
    (folder / "run.log").write_text(made.make_log(n=300))
    render_trtexec_folder(folder, ["md", "json"])
    text = (folder / "report.md").read_text()
    assert "**contradiction** the log has 300 timed queries, the timing file 400" in text
    assert "figures are those of the timing file" in text
    assert not list(folder.glob("*.png"))


def test_foreign_text_stays_text_and_drift_is_shown(folder: Path) -> None:
    (folder / "profile.json").write_bytes(made.make_profile(["a|b <script>", "=1+1", "`x`", "\x1b[2J", "e"]))
    (folder / "layers.json").unlink()
    render_trtexec_folder(folder, ["md", "json"])
    text = (folder / "report.md").read_text()
    assert "<script>" not in text and "\x1b" not in text and "a|b" not in text
    drift = {"n": 3, "outputs": [{"name": "logits|x", "max_abs_diff": 0.5, "nonfinite": 0}, 7]}
    (folder / "output_diff.json").write_text(json.dumps(drift))
    render_trtexec_folder(folder, ["md", "json"])
    assert "| logits&#124;x |  | 0.50000 |" in (folder / "report.md").read_text()
    assert json.loads((folder / "report.json").read_text())["cases"][0]["drift"] == drift


def test_without_altair_or_vl_convert_the_report_says_how_to_get_pictures(folder, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(MissingDependency, match=r'pip install "enginebench\[report\]"'):
        import_altair()
    assert {path.name for path in render_trtexec_folder(folder)} == {"report.md", "report.json"}
    assert "no pictures" in (folder / "report.md").read_text()
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(MissingDependency, match="vl-convert"):
        render_png({})


@pytest.mark.parametrize("n", [1, 2, 7, 339, 340, 341, 5000])
def test_charts_of_any_number_of_queries(n: int) -> None:
    assert 0 < hold(draw_series(made.sample_latencies(n)["latency"], "title")) < 1100


def test_times_as_files_where_a_missing_one_is_an_empty_line(folder: Path, tmp_path: Path) -> None:
    path, out = folder / "times.json", tmp_path / "out"
    document = parse_times(path, batch=2, model="=cmd()", log=None, warmup_ms=None, precision=None)
    paths = write_times(document, select_timed(read_trace(path), path, None, None), out)
    assert [path.name for path in paths] == [
        "summary.json",
        "summary.csv",
        "latency_percentiles.csv",
        "latency_series.csv",
        "enqueue_series.csv",
        "compute_series.csv",
    ]
    rows = read_csv(out / "summary.csv")
    assert [row["row"] for row in rows] == ["latency_ms", "gpu_compute_ms", "h2d_ms", "d2h_ms", "enqueue_ms"]
    assert rows[0]["model"] == "'=cmd()" and float(rows[0]["p99_ms"]) == document.latency_ms.percentiles["99"]
    assert float(rows[0]["images_per_s"]) == document.images_per_s
    assert float(rows[0]["p50_low_ms"]) <= float(rows[0]["p50_ms"]) <= float(rows[0]["p50_high_ms"])
    assert float(rows[0]["cov"]) == document.cov["latency_ms"]
    series = (out / "latency_series.csv").read_text().splitlines()
    assert series[0] == "latency_ms" and len(series) == 401
    assert [float(line) for line in series[1:]] == made.sample_latencies(400)["latency"].tolist()
    curve = read_csv(out / "latency_percentiles.csv")
    assert [row["percentile"] for row in curve][:2] == ["1.0", "5.0"] and curve[-1]["percentile"] == "100.0"
    assert float(curve[-1]["nearest_rank_ms"]) == float(curve[-1]["trtexec_ms"]) == document.latency_ms.max
    short = write_series(np.array([1.5, np.nan, 2e-7]), "x_ms", tmp_path / "s.csv")
    assert short.read_text() == "x_ms\n1.5\n\n2e-7\n"


def test_log_profile_and_layers_as_files(folder: Path, tmp_path: Path) -> None:
    write_log(read_trtexec_log(folder / "run.log"), tmp_path / "log")
    (row,) = read_csv(tmp_path / "log" / "summary.csv")
    assert (row["status"], row["queries"]) == ("passed", "400")
    profile = read_layer_profile(folder / "profile.json")
    write_profile(profile, tmp_path / "profile")
    layers = read_csv(tmp_path / "profile" / "per_layer_times.csv")
    assert [row["layer"] for row in layers] == list(reversed(made.LAYERS))
    engine = read_layer_info(folder / "layers.json", profile=profile)
    names = {path.name for path in write_layers(compare_layers(engine, engine), tmp_path / "layers")}
    assert names == {"summary.json", "layers.csv", "layer_diff.csv"}
    assert read_csv(tmp_path / "layers" / "layer_diff.csv")[0]["delta_ms"] == "0.0"
    assert read_csv(tmp_path / "layers" / "layers.csv")[0]["onnx_nodes"] == "/stem/Conv + /stem/Relu"


@pytest.mark.parametrize("seed", range(0, 60, 5))
def test_damaged_files_give_a_report_or_an_error_of_ours(tmp_path: Path, seed: int) -> None:
    wholes = {"times.json": made.make_times(60), "profile.json": made.make_profile(), "layers.json": made.make_layers()}
    wholes["run.log"] = made.make_log(n=60).encode()
    for at in range(5):
        for name, data in wholes.items():
            (tmp_path / name).write_bytes(damage(data, seed + at))
        try:
            cases = read_folder(tmp_path)
        except EngineBenchError:
            continue
        assert format_sections(list_trtexec(describe_cases(cases), "trtexec")).startswith("# trtexec\n")
        assert all(draw_case(case) is not None for case in cases)


def test_a_log_without_a_count_of_queries_has_figures_all_the_same(tmp_path: Path) -> None:
    log = made.make_log()
    (tmp_path / "run.log").write_text("\n".join(line for line in log.splitlines() if "Timing trace has" not in line))
    report_folder(tmp_path, ["md"])
    text = (tmp_path / "report.md").read_text()
    assert "- figures from the log" in text and "None" not in text
