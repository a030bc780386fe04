"""Who says what is tried next. The race decides; a bad proposal costs time, and nothing else."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from msgspec import Struct

from enginebench.core.errors import EngineBenchError
from enginebench.core.names import parse_engine
from enginebench.core.store import read_record
from enginebench.features.tune.document import TuneDocument
from enginebench.features.tune.space import Arm, Setting
from enginebench.runs.folder import TUNE_FILE

# Knobs that `Walk` changes at once: three changes away from the best is as good as drawn blindly.
MOST_CHANGES = 2


class Tried(Struct, frozen=True, kw_only=True):
    """What was found out about a setting: its cost over that of the leader; None if it failed or answered wrong."""

    setting: Setting
    cost: float | None


class Proposer(Protocol):
    """Proposes settings, never one twice."""

    name: str

    def propose(self, count: int, tried: Sequence[Tried]) -> list[Setting]:
        """At most so many settings that are not among the tried ones; none: nothing is left to propose."""
        ...


# (engine, option, value) -> ln of how much faster than the default it was
Gains = Mapping[tuple[str, str, str], float]


def read_gains(root: Path) -> Gains:
    """What each option gained in the searches that lie beside `root`, of any model, on average.

    It orders what is proposed, and decides nothing; a search that cannot be read has no say.
    """
    logs = defaultdict[tuple[str, str, str], list[float]](list)
    for path in sorted(root.absolute().parent.glob(f"*/{TUNE_FILE}")):
        try:
            found = [one for one in read_record(path, TuneDocument).candidates if one.speed and one.speed > 0.0]
            rows = [(one, *parse_engine(one.candidate.split()[0]), one.candidate.split()[1]) for one in found]
        except (EngineBenchError, IndexError):
            continue
        defaults = {(engine, precision): one.speed for one, engine, _, precision in rows if one.default}
        for one, engine, options, precision in rows:
            if one.speed and (base := defaults.get((engine, precision))):
                for name, value in options.items():
                    logs[engine, name, value].append(math.log(one.speed / base) / len(options))
    return {key: math.fsum(values) / len(values) for key, values in logs.items()}


class Walk:
    """Plain enumeration: one knob changed from the best of each arm, the fastest first; then two; then what is dear.

    It needs nothing installed, and finds whatever is found by changing one or two things at a time. What gained most in
    other searches comes first.
    """

    name = "enumeration"

    def __init__(self, arms: Sequence[Arm], gains: Gains = MappingProxyType({})) -> None:
        self._arms, self._gains = arms, gains

    def _expect(self, setting: Setting) -> float:
        return sum(self._gains.get((setting.engine, *option), 0.0) for option in setting.options.items())

    def propose(self, count: int, tried: Sequence[Tried]) -> list[Setting]:
        """The untried settings that are nearest to what is known to be fast."""
        seen = {one.setting.name for one in tried}
        failed = find_failed(self._arms, tried)
        ranked = sorted(filter(None, (find_best(arm, tried) for arm in self._arms)), key=lambda best: best.cost)
        found: dict[str, Setting] = {}
        for dear, changes in itertools.product((False, True), range(1, MOST_CHANGES + 1)):
            near = (_list_near(best, changes, dear, failed) for best in ranked)
            lines = [iter(sorted(settings, key=self._expect, reverse=True)) for settings in near]
            for setting in _take_turns(lines[:1] + lines):  # the fastest goes twice in each turn
                if setting.name not in seen and setting.name not in found:
                    found[setting.name] = setting
                if len(found) == count:
                    return list(found.values())
        return list(found.values())


def find_failed(arms: Sequence[Arm], tried: Sequence[Tried]) -> set[tuple[str, ...]]:
    """What outputs depend on, of every setting that failed or answered wrong: how one waits mends neither."""
    pairs = ((arm, arm.read(one.setting)) for one in tried if one.cost is None for arm in arms)
    return {arm.find_core(chosen) for arm, chosen in pairs if chosen}


class Best(Struct, frozen=True, kw_only=True):
    arm: Arm
    chosen: dict[str, str]
    cost: float


def _list_near(best: Best, changes: int, dear: bool, failed: set[tuple[str, ...]]) -> Iterator[Setting]:
    for chosen in list_choices(best.arm, changes, best.chosen):
        if best.arm.dear.isdisjoint(chosen.items()) is not dear and best.arm.find_core(chosen) not in failed:
            yield best.arm.set(chosen)


def find_best(arm: Arm, tried: Sequence[Tried]) -> Best | None:
    ran = [(one.cost, chosen) for one in tried if one.cost is not None and (chosen := arm.read(one.setting))]
    if not ran:
        return None
    cost, chosen = min(ran, key=lambda pair: pair[0])
    return Best(arm=arm, chosen=chosen, cost=cost)


def list_choices(arm: Arm, changes: int, start: Mapping[str, str]) -> Iterator[dict[str, str]]:
    for names in itertools.combinations(arm.knobs, changes):
        others = ([v for v in arm.knobs[name] if v != start[name]] for name in names)
        for values in itertools.product(*others):
            yield {**start, **dict(zip(names, values, strict=True))}


def _take_turns(lines: Sequence[Iterator[Setting]]) -> Iterator[Setting]:
    waiting = list(lines)
    while waiting:
        for line in list(waiting):
            setting = next(line, None)
            if setting is None:
                waiting = [other for other in waiting if other is not line]
            else:
                yield setting


def make_proposer(arms: Sequence[Arm], seed: int, gains: Gains = MappingProxyType({})) -> Proposer:
    from importlib.util import find_spec

    if find_spec("optuna") is None:
        return Walk(arms, gains)
    from enginebench.features.tune.optimiser import OptunaProposer

    return OptunaProposer(arms, seed, gains)
