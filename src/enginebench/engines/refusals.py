"""Errors of engines that refuse a graph, in one sentence: the operator first, the full message in `log`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from enginebench.core.errors import ArtifactError, EngineBenchError, UnsupportedOperator

# The operator that a message is about. Seen with ONNX Runtime 1.31 and OpenVINO 2026.4.
OPERATORS = (
    r"implementation for (?:[\w.]+\.)?(?P<op>\w+)\(",  # ONNX Runtime: NOT_IMPLEMENTED
    r"error: (?:(?P<domain>[\w.]+):)?(?P<op>\w+)\(-?\d+\) is not a registered",  # ONNX Runtime: a custom operator
    r"No Op registered for (?P<op>\w+)",  # the ONNX checker inside of ONNX Runtime
    r"Op \((?P<op>\w+)\)",  # ONNX Runtime: shape inference
    r"running (?P<op>\w+) node",  # ONNX Runtime: a kernel that fails
    r"operations: (?:(?P<domain>[a-z][\w.]*)\.)?(?P<op>\w+)",  # OpenVINO: no conversion rule
    r"failed for: (?:(?P<domain>[a-z][\w.]*)\.)?(?P<op>\w+)",  # OpenVINO: a conversion that fails
    r"<Node\((?P<op>\w+)\)",  # OpenVINO: a node in the ONNX file
    r"node 'opset\d+::(?P<op>\w+)",  # OpenVINO: an operator of its own
)
# The part of a message that is for a developer of the engine: an error code, a place in its source, a C++ function.
NOISE = (
    r"\[ONNXRuntimeError\] : \d+ : \w+ : ",
    r"^Load model from .*? failed:",
    r"^Exception during initialization: ",
    r"^Fatal error: ",
    r"/onnxruntime_src/\S+ .*?\)(?: const)?(?:::<lambda\(\)>)? (?=[A-Z\[])",
    r"^-- ",
)
# Replacements of messages that do not name the cure.
NEWER = "pip install --upgrade onnxruntime, or export the model with a lower --opset"
CURES = {
    r"Unsupported model IR version: (\d+), max supported IR version: (\d+)":
        rf"the file has IR version \1, this version reads up to \2: {NEWER}",
    r"ONNX Runtime only \*guarantees.* Opset (\d+) is under development.* till opset (\d+)\.":
        rf"the file has opset \1, this version reads up to \2: {NEWER}",
    r"(must have the same dtype, but got .*|Input type .* and \w+ type .* should be the same)":
        r"\1: the model casts in its forward. Give the engine cast=autocast",
}  # fmt: skip
# Lines of OpenVINO that lead to a reason, and are none.
LEAD_IN = re.compile(
    r"^(Exception from |Loading input model|Check '|FrontEnd API failed|Model wasn't fully converted|Summary:|"
    r"While validating |Shape inference input shapes|(?:-- )?\S+ with a message|(?:-- )?Conversion is failed for)"
)
LONGEST = 300


@contextmanager
def explaining_refusal(failed: str) -> Iterator[None]:
    """Raise an engine's error in the block as `make_refusal` makes it; our own errors and MemoryError stay."""
    try:
        yield
    except (EngineBenchError, MemoryError):
        raise
    except Exception as error:
        raise make_refusal(failed, error) from error


def make_refusal(failed: str, error: Exception) -> ArtifactError:
    """Make the error for an engine's message; its `log` is the full message."""
    words = str(error).strip()
    operator = find_operator(words)
    sentence = f"{failed}: {shorten_words(words) or type(error).__name__}"
    refusal = ArtifactError(sentence) if operator is None else UnsupportedOperator(f"{operator}: {sentence}")
    refusal.log = words
    return refusal


def find_operator(words: str) -> str | None:
    """The name of the operator that a message is about, with its domain if that is not ONNX's own; None without one."""
    for pattern in OPERATORS:
        if match := re.search(pattern, words):
            domain = match.groupdict().get("domain")
            return f"{domain}.{match['op']}" if domain else match["op"]
    return None


def shorten_words(words: str) -> str:
    """The reason in a message of several lines, without codes and places in source code."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    for pattern, replacement in (dict.fromkeys(NOISE, "") | CURES).items():
        lines = [re.sub(pattern, replacement, line) for line in lines]
    reasons = [line for line in lines if not LEAD_IN.match(line)]
    reason = (reasons or lines or [""])[0]
    return reason if len(reason) <= LONGEST else f"{reason[:LONGEST]} ..."
