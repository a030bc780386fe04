"""Models by transformers: `hf:NAME` from the Hugging Face Hub, `hf:./folder` from a folder in the Hub's form.

The class is the one that the model's `config.json` names; code of the model's own is never run. What the module is
called with is made from the configuration, since a checkpoint brings no inputs.
"""

import inspect
import json
from pathlib import Path
from typing import Any

from enginebench.core.errors import ModelError, explaining, importing
from enginebench.core.text import first_line

with importing("PyTorch", 'pip install "enginebench[torch]"'):
    import torch
from torch import nn

from enginebench.models.downloads import DownloadFailed, check_hub_name
from enginebench.models.torch.flat import Flat, flatten
from enginebench.models.torch.torchvision_import import with_torchvision
from enginebench.models.torch.weights import State, download_errors, stall_limit
from enginebench.models.zoo import HF_EXTRA, ModelRef

# Default number of tokens in a sequence: enough for attention to be work, within every model's positions.
SEQUENCE = 128
# A second of sound, for models that take samples.
SOUND_SAMPLES = 16_000
# Names of files with weights. Source: transformers.utils, SAFE_WEIGHTS_NAME and WEIGHTS_NAME, and their shards.
WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")


def import_transformers() -> Any:
    with importing("{}, which hf: models need,", HF_EXTRA):
        import transformers
    transformers.utils.logging.disable_progress_bar()
    return transformers


def build_hf(ref: ModelRef) -> tuple[Flat, tuple[torch.Tensor, ...]]:
    """Build the model of a configuration on the Hub or in the folder, by `build_from_config`."""
    return build_from_config(_read_config(ref), ref.text)


def check_configuration(ref: ModelRef) -> None:
    """Check that the configuration can be had, and that transformers has its class."""
    _find_class(_read_config(ref), ref.text)


def build_from_config(config: Any, text: str) -> tuple[Flat, tuple[torch.Tensor, ...]]:
    """Return (the module of a configuration with fresh weights, flat and in eval mode; example inputs)."""
    config.use_cache = False  # keys and values of a first pass would be outputs of no interest
    # Made in train mode, which is no choice of the user's that a warning should tell him of.
    module = with_torchvision(lambda: _find_class(config, text)(config)).eval()
    flat, examples = flatten(module, {}, make_example_inputs(module, text))
    return flat.eval(), examples


def restore_hf(stored: str, text: str) -> Flat:
    """The module of a configuration that stands beside its weights."""
    transformers = import_transformers()
    # An implementation may be a kernel on the Hub, which would be fetched and run; ours are never stored.
    fields = {key: value for key, value in json.loads(stored).items() if not key.endswith("_implementation")}
    return build_from_config(transformers.AutoConfig.for_model(**fields), text)[0]


def fetch_hf(ref: ModelRef) -> State:
    """The state dict of the checkpoint, in FP32.

    Raises:
        DownloadFailed: there is none: in the folder, or because the Hub cannot be reached.
    """
    folder = Path(ref.name)
    if folder.is_dir() and not any(file for pattern in WEIGHT_FILES for file in folder.glob(pattern)):
        raise DownloadFailed(f"{folder} holds no weights")
    config = _read_config(ref)
    with download_errors(), stall_limit():
        made = with_torchvision(
            lambda: _find_class(config, ref.text).from_pretrained(ref.name, config=config, dtype=torch.float32)
        )
    state: State = made.state_dict()
    return state


def _read_config(ref: ModelRef) -> Any:
    transformers = import_transformers()
    check_hub_name(ref)
    cure = "Expected a name on the Hugging Face Hub, or a folder that holds config.json"
    failing = explaining(ModelError, f"{ref.text}: its config.json cannot be read", describe=first_line, cure=cure)
    with failing, stall_limit():
        return transformers.AutoConfig.from_pretrained(ref.name, trust_remote_code=False)


def _find_class(config: Any, text: str) -> Any:
    """The class that the configuration names; of a bare one, the backbone of its kind."""
    transformers = import_transformers()
    name, *_ = getattr(config, "architectures", None) or [""]
    architecture = getattr(transformers, name, None) if name else transformers.AutoModel.from_config
    if architecture is None:
        raise ModelError(
            f"{text} is a {name}, which transformers {transformers.__version__} does not have: it needs newer "
            "transformers, or code of its own, which is not run. Give MODEL as package.module:factory"
        )
    return architecture


def make_example_inputs(module: nn.Module, text: str) -> dict[str, torch.Tensor]:
    """Example inputs by name: token ids within the vocabulary with a full mask, pixels, or sound."""
    config, main = module.config, str(module.main_input_name)
    generator = torch.Generator().manual_seed(0)
    taken = inspect.signature(module.forward).parameters
    match main:
        case "input_ids":
            ids = _draw_tokens(config, generator)
            inputs = {main: ids, "attention_mask": torch.ones_like(ids)}
            if "pixel_values" in taken and hasattr(config, "vision_config"):
                inputs["pixel_values"] = _draw_pixels(config.vision_config, generator)
        case "pixel_values":
            inputs = {main: _draw_pixels(config, generator)}
        case "input_features":  # the two convolutions at the front of Whisper halve the frames
            shape = (1, config.num_mel_bins, 2 * config.max_source_positions)
            inputs = {main: torch.randn(shape, generator=generator)}
        case "input_values":
            inputs = {main: torch.randn((1, SOUND_SAMPLES), generator=generator)}
        case _:
            raise ModelError(
                f"{text} takes {main}, which cannot be made up from its configuration. Give MODEL as "
                "package.module:factory, which returns (module, {name: tensor})"
            )
    if "decoder_input_ids" in taken and config.is_encoder_decoder:
        inputs["decoder_input_ids"] = _draw_tokens(config, generator)
    return inputs


def _draw_tokens(config: Any, generator: torch.Generator) -> torch.Tensor:
    text = config.get_text_config()
    longest = getattr(text, "max_position_embeddings", None) or getattr(text, "max_target_positions", None) or SEQUENCE
    return torch.randint(0, text.vocab_size, (1, min(SEQUENCE, longest)), generator=generator)


def _draw_pixels(config: Any, generator: torch.Generator) -> torch.Tensor:
    size = getattr(config, "image_size", None) or 224
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return torch.randn((1, getattr(config, "num_channels", None) or 3, height, width), generator=generator)
