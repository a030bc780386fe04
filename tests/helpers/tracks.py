"""A track of scripted costs: no process, no clock but its own."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from enginebench.core.records import Result, ResultWarning, Validity
from enginebench.core.warnings import make_warning
from enginebench.features.tune.space import Arm, Setting
from enginebench.features.tune.track import Trial
from enginebench.stats.compare import Comparison

# An engine with three knobs, and one with a single one; the default of every knob comes first.
ARMS = [
    Arm(
        engine="x",
        fixed={},
        precision="fp32",
        knobs={"threads": ("2", "1"), "mode": ("plain", "good", "bad"), "arena": ("own", "none")},
    ),
    Arm(engine="y", fixed={"kept": "1"}, precision="fp32", knobs={"threads": ("2", "1")}),
]

DISTURBED = make_warning("foreign_cpu", share=1.0)


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Scripted:
    """Trials of known cost; `laps` is what is stored, and outlives an interrupted search."""

    def __init__(self, clock: Clock | None = None, *, sd: float = 0.001, lap_s: float = 1.0) -> None:
        self.clock, self.sd, self.lap_s = clock or Clock(), sd, lap_s
        self.trials: dict[tuple[str, int, bool], Trial] = {}
        self.order: list[tuple[str, int, bool]] = []
        self.shaky: set[str] = set()
        self.refusals: dict[str, str] = {}
        self.checked: list[str] = []
        self.before: Callable[[Setting, int, bool], None] = lambda setting, number, final: None
        self.within: Callable[[str], None] = lambda name: None  # whatever takes time, on its way

    def find_cost(self, setting: Setting) -> float | None:
        """`good` makes x the fastest, one thread costs half as much again, no arena nothing; `bad` crashes."""
        if setting.options.get("mode") == "bad":
            return None
        cost = {"x": 1.0, "y": 1.2}[setting.engine] * (0.8 if setting.options.get("mode") == "good" else 1.0)
        return cost * (1.5 if setting.threads == 1 else 1.0)

    def assess_ratio(self, base: Setting, candidate: Setting, found: Comparison) -> Comparison:
        return found

    def check(self, settings: Sequence[Setting]) -> Mapping[str, str | None]:
        new = [setting.name for setting in settings if setting.name not in self.checked]
        for name in new:
            self.within(name)
            self.clock.now_s += self.lap_s
        self.checked += new
        return {setting.name: self.refusals.get(setting.name) for setting in settings}

    def holds(self, setting: Setting, round_number: int, *, final: bool = False) -> bool:
        return (setting.name, round_number, final) in self.trials

    def run(self, group: Sequence[Setting], round_number: int, *, final: bool = False) -> Iterable[Trial]:
        return (self._run(setting, round_number, final) for setting in group)

    def _run(self, setting: Setting, round_number: int, final: bool) -> Trial:
        key = (setting.name, round_number, final)
        if key not in self.trials:
            self.before(setting, round_number, final)
            self.within(setting.name)
            self.clock.now_s += self.lap_s
            self.order.append(key)
            self.trials[key] = self._measure(setting, key)
        return self.trials[key]

    def _measure(self, setting: Setting, key: tuple[str, int, bool]) -> Trial:
        cost = self.find_cost(setting)
        if cost is None:
            return Trial(reason="the process was killed by SIGSEGV")
        rng = np.random.default_rng([*map(ord, setting.name), key[1], key[2]])
        return Trial(cost=cost * math.exp(self.sd * rng.standard_normal()))

    def find_result(self, setting: Setting, *, final: bool = False) -> Result | None:
        return None

    def count_laps(self, setting: Setting) -> int:
        return sum(name == setting.name and not final for name, _, final in self.trials)

    def assess_trials(self, setting: Setting, *, final: bool = False) -> tuple[Validity, tuple[ResultWarning, ...]]:
        """Who is called `shaky` was disturbed."""
        return ("invalid", (DISTURBED,)) if setting.name in self.shaky else ("valid", ())

    def close(self, settings: Sequence[Setting]) -> tuple[str, ...]:
        return tuple(setting.name for setting in settings)
