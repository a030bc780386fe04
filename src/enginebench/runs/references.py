"""What the outputs of configurations are compared with.

A module's: those of PyTorch eager. A graph's: what its nodes say, computed apart, once for each batch and shape, and
never timed. No optimizer is between the graph and these outputs, not even that of the engine that is the baseline.
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
# is compared on fewer samples, and says on how many. Two orders above what a small network takes for all samples.
REFERENCE_BUDGET_S = 30.0
# Seconds after which onnx's reference evaluator is given up: written in NumPy, it may take minutes for one sample.
EVALUATOR_TIMEOUT_S = 2 * REFERENCE_BUDGET_S
# What computes a graph as it stands, in the order in which they are asked, and what each is called.
KINDS: dict[ReferenceKind, str] = {"ort_unoptimized": UNOPTIMIZED, "onnx_evaluator": EVALUATOR}
# The levels of ONNX Runtime's optimizer, the highest first.
OPT_LEVELS = ("all", "extended", "basic", "none")

Key = tuple[str, int, str]  # model whose inputs are fed, batch, shapes


class Reference(Struct, frozen=True, kw_only=True, eq=False):
    """Outputs that others are compared with; `result` says of which inputs, and in which precision they are."""

    result: Result
    outputs: Mapping[str, Any]
    kind: ReferenceKind = "configuration"
    apart: bool = False  # it is none of the configurations that are measured


def find_key(row: PlannedRow) -> Key:
    """Rows of one key answer the same inputs."""
    return row.asked_as, *find_size(row.engine)


def find_eager(rows: Iterable[PlannedRow]) -> PlannedRow | None:
    """The row that runs the user's module as PyTorch does by itself, in its own precision where there is one."""
    eager = [row for row in rows if row.engine.backend == "pytorch" and row.engine.recipe is None and row.chain]
    own = [row for row in eager if row.requested_precision == row.chain[0].precision]
    return next(iter(own), None) or next((row for row in eager if row.requested_precision == "tf32"), None)


def find_own_graph(rows: Sequence[PlannedRow]) -> tuple[PlannedRow, Artifact] | None:
    """(a row that comes from it, the model's graph before any change of precision, in the shapes of the row).

    None beside a fake that comes first: it computes no graph, and what stands beside it is compared with it.
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
    """Whether a row starts from the model's graph as it is, in its own precision."""
    graph = next((artifact for artifact in row.chain if artifact.kind == "onnx"), None)
    return graph is not None and row.source is not None and row.source.sha256 == graph.sha256


def describe_graph_engine(row: PlannedRow, graph: Artifact) -> EngineSpec:
    """The engine of a graph's own outputs: as many threads and entries as the row, on the CPU."""
    kept = EngineSpec(backend="ort", options={"opt": "none"}, batch=row.engine.batch, threads=row.engine.threads)
    return replace(kept, precision=graph.precision, recipe=graph.recipe, shapes=row.engine.shapes)


def list_lower_engines(engine: EngineSpec) -> list[EngineSpec]:
    """ONNX Runtime with less and less of its optimizer than this engine uses; [] of any other engine."""
    level = engine.options.get("opt", OPT_LEVELS[0])
    if engine.backend not in ("ort", "ort-cuda") or engine.options.get("ahead") == "1" or level not in OPT_LEVELS:
        return []
    lower = OPT_LEVELS[OPT_LEVELS.index(level) + 1 :]
    return [replace(engine, options={**engine.options, "opt": name}) for name in lower]
