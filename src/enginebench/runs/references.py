"""The reference that the outputs of configurations are compared with.

For a module: the outputs of PyTorch eager. For a graph: those of its nodes as they stand, computed apart, once for each
batch and shape, and never timed. No optimizer has changed that graph, not even that of the baseline's engine.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import EngineBenchError
from enginebench.core.names import configuration_id as make_id
from enginebench.core.recipes import FEW_BITS, quantizes_weights_only
from enginebench.core.records import Artifact, EngineSpec, ReferenceKind, Result
from enginebench.core.shapes import PAD, size_axes
from enginebench.core.sums import sums_saturate
from enginebench.core.warnings import make_warning
from enginebench.engines.refusals import shorten_words
from enginebench.engines.registry import is_simulated, takes
from enginebench.models.onnx.reference import EVALUATOR, UNOPTIMIZED
from enginebench.runs.building import VARIATION, ConfigurationBuilder
from enginebench.runs.builds import tunes
from enginebench.runs.child.arrays import load_outputs
from enginebench.runs.child.isolate import child_environment, run_child
from enginebench.runs.child.jobs import ReferenceJob
from enginebench.runs.plan import PlannedConfiguration
from enginebench.runs.progress import Reporter
from enginebench.runs.results import Key, ResultStore, add_warnings, find_key, has_outputs, label

# Seconds for the outputs of a graph, after it is loaded. A run of seconds does not wait minutes for them: a large model
# is compared on fewer samples, and their number is reported. A small network takes a hundredth of it for all samples.
REFERENCE_BUDGET_S = 30.0
# Seconds after which onnx's reference evaluator is given up: written in NumPy, it may take minutes for one sample.
EVALUATOR_TIMEOUT_S = 2 * REFERENCE_BUDGET_S
# The evaluators of an unchanged graph, in the order in which they are tried -> their names.
KINDS: dict[ReferenceKind, str] = {"ort_unoptimized": UNOPTIMIZED, "onnx_evaluator": EVALUATOR}
# The levels of ONNX Runtime's optimizer, the highest first.
OPT_LEVELS = ("all", "extended", "basic", "none")


class Reference(Struct, frozen=True, kw_only=True, eq=False):
    """Outputs that others are compared with; `result` has their inputs and precision."""

    result: Result
    outputs: Mapping[str, Any]
    kind: ReferenceKind = "configuration"
    apart: bool = False  # not one of the measured configurations


def find_eager(configurations: Iterable[PlannedConfiguration]) -> PlannedConfiguration | None:
    """Find the configuration of plain PyTorch eager, in the module's own precision if there is one."""
    eager = [
        configuration
        for configuration in configurations
        if configuration.engine.backend == "pytorch" and configuration.engine.recipe is None and configuration.chain
    ]
    own = [
        configuration
        for configuration in eager
        if configuration.requested_precision == configuration.chain[0].precision
    ]
    return next(iter(own), None) or next(
        (configuration for configuration in eager if configuration.requested_precision == "tf32"), None
    )


def find_own_graph(configurations: Sequence[PlannedConfiguration]) -> tuple[PlannedConfiguration, Artifact] | None:
    """Find (a configuration made from the graph, the model's graph before any change of precision, in its shapes).

    None if a fake engine comes first: it computes no graph, and the others are compared with it.
    """
    if configurations and is_simulated(configurations[0].engine.backend):
        return None
    for configuration in configurations:
        graph = next((artifact for artifact in configuration.chain if artifact.kind == "onnx"), None)
        if graph is not None and configuration.engine.shapes:
            graph = replace(graph, inputs=size_axes(graph.inputs, configuration.engine.shapes))
        if graph is not None:
            return configuration, graph
    return None


def runs_own_graph(configuration: PlannedConfiguration) -> bool:
    """Whether a configuration starts from the model's unchanged graph, in its own precision."""
    graph = next((artifact for artifact in configuration.chain if artifact.kind == "onnx"), None)
    return graph is not None and configuration.source is not None and configuration.source.sha256 == graph.sha256


