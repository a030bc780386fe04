"""Choose the contents of a bundle, engine by engine, and write its files to a folder that is renamed once complete."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.judging import is_plain
from enginebench.core.records import TEXT, Artifact, EngineSpec, Machine, Precision, Result
from enginebench.core.shapes import pad_cells
from enginebench.core.store import BUNDLE, encode, explain_writing, hash_file, hash_files, open_partial, write_atomic
from enginebench.engines.registry import find_entry
from enginebench.runs.bundles import Bundle, check_name
from enginebench.stats.validity import explain_implausible

if TYPE_CHECKING:
    from enginebench.core.protocols import Array, Feeds

PROGRAMS = Path(__file__).parent / "as-shipped"
PACKAGE = Path(__file__).parents[2]
# In every bundle, under these names.
SHARED = ("facts.py", "trial.py")

# Engines whose configurations cannot be deployed.
REFUSED = {
    "trtexec": "trtexec only times a plan; deliver one of engine tensorrt, which runs the same plan",
    "fpga-sim": "its times are those of a simulated board; see `enginebench fpga verilog`",
    "fake": "it computes nothing",
    "ort-openvino": "a bundle does not contain the provider's package; deliver one of engine openvino",
    "ort-tensorrt-rtx": "its plans are rebuilt in each session; deliver one of engine tensorrt-rtx",
    "ort-tensorrt": "its plans lie in a cache of the machine that built them; deliver one of engine tensorrt",
}
# Instructions that compute in a precision. A CPU without them has other kernels, or none.
# Source: the flags of Linux's /proc/cpuinfo; ONNX Runtime's MLAS, OpenVINO's and PyTorch's oneDNN choose by them.
INSTRUCTIONS: dict[Precision, tuple[str, ...]] = {
    "int8": ("avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"),
    "bf16": ("avx512_bf16", "amx_bf16", "bf16"),
    "fp16": ("avx512_fp16", "amx_fp16", "asimdhp"),
}


class Contents(Struct, frozen=True, kw_only=True):
    """The contents of an engine's bundle beside the model: its engine's file, and packages."""

    engine: str  # name of its file in `engines`
    module: bool = False  # it runs a PyTorch module
    runtime: tuple[str, ...]  # packages whose versions the measurement depends on
    others: tuple[str, ...] = ("numpy",)


# The facts by which a bundle and a machine are compared with the measurement.
JUDGING = "core/judging.py"
# What turns a picture into an input.
PICTURES = "models/pictures.py"
# What makes a PyTorch module, as it is made where it is measured, and the program that asks it.
MODULE = ("core/trees.py", "models/torch/flat.py", "models/torch/torchvision_import.py")
CPU = {
    "ort": Contents(engine="ort", runtime=("onnxruntime",)),
    "openvino": Contents(engine="openvino", runtime=("openvino",)),
    "pytorch": Contents(engine="pytorch", module=True, runtime=("torch",)),
    "pytorch-compile": Contents(engine="pytorch_compile", module=True, runtime=("torch",)),
    "pytorch-aoti": Contents(engine="pytorch_aoti", runtime=("torch",)),
}
GPU = {
    "pytorch": Contents(engine="pytorch_cuda", module=True, runtime=("torch",)),
    "pytorch-cudagraph": Contents(engine="pytorch_cuda", module=True, runtime=("torch",)),
    "pytorch-compile": Contents(engine="pytorch_compile", module=True, runtime=("torch",)),
    "pytorch-aoti": Contents(engine="pytorch_aoti", runtime=("torch",)),
    "ort-cuda": Contents(engine="ort_cuda", runtime=("onnxruntime-gpu",), others=("cuda-python", "numpy")),
    "tensorrt": Contents(engine="tensorrt", runtime=("tensorrt",), others=("cuda-python", "numpy")),
}


def explain_refusal(result: Result) -> str | None:
    """Return why a configuration cannot be delivered, by its record alone; None if nothing in it prevents that."""
    engine = result.engine
    if result.measure.scope == "pipelined":
        return "a bundle times one batch after another, scope pipelined overlaps them"
    if why := explain_implausible(result.measurements):
        return f"its times are implausible: {why}"
    if engine.backend in REFUSED:
        return REFUSED[engine.backend]
    if engine.backend not in (CPU if engine.device == "cpu" else GPU):
        return f"there is no bundle program for {engine.backend} on {engine.device}"
    if engine.backend == "pytorch-compile" and engine.recipe is not None:
        return "torchao quantized its module, which a bundle does not do; deliver one of ort or openvino"
    if any(warning.code == "rewritten_graph" for artifact in result.artifacts for warning in artifact.warnings):
        return (
            f"{engine.backend} reads its graph only rewritten for each set of shapes, which a bundle does not do; "
            "deliver one of ort"
        )
    apart = find_entry(engine.backend).describe_on(engine.device).for_shapes[1:]
    cells = pad_cells(engine, result.artifacts[-1].inputs) if result.artifacts else []
    several = any(cell != cells[0] for cell in cells)  # which padding to the largest leaves none of
    if several and apart and apart[0].items() <= engine.options.items():
        return "it has an engine for each shape, and a bundle has one for all shapes"
    text = [s.name for a in result.artifacts[-1:] for s in (*a.inputs, *a.outputs) if s.dtype == TEXT]
    if text and engine.backend != "ort":
        return f"{', '.join(text)} holds text, which only a bundle of ort takes and gives; deliver one of ort"
    if result.status not in ("ok", "partial"):
        return f"it is {result.status}{f' ({result.reason})' if result.reason else ''}, not ok"
    if result.drift is not None and any(output.broken for output in result.drift.outputs):
        return "it has non-finite outputs"
    return None


def find_instructions(precision: Precision | None, machine: Machine | None, engine: EngineSpec) -> tuple[str, ...]:
    """Return the measuring CPU's instructions for the configuration's precision; none for FP32 and for GPUs."""
    if machine is None or engine.device != "cpu":
        return ()
    wanted = list(INSTRUCTIONS.get(precision, ())) if precision else []
    if engine.options.get("floats") == "bf16":
        wanted += INSTRUCTIONS["bf16"]
    return tuple(flag for flag in wanted if flag in machine.cpu_flags)


def find_versions(names: tuple[str, ...], versions: Mapping[str, str]) -> dict[str, str]:
    """The measured version of each package; of one that was installed under another name, that one's."""
    measured = {}
    for name in names:
        twins = [other for other in (name, *TWINS.get(name, ())) if other in versions]
        if twins:
            measured[twins[0]] = versions[twins[0]]
    return measured


