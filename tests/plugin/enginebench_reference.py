"""The reference evaluator of the onnx package as an engine of EngineBench: slow, and right by definition."""

from contextlib import AbstractContextManager
from importlib.metadata import version

from enginebench.core.entry import Entry
from enginebench.core.feeds import check_feeds
from enginebench.core.records import Availability
from enginebench.engines.request import check_request, check_state

ENTRY = Entry(name="reference", module=__name__, takes="onnx", distributions=("onnx",), command="pip install onnx")


class ReferenceBackend:
    name = ENTRY.name

    def probe(self):
        return Availability(engine=self.name, available=True, version=version("onnx"), devices=("cpu",))

    def build(self, artifact, spec, out_dir):
        return artifact  # nothing to compile: `load` takes the graph itself

    def load(self, artifact, spec):
        check_request(artifact, spec, kinds=("onnx",), precisions=("fp32",))
        return ReferenceEngine(artifact)


class ReferenceEngine(AbstractContextManager):
    def __init__(self, artifact):
        from onnx.reference import ReferenceEvaluator  # here: whoever reads ENTRY has no use for it yet

        self.inputs, self.outputs = artifact.inputs, artifact.outputs
        self._evaluator, self._feeds, self._answers = ReferenceEvaluator(artifact.path), None, []

    def bind(self, feeds):
        check_state(ENTRY.name, closed=self._evaluator is None)
        check_feeds(self.inputs, feeds)
        self._feeds = {name: array.copy() for name, array in feeds.items()}

    @property
    def run(self):  # fetched once by the loop, which then calls what it got: no check costs time in there
        check_state(ENTRY.name, closed=self._evaluator is None, bound=self._feeds is not None)
        return self._compute

    def _compute(self):
        self._answers = self._evaluator.run([spec.name for spec in self.outputs], self._feeds)

    def fetch(self):
        _ = self.run  # refuses what `run` would
        return {spec.name: answer.copy() for spec, answer in zip(self.outputs, self._answers, strict=True)}

    def close(self):
        self._evaluator = self._feeds = None

    def __exit__(self, *error):
        self.close()


create_backend = ReferenceBackend
