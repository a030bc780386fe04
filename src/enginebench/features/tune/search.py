"""The course of a search: propose, check, race; again while there is time; then re-measure the winner and the defaults.

All decisions follow from what is stored: drops from the samples, the next settings from the list of generations. So an
interrupted search is replayed without measuring anything twice.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from enginebench.core.errors import MeasurementError
from enginebench.core.text import count_of
from enginebench.features.tune.proposals import Proposer, Tried, order_first
from enginebench.features.tune.race import ALONE, FAR, LOOKS, Final, Race
from enginebench.features.tune.records import MOST_FOR_FIRST, MOST_FOR_ONE, Budget, Dropped, Generation, SearchRecord
from enginebench.features.tune.space import Arm, Setting
from enginebench.features.tune.track import RACE_TIME_S, Track, Trial
from enginebench.runs.progress import Reporter
from enginebench.stats.compare import MIN_TRIALS, Comparison

# Candidates are built, and run in a round, so many at a time, so that the budget is looked at in between.
AT_ONCE = 4
# What is kept back for the final is at most this share of the budget, however long its processes may take: a setting
# that was never tried costs more than a trial, of which two show what is twice as fast.
MOST_FOR_FINAL = 0.25
# The estimate of a process's seconds before the first one was measured.
GUESS_S = 3.0
NO_TIME = "no time was left to measure it"


class Search:
    """A search in progress: `tried`, `lost`, `leader` and `final` are its results so far."""

    def __init__(
        self,
        record: SearchRecord,
        arms: Sequence[Arm],
        track: Track,
        proposers: Iterable[Proposer],
        budget: Budget,
        reporter: Reporter,
        *,
        store: Callable[[SearchRecord], None] = lambda record: None,
        combinations: Sequence[Setting] = (),
        first: Sequence[Setting] = (),
    ) -> None:
        """Prepare a search to begin, or to continue: its record has generations if it was interrupted.

        The `first` settings race first; else the defaults of the arms, with the known good `combinations`. Then the
        proposers take turns.
        """
        self._combinations, self._slow = list(combinations), {arm.engine for arm in arms if arm.tunes}
        self._first = list(first) or order_first(arms, combinations)
        self.record, self._arms, self.track = record, arms, track
        self._proposers = list(proposers)
        self._budget, self._reporter, self._store = budget, reporter, store
        self.leader: Setting | None = None
        self.lost: list[Dropped] = []
        self.final: Final | None = None
        self.final_rows: tuple[str, ...] = ()
        self.processes = 0
        self._tried: dict[str, Tried] = {}
        self._admitted: set[str] = set()
        self._next_round = 0

    @property
    def tried(self) -> list[Tried]:
        """Every setting that was built and checked, with its cost over that of the leader."""
        return list(self._tried.values())

    @property
    def defaults(self) -> list[Setting]:
        return list({arm.default.name: arm.default for arm in self._arms}.values())

    def run(self) -> None:
        """Replay what is stored, then continue until the budget is spent or nothing is left to propose."""
        for index, generation in enumerate(self.record.generations):
            names = [proposer.name for proposer in self._proposers]
            if generation.proposer in names:  # it has had its turn; those before it have left
                turn = names.index(generation.proposer)
                self._proposers = [*self._proposers[turn + 1 :], self._proposers[turn]]
            self._go_through(index)
        while not self.record.finalists and self._has_time():
            generation = self._propose()
            if not generation.settings:
                break
            self._save(replace(self.record, generations=(*self.record.generations, generation)))
            before = len(self._tried)
            self._go_through(len(self.record.generations) - 1)
            if len(self._tried) == before:
                break  # no time was left to race them, and they would be proposed again
        self._finish()

    def _propose(self) -> Generation:
        """Return known combinations and the defaults; then the proposals of one proposer after another.

        A proposer with nothing left is removed.
        """
        if not self.record.generations:
            return Generation(settings=tuple(self._first), first_round=0)
        while self._proposers:
            proposer = self._proposers.pop(0)
            proposals = proposer.propose(self.record.request.candidates, self.tried)
            if proposals := [one for one in proposals if self._has_time(LOOKS[0], self._expect_build([one]))]:
                self._proposers.append(proposer)
                self._reporter.say(f"{len(proposals)} more settings, proposed by {proposer.name}")
                return Generation(settings=tuple(proposals), first_round=self._next_round, proposer=proposer.name)
        self._reporter.say("nothing is left to propose, or to build in time")
        return Generation(settings=(), first_round=self._next_round)

    def _save(self, record: SearchRecord) -> None:
        self.record = replace(record, spent_s=self._budget.spent_s)
        self._store(self.record)

    def _has_time(self, trials: int = 0, build_s: float = 0.0) -> bool:
        """Whether the race may continue: there is more time than so many trials, a build and the final need."""
        return self.find_spare(trials) > build_s

    def find_spare(self, trials: int = 0) -> float:
        """Return the seconds that are left beside so many trials and the final."""
        rounds = ALONE if self.leader in self.defaults else 2 * MIN_TRIALS  # a default has itself alone to beat
        final_s = min(MOST_FOR_FINAL * self.record.request.budget_s, rounds * self._final_lap_s)
        return self._budget.left_s - final_s - trials * self._trial_s

    @property
    def _trial_s(self) -> float:
        seconds = self.record.lap_s
        return sum(seconds) / len(seconds) if seconds else GUESS_S

    @property
    def _final_lap_s(self) -> float:
        return self._trial_s + max(0.0, self.record.request.run.measure.time_limit_s - RACE_TIME_S)

    def _go_through(self, index: int) -> None:
        admitted = sorted(self._check(index), key=lambda setting: setting not in self._combinations[:1])
        names = dict.fromkeys([self.leader, *admitted] if self.leader else admitted)
        settings = {setting.name: setting for setting in names}
        race = Race(list(settings), generation=index + 1, first=self.record.generations[index].first_round)
        try:
            while not race.over:
                trials = self._run_round(settings, turns := race.list_turns(), race.next_round, partly=not race.rounds)
                if trials is None:
                    break
                for name in turns:
                    if name not in trials or trials[name].cost is None:
                        race.fail(name, trials[name].reason if name in trials else NO_TIME)
                if race.alive and race.alive[0] in trials:  # else all failed, and those dropped as far slower are back
                    race.add_round({name: trials[name].cost or 0.0 for name in race.alive})
        finally:
            self._store_race(race, settings)

    def _check(self, index: int) -> list[Setting]:
        """Return the settings of a generation that may race. Those that could not race in time are removed from it."""
        generation, admitted, start = self.record.generations[index], list[Setting](), 0
        for chunk in self._split(generation.settings):
            new = start >= generation.checked
            fitting = self._cut_to_time(chunk, len(admitted)) if new and admitted else chunk
            if len(fitting) < len(chunk):
                end = start + len(fitting)
                untried = tuple(one.name for one in generation.settings[end:])
                self.record = replace(self.record, untried=(*self.record.untried, *untried))
                self._reporter.say(f"no time left to try {len(untried)} more settings")
                generation = replace(generation, settings=generation.settings[:end], checked=start)
                self._change(index, generation)
            if not fitting:
                break
            refusals = self._build(fitting)
            admitted += [setting for setting in fitting if refusals[setting.name] is None]
            self._admitted |= {setting.name for setting in admitted}
            refused = [(setting, reason) for setting in fitting if (reason := refusals[setting.name]) is not None]
            for setting, reason in refused:
                dropped = Dropped(candidate=setting.name, generation=index + 1, round=0, reason=reason)
                self._lose(setting, dropped)
            if new:
                self._change(index, replace(generation, checked=start + len(fitting)))
            start += len(fitting)
            if start == len(generation.settings):
                break
        return admitted

    def _cut_to_time(self, chunk: Sequence[Setting], racing: int) -> list[Setting]:
        """Return the first settings of a chunk that can be built, and race beside so many others, in the time left."""
        for count in range(len(chunk), 0, -1):
            if self._has_time(LOOKS[0] * (racing + count), self._expect_build(chunk[:count])):
                return list(chunk[:count])
        return []

    def _split(self, settings: Sequence[Setting]) -> list[list[Setting]]:
        """Split settings into builds between looks at the budget: an engine that compiles for long alone, but beside
        the first."""
        chunks: list[list[Setting]] = []
        for i, setting in enumerate(settings):
            alone = setting.engine in self._slow or bool(chunks and chunks[-1][-1].engine in self._slow)
            if chunks and (i == 1 or not alone) and len(chunks[-1]) < AT_ONCE:
                chunks[-1].append(setting)
            else:
                chunks.append([setting])
        return chunks

    def _expect_build(self, chunk: Sequence[Setting]) -> float:
        return max(self.record.build_s.get(one.engine, 0.0) for one in chunk)

    def _build(self, chunk: Sequence[Setting]) -> Mapping[str, str | None]:
        """Build and check, and record how long that took where it may take long."""
        request, before_s = self.record.request, self._budget.spent_s
        first = bool(self._combinations[:1]) and self._combinations[0] in chunk
        long = first or any(one in chunk for one in self.defaults if one.engine in self._slow)
        limit_s = request.limit_child(MOST_FOR_FIRST if long else MOST_FOR_ONE, self._expect_build(chunk))
        if long and not first:  # those that were built before have to race
            spare_s = self.find_spare(LOOKS[0] * (len(self._admitted) + len(chunk)))
            limit_s = min(limit_s, max(request.child_s, spare_s))
        self._budget.child_s = limit_s
        refusals = self.track.check(chunk)
        self._budget.child_s = request.child_s
        slow = [one for one in chunk if one.engine in self._slow]  # the time of a chunk is theirs
        for engine in {one.engine for one in slow or chunk}:
            longest_s = max(self._budget.spent_s - before_s, self.record.build_s.get(engine, 0.0))
            self._save(replace(self.record, build_s={**self.record.build_s, engine: longest_s}))
        return refusals

    def _change(self, index: int, generation: Generation) -> None:
        before, after = self.record.generations[:index], self.record.generations[index + 1 :]
        self._save(replace(self.record, generations=(*before, generation, *after)))

    def _lose(self, setting: Setting, dropped: Dropped) -> None:
        self.lost.append(dropped)
        self._tried.setdefault(setting.name, Tried(setting=setting, cost=None))
        where = f"in round {dropped.round}" if dropped.round else "before it raced"
        self._reporter.say(f"{setting.name} dropped {where}: {dropped.reason}")

    def _run_round(
        self,
        settings: dict[str, Setting],
        names: Sequence[str],
        number: int,
        *,
        final: bool = False,
        partly: bool = False,
    ) -> dict[str, Trial] | None:
        """Run a trial of each; if time ran out before all had run return None, or, if `partly`, those that had."""
        trials: dict[str, Trial] = {}
        at_once = AT_ONCE if self.record.request.goal == "latency" else 1
        for start in range(0, len(names), at_once):
            group = names[start : start + at_once]
            new = [settings[name] for name in group if not self.track.holds(settings[name], number, final=final)]
            round_s = sum(self.record.lap_s[-len(settings) :])
            needed_s = round_s * len(new) / len(settings) / (1 if number else 2)  # a first round is worth a try
            go_on = self._budget.left_s > needed_s if final else self._has_time(len(new))
            if new and not go_on:
                return trials if partly and trials else None
            before_s = self._budget.spent_s
            group_trials = self.track.run([settings[name] for name in group], number, final=final)
            for name, trials[name] in zip(group, group_trials, strict=True):
                self.processes += 1
                if settings[name] in new:
                    self._save(replace(self.record, lap_s=(*self.record.lap_s, self._budget.spent_s - before_s)))
                    before_s = self._budget.spent_s
            if self._budget.left_s <= 0 and any(trials[one.name].cost is None for one in new):  # ended with the budget
                ran = {name: trial for name, trial in trials.items() if trial.cost is not None}
                return ran if partly and ran else None
        return trials

    def _store_race(self, race: Race, settings: dict[str, Setting]) -> None:
        """Store the results of a race, even of one that did not end."""
        self._next_round = max(self._next_round, race.next_round)
        leads = race.measure_leads() or dict.fromkeys(race.alive[:1], 1.0)
        for drop in race.drops:
            self._lose(settings[drop.candidate], drop)
        if race.leader is None:
            return
        scale = leads[self.leader.name] if self.leader is not None and self.leader.name in leads else 1.0
        self._tried = {
            name: one if one.cost is None else replace(one, cost=one.cost * scale) for name, one in self._tried.items()
        }
        self._tried |= {name: Tried(setting=settings[name], cost=cost) for name, cost in leads.items()}
        self.leader = settings[race.leader]
        progress = f"{count_of(race.rounds, 'rounds')} of {count_of(len(settings), 'candidates')}"
        if race.rounds:
            self._reporter.say(f"leader: {race.leader}, after {progress}")

    def _finish(self) -> None:
        """Run the final: the leader against the default of each engine, in fresh processes."""
        if self.leader is None:
            reasons = dict.fromkeys(f"{lost.candidate}: {lost.reason}" for lost in self.lost)
            if reasons:
                raise MeasurementError(f"no setting can be measured. {'; '.join(reasons)}")
            raise MeasurementError(
                f"nothing was measured: the budget of {self.record.request.budget_s:g} s is too short, and was spent "
                "before a setting was built; give minutes with --time-budget, such as 5m"
            )
        finalists = self.record.finalists or (self.leader, *self._list_defaults())
        self._save(replace(self.record, finalists=finalists))
        settings = {setting.name: setting for setting in dict.fromkeys(finalists)}
        length = self.record.request.run.measure.processes

        def assess(base: str, candidate: str, comparison: Comparison) -> Comparison:
            return self.track.assess_ratio(settings[base], settings[candidate], comparison)

        self.final = final = Final(finalists[0].name, [s.name for s in finalists[1:]], length=length, assess=assess)
        while not final.over and (ran := self._run_round(settings, final.alive, final.rounds, final=True)) is not None:
            for name, trial in ran.items():
                if trial.cost is None:
                    final.fail(name, trial.reason)
            final.add_round({name: ran[name].cost or 0.0 for name in final.alive})
        if final.winner is None:
            failed = self._budget.left_s > 0 and "; ".join(dict.fromkeys(final.failed.values()))
            if failed or not self.track.count_laps(finalists[0]):
                spent = f"the budget of {self.record.request.budget_s:g} s was spent on building and checking"
                raise MeasurementError(f"nothing was measured: {failed or f'{spent}; give more with --time-budget'}")
            self.final = None  # the time is over; the race has a result
            return
        self.final_rows = self.track.close(list(settings.values()))
        self._save(replace(self.record, finished=final.over))

    def _list_defaults(self) -> list[Setting]:
        """List the fastest default of every engine, without those far slower than the best; if time is short only the
        best."""
        costs_by_engine: dict[str, dict[Setting, float]] = {}
        for setting in [arm.default for arm in self._arms if arm.default.name in self._admitted]:
            one = self._tried.get(setting.name)
            if one is None or one.cost is not None:
                costs_by_engine.setdefault(setting.engine, {})[setting] = math.inf if one is None else one.cost or 0.0
        best = [min(costs.items(), key=lambda pair: pair[1]) for costs in costs_by_engine.values()]
        least = min((cost for _, cost in best), default=0.0)
        near = {setting: cost for setting, cost in best if cost <= FAR * least or cost == math.inf}
        is_known = self.record.lap_s and least < math.inf
        if is_known and self._budget.left_s < (1 + len(near)) * MIN_TRIALS * self._final_lap_s:
            return [setting for setting, cost in near.items() if cost == least]
        return list(near)
