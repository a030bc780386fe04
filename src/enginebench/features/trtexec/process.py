"""Run trtexec: keep its full log, distinguish success from failure, explain failures, read tensors and outputs."""

import json
import re
import shlex
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from enginebench.core.errors import (
    ArtifactError,
    BackendUnavailable,
    EngineBenchError,
    MeasurementError,
    MissingDependency,
    ParseError,
    UsageError,
)
from enginebench.core.protocols import Array
from enginebench.core.records import Artifact, ShapeRange, TensorSpec
from enginebench.core.store import JsonObject, open_temporary
from enginebench.engines.backends.tensorrt.plan_store import require_plan
from enginebench.engines.backends.tensorrt.settings import OTHER_RANGES
from enginebench.engines.tensorrt_library import TIMING_CACHE_LOST

# Lines of an error, fatal or internal: `[11/21/2026-01:38:30] [E] text`, with `[TRT]` where the library speaks.
_ERROR_LINE = re.compile(r"^(?:\[[^\]]*\] )?\[[EF]\] (?P<text>.+)$", re.MULTILINE)
# Lines that end a run without an error line, the most informative first.
_SILENT_ENDS = (
    re.compile(r"^(?P<text>Cuda failure.*)$", re.MULTILINE),
    re.compile(r"^(?:\[[^\]]*\] )?\[I\] (?P<text>Cannot find .*device.*)$", re.MULTILINE),
    re.compile(r"^(?P<text>.*(?:error while loading shared libraries|cannot open shared object).*)$", re.MULTILINE),
)
# An error of the ONNX parser: the node, its text, and, after the place in the parser's own sources, the reason.
# Source: ModelImporter.cpp of onnx-tensorrt, whose LOG_ERROR writes two lines at once.
_PARSER_ERROR = re.compile(
    r"(?:(?P<node>While parsing node number [^\n]*?):?\n(?:(?!.*ERROR: ).*\n)*)?"
    r".*ERROR: [^\n]* In function [^\n]*:\n(?P<text>[^\n]+)"
)
_DEVICE = re.compile(r"^(?:\[[^\]]*\] )?\[I\]   Device (\d+): ", re.MULTILINE)
_PASSED = re.compile(r"^&&&& PASSED TensorRT\.trtexec", re.MULTILINE)

# Lines that only follow from an earlier error.
_CONSEQUENCES = ("Engine set up failed", "Failed to create engine from model or file", "Building engine failed")
# Messages of the CUDA runtime where it cannot start at all. Any other failure is one of the run.
# Source: cudaError_t, driver_types.h (codes 3, 34, 35, 46, 100, 802, 803, 804) and cudaGetErrorString.
_NO_CUDA = (
    r"Cuda failure.*?: (?:(?:3|34|35|46|100|802|803|804)\s*(?:$|\n)|initialization error|CUDA driver is a stub"
    r"|CUDA-capable device\(s\) is/are busy|system not yet initialized"
    r"|system has unsupported display driver|forward compatibility was attempted)"
)
# Seen once in a profile run beside three builds on the same GPU, and never alone.
NOT_READY = "Cuda failure: device not ready"


class Advice(Struct, frozen=True):
    pattern: str
    advice: str
    kind: type[EngineBenchError] | None = None  # None: the caller's


