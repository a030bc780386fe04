"""`hf:` models: from folders as the Hub has them, made by transformers itself; and without a network."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from enginebench.core.errors import ModelError, UsageError
from enginebench.models import downloads
from enginebench.models.downloads import DownloadFailed
from enginebench.models.torch import hugging_face
from enginebench.models.torch.hugging_face import make_example_inputs
from enginebench.models.torch.source import load_module, make_torch_artifact
from enginebench.models.torch.torchvision_import import import_torchvision

pytestmark = pytest.mark.filterwarnings("ignore")
SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture(autouse=True)
def usable_torchvision() -> None:
    import_torchvision()  # transformers imports it for some of its classes


def save_bert(folder: Path) -> torch.nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    module = BertForSequenceClassification(BertConfig(vocab_size=50, max_position_embeddings=24, **SMALL)).eval()
    module.save_pretrained(folder)
    return module  # type: ignore[no-any-return]


def test_a_folder_gives_the_checkpoint_with_inputs_by_name(tmp_path: Path) -> None:
    module = save_bert(tmp_path / "bert")
    artifact = make_torch_artifact(f"hf:{tmp_path}/bert", tmp_path / "out")
    assert [(s.name, s.shape) for s in artifact.inputs] == [("input_ids", (1, 24)), ("attention_mask", (1, 24))]
    ids, mask = (spec.values or (-1, -1) for spec in artifact.inputs)
    assert 0 <= ids[0] < ids[1] < 50 and mask == (1, 1)
    assert [(s.name, s.shape) for s in artifact.outputs] == [("outputs.logits", (1, 2))]
    assert artifact.weights == "pretrained"
    (chosen,) = artifact.warnings
    assert chosen.code == "chosen_shapes" and "--input-shape input_ids:1x24,attention_mask:1x24" in chosen.advice
    shutil.rmtree(tmp_path / "bert")  # the artifact has the configuration, too
    tokens = torch.randint(0, 50, (2, 24))
    full = torch.ones_like(tokens)
    with torch.inference_mode():
        assert torch.equal(load_module(artifact)(tokens, full), module(tokens, full).logits)


def test_a_configuration_alone_gives_random_weights_with_a_warning(tmp_path: Path) -> None:
    from transformers import ViTConfig

    config = ViTConfig(image_size=32, **SMALL)
    config.architectures = ["ViTForImageClassification"]
    config.save_pretrained(tmp_path / "vit")
    artifact = make_torch_artifact(f"hf:{tmp_path}/vit", tmp_path / "out", seed=3)
    assert [(s.name, s.shape) for s in artifact.inputs] == [("pixel_values", (1, 3, 32, 32))]
    assert artifact.weights == "random" and [c.code for c in artifact.warnings] == ["random_weights", "chosen_shapes"]
    assert "holds no weights" in artifact.warnings[0].message


def test_encoders_with_decoders_and_sound_get_their_inputs() -> None:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sizes = {f"{part}_{of}": 1 for part in ("encoder", "decoder") for of in ("layers", "attention_heads", "ffn_dim")}
    sizes |= {"vocab_size": 50, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 6}
    config = WhisperConfig(d_model=16, pad_token_id=0, **sizes)
    inputs = make_example_inputs(WhisperForConditionalGeneration(config), "whisper")
    assert {n: tuple(t.shape) for n, t in inputs.items()} == {"input_features": (1, 8, 20), "decoder_input_ids": (1, 6)}
    assert int(inputs["decoder_input_ids"].max()) < 50


def test_without_a_network_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str) -> None:
        assert url == "https://huggingface.co/some/model/resolve/main/config.json"
        raise DownloadFailed("the server did not respond within 5 s")

    monkeypatch.setattr(downloads, "ask_server", refuse)
    with pytest.raises(ModelError, match=r"did not respond within 5 s. Go online, or name a folder .*hf:./FOLDER"):
        make_torch_artifact("hf:some/model", tmp_path)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"its config.json cannot be read"):
        make_torch_artifact(f"hf:{tmp_path}/empty", tmp_path / "out")
    with pytest.raises(UsageError, match=r"is not a folder; expected hf:NAME"):
        make_torch_artifact("hf:./nothing", tmp_path / "out")
    save_bert(tmp_path / "bert")
    text = (tmp_path / "bert/config.json").read_text().replace("BertForSequenceClassification", "BertForNothing")
    (tmp_path / "bert/config.json").write_text(text)
    with pytest.raises(ModelError, match=r"is a BertForNothing, which transformers .* does not have"):
        make_torch_artifact(f"hf:{tmp_path}/bert", tmp_path / "out")


def test_a_stored_configuration_names_no_kernel_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    stored = json.loads(transformers.BertConfig().to_json_string(use_diff=False))
    seen: list[object] = []
    monkeypatch.setattr(hugging_face, "build_from_config", lambda config, text: (seen.append(config), ()))
    for key in ("attn_implementation", "_attn_implementation"):
        hugging_face.restore_hf(json.dumps({**stored, key: "somebody/kernel"}), "hf:x")
    assert [config._attn_implementation for config in seen] == [None, None]  # type: ignore[attr-defined]
