"""Pretrained weights, downloaded by torchvision's and timm's own code into their own caches; quick to give up.

Their downloaders have no time limit of their own or retry for minutes, so the server is asked once first, with a limit.
"""

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch

from enginebench.models.torch.architectures import import_timm
from enginebench.models.torch.torchvision_import import import_torchvision
from enginebench.models.zoo import ModelRef

# A server that has not answered a request for headers in 5 s is taken as unreachable: a TLS handshake across the globe
# needs about 1 s, and a user without a network should not wait longer than one import of PyTorch takes.
PROBE_TIMEOUT_S = 5.0
# No byte for this long ends a download that has begun.
STALL_TIMEOUT_S = 30.0

State = dict[str, torch.Tensor]


class DownloadFailed(Exception):
    """Why the weights could not be had. Always caught: random weights take their place, with a caveat."""


def fetch_pretrained(ref: ModelRef) -> State:
    """The pretrained state dict of a torchvision or timm model.

    Raises:
        DownloadFailed: offline, refused, damaged on the way, or there are none for this model.
    """
    return _fetch_timm(ref) if ref.kind == "timm" else fetch_url(torchvision_url(ref.name))


def torchvision_url(name: str) -> str:
    """Where torchvision's default weights of a model lie."""
    import_torchvision()
    from torchvision.models import get_model_weights

    return str(get_model_weights(name).DEFAULT.url)


def fetch_url(url: str) -> State:
    """The state dict at `url`, through PyTorch's hub cache, its name checked against its hash.

    Raises:
        DownloadFailed: the download fails.
    """
    cached = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlparse(url).path).name
    if not cached.is_file():
        ask_server(url)
    with download_errors(), stall_limit():
        state: State = torch.hub.load_state_dict_from_url(
            url, progress=False, check_hash=True, weights_only=True, map_location="cpu"
        )
    return state


def _fetch_timm(ref: ModelRef) -> State:
    timm = import_timm()
    config = timm.get_pretrained_cfg(ref.name)
    if config is None or not config.has_weights:
        raise DownloadFailed("timm has no pretrained weights of this model")
    if url := _uncached_timm_url(config):
        ask_server(url)
    with download_errors(), stall_limit():
        state: State = timm.create_model(ref.name, pretrained=True).state_dict()
    return state


def _uncached_timm_url(config: Any) -> str | None:
    """The address that timm is about to read, or None where the file is in its cache or the address is not plain."""
    if not config.hf_hub_id:
        return str(config.url) if config.url else None
    try:
        from huggingface_hub import hf_hub_url, try_to_load_from_cache
    except ImportError:
        return str(config.url) if config.url else None
    names = ("model.safetensors", "pytorch_model.bin")
    if any(isinstance(try_to_load_from_cache(config.hf_hub_id, name), str) for name in names):
        return None
    return str(hf_hub_url(config.hf_hub_id, names[0]))


def ask_server(
    url: str, opener: Callable[..., Any] = urllib.request.urlopen, timeout_s: float = PROBE_TIMEOUT_S
) -> None:
    """Checks that the server of `url` answers within `timeout_s`, name lookup included.

    A status such as 404 counts as an answer: what it means is for the downloader to say.

    Raises:
        DownloadFailed: no answer.
    """
    failures: list[str] = []

    def ask() -> None:
        try:
            with opener(urllib.request.Request(url, method="HEAD"), timeout=timeout_s):
                pass
        except urllib.error.HTTPError:
            pass
        except (OSError, ValueError) as error:
            failures.append(_explain(error))

    # A name lookup obeys no socket timeout; a daemon thread can be left behind.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise DownloadFailed(f"the server did not respond within {timeout_s:g} s")
    if failures:
        raise DownloadFailed(failures[0])


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
    """What goes wrong in the block is a `DownloadFailed`."""
    try:
        yield
    except DownloadFailed:
        raise
    except Exception as error:  # torch, timm and their HTTP libraries share no error of their own
        raise DownloadFailed(_explain(error)) from error


def _explain(error: Exception) -> str:
    """One line, without the addresses and paths that a longer text may hold."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, OSError) and cause.strerror:
        return f"download failed: {cause.strerror}"
    return f"download failed: {type(cause).__name__}"
