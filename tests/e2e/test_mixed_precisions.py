"""Precision by layer in a search: the graphs that keep the worst groups in FP32."""

from enginebench.core.names import name_mix
from mixed_search import search

__all__ = ["search"]


def test_graphs_are_proposed_and_each_is_a_row_of_its_own(search):
    (layering,) = search.proposer.document.layerings
    noises = [one.noise for one in layering.groups]
    assert layering.reason is None and len(noises) == 5 and noises == sorted(noises, reverse=True) and min(noises) >= 0
    assert [graph.groups for graph in layering.graphs] == [1, 2, 4]
    planned = [search.rows.plan(setting, search.request.run.measure) for setting in search.settings]
    assert [row.skip for row in planned] == [None] * 3 and len({row.id for row in planned}) == 3
    for graph, row in zip(layering.graphs, planned, strict=True):
        worst = tuple(name for one in layering.groups[: graph.groups] for name in one.group.originals)
        assert row.source.excluded == graph.excluded == worst
        assert row.engine.mix == name_mix(worst) != ""
