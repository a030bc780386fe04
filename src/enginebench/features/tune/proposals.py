"""Proposers of the next settings to try. The race decides; a bad proposal costs nothing but time."""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.entry import DeviceKind, Family
from enginebench.core.errors import EngineBenchError
from enginebench.core.names import parse_engine
from enginebench.core.records import EngineSpec, Precision
from enginebench.core.shapes import PAD
from enginebench.core.store import read_record
from enginebench.core.text import list_some
from enginebench.engines.registry import ENTRIES
from enginebench.features.tune.expected import KNOWN_FROM, Expectations
from enginebench.features.tune.race import FAR
from enginebench.features.tune.records import TuneDocument
from enginebench.features.tune.space import STREAMS, Arm, Setting
from enginebench.runs.folder import TUNE_FILE, holds_run, read_results
from enginebench.runs.references import list_lower_engines
from enginebench.stats.quantiles import median

# Knobs that `Walk` changes at once: three changes away from the best is as good as drawn blindly.
MOST_CHANGES = 2


class Tried(Struct, frozen=True, kw_only=True):
    """A setting with its cost over that of the leader; None if it failed or its outputs were wrong."""

    setting: Setting
    cost: float | None


class Proposer(Protocol):
    """Proposes settings, never one twice."""

    name: str

    def propose(self, count: int, tried: Sequence[Tried]) -> list[Setting]:
        """Return at most `count` untried settings; none if nothing is left to propose."""


# (engine, option, value) -> ln of how much faster than the default it was
Gains = Mapping[tuple[str, str, str], float]


def read_gains(root: Path) -> Gains:
    """Return the gain of each option in the searches and runs beside `root`, for any model, on average.

    It only orders the proposals; a folder that cannot be read is ignored.
    """
    logs = defaultdict[tuple[str, str, str], list[float]](list)
    for folder in sorted(root.absolute().parent.glob("*/")):
        try:
            rows = list(_list_speeds(folder))
        except (EngineBenchError, IndexError):
            continue
        defaults = {(engine, kind): speed for speed, default, kind, engine, _ in rows if default}
        for speed, _, kind, engine, options in rows:
            if base := defaults.get((engine, kind)):
                for name, value in options.items():
                    logs[engine, name, value].append(math.log(speed / base) / len(options))
    return {key: math.fsum(values) / len(values) for key, values in logs.items()}


def _list_speeds(folder: Path) -> Iterator[tuple[float, bool, object, str, dict[str, str]]]:
    """Yield (speed, whether the options are the default, key of comparable ones, engine, options) of a folder's
    measurements."""
    if (folder / TUNE_FILE).exists():
        for one in read_record(folder / TUNE_FILE, TuneDocument).candidates:
            engine, precision = one.candidate.split()[:2]
            if one.speed and one.speed > 0.0:
                yield one.speed, one.default, precision.replace("+bf16", ""), *parse_engine(engine)
    elif holds_run(folder):
        for row in read_results(folder)[1]:
            kind = row.engine.precision, row.engine.recipe, row.engine.batch, row.measure.scope
            if row.status == "ok" and (times := [ns for one in row.measurements for ns in one.latency_ns]):
                yield 1 / median(times), not row.engine.options, kind, row.engine.backend, row.engine.options


class Walk:
    """Plain enumeration: one knob changed from the best of each arm, fastest first; then two; then values that build
    long.

    An arm that takes more than twice as long as the leader is left out: no option of a known engine gains that much.

    It needs no further package, and finds whatever one or two changes can reach. Options that gained most in other
    searches come first.
    """

    name = "enumeration"

    def __init__(self, arms: Sequence[Arm], gains: Gains = MappingProxyType({})) -> None:
        self._arms, self._gains = arms, gains

    def propose(self, count: int, tried: Sequence[Tried]) -> list[Setting]:
        """Return the untried settings that are nearest to the fastest known ones."""

        def expect(setting: Setting) -> float:
            return sum(self._gains.get((setting.engine, *option), 0.0) for option in setting.options.items())

        seen = {one.setting.name for one in tried}
        failed = find_failed(self._arms, tried)
        best = sorted(filter(None, (find_best(arm, tried) for arm in self._arms)), key=lambda one: one[0])
        ranked = [one for one in best if one[0] <= FAR] or best
        proposals: dict[str, Setting] = {}
        for dear, changes in itertools.product((False, True), range(1, MOST_CHANGES + 1)):
            near = (_list_near(arm, start, changes, dear, failed) for _, arm, start in ranked)
            lines = [iter(sorted(settings, key=expect, reverse=True)) for settings in near]
            turns = itertools.zip_longest(*lines[:1], *lines)  # the fastest goes twice in each
            for setting in filter(None, itertools.chain.from_iterable(turns)):
                if setting.name not in seen and setting.name not in proposals:
                    proposals[setting.name] = setting
                if len(proposals) == count:
                    return list(proposals.values())
        return list(proposals.values())


