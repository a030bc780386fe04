"""BERT-base with seeded random weights, for `tune` and `run`: MODEL is `benchmarks.bert:base`."""

from __future__ import annotations

from typing import Any

TOKENS = 128


def base() -> tuple[Any, tuple[Any, ...]]:
    """The hidden states of `BertModel(BertConfig())`, and token numbers."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    module = BertModel(BertConfig(return_dict=False)).eval()
    return module, (torch.randint(0, 30522, (1, TOKENS)),)
