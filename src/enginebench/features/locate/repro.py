"""Write a reproduction that needs no EngineBench: the graph, its inputs, a program, and a report for a tracker."""

import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx
from msgspec.structs import replace
from onnx import GraphProto, ModelProto, inliner

from enginebench.core.engine_api import read_index
from enginebench.core.names import format_options, require_precision
from enginebench.core.protocols import Array
from enginebench.core.records import EngineSpec
from enginebench.core.store import write_atomic
from enginebench.core.text import count_nonfinite, count_of, shorten_words
from enginebench.engines.abilities import NamesFlags, ReadsOpsets
from enginebench.engines.openvino_settings import HINTS
from enginebench.engines.ort import spell_optimizers
from enginebench.engines.registry import complete_options, find_entry, list_installed, open_backend
from enginebench.features.locate.judging import Deviation
from enginebench.features.locate.shrink import Case
from enginebench.measure.machine import describe_machine
from enginebench.models.onnx.source import LARGEST_PROTOBUF_BYTES, read_graphs, read_opset
from enginebench.models.precision.lowering import NewerTypes, lower_model
from enginebench.report.located import FoundFault, Reproduction
from enginebench.report.markdown import format_sections
from enginebench.report.table import Notes, Section, list_texts, make_table
from enginebench.runs.child.arrays import save_arrays

PROGRAMS = Path(__file__).parent / "as-shipped"
# ENGINE -> the program that shows the fault of a graph on it.
PROGRAM_OF = {
    "ort": "repro_ort.py",
    "ort-cuda": "repro_ort.py",
    "openvino": "repro_openvino.py",
    "tensorrt": "repro_tensorrt.py",
}
PROVIDERS = {"ort": "CPUExecutionProvider", "ort-cuda": "CUDAExecutionProvider"}
TIMEOUT_S = 60.0
WRITTEN = {
    "model.onnx",
    "model.data",
    "model.pt2",
    "inputs.npz",
    "expected.npz",
    "settings.json",
    "repro.py",
    "report.md",
}
# Of the largest expected value, where the fault itself has no size: a value that is not finite, another shape.
ROUNDING = 1e-3
# Of a graph that is shown in a report.
MOST_NODES = 40


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A few nodes and their outputs on both sides, as a report for a tracker shows them."""

    nodes: Sequence[tuple[str, Sequence[str], Sequence[str]]]  # kind, what it reads, what it makes
    names: Mapping[str, str]  # {a tensor's name: its name in the files of the reproduction}
    expected: Mapping[str, Array]
    actual: Mapping[str, Array]
    deviations: Mapping[str, Deviation]
    seeded: bool = False  # weights and inputs are drawn from a seed


def write_reproduction(folder: Path, case: Case, engine: EngineSpec, fault: FoundFault) -> Reproduction:
    """Write the folder, and run its program as a user would: in a process of its own, with nothing of EngineBench.

    Names are replaced by plain ones, in the graph and in the arrays: those of the user stand in the report alone.
    """
    model, names = rename(lower_for(case.model, engine))
    folder.mkdir(parents=True, exist_ok=True)
    for name in WRITTEN:
        (folder / name).unlink(missing_ok=True)
    big = model.ByteSize() > LARGEST_PROTOBUF_BYTES
    onnx.save_model(model, str(folder / "model.onnx"), save_as_external_data=big, location="model.data")
    save_arrays(folder / "inputs.npz", {names[name]: array for name, array in case.feeds.items()})
    save_arrays(folder / "expected.npz", {names[name]: array for name, array in case.expected.items()})
    settings = make_settings(engine, find_tolerance(case.deviations.values(), case.expected.values()))
    write_atomic(folder / "settings.json", msgspec.json.format(msgspec.json.encode(settings), indent=2) + b"\n")
    made, shown = Reproduction(nodes=len(model.graph.node), folder=str(folder)), None
    if (program := PROGRAM_OF.get(engine.backend)) is not None:
        shutil.copyfile(PROGRAMS / program, folder / "repro.py")
        shown = run_program(folder)
    example = Example(
        nodes=[(node.op_type, node.input, node.output) for node in case.model.graph.node],
        names=names,
        expected=case.expected,
        actual=case.actual,
        deviations=case.deviations,
        seeded=case.seeded,
    )
    write_atomic(folder / "report.md", write_report(example, engine, fault, shown).encode())
    return replace(made, shown=shown)


def lower_for(model: ModelProto, engine: EngineSpec) -> ModelProto:
    """Return the graph in an operator set that the engine's tool reads, as it is built."""
    backend, opset = open_backend(engine.backend), read_opset(model)
    if not isinstance(backend, ReadsOpsets) or opset is None:
        return model
    newest = backend.describe_reader(engine).newest_opset
    try:
        return lower_model(model, newest) if opset > newest else model
    except NewerTypes:  # as when it is built
        return model


