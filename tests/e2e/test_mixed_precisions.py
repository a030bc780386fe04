"""Precision by layer in a search: the line of graphs, what samples show of them, and a folder that goes on."""

from enginebench.core.names import name_mix
from enginebench.features.tune import mixed
from mixed_search import search

__all__ = ["search"]


def test_graphs_are_proposed_and_each_is_a_row_of_its_own(search):
    request, *_, rows, proposer, settings = search
    (layering,) = proposer.document.layerings
    assert layering.reason is None and len(layering.groups) == 5 and settings
    assert all(one.harm is not None and one.harm.noise >= 0 for one in layering.groups)
    assert sum(one.harm.noise for one in layering.groups) > 0.2 * layering.together.noise
    planned = [rows.plan(setting, request.run.measure) for setting in settings]
    assert [row.skip for row in planned] == [None] * len(settings)
    assert len({row.id for row in planned}) == len(settings)
    graphs = {graph.name: graph for graph in layering.graphs}
    assert [s.recipe for s in settings if s.graph == mixed.CONTROLLED] == ["nncf"]
    for setting, row in zip(settings, planned, strict=True):
        if setting.graph == mixed.CONTROLLED:
            continue  # it does not say what it left out
        assert row.engine.mix == name_mix(graphs[setting.graph].excluded) != ""
        assert row.source.excluded == graphs[setting.graph].excluded
