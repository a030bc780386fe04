"""The track of the goals `throughput` and `capacity`: each trial puts a setting under load, in a process of its own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from enginebench.core.commands import format_command
from enginebench.core.errors import EngineBenchError, UsageError
from enginebench.core.features import require_hook
from enginebench.core.hooks import LoadCheck, LoadTrial
from enginebench.core.records import Capacity, Result, ResultWarning, Validity
from enginebench.core.store import encode, read_record, write_atomic
from enginebench.features.tune.records import SearchRequest
from enginebench.features.tune.space import Setting
from enginebench.features.tune.track import TimedTrack, Trial
from enginebench.runs.folder import RunFolder
from enginebench.runs.progress import Reporter
from enginebench.stats.capacity import find_middle
from enginebench.stats.compare import Comparison
from enginebench.stats.validity import disturbed_alike, find_worst, grade_ratio

LAPS_FILE = "laps.json"
NS = 1e9
# Seconds of a probe of a capacity in the race, and the rate that fails over that which passes at its end. Coarser than
# `load`, and guesses where `load` asks for proof, since the race repeats it; a setting without any rate is out. The
# final takes what `load` takes.
RACE = {"duration_s": 1.0, "resolution": 1.1, "strict": False}


class StoredTrial(Struct, frozen=True, kw_only=True):
    candidate: str
    round: int
    final: bool
    lap: Trial
    capacity: Capacity | None = None
    achieved_per_s: float | None = None
    validity: Validity = "valid"
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")


class Trials(Struct, frozen=True, kw_only=True):
    """`laps.json`: all results under load, in the order of time."""

    schema: str = "enginebench.laps/1"
    laps: tuple[StoredTrial, ...] = ()


class LoadTrack:
    """Settings under load. Building and checking, one request at a time, is left to a track of timed configurations."""

    def __init__(self, request: SearchRequest, timed: TimedTrack, folder: RunFolder, reporter: Reporter) -> None:
        self._request, self._timed, self._folder = request, timed, folder
        self._reporter = reporter
        self.find_limit: Callable[[], float] = lambda: request.child_s  # seconds that a trial may take
        self._path = folder.root / LAPS_FILE
        self._laps = list(read_record(self._path, Trials).laps) if self._path.exists() else []

    def check(self, settings: Sequence[Setting]) -> Mapping[str, str | None]:
        bases = {setting.name: make_base(setting) for setting in settings}
        refusals = self._timed.check(list(dict.fromkeys(bases.values())))
        reasons = {setting.name: refusals[bases[setting.name].name] for setting in settings}
        for setting in settings:
            try:
                if reasons[setting.name] is None:
                    require_hook(LoadCheck)(*self._name_configuration(setting))
            except UsageError as error:
                reasons[setting.name] = str(error)
        return reasons

    def _name_configuration(self, setting: Setting) -> tuple[RunFolder, Result, int, int]:
        """Return what is put under load: a timed configuration, the number of streams, and the largest batch."""
        result = self.find_result(setting)
        assert result is not None, setting.name  # what the track of timed rows does not refuse, it has timed
        return self._folder, result, setting.streams, setting.max_batch

    def holds(self, setting: Setting, round_number: int, *, final: bool = False) -> bool:
        return self._find(setting, round_number, final) is not None

    def _find(self, setting: Setting, round_number: int, final: bool) -> StoredTrial | None:
        wanted = (setting.name, round_number, final)
        return next((lap for lap in self._laps if (lap.candidate, lap.round, lap.final) == wanted), None)

    def run(self, group: Sequence[Setting], round_number: int, *, final: bool = False) -> Iterable[Trial]:
        """Run one engine and one generator in fresh processes, or a search with several of them."""
        return (self._run(setting, round_number, final) for setting in group)

    def _run(self, setting: Setting, round_number: int, final: bool) -> Trial:
        if (stored := self._find(setting, round_number, final)) is not None:
            return stored.lap
        try:
            trial = self._probe(setting, round_number, final)
        except EngineBenchError as error:
            trial = StoredTrial(candidate=setting.name, round=round_number, final=final, lap=Trial(reason=str(error)))
        self._laps.append(trial)
        write_atomic(self._path, encode(Trials(laps=tuple(self._laps))))
        return trial.lap

    def _probe(self, setting: Setting, round_number: int, final: bool) -> StoredTrial:
        request, lap = self._request, StoredTrial(candidate=setting.name, round=round_number, final=final, lap=Trial())
        limit_s = self.find_limit()  # a trial is a whole search, and it must not cost the others theirs
        settings: dict[str, Any] = {"limit_ms": request.p99_limit_ms, "time_budget_s": limit_s}
        settings |= {"max_wait_ms": setting.max_wait_ms, **({} if final else RACE)}
        result = require_hook(LoadTrial)(
            *self._name_configuration(setting),
            settings,
            name=setting.name,
            earlier=[one.capacity for one in self._laps if one.candidate == setting.name and one.capacity is not None],
            seed=request.run.measure.seed + len(self._laps),
            timeout_s=limit_s,
            reporter=self._reporter,
        )
        lap = replace(lap, validity=result.validity, warnings=result.warnings)
        if (capacity := result.capacity) is None:
            return replace(lap, achieved_per_s=result.per_s, lap=make_trial(result.per_s, "no responses"))
        why_not = f"no rate that meets {capacity.limit_ms:g} ms was found within {limit_s:g} s"
        if capacity.ended != "budget":
            lowest = min((probe.qps for probe in capacity.probes), default=0.0)
            why_not = (
                f"no rate that was tried meets {capacity.limit_ms:g} ms, down to {lowest:.3g} requests a second; "
                f"{format_command('load', 'TARGET', options=[('--find-capacity', None)])} looks lower"
            )
        return replace(lap, capacity=capacity, lap=make_trial(find_middle(capacity), why_not))

    def count_laps(self, setting: Setting) -> int:
        return sum(lap.candidate == setting.name and not lap.final for lap in self._laps)

    def assess_trials(self, setting: Setting, *, final: bool = False) -> tuple[Validity, tuple[ResultWarning, ...]]:
        laps = [lap for lap in self._laps if (lap.candidate, lap.final) == (setting.name, final)]
        return find_worst(lap.validity for lap in laps), tuple(dict.fromkeys(c for lap in laps for c in lap.warnings))

    def assess_ratio(self, base: Setting, candidate: Setting, comparison: Comparison) -> Comparison:
        if comparison.ratio is None:
            return comparison
        laps = [[lap for lap in self._laps if lap.final and lap.candidate == s.name] for s in (base, candidate)]
        marked = [sum(lap.validity != "valid" for lap in side) / max(len(side), 1) for side in laps]
        validity, why = grade_ratio(comparison.ratio, marked, comparison.autocorrelation)
        warnings = [f"the validity of the ratio is {validity}: {why}"] if why else []
        verdict = (
            comparison.verdict if disturbed_alike(marked) else "not_shown"
        )  # else it may be that of the disturbance
        reasons = (*comparison.reasons, *warnings)
        return replace(comparison, verdict=verdict, ratio_validity=validity, ratio_reason=why, reasons=reasons)

    def find_result(self, setting: Setting, *, final: bool = False) -> Result | None:
        return self._timed.find_result(make_base(setting), final=final)

    def close(self, settings: Sequence[Setting]) -> tuple[str, ...]:
        """End the final, and return the ids of its configurations, each timed in one process, one request at a time, so
        that `report` and `deliver` have something to show."""
        bases = list(dict.fromkeys(make_base(setting) for setting in settings))
        for base in bases:
            self._timed.run([base], 0, final=True)
        return self._timed.close(bases)


def make_base(setting: Setting) -> Setting:
    """Return the setting with one request at a time: it is built and checked for every number of streams and every
    batch."""
    return replace(setting, streams=1, max_batch=1, max_wait_ms=0.0)


def make_trial(rate: float | None, why_not: str) -> Trial:
    """Make the trial of a rate: its cost is the time from one request to the next, in ns."""
    return Trial(cost=NS / rate) if rate else Trial(reason=why_not)
