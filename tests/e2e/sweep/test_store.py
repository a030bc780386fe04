"""Stores: a folder, and a real S3 server. What lies in either is a stranger's."""

import os
from pathlib import Path

import pytest

from enginebench.core.errors import ArtifactError, ParseError, UsageError
from enginebench.features.sweep import store as stores
from enginebench.features.sweep.records import Ended
from enginebench.features.sweep.store import Store, fetch_folder, open_store, read_document, send_files, write_document


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


def test_files_go_to_the_store_and_come_back(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "artefacts" / "mein <Netz>=%.onnx"
    path.parent.mkdir()
    path.write_bytes(b"graph")
    send_files(store, "groups/a", tmp_path, [path])
    store.write("groups/a/run.json", b"{}")
    fetch_folder(store, "groups/a", tmp_path / "back", ("artefacts/",))
    assert [p.name for p in (tmp_path / "back").rglob("*") if p.is_file()] == [path.name]
    assert (tmp_path / "back" / "artefacts" / path.name).read_bytes() == b"graph"
    store.write("groups/a/artefacts/=2E=2E/=2E=2E/evil", b"x")
    with pytest.raises(ArtifactError, match="leads out of the folder"):
        fetch_folder(store, "groups/a", tmp_path / "back", ("artefacts/",))


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "a//b", "", ".hidden", "a\0b", "a/./b", "a\\b"])
def test_no_name_leads_out_of_a_store(store: Store, name: str) -> None:
    with pytest.raises(ArtifactError, match="not a file name"):
        store.read(name)
    with pytest.raises(ArtifactError, match="not a file name"):
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
    write_document(store, "x.json", Ended(ok=True))
    assert read_document(store, "x.json", Ended) == Ended(ok=True)
    store.write("x.json", b'{"ok": 3}')
    with pytest.raises(ParseError, match="ok"):
        read_document(store, "x.json", Ended)
    monkeypatch.setattr(stores, "DOCUMENT_LIMIT_BYTES", 5)
    with pytest.raises(ArtifactError, match="larger than"):
        read_document(store, "x.json", Ended)


def test_what_is_no_store_is_refused(s3: str) -> None:
    with pytest.raises(UsageError, match="ftp://x: a store is a folder"):
        open_store("ftp://x")
    with pytest.raises(ArtifactError, match=r"cannot write the store s3://no-such-bucket"):
        open_store("s3://no-such-bucket/x").write("a", b"x")