# The first entry that is found in the log counts; a general pattern stands below a special one.
ADVICE = (
    Advice("CUDA driver version is insufficient", "Install or update NVIDIA's driver", BackendUnavailable),
    Advice(r"Cannot find any available devices|no CUDA-capable device", "No GPU is visible", BackendUnavailable),
    Advice(r"Cannot find device ID|Cuda failure.*?: (?:101\s*(?:$|\n)|invalid device ordinal)",
           "There is no such GPU here; choose another device", BackendUnavailable),
    Advice(_NO_CUDA, "The driver or the GPU cannot be used; see nvidia-smi", BackendUnavailable),
    Advice(NOT_READY, "Others work on this GPU: run it again when they have ended"),
    Advice(r"calibrator\.cp?[pu]|_Map_base::at", OTHER_RANGES),
    # cudaErrorMemoryAllocation; seen in 8.6.0 on a full GPU, where it comes from cudaSetDevice.
    Advice(r"Cuda failure.*?: (?:2\s*(?:$|\n)|out of memory)", "The GPU's memory is full: see nvidia-smi, and free it"),
    Advice(r"Cuda failure", "The run failed on the GPU; see nvidia-smi and dmesg"),
    # trtexec opens TensorRT's own libraries when it needs them, with the words that it has for plugins, too.
    Advice(r"Could not load library|Unable to open library: \S*lib(?:nvinfer|nvonnxparser)",
           "Add TensorRT's lib folder to LD_LIBRARY_PATH", BackendUnavailable),
    Advice(r"Unable to open library: (\S+) due to (?!\1: )\S+: cannot open shared object",
           "The plugin needs a library that is not found: add its folder to LD_LIBRARY_PATH"),
    Advice(r"Unable to open library", "The plugin library is missing or damaged; see `build --plugins`"),
    Advice(r"error while loading shared libraries",
           "Add the folder of that library to LD_LIBRARY_PATH", BackendUnavailable),
    Advice(r"cannot open shared object", "Add the folder of that library to LD_LIBRARY_PATH"),
    Advice(r"Failed to open file", "The graph keeps its weights in other files; put them beside it under their names"),
    Advice(r"Unknown option", "This version has no such option", UsageError),
    Advice(r"Static model does not take explicit shapes", "Leave out the shapes, or use `export --dynamic-batch`"),
    Advice(r"Failed to parse onnx file|In node \d+|No importer registered|Unsupported",
           "See `While parsing node` in it"),
    Advice(r"Error Code 10|Could not find any implementation",
           "Raise `build --workspace-mb`, or look for the layer that the message names"),
    Advice(r"out of memory|OutOfMemory", "Free GPU memory, or lower the batch or `build --workspace-mb`"),
    Advice(r"\bSerialization|version.{0,40}(?:mismatch|not match|expecting)|Magic tag|incompatible device",
           "The plan was made by another TensorRT version or for another GPU: build it again here"),
    Advice(r"Selected profile index", "Choose a --profile-index that the plan has"),
    Advice(r"does not satisfy|out of (?:bounds|range)|outside.{0,30}profile",
           "Give shapes within the plan's profile, by --batch or --input-shape"),
    Advice(r"Error opening engine file|empty engine|blob is empty", "The plan is missing or empty: build it again"),
    Advice(r"getPluginCreator|Plugin not found",
           "This version has neither such an operator nor such a plug-in: use a lower `export --opset`, or give "
           "the plug-in's library with `build --plugins`"),
    Advice(r"dlopen|missing.*\.so", "Give its library with `build --plugins`"),
)  # fmt: skip


class Outcome(Struct, frozen=True, kw_only=True):
    exit_code: int
    log: Path
    text: str

    @property
    def passed(self) -> bool:
        """Exit status 0 and the PASSED banner: either alone is seen in runs that did nothing."""
        return self.exit_code == 0 and _PASSED.search(self.text) is not None


