"""Reports from stored results alone: files, older schemas, folders of strangers, machines without the extra."""

from pathlib import Path

from processes import Cli, hide_packages
from stored_run import make_results, write_run

BLOCKED = ("altair", "torch", "torchvision", "onnx", "onnxruntime", "openvino", "pynvml", "tensorrt", "vl_convert")


def test_a_report_needs_no_engine_and_without_the_extra_says_what_it_lacks(cli: Cli, tmp_path: Path) -> None:
    """Importing any engine, or what draws charts, fails in this process, as on a machine that has none."""
    run = write_run(tmp_path / "ein läuf", make_results())
    done = cli("report", run, env=hide_packages(tmp_path, *BLOCKED), code=0)
    assert "no report.html and no charts" in done.stderr and 'pip install "enginebench[report]"' in done.stderr
    assert (run / "report.md").exists() and (run / "table.csv").exists() and not (run / "report.html").exists()
