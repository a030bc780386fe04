"""A search of precision by layer over the small CNN, its line of graphs made."""

import pytest

from enginebench.core.records import MeasureSpec
from enginebench.features.tune.mixed import MixedProposer
from enginebench.features.tune.records import SearchRequest
from enginebench.features.tune.rows import Rows
from enginebench.features.tune.space import list_arms
from enginebench.runs.folder import RunFolder, RunRequest
from enginebench.runs.targets.sources import gather_sources
from reporters import Silent


def decide(saved):
    """What 8 bits save in each group, told rather than measured: in the first nothing, in the others a little."""
    return {name: -5000.0 if i == 0 else 2000.0 for i, name in enumerate(sorted(saved))}


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    """(request, arms, sources, folder) of a search over the small CNN, its line made.

    The profiles are made, but for their times: on a busy machine each group may look slower in FP32.
    """
    profile = MixedProposer._profile

    def profile_and_decide(self, *args):
        saved, unmapped = profile(self, *args)
        return decide(saved), unmapped

    root = tmp_path_factory.mktemp("search")
    run = RunRequest(
        model="digits-cnn",
        engines=(("ort", {}),),
        precisions=(("fp32", None), ("int8", None)),
        measure=MeasureSpec(processes=1, iters=20),
    )
    request = SearchRequest(run=run, limits={"centred_cosine": 0.95}, threads=1)
    arms = list_arms(run, "latency", threads=(1,), streams=(1,))
    folder = RunFolder(root)
    folder.artifacts.mkdir(parents=True)
    sources = gather_sources(run, folder.artifacts, Silent())
    rows = Rows(run, sources, folder.artifacts, Silent())
    proposer = MixedProposer(request, arms, rows, folder, Silent())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MixedProposer, "_profile", profile_and_decide)
        return request, arms, sources, folder, rows, proposer, proposer.propose(12, [])