# Distributions that bring the same modules.
TWINS = {
    "cuda-python": ("cuda-bindings",),
    "onnxruntime": ("onnxruntime-gpu",),
    "tensorrt": ("tensorrt-cu13", "tensorrt-cu12"),
}


def format_requirements(versions: Mapping[str, str]) -> str:
    """`requirements.txt`. A build that an index keeps apart (`+cpu`) is named in a comment: its own index has it."""
    lines = [f"{name}=={version.partition('+')[0]}" if version else name for name, version in sorted(versions.items())]
    builds = [f"{name} {version}" for name, version in sorted(versions.items()) if "+" in version]
    if not builds:
        return "\n".join([*lines, ""])
    index = f"https://download.pytorch.org/whl/{builds[0].rpartition('+')[2]}"
    comment = [
        f"# measured with the build {', '.join(builds)}",
        f"# pip install -r requirements.txt --extra-index-url {index}",
    ]
    return "\n".join([*comment, *lines, ""])


MODEL = "model"
# Where a bundle keeps the engine that was measured, its files in the folders that they have here.
MEASURED = "measured"
WEIGHTS = "weights.npz"
# What a check holds at most, in bytes of inputs, and how many entries: enough to see a wrong model, little to ship.
CHECK_BYTES = 4 << 20
CHECK_ENTRIES = 32
# A centred cosine is taken over samples: one has no mean of its own.
LEAST_ENTRIES = 2


def check_free(out: Path) -> None:
    if out.is_symlink() or out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UsageError(f"{out} is not empty; a bundle gets a folder of its own. Choose another, or remove it")


@contextmanager
def open_stage(out: Path) -> Iterator[Path]:
    """An empty folder beside `out` that takes its place at the end of the block, if nothing was raised in it."""
    check_free(out)
    with explain_writing(out):
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        with open_partial(out) as stage:
            yield stage
            stage.chmod(0o755)
            if out.is_dir():
                out.rmdir()
            stage.rename(out)


def copy_programs(stage: Path, *names: str) -> None:
    for name in names:
        write_atomic(stage / name, (PROGRAMS / name).read_bytes())


