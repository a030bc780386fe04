"""Is our check of Q/DQ nodes right? Every graph is judged by `find_refusals` and by NVIDIA's TensorRT for RTX.

    python benchmarks/refusals.py [--models resnet18,timm:vit_tiny_patch16_224] [--before REVISION] [--json]

The small graphs of tests/helpers/refusal_graphs.py, one trait each; then models in every recipe: those named,
the digits models, a transformer encoder, opsets 13 to 26. With --before the rules of an earlier revision are counted
beside them. No GPU is needed; TensorRT for RTX parses and builds, in a process of its own, since some graphs end it.
"""

from __future__ import annotations

import argparse
import inspect
import json
import subprocess
import sys
import tempfile
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT / "src")]

import onnx  # noqa: E402

from enginebench.models.precision import tensorrt_check  # noqa: E402
from enginebench.models.precision.graph import has_quantizers, load_whole_graph  # noqa: E402
from refusal_graphs import judge_agreement, list_cases, list_crashing  # noqa: E402
from rtx_judge import Question, Verdict, ask  # noqa: E402

CAPABILITIES = {"SM75": "7.5", "SM80": "8.0", "SM86": "8.6", "SM89": "8.9", "SM120": "12.0", "SM121": "12.1"}
RECIPES = ("fp16", "bf16", "int8@tensorrt", "int8@cpu", "int8@nncf", "fp8")
OPSETS = tuple(range(13, 27))
RULES = "src/enginebench/models/precision/tensorrt_check.py"
Check = Callable[[onnx.ModelProto, list[str]], list[str]]
# RTX reads uint8 as int8 where every zero point is 0, as NNCF writes them behind a ReLU.
OTHER_MEANING = "quantized type uint8"


class Graph(NamedTuple):
    """A graph on disk, and the GPUs that it is for."""

    name: str
    path: Path
    targets: tuple[str, ...] = ("SM89",)


def write_small(folder: Path) -> Iterator[Graph]:
    for index, (name, case) in enumerate({**list_cases(), **list_crashing()}.items()):
        path = folder / f"small-{index}.onnx"
        path.write_bytes(case.build().SerializeToString())
        yield Graph(name, path, case.targets)


