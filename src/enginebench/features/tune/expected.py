"""Estimates of a setting before it is built: its time relative to another's, and how long its build takes.

The figures were measured, on models of the same family on the same kind of device. They order what is built and leave
out what cannot be expected to win; of the settings that were built the race alone decides.
"""

import math
from collections.abc import Sequence

from msgspec import Struct

from enginebench.core.entry import DeviceKind, Family
from enginebench.core.records import Precision
from enginebench.features.tune.race import FAR
from enginebench.features.tune.space import Setting

# What a build that takes the whole budget has to promise, as ln of how much faster: 1.65 times. With the builds below
# TensorRT's FP16 plan comes before compiled code in a budget of 300 s, and after it in one of 180 s.
PRICE = 0.5


class KnownTime(Struct, frozen=True, kw_only=True):
    """The median time of one configuration of one model. `combined`: with the options of `OnDevice.known_good`."""

    device: DeviceKind
    family: Family
    model: str
    engine: str
    precision: Precision
    combined: bool = False
    ms: float
    build_s: float


def _list_times(
    family: Family, model: str, rows: Sequence[tuple[str, Precision, bool, float, float]]
) -> list[KnownTime]:
    return [
        KnownTime(
            device="cuda",
            family=family,
            model=model,
            engine=engine,
            precision=precision,
            combined=combined,
            ms=ms,
            build_s=build_s,
        )
        for engine, precision, combined, ms, build_s in rows
    ]


KNOWN_FROM = "measured on an NVIDIA H200: docs/tune.md"
# One NVIDIA H200, TensorRT 8.6, PyTorch 2.11, 2026-11-24 to 26. Source: results/h200, the files named behind models.
KNOWN = [
    *_list_times(
        "convolutions",
        "resnet50, batch 32",  # resnet50-b32-tensorrt, resnet50-tensorrt
        [
            ("tensorrt", "int8", False, 0.729, 46.7),
            ("tensorrt", "fp16", False, 1.049, 83.4),
            ("pytorch-compile", "fp16", True, 1.288, 8.3),
            ("tensorrt", "tf32", False, 1.938, 52.6),
            ("pytorch-cudagraph", "fp16", True, 2.336, 1.7),
            ("pytorch-compile", "tf32", True, 2.404, 8.3),
            ("pytorch-cudagraph", "tf32", True, 3.833, 1.6),
            ("pytorch", "tf32", False, 5.287, 0.8),
            ("pytorch", "fp16", False, 6.681, 0.8),
            ("tensorrt", "fp32", False, 6.78, 33.4),
            ("pytorch", "fp32", False, 11.8, 1.3),
        ],
    ),
    # Of these three, compiled code was measured in one CUDA graph without channels last.
    *_list_times(
        "convolutions",
        "resnet18, batch 32",  # resnet18-tensorrt
        [
            ("tensorrt", "int8", False, 0.326, 27.3),
            ("tensorrt", "fp16", False, 0.472, 38.3),
            ("pytorch-compile", "fp16", True, 0.685, 7.6),
            ("pytorch", "fp16", False, 2.306, 0.5),
        ],
    ),
    *_list_times(
        "convolutions",
        "efficientnet-lite0, batch 32",  # efficientnet-lite0-b32-tensorrt
        [
            ("tensorrt", "int8", False, 0.469, 42.2),
            ("tensorrt", "fp16", False, 0.774, 110.4),
            ("pytorch-compile", "fp16", True, 1.091, 22.0),
            ("pytorch", "fp16", False, 4.496, 0.5),
        ],
    ),
    *_list_times(
        "convolutions",
        "mobilenet_v3_small, batch 32",  # mobilenet_v3_small-tensorrt
        [
            ("tensorrt", "fp16", False, 0.464, 239.1),
            ("pytorch-compile", "fp16", True, 0.537, 16.0),
            ("tensorrt", "int8", False, 0.753, 145.6),
            ("pytorch", "fp16", False, 3.522, 0.6),
        ],
    ),
    *_list_times(
        "transformers",
        "ViT-B/16, batch 32",  # vit-int8-tensorrt, vit-tensorrt
        [
            ("pytorch-compile", "fp16", True, 2.798, 11.3),
            ("pytorch", "fp16", False, 3.478, 2.0),
            ("tensorrt", "fp16", False, 5.287, 97.4),
            ("tensorrt", "int8", False, 5.489, 56.0),
        ],
    ),
    *_list_times(
        "transformers",
        "BERT-base, batch 1",  # bert-int8-tensorrt, bert-tensorrt
        [
            ("tensorrt", "int8", False, 0.510, 59.2),
            ("tensorrt", "fp16", False, 0.521, 72.9),
            ("pytorch-compile", "fp16", True, 0.528, 19.8),
            ("pytorch", "fp16", False, 4.564, 6.3),
        ],
    ),
    *_list_times(
        "transformers",
        "BERT-base, batch 32",  # bert-int8-tensorrt, bert-tensorrt
        [
            ("pytorch-compile", "fp16", True, 1.764, 13.5),
            ("tensorrt", "fp16", False, 2.113, 75.3),
            ("tensorrt", "int8", False, 2.396, 61.1),
            ("pytorch", "fp16", False, 5.645, 6.7),
        ],
    ),
]
SHORT: tuple[Precision, ...] = ("fp16", "bf16")


