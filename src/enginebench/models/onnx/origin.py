"""Where an ONNX graph comes from, written into its own metadata: a file may leave the run that made it."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from pathlib import Path

import msgspec
from msgspec import Struct

from enginebench.core.caveats import make_caveat
from enginebench.core.errors import ParseError
from enginebench.core.names import format_precision
from enginebench.core.recipes import RECIPES
from enginebench.core.records import Caveat, Precision, Recipe
from enginebench.core.store import DECODE_ERRORS

PRECISION_KEY = "enginebench.precision"
PREPROCESS_KEY = "enginebench.preprocess_sha256"
CAVEATS_KEY = "enginebench.caveats"
PARENT_KEY = "enginebench.parent_sha256"
CALIBRATION_KEY = "enginebench.calibration"
KEPT_KEY = "enginebench.kept_fp32"
EXCLUDED_KEY = "enginebench.excluded"

# TensorProto.DataType
FLOATS: dict[int, Precision] = {1: "fp32", 10: "fp16", 16: "bf16"}
FP64 = 11
# ONNX Runtime's operators on weights of few bits, several to a byte; what they take and give are floats.
# Source: onnxruntime, docs/ContribOperators.md.
PACKED = frozenset({"MatMulNBits", "MatMulBnb4", "GatherBlockQuantized", "MatMulFpQ4", "QMoE"})
# A hash, or the word for an array that the user prepared.
_PREPROCESS = re.compile(r"[0-9a-f]{64}|external")


class Origin(Struct, frozen=True, kw_only=True):
    """What a graph says of itself beyond its nodes: how its inputs are prepared, and what there is to doubt."""

    preprocess_sha256: str | None = None
    excluded: tuple[str, ...] = ()  # nodes that were left in FP32 by choice
    calibration: str = ""  # where its ranges come from
    caveats: tuple[Caveat, ...] = ()


def describe_origin(
    precision: Precision,
    recipe: Recipe | None,
    *,
    parent_sha256: str,
    preprocess_sha256: str | None,
    caveats: tuple[Caveat, ...] = (),
    kept_fp32: tuple[str, ...] = (),
    excluded: tuple[str, ...] = (),
    calibration: str = "",
) -> dict[str, str]:
    """The entries of a graph's metadata, empty ones included: they take the place of what stood there before."""
    return {
        PRECISION_KEY: format_precision(precision, recipe),
        PARENT_KEY: parent_sha256,
        KEPT_KEY: "\n".join(kept_fp32),
        EXCLUDED_KEY: "\n".join(excluded),
        CALIBRATION_KEY: calibration,
        PREPROCESS_KEY: preprocess_sha256 or "",
        CAVEATS_KEY: msgspec.json.encode(caveats).decode() if caveats else "",
    }


def choose_float(
    weights: Mapping[int, int], ends: Iterable[int], metadata: Mapping[str, str], operators: Set[str]
) -> tuple[Precision, tuple[Caveat, ...]]:
    """(the precision of a graph without quantized nodes, the doubts that it does not tell all).

    It is the type of most weights, else that of most inputs and outputs. Where these tell nothing shorter than FP32,
    it is what the file says that it was made as: a transform may leave inputs and outputs as they were.
    """
    known = Counter({kind: size for kind, size in weights.items() if kind in FLOATS})
    counted = known or Counter(kind for kind in ends if kind in (*FLOATS, FP64))
    precision: Precision = next((FLOATS[kind] for kind, _ in counted.most_common() if kind in FLOATS), "fp32")
    if not known and precision == "fp32":
        precision = next((p for p in FLOATS.values() if p == metadata.get(PRECISION_KEY)), precision)
    doubles = weights.get(FP64, 0) + counted.pop(FP64, 0)
    found = [make_caveat("double_precision", precision=precision)] if doubles > counted.total() else []
    if packed := sorted(PACKED & operators):
        found.append(make_caveat("packed_weights", operators=", ".join(packed), precision=precision))
    return precision, tuple(found)


def read_recipe(metadata: Mapping[str, str], precision: Precision) -> Recipe:
    """The recipe of a graph with Q/DQ nodes: the one it names, if it names this precision, else "qat"."""
    named, _, recipe = metadata.get(PRECISION_KEY, "").partition("@")
    return next((known for known in RECIPES if (named, recipe) == (precision, known)), "qat")


def read_origin(metadata: Mapping[str, str], path: Path) -> Origin:
    """What the graph of a file says of itself; nothing, where nothing of it was written here."""
    preprocess = metadata.get(PREPROCESS_KEY, "")
    try:
        caveats = msgspec.json.decode(metadata.get(CAVEATS_KEY) or "[]", type=tuple[Caveat, ...])
    except DECODE_ERRORS as error:
        raise ParseError(path, CAVEATS_KEY, str(error), "warnings as JSON", "Quantize or export it again") from error
    return Origin(
        preprocess_sha256=preprocess if _PREPROCESS.fullmatch(preprocess) else None,
        excluded=tuple(metadata.get(EXCLUDED_KEY, "").splitlines()),
        calibration=metadata.get(CALIBRATION_KEY, ""),
        caveats=caveats,
    )
