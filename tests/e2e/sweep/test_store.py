"""Stores: a folder, and a real S3 server. What lies in either is a stranger's."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from enginebench.core.errors import ArtifactError, ParseError, UsageError
from enginebench.workflow.fleet import store as stores
from enginebench.workflow.fleet.records import Claim
from enginebench.workflow.fleet.store import (
    Store,
    keep_content,
    name_content,
    open_store,
    read_document,
    take_content,
    write_document,
)


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return open_store(str(tmp_path / "store"))
    return open_store(f"{request.getfixturevalue('s3')}/{os.urandom(4).hex()}")


def test_what_was_written_is_read_by_whoever_opens_it_next(store: Store) -> None:
    assert store.read("groups/a/x.json") is None
    store.write("groups/a/x.json", b"one")
    store.write("groups/a/x.json", b"two")
    store.write("groups/b/y.json", b"three")
    again = open_store(store.url)
    assert again.read("groups/a/x.json") == b"two"
    assert [name for name, _ in again.names("groups")] == ["groups/a/x.json", "groups/b/y.json"]
    assert again.names("nothing") == []


def test_a_changed_file_has_another_state(store: Store) -> None:
    store.write("a.json", b"1")
    store.write("groups/a.json", b"1")
    before = dict(store.names("groups"))
    store.write("groups/a.json", b"22")
    assert dict(store.names("groups")) != before


def test_contents_are_kept_once_and_checked_on_the_way_back(store: Store, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"graph")
    sha256 = keep_content(store, tmp_path / "model.onnx", set())
    assert sha256 == hashlib.sha256(b"graph").hexdigest()
    assert keep_content(store, tmp_path / "model.onnx", set()) == sha256
    assert len(store.names("artifacts")) == 1
    take_content(store, sha256, tmp_path / "back" / "model.onnx")
    assert (tmp_path / "back" / "model.onnx").read_bytes() == b"graph"
    store.write(name_content(sha256), b"other")
    with pytest.raises(ArtifactError, match="is not what its name says"):
        take_content(store, sha256, tmp_path / "again.onnx")
    assert not (tmp_path / "again.onnx").exists()
    with pytest.raises(ArtifactError, match="holds no content"):
        take_content(store, "0" * 64, tmp_path / "gone.onnx")


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "a//b", "", ".hidden", "a\0b", "a/./b", "a\\b"])
def test_no_name_leads_out_of_a_store(store: Store, name: str) -> None:
    with pytest.raises(ArtifactError, match="no name of a file"):
        store.read(name)
    with pytest.raises(ArtifactError, match="no name of a file"):
        store.write(name, b"x")


def test_links_in_a_folder_are_not_followed(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store")
    store.write("groups/a/x.json", b"{}")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "store/groups/a/y.json").symlink_to(tmp_path / "secret")
    (tmp_path / "store/groups/b").symlink_to(tmp_path)
    assert [name for name, _ in store.names("groups")] == ["groups/a/x.json"]
    for name in ("groups/a/y.json", "groups/b/secret"):
        with pytest.raises(ArtifactError, match="symbolic link"):
            store.read(name)


def test_a_document_has_a_limit_and_a_type(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    write_document(store, "claim.json", Claim(attempt="me"))
    assert read_document(store, "claim.json", Claim) == Claim(attempt="me")
    store.write("claim.json", b'{"attempt": 3}')
    with pytest.raises(ParseError, match="attempt"):
        read_document(store, "claim.json", Claim)
    monkeypatch.setattr(stores, "DOCUMENT_LIMIT_BYTES", 5)
    with pytest.raises(ArtifactError, match="larger than"):
        read_document(store, "claim.json", Claim)


def test_what_is_no_store_is_refused(s3: str) -> None:
    with pytest.raises(UsageError, match="ftp://x: a store is a folder"):
        open_store("ftp://x")
    with pytest.raises(ArtifactError, match=r"cannot write the store s3://no-such-bucket"):
        open_store("s3://no-such-bucket/x").write("a", b"x")
