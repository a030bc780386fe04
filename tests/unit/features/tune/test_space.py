"""What may be set, and who proposes it."""

import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from enginebench.core.entry import Entry
from enginebench.core.records import Artifact, Precision, Recipe, TensorSpec
from enginebench.engines.registry import ENTRIES, read_engines
from enginebench.features.tune import proposals
from enginebench.features.tune.proposals import Proposer, Tried, Walk, list_known, make_proposer, order_first
from enginebench.features.tune.records import SearchRequest
from enginebench.features.tune.session import find_arms as find_arms_here
from enginebench.features.tune.space import Arm, list_arms, list_stream_counts, list_thread_counts
from enginebench.runs.families import find_families
from enginebench.runs.folder import RunRequest
from enginebench.runs.traffic import read_traffic
from samples import make_machine
from tracks import ARMS

INT8: tuple[Precision, Recipe | None] = ("int8", None)
FP32: tuple[Precision, Recipe | None] = ("fp32", None)


def find_arms(
    engines: str, *precisions: tuple[Precision, Recipe | None], goal: Any = "latency", **given: Any
) -> dict[str, Arm]:
    device = given.pop("device", "cpu")
    request = RunRequest(
        model="m", engines=tuple(read_engines(engines)), precisions=precisions or (FP32,), device=device
    )
    arms, _ = list_arms(request, goal, threads=(2, 1), streams=(1, 2), **given)
    return {f"{arm.engine} {arm.precision}": arm for arm in arms}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)
def test_every_value_that_may_be_tried_is_one_that_the_engine_takes(entry: Entry) -> None:
    for name, option in {**entry.options, **entry.describe_on("cuda").options}.items():
        assert option.default not in option.search, name
        assert len(set(option.search)) == len(option.search), name
        assert not option.choices or set(option.search) <= set(option.choices), name
        assert option.search or not (option.only_in or option.under_load), name


def test_the_default_of_an_arm_is_what_run_measures_and_engines_that_compile_for_long_come_last() -> None:
    arms = find_arms("pytorch-compile,pytorch,ort", FP32, INT8)
    assert list(arms) == ["pytorch fp32", "ort fp32", "ort int8", "pytorch-compile fp32", "pytorch-compile int8"]
    judged = find_arms("pytorch-compile,pytorch,ort", FP32, INT8, one_fp32=True)
    assert list(judged) == ["pytorch fp32", "ort int8", "pytorch-compile int8"], "one in FP32 judges, the quickest"
    assert all(len(values) == 1 for values in judged["pytorch fp32"].knobs.values()), "and nothing else of it"
    assert arms["ort fp32"].default.options == {} and arms["ort fp32"].default.name == "ort fp32 2 threads"
    assert arms["ort int8"].default.name == "ort int8@cpu 2 threads"


def list_padded(lengths: Sequence[int], *outputs: TensorSpec) -> tuple[str, ...]:
    """The values of `pad` that are searched for texts of these lengths, the default first; () where it is no knob."""
    ids = TensorSpec(name="ids", dtype="int64", shape=("batch", "length"), sizes=(0, 16))
    graph = Artifact(
        kind="onnx", precision="fp32", model="m", path="m.onnx", inputs=(ids,), outputs=outputs, sha256="", files=()
    )
    traffic = read_traffic({str(length): 1.0 for length in lengths})
    request = RunRequest(model="m", engines=(("ort", {"sessions": "each"}),), precisions=(FP32,), traffic=traffic)
    (arm,), _ = list_arms(request, "latency", threads=(1,), streams=(1,), sources=[graph])
    return arm.knobs.get("pad", ())


def test_padding_is_searched_by_few_multiples_that_follow_from_the_lengths() -> None:
    rows = TensorSpec(name="rows", dtype="float32", shape=("batch", "length", 4))
    assert list_padded((5, 20, 30, 40, 52, 60, 70, 80, 90, 110, 150, 256), rows) == ("", "32", "128", "largest")
    assert list_padded((16, 128), rows) == ("", "largest"), "no multiple leaves fewer than both"
    assert list_padded((16,), rows) == (), "one shape is the largest"
    scores = TensorSpec(name="scores", dtype="float32", shape=("batch", "anchors"))
    assert list_padded((16, 128), scores) == (), "nobody could cut these back"
    assert find_arms("ort")["ort fp32"].knobs.get("pad") is None, "without a mix"


def test_padded_settings_race_with_the_defaults_one_of_each_engine_after_the_other() -> None:
    arms = [replace(arm, knobs={"pad": ("", "8", "largest"), **arm.knobs}) for arm in ARMS]
    named = [setting.name for setting in proposals.list_padded([*arms, ARMS[0]], 12)]
    assert named == [
        "x:pad=8 fp32 2 threads",
        "y:kept=1,pad=8 fp32 2 threads",
        "x:pad=largest fp32 2 threads",
        "y:kept=1,pad=largest fp32 2 threads",
    ]
    assert [setting.name for setting in proposals.list_padded(arms, 1)] == named[:1]
    assert proposals.list_padded(ARMS, 12) == []


@pytest.mark.parametrize("goal", ["latency", "throughput"])
def test_a_setting_is_read_back_as_it_was_made(goal: str) -> None:
    for arm in find_arms("ort:arena=none,openvino,pytorch-compile,fake", FP32, INT8, goal=goal).values():
        for changes in range(3):
            for chosen in proposals.list_choices(arm, changes, {name: v[0] for name, v in arm.knobs.items()}):
                read = arm.read(setting := arm.set(chosen))
                assert read is not None and arm.set(read) == setting and (read == chosen or "accuracy_level" in chosen)
    x, y = ARMS
    assert x.read(y.default) is None and y.read(x.default) is None
    assert x.read(x.set({"mode": "unheard-of"})) is None


