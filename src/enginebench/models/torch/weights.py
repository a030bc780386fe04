"""Weights of a module: pretrained ones, downloaded, or seeded random ones that give outputs worth comparing.

torchvision's and timm's own code downloads into their own caches.

A freshly made network keeps BatchNorm statistics of mean 0 and variance 1, which its activations do not have. Deep
networks then shrink their signal layer by layer (standard deviation 1e-14 at the output of efficientnet_b0), and a
comparison of precisions compares rounding noise.
"""

import random
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from enginebench.models.downloads import DownloadFailed, ask_server, explain_failure
from enginebench.models.torch.architectures import import_timm, set_batch
from enginebench.models.torch.torchvision_import import import_torchvision
from enginebench.models.zoo import ModelRef

# No byte for this long ends a download that has begun.
STALL_TIMEOUT_S = 30.0
# Four batches of eight bring the outputs of resnet18, mobilenet_v3_small and efficientnet_b0 to a standard deviation of
# 0.04 to 0.47. Twice as many change that by less than 3 %, and cost twice the time, which is most of loading a model.
CALIBRATION_BATCHES = 4
CALIBRATION_BATCH_SIZE = 8
# Of weights that begin as zeros; the usual one of transformers' other weights.
# Source: torchvision, models/vision_transformer.py (pos_embedding, after BERT).
ZERO_STD = 0.02
# What a constructor fills a parameter with: PyTorch's own functions, and the parts of which other packages make theirs.
PARTS = {"uniform_", "normal_", "erfinv_", "mul_", "add_", "clamp_"}
FILLING = frozenset({name for name in dir(nn.init) if name.endswith("_")} | PARTS)

State = dict[str, torch.Tensor]


def fetch_pretrained(ref: ModelRef) -> State:
    """The pretrained state dict of a torchvision or timm model.

    Raises:
        DownloadFailed: offline, refused, damaged on the way, or there are none for this model.
    """
    if ref.kind != "timm":
        return fetch_url(torchvision_url(ref.name))
    timm = import_timm()
    config = timm.get_pretrained_cfg(ref.name)
    if config is None or not config.has_weights:
        raise DownloadFailed("timm has no pretrained weights of this model")
    if url := _uncached_timm_url(config):
        ask_server(url)
    with download_errors(), stall_limit():
        state: State = timm.create_model(ref.name, pretrained=True).state_dict()
    return state


def torchvision_url(name: str) -> str:
    import_torchvision()
    from torchvision.models import get_model_weights

    return str(get_model_weights(name).DEFAULT.url)


def fetch_url(url: str) -> State:
    """The state dict at `url`, through PyTorch's hub cache, its name checked against its hash; or DownloadFailed."""
    cached = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlparse(url).path).name
    if not cached.is_file():
        ask_server(url)
    with download_errors(), stall_limit():
        state: State = torch.hub.load_state_dict_from_url(
            url, progress=False, check_hash=True, weights_only=True, map_location="cpu"
        )
    return state


def _uncached_timm_url(config: Any) -> str | None:
    """The address that timm is about to read, or None where the file is in its cache or the address is not plain."""
    if not config.hf_hub_id:
        return str(config.url) if config.url else None
    from huggingface_hub import hf_hub_url, try_to_load_from_cache  # which timm itself needs

    names = ("model.safetensors", "pytorch_model.bin")
    if any(isinstance(try_to_load_from_cache(config.hf_hub_id, name), str) for name in names):
        return None
    return str(hf_hub_url(config.hf_hub_id, names[0]))


@contextmanager
def stall_limit() -> Iterator[None]:
    """Downloads in the block give up once no byte has come for a while."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(STALL_TIMEOUT_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


@contextmanager
def download_errors() -> Iterator[None]:
    """Turn every error in the block into a `DownloadFailed`."""
    try:
        yield
    except DownloadFailed:
        raise
    except Exception as error:  # torch, timm and their HTTP libraries share no error of their own
        raise DownloadFailed(explain_failure(error)) from error


@contextmanager
def seed_torch(seed: int) -> Iterator[None]:
    """The generators of PyTorch on the CPU, NumPy and Python set to `seed` inside, and as they were afterwards."""
    shared = np.random.mtrand._rand  # what `np.random.rand` and the like draw from
    numpy, python = shared.get_state(), random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        shared.seed(seed)
        random.seed(seed)
        yield
    shared.set_state(numpy)
    random.setstate(python)


class Undrawn(TorchFunctionMode):  # type: ignore[misc]  # PyTorch does not type it
    """Makes modules without drawing parameters, most of what a large one costs: for those whose weights are loaded."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        filled = args[0] if args else named.get("tensor")
        if isinstance(filled, nn.Parameter) and getattr(func, "__name__", "") in FILLING:
            return filled
        return func(*args, **named)


def reset_parameters(module: nn.Module, seed: int) -> None:
    """Draw the weights of every layer that has `reset_parameters` (PyTorch's convention) anew."""
    with seed_torch(seed):
        for layer in module.modules():
            if callable(reset := getattr(layer, "reset_parameters", None)):
                reset()


def draw_zeros(module: nn.Module, seed: int) -> int:
    """Draw the weights that begin as zeros, such as the heads of vision transformers; return their number.

    Behind a head of zeros every output is zero, and engines agree whatever they computed before it.
    """
    trained = [p for p in module.parameters() if p.requires_grad and p.ndim > 1 and p.numel()]
    zeros = [p for p in trained if not p.any()]
    with seed_torch(seed), torch.no_grad():
        for weight in zeros:
            nn.init.normal_(weight, std=ZERO_STD)
    return len(zeros)


def calibrate_batch_norm(module: nn.Module, examples: Sequence[torch.Tensor], seed: int) -> int:
    """Set the running statistics of every BatchNorm to those of standard normal inputs; return their number.

    Only BatchNorm layers are in train mode meanwhile, so that dropout and stochastic depth add nothing; statistics are
    plain averages over the batches. The module is back in eval mode afterwards. One that takes its examples alone, such
    as a detector, has their batch; where that fails, too, the error is raised, and the statistics are the initial ones.

    Args:
        examples: one tensor an input; floats are drawn anew in their shape, other values (token ids) are repeated.
    """
    layers = [m for m in module.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not layers:
        return 0
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = None  # a plain average since the reset
        layer.train()

    def average(batch: Sequence[torch.Tensor]) -> None:
        for layer in layers:
            layer.reset_running_stats()
        with seed_torch(seed), torch.no_grad():
            for _ in range(CALIBRATION_BATCHES):
                module(*(torch.randn(e.shape, dtype=e.dtype) if e.ndim and e.is_floating_point() else e for e in batch))

    try:
        try:
            average(set_batch(examples, CALIBRATION_BATCH_SIZE))
        except Exception:  # user code: anything can come out of it
            average(examples)
    except Exception:
        for layer in layers:
            layer.reset_running_stats()
        raise
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
            layer.eval()
    return len(layers)
