"""Transformers with seeded random weights, for `tune` and `run`: MODEL is `benchmarks.attention:bert`, `:minilm` or
`:vit`.

docs/gpu.md, docs/results.md, docs/tune.md and docs/which-precision.md hold figures of these models.
"""

from __future__ import annotations

from typing import Any

TOKENS = 128


def bert() -> tuple[Any, tuple[Any, ...]]:
    """The hidden states of `BertModel(BertConfig())`, and token numbers."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    module = BertModel(BertConfig(return_dict=False)).eval()
    return module, (torch.randint(0, 30522, (1, TOKENS)),)


def minilm() -> tuple[Any, tuple[Any, ...]]:
    """The hidden states of a network of MiniLM-L6's size, and as many token numbers as a sentence has."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    module = BertModel(BertConfig(return_dict=False, **sizes)).eval()
    return module, (torch.randint(0, 30522, (1, TOKENS // 2)),)


def vit() -> tuple[Any, tuple[Any, ...]]:
    """ViT-B/16 of timm, or of torchvision where there is no timm."""
    import torch

    torch.manual_seed(0)
    try:
        import timm
    except ImportError:
        from torchvision.models import vit_b_16

        return vit_b_16(weights=None).eval(), (torch.randn(1, 3, 224, 224),)
    return timm.create_model("vit_base_patch16_224").eval(), (torch.randn(1, 3, 224, 224),)
