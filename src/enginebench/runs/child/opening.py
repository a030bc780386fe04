"""Open backends for a job, with the model loader, caches and readers that they need, and build with them."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from msgspec.structs import replace

from enginebench.core.engine_api import PaddedEngine
from enginebench.core.errors import ArtifactError, MissingDependency, UnsupportedOperator
from enginebench.core.protocols import Backend, Engine, Loadable
from enginebench.core.records import AheadOfTime, Artifact, EngineSpec, ResultWarning
from enginebench.core.shapes import find_padding, open_artifact, pad_cells, size_artifact
from enginebench.core.streams import LoadsSeveral
from enginebench.core.text import list_some
from enginebench.core.warnings import make_warning
from enginebench.engines.abilities import NeedsPlanReader, ReadsOpsets, ReportsProgress
from enginebench.engines.registry import check_options, find_entry, open_backend
from enginebench.runs.child.jobs import NoteCall

# Products that a warning names before it counts the rest.
LISTED = 8
LOWERING_FIX = 'pip install "enginebench[ort]"'


def open_module(artifact: Artifact) -> object:
    """The PyTorch module of an artifact; PyTorch is imported by this call, not before."""
    from enginebench.models.torch.source import load_module as load

    return load(artifact)


def open_for(engine: EngineSpec, out_dir: str) -> Backend:
    """The backend of an engine, with the model loader and the folder of its caches handed in."""
    check_options(engine)
    backend = open_backend(engine.backend, open_module, Path(out_dir) / "cache")
    if isinstance(backend, NeedsPlanReader):
        from enginebench.stats.plans.layers import PlanFiles

        backend.take_reader(PlanFiles())
    return backend


def load_all(backend: Loadable, artifact: Artifact, specs: Sequence[EngineSpec]) -> Sequence[Engine]:
    """An engine for each spec, which share their weights where the backend can do that."""
    if isinstance(backend, LoadsSeveral):
        return backend.load_several(artifact, specs)
    with ExitStack() as stack:
        loaded = [stack.enter_context(backend.load(artifact, spec)) for spec in specs]
        stack.pop_all()
    return loaded


@contextmanager
def open_cells(backend: Loadable, artifact: Artifact, engine: EngineSpec) -> Iterator[list[Engine]]:
    """Yield the loaded engine; of a mix one for each cell, which share what is loaded where the options say so.

    Cells that are padded to one shape have one engine.
    """
    padding, padded = find_padding(engine, artifact.inputs), pad_cells(engine, artifact.inputs)
    cells = [cell for i, cell in enumerate(padded) if cell not in padded[:i]]
    shared = find_entry(engine.backend).describe_on(engine.device).for_shapes[:1]
    with ExitStack() as stack:
        if len(cells) > 1 and shared and shared[0].items() <= engine.options.items():
            opened = open_artifact(artifact, engine)
            engines = [stack.enter_context(one) for one in load_all(backend, opened, cells)]
        else:
            sized = (size_artifact(artifact, cell) if engine.traffic else artifact for cell in cells)
            engines = [stack.enter_context(backend.load(*pair)) for pair in zip(sized, cells, strict=True)]
        by_cell = [engines[cells.index(cell)] for cell in padded]
        yield [PaddedEngine(one, padding) for one in by_cell] if padding else by_cell


def build_graph(backend: Backend, artifact: Artifact, engine: EngineSpec, out_dir: str, note: NoteCall) -> Artifact:
    """Build what the engine loads from `artifact`; a quantized graph is checked before a long build."""
    artifact = lower_first(backend, artifact, engine, out_dir, note)
    if (
        find_entry(engine.backend).builder.qdq_rules
        and artifact.kind == "onnx"
        and artifact.precision in ("int8", "fp8")
    ):
        _check_for_tensorrt(Path(artifact.path), note)
    built = backend.build(artifact, engine, Path(out_dir))
    return replace(built, warnings=(*built.warnings, *_list_product_warnings(artifact, built.ahead_of_time)))


def lower_first(backend: Backend, artifact: Artifact, engine: EngineSpec, out_dir: str, note: NoteCall) -> Artifact:
    """Lower the graph to an operator set that the engine's tool reads, under `out_dir`; unchanged if it reads it.

    A graph of which only the types are newer (BF16 convolutions came with 22) stays unchanged, too.
    """
    if not isinstance(backend, ReadsOpsets) or artifact.kind != "onnx" or artifact.opset is None:
        return artifact
    tool, newest = backend.describe_reader(engine)
    if artifact.opset <= newest:
        return artifact
    mismatch = f"{tool} reads graphs up to opset {newest}, and {Path(artifact.path).name} is of opset {artifact.opset}"
    if find_spec("onnx") is None or find_spec("onnxruntime") is None:
        raise MissingDependency(f"{mismatch}: onnx or onnxruntime, with which it is lowered,", LOWERING_FIX)
    from enginebench.models.precision.lowering import NewerTypes, lower_graph

    note(f"lowering the graph from opset {artifact.opset} to {newest}, the newest that {tool} reads")
    out = Path(out_dir) / "lowered" / f"{Path(artifact.path).stem}-{artifact.sha256[:8]}-opset{newest}.onnx"
    try:
        return lower_graph(artifact, newest, out)
    except NewerTypes:  # which a parser knows or refuses, but does not read otherwise
        note(f"{mismatch}; no operator has another form there, so the graph is handed on as it is")
        return artifact
    except UnsupportedOperator as error:
        raise UnsupportedOperator(
            f"{error}. {mismatch}, and nothing is built from a graph that it would read otherwise: write that part of "
            "the model in other operators, or use a newer TensorRT"
        ) from error


def build_configuration(
    backend: Backend, artifact: Artifact, engine: EngineSpec, out_dir: str, note: NoteCall
) -> Artifact:
    """Build as `build_graph` does, with progress notes, and check that a plan takes the batch of the engine."""
    note("building")
    pass_notes(backend, note)
    built = build_graph(backend, artifact, engine, out_dir, note)
    if artifact.kind == "plan":
        check_batch(built, engine)
    return built


def check_batch(plan: Artifact, engine: EngineSpec) -> None:
    for name, allowed in plan.allowed.items():
        low, high = (shape[:1] for shape in (allowed.smallest, allowed.largest))
        if not low <= (engine.batch,) <= high:
            batches = f"{low[0]} to {high[0]}" if low != high else f"{low[0]}"
            raise ArtifactError(
                f"{plan.model} takes a batch of {batches} at {name}, not {engine.batch}: give --batch, or choose "
                "another profile with --profile-index"
            )
    first = plan.inputs[0].shape[:1] if plan.inputs else ()
    if engine.options.get("implicit_batch") or not first or first[0] == engine.batch or isinstance(first[0], str):
        return
    rest = "x".join(map(str, (engine.batch, *plan.inputs[0].shape[1:])))
    raise ArtifactError(
        f"{plan.model} runs with a batch of {first[0]}, not {engine.batch}: give --batch {first[0]}, or, if its "
        f"profiles allow another, --input-shape {plan.inputs[0].name}:{rest} or --profile-index"
    )


def _check_for_tensorrt(path: Path, note: NoteCall) -> None:
    if find_spec("onnx") is None or find_spec("onnxruntime") is None:
        note("building; the Q/DQ nodes are not looked at before, as that needs onnx and onnxruntime")
        return
    from enginebench.models.precision.graph import load_whole_graph
    from enginebench.models.precision.tensorrt_check import refuse_what_tensorrt_refuses

    refuse_what_tensorrt_refuses(load_whole_graph(path), str(path))


def _list_product_warnings(graph: Artifact, ahead: AheadOfTime | None) -> tuple[ResultWarning, ...]:
    """List the warning about products that are in 8 bits in the graph and in floats in the plan."""
    if ahead is None or graph.precision not in ("int8", "fp8"):
        return ()
    from enginebench.models.precision.graph import load_whole_graph
    from enginebench.models.precision.macs import list_quantized_products

    wanted = list_quantized_products(load_whole_graph(Path(graph.path)))
    planned = {node for layer in ahead.layers if layer.precision == graph.precision for node in layer.onnx_nodes}
    lost = [name for name in wanted if name not in planned]
    if not lost:
        return ()
    names = list_some(lost, LISTED)
    return (make_warning("low_effective_precision.given_up", count=len(lost), total=len(wanted), names=names),)


def pass_notes(backend: object, note: NoteCall) -> None:
    if isinstance(backend, ReportsProgress):
        backend.take_note(note)