def test_threads_and_streams_that_are_tried() -> None:
    assert list_thread_counts(8, 16, None) == (8, 4, 2, 1, 16)
    assert list_thread_counts(1, 1, None) == (1,)
    assert list_thread_counts(8, 16, 3) == (3,)
    assert list_stream_counts(6) == (1, 2, 4) and list_stream_counts(1) == (1,)


def tried(setting: Any, cost: float | None) -> Tried:
    return Tried(setting=setting, cost=cost)


def test_a_walk_changes_one_thing_of_the_fastest_first_then_two() -> None:
    x, y = ARMS
    known = [tried(x.default, 1.0), tried(y.default, 1.2)]
    found = Walk(ARMS).propose(100, known)
    assert [s.name for s in found[:3]] == ["x fp32 1 thread", "x:mode=good fp32 2 threads", "y:kept=1 fp32 1 thread"]
    assert len({s.name for s in found}) == len(found) == 9 + 1  # of x all but the default and those of three changes
    assert not {s.name for s in found} & {x.default.name, y.default.name}
    known = [tried(x.default, 1.0), tried(x.set({"mode": "good"}), 0.8), tried(x.set({"mode": "bad"}), None)]
    first = Walk([x]).propose(1, known)[0]
    assert first == x.set({"mode": "good", "threads": "1"})
    assert Walk([x]).propose(5, [tried(x.default, None)]) == [], "an engine that does not run is left alone"


@pytest.mark.skipif(find_spec("optuna") is None, reason="Optuna is not installed")
def test_optuna_proposes_untried_settings_the_same_each_time_and_learns() -> None:
    known = [tried(arm.default, 1.0 + i) for i, arm in enumerate(ARMS)]
    proposer: Proposer = make_proposer(ARMS, seed=1)
    assert proposer.name.startswith("optuna ")
    found = proposer.propose(6, known)
    assert found == make_proposer(ARMS, seed=1).propose(6, known), "an interrupted search goes on alike"
    assert len({s.name for s in found}) == 6 and not {s.name for s in found} & {one.setting.name for one in known}
    everything = [tried(s, 1.0) for arm in ARMS for s in _list_all(arm)]
    assert proposer.propose(6, everything) == []


def _list_all(arm: Arm) -> list[Any]:
    start = {name: values[0] for name, values in arm.knobs.items()}
    return [arm.set(c) for n in range(len(arm.knobs) + 1) for c in proposals.list_choices(arm, n, start)]


def test_without_optuna_settings_are_enumerated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert isinstance(make_proposer(ARMS, seed=0), Walk)


PRECISIONS = (("fp32", None), ("fp16", None), ("bf16", None))
ENGINES = (("pytorch", {}), ("pytorch-compile", {"cuda_graph": "1"}), ("pytorch-cudagraph", {}))


def make_arms(device: str = "cuda:0", engines: tuple[tuple[str, dict[str, str]], ...] = ENGINES) -> list[Arm]:
    request = RunRequest(model="m", engines=engines, precisions=PRECISIONS, device=device)  # type: ignore[arg-type]
    return list_arms(request, "latency", threads=(4,), streams=(1,))[0]


def keep(path: Path) -> list[Artifact]:
    return [Artifact(kind="torch", model="m", path=str(path), sha256="", files=(), inputs=(), outputs=())]


@pytest.mark.parametrize(
    ("head", "families"),
    [
        (b"layer1.0.bn1.running_mean layer1.0.bn2.running_mean", ["convolutions"]),
        (b"blocks.0.attn.qkv.weight blocks.1.attn.qkv.weight patch_embed.proj", ["transformers"]),
        (b"bn1.running_mean bn2.running_mean rnn.weight_hh_l0", ["convolutions", "recurrent"]),
        (b"0.weight 2.weight", ["transformers"]),
    ],
)
def test_names_of_weights_tell_the_kind_of_model(tmp_path: Path, head: bytes, families: list[str]) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as file:
        file.writestr("m/data.pkl", head)
        file.writestr("m/data/0", b"running_mean" * 9)
    assert find_families(keep(tmp_path / "m.pt")) == families


def test_what_was_fixed_stays_and_an_engine_without_combinations_has_none() -> None:
    assert list_known(make_arms(engines=(("pytorch-compile", {"cuda_graph": "0"}),)), ["convolutions"], "cuda") == []
    assert list_known(make_arms(engines=(("pytorch", {}),)), ["convolutions"], "cuda") == []
    arms = make_arms("cpu", engines=(("ort", {}),))
    assert next(s.options for s in list_known(arms, ["convolutions"], "cpu")) == {"arena": "none", "spinning": "always"}
    assert order_first(arms, [])[0] == arms[0].default


@pytest.mark.parametrize("flags", [("avx512_vnni", "avx512_bf16"), ("avx512_vnni",)])
def test_a_cpu_begins_with_the_configurations_that_were_fastest_if_it_has_their_instructions(
    flags: tuple[str, ...],
) -> None:
    run = RunRequest(model="m", engines=(("ort", {}), ("openvino", {})), precisions=(("fp32", None), ("int8", None)))
    machine = replace(make_machine(), cpu_flags=flags, cpus_allowed=(0, 1))
    arms, _ = find_arms_here(SearchRequest(run=run, threads=2), machine, [])
    mixed = ["openvino:floats=bf16 int8+bf16@cpu 2 threads"] * ("avx512_bf16" in flags)
    assert [one.name for one in list_known(arms, ["transformers"], "cpu")] == [*mixed, "ort int8@dynamic 2 threads"]
    assert [one.name for one in list_known(arms, ["recurrent"], "cpu")] == mixed