def describe_graph_engine(configuration: PlannedConfiguration, graph: Artifact) -> EngineSpec:
    """The engine of a graph's own outputs: on the CPU, with the threads and the batch of the configuration."""
    own = configuration.engine
    plain = EngineSpec(backend="ort", options={"opt": "none"}, batch=own.batch, threads=own.threads)
    return replace(plain, precision=graph.precision, recipe=graph.recipe, shapes=own.shapes, traffic=own.traffic)


def list_exact_engines(engine: EngineSpec) -> list[EngineSpec]:
    """ONNX Runtime with each setting by which products of few bits are what the graph says; [] where there is none.

    Sums of 8-bit products that do not saturate, where this processor's do; and products with weights in few bits in
    FP32: fused, they are in INT8 unless another level is named.
    """
    if engine.backend != "ort" or engine.options.get("ahead") == "1" or engine.options.get(PAD):
        return []
    settings = []
    if engine.precision == "int8" and sums_saturate() and not engine.options.get("sums"):
        settings.append({"sums": "exact"})
    # A graph that was not quantized here may have such weights, too.
    may_have_weights = engine.recipe in (None, "qat") or quantizes_weights_only(engine.recipe)
    if engine.precision in FEW_BITS and may_have_weights and not engine.options.get("accuracy_level"):
        settings.append({"accuracy_level": "0"})
    return [replace(engine, options={**engine.options, **setting}) for setting in settings]


def list_lower_engines(engine: EngineSpec) -> list[EngineSpec]:
    """ONNX Runtime at each lower level of its optimizer than this engine uses, in order; [] for other engines.

    Of few bits the exact settings come first, which keep all optimizations.
    None for one that pads, either: with the optimizer or without, padding changes the same outputs.
    """
    level = engine.options.get("opt", OPT_LEVELS[0])
    if engine.backend not in ("ort", "ort-cuda") or engine.options.get("ahead") == "1" or level not in OPT_LEVELS:
        return []
    if engine.options.get(PAD):
        return []
    lower = OPT_LEVELS[OPT_LEVELS.index(level) + 1 :]
    settings = [replace(engine, options={**engine.options, "opt": name}) for name in lower]
    return [*list_exact_engines(engine), *settings]


