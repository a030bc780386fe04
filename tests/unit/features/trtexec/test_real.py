"""Every real log and file gives the values that it holds. Skipped where the real artifacts are absent."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

import trtexec_artifacts as made
from enginebench.features.trtexec.folder import read_folder
from enginebench.features.trtexec.log import read_log, read_trtexec_log
from enginebench.features.trtexec.records import LogRun, Stat
from enginebench.features.trtexec.times import summarize_trace
from enginebench.features.trtexec.tool_files import ToolFiles
from enginebench.features.trtexec.trace import read_trace
from enginebench.stats.effective import check_precision
from enginebench.stats.layer_records import LayersDocument
from enginebench.stats.plans.layers import read_layer_info
from enginebench.stats.plans.profile import read_layer_profile

ROWS = {
    "latency_ms": "Latency",
    "h2d_ms": "H2D Latency",
    "gpu_compute_ms": "GPU Compute Time",
    "d2h_ms": "D2H Latency",
    "enqueue_ms": "Enqueue Time",
}
NUMBER = r"([-+0-9.e]+|inf|nan)"


@pytest.fixture(scope="module")
def real() -> Path:
    return made.find_real_artifacts()


def digits(value: float | None) -> str:
    return f"{value:.6g}"


def read_case(stdout: Path) -> LogRun:
    """The first run of a case: stdout and stderr together."""
    text = stdout.read_text() + "\n" + stdout.with_suffix(".stderr").read_text()
    return read_log(text, stdout).runs[0]


def list_cases(real: Path) -> list[Path]:
    cases = [*real.glob("trtexec-gpu/*/*.stdout"), *real.glob("trtexec-cli/*/*.stdout")]
    assert len(cases) > 300
    return sorted(cases)


def test_verdicts_are_those_of_the_exit_status(real: Path) -> None:
    wrong = []
    for path in list_cases(real):
        run, status = read_case(path), int(path.with_suffix(".exit").read_text())
        if status == 0:
            # Help ends with 0 and without a banner: neither passed nor failed.
            expected = "passed" if "&&&& PASSED" in path.read_text() else "unknown"
        else:
            # A signal (130, 134, 139, 143) may leave no word behind.
            expected = run.status if status > 128 and run.status != "passed" else "failed"
        if run.status != expected:
            wrong.append((path.parent.name, path.name, status, run.status, run.status_reason))
    assert wrong == []


def test_every_summary_row_in_every_log_is_read_with_all_its_digits(real: Path) -> None:
    rows = 0
    for path in [*list_cases(real), *sorted(real.glob("trtexec-logs/*.log"))]:
        for run in read_trtexec_log(path).runs:
            lines = path.read_text().splitlines()[run.first_line - 1 :]
            for field, name in ROWS.items():
                stat: Stat | None = getattr(run, field)
                if stat is None:
                    continue
                line = next(line for line in lines if f"] {name}: min = " in line)
                for key in ("min", "max", "mean", "median"):
                    printed = re.search(rf"{key} = {NUMBER} ms", line)
                    assert (printed and float(printed[1])) == getattr(stat, key), (path, name, key)
                printed_percentiles = re.findall(rf"percentile\(([0-9.]+)%\) = {NUMBER} ms", line)
                assert {k: float(v) for k, v in printed_percentiles} == stat.percentiles, (path, name)
                rows += 1
    assert rows > 300


def compare_row(computed: Stat, printed: Stat, even: bool) -> list[str]:
    """What of a printed row the timing file does not give back."""
    pairs = [("min", computed.min, printed.min), ("max", computed.max, printed.max)]
    pairs += [(k, computed.percentiles[k], v) for k, v in printed.percentiles.items()]
    wrong = [name for name, ours, theirs in pairs if digits(ours) != digits(theirs)]
    assert computed.median is not None and printed.median is not None
    assert computed.mean is not None and printed.mean is not None
    # The mean of two middles has a digit more than the file holds of either: the last printed one may differ by one.
    unit = 10.0 ** (_exponent(printed.median) - 5)
    if abs(computed.median - printed.median) > (1.01 * unit if even else 1e-3 * unit):
        wrong.append("median")
    if abs(computed.mean - printed.mean) > 1.01 * 10.0 ** (_exponent(printed.mean) - 5):
        wrong.append("mean")
    return wrong


def _exponent(value: float) -> int:
    return int(f"{value:e}".split("e")[1])


def resolve(last_ms: float) -> float:
    """The step of a stamp of six digits, in ms."""
    return 10.0 ** (_exponent(last_ms) - 5)


def test_every_timing_file_gives_the_summary_of_its_log(real: Path) -> None:
    files = [*real.glob("trtexec-gpu/*/*.times.json"), *real.glob("trtexec-gpu/*/*.times.json.gz")]
    assert len(files) >= 20
    for path in sorted(files):
        run = read_case(path.with_name(path.name.split(".times.json")[0] + ".stdout"))
        document = summarize_trace(read_trace(path), path, log=run)[0]
        assert document.n == run.queries, path
        # Without the log the same queries count as timed.
        assert summarize_trace(read_trace(path), path, intervals=False)[0].n == run.queries, path
        for field in ("latency_ms", "h2d_ms", "gpu_compute_ms", "d2h_ms"):
            printed: Stat = getattr(run, field)
            if printed.max:
                assert compare_row(document.trtexec[field], printed, document.n % 2 == 0) == [], (path, field)
        check_span(document.host_walltime_s, run.host_walltime_s, path)
        assert document.throughput_qps == pytest.approx(document.n / (document.host_walltime_s or 1))


def check_span(computed: float | None, printed: float | None, path: Path) -> None:
    """The walltime is a difference of two stamps of six digits: as exact as those, and as the printed digits."""
    assert computed is not None and printed is not None
    import gzip

    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    step_s = resolve(float(re.findall(rb'"endD2hMs" : ([0-9.e+-]+)', data)[-1])) / 1e3
    assert abs(computed - printed) <= step_s + 0.51 * 10.0 ** (_exponent(printed) - 5), path


def test_files_of_8_4_without_their_warmup_give_the_printed_summary(real: Path) -> None:
    files = sorted(real.glob("trex/**/*.timing.json"))
    assert len(files) == 4
    for path in files:
        summary = json.loads(path.with_name(path.name.replace(".timing.", ".profile.metadata.")).read_text())
        printed = summary["performance_summary"]
        document = summarize_trace(read_trace(path), path)[0]
        assert document.warmup_dropped > 0
        for field in ("latency_ms", "gpu_compute_ms"):
            low, high, mean, median, *percentiles = printed[ROWS[field]]
            labels = ("99",) if len(percentiles) == 1 else ("90", "95", "99")
            stat = Stat(
                min=low, max=high, mean=mean, median=median, percentiles=dict(zip(labels, percentiles, strict=True))
            )
            assert compare_row(document.trtexec[field], stat, document.n % 2 == 0) == [], (path, field)
        check_span(document.host_walltime_s, printed["Total Host Walltime"], path)
        assert document.throughput_qps == pytest.approx(printed["Throughput"], rel=5e-6)


def test_every_profile_gives_its_table(real: Path) -> None:
    files = [*real.glob("trtexec-gpu/*/*.profile.json"), *real.glob("trex/**/*.profile.json")]
    assert len(files) >= 18
    for path in sorted(files):
        document = read_layer_profile(path)
        text = path.read_text()
        assert len(document.layers) == text.count('"timeMs"')
        assert document.duplicates_merged == document.nonfinite == 0
        for layer in document.layers:
            assert (
                f'{{ "name" : "{layer.name}", "timeMs" : {layer.total_ms:g}, "averageMs" : {layer.average_ms:g}' in text
            )
        assert sum(layer.share or 0 for layer in document.layers) == pytest.approx(1)
        printed = [float(p) for p in re.findall(r'"percentage" : ([0-9.e+-]+)', text)]
        assert sorted(100 * (layer.share or 0) for layer in document.layers) == pytest.approx(
            sorted(printed), rel=1e-4, abs=1e-6
        )


def read_resnet(real: Path, kind: str) -> LayersDocument:
    folder = real / "trex" / "pytorch-resnet-A100" / kind
    profile = read_layer_profile(next(folder.glob("*.profile.json")))
    return read_layer_info(next(folder.glob("*.graph.json")), profile=profile)


def test_every_layer_file_is_read_and_joined(real: Path) -> None:
    files = [*real.glob("trtexec-gpu/*/*.layers*.json"), *real.glob("trex/**/*.graph.json")]
    assert len(files) >= 15
    for path in sorted(files):
        document = read_layer_info(path)
        assert document.layers and len(document.io) == 2, path
        # A stand-in for the library names its kernels after no type: nothing is claimed for its products.
        unsaid = [layer for layer in document.layers if layer.type and layer.precision is None]
        assert all((layer.tactic or "").startswith("standin_") for layer in unsaid), path
    for kind in ("fp32", "fp16", "qat"):
        assert all(layer.average_ms is not None for layer in read_resnet(real, kind).layers)


def test_tf32_is_not_sold_as_fp32(real: Path) -> None:
    document = read_resnet(real, "fp32")
    # By the kernels' names: all convolutions but the first, and the product at the end, which is one too.
    named = [layer for layer in document.layers if "_tf32f32_" in (layer.tactic or "")]
    assert len(named) == 20 and len(document.layers) == 32
    assert [layer for layer in document.layers if layer.precision == "tf32"] == named
    assert Counter(layer.precision for layer in document.layers if not layer.overhead) == {"tf32": 20, "fp32": 3}
    share = sum(layer.average_ms or 0 for layer in named) / sum(layer.average_ms or 0 for layer in document.layers)
    assert document.by_precision["tf32"].share == pytest.approx(share) and 0.6 < share < 0.7
    folder = real / "trex" / "pytorch-resnet-A100" / "fp32"
    shares = ToolFiles().read_precision(next(folder.glob("*.graph.json")), next(folder.glob("*.profile.json")))
    assert shares is not None and shares["tf32"] == pytest.approx(share) and sum(shares.values()) == pytest.approx(1)
    assert set(shares) == {"tf32", "fp32", "reorder"}
    ran, (warning,) = check_precision("fp32", shares, "cuda:0")
    assert ran == "tf32" and warning.code == "relabelled" and "Reported as tf32" in warning.message


def test_log_and_files_of_every_case_agree(real: Path) -> None:
    for version in ("8.6.1", "10.0.1", "10.16", "11.0", "11.1"):
        cases = read_folder(real / "trtexec-gpu" / version)
        assert any(case.times and case.log for case in cases)
        assert [(case.name, case.contradictions, case.unreadable) for case in cases if case.contradictions] == []
        assert [case.unreadable for case in cases if case.unreadable] == []