def run_trtexec(argv: list[str], log: Path, folder: Path) -> Outcome:
    """Run trtexec and return its outcome. The log begins with the command line, quoted for a shell; both pipes
    follow."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            file.write(f"$ {shlex.join(argv)}\n".encode())
            file.flush()
            code = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, cwd=folder, check=False
            ).returncode
        text = log.read_bytes().decode("utf-8", "replace")
    except FileNotFoundError as error:
        raise MissingDependency(f"{argv[0]}, started in {folder},", "set TRTEXEC=/path/to/trtexec") from error
    except OSError as error:
        raise ArtifactError(f"cannot run {argv[0]} with its log at {log}: {error}") from error
    return Outcome(exit_code=code, log=log, text=text)


def list_gpus(path: str) -> tuple[tuple[str, ...], str | None]:
    """Return (the GPUs that trtexec can use, why there are none), by a plan that does not exist.

    Its help needs neither a GPU nor TensorRT's libraries; both are looked for before a plan is opened.
    """
    with open_temporary() as folder:
        outcome = run_trtexec([path, "--loadEngine=none.plan"], folder / "log", folder)
    error = find_first_error(outcome.text)
    advice = find_advice(error) or find_advice(outcome.text)
    if "Selected Device" in outcome.text and not (advice and advice.kind is BackendUnavailable):
        return tuple(f"cuda:{index}" for index in _DEVICE.findall(outcome.text)) or ("cuda:0",), None
    reason = f"{error or 'trtexec printed no error'} ({format_end(outcome)})"
    return (), ". ".join([reason, *([advice.advice] if advice else [])])


def require_success(outcome: Outcome, what: str, kind: type[EngineBenchError] = MeasurementError) -> None:
    if not outcome.passed:
        raise describe_failure(outcome, what, kind)


def describe_failure(outcome: Outcome, what: str, kind: type[EngineBenchError]) -> EngineBenchError:
    first = find_first_error(outcome.text)
    advice = find_advice(first) or find_advice("\n".join(list_errors(outcome.text)))
    error_type = (advice.kind if advice else None) or kind
    parts = [f"{what}: {first or 'trtexec printed no error'} ({format_end(outcome)})"]
    parts += [advice.advice] if advice else []
    return error_type(". ".join([*parts, f"Full log: {outcome.log}"]))


def find_first_error(text: str) -> str | None:
    """Return the first error of a log, without time stamp; errors that only follow from another come last."""
    if parser := _PARSER_ERROR.search(text):
        before = find_first_error(text[: text.rfind("\n", 0, parser.start()) + 1])
        return "; ".join(filter(None, (before, ": ".join(filter(None, parser.group("node", "text"))))))
    errors = list_errors(text)
    telling = [line for line in errors if not line.startswith(_CONSEQUENCES)]
    silent = (match["text"].strip() for pattern in _SILENT_ENDS if (match := pattern.search(text)))
    return next((candidate for candidate in (*telling, *silent, *errors)), None)


def list_errors(text: str) -> list[str]:
    """List the error lines of a log without time stamp; a timing cache that was ignored is no error."""
    errors = [match["text"].strip() for match in _ERROR_LINE.finditer(text)]
    return [line for line in errors if not TIMING_CACHE_LOST.search(line)]


def find_advice(text: str | None) -> Advice | None:
    return next((a for a in ADVICE if text and re.search(a.pattern, text, re.IGNORECASE)), None)


def format_end(outcome: Outcome) -> str:
    code = outcome.exit_code
    if code < 0:
        names = {each.value: each.name for each in signal.Signals}
        return f"trtexec was ended by {names.get(-code, f'signal {-code}')}"
    banner = " and PASSED" if outcome.passed else ", but no PASSED banner: it did nothing"
    return f"exit code {code}" + ("" if code else banner)


# `Input binding for image with dimensions 1x3x224x224 and type fp32 is created.`; 8.6.1 leaves the type out; 8.0 to
# 8.6.0 print `Created input binding for image with dimensions 1x3x224x224`.
_BINDING = re.compile(
    r"\[I\] (?:Created )?(?P<mode>input|output) binding for (?P<name>.+) with dimensions (?P<dims>[0-9x]*)"
    r"(?: and type (?P<type>\w+))?(?: is created\.?)?\s*$",
    re.IGNORECASE | re.MULTILINE,
)
# `Shape missing for input with dynamic shape: inputAutomatically setting shape to: 1x3x224x224`, as it is printed.
_GUESSED = re.compile(
    r"Shape missing for input with dynamic shape: (?P<name>.+?) ?Automatically .* to: (?P<dims>[\dx]+)"
)
# `Set dimension [1,4] for tensor x does not satisfy any optimization profiles.
# Valid range for profile 0: [2,4]..[8,4].`, in one line, of TensorRT 10; earlier ones name no range.
_RANGE = re.compile(r"Valid range for profile (?P<profile>\d+): \[(?P<low>[\d,]*)\]\.\.\[(?P<high>[\d,]*)\]")
_REFUSED = re.compile(r"for tensor (?P<name>.+?) does not satisfy any optimization profiles\.(?P<ranges>.*)")
DTYPES = {name: name for name in ("int32", "int64", "int8", "uint8", "bool")} | {"fp32": "float32", "fp16": "float16"}
# C++ prints what JSON has no numbers for.
_NAN = re.compile(r"(?<![\w\"])-?nan(?:\([^)]*\))?(?![\w\"])", re.IGNORECASE)
_INFINITE = re.compile(r"(?<![\w\"])inf(?![\w\"])", re.IGNORECASE)


def check_build(outcome: Outcome, plan: Path, artifact: Artifact) -> None:
    """Check that the plan was built: exit code 0, the PASSED banner, and a file that is not empty."""
    what = f"trtexec did not build {artifact.path}"
    require_success(outcome, what, ArtifactError)
    try:
        require_plan(plan)
    except ArtifactError as error:
        raise describe_failure(outcome, f"{what}: {error}", ArtifactError) from error


def read_bindings(
    text: str, types: Mapping[str, str] | None = None
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return (inputs, outputs) that a run's log names, with the shapes that it ran with.

    Args:
        types: name -> precision from elsewhere, for 8.6, whose log has no types; float32 for what is not in it.
    """
    specs: dict[str, list[TensorSpec]] = {"input": [], "output": []}
    for match in _BINDING.finditer(text):
        shape = tuple(int(d) for d in match["dims"].split("x") if d)
        dtype = DTYPES.get((match["type"] or (types or {}).get(match["name"], "fp32")).lower(), "float32")
        specs[match["mode"].lower()].append(TensorSpec(name=match["name"], dtype=dtype, shape=shape))
    if not specs["input"]:
        raise ArtifactError(
            "trtexec's log names no input and its shape (`Input binding for NAME with dimensions 1x3x224x224`), so the "
            "batch that ran is not known; use engine tensorrt for this plan"
        )
    return tuple(specs["input"]), tuple(specs["output"])


