"""One call of trtexec: its full log kept, success told from failure, a failure explained."""

import re
import shlex
import signal
import subprocess
import tempfile
from pathlib import Path

from msgspec import Struct

from enginebench.core.errors import (
    ArtifactError,
    BackendUnavailable,
    EngineBenchError,
    MeasurementError,
    MissingDependency,
    UsageError,
)
from enginebench.engines.backends.tensorrt.settings import OTHER_RANGES
from enginebench.engines.tensorrt_library import TIMING_CACHE_LOST

# Lines of an error, fatal or internal: `[11/21/2026-01:38:30] [E] text`, with `[TRT]` where the library speaks.
_ERROR_LINE = re.compile(r"^(?:\[[^\]]*\] )?\[[EF]\] (?P<text>.+)$", re.MULTILINE)
# What ends a run without an error line, from the most telling to the least.
_SILENT_ENDS = (
    re.compile(r"^(?P<text>Cuda failure.*)$", re.MULTILINE),
    re.compile(r"^(?:\[[^\]]*\] )?\[I\] (?P<text>Cannot find .*device.*)$", re.MULTILINE),
    re.compile(r"^(?P<text>.*(?:error while loading shared libraries|cannot open shared object).*)$", re.MULTILINE),
)
# What the ONNX parser says: which node, its text, and behind the place in its own sources why.
# Source: ModelImporter.cpp of onnx-tensorrt, whose LOG_ERROR writes two lines at once.
_PARSER_ERROR = re.compile(
    r"(?:(?P<node>While parsing node number [^\n]*?):?\n(?:(?!.*ERROR: ).*\n)*)?"
    r".*ERROR: [^\n]* In function [^\n]*:\n(?P<text>[^\n]+)"
)
_DEVICE = re.compile(r"^(?:\[[^\]]*\] )?\[I\]   Device (\d+): ", re.MULTILINE)
_PASSED = re.compile(r"^&&&& PASSED TensorRT\.trtexec", re.MULTILINE)

# Lines that only say that something else went wrong before.
_CONSEQUENCES = ("Engine set up failed", "Failed to create engine from model or file", "Building engine failed")


# What the CUDA runtime says where it cannot run at all, as it begins. Any other failure is one of the run.
# Source: cudaError_t, driver_types.h (codes 3, 34, 35, 46, 100, 802, 803, 804) and cudaGetErrorString.
_NO_CUDA = (
    r"Cuda failure.*?: (?:(?:3|34|35|46|100|802|803|804)\s*(?:$|\n)|initialization error|CUDA driver is a stub"
    r"|CUDA-capable device\(s\) is/are busy|system not yet initialized"
    r"|system has unsupported display driver|forward compatibility was attempted)"
)


# Seen once in a profile run beside three builds on the same GPU, and never alone.
NOT_READY = "Cuda failure: device not ready"


class Advice(Struct, frozen=True):
    """What a message means for the user."""

    pattern: str
    advice: str
    kind: type[EngineBenchError] | None = None  # None: as the call says


# The first entry that is found in the log counts; a general pattern stands below a special one.
ADVICE = (
    Advice("CUDA driver version is insufficient", "Install or update NVIDIA's driver", BackendUnavailable),
    Advice(r"Cannot find any available devices|no CUDA-capable device", "No GPU is visible", BackendUnavailable),
    Advice(
        r"Cannot find device ID|Cuda failure.*?: (?:101\s*(?:$|\n)|invalid device ordinal)",
        "There is no such GPU here; choose another --device",
        BackendUnavailable,
    ),
    Advice(_NO_CUDA, "The driver or the GPU cannot be used; see nvidia-smi", BackendUnavailable),
    Advice(NOT_READY, "Others work on this GPU: run it again when they have ended"),
    Advice(r"calibrator\.cp?[pu]|_Map_base::at", OTHER_RANGES),
    # cudaErrorMemoryAllocation; seen in 8.6.0 on a full GPU, where it comes from cudaSetDevice.
    Advice(r"Cuda failure.*?: (?:2\s*(?:$|\n)|out of memory)", "The GPU's memory is full: see nvidia-smi, and free it"),
    Advice(r"Cuda failure", "The run failed on the GPU; see nvidia-smi and dmesg"),
    # trtexec opens TensorRT's own libraries when it needs them, with the words that it has for plugins, too.
    Advice(
        r"Could not load library|Unable to open library: \S*lib(?:nvinfer|nvonnxparser)",
        "Add TensorRT's lib folder to LD_LIBRARY_PATH",
        BackendUnavailable,
    ),
    Advice(
        r"Unable to open library: (\S+) due to (?!\1: )\S+: cannot open shared object",
        "The plugin needs a library that is not found: add its folder to LD_LIBRARY_PATH",
    ),
    Advice(r"Unable to open library", "The plugin library is missing or damaged; see --plugins"),
    Advice(
        r"error while loading shared libraries", "Add the folder of that library to LD_LIBRARY_PATH", BackendUnavailable
    ),
    Advice(r"cannot open shared object", "Add the folder of that library to LD_LIBRARY_PATH"),
    Advice(r"Failed to open file", "The graph keeps its weights in other files; put them beside it under their names"),
    Advice(r"Unknown option", "This version has no such option", UsageError),
    Advice(r"Static model does not take explicit shapes", "Leave out the shapes, or export with --dynamic-batch"),
    Advice(
        r"Failed to parse onnx file|In node \d+|No importer registered|Unsupported", "See `While parsing node` in it"
    ),
    Advice(
        r"Error Code 10|Could not find any implementation",
        "Raise --workspace-mb, or look for the layer that the message names",
    ),
    Advice(r"out of memory|OutOfMemory", "Free GPU memory, or lower the batch or --workspace-mb"),
    Advice(
        r"\bSerialization|version.{0,40}(?:mismatch|not match|expecting)|Magic tag|incompatible device",
        "The plan was made by another TensorRT version or for another GPU: build it again here",
    ),
    Advice(r"Selected profile index", "Choose a --profile-index that the plan has"),
    Advice(
        r"does not satisfy|out of (?:bounds|range)|outside.{0,30}profile",
        "Give shapes within the plan's profile, by --batch or --input-shape",
    ),
    Advice(r"Error opening engine file|empty engine|blob is empty", "The plan is missing or empty: build it again"),
    Advice(
        r"getPluginCreator|Plugin not found",
        "This version has neither such an operator nor such a plug-in: export the graph with a lower --opset, or give "
        "the plug-in's library with --plugins",
    ),
    Advice(r"dlopen|missing.*\.so", "Give its library with --plugins"),
)