def run_verb(*arguments: object) -> None:
    command = [sys.executable, "-m", "enginebench", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")


def write_model(model: str, folder: Path) -> Iterator[Graph]:
    """A model as it is exported, with fixed and with open batch, and in every recipe."""
    base = folder / model.replace(":", "_").replace("/", "_")
    plain, opened = base.with_suffix(".onnx"), base.with_suffix(".open.onnx")
    random = [] if model.startswith("digits") else ["--weights", "random"]
    run_verb("export", model, "--out", plain, *random)
    run_verb("export", model, "--out", opened, "--dynamic-batch", *random)
    yield Graph(f"{model} fp32", plain)
    yield Graph(f"{model} fp32, open batch", opened)
    data = "digits" if model.startswith("digits") else "fake"
    run_verb("calibrate", model, "--data", data, "--n", 8, "--batch", 4, "--out", base.with_suffix(".json"),
             "--keep-batches", base.with_suffix(".npz"), *random)  # fmt: skip
    for recipe in RECIPES:
        out = base.with_suffix(f".{recipe.replace('@', '-')}.onnx")
        ranges = ".npz" if recipe == "int8@nncf" else ".json"
        run_verb("quantize", plain, "--to", recipe, "--calib", base.with_suffix(ranges), "--out", out)
        yield Graph(f"{model} {recipe}", out)


def write_encoder(folder: Path) -> Iterator[Graph]:
    """A transformer encoder in PyTorch's own words, FP32 and FP16, at several opsets."""
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    for opset in (18, 20, 23):
        path = folder / f"encoder-{opset}.onnx"
        torch.onnx.export(encoder, (torch.randn(2, 7, 32),), str(path), opset_version=opset, dynamo=True, verbose=False)
        yield Graph(f"encoder, opset {opset}", path)


def write_opsets(source: Path, folder: Path) -> Iterator[Graph]:
    """A quantized model under every version of the operator set that has its nodes."""
    model = onnx.load(source)
    for opset in OPSETS:
        copy = onnx.ModelProto.FromString(model.SerializeToString())
        copy.opset_import[0].version = opset
        path = folder / f"opset-{opset}.onnx"
        path.write_bytes(copy.SerializeToString())
        yield Graph(f"digits-cnn int8@tensorrt, opset {opset}", path)


def list_graphs(models: list[str], folder: Path) -> Iterator[Graph]:
    yield from write_small(folder)
    yield from write_encoder(folder)
    for model in ("digits-cnn", "digits-mlp", *models):
        yield from write_model(model, folder)
    yield from write_opsets(folder / "digits-cnn.int8-tensorrt.onnx", folder)


def make_check(module: types.ModuleType) -> Check:
    """Why the rules of a module refuse a graph; earlier ones knew neither RTX nor targets."""
    knows_rtx = "rtx" in inspect.signature(module.find_refusals).parameters

    def check(model: onnx.ModelProto, targets: list[str]) -> list[str]:
        told = {"rtx": True, "targets": targets} if knows_rtx else {}
        return [refusal.reason for refusal in module.find_refusals(model, **told)]

    return check


def load_rules(revision: str) -> types.ModuleType:
    """The rules as they were."""
    text = subprocess.run(["git", "show", f"{revision}:{RULES}"], cwd=ROOT, capture_output=True, text=True, check=True)
    module = types.ModuleType("earlier_rules")
    sys.modules[module.__name__] = module  # its records look their module up
    exec(compile(text.stdout, RULES, "exec"), module.__dict__)
    return module


def judge_all(graphs: list[Graph], verdicts: list[Verdict], check: Check) -> dict[str, str]:
    """{graph: how our check and RTX agree}."""
    found = {}
    for graph, verdict in zip(graphs, verdicts, strict=True):
        model = load_whole_graph(graph.path)
        reasons = check(model, [CAPABILITIES[target] for target in graph.targets])
        kind = judge_agreement(graph.name, bool(reasons), verdict.said)
        if kind == "too strict" and all(reason.startswith(OTHER_MEANING) for reason in reasons):
            kind = "listed: another meaning"
        if kind == "too lax" and not has_quantizers(model):
            kind = "listed: no Q/DQ nodes"
        found[graph.name] = kind
    return found


def count_given_up(verdicts: list[Verdict], graphs: list[Graph]) -> int:
    """Graphs with Q/DQ nodes before products, taken, with a product in floats."""
    return sum(
        verdict.said == "taken" and "Float" in verdict.products and "Int8" not in verdict.products
        for graph, verdict in zip(graphs, verdicts, strict=True)
        if "fp32" not in graph.name and "encoder" not in graph.name
    )


def describe(models: list[str], before: str | None) -> dict[str, Any]:
    """The counts, now and by the earlier rules, and every graph on which our check is wrong."""
    with tempfile.TemporaryDirectory(prefix="enginebench-") as folder:
        graphs = list(list_graphs(models, Path(folder)))
        start = time.perf_counter()
        verdicts = ask([Question(graph.path, graph.targets) for graph in graphs])
        judged_s = time.perf_counter() - start
        rules = {"now": make_check(tensorrt_check)} | ({before: make_check(load_rules(before))} if before else {})
        found = {name: judge_all(graphs, verdicts, check) for name, check in rules.items()}
    return {
        "graphs": len(graphs),
        "judge_s": round(judged_s, 1),
        "given_up": count_given_up(verdicts, graphs),
        "counts": {name: dict(Counter(kinds.values())) for name, kinds in found.items()},
        "wrong": {n: [g for g, kind in kinds.items() if kind.startswith("too")] for n, kinds in found.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default="", help="more models, separated by commas")
    parser.add_argument("--before", metavar="REVISION", help="count by the rules of this revision, too")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    asked = parser.parse_args()
    found = describe([name for name in asked.models.split(",") if name], asked.before)
    if asked.json:
        print(json.dumps(found))
    else:
        print(f"{found['graphs']} graphs, judged by TensorRT for RTX in {found['judge_s']} s")
        print(f"{found['given_up']} of those that it takes compute their product in floats, without a word")
        for name, counts in found["counts"].items():
            print(f"{name}: " + ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())))
            for graph in found["wrong"][name] if name == "now" else ():
                print(f"  wrong: {graph}")
    raise SystemExit(1 if found["wrong"]["now"] else 0)


if __name__ == "__main__":
    main()
