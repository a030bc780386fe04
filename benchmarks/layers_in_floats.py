"""Which layers stay in floats: time to answer, speed and outputs of the worst groups in FP32 beside INT8 throughout.

    python benchmarks/layers_in_floats.py digits-cnn --data digits
    python benchmarks/layers_in_floats.py efficientnet-lite0 --data sample-photos
    python benchmarks/layers_in_floats.py model.onnx --data sentences.npz

The harm of every group alone, then the least number of the worst groups that keeps the limit, as `tune` finds it.
Graphs are `int8@nncf` in OpenVINO, the limit is that two thirds of what INT8 throughout loses are won back, and outputs
are centred cosines of the data that the choice was made by. Time to answer is CPU time: on a machine with other work
that stands; speeds are medians of ratios, interleaved.

The claims of docs/tune.md rest on this.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from which_precision import answer, compare, load_module, make_sources, take_turns

from enginebench.core.errors import EngineBenchError
from enginebench.core.records import Artifact, EngineSpec
from enginebench.engines.registry import open_backend
from enginebench.features.tune.mixed import choose_counts
from enginebench.features.tune.sensitivity import find_groups, measure_harm, quantize_only
from enginebench.models.precision.calibration_data import open_data
from enginebench.models.precision.graph import load_whole_graph, prepare_graph
from enginebench.models.precision.graph import run_graph as answer_graph
from enginebench.models.precision.quantize import quantize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", default="fake")
    parser.add_argument("--weights", default="default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--laps", type=int, default=9)
    parser.add_argument("--n", type=int, default=32)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Measured(options, Path(folder)).show()


class Measured:
    """One model, and what is found in it."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.graph = make_sources(options, folder)[-1]
        self.data = open_data(options.data, model=options.model, inputs=self.graph.inputs, n=options.n)
        self.engines: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}
        self.left: dict[str, int] = {}
        self.fp32 = self.open(self.graph)
        self.wanted = list(answer(self.fp32, self.data))
        self.int8 = self.make("int8", ())
        self.limit = 1 - (1 - self.judge(self.int8)) / 3

    def open(self, artifact: Artifact) -> Any:
        spec = EngineSpec(
            backend="openvino", precision=artifact.precision, recipe=artifact.recipe, threads=self.options.threads
        )
        backend = open_backend("openvino", load_module, self.folder)
        engine = backend.load(backend.build(artifact, spec, self.folder), spec)
        engine.bind(self.data.read(0, 1))
        engine.run()
        return engine

    def make(self, name: str, exclude: Sequence[str]) -> Artifact:
        given: dict[str, Any] = {"data": self.data, "exclude": exclude, "threads": self.options.threads}
        return quantize(self.graph, "int8", "nncf", self.folder / f"{name}.onnx", **given)

    def judge(self, artifact: Artifact) -> float:
        return compare(list(answer(self.open(artifact), self.data)), self.wanted)

    def show(self) -> None:
        print(f"{self.options.model}: limit {self.limit:.4f}", flush=True)
        self.engines = {"fp32": self.fp32, "int8": self.open(self.int8)}
        start = time.process_time()
        try:
            self.engines["worst"] = self.open(self.by_worst())
        except (EngineBenchError, ValueError) as error:
            print(f"  {'worst':8} nothing: {str(error)[:150]}", flush=True)
        self.seconds["worst"] = time.process_time() - start
        ratios, _ = take_turns(self.engines, self.options.laps)
        for name, engine in self.engines.items():
            near = compare(list(answer(engine, self.data)), self.wanted)
            took = f"{self.seconds[name]:7.1f} s" if name in self.seconds else f"{'':9}"
            groups = f"{self.left[name]} groups in floats" if name in self.left else ""
            print(f"  {name:8} {took} {ratios[name]:6.2f}x of fp32, centred cosine {near:.4f} {groups}", flush=True)

    def find_groups(self) -> list[Any]:
        """The groups, the worst first."""
        given = load_whole_graph(Path(self.graph.path))
        prepared, quantized = prepare_graph(given), load_whole_graph(Path(self.int8.path))
        feeds, threads = self.data.read(0, self.data.n), self.options.threads
        reference = answer_graph(prepared, feeds, threads)

        def harm(group: Any) -> float:
            alone = quantize_only(prepared, quantized, group.nodes)
            return measure_harm(reference, answer_graph(alone, feeds, threads))

        return sorted(find_groups(given, prepared, quantized), key=harm, reverse=True)

    def by_worst(self) -> Artifact:
        groups, kept = self.find_groups(), dict[int, bool]()
        made: dict[int, Artifact] = {}
        while counts := choose_counts(len(groups), kept):
            for count in counts:
                excluded = [node for group in groups[:count] for node in group.originals]
                made[count] = self.make(f"worst{count}", excluded)
                kept[count] = self.judge(made[count]) >= self.limit
        self.left["worst"] = min(count for count, fine in kept.items() if fine)
        return made[self.left["worst"]]


if __name__ == "__main__":
    main()