def find_free_folder(out: Path, taken: int) -> Path:
    """Return the folder for one more reproduction in `out`: `repro`, `repro-2`, ..., never one with other files."""
    number = taken + 1
    while True:
        folder = out / ("repro" if number == 1 else f"repro-{number}")
        if not folder.exists() or (folder.is_dir() and {path.name for path in folder.iterdir()} <= WRITTEN):
            return folder
        number += 1


def find_tolerance(deviations: Iterable[Deviation], expected: Iterable[Array]) -> float:
    """Return the difference above which the fault is there: half of its own, or rounding where it has no size."""
    largest = max(deviation.largest for deviation in deviations)
    return largest / 2 or ROUNDING * max(map(_find_scale, expected), default=1.0)


def _find_scale(array: Array) -> float:
    """Return the largest finite magnitude in an array; 1 where there is none."""
    if array.dtype.kind not in "fiub":
        return 1.0
    finite = np.abs(np.asarray(array, np.float64))
    return float(finite[np.isfinite(finite)].max(initial=0.0)) or 1.0


def run_program(folder: Path) -> bool:
    """Return whether the program of a reproduction shows the fault."""
    command = [sys.executable, "-I", "repro.py"]
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 1 and b"the fault is there" in done.stdout


def make_settings(engine: EngineSpec, tolerance: float) -> dict[str, object]:
    options = complete_options(engine)
    settings: dict[str, object] = {"threads": engine.threads, "tolerance": tolerance}
    if engine.backend in PROVIDERS:
        names = options["disable"]
        settings |= {"opt": options["opt"], "disabled": spell_optimizers(names) if names else ""}
        settings["provider"] = PROVIDERS[engine.backend]
    if engine.backend == "openvino":
        settings["hint"] = HINTS[require_precision(engine.precision)]
    if isinstance(backend := open_backend(engine.backend), NamesFlags):
        settings |= {"device": read_index(engine), **backend.name_flags(engine)}
    return settings


def rename(model: ModelProto) -> tuple[ModelProto, Mapping[str, str]]:
    """Return a copy with plain names for nodes and tensors, and without texts; and {old name: new name}.

    Functions are replaced by their nodes: not every engine reads them.
    """
    renamed = ModelProto()
    renamed.CopyFrom(inliner.inline_local_functions(model) if model.functions else model)
    graph, names = renamed.graph, dict[str, str]()
    for prefix, listed in (
        ("x", [value.name for value in graph.input]),
        ("y", [value.name for value in graph.output]),
        ("w", [tensor.name for tensor in graph.initializer]),
    ):
        names |= {name: f"{prefix}{i}" for i, name in enumerate(name for name in listed if name not in names)}
    _rename_graph(graph, names)
    for field in ("doc_string", "producer_name", "producer_version", "domain"):
        renamed.ClearField(field)
    del renamed.metadata_props[:]
    return renamed, names