def read_guessed_shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Return {input: shape} of inputs with dynamic axes for which trtexec had no shape; it takes 1 for each such
    axis."""
    return {m["name"]: tuple(int(d) for d in m["dims"].split("x") if d) for m in _GUESSED.finditer(text)}


def read_allowed(text: str, profile: int) -> dict[str, ShapeRange]:
    """Return {input: shapes that profile number `profile` allows} of inputs whose shape was refused as outside of
    it."""
    allowed = {}
    for match in _REFUSED.finditer(text):
        ranges = {int(m["profile"]): (m["low"], m["high"]) for m in _RANGE.finditer(match["ranges"])}
        if profile in ranges:
            low, high = (tuple(int(d) for d in dims.split(",") if d) for dims in ranges[profile])
            allowed[match["name"]] = ShapeRange(smallest=low, largest=high)
    return allowed


def read_outputs(path: Path, expected: tuple[TensorSpec, ...]) -> dict[str, Array]:
    """Read the arrays of an --exportOutput file, in the dtypes of `expected` (float32 for what is not in it)."""
    import numpy as np

    dtypes = {s.name: s.dtype for s in expected}
    try:
        text = _NAN.sub("NaN", path.read_text(encoding="utf-8", errors="replace"))
        entries: list[JsonObject] = json.loads(_INFINITE.sub("Infinity", text), strict=False)  # raw texts in names
        shapes = [[int(d) for d in e["dimensions"].split("x") if d] for e in entries]
        return {
            e["name"]: np.array(e["values"], dtypes.get(e["name"], "float32")).reshape(shape)
            for e, shape in zip(entries, shapes, strict=True)
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ParseError(path, "", f"{type(error).__name__}: {error}", "what --exportOutput writes") from error
