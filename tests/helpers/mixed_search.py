"""A search of precision by layer over the small CNN, of which 8 bits throughout are said to break the limits."""

from types import SimpleNamespace

import pytest

from enginebench.core.records import MeasureSpec
from enginebench.features.tune.mixed import MixedProposer
from enginebench.features.tune.proposals import Tried
from enginebench.features.tune.records import SearchRequest
from enginebench.features.tune.space import list_arms
from enginebench.features.tune.track import Rows
from enginebench.runs.folder import RunFolder, RunRequest
from enginebench.runs.targets.sources import gather_sources
from reporters import Silent


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    """A search whose first graphs are made: `open` opens the proposer anew, as a sitting that goes on does."""
    run = RunRequest(
        model="digits-cnn",
        engines=(("ort", {}),),
        precisions=(("fp32", None), ("int8", None)),
        measure=MeasureSpec(processes=1, iters=20),
    )
    request = SearchRequest(run=run, limits={"centred_cosine": 0.95}, threads=1)
    arms = list_arms(run, "latency", threads=(1,), streams=(1,))
    folder = RunFolder(tmp_path_factory.mktemp("search"))
    folder.artifacts.mkdir(parents=True)
    sources = gather_sources(run, folder.artifacts, Silent())
    rows = Rows(run, sources, folder.artifacts, Silent())

    def open_proposer(folder=folder):
        return MixedProposer(request, arms, Rows(run, sources, folder.artifacts, Silent()), folder, Silent())

    tried = [Tried(setting=arm.default, cost=1.0 if arm.precision == "fp32" else None) for arm in arms]
    proposer = MixedProposer(request, arms, rows, folder, Silent())
    settings = proposer.propose(12, tried)
    return SimpleNamespace(
        request=request, sources=sources, folder=folder, rows=rows, proposer=proposer, tried=tried,
        settings=settings, open=open_proposer,
    )  # fmt: skip
