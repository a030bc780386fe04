"""What is tried first: the combinations that the field uses for a kind of model. They decide nothing; the race does."""

import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from enginebench.core.entry import DeviceKind, Family
from enginebench.core.records import Artifact, Precision
from enginebench.engines.registry import ENTRIES
from enginebench.features.tune.space import STREAMS, Arm, Setting

# What tells a kind of layer in a file, and how often it is there at least: names of weights, class names, or operators
# of an ONNX graph with their tag and length, which stand before its weights.
SIGNS: dict[Family, tuple[tuple[bytes, int], ...]] = {
    "convolutions": ((b"running_mean", 2), (b"BatchNorm2d", 1), (b'"\x04Conv', 5)),
    "transformers": ((b"attn", 2), (b"attention", 2), (b"in_proj_weight", 1), (b"Attention", 1), (b'"\x07Softmax', 2)),
    "recurrent": ((b"weight_hh_l", 1), (b'"\x04LSTM', 1), (b'"\x03GRU', 1)),
}


def find_families(artifacts: Iterable[Artifact]) -> list[Family]:
    """The kinds of layers that a model has, as far as its files tell; a plain network counts as a transformer."""
    heads = [_read_head(Path(a.path)) for a in artifacts if Path(a.path).is_file()]
    return [
        family for family, signs in SIGNS.items() if any(head.count(s) >= n for head in heads for s, n in signs)
    ] or ["transformers"]


def _read_head(path: Path) -> bytes:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as file:
            return b"".join(file.read(name) for name in file.namelist() if name.endswith((".pkl", ".json", ".py")))
    with path.open("rb") as file:
        return file.read(16 << 20)


def list_known(arms: Sequence[Arm], families: Sequence[Family], kind: DeviceKind) -> list[Setting]:
    """The combinations that are known to be good: on a GPU the fastest precision first, in it what compiles."""
    fast: tuple[Precision, ...] = ("fp16", "bf16") if families[0] == "convolutions" else ("bf16", "fp16")

    def rank(arm: Arm) -> tuple[int, bool]:
        return fast.index(arm.precision) if arm.precision in fast else len(fast), not arm.tunes

    found: dict[str, Setting] = {}
    for arm in sorted(arms, key=rank) if kind == "cuda" else arms:
        combinations = ENTRIES[arm.engine].known_good.get(kind, {}) if arm.engine in ENTRIES else {}
        for options in (combinations[family] for family in families if family in combinations):
            if all(arm.fixed.get(name, value) == value for name, value in options.items()):
                streams = {STREAMS: arm.knobs[STREAMS][-1]} if STREAMS in arm.knobs else {}
                setting = arm.set({**{name: value for name, value in options.items() if name in arm.knobs}, **streams})
                found.setdefault(setting.name, setting)
    return list(found.values())


def order_first(arms: Sequence[Arm], known: Sequence[Setting]) -> list[Setting]:
    """A default in FP32, which judges; the best combination; quick defaults; other combinations; slow defaults."""
    ranks = {setting.precision: i for i, setting in reversed(list(enumerate(known)))}
    judges = [arm.default for arm in arms if arm.precision == "fp32"][:1]
    defaults = sorted(arms, key=lambda arm: ranks.get(arm.precision, len(known)))
    quick, slow = ([arm.default for arm in defaults if arm.tunes is tunes] for tunes in (False, True))
    return list(dict.fromkeys([*judges, *known[:1], *quick, *known[1:], *slow]))