def find_failed(arms: Sequence[Arm], tried: Sequence[Tried]) -> set[tuple[str, ...]]:
    """Return the output-relevant values of settings that failed or had wrong outputs: other knobs do not mend that."""
    pairs = ((arm, arm.read(one.setting)) for one in tried if one.cost is None for arm in arms)
    return {arm.find_core(chosen) for arm, chosen in pairs if chosen}


def list_far_arms(arms: Sequence[Arm], tried: Sequence[Tried]) -> list[Arm]:
    """Return the arms whose best takes more than twice as long as the leader, and those that were never built."""
    far = []
    for arm in arms:
        costs = [one.cost for one in tried if arm.read(one.setting)]
        ran = [cost for cost in costs if cost is not None]
        if not costs or (ran and min(ran) > FAR):
            far.append(arm)
    return far


def _list_near(
    arm: Arm, start: Mapping[str, str], changes: int, dear: bool, failed: set[tuple[str, ...]]
) -> Iterator[Setting]:
    for chosen in list_choices(arm, changes, start):
        if arm.dear.isdisjoint(chosen.items()) is not dear and arm.find_core(chosen) not in failed:
            yield arm.set(chosen)


def find_best(arm: Arm, tried: Sequence[Tried]) -> tuple[float, Arm, dict[str, str]] | None:
    """Return (cost, arm, values) of the fastest setting of an arm."""
    ran = [(one.cost, arm, chosen) for one in tried if one.cost is not None and (chosen := arm.read(one.setting))]
    return min(ran, key=lambda best: best[0], default=None)


def list_choices(arm: Arm, changes: int, start: Mapping[str, str]) -> Iterator[dict[str, str]]:
    for names in itertools.combinations(arm.knobs, changes):
        others = ([v for v in arm.knobs[name] if v != start[name]] for name in names)
        for values in itertools.product(*others):
            yield {**start, **dict(zip(names, values, strict=True))}


class LowerLevels:
    """Proposes lower levels of ONNX Runtime's optimizer, highest first, where it changes the outputs of a default."""

    name = "lower optimization levels"

    def __init__(self, arms: Sequence[Arm], is_changed: Callable[[Setting], bool]) -> None:
        self._arms, self._is_changed = arms, is_changed

    def propose(self, count: int, tried: Sequence[Tried]) -> list[Setting]:
        seen = {one.setting.name for one in tried}
        levels = [
            setting
            for arm in self._arms
            if arm.default.name in seen and self._is_changed(arm.default)
            for setting in list_lower_levels(arm.default)
        ]
        return [setting for setting in levels if setting.name not in seen][:count]


def list_lower_levels(setting: Setting) -> list[Setting]:
    """List the setting with less and less of ONNX Runtime's optimizer; [] for other engines."""
    engine = EngineSpec(backend=setting.engine, options=setting.options, precision=setting.precision)
    return [replace(setting, options=lower.options) for lower in list_lower_engines(engine)]


def make_proposer(arms: Sequence[Arm], seed: int, gains: Gains = MappingProxyType({})) -> Proposer:
    from importlib.util import find_spec

    if find_spec("optuna") is None:
        return Walk(arms, gains)
    from enginebench.features.tune.optimiser import OptunaProposer

    return OptunaProposer(arms, seed, gains)