class Outcome(Struct, frozen=True, kw_only=True):
    """How a call ended; `text` is its whole log."""

    argv: tuple[str, ...]
    exit_code: int
    log: Path
    text: str

    @property
    def passed(self) -> bool:
        """Exit status 0 and the PASSED banner: either alone is seen in runs that did nothing."""
        return self.exit_code == 0 and _PASSED.search(self.text) is not None


def run_trtexec(argv: list[str], log: Path, folder: Path) -> Outcome:
    """How the call ended. The log begins with the command line, quoted for a shell; both pipes follow."""
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
    return Outcome(argv=tuple(argv), exit_code=code, log=log, text=text)


def find_devices(path: str) -> tuple[tuple[str, ...], str | None]:
    """(the GPUs that trtexec can use, why there are none): asked by a plan that is not there.

    Its help needs neither a GPU nor TensorRT's libraries; both are looked for before a plan is opened.
    """
    with tempfile.TemporaryDirectory(prefix="enginebench-") as folder:
        outcome = run_trtexec([path, "--loadEngine=none.plan"], Path(folder) / "log", Path(folder))
    found = find_first_error(outcome.text)
    advice = find_advice(found) or find_advice(outcome.text)
    if "Selected Device" in outcome.text and not (advice and advice.kind is BackendUnavailable):
        return tuple(f"cuda:{index}" for index in _DEVICE.findall(outcome.text)) or ("cuda:0",), None
    reason = f"{found or 'trtexec printed no error'} ({describe_end(outcome)})"
    return (), ". ".join([reason, *([advice.advice] if advice else [])])


def require_passed(outcome: Outcome, what: str, kind: type[EngineBenchError] = MeasurementError) -> None:
    """Checks that the run passed."""
    if not outcome.passed:
        raise explain_failure(outcome, what, kind)


def explain_failure(outcome: Outcome, what: str, kind: type[EngineBenchError]) -> EngineBenchError:
    """The error for a run that did not pass."""
    found = find_first_error(outcome.text)
    advice = find_advice(found) or find_advice("\n".join(list_errors(outcome.text)))
    error = (advice.kind if advice else None) or kind
    parts = [f"{what}: {found or 'trtexec printed no error'} ({describe_end(outcome)})"]
    parts += [advice.advice] if advice else []
    return error(". ".join([*parts, f"Full log: {outcome.log}"]))


def find_first_error(text: str) -> str | None:
    """The first error of a log, without time stamp; what only follows from another error comes last."""
    errors = list_errors(text)
    telling = [line for line in errors if not line.startswith(_CONSEQUENCES)]
    if parser := _PARSER_ERROR.search(text):
        before = find_first_error(text[: text.rfind("\n", 0, parser.start()) + 1])
        return "; ".join(filter(None, (before, ": ".join(filter(None, parser.group("node", "text"))))))
    for pattern in _SILENT_ENDS:
        if not telling and (match := pattern.search(text)):
            return match["text"].strip()
    return next(iter(telling or errors), None)


def list_errors(text: str) -> list[str]:
    """The error lines of a log without time stamp; a timing cache that was passed over is no error."""
    errors = [match["text"].strip() for match in _ERROR_LINE.finditer(text)]
    return [line for line in errors if not TIMING_CACHE_LOST.search(line)]


def find_advice(text: str | None) -> Advice | None:
    """The first advice that fits."""
    return next((a for a in ADVICE if text and re.search(a.pattern, text, re.IGNORECASE)), None)


def describe_end(outcome: Outcome) -> str:
    """The exit status in words."""
    code = outcome.exit_code
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"trtexec was ended by {name}"
    if code == 0:
        return "exit code 0 and PASSED" if outcome.passed else "exit code 0, but no PASSED banner: it did nothing"
    return f"exit code {code}"
