"""What is tried first: the combinations that the field uses for a kind of model. They decide nothing; the race does."""

import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from enginebench.core.entry import DeviceKind, Family
from enginebench.core.records import Artifact, Precision
from enginebench.engines.registry import ENTRIES
from enginebench.features.tune.space import STREAMS, Arm, Setting

# What in a file of weights, or of a graph, tells a kind of layer, and how often it is there at least: names of weights,
# class names, ONNX operators with their tag and length.
SIGNS: dict[Family, tuple[tuple[bytes, int], ...]] = {
    "convolutions": ((b"running_mean", 2), (b"BatchNorm2d", 1), (b'"\x04Conv', 5)),
    "transformers": ((b"attn", 2), (b"attention", 2), (b"in_proj_weight", 1), (b"Attention", 1), (b'"\x07Softmax', 2)),
    "recurrent": ((b"weight_hh_l", 1), (b'"\x04LSTM', 1), (b'"\x03GRU', 1)),
}
# A graph's nodes stand before its weights, and names of weights in a part of their own.
MOST_BYTES = 16 << 20
# On a GPU the precision that is usually fastest comes first; BF16 keeps the range of attention's sums.
FAST: dict[Family, tuple[Precision, ...]] = {
    "convolutions": ("fp16", "bf16"),
    "transformers": ("bf16", "fp16"),
    "recurrent": ("fp16", "bf16"),
}


def find_families(artifacts: Iterable[Artifact]) -> list[Family]:
    """The kinds of layers that a model has, as far as its files tell; a plain network counts as a transformer."""
    heads = [_read_head(Path(a.path)) for a in artifacts if a.path]
    found: list[Family] = [
        family for family, signs in SIGNS.items() if any(head.count(s) >= n for head in heads for s, n in signs)
    ]
    return found or ["transformers"]


def _read_head(path: Path) -> bytes:
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as file:
                return b"".join(file.read(name) for name in file.namelist() if name.endswith((".pkl", ".json", ".py")))
        with path.open("rb") as file:
            return file.read(MOST_BYTES)
    except (OSError, zipfile.BadZipFile):
        return b""


def list_known(arms: Sequence[Arm], families: Sequence[Family], kind: DeviceKind) -> list[Setting]:
    """The combinations that are known to be good: on a GPU the fastest precision first, in it what compiles."""
    found: dict[str, Setting] = {}
    for arm in sorted(arms, key=lambda arm: _rank(arm, families, kind)):
        entry = ENTRIES.get(arm.engine)
        for family in families:
            options = entry.known_good.get(kind, {}).get(family) if entry else None
            if options is None or any(arm.fixed.get(name, value) != value for name, value in options.items()):
                continue
            under_load = {STREAMS: arm.knobs[STREAMS][-1]} if STREAMS in arm.knobs else {}
            setting = arm.set({name: value for name, value in options.items() if name in arm.knobs} | under_load)
            found.setdefault(setting.name, setting)
    return list(found.values())


def order_first(arms: Sequence[Arm], known: Sequence[Setting]) -> list[Setting]:
    """A default in FP32, by which outputs are judged; the best known combination; the other defaults and combinations,
    before the defaults of engines that compile for long."""
    ranks = {arm.precision: i for i, arm in reversed(list(enumerate(arms)))}
    ranks |= {s.precision: i - len(known) for i, s in reversed(list(enumerate(known)))}
    defaults = sorted(arms, key=lambda arm: (arm.tunes, ranks[arm.precision] if known else 0))
    judges = [arm.default for arm in arms if arm.precision == "fp32"][:1]
    quick, slow = ([arm.default for arm in defaults if arm.tunes is tunes] for tunes in (False, True))
    settings = [*judges, *known[:1], *quick, *known[1:], *slow]
    return list({setting.name: setting for setting in settings}.values())


def _rank(arm: Arm, families: Sequence[Family], kind: DeviceKind) -> tuple[int, bool]:
    """On the CPU the order in which they were asked for stays."""
    fast = FAST[families[0]] if kind == "cuda" else ()
    return fast.index(arm.precision) if arm.precision in fast else len(fast), kind == "cuda" and not arm.tunes
