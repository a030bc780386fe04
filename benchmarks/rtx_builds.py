"""What TensorRT for RTX builds of our graphs, without a GPU: time, size, products by precision, and whether it repeats.

    python benchmarks/rtx_builds.py [--models digits-cnn,resnet18] [--rounds 5] [--capabilities 8.6,8.9,12.0] [--json]

Each round is a process of its own that builds everything once, each plan into a folder of its own. The columns: model,
precision, compute capability; seconds of the build, from the graph to the plan on the disk, and of the CPU in it, which
others on the machine do not lengthen, both medians over the rounds; MB of the plan; products by precision; rounds whose
plan has the bytes of the first.

The claims of docs/tensorrt-rtx.md rest on this.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

MODELS = ("digits-cnn", "digits-mlp", "resnet18", "resnet50", "mobilenet_v3_small", "efficientnet_b0")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "int8", "fp8")
MB = 1e6
Row = dict[str, Any]


def main() -> int:
    """0; what cannot be built is a row with the reason."""
    options = parse_arguments()
    if options.round:
        build_all(Path(options.round), options.capabilities.split(","))
        return 0
    with tempfile.TemporaryDirectory(prefix="enginebench-") as scratch:
        for model in options.models.split(","):
            make_graphs(model, Path(scratch) / "graphs" / model.replace(":", "-"), options.precisions.split(","))
        rounds = [start_round(Path(scratch), options.capabilities) for _ in range(options.rounds)]
    rows = [join(found) for found in zip(*rounds, strict=True)]
    for row in rows:
        print(describe(row), file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps({"schema": "enginebench.rtx-builds/1", "rows": rows}))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated; also timm:NAME")
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help="comma-separated")
    parser.add_argument("--capabilities", default="8.6,8.9,12.0", help="comma-separated, each built for on its own")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--round", help=argparse.SUPPRESS)
    return parser.parse_args()


def make_graphs(model: str, folder: Path, precisions: list[str]) -> None:
    """The model's graph in each precision, named after it; ranges are of random inputs."""
    import enginebench

    folder.mkdir(parents=True)
    fp32 = folder / "fp32.onnx"
    enginebench.export(model, fp32, weights="default" if model.startswith("digits") else "random")
    enginebench.calibrate(str(fp32), "fake", folder / "calib.json", n=4)
    for precision in precisions:
        if precision not in ("fp32", "tf32"):
            calib = folder / "calib.json" if precision in ("int8", "fp8") else None
            enginebench.quantize(fp32, precision, folder / f"{precision}.onnx", calib=calib)
    if "tf32" in precisions:
        (folder / "tf32.onnx").write_bytes(fp32.read_bytes())


def start_round(scratch: Path, capabilities: str) -> list[Row]:
    """The rows of one process."""
    command = [sys.executable, __file__, "--round", str(scratch), "--capabilities", capabilities]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def build_all(scratch: Path, capabilities: list[str]) -> None:
    """Builds every graph for every compute capability; a line of JSON each."""
    for graph in sorted((scratch / "graphs").glob("*/*.onnx")):
        for capability in capabilities:
            with tempfile.TemporaryDirectory(dir=scratch) as folder:
                case = {"model": graph.parent.name, "precision": graph.stem, "capability": capability}
                print(json.dumps({**case, **build_once(graph, capability, folder)}), flush=True)


def build_once(graph: Path, capability: str, folder: str) -> Row:
    """One build, as `enginebench build` does it, or why there is none."""
    from enginebench.core.errors import EngineBenchError
    from enginebench.core.records import EngineSpec
    from enginebench.models.onnx.source import read_onnx
    from enginebench.runs.child.opening import open_for

    spec = EngineSpec(
        backend="tensorrt-rtx",
        device="cuda:0",
        precision=graph.stem,  # type: ignore[arg-type]
        options={"compute_capability": capability},
    )
    source, backend = read_onnx(graph), open_for(spec, folder)
    start, cpu_start = time.perf_counter(), time.process_time()
    try:
        plan = backend.build(source, spec, Path(folder))
    except EngineBenchError as error:
        return {"refused": str(error)}
    assert plan.ahead_of_time is not None
    products = plan.ahead_of_time.products
    seconds = {"build_s": time.perf_counter() - start, "cpu_s": time.process_time() - cpu_start}
    return {**seconds, "bytes": plan.files[0].size_bytes, "products": products, "sha256": plan.sha256}


def join(found: tuple[Row, ...]) -> Row:
    """One row of those of all rounds."""
    first = dict(found[0])
    if "refused" in first:
        return first
    same = sum(row.get("sha256") == first["sha256"] for row in found)
    seconds = {key: median(row[key] for row in found) for key in ("build_s", "cpu_s")}
    return {**first, **seconds, "same": same, "rounds": len(found)}


def describe(row: Row) -> str:
    """One line of the table."""
    head = f"| {row['model']} | {row['precision']} | {row['capability']} |"
    if "refused" in row:
        return f"{head} refused: {row['refused'][:80]} | | | | |"
    products = ", ".join(f"{count} {name}" for name, count in row["products"].items()) or "none"
    seconds = f"{row['build_s']:.2f} | {row['cpu_s']:.2f}"
    return f"{head} {seconds} | {row['bytes'] / MB:.2f} | {products} | {row['same']} of {row['rounds']} |"


if __name__ == "__main__":
    sys.exit(main())
