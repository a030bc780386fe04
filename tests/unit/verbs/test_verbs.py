"""The small verbs on real engines: export, infer, bench, diff, report."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from enginebench.models.task import feed_digits, load_digits
from processes import Cli

FAST = ("--warmup", "2", "--iters", "30")


def test_export_then_infer_gives_the_right_digits(cli: Cli, tmp_path: Path) -> None:
    done = cli("export", "digits-mlp", "--dynamic-batch", "--out", "ein Modell.onnx", "--json")
    assert done.returncode == 0, done.stderr
    artifact = json.loads(done.stdout)["artifact"]
    assert artifact["export_check"]["batches"] == [2, 5]
    digits = load_digits().select(held_out=True)
    np.savez(tmp_path / "in.npz", input=feed_digits("digits-mlp", digits.images[:50]))
    done = cli("infer", "ein Modell.onnx", "in.npz", "--engine", "ort", "--out", "out.npz")
    assert done.returncode == 0, done.stderr
    (output,) = np.load(tmp_path / "out.npz").values()
    assert (output.argmax(1) == digits.labels[:50]).mean() > 0.9


def test_bench_prints_a_row_with_raw_samples(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    done = cli("bench", tiny_onnx, "--engine", "ort", *FAST, "--processes", "2", "--out", "b.json", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "enginebench.bench/1"
    assert [len(s) for s in document["samples_ns"]] == [30, 30]
    assert document["warmup_dropped"] == [2, 2]
    assert document["row"]["n"] == 60
    assert json.loads((tmp_path / "b.json").read_text()) == document


def test_scope_io_is_another_row(cli: Cli, tiny_onnx: Path) -> None:
    done = cli("bench", tiny_onnx, "--engine", "ort", *FAST, "--processes", "1", "--scope", "io", "--json")
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)["row"]
    assert row["scope"] == "io" and "-io-" in row["id"]


def test_report_writes_what_it_is_asked_for(cli: Cli, copy_run: Callable[[str], Path], tmp_path: Path) -> None:
    (copy_run("r") / "report.md").unlink()
    assert cli("report", "r", "--format", "md,json").returncode == 0
    assert (tmp_path / "r" / "report.md").read_text().startswith("#")
    done = cli("report", "r", "--format", "docx")
    assert done.returncode == 2 and "docx" in done.stderr
