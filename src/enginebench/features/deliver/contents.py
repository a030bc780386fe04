"""What goes into a bundle, engine by engine: programs, packages, the processor's instructions; or why nothing."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from enginebench.core.records import TEXT, EngineSpec, Machine, Precision, Result

PROGRAMS = Path(__file__).parent / "as-shipped"
PACKAGE = Path(__file__).parents[2]
# In every bundle, under these names.
SHARED = ("facts.py", "trial.py")

# Engines whose rows cannot be taken away.
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
    """What an engine's bundle holds beside the model: its engine's file, and packages."""

    engine: str  # name of its file in `engines`
    module: bool = False  # it runs a PyTorch module
    runtime: tuple[str, ...]  # packages whose version makes the row
    others: tuple[str, ...] = ("numpy",)


# What says whether a bundle and a machine are what was measured.
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


def choose_contents(engine: EngineSpec) -> Contents:
    """What the bundle of an engine that can be delivered holds."""
    return (CPU if engine.device == "cpu" else GPU)[engine.backend]


def explain_refusal(result: Result) -> str | None:
    """Why a row cannot be delivered; None if it can."""
    engine = result.engine
    if result.measure.scope == "pipelined":
        return f"{result.id} cannot be delivered: a bundle times one batch after another, scope pipelined overlaps them"
    if engine.backend in REFUSED:
        return f"{engine.backend} cannot be delivered: {REFUSED[engine.backend]}"
    if engine.backend not in (CPU if engine.device == "cpu" else GPU):
        return f"{engine.backend} on {engine.device} cannot be delivered: there is no bundle program for it"
    if engine.backend == "pytorch-compile" and engine.recipe is not None:
        return (
            f"{result.id} cannot be delivered: torchao quantized its module, which a bundle does not do; deliver one "
            "of ort or openvino"
        )
    if any(caveat.code == "rewritten_graph" for artifact in result.artifacts for caveat in artifact.caveats):
        return (
            f"{result.id} cannot be delivered: {engine.backend} reads its graph only rewritten for each set of "
            "shapes, which a bundle does not do; deliver one of ort"
        )
    text = [s.name for a in result.artifacts[-1:] for s in (*a.inputs, *a.outputs) if s.dtype == TEXT]
    if text and engine.backend != "ort":
        return (
            f"{result.id} cannot be delivered: {', '.join(text)} holds text, which only a bundle of ort takes "
            "and gives; deliver one of ort"
        )
    if result.status != "ok":
        return f"{result.id} is {result.status}{f' ({result.reason})' if result.reason else ''}: it has no results"
    if result.drift is not None and any(output.nonfinite for output in result.drift.outputs):
        return f"{result.id} has non-finite outputs"
    return None


def find_instructions(precision: Precision | None, machine: Machine | None, engine: EngineSpec) -> tuple[str, ...]:
    """The instructions that the measuring CPU has for what a row computes in; none for FP32 and for GPUs."""
    if machine is None or engine.device != "cpu":
        return ()
    wanted = list(INSTRUCTIONS.get(precision, ())) if precision else []
    if engine.options.get("floats") == "bf16":
        wanted += INSTRUCTIONS["bf16"]
    return tuple(flag for flag in wanted if flag in machine.cpu_flags)


def find_versions(names: tuple[str, ...], versions: Mapping[str, str]) -> dict[str, str]:
    """The measured version of each package; of one that was installed under another name, that one's."""
    found = {}
    for name in names:
        twins = [other for other in (name, *TWINS.get(name, ())) if other in versions]
        if twins:
            found[twins[0]] = versions[twins[0]]
    return found


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
