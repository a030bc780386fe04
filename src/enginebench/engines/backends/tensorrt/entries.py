"""The entry of TensorRT's Python API, which is not imported here."""

from enginebench.core.commands import format_command
from enginebench.core.entry import Builder, Entry, OnDevice, Option, choice, switch
from enginebench.core.records import Precision
from enginebench.engines.tensorrt_library import MODULES, RTX_MODULE, find_other_system_folder

OTHER_FOLDER = find_other_system_folder()


def _quantize_with(option: str) -> str:
    """The command that makes Q/DQ nodes of ranges, which `option` reads from a file."""
    return format_command("quantize", "F.onnx", options=[("--to", "int8"), (option, "FILE")])


# Of trtexec, too.
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16", "int8", "fp8")
BUILD_OPTIONS = {
    "weak_typing": switch("set the precision by builder flags (TensorRT 10 and older); 0: the graph sets it"),
    "floats": choice(
        "fp32|fp16",
        "Q/DQ graphs: what is not INT8 in them computes in FP32 or TF32, or may in FP16 (TensorRT 8.6)",
        search="fp16",
        only_in=("int8",),
    ),
    "calib_cache": Option(default="", outside=True, meaning="calibration cache, for weak_typing in int8"),
    "workspace_mb": Option(default="", meaning="scratch memory for one layer, in MiB"),
    "min_shapes": Option(default="", meaning="smallest shapes, NAME:1x3x224x224"),
    "opt_shapes": Option(default="", meaning="shapes to tune for"),
    "max_shapes": Option(default="", meaning="largest shapes"),
    "profiles": Option(default="", meaning="more profiles, NAME:MIN/OPT/MAX, one per line"),
    "timing_cache": Option(default="", outside=True, meaning="file that keeps timings between builds"),
    "optimization_level": choice("|0|1|2|3|4|5", "how hard the builder searches (TensorRT's default: 3)", search="5"),
    "version_compatible": switch("the plan also runs on later versions of the same major version"),
    "hardware_compatibility": choice("none|ampere+|sameComputeCapability", "other GPUs that the plan also runs on"),
    "plugins": Option(default="", outside=True, meaning="plugin libraries, one per line"),
    "refit": switch("allow the weights to be replaced later"),
    "strip": switch("leave out the weights; refit them later"),
    "dla": choice("|0|1", "DLA core of a Jetson that runs what it can of the graph, in fp16 or int8; the GPU the rest"),
    "detailed": switch("keep what layer information and precision verification need", on=True),
}

TENSORRT = Entry(
    name="tensorrt",
    axes="fixed",
    module="enginebench.engines.backends.tensorrt.tensorrt",
    builder=Builder(kept_with={}, tunes=True, beside_itself=True, qdq_rules=True),
    takes="onnx",
    also_takes=("plan",),
    precisions=PRECISIONS,
    options={
        **BUILD_OPTIONS,
        "graph": switch("launch as a CUDA graph", on=True, tried=True),
        "spin": switch("spin while waiting for the GPU", on=True),
        "profile_index": Option(default="0", meaning="optimization profile to run"),
        "shapes": Option(default="", meaning="shapes to run with, NAME:1x3x224x224 (only for a finished plan)"),
        "calib_data": Option(
            default="", outside=True, meaning="arrays (.npz) to calibrate on, for weak_typing in int8"
        ),
        "host_code": switch("run host code that a version-compatible plan carries", outside=True),
    },
    refuses={"extra": "arguments after -- and of --extra are for the engine trtexec"},
    device="cuda:0",
    on={"cuda": OnDevice(beside_itself={"spin": "0"}, overlaps=True)},
    modules=(MODULES[0], "cuda.bindings"),
    stand_ins=MODULES[1:],
    command=(
        f"an environment of the Python that {OTHER_FOLDER} is for: {OTHER_FOLDER.parent.name} -m venv DIR"
        if OTHER_FOLDER
        else 'pip install "enginebench[tensorrt]" (or: pip install tensorrt cuda-python)'
    ),
    verified_on="NVIDIA's own TensorRT 8.6.0 on an H200 and an H100. 10 and 11: names of the bindings, and the lean "
    "runtimes 10.16 and 11.4 without a plan that they take; no builder of 10 or 11 has run with it",
)

_KEPT = ("workspace_mb", "min_shapes", "opt_shapes", "max_shapes", "profiles", "version_compatible", "plugins")
_NO_GPU = "replacing weights needs a GPU while the plan is built; build it again from a graph with the new weights"

TENSORRT_RTX = Entry(
    name="tensorrt-rtx",
    axes="fixed",
    module="enginebench.engines.backends.tensorrt.rtx",
    builder=Builder(kept_with={}, crashes=True, qdq_rules=True),
    takes="onnx",
    also_takes=("plan",),
    precisions=PRECISIONS,
    options={
        **{key: BUILD_OPTIONS[key] for key in _KEPT},
        "compute_capability": Option(
            default="", meaning="GPUs that the plan is for, 8.6+8.9+12.0; empty: all from 8.0 that have the precision"
        ),
        "weight_streaming": switch("weights may stay in the host's memory and come when they are needed"),
        "weight_budget_mb": Option(default="", meaning="GPU memory for the weights of such a plan, in MiB"),
        "graph": Option(
            default="1",
            choices=("0", "1", "rtx"),
            search=("rtx", "0"),
            meaning="launch as a CUDA graph: ours, or the library's own",
        ),
        "spin": TENSORRT.options["spin"],
        "profile_index": TENSORRT.options["profile_index"],
        "shapes": TENSORRT.options["shapes"],
        "specialization": choice(
            "eager|lazy|none",
            "when kernels are compiled for a shape: before the first run, beside the runs (times drift), never",
        ),
    },
    refuses={
        **TENSORRT.refuses,
        "optimization_level": "its builder takes any level and writes the same plan",
        "hardware_compatibility": "its builder ignores it; --compute-capability names the GPUs that a plan is for",
        "timing_cache": "its builder times nothing",
        "refit": _NO_GPU,
        "strip": _NO_GPU,
        "weak_typing": "its networks are strongly typed: the graph sets the precision",
        "calib_cache": f"the graph holds the ranges: {_quantize_with('--calib-cache')}",
        "calib_data": f"the graph holds the ranges: {_quantize_with('--calib')}",
    },
    device="cuda:0",
    on={"cuda": OnDevice(beside_itself={"spin": "0"})},
    modules=(RTX_MODULE,),
    extra="tensorrt-rtx",
    packages=("tensorrt_rtx_cu13_libs", "tensorrt_rtx_cu13_bindings", "cuda-python"),
    verified_on="TensorRT for RTX 1.7.1 on x86-64, Linux: building, without a GPU. Not yet run on a GPU that it "
    "supports; an H200 (9.0) is not one",
)
