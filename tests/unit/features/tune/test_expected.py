"""What is built first, and what is not built, on a simulated GPU whose times and builds are those of people by hand."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from enginebench.core.entry import Family
from enginebench.core.records import MeasureSpec
from enginebench.features.tune.expected import Expectations
from enginebench.features.tune.proposals import Remaining, Walk, list_known, split_first
from enginebench.features.tune.records import Budget, SearchRecord, SearchRequest
from enginebench.features.tune.search import Search
from enginebench.features.tune.space import Arm, Setting, list_arms
from enginebench.runs.folder import RunRequest
from enginebench.stats.compare import Comparison
from reporters import Silent
from tracks import Scripted

ENGINES = tuple((name, dict[str, str]()) for name in ("pytorch", "pytorch-cudagraph", "pytorch-compile", "tensorrt"))
# One H200, milliseconds: resnet50 with a batch of 32, and BERT-base with one of 16 by 128 tokens. Seconds of a build:
# TensorRT's of 2026-11-24, and compiled code.
RESNET50 = {"tensorrt int8": 0.72, "tensorrt fp16": 1.05, "tensorrt fp32": 6.8, "pytorch-compile": 1.22}
BERT = {"tensorrt int8": 1.45, "tensorrt fp16": 1.40, "tensorrt fp32": 9.0, "pytorch-compile": 1.10}
BUILD_S = {"tensorrt int8": 47.0, "tensorrt fp16": 83.0, "tensorrt fp32": 33.0, "pytorch-compile": 40.0}
LAP_S = 5.0


def list_gpu_arms(precisions: Sequence[str]) -> list[Arm]:
    asked = (("fp32", None), *((name, None) for name in precisions))
    request = RunRequest(
        model="m", engines=ENGINES, precisions=asked, device="cuda:0", measure=MeasureSpec(processes=6)
    )  # type: ignore[arg-type]
    return list_arms(request, "latency", threads=(4,), streams=(1,), one_fp32=True)[0]


class Gpu(Scripted):
    """Builds that take their time one after another; what is not in the table takes as long as eager PyTorch."""

    def __init__(self, ms: Mapping[str, float], refused: Sequence[str] = ()) -> None:
        super().__init__(lap_s=LAP_S)
        self.ms, self.refused = ms, refused

    def check(self, settings: Sequence[Setting]) -> Any:
        found: dict[str, str | None] = {}
        for setting in settings:
            if setting.name not in self.checked:
                self.clock.now_s += find_value(BUILD_S, setting, 3.0)
                self.checked.append(setting.name)
            refused = any(setting.name.startswith(name) for name in self.refused)
            found[setting.name] = "its outputs differ too much" if refused else None
        return found

    def assess_ratio(self, base: Setting, candidate: Setting, found: Comparison) -> Comparison:
        return replace(found, clear=found.ratio is not None and (found.ratio.low or 0.0) > 1.0)

    def find_cost(self, setting: Setting) -> float:
        graphs = setting.options.get("cuda_graph") == "1"
        plain = setting.engine == "pytorch-compile" and not graphs
        return find_value(self.ms, setting, 3.65 if setting.engine == "pytorch-cudagraph" else 6.7) * (
            2 if plain else 1
        )


def find_value(table: Mapping[str, float], setting: Setting, other: float) -> float:
    return table.get(f"{setting.engine} {setting.precision}", table.get(setting.engine, other))


def run_search(track: Gpu, families: list[Family], precisions: Sequence[str], budget_s: float) -> Search:
    arms = list_gpu_arms(precisions)
    known = list_known(arms, families, "cuda")
    expected = Expectations("cuda", families, known)
    first, others = split_first(arms, known, expected, budget_s)
    run = RunRequest(model="m", engines=ENGINES, measure=MeasureSpec(processes=6, time_limit_s=1.0))
    record = SearchRecord(request=SearchRequest(run=run, budget_s=budget_s))
    budget = Budget(budget_s, clock=track.clock)
    proposers = [Remaining(others, expected), Walk(arms)]
    search = Search(record, arms, track, proposers, budget, Silent(), combinations=known, first=first)
    search.run()
    return search


def name_winner(search: Search) -> str:
    return str(search.final.winner if search.final else search.leader and search.leader.name)


def list_built(track: Gpu) -> list[str]:
    return [" ".join(name.split()[:2]) for name in track.checked]


def test_tensorrt_is_built_first_and_what_is_far_slower_is_not() -> None:
    track = Gpu(RESNET50)
    search = run_search(track, ["convolutions"], ["fp16", "int8"], 300.0)
    assert list_built(track)[:3] == ["pytorch fp32", "tensorrt int8@tensorrt", "tensorrt fp16"]
    assert name_winner(search).startswith("tensorrt int8@tensorrt") and track.clock.now_s <= 300.0
    assert not [name for name in list_built(track)[1:] if name.startswith(("pytorch ", "pytorch-cudagraph"))]


def test_where_eight_bits_are_refused_what_is_near_the_next_is_built() -> None:
    track = Gpu(RESNET50, refused=["tensorrt"])
    search = run_search(track, ["convolutions"], ["fp16", "int8"], 600.0)
    assert name_winner(search).startswith("pytorch-compile:") and "cuda_graph=1" in name_winner(search)
    assert any(name.startswith("pytorch-cudagraph:") for name in list_built(track)), "1.8 times as long as compiled"


@pytest.mark.parametrize("budget_s", [180.0, 400.0])
def test_transformers_begin_with_compiled_code(budget_s: float) -> None:
    track = Gpu(BERT)
    search = run_search(track, ["transformers"], ["fp16", "int8"], budget_s)
    assert list_built(track)[:2] == ["pytorch fp32", "pytorch-compile:cuda_graph=1 fp16"]
    assert name_winner(search).startswith("pytorch-compile:cuda_graph=1") and track.clock.now_s <= budget_s


def test_a_build_that_takes_much_of_the_budget_comes_later() -> None:
    arms = list_gpu_arms(["fp16"])
    known = list_known(arms, ["convolutions"], "cuda")
    expected = Expectations("cuda", ["convolutions"], known)
    roomy, short = ([one.engine for one in split_first(arms, known, expected, s)[0]][1:] for s in (1200.0, 60.0))
    assert roomy[:2] == ["tensorrt", "pytorch-compile"]
    assert short.index("pytorch-compile") < short.index("tensorrt")


def test_nothing_is_left_out_where_nothing_is_known() -> None:
    arms = [replace(arm, precision="fp32") for arm in list_gpu_arms(["fp16"])]
    expected = Expectations("cpu", ["convolutions"], [])
    first, others = split_first(arms, [], expected, 300.0)
    assert {one.name for one in first} == {arm.default.name for arm in arms} and others == []
    assert not expected.is_far(arms[0].default, arms[1].default)
