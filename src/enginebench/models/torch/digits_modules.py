"""The two digits networks as PyTorch modules."""

import torch
from torch import nn


class DigitsMlp(nn.Module):  # type: ignore[misc]  # PyTorch is not followed by mypy
    """64-32-10 with one ReLU. Input float32 [batch, 64], grey levels divided by 16; output logits [batch, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.hidden(input)))


class DigitsCnn(nn.Module):  # type: ignore[misc]
    """Three convolutions (BatchNorm), two linear layers. Input float32 [batch, 1, 8, 8]; output logits [batch, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_convolve(1, 16), *_convolve(16, 32), nn.MaxPool2d(2), *_convolve(32, 64), nn.MaxPool2d(2)
        )
        self.hidden = nn.Linear(64 * 2 * 2, 36)
        self.head = nn.Linear(36, 10)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        flat = torch.flatten(self.features(input), 1)
        return self.head(torch.relu(self.hidden(flat)))


def _convolve(channels_in: int, channels_out: int) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
    return convolution, nn.BatchNorm2d(channels_out), nn.ReLU()
