"""Precision by layer in a search: the line of graphs, what samples show of them, and a folder that goes on."""

import pytest
from msgspec.structs import replace

from enginebench.core.errors import BackendUnavailable, ChildFailed, ParseError
from enginebench.core.records import Estimate
from enginebench.features.tune import mixed
from enginebench.features.tune.child import find_first
from enginebench.features.tune.groups import GroupHarm, Harm, NodeGroup
from enginebench.features.tune.held_out import Held
from enginebench.features.tune.jobs import SensitivityAnswer, SensitivityJob
from enginebench.features.tune.mixed import (
    MIXED_FILE,
    MixedProposer,
    describe_held,
    describe_layering,
    explain_hopeless,
    read_mixed,
)
from enginebench.features.tune.proposals import Tried
from enginebench.features.tune.records import Budget, SearchRecord
from enginebench.features.tune.rows import Rows
from enginebench.features.tune.sitting import _open as open_search
from enginebench.measure.machine import describe_machine
from enginebench.models.precision.exclusion import read_exclusion
from enginebench.runs.folder import RunFolder, RunRecord
from enginebench.runs.targets.sources import choose_judged
from mixed_search import search
from reporters import Silent

__all__ = ["search"]

GROUPS = tuple(NodeGroup(name=name, kind="Conv", nodes=(name,), originals=(name,)) for name in "abcdefg")


def add_up(chosen):
    """Each group adds a tenth; e adds one."""
    return Harm(noise=sum(1.0 if group.name == "e" else 0.1 for group in chosen))


@pytest.mark.parametrize(("allowed", "first"), [(0.05, "a"), (0.25, "c"), (0.9, "e"), (10.0, None), (None, None)])
def test_the_first_group_that_breaks_the_answers_is_named(allowed, first):
    assert find_first(GROUPS, add_up, allowed) == first


def test_no_groups_break_nothing():
    assert find_first((), add_up, 0.1) is None


def test_each_graph_is_checked_on_held_out_samples_with_an_interval(search):
    (layering,) = search[5].document.layerings
    for graph in layering.graphs:
        (held,) = graph.held
        assert held.limit == "centred_cosine" and held.value.n == mixed.HELD_OUT
        assert held.value.low <= held.value.value <= held.value.high
    assert {one.graph for one in search[6]} == {graph.name for graph in layering.graphs if graph.kept}


def test_with_labels_the_metric_is_held_with_its_interval(search, tmp_path):
    request, arms, sources, folder, *_ = search
    request = replace(request, limits=None)
    judged = choose_judged(request.run)
    rows = Rows(request.run, sources, folder.artifacts, Silent())
    proposer = MixedProposer(request, arms, rows, RunFolder(tmp_path), Silent(), judged)
    planned = [rows.plan(arm.default, request.run.measure) for arm in arms]
    reference = proposer._answer(planned[0], mixed.REFERENCE)
    (held,) = proposer._hold(reference, planned[1], "int8", {})
    assert held.limit == "change of top1" and held.bound == -0.01 and held.value.n == 450
    assert held.value.low <= held.value.value <= held.value.high


def test_the_lists_are_written_and_name_the_exported_nodes(search):
    _, _, sources, folder, _, proposer, _ = search
    graph = proposer.document.layerings[0].graphs[0]
    assert read_exclusion(folder.root / mixed.LISTS / f"{graph.name}.txt") == graph.excluded
    assert len(sources.artifacts) > 1


def test_the_list_of_the_fastest_is_written(search):
    folder, (proposer, settings) = search[3], search[5:]
    assert proposer.write_best([Tried(setting=settings[0], cost=None)]) is None
    lists = {graph.name: graph.excluded for graph in proposer.document.layerings[0].graphs}
    control = next(setting for setting in settings if setting.graph == mixed.CONTROLLED)
    assert proposer.write_best([Tried(setting=control, cost=0.1)]) is None  # NNCF does not say what it left out
    tried = [Tried(setting=setting, cost=2.0 + i) for i, setting in enumerate(settings) if setting != control]
    path = proposer.write_best([*tried[::-1], Tried(setting=control, cost=0.1)])
    assert path == folder.root / mixed.BEST and read_exclusion(path) == lists[tried[0].setting.graph]


def test_what_was_tried_is_not_proposed_again(search):
    proposer, settings = search[5:]
    rest = proposer.propose(12, [Tried(setting=settings[0], cost=1.0)])
    assert rest == settings[1:]


def test_an_interrupted_search_goes_on_without_measuring_again(search, monkeypatch):
    request, arms, sources, folder, _, _, settings = search
    rows = Rows(request.run, sources, folder.artifacts, Silent())
    monkeypatch.setattr(mixed, "run_child", lambda *args, **kwargs: pytest.fail("a child was started"))
    proposer = MixedProposer(request, arms, rows, folder, Silent())
    assert proposer.propose(12, []) == settings
    assert [rows.plan(setting, request.run.measure).skip for setting in settings] == [None] * len(settings)


def test_a_graph_that_breaks_a_limit_is_not_proposed(search):
    request, arms, sources, folder, _, proposer, _settings = search
    broken = Held(limit="centred_cosine", bound=0.99, value=None, kept=False, shown=False)
    (layering,) = proposer.document.layerings
    graphs = tuple(replace(graph, held=(broken,)) if i == 0 else graph for i, graph in enumerate(layering.graphs))
    other = MixedProposer(request, arms, Rows(request.run, sources, folder.artifacts, Silent()), folder, Silent())
    other.document = replace(proposer.document, layerings=(replace(layering, graphs=graphs),))
    assert graphs[0].name not in [setting.graph for setting in other.propose(12, [])]


