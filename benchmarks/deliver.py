"""A bundle's own loop against the row that it was made of: fresh processes in turns; start-up, and size.

    python benchmarks/deliver.py [--model resnet18] [--engines pytorch,ort,openvino] [--precisions fp32,int8]

On an NVIDIA GPU: --engines pytorch-cudagraph:channels_last=1,ort-cuda:cuda_graph=1 --precisions fp16
`--keep DIR` leaves the run and its bundles there, and takes up a run that lies there. PyTorch has no INT8 rows.

The claims of docs/deliver.md rest on this.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from msgspec.structs import replace

from enginebench.core.records import Block, Measurement
from enginebench.runs.child.isolate import child_environment, run_child
from enginebench.runs.child.jobs import MeasureJob, MeasureResponse
from enginebench.runs.folder import RunFolder, Stored
from enginebench.runs.targets.bundles import read_bundle_folder
from enginebench.runs.targets.sides import open_stored
from enginebench.stats.compare import compare
from enginebench.stats.quantiles import median

MARGIN = 0.02
TIME_LIMIT_S = 2.0
# The bundle's own loop for as long as the row's, bound to its CPUs as the row is.
LOOP = """
import sys; sys.path.insert(0, sys.argv[1])
import facts
if facts.BUNDLE["pinned_cpus"]: facts.pin()
import json, time, predict, trial
predictor = predict.load()
feeds = trial.read_check()[0][0]
predictor(feeds)
begin = time.perf_counter(); predictor(feeds); once = time.perf_counter() - begin
print(json.dumps(trial.time_calls(predictor, max(20, min(100_000, int(float(sys.argv[2]) / once))))))
"""
FIRST = "import sys; sys.path.insert(0, sys.argv[1]); import predict, trial; predict.load()(trial.read_check()[0][0])"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--engines", default="pytorch,ort,openvino")
    parser.add_argument("--precisions", default="fp32,int8")
    parser.add_argument("--batch", default="1")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = (options.keep or Path(scratch)).absolute()
        if not (root / "run" / "rows").is_dir():
            make_run(options, root / "run")
        rows = json.loads((root / "run" / "run.json").read_text("utf-8"))["rows"]
        print(f"{options.model}, {options.pairs} pairs of processes, margin {MARGIN:.0%}; ratio: row over bundle")
        print(f"{'row':44} {'row ms':>9} {'bundle ms':>9}  {'ratio (95 %)':24} {'verdict':13} {'first s':>7} {'MB':>6}")
        verdicts = [show(root, row, options.pairs) for row in rows]
    known = [verdict for verdict in verdicts if verdict is not None]
    return 0 if known and all(verdict == "equivalent" for verdict in known) else 1


def make_run(options: argparse.Namespace, out: Path) -> None:
    """Rows that are measured just enough to be delivered."""
    command = [sys.executable, "-m", "enginebench", "run", options.model, "--engines", options.engines]
    command += ["--precisions", options.precisions, "--batch", options.batch, "--processes", "2", "--time-limit", "0.5"]
    done = subprocess.run([*command, "--out", str(out)], check=False, capture_output=True, text=True)
    if not (out / "rows").is_dir():
        sys.exit(done.stderr)


def show(root: Path, row: str, pairs: int) -> str | None:
    """One line about a row; its verdict, or None where it was not measured."""
    result = RunFolder(root / "run").read_result(row)
    if result is None or result.status != "ok":
        print(f"{row:44} {result.status if result else 'missing'}: {result.reason if result else ''}")
        return None
    out = root / row
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "enginebench", "deliver", str(root / "run"), "--row", row, "--out", str(out)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        print(f"{row:44} {done.stderr.strip().splitlines()[-1]}")
        return "not delivered"
    stored = open_stored(RunFolder(root / "run").configuration_path(row))
    sides = measure_pairs(root, stored, out, pairs)
    found = compare(*sides, margin=MARGIN)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 1e6
    assert found.ratio is not None, found.reasons
    low, high = found.ratio.low, found.ratio.high
    interval = f"{found.ratio.value:.4f} ({low:.4f} to {high:.4f})"
    medians = " ".join(f"{median([x for m in side for x in m.latency_ns]) / 1e6:9.4f}" for side in sides)
    print(f"{row:44} {medians}  {interval:24} {found.verdict:13} {time_first(out):7.2f} {size:6.1f}", flush=True)
    return found.verdict


def measure_pairs(root: Path, stored: Stored, out: Path, pairs: int) -> tuple[list[Measurement], ...]:
    """The row as `run` measures it, and the bundle's own loop, in turns; who begins alternates."""
    rows: list[Measurement] = []
    bundles: list[Measurement] = []
    for pair in range(pairs):
        turns = [lambda i=pair: rows.append(measure_row(root, stored, i)), lambda i=pair: bundles.append(ask(out, i))]
        for turn in turns if pair % 2 == 0 else reversed(turns):
            turn()
    return rows, bundles


def measure_row(root: Path, stored: Stored, trial: int) -> Measurement:
    job = MeasureJob(
        model=stored.result.model,
        artifact=stored.chain[-1],
        engine=stored.spec,
        measure=replace(stored.result.measure, time_limit_s=TIME_LIMIT_S),
        out_dir=str(root / "run" / "artefacts"),
        trial=trial,
        order=0,
    )
    answer = run_child(job, timeout_s=900, variables=child_environment(stored.spec.threads))
    assert isinstance(answer, MeasureResponse)
    return answer.measurement


def ask(out: Path, trial: int) -> Measurement:
    """The times of the bundle's loop as a measurement, so that both sides are compared by the same rules."""
    command = [sys.executable, "-B", "-c", LOOP, str(out), str(TIME_LIMIT_S)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    times: list[int] = json.loads(done.stdout.splitlines()[-1])
    block = Block(start=0, stop=len(times), duration_ns=sum(times))
    return Measurement(clock="host", latency_ns=times, blocks=(block,), stop_rule="time_limit", trial=trial)


def time_first(out: Path) -> float:
    """Seconds from the start of a process to its first answer, the middle of three."""
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-B", "-c", FIRST, str(out)], check=True, capture_output=True)
        seconds.append(time.perf_counter() - begin)
    assert read_bundle_folder(out)  # it is still whole
    return sorted(seconds)[1]


if __name__ == "__main__":
    sys.exit(main())