def list_sources(*roots: str) -> list[str]:
    """These files of the package, and all of ours that they import."""
    sources = list(roots)
    for source in sources:  # which grows meanwhile
        for node in ast.walk(ast.parse((PACKAGE / source).read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.level:
                folder = Path(source).parents[node.level - 1]
                names = [node.module.replace(".", "/")] if node.module else [alias.name for alias in node.names]
                sources += [path for name in names if (path := (folder / f"{name}.py").as_posix()) not in sources]
    return sources


def copy_sources(stage: Path, *roots: str) -> None:
    """Copy files, and what they import, into their own folders, so that every import between them works unchanged."""
    for source in list_sources(*roots):
        write_atomic(stage / MEASURED / source, (PACKAGE / source).read_bytes())


def copy_engine(stage: Path, contents: Contents) -> None:
    """Copy the measured engine's own files, and the programs that call them."""
    copy_sources(stage, f"engines/{contents.engine}.py", JUDGING, *(MODULE if contents.module else ()))
    program = (PROGRAMS / "predict.py").read_text("utf-8")
    write_atomic(stage / "predict.py", program.replace("import ort as", f"import {contents.engine} as").encode())
    copy_programs(stage, *SHARED, *(["module.py"] if contents.module else ()))


def copy_model(stage: Path, artifact: Artifact) -> Artifact:
    source, names = Path(artifact.path), choose_names(artifact)
    for file in artifact.files:
        check_name(f"{MODEL}/{names[file.path]}")
        target = stage / MODEL / names[file.path]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source.parent / file.path, target)
    moved = replace(artifact, path=f"{MODEL}/{names[source.name]}")
    if all(old == new for old, new in names.items()):
        return moved
    sha256, files = hash_files([stage / MODEL / name for name in names.values()], stage / MODEL)
    parent = artifact.parent_sha256 if sha256 == artifact.sha256 else artifact.sha256
    return replace(moved, sha256=sha256, files=files, parent_sha256=parent)


def choose_names(artifact: Artifact) -> dict[str, str]:
    """{file of a model: its name in a bundle}; files that the model itself mentions keep theirs.

    The model's own file is called `model` where its name has a space, an umlaut or the like, and the weights of
    OpenVINO's, which are found by their name, are called after it.
    """
    own, names = Path(artifact.path), {file.path: file.path for file in artifact.files}
    if not is_plain(own.name):
        names[own.name] = f"{MODEL}{own.suffix}"
        weights = own.with_suffix(".bin").name
        if own.suffix == ".xml" and weights in names:
            names[weights] = f"{MODEL}.bin"
    return names


def write_weights(stage: Path, artifact: Artifact) -> Artifact:
    """A `torch` artifact with its state dict as plain arrays, which nothing needs to unpickle."""
    import torch  # only for the PyTorch, whose state dict it wrote

    state = torch.load(artifact.path, map_location="cpu", weights_only=True)
    arrays: dict[str, Any] = {}
    for name, tensor in state.items():
        try:
            arrays[name] = tensor.numpy()
        except TypeError as error:  # of a type that NumPy lacks
            raise ArtifactError(f"{artifact.model} has weights in {tensor.dtype}, which NumPy lacks") from error
    path = stage / MODEL / WEIGHTS
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    sha256, files = hash_files([path], path.parent)
    return replace(artifact, path=f"{MODEL}/{WEIGHTS}", sha256=sha256, files=files, parent_sha256=artifact.sha256)


def write_check(
    stage: Path, feeds: Sequence[Feeds], outputs: Mapping[str, Array], ranks: Mapping[str, int], name: str = "check.npz"
) -> None:
    """Write `check.npz`, or the file of one more shape: the inputs of the first calls, with the measured outputs.

    Outputs of all calls are joined along the first axis, or along one of their own: `ranks` has their axes in one call.
    """
    size = max(1, sum(array.nbytes for array in feeds[0].values()))
    entries = max(1, max((len(array) for array in feeds[0].values() if array.ndim), default=1))
    count = min(len(feeds), max(min(CHECK_BYTES // size, CHECK_ENTRIES // entries), -(-LEAST_ENTRIES // entries)))
    arrays: dict[str, Any] = {f"inputs.{name}": np.stack([f[name] for f in feeds[:count]]) for name in feeds[0]}
    for output, array in outputs.items():
        if output not in ranks:
            raise ArtifactError(f"output {output!r} is none of its graph's: {', '.join(ranks)}; the run is damaged")
        if len(array) % len(feeds):
            raise ArtifactError(
                f"output {output!r} has {len(array)} entries for {len(feeds)} calls; the run is damaged"
            )
        apart = array.ndim > max(1, ranks[output]) and len(array) == len(feeds)
        arrays[f"outputs.{output}"] = (array if apart else array.reshape(len(feeds), -1, *array.shape[1:]))[:count]
    np.savez(stage / name, **arrays)


def seal(stage: Path, bundle: Bundle) -> Bundle:
    """Write `bundle.json` with the hashes of all other files, and return the record."""
    paths = sorted(path for path in stage.rglob("*") if path.is_file() and path != stage / BUNDLE)
    names = [path.relative_to(stage).as_posix() for path in paths]
    for name in names:
        check_name(name)
    sealed = replace(bundle, files=tuple(hash_files(paths, stage)[1]))
    write_atomic(stage / BUNDLE, encode(sealed, indent=2))
    return sealed


def verify_copy(stage: Path, bundle: Bundle) -> None:
    """Check that no sealed file was changed, for example by a program that ran from the folder."""
    for file in bundle.files:
        if hash_file(stage / file.path) != file.sha256:
            raise ArtifactError(f"{file.path} of the bundle changed while it was checked; deliver it again")