def list_known(arms: Sequence[Arm], families: Sequence[Family], kind: DeviceKind) -> list[Setting]:
    """List the combinations that are known to be good; on a GPU the fastest precision first, and in it compiling
    engines."""
    fast: tuple[Precision, ...] = ("fp16", "bf16") if families[0] == "convolutions" else ("bf16", "fp16")

    def rank(arm: Arm) -> tuple[int, bool]:
        return fast.index(arm.precision) if arm.precision in fast else len(fast), not arm.tunes

    combinations_of_arms: dict[str, Setting] = {}
    for arm in sorted(arms, key=rank) if kind == "cuda" else arms:
        combinations = ENTRIES[arm.engine].describe_on(kind).known_good if arm.engine in ENTRIES else {}
        for options in (combinations[family] for family in families if family in combinations):
            if all(value in (arm.fixed.get(name), *arm.knobs.get(name, ())) for name, value in options.items()):
                streams = {STREAMS: arm.knobs[STREAMS][-1]} if STREAMS in arm.knobs else {}
                setting = arm.set({**{name: value for name, value in options.items() if name in arm.knobs}, **streams})
                combinations_of_arms.setdefault(setting.name, setting)
    # Eight bits beside BF16 were fastest on CPUs, or 1% behind (docs/which-precision.md).
    return sorted(combinations_of_arms.values(), key=lambda setting: setting.options.get("floats") != "bf16")


def order_first(arms: Sequence[Arm], combinations: Sequence[Setting]) -> list[Setting]:
    """Order a default in FP32 as the reference, the best combination, quick defaults, other combinations, slow
    defaults."""
    ranks = {setting.precision: i for i, setting in reversed(list(enumerate(combinations)))}
    references = list_references(arms)
    defaults = sorted(arms, key=lambda arm: ranks.get(arm.precision, len(combinations)))
    quick, slow = ([arm.default for arm in defaults if arm.tunes is tunes] for tunes in (False, True))
    return list(dict.fromkeys([*references, *combinations[:1], *quick, *combinations[1:], *slow]))


def list_references(arms: Sequence[Arm]) -> list[Setting]:
    """Return the default in FP32 with whose outputs the others' are compared; [] without any."""
    return [arm.default for arm in arms if arm.precision == "fp32"][:1]


def list_padded(arms: Sequence[Arm], count: int) -> list[Setting]:
    """List the defaults of the arms with each padding of a mix, one of each arm after the other; at most `count`.

    They race with the defaults: a race of these alone may take all of the time, and what is padded is built soon.
    """
    lines = [[arm.set({PAD: value}) for value in arm.knobs.get(PAD, ())[1:]] for arm in arms]
    turns = itertools.chain.from_iterable(itertools.zip_longest(*lines))
    return list(dict.fromkeys(filter(None, turns)))[:count]


def split_first(
    arms: Sequence[Arm], combinations: Sequence[Setting], expected: Expectations, budget_s: float
) -> tuple[list[Setting], list[Setting]]:
    """Return (settings to build first, the other defaults and combinations), both in order.

    If times of such models were measured: the reference, then settings that took at most twice as long as the fastest.
    """
    everything = order_first(arms, combinations)
    ranked = expected.rank_known(everything, budget_s)
    if not ranked:
        return everything, []
    near = [setting for setting in ranked if not expected.is_far(setting, ranked[0])]
    first = list(dict.fromkeys([*list_references(arms), *near]))
    return first, [setting for setting in everything if setting not in first]


class Remaining:
    """Proposes defaults and combinations that were not built first, if their engine may be as fast as the leader."""

    name = "defaults"

    def __init__(self, settings: Sequence[Setting], expected: Expectations) -> None:
        self._settings, self._expected = settings, expected

    def propose(self, count: int, tried: Sequence[Tried]) -> list[Setting]:
        seen = {one.setting.name for one in tried}
        left = [setting for setting in self._settings if setting.name not in seen]
        far = {setting.name for setting in self.list_far(tried)}
        return [setting for setting in left if setting.name not in far][:count]

    def list_far(self, tried: Sequence[Tried]) -> list[Setting]:
        """List those that are not built: their engine took more than twice as long as the leader where both were
        measured."""
        seen = {one.setting.name for one in tried}
        leader = min((one for one in tried if one.cost is not None), key=lambda one: one.cost or 0.0, default=None)
        if leader is None:
            return []
        left = [setting for setting in self._settings if setting.name not in seen]
        return [setting for setting in left if self._expected.is_far(setting, leader.setting)]

    def describe(self, tried: Sequence[Tried]) -> tuple[str, ...]:
        """Explain which settings were not built."""
        far = [setting.name for setting in self.list_far(tried)]
        if not far:
            return ()
        why = "their engines took more than twice as long as the leader's on models of this kind"
        return (f"Not built, since {why} ({KNOWN_FROM}): {list_some(far)}.",)
