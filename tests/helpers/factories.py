"""PyTorch models that nobody here wrote, small and with random weights, as factories for MODEL; and a few odd ones."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

Made = tuple[nn.Module, Any]


def _draw_ids(length: int = 12, rows: int = 60) -> torch.Tensor:
    return torch.randint(0, rows, (1, length), generator=torch.Generator().manual_seed(0))


def _make_tokens(length: int = 12) -> dict[str, torch.Tensor]:
    ids = _draw_ids(length)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def make_bert() -> Made:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    return BertForSequenceClassification(config), _make_tokens()


def make_t5_encoder() -> Made:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(vocab_size=60, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2)
    return T5EncoderModel(config), _make_tokens()


def make_whisper_encoder() -> Made:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    sizes = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64}
    config = WhisperConfig(num_mel_bins=16, max_source_positions=20, **sizes)
    return WhisperEncoder(config), {"input_features": torch.rand(1, 16, 40)}


def make_ssdlite() -> Made:
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    module = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)
    return module, ([torch.rand(3, 96, 96), torch.rand(3, 80, 112)],)


def make_gru() -> Made:
    """With its state as a second input: its first axis is the layers'."""
    return nn.GRU(8, 16, num_layers=2, batch_first=True), (torch.randn(1, 10, 8), torch.zeros(2, 1, 16))


@dataclass
class Found:
    """An answer that is a dataclass, with what is no tensor."""

    scores: torch.Tensor
    parts: list[torch.Tensor]
    note: str = "text"
    nothing: torch.Tensor | None = None


class Nested(nn.Module):
    """Takes a dictionary and an option, answers with a dataclass and one of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 8)
        self.scale = nn.Parameter(torch.ones(1, 1))

    def forward(self, batch: dict[str, Any], scale: torch.Tensor | None = None) -> Found:
        hidden = self.table(batch["ids"]) * batch["mask"].unsqueeze(-1)
        scores = hidden.sum(-1) if scale is None else hidden.sum(-1) * scale
        return Found(scores, [hidden, hidden.mean(1), self.scale])


def make_nested() -> Made:
    return Nested(), ({"ids": _draw_ids(6, 30), "mask": torch.ones(1, 6)},)


def make_nested_with_option() -> tuple[nn.Module, Any, dict[str, Any]]:
    module, given = make_nested()
    return module, given, {"scale": torch.tensor([2.0])}


class Points(nn.Module):
    """How many rows it answers with depends on the values."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.nonzero(x > 1.0), x * 2


def make_likeness() -> Made:
    return nn.CosineSimilarity(), (torch.rand(1, 3, 4, 4), torch.rand(1, 3, 4, 4))


class Counter(nn.Module):
    """Counts its calls in a buffer that the answer depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        answer: torch.Tensor = self.inner(x) + self.calls
        return answer


class Untranslated(nn.Module):
    """Calls what no ONNX operator does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inverse, _ = torch.linalg.inv_ex(x @ x.transpose(1, 2) + torch.eye(4))
        values: torch.Tensor = torch.linalg.eigvalsh(inverse)
        return values


class Wrapped(nn.Module):
    """A module made of one function, or of another module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def make_exiting() -> Made:
    sys.exit(2)


def _pair(kind: type[nn.Module], *shape: int) -> Made:
    return kind(), torch.randn(*shape)


make_points, make_counter = partial(_pair, Points, 1, 6, 6), partial(_pair, Counter, 1, 4)
make_untranslated = partial(_pair, Untranslated, 1, 4, 4)
