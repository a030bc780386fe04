"""A name on the Hugging Face Hub is checked without PyTorch, and without the Hub's client, which tries for minutes."""

from collections.abc import Callable

import pytest

from enginebench.core.errors import ModelError
from enginebench.models import downloads
from enginebench.models.downloads import DownloadFailed, check_hub_name
from enginebench.models.zoo import resolve_model

hub = pytest.importorskip("huggingface_hub")
MODEL = resolve_model("hf:somebody/nothing")


def fail(url: str) -> int:
    raise DownloadFailed("the server did not respond within 5 s")


def respond(status: int) -> Callable[[str], int]:
    return lambda url: status


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *args: None)
    monkeypatch.setattr(hub, "get_token", lambda: None)
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)


def test_without_a_network_it_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "ask_server", fail)
    with pytest.raises(
        ModelError, match=r"hf:somebody/nothing cannot be had .* within 5 s. Go online, or name a folder"
    ):
        check_hub_name(MODEL)


def test_offline_by_choice_no_server_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "ask_server", lambda url: pytest.fail("asked"))
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="not in the cache, and HF_HUB_OFFLINE is set"):
        check_hub_name(MODEL)


@pytest.mark.parametrize("status", [401, 404])
def test_a_name_that_the_hub_has_not_for_everyone_is_refused(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "ask_server", respond(status))
    with pytest.raises(ModelError, match=rf"no public model 'somebody/nothing' .*status {status}.*hf auth login"):
        check_hub_name(MODEL)
    monkeypatch.setattr(hub, "get_token", lambda: "hf_secret")
    check_hub_name(MODEL)  # it may be this user's: the client asks with the token


def test_what_is_there_or_kept_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "ask_server", respond(200))
    check_hub_name(MODEL)
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *args: "/cache/config.json")
    monkeypatch.setattr(downloads, "ask_server", fail)
    check_hub_name(MODEL)
