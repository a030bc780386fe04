"""The reference that the outputs of configurations are compared with.

For a module: the outputs of PyTorch eager. For a graph: those of its nodes as they stand, computed apart, once for each
batch and shape, and never timed. No optimizer has changed that graph, not even that of the baseline's engine.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.records import Artifact, EngineSpec, ReferenceKind, Result
from enginebench.core.shapes import find_size, size_axes
from enginebench.engines.registry import is_simulated
from enginebench.models.onnx.reference import EVALUATOR, UNOPTIMIZED
from enginebench.runs.plan import PlannedRow

# Seconds for the outputs of a graph, after it is loaded. A run of seconds does not wait minutes for them: a large model
# is compared on fewer samples, and their number is reported. A small network takes a hundredth of it for all samples.
REFERENCE_BUDGET_S = 30.0
# Seconds after which onnx's reference evaluator is given up: written in NumPy, it may take minutes for one sample.
EVALUATOR_TIMEOUT_S = 2 * REFERENCE_BUDGET_S
# The evaluators of an unchanged graph, in the order in which they are tried -> their names.
KINDS: dict[ReferenceKind, str] = {"ort_unoptimized": UNOPTIMIZED, "onnx_evaluator": EVALUATOR}
# The levels of ONNX Runtime's optimizer, the highest first.
OPT_LEVELS = ("all", "extended", "basic", "none")

Key = tuple[str, int, str]  # model whose inputs are fed, batch, shapes


class Reference(Struct, frozen=True, kw_only=True, eq=False):
    """Outputs that others are compared with; `result` has their inputs and precision."""

    result: Result
    outputs: Mapping[str, Any]
    kind: ReferenceKind = "configuration"
    apart: bool = False  # not one of the measured configurations


def find_key(row: PlannedRow) -> Key:
    """The key of a configuration's inputs: those with the same key get the same inputs."""
    return row.inputs_model, *find_size(row.engine)


def find_eager(rows: Iterable[PlannedRow]) -> PlannedRow | None:
    """Find the configuration of plain PyTorch eager, in the module's own precision if there is one."""
    eager = [row for row in rows if row.engine.backend == "pytorch" and row.engine.recipe is None and row.chain]
    own = [row for row in eager if row.requested_precision == row.chain[0].precision]
    return next(iter(own), None) or next((row for row in eager if row.requested_precision == "tf32"), None)


def find_own_graph(rows: Sequence[PlannedRow]) -> tuple[PlannedRow, Artifact] | None:
    """Find (a configuration made from the graph, the model's graph before any change of precision, in its shapes).

    None if a fake engine comes first: it computes no graph, and the others are compared with it.
    """
    if rows and is_simulated(rows[0].engine.backend):
        return None
    for row in rows:
        graph = next((artifact for artifact in row.chain if artifact.kind == "onnx"), None)
        if graph is not None and row.engine.shapes:
            graph = replace(graph, inputs=size_axes(graph.inputs, row.engine.shapes))
        if graph is not None:
            return row, graph
    return None


def runs_own_graph(row: PlannedRow) -> bool:
    """Whether a configuration starts from the model's unchanged graph, in its own precision."""
    graph = next((artifact for artifact in row.chain if artifact.kind == "onnx"), None)
    return graph is not None and row.source is not None and row.source.sha256 == graph.sha256


def describe_graph_engine(row: PlannedRow, graph: Artifact) -> EngineSpec:
    """The engine of a graph's own outputs: on the CPU, with the threads and the batch of the configuration."""
    plain = EngineSpec(backend="ort", options={"opt": "none"}, batch=row.engine.batch, threads=row.engine.threads)
    return replace(plain, precision=graph.precision, recipe=graph.recipe, shapes=row.engine.shapes)


def list_lower_engines(engine: EngineSpec) -> list[EngineSpec]:
    """ONNX Runtime at each lower level of its optimizer than this engine uses, in order; [] for other engines."""
    level = engine.options.get("opt", OPT_LEVELS[0])
    if engine.backend not in ("ort", "ort-cuda") or engine.options.get("ahead") == "1" or level not in OPT_LEVELS:
        return []
    lower = OPT_LEVELS[OPT_LEVELS.index(level) + 1 :]
    return [replace(engine, options={**engine.options, "opt": name}) for name in lower]
