"""Move the command of a build to TensorRT 11, which takes the precision from the graph; say what changes, and why."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from enginebench.core.commands import format_command
from enginebench.core.errors import ArtifactError, UsageError, explaining, importing
from enginebench.core.names import format_precision
from enginebench.core.recipes import find_graph_precision
from enginebench.core.records import Artifact, EngineSpec, Precision
from enginebench.core.store import explain_reading
from enginebench.core.text import count_of
from enginebench.engines.abilities import Change, ChangedPart
from enginebench.engines.backends.tensorrt.settings import SEPARATOR, split_argv
from enginebench.features.trtexec.command import CREATORS, OWN_OPTIONS, WEAK_FLAGS
from enginebench.features.trtexec.executable import INSTEAD, NEWEST, Trtexec, is_known

if TYPE_CHECKING:
    from onnx import GraphProto

# Flags that ask for a precision, the one that decides first. What `--best` takes in 8 bits has ranges only by a cache.
FLAGS: dict[str, Precision] = {
    "int8": "int8",
    "fp8": "fp8",
    "int4": "int4",
    "fp16": "fp16",
    "best": "fp16",
    "bf16": "bf16",
}
OF_LAYERS = frozenset({"layerPrecisions", "layerOutputTypes", "precisionConstraints"})
# Options that 11 takes and ignores, since they are its defaults. Source: the help of trtexec 11.0 and 11.1.
USUAL = frozenset({"useCudaGraph", "noDataTransfers", "useSpinWait", "separateProfileRun", "stronglyTyped"})
# Options whose values were TYPE:FORMAT; from 11 on FORMAT alone.
FORMATS = frozenset({"inputIOFormats", "outputIOFormats"})
# Options of the engine that are trtexec's own text: a pasted command sets them.
OF_SHAPES = frozenset({"min_shapes", "opt_shapes", "max_shapes"})
# What options that are gone have become.
RENAMED: dict[str, Callable[[str], str]] = {
    "workspace": "--memPoolSize=workspace:{}".format,
    "weightless": lambda _: "--stripWeights",
}
# Of a plug-in library, by the interface that its plug-ins have: up to 10 both, from 11 on the last alone.
OLD_CREATORS, NEW_CREATORS = CREATORS


def adapt_build(
    artifact: Artifact, plan: str, spec: EngineSpec, tool: Trtexec
) -> tuple[EngineSpec, tuple[Change, ...]]:
    """Return the engine of a command for TensorRT 10 or older as `tool` builds it, and what had to change."""
    if not tool.typed_by_graph:
        raise UsageError(
            f"--explain lists what changes with TensorRT 11, and {tool.version_text} is older: "
            "give --tensorrt-version 11.0 or later"
        )
    options, changes = dict(spec.options), list[Change]()
    weak = options.pop("weak_typing", "0") == "1"
    if weak:
        changes.append(make_change("command", "--weak-typing", "leave it out: the graph sets the types"))
    if options.pop("floats", "fp32") != "fp32":
        changes.append(make_change("command", "floats=fp16", "leave it out: the graph sets its floats"))
    flags, cache, data = list[str](), options.pop("calib_cache", ""), options.pop("calib_data", "")
    named = {f"--onnx={artifact.path}", f"--saveEngine={plan}"}
    for key in ("extra", "run_extra"):
        kept = list[str]()
        for argument in split_argv(options.pop(key, "")):
            name, _, value = argument.removeprefix("--").partition("=")
            if not argument.startswith("--") or argument in named:  # trtexec itself, and the files that are given
                continue
            flags += [name] if name in FLAGS else []
            cache = str(Path(value).absolute()) if name == "calib" else cache
            if (own := OWN_OPTIONS.get(name, "")[2:].replace("-", "_")) in OF_SHAPES and own not in options:
                options[own] = value  # a second one beside the default would be refused
                continue
            became, why = adapt_argument(tool, argument)
            changes += [make_change("command", argument, why)] if why else []
            kept += [became] if became else []
        options |= {key: shlex.join(kept)} if kept else {}
    floats = artifact.precision in ("fp32", None)
    requested = next((precision for flag, precision in FLAGS.items() if flag in flags), spec.precision)
    precision = "int8" if cache and floats else requested
    changes += list_plugin_changes(list(filter(None, options.get("plugins", "").split(SEPARATOR))))
    graph = read_graph(artifact)
    changes += list_cache_changes(Path(cache), artifact, graph) if cache else ()
    made = replace(spec, precision=precision, options=options)
    ranges = ("--calib-cache", cache) if cache else ("--calib", data or "F.npz")
    changes += list_graph_changes(artifact, graph, made, ranges, halves=weak or bool(flags))
    return made, tuple(changes)


def make_change(part: ChangedPart, item: str, change: str, command: str | None = None) -> Change:
    return Change(part=part, item=item, change=change, command=command)


def adapt_argument(tool: Trtexec, argument: str) -> tuple[str | None, str | None]:
    """Return what an argument of trtexec becomes (None: it is left out), and what changes (None: nothing)."""
    name, _, value = argument.removeprefix("--").partition("=")
    if name in FLAGS:
        return None, "leave it out: the graph sets the precision"
    if name == "calib":
        return None, "leave it out: there are no calibrators"
    if name in OF_LAYERS:
        pairs = (layer.rpartition(":")[::2] for layer in value.split(","))
        layers = ", ".join(layer for layer, precision in pairs if layer and precision == "fp32")
        listed = f" ({layers})" if layers else ""
        return None, f"leave it out: name what stays in FP32{listed} in a file, for `quantize --exclude FILE`"
    if name in USUAL:
        return None, "leave it out: it has no effect, since it is the default"
    if name in FORMATS and ":" in value:
        became = f"--{name}={','.join(part.rpartition(':')[2] for part in value.split(','))}"
        return became, f"becomes {became}: the graph sets the types"
    if tool.accepts(name):
        return argument, None
    if name in RENAMED:
        became = RENAMED[name](value)
        return became, f"becomes {became}"
    if name in INSTEAD:
        return None, f"leave it out. Instead: {INSTEAD[name]}"
    if not is_known(name):
        newest = ".".join(map(str, NEWEST[:2]))
        return argument, f"stays, unchecked: no version up to {newest} has it; see whether `trtexec --help` lists it"
    return argument, None  # of a later version: what composes the command decides


def list_plugin_changes(libraries: Sequence[str]) -> Iterator[Change]:
    for library in map(Path, libraries):
        if not library.is_file():
            continue
        with explain_reading(library):
            data = library.read_bytes()
        if OLD_CREATORS in data and NEW_CREATORS not in data:
            why = "it offers plug-ins of IPluginV2 alone, which 11 does not load: port them to IPluginV3"
            yield make_change("command", f"--plugins {library}", why)


def list_cache_changes(cache: Path, artifact: Artifact, graph: "GraphProto") -> Iterator[Change]:
    from enginebench.models.precision.calibration import read_calibration_cache

    names = read_calibration_cache(cache).ranges.keys()
    tensors = {value.name for value in graph.input} | {name for node in graph.node for name in node.output}
    others = [name for name in names if name not in tensors]
    if len(others) == len(names):
        raise ArtifactError(
            f"{cache}: none of its {count_of(len(names), 'entries')} is of a tensor of {artifact.path}, such as "
            f"{others[0]}: give the graph that it was made with"
        )
    left = f"; {others[0]} and others that TensorRT made up are not needed" if others else ""
    why = (
        "nothing reads it any more: its ranges become Q/DQ nodes of the graph. "
        f"{len(names) - len(others)} of {count_of(len(names), 'entries')} are of its tensors{left}"
    )
    yield make_change("calibration cache", str(cache), why)


def list_graph_changes(
    artifact: Artifact, graph: "GraphProto", spec: EngineSpec, ranges: tuple[str, str], *, halves: bool
) -> Iterator[Change]:
    """List what the graph must become; with `halves` the old command let FP16 be chosen beside 8 bits."""
    path, precision, present = artifact.path, spec.precision, artifact.precision
    eight_bits = precision in ("int8", "fp8")
    if precision is not None and present not in (precision, find_graph_precision(spec.backend, precision)):
        options: list[tuple[str, str | None]] = [("--to", format_precision(precision, spec.recipe))]
        options += [ranges] if eight_bits else []
        real = f", with ranges of real inputs ({ranges[1]})" if eight_bits and ranges[0] == "--calib" else ""
        why = f"it is {present}, and a plan of it would be, too: make a graph in {precision} of it{real}"
        yield make_change("graph", path, why, format_command("quantize", path, options=options))
    if eight_bits and halves and "fp16" in WEAK_FLAGS[precision or "fp32"]:
        yield make_change("graph", path, "what is not quantized computes in FP32 or TF32; before, FP16 was allowed")
    if others := list_own_operators(graph):
        yield make_change("graph", path, f"{', '.join(others)}: no ONNX operators; 11 has plug-ins of IPluginV3 alone")


def list_own_operators(graph: "GraphProto") -> list[str]:
    """List the operators for which TensorRT needs plug-ins."""
    from onnx import defs

    used = {(node.domain, node.op_type) for node in graph.node}
    return sorted(name for domain, name in used if not defs.has(name, domain="" if domain == "ai.onnx" else domain))


def read_graph(artifact: Artifact) -> "GraphProto":
    """Read the graph without its weights."""
    with importing("{}, which reads graphs,", 'pip install "enginebench[ort]"'):
        import onnx
    with explaining(ArtifactError, f"cannot read {artifact.path}"):
        return onnx.load(artifact.path, load_external_data=False).graph
