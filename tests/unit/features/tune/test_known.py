"""What is tried first: which kind of model a file holds, and which settings come before all others."""

import zipfile
from pathlib import Path

import pytest

from enginebench.core.records import Artifact
from enginebench.features.tune.proposals import find_families, list_known, order_first
from enginebench.features.tune.space import Arm, list_arms
from enginebench.runs.folder import RunRequest

PRECISIONS = (("fp32", None), ("fp16", None), ("bf16", None))
ENGINES = (("pytorch", {}), ("pytorch-compile", {"cuda_graph": "1"}), ("pytorch-cudagraph", {}))


def make_arms(device: str = "cuda:0", engines: tuple[tuple[str, dict[str, str]], ...] = ENGINES) -> list[Arm]:
    request = RunRequest(model="m", engines=engines, precisions=PRECISIONS, device=device)  # type: ignore[arg-type]
    return list_arms(request, "latency", threads=(4,), streams=(1,))


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


def test_operators_tell_the_kind_of_a_graph(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(5 * b'"\x04Conv' + b'"\x07Softmax')
    assert find_families(keep(tmp_path / "m.onnx")) == ["convolutions"]
    assert find_families(keep(tmp_path / "none.onnx")) == ["transformers"]


def test_a_gpu_begins_with_compiled_code_in_one_graph_in_the_fastest_precision() -> None:
    known = list_known(arms := make_arms(), ["convolutions"], "cuda")
    folded = "pytorch-compile:channels_last=1,cuda_graph=1,fold_bn=1"
    assert known[0].name == f"{folded} fp16 4 threads" and f"{folded} bf16 4 threads" in [s.name for s in known]
    names = [setting.name for setting in order_first(arms, known)]
    assert names[:4] == [
        *("pytorch fp32 4 threads", known[0].name, "pytorch fp16 4 threads", "pytorch-cudagraph fp16 4 threads")
    ]
    assert len(names) == len(set(names)) and {arm.default.name for arm in arms} <= set(names)
    assert names.index(f"{folded} bf16 4 threads") < names.index("pytorch-compile:cuda_graph=1 fp16 4 threads")
    assert list_known(arms, ["transformers"], "cuda")[0].name == "pytorch-compile:cuda_graph=1 bf16 4 threads"


def test_what_was_fixed_stays_and_an_engine_without_combinations_has_none() -> None:
    assert list_known(make_arms(engines=(("pytorch-compile", {"cuda_graph": "0"}),)), ["convolutions"], "cuda") == []
    assert list_known(make_arms(engines=(("pytorch", {}),)), ["convolutions"], "cuda") == []
    arms = make_arms("cpu", engines=(("ort", {}),))
    assert next(s.options for s in list_known(arms, ["convolutions"], "cpu")) == {"arena": "none", "spinning": "always"}
    assert order_first(arms, [])[0] == arms[0].default