class References:
    """The reference of each group of configurations that get the same inputs; it never changes once it is chosen."""

    def __init__(
        self,
        results: ResultStore,
        builder: ConfigurationBuilder,
        *,
        timeout_s: Callable[[], float],
        reporter: Reporter,
        checks_graph: bool,
    ) -> None:
        self._results, self._builder = results, builder
        self._timeout_s, self._reporter = timeout_s, reporter
        self._checks_graph = checks_graph
        self._references: dict[Key, Reference] = {}  # with which the configurations of a key are compared
        self._graphs: dict[Key, Reference | str] = {}  # outputs of unchanged graphs; or why there are none

    def find(
        self, configurations: Sequence[PlannedConfiguration], comparable: Sequence[PlannedConfiguration]
    ) -> Reference:
        """Return the reference with which these configurations are compared; it never changes once it is chosen.

        The first configuration if the user named two sides to compare, or a plan and its graph. Else the first there
        is of: PyTorch eager, the unchanged graph, an engine in FP32, and the first configuration.
        """
        key = find_key(configurations[0])
        if key in self._references:
            return self._references[key]
        named = any(configuration.inputs_of or configuration.graph for configuration in configurations)
        eager = None if named else find_eager(comparable)
        reference = None
        if eager is None and not named:
            reference = self.compute_graph(comparable) if self._checks_graph else None
            reference = reference or self._compute_in_fp32(configurations)
        if reference is None:
            configuration = eager or comparable[0]
            reference = Reference(
                result=self._results.current[configuration.id],
                outputs=load_outputs(self._results.folder.outputs_path(configuration.id))[0],
            )
        self._references[key] = reference
        return reference

    def compute_graph(self, configurations: Sequence[PlannedConfiguration]) -> Reference | None:
        """Return the outputs of the configurations' unchanged graph, never timed; None if nothing computes them."""
        key, own_graph = find_key(configurations[0]), find_own_graph(configurations)
        if own_graph is None:
            return None
        if key not in self._graphs:
            self._graphs[key] = self._run_graph(*own_graph)
        graph = self._graphs[key]
        return None if isinstance(graph, str) else graph

    def _run_graph(self, configuration: PlannedConfiguration, graph: Artifact) -> Reference | str:
        """Compute the outputs of an unchanged graph; or return why each evaluator that could have done so did not."""
        engine, reasons = describe_graph_engine(configuration, graph), list[str]()
        reference = replace(
            configuration, id=f"{make_id(engine, graph.precision, configuration.measure)}-reference", engine=engine
        )
        reference = replace(reference, requested_precision=graph.precision, source=graph, chain=(graph,))
        for kind, name in KINDS.items():
            job = ReferenceJob(check=self._builder.describe_job(reference), kind=kind, budget_s=REFERENCE_BUDGET_S)
            longest_s = EVALUATOR_TIMEOUT_S if kind == "onnx_evaluator" else self._timeout_s()
            self._reporter.step(f"{name}: outputs of the graph")
            try:
                response = run_child(
                    job, timeout_s=min(longest_s, self._timeout_s()), variables=child_environment(engine.threads)
                )
            except EngineBenchError as error:
                reasons.append(f"{name}: {shorten_words(str(error)) or error}")
                continue
            result = self._results.begin(reference, status="partial")
            if response.varies > VARIATION:
                result = add_warnings(result, make_warning("outputs_vary", row=reference.id, share=response.varies))
            outputs = load_outputs(self._results.folder.outputs_path(reference.id))[0]
            return Reference(result=result, outputs=outputs, kind=kind, apart=True)
        return "; ".join(reasons)

    def _compute_in_fp32(self, configurations: Sequence[PlannedConfiguration]) -> Reference | None:
        """Compute FP32 outputs, never timed, for configurations in a shorter precision, if none in FP32 has outputs.

        An engine whose build takes minutes is used only if there is no other. None if nothing has an FP32 form.
        """
        fp32_rows = [
            configuration for configuration in configurations if configuration.requested_precision in (None, "fp32")
        ]
        if any(has_outputs(self._results.current[configuration.id]) for configuration in fp32_rows) or not any(
            r.id in self._builder.fresh for r in configurations
        ):
            return None
        for configuration in sorted(configurations, key=lambda configuration: tunes(configuration.engine)):
            reference = (
                None if configuration in fp32_rows or configuration.skip is not None else make_fp32(configuration)
            )
            if reference is None:
                continue
            try:
                job = replace(self._builder.describe_job(reference), prove=False, labelled=None)
                response = self._builder.run(reference, job)
            except EngineBenchError as error:
                self._reporter.say(f"{label(configuration)} was not compared with FP32: {error}")
                continue
            result = self._builder.describe_built(
                reference, self._results.begin(reference, status="partial"), response, 0
            )
            return Reference(
                result=result, outputs=load_outputs(self._results.folder.outputs_path(reference.id))[0], apart=True
            )
        return None

    def explain_no_graph(self, configuration: PlannedConfiguration) -> str | None:
        """Return why a configuration's unchanged graph has no outputs; None if it has, or none were needed."""
        why = self._graphs.get(find_key(configuration))
        return why if isinstance(why, str) else None


def make_fp32(configuration: PlannedConfiguration) -> PlannedConfiguration | None:
    """Return the configuration in FP32, from the last FP32 form in its chain; None if it has none."""
    kind = takes(configuration.engine.backend)
    source = next((a for a in reversed(configuration.chain) if a.precision == "fp32" and a.kind == kind), None)
    if source is None:
        return None
    engine = replace(configuration.engine, precision="fp32", recipe=None, mix="")
    chain = configuration.chain[: configuration.chain.index(source) + 1]
    configuration = replace(configuration, engine=engine, requested_precision="fp32", source=source, chain=chain)
    return replace(configuration, id=f"{make_id(engine, 'fp32', configuration.measure)}-reference")
