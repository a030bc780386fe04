"""The little that the engine itself reads from trtexec: tensors, outputs, and whether a build is one."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from enginebench.core.caveats import make_caveat
from enginebench.core.errors import ArtifactError, ParseError
from enginebench.core.protocols import Array
from enginebench.core.records import Artifact, Caveat, ShapeRange, TensorSpec
from enginebench.engines.backends.tensorrt.plan_store import require_plan
from enginebench.engines.backends.tensorrt.settings import BuildSettings
from enginebench.features.trtexec.process import Outcome, explain_failure, require_passed

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
_NONFINITE = re.compile(r"(?<![\w\"])-?(?:nan|inf)(?:\([^)]*\))?(?![\w\"])", re.IGNORECASE)


def check_build(outcome: Outcome, plan: Path, artifact: Artifact) -> None:
    """Checks that the plan was built: exit code 0, the PASSED banner, and a file that is not empty."""
    what = f"trtexec did not build {artifact.path}"
    require_passed(outcome, what, ArtifactError)
    try:
        require_plan(plan)
    except ArtifactError as error:
        raise explain_failure(outcome, f"{what}: {error}", ArtifactError) from error


def note_build(settings: BuildSettings) -> Iterator[Caveat]:
    """The caveats on a plan that was built this way."""
    if settings.weak_typing and settings.precision == "int8" and not settings.calib_cache:
        yield make_caveat("random_calibration.trtexec")


def read_bindings(
    text: str, types: Mapping[str, str] | None = None
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """(inputs, outputs) that a run's log names, with the shapes that it ran with.

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
    """{input: shape} of inputs with open axes for which trtexec was given no shape; it takes 1 for each such axis."""
    return {m["name"]: tuple(int(d) for d in m["dims"].split("x") if d) for m in _GUESSED.finditer(text)}


def read_allowed(text: str, profile: int) -> dict[str, ShapeRange]:
    """{input: the shapes that profile number `profile` allows} of inputs whose shape was refused as outside of it."""
    found = {}
    for match in _REFUSED.finditer(text):
        ranges = {int(m["profile"]): (m["low"], m["high"]) for m in _RANGE.finditer(match["ranges"])}
        if profile in ranges:
            low, high = (tuple(int(d) for d in dims.split(",") if d) for dims in ranges[profile])
            found[match["name"]] = ShapeRange(smallest=low, largest=high)
    return found


def read_outputs(path: Path, expected: tuple[TensorSpec, ...]) -> dict[str, Array]:
    """The arrays of an --exportOutput file, in the dtypes of `expected` (float32 for what is not in it)."""
    import numpy as np

    dtypes = {s.name: s.dtype for s in expected}
    try:
        text = _NONFINITE.sub(_spell_nonfinite, path.read_text(encoding="utf-8", errors="replace"))
        entries: list[dict[str, Any]] = json.loads(text, strict=False)  # names hold what they hold
        return {
            e["name"]: np.array(e["values"], dtypes.get(e["name"], "float32")).reshape(
                [int(d) for d in e["dimensions"].split("x") if d]
            )
            for e in entries
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ParseError(path, "", f"{type(error).__name__}: {error}", "what --exportOutput writes") from error


def _spell_nonfinite(match: re.Match[str]) -> str:
    word = match[0].lower()
    if "nan" in word:
        return "NaN"
    return "-Infinity" if word.startswith("-") else "Infinity"