def test_a_child_that_dies_costs_the_line_and_nothing_else(search, tmp_path, monkeypatch):
    request, arms, sources, *_ = search

    def die(*args, **kwargs):
        raise ChildFailed("the process was killed by signal 9")

    monkeypatch.setattr(mixed, "run_child", die)
    folder = RunFolder(tmp_path)
    rows = Rows(request.run, sources, folder.artifacts, Silent())
    proposer = MixedProposer(request, arms, rows, folder, Silent())
    assert proposer.propose(12, []) == []
    assert "signal 9" in str(read_mixed(folder).layerings[0].reason)


@pytest.mark.parametrize(
    ("fp32", "int8", "hopeless"),
    [
        ((8.0, 9.0), (3.3,), True),  # far behind in both
        ((8.0,), (1.9,), False),
        ((1.0,), (4.0,), False),  # FP32 leads: a few nodes in 8 bits may help
        ((8.0,), (None,), False),  # 8 bits throughout broke a limit
        ((), (3.3,), False),
    ],
)
def test_an_engine_that_is_far_behind_gets_no_line(search, fp32, int8, hopeless):
    whole = next(arm.default for arm in search[1] if arm.precision == "int8")
    base = replace(whole, precision="fp32", recipe=None)
    tried = [Tried(setting=base, cost=cost) for cost in fp32] + [Tried(setting=whole, cost=cost) for cost in int8]
    tried.append(Tried(setting=replace(whole, engine="openvino"), cost=1.0))  # another engine's says nothing
    assert bool(explain_hopeless(whole, tried)) == hopeless


def test_a_line_that_was_not_made_says_why(search, tmp_path, monkeypatch):
    request, arms, sources, *_ = search
    monkeypatch.setattr(mixed, "run_child", lambda *args, **kwargs: pytest.fail("a child was started"))
    folder = RunFolder(tmp_path)
    proposer = MixedProposer(request, arms, Rows(request.run, sources, folder.artifacts, Silent()), folder, Silent())
    assert proposer.propose(12, [Tried(setting=arm.default, cost=3.3) for arm in arms]) == []
    (line,) = proposer.describe()
    assert "both take at least 3.3 times what the leader takes" in line and "search ort alone" in line


def test_damage_is_told(tmp_path):
    folder = RunFolder(tmp_path)
    assert read_mixed(folder).layerings == ()
    (tmp_path / MIXED_FILE).write_text('{"schema": "enginebench.mixed/9", "layerings": []}')
    with pytest.raises(ParseError, match=r"enginebench\.mixed/1"):
        read_mixed(folder)
    (tmp_path / MIXED_FILE).write_text('{"schema": ')
    with pytest.raises(ParseError):
        read_mixed(folder)


def test_the_layer_that_must_stay_in_fp32_is_named(search):
    proposer = search[5]
    (layering,) = proposer.document.layerings
    assert proposer.describe() == ("ort int8@cpu: no node breaks the outputs.",)
    groups = (replace(layering.groups[0], harm=None), *layering.groups[1:])
    broken = replace(layering, first="b", alone=("b", "c"), groups=groups)
    assert describe_layering(broken) == (
        "ort int8@cpu: b is the first node to break the outputs, from the input on. By themselves b, c break them. "
        "Time ran out before 1 of 5 groups; they stay in FP32."
    )
    assert describe_layering(replace(layering, reason="x")) == "ort int8@cpu: no precision by layer: x."


def test_what_samples_show_is_put_into_words():
    value = Estimate(value=0.97, low=0.94, high=0.98, level=0.95, n=64, method="", supported=True)
    held = Held(limit="centred_cosine", bound=0.95, value=value, kept=True, shown=False)
    assert describe_held([held]) == "centred_cosine 0.97 (0.94 to 0.98), limit 0.95 kept, but not significantly"


def test_a_line_for_which_there_is_no_time_ends(search, tmp_path, monkeypatch):
    """The clock stands beyond half of the budget as soon as the sensitivity is known: no graph is made."""
    request, arms, sources, *_ = search
    clock = iter([0.0, *[1e9] * 100])
    monkeypatch.setattr(mixed.time, "monotonic", lambda: next(clock))

    def answer(job, **kwargs):
        if isinstance(job, SensitivityJob):
            harm = Harm(noise=1e-6)
            groups = tuple(GroupHarm(group=group, harm=harm) for group in GROUPS)
            return SensitivityAnswer(groups=groups, together=harm, first=None, homes={}, samples=4, seconds=1.0)
        raise BackendUnavailable("no profile")

    monkeypatch.setattr(mixed, "run_child", answer)
    monkeypatch.setattr(MixedProposer, "_answer", lambda *args: {})
    rows = Rows(request.run, sources, tmp_path, Silent())
    proposer = MixedProposer(request, arms, rows, RunFolder(tmp_path), Silent())
    assert proposer.propose(12, []) == []
    (layering,) = proposer.document.layerings
    assert layering.graphs == () and len(layering.groups) == 7 and layering.saved_ns == {}


@pytest.mark.parametrize(
    ("precisions", "first"), [((("fp32", None), ("int8", None)), "precision by layer"), ((("fp32", None),), None)]
)
def test_a_search_with_8_bits_asks_for_precision_by_layer_first(search, precisions, first):
    request, _, sources, folder, *_ = search
    request = replace(request, run=replace(request.run, precisions=precisions))
    run = RunRecord(
        request=request.run,
        machine=describe_machine(),
        started_utc="2026-11-22T12:00:00",
        rows=(),
        verb="tune",
        sources=tuple(folder.relative(artifact) for artifact in sources.artifacts),
    )
    _, proposers = open_search(folder, run, SearchRecord(request=request), Budget(60.0), Silent())
    assert (proposers[0].name == "precision by layer") == (first is not None)
