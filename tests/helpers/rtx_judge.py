"""What NVIDIA's TensorRT for RTX says of a graph, parsed and built in a process of its own: some end the builder."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

# Products in the builder's list of layers.
PRODUCTS = ("correlation", "gemm", "deconv")
TIMEOUT_S = 120.0


class Verdict(NamedTuple):
    """`said` is taken, refused or crashed; `products` counts the products that the plan holds, by type."""

    said: str
    message: str = ""
    products: dict[str, int] = {}


class Question(NamedTuple):
    """A file, and the names of the GPUs that it is built for."""

    path: Path
    targets: tuple[str, ...]


def ask(questions: Sequence[Question]) -> list[Verdict]:
    """A verdict for each; where the process ends at one, another goes on behind it."""
    verdicts: list[Verdict] = []
    while len(verdicts) < len(questions):
        rest = questions[len(verdicts) :]
        lines = "".join(json.dumps([str(q.path), *q.targets]) + "\n" for q in rest)
        done = subprocess.run(
            [sys.executable, __file__], input=lines, capture_output=True, text=True, timeout=TIMEOUT_S + len(rest)
        )
        answers = [Verdict(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]
        verdicts += answers
        if len(answers) < len(rest):
            verdicts.append(Verdict("crashed", f"exit code {done.returncode}: {done.stderr.strip()[-200:]}"))
    return verdicts


def count_products(layers: str) -> dict[str, int]:
    """Type of the first input -> number of products, from what the builder logs about its layers."""
    found: Counter[str] = Counter()
    for line in layers.splitlines():
        kind = re.search(r"LayerType: (\w+)", line)
        if kind and kind[1] in PRODUCTS:
            dtype = re.search(r"Inputs: \[.*?Datatype: (\w+)", line)
            found[dtype[1] if dtype else "?"] += 1
    return dict(found)


def judge(trt: Any, log: Any, path: str, targets: Sequence[str]) -> Verdict:
    """Parses and builds one graph in this process."""
    log.errors.clear()
    log.layers = ""
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(path):
        texts = [parser.get_error(i).desc() for i in range(parser.num_errors)]
        return Verdict("refused", "parser: " + "; ".join(texts)[:400])
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = len(targets)
    for index, target in enumerate(targets):
        config.set_compute_capability(getattr(trt.ComputeCapability, target), index)
    inputs = [network.get_input(i) for i in range(network.num_inputs)]
    if any(-1 in tuple(tensor.shape) for tensor in inputs):
        profile = builder.create_optimization_profile()
        for tensor in inputs:
            shape = tuple(max(axis, 1) for axis in tensor.shape)
            profile.set_shape(tensor.name, shape, shape, shape)
        config.add_optimization_profile(profile)
    log.errors.clear()
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        return Verdict("refused", "builder: " + "; ".join(log.errors)[:400])
    return Verdict("taken", "", count_products(log.layers))


def main() -> None:
    import tensorrt_rtx_bindings as trt

    class Log(trt.ILogger):  # type: ignore[misc, name-defined]
        errors: list[str] = []
        layers = ""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            if msg.startswith("Layers:\n"):
                self.layers = msg
            elif severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR) and "catchCudaError" not in msg:
                self.errors.append(msg.strip())

    log = Log()
    for line in sys.stdin:
        path, *targets = json.loads(line)
        print(json.dumps(judge(trt, log, path, targets)._asdict()), flush=True)


if __name__ == "__main__":
    main()