def _rename_graph(graph: GraphProto, names: dict[str, str]) -> None:
    """Rename in a graph and in the graphs of its nodes; what a body makes has a name of its own as well."""
    graph.name, graph.doc_string = "g", ""
    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = names.setdefault(value.name, f"t{len(names)}")
        value.doc_string = ""
    for tensor in graph.sparse_initializer:
        tensor.values.name = names.setdefault(tensor.values.name, f"t{len(names)}")
    for i, node in enumerate(graph.node):
        node.name, node.doc_string = f"n{i}", ""
        del node.metadata_props[:]
        for listed in (node.input, node.output):
            for folder, name in enumerate(listed):
                listed[folder] = names.setdefault(name, f"t{len(names)}") if name else ""
        for body in read_graphs(node):
            _rename_graph(body, names)


def write_report(example: Example, engine: EngineSpec, fault: FoundFault, shown: bool | None) -> str:
    machine, entry = describe_machine(), find_entry(engine.backend)
    versions = {**list_installed(entry.distributions), **list_installed(("onnx", "numpy"))}
    size = "; ".join(dict.fromkeys(map(explain_deviation, example.deviations.values())))
    caused = f"Without {', '.join(fault.optimizations)} the outputs are right." if fault.optimizations else ""
    facts = (
        ("engine", format_options(engine.backend, engine.options)),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("Python", sys.version.split()[0]),
        ("processor", f"{machine.cpu_model}, {count_of(engine.threads, 'threads')}"),
        *(("GPU", gpu.name) for gpu in machine.gpus if engine.device == f"cuda:{gpu.index}"),
        ("system", machine.os),
    )
    texts = (
        f"The outputs of {count_of(len(example.nodes), 'nodes')} differ from those of the graph as it is written: "
        f"{size}.",
        caused,
        "Weights and inputs are drawn from a seed." if example.seeded else "Weights and inputs are those of a model.",
    )
    indices = {
        True: "repro.py exits with 1 while the fault is there.",
        False: "repro.py did not show it when written.",
        None: "Build model.onnx with the engine, give it inputs.npz, and compare its outputs with expected.npz.",
    }
    plain = {old: f"{new} ({shorten_words(old)})" for old, new in example.names.items()}
    rows = [
        (kind, *(", ".join(plain.get(name, shorten_words(name)) for name in listed) for listed in (reads, makes)))
        for kind, reads, makes in example.nodes[:MOST_NODES]
    ]
    values = [
        (example.names[name], _show(example.expected[name]), _show(example.actual[name]), explain_deviation(deviation))
        for name, deviation in example.deviations.items()
    ]
    sections = [
        Section(
            title=f"{engine.backend}: wrong outputs of {fault.kind}",
            parts=(Notes(lines=tuple(("", text) for text in texts if text)), Notes(lines=facts, kind="facts")),
        ),
        Section(
            title="To reproduce",
            parts=(
                *((Notes(lines=(("", "python repro.py"),), kind="command"),) if shown is not None else ()),
                Notes(lines=(("", indices[shown]),)),
            ),
        ),
        Section(
            title="Expected and found",
            parts=(make_table(list_texts(["output", "expected", "found", "difference"]), values),),
        ),
        Section(title="The graph", parts=(make_table(list_texts(["node", "reads", "makes"]), rows),)),
    ]
    return format_sections(sections)


def explain_deviation(deviation: Deviation) -> str:
    """Explain how outputs differ: by shape, by values that are not finite, else by their largest difference."""
    if deviation.shape:
        return f"the shape is {deviation.shape}"
    if deviation.nonfinite and deviation.largest == 0:
        return count_nonfinite(deviation.nonfinite)
    if deviation.tamed:
        return f"{count_of(deviation.tamed, 'values')} that should not be finite are others"
    return f"the largest difference is {deviation.largest:g}"


def _show(array: Array) -> str:
    return " ".join(f"{value:.6g}" for value in np.asarray(array, np.float64).reshape(-1)[:8])
