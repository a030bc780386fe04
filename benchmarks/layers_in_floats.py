"""Which layers stay in floats, found in three ways: time to answer, speed and outputs of what each one finds.

    python benchmarks/layers_in_floats.py digits-cnn --data digits
    python benchmarks/layers_in_floats.py efficientnet-lite0 --data sample-photos
    python benchmarks/layers_in_floats.py model.onnx --data sentences.npz

    groups    the harm of every group alone and the time that it saves by profile, as `tune` does: the fastest of four
              graphs of the greedy line that keeps the limit
    control   NNCF's accuracy control
    worst     the harm of every group alone, then the least number of the worst groups that keeps the limit, by halves

All start from `int8@nncf`, have the same data and the same limit (two thirds of what INT8 throughout loses are to be
won back), and end as graphs of OpenVINO. Outputs are centred cosines, of data that nothing was chosen by as well, where
there are enough. Time to answer is CPU time: on a machine with other work that stands; speeds are medians of ratios,
interleaved.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from which_precision import answer, compare, load_module, make_sources, take_turns

from enginebench.core.errors import EngineBenchError
from enginebench.core.records import Artifact, EngineSpec
from enginebench.engines.registry import open_backend
from enginebench.features.tune.frontier import Part, cut_line, time_groups
from enginebench.features.tune.harm import measure_harm
from enginebench.features.tune.sensitivity import find_groups, map_homes, quantize_only
from enginebench.models.precision.calibration_data import open_data
from enginebench.models.precision.graph import load_whole_graph, prepare_graph
from enginebench.models.precision.quantize import quantize
from enginebench.models.precision.trying import answer as answer_graph

CUTS = 4


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
    """One model, and what the three ways find in it."""

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

    def make(self, name: str, exclude: Sequence[str], cosine: float | None = None) -> Artifact:
        given: dict[str, Any] = {"data": self.data, "exclude": exclude, "threads": self.options.threads}
        return quantize(self.graph, "int8", "nncf", self.folder / f"{name}.onnx", keep_cosine=cosine, **given)

    def judge(self, artifact: Artifact) -> float:
        return compare(list(answer(self.open(artifact), self.data)), self.wanted)

    def show(self) -> None:
        print(f"{self.options.model}: limit {self.limit:.4f}", flush=True)
        self.engines = {"fp32": self.fp32, "int8": self.open(self.int8)}
        ways: dict[str, Callable[[], Artifact]] = {
            "groups": self.by_groups,
            "worst": self.by_worst,
            "control": lambda: self.make("control", (), self.limit),
        }
        for name, way in ways.items():
            start = time.process_time()
            try:
                self.engines[name] = self.open(way())
            except (EngineBenchError, StopIteration) as error:
                print(f"  {name:8} nothing: {str(error)[:150] or 'no graph keeps the limit'}", flush=True)
            self.seconds[name] = time.process_time() - start
        ratios, _ = take_turns(self.engines, self.options.laps)
        for name, engine in self.engines.items():
            near = compare(list(answer(engine, self.data)), self.wanted)
            took = f"{self.seconds[name]:7.1f} s" if name in self.seconds else f"{'':9}"
            groups = f"{self.left[name]} groups in floats" if name in self.left else ""
            print(f"  {name:8} {took} {ratios[name]:6.2f}x of fp32, centred cosine {near:.4f} {groups}", flush=True)

    def find_harm(self) -> tuple[list[Any], dict[str, float], dict[str, str]]:
        given = load_whole_graph(Path(self.graph.path))
        prepared, quantized = prepare_graph(given), load_whole_graph(Path(self.int8.path))
        feeds, threads = self.data.read(0, self.data.n), self.options.threads
        groups = list(find_groups(given, prepared, quantized))
        reference = answer_graph(prepared, feeds, threads)
        harms = {
            g.name: measure_harm(
                reference, answer_graph(quantize_only(prepared, quantized, g.nodes), feeds, threads)
            ).noise
            for g in groups
        }
        return groups, harms, map_homes(prepared, groups)

    def by_groups(self) -> Artifact:
        groups, harms, homes = self.find_harm()
        timed = [time_groups(e.profile_layers().layers, homes)[0] for e in (self.fp32, self.engines["int8"])]
        saved = {name: timed[0][name] - timed[1][name] for name in timed[0].keys() & timed[1].keys()}
        parts = [Part(name=g.name, noise=harms[g.name], saved_ns=saved.get(g.name)) for g in groups]
        names, found = {g.name: g.originals for g in groups}, {}
        for i, cut in enumerate(cut_line(parts, 2 * (1 - self.limit), CUTS)):
            made = self.make(f"groups{i}", [node for name in cut.excluded for node in names[name]])
            if self.judge(made) >= self.limit:
                found[f"{i}"] = made
                self.left[f"{i}"] = len(cut.excluded)
        ratios, _ = take_turns({"fp32": self.fp32} | {name: self.open(made) for name, made in found.items()}, 3)
        best = next(iter(sorted(found, key=lambda name: -ratios[name])))
        self.left = {"groups": self.left[best]}
        return found[best]

    def by_worst(self) -> Artifact:
        groups, harms, _ = self.find_harm()
        worst = sorted(groups, key=lambda g: -harms[g.name])
        broken, kept, best = 0, len(worst), self.graph
        while kept - broken > 1:
            middle = (broken + kept) // 2
            made = self.make(f"worst{middle}", [node for group in worst[:middle] for node in group.originals])
            if self.judge(made) >= self.limit:
                kept, best = middle, made
            else:
                broken = middle
        self.left["worst"] = kept
        return best


if __name__ == "__main__":
    main()
