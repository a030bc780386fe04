"""The story of a search on scripted trials: what is tried, who drops out, the budget, and going on."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from enginebench.core.errors import MeasurementError
from enginebench.core.records import MeasureSpec
from enginebench.features.tune.proposals import Walk
from enginebench.features.tune.race import Final
from enginebench.features.tune.records import Budget, SearchRecord, SearchRequest
from enginebench.features.tune.search import Search
from enginebench.features.tune.sections import format_outcome
from enginebench.features.tune.session import describe_search
from enginebench.features.tune.space import Arm, Setting
from enginebench.features.tune.track import Trial
from enginebench.runs.folder import RunRequest
from reporters import Silent
from samples import make_machine
from tracks import ARMS, Scripted

REQUEST = SearchRequest(
    run=RunRequest(
        model="m", engines=(("x", {}), ("y", {"kept": "1"})), measure=MeasureSpec(processes=6, time_limit_s=3.0)
    ),
    budget_s=10_000.0,
    candidates=4,
)


MACHINE = make_machine()


class Stored:
    """The record as it lies on the disk."""

    def __init__(self, request: SearchRequest = REQUEST) -> None:
        self.record = SearchRecord(request=request)

    def __call__(self, record: SearchRecord) -> None:
        self.record = record


def make_search(track: Scripted, request: SearchRequest = REQUEST, stored: Stored | None = None) -> Search:
    stored = stored or Stored(request)
    budget = Budget(stored.record.request.budget_s, stored.record.spent_s, clock=track.clock)
    proposers = [Walk(ARMS[:1]), Walk(ARMS)]
    proposers[0].name = "enumeration of x"
    return Search(stored.record, ARMS, track, proposers, budget, Silent(), store=stored)


def run(track: Scripted, request: SearchRequest = REQUEST) -> Search:
    search = make_search(track, request)
    search.run()
    return search


def run_with(
    arms: Sequence[Arm], track: Scripted, budget_s: float, proposers: Sequence[Any] = (), known: Sequence[Setting] = ()
) -> Search:
    budget = Budget(budget_s, clock=track.clock)
    record = SearchRecord(request=replace(REQUEST, budget_s=budget_s))
    search = Search(record, arms, track, proposers, budget, Silent(), combinations=known)
    search.run()
    return search


def name(search: Search) -> str:
    assert search.final is not None
    return str(search.final.winner)


def test_the_best_setting_is_found_and_beats_the_default_of_every_engine() -> None:
    search = run(Scripted())
    assert name(search) in ("x:mode=good fp32 2 threads", "x:arena=none,mode=good fp32 2 threads")
    assert search.final is not None and search.final.beaten and search.record.finished
    assert search.final.defaults == ("x fp32 2 threads", "y:kept=1 fp32 2 threads")
    assert search.record.generations[0].settings == tuple(arm.default for arm in ARMS)


@pytest.mark.parametrize(
    ("rounds", "reason"), [(3, "3 of the 6 trials that a verdict needs"), (6, "reaches across the margin of 2.0%")]
)
def test_a_final_without_a_verdict_says_why(rounds: int, reason: str) -> None:
    """Twice as fast in each of three processes, which are too few; in six, sometimes faster, sometimes slower."""
    search = run(Scripted())
    assert search.final is not None
    challenger, (default, other) = search.final.challenger, search.final.defaults
    search.final = Final(challenger, [default, other], length=rounds)
    for i in range(rounds):
        cost = 1.0 + i / 1000 if rounds < 6 else 2.0 + (i % 2) / 5
        search.final.add_round({challenger: cost, default: 2.0 + (i % 3) / 1000, other: 9.0})
    document = describe_search(search, MACHINE, proposed_by=[])
    (row,) = [row for row in document.final if row.candidate == default]
    assert row.verdict == document.verdict == "not_shown" and row.reason is not None and reason in row.reason
    assert (row.ratio is not None and (row.ratio.low or 0) > 1) or rounds == 6
    assert f"inconclusive ({row.reason})." in " ".join(format_outcome(document))


@pytest.mark.parametrize("budget_s", [40.0, 60.0, 100.0])
def test_the_budget_is_kept_and_the_final_gets_its_share(budget_s: float) -> None:
    track = Scripted(sd=0.02)
    search = run(track, replace(REQUEST, budget_s=budget_s))
    assert track.clock.now_s <= budget_s + 4 * track.lap_s  # a chunk that is being checked is not cut off
    assert search.final is not None and search.final.rounds >= 5


def test_a_budget_that_ends_before_anything_was_built_says_what_to_give_and_where_nobody_may_race_why() -> None:
    with pytest.raises(MeasurementError, match="the budget of 1 s was spent on building and checking"):
        run(Scripted(), replace(REQUEST, budget_s=1.0))
    track = Scripted()
    search = make_search(track, replace(REQUEST, budget_s=1.0))
    track.clock.now_s += 0.9  # for the export
    with pytest.raises(MeasurementError, match=r"the budget of 1 s is too short.*--time-budget, such as 5m"):
        search.run()
    track = Scripted()
    track.refusals = {arm.default.name: f"no {arm.engine}" for arm in ARMS}
    with pytest.raises(MeasurementError, match=r"no setting can be measured\. .*no x.*no y"):
        run(track, replace(REQUEST, budget_s=5.0))


def test_a_budget_that_ends_within_the_first_round_of_the_final_leaves_who_led_the_race() -> None:
    track = Scripted(lap_s=40.0)
    track.check = lambda settings: {setting.name: None for setting in settings}  # type: ignore[method-assign]
    search = run(track, replace(REQUEST, budget_s=50.0))
    assert search.final is None and search.leader is not None and search.leader == search.record.finalists[0]


class Slow(Scripted):
    """Builds take scripted times, and are ended by the limit of the budget, as children are."""

    def __init__(self, build_s: dict[str, float]) -> None:
        super().__init__()
        self.build_s, self.limits, self.budget = build_s, dict[str, float](), Budget(1.0)

    def check(self, settings: Sequence[Setting]) -> Any:
        found: dict[str, str | None] = {}
        for setting in settings:
            self.limits[setting.name] = limit_s = self.budget.limit_child()
            took_s = self.build_s.get(setting.engine, 1.0)
            self.clock.now_s += min(took_s, limit_s)
            found[setting.name] = "no response within the time-out" if took_s > limit_s else None
        return found


def search_slowly(track: Slow, budget_s: float) -> Search:
    arms = [ARMS[1], Arm(engine="z", fixed={}, precision="fp32", knobs=ARMS[0].knobs, tunes=True)]
    request = replace(REQUEST, budget_s=budget_s)
    track.budget = Budget(budget_s, clock=track.clock)
    track.find_cost = lambda setting: 1.0 if "mode" in setting.options else 1.5  # type: ignore[method-assign]
    known = [arms[1].set({"mode": "good"}), arms[1].set({"arena": "none"})]
    search = Search(
        SearchRecord(request=request), arms, track, [Walk(arms)], track.budget, Silent(), combinations=known
    )
    search.run()
    return search


def test_the_first_known_combination_may_take_half_of_the_budget_and_nothing_outlasts_it() -> None:
    """A later build of its engine may take as long as was seen, and is left out where that does not fit any more."""
    track = Slow({"z": 80.0})
    search = search_slowly(track, 200.0)
    assert search.record.untried == ("z:arena=none fp32 2 threads", "z fp32 2 threads")
    assert search.record.build_s["z"] >= 80.0 > search.record.build_s.get("y", 0.0), "who was built beside it was ready"
    document = describe_search(search, MACHINE, proposed_by=[])
    assert document.notes[0].startswith(
        "No time was left for 2 settings: z:arena=none fp32 2 threads, z fp32 2 threads. 1 default among them"
    )
    limits = list(track.limits.items())
    assert limits[:2] == [("y:kept=1 fp32 2 threads", 100.0), ("z:mode=good fp32 2 threads", 100.0)]
    assert not [name for name, _ in limits[2:] if name.startswith("z")], "80 s more do not fit"
    assert name(search) == "z:mode=good fp32 2 threads" and search.record.spent_s <= 205.0
    assert search_slowly(Slow({"z": 45.0}), 92.0).record.finalists[0].name == "z:mode=good fp32 2 threads", "it leads"
    roomy = Slow({"z": 80.0})
    search_slowly(roomy, 1000.0)
    assert roomy.limits["z:mode=good fp32 2 threads"] == 500.0 and roomy.limits["z:arena=none fp32 2 threads"] == 200.0


@pytest.mark.parametrize(("budget_s", "tried"), [(60.0, 6), (45.0, 4), (400.0, 12)])
def test_of_settings_built_together_those_are_tried_that_fit_into_the_time(budget_s: float, tried: int) -> None:
    """Two trials of each, at three seconds while none was measured, and a quarter of the budget for the final."""
    track = Scripted()
    (wide,) = [replace(arm, knobs={**arm.knobs, "size": tuple(map(str, range(12)))}) for arm in ARMS[:1]]
    known = [wide.set({"size": size}) for size in wide.knobs["size"]]
    search = run_with([wide], track, budget_s, known=known)
    first = search.record.generations[0]
    assert (len(first.settings), first.checked) == (tried, tried)
    assert search.record.untried == tuple(one.name for one in known[tried:])


def interrupt(track: Scripted, count: int, after_s: float = 0.0) -> Callable[..., None]:
    """Ctrl-C when it is called for the n-th time, so many seconds later."""
    left = iter(range(count))

    def stop(*_: object) -> None:
        if next(left, None) is None:
            track.clock.now_s += after_s
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize("budget_s", [10_000.0, 100.0, 60.0, 40.0])
def test_interrupted_at_any_moment_it_comes_to_the_same_document(budget_s: float) -> None:
    request = replace(REQUEST, budget_s=budget_s)
    whole_track = Scripted(sd=0.02)
    whole = run(whole_track, request)
    document = describe_search(whole, MACHINE, proposed_by=[])
    moments = len(whole_track.order) + len(whole_track.checked)

    @settings(max_examples=25)
    @given(st.lists(st.integers(0, moments), min_size=1, max_size=3))
    def check(stops: list[int]) -> None:
        """Each session but the last ends in its n-th trial or check."""
        track, stored = Scripted(sd=0.02), Stored(request)
        for stop in stops:
            track.within = interrupt(track, stop, track.lap_s / 2)  # half-way through whatever takes time
            with suppress(KeyboardInterrupt):
                make_search(track, stored=stored).run()
        track.within = lambda name: None
        again = make_search(track, stored=stored)
        again.run()
        assert describe_search(again, MACHINE, proposed_by=[]) == document
        assert stored.record == whole.record
        assert sorted(track.order) == sorted(whole_track.order), "nothing was measured twice"

    check()


def test_who_was_far_slower_races_on_where_all_others_fail_later() -> None:
    track = Scripted()
    x, y = ARMS
    arms = [x, replace(x, precision="bf16"), y]
    costs: dict[str, float | None] = {"x": 1.0, "y": 2.5}
    track.find_cost = lambda setting: costs[setting.engine]  # type: ignore[method-assign]
    track.before = lambda setting, number, final: costs.update({"x": None} if number else {})
    search = run_with(arms, track, 900.0)
    assert name(search) == "y:kept=1 fp32 2 threads" and len(search.lost) == 2


def test_an_answer_says_which_default_failed_in_the_final() -> None:
    track = Scripted()
    measure, best = track._measure, ARMS[0].default
    track._measure = lambda setting, key: (  # type: ignore[method-assign]
        Trial(reason="killed") if key[2] and setting == best else measure(setting, key)
    )
    answer = " ".join(format_outcome(describe_search(run(track), MACHINE, proposed_by=["enumeration"])))
    assert "as fast as the best default, y:kept=1" in answer
    assert f"The default {best.name} failed in the final" in answer
