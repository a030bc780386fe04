"""Find the kinds of layers that a model has, by its files: some recipes and settings suit one kind only."""

import zipfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from enginebench.core.entry import Family
from enginebench.core.records import Artifact

# Byte strings by which a file shows a kind of layer, each with the least number of times that it occurs: names of
# weights, class names, or operators of an ONNX graph with their tag and length, which stand before its weights.
SIGNS: dict[Family, tuple[tuple[bytes, int], ...]] = {
    "convolutions": ((b"running_mean", 2), (b"BatchNorm2d", 1), (b'"\x04Conv', 5)),
    "transformers": ((b"attn", 2), (b"attention", 2), (b"in_proj_weight", 1), (b"Attention", 1), (b'"\x07Softmax', 2)),
    "recurrent": ((b"weight_hh_l", 1), (b'"\x04LSTM', 1), (b'"\x03GRU', 1)),
}
# Operators of an ONNX graph, in the same form, that make gates; a single one may be an output's.
GATES, LEAST_GATES = (b'"\x07Sigmoid', b'"\x0bHardSigmoid', b'"\tHardSwish'), 2


def find_families(artifacts: Iterable[Artifact]) -> list[Family]:
    """The kinds of layers that a model has; a plain network counts as a transformer."""
    present = {family for a in artifacts if Path(a.path).is_file() for family in read_signs(a.path, a.sha256)}
    return [family for family in SIGNS if family in present] or ["transformers"]


def is_attentive(graph: Artifact) -> bool:
    """Whether a graph shows signs of attention, and neither convolutions nor recurrent layers."""
    return Path(graph.path).is_file() and read_signs(graph.path, graph.sha256) == ("transformers",)


def is_gated(graph: Artifact) -> bool:
    """Whether an ONNX graph has convolutions and gates: squeeze-and-excitation, SiLU or HardSwish."""
    present = Path(graph.path).is_file() and "convolutions" in read_signs(graph.path, graph.sha256)
    return present and _count_gates(graph.path, graph.sha256) >= LEAST_GATES


@cache
def read_signs(path: str, sha256: str | None) -> tuple[Family, ...]:
    """The kinds of layers that the file with this hash shows signs of."""
    head = _read_head(Path(path))
    return tuple(family for family, signs in SIGNS.items() if any(head.count(sign) >= n for sign, n in signs))


@cache
def _count_gates(path: str, sha256: str | None) -> int:
    head = _read_head(Path(path))
    return sum(head.count(sign) for sign in GATES)


def _read_head(path: Path) -> bytes:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as file:
            return b"".join(file.read(name) for name in file.namelist() if name.endswith((".pkl", ".json", ".py")))
    with path.open("rb") as file:
        return file.read(16 << 20)
