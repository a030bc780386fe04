"""Ask the server of a download first, and the Hugging Face Hub for a model, by name alone. Needs no PyTorch.

The code of the packages that download has no time limit of its own, or retries for minutes.
"""

import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from enginebench.core.errors import ModelError, explaining
from enginebench.core.text import first_line
from enginebench.models.zoo import ModelRef

# A server that has not responded to a request for headers in 5 s counts as unreachable: a TLS handshake across the
# globe needs about 1 s, and a user without a network should not wait longer than one import of PyTorch takes.
PROBE_TIMEOUT_S = 5.0
# Of a response about a file that the Hub does not have, or not for everyone; it says 401 of a name that does not exist.
NOT_FOR_ALL = (401, 403, 404)


class DownloadFailed(Exception):
    """The reason why weights are missing. Always caught: random weights take their place, with a warning."""


def check_hub_name(ref: ModelRef) -> None:
    """Check that the configuration of `hf:NAME` is in the cache of the Hub's client, or can be had from the Hub.

    Raises:
        ModelError: it cannot: offline, or there is no such model for everyone, and no token of the user's.
    """
    if Path(ref.name).is_dir() or find_spec("huggingface_hub") is None:
        return
    from huggingface_hub import constants, get_token, hf_hub_url, try_to_load_from_cache

    refusal = f"{ref.text} cannot be had from the Hugging Face Hub"
    cure = "Go online, or name a folder that holds it: hf:./FOLDER, as `hf download NAME --local-dir FOLDER` makes one"
    with explaining(ModelError, refusal, DownloadFailed, ValueError, describe=first_line, cure=cure):
        if isinstance(try_to_load_from_cache(ref.name, "config.json"), str):
            return
        if constants.HF_HUB_OFFLINE:
            raise DownloadFailed("it is not in the cache, and HF_HUB_OFFLINE is set")
        status = ask_server(str(hf_hub_url(ref.name, "config.json")))
    if status in NOT_FOR_ALL and get_token() is None:
        raise ModelError(
            f"{refusal}: it has no public model {ref.name!r} with a config.json (status {status}). Check the name; "
            "for a private model log in with `hf auth login`"
        )


def ask_server(
    url: str, opener: Callable[..., Any] = urllib.request.urlopen, timeout_s: float = PROBE_TIMEOUT_S
) -> int:
    """Return the status of the response that the server of `url` gives within `timeout_s`, name lookup included.

    Raises:
        DownloadFailed: it gives none. A status such as 404 is a response.
    """
    failures: list[str] = []
    statuses: list[int] = []

    def ask() -> None:
        try:
            with opener(urllib.request.Request(url, method="HEAD"), timeout=timeout_s):
                statuses.append(200)
        except urllib.error.HTTPError as response:
            statuses.append(response.code)
        except (OSError, ValueError) as error:
            failures.append(explain_failure(error))

    # A name lookup obeys no socket timeout; a daemon thread can be left behind.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise DownloadFailed(f"the server did not respond within {timeout_s:g} s")
    if failures:
        raise DownloadFailed(failures[0])
    return statuses[0]


def explain_failure(error: Exception) -> str:
    """Explain an error in one line, without the addresses and paths that a longer text may hold."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, OSError) and cause.strerror:
        return f"download failed: {cause.strerror}"
    return f"download failed: {type(cause).__name__}"