class Expectations:
    """The known times of the settings of one search: on its kind of device, for the first model family that has any
    there."""

    def __init__(
        self,
        device: DeviceKind,
        families: Sequence[Family],
        combinations: Sequence[Setting],
        times: Sequence[KnownTime] = KNOWN,
    ) -> None:
        """`combinations`: the settings that have the options of `OnDevice.known_good`."""
        here = [one for one in times if one.device == device]
        family = next((name for name in families if any(one.family == name for one in here)), None)
        self._observations = [one for one in here if one.family == family]
        self._combinations = {setting.name for setting in combinations}
        self._least = {
            one.model: min(o.ms for o in self._observations if o.model == one.model) for one in self._observations
        }

    def find_times(self, setting: Setting) -> dict[str, KnownTime]:
        """Return model -> its time in this setting."""
        combined = setting.name in self._combinations
        return {model: one for (model, was), one in self._find_engine(setting).items() if was is combined}

    def find_least_ms(self, setting: Setting) -> dict[str, float]:
        """Return model -> its least known time in ms with the setting's engine and precision, whatever its options."""
        least: dict[str, float] = {}
        for (model, _), one in self._find_engine(setting).items():
            least[model] = min(one.ms, least.get(model, math.inf))
        return least

    def _find_engine(self, setting: Setting) -> dict[tuple[str, bool], KnownTime]:
        """Return (model, combined) -> its time; FP16 is taken for BF16 where that was not measured, and the
        reverse."""
        alike = SHORT if setting.precision in SHORT else (setting.precision,)
        mine = [one for one in self._observations if one.engine == setting.engine and one.precision in alike]
        mine.sort(key=lambda one: one.precision == setting.precision)  # its own last, which replaces the other
        return {(one.model, one.combined): one for one in mine}

    def is_far(self, setting: Setting, leader: Setting) -> bool:
        """Whether its engine took more than twice as long as the leader in every model for which both are known."""
        mine, best = self.find_least_ms(setting), self.find_times(leader)
        ratios = [mine[model] / best[model].ms for model in mine.keys() & best.keys()]
        return bool(ratios) and min(ratios) > FAR

    def rank_known(self, settings: Sequence[Setting], budget_s: float) -> list[Setting]:
        """Return the settings with a known time, the fastest first, unless the build takes too much of the budget."""

        def price(setting: Setting) -> float:
            times = self.find_times(setting).values()
            logs = [math.log(one.ms / self._least[one.model]) for one in times]
            build_s = math.fsum(one.build_s for one in times)
            return (math.fsum(logs) + PRICE * build_s / budget_s) / len(times)

        return sorted((one for one in settings if self.find_times(one)), key=price)
