"""Stores: a folder, and a real S3 server. What lies in either is a stranger's."""

import os
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enginebench.core.errors import ArtifactError, ParseError, UsageError
from enginebench.features.sweep import store as stores
from enginebench.features.sweep.reading import fetch_results_folder
from enginebench.features.sweep.records import JobEnd
from enginebench.features.sweep.reporting import report_sweep
from enginebench.features.sweep.spec import read_spec
from enginebench.features.sweep.store import Store, fetch_folder, open_store, read_document, send_files, store_document
from enginebench.features.sweep.verb import run_sweep
from enginebench.models.zoo import DATA_DIR
from enginebench.runs.child.jobs import MeasureJob
from enginebench.runs.history import read_history
from in_process import children
from reporters import Silent


@pytest.fixture(scope="session")  # clients are cached by their process, with the address of the first server
def s3() -> Iterator[str]:
    """The address of an empty bucket on a server of our own."""
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        import s3fs

        bucket = f"sweeps-{os.urandom(4).hex()}"  # servers of one process share their buckets
        s3fs.S3FileSystem(skip_instance_cache=True).mkdir(bucket)
        yield f"s3://{bucket}"
        server.stop()


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return open_store(str(tmp_path / "store"))
    return open_store(f"{request.getfixturevalue('s3')}/{os.urandom(4).hex()}")


def test_what_was_written_is_read_and_a_changed_file_has_another_state(store: Store) -> None:
    assert store.read("groups/a/x.json") is None
    store.write("groups/a/x.json", b"one")
    store.write("groups/a/x.json", b"two")
    store.write("groups/b/y.json", b"three")
    again = open_store(store.url)
    assert again.read("groups/a/x.json") == b"two"
    assert [name for name, _ in again.names("groups")] == ["groups/a/x.json", "groups/b/y.json"]
    assert again.names("nothing") == []
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


def test_a_document_has_a_limit_and_a_type_in_what_is_a_store(store, monkeypatch, s3) -> None:
    store_document(store, "x.json", JobEnd(ok=True))
    assert read_document(store, "x.json", JobEnd) == JobEnd(ok=True)
    store.write("x.json", b'{"ok": 3}')
    with pytest.raises(ParseError, match="ok"):
        read_document(store, "x.json", JobEnd)
    monkeypatch.setattr(stores, "DOCUMENT_LIMIT_BYTES", 5)
    with pytest.raises(ArtifactError, match="larger than"):
        read_document(store, "x.json", JobEnd)
    with pytest.raises(UsageError, match="ftp://x: a store is a folder"):
        open_store("ftp://x")
    with pytest.raises(ArtifactError, match=r"cannot write the store s3://no-such-bucket"):
        open_store("s3://no-such-bucket/x").write("a", b"x")


# A sweep whose store is a bucket, its children in this process: cut off, taken up, reported, followed.

__all__ = ["children"]

SPEC = """
engines = ["fake:latency_us=20", "fake:latency_us=10"]
batches = [1, 2]
processes = 2
iters = 3
warmup = 1
[[model]]
name = "one.onnx"
"""
ROWS, TRIALS = 4, 8


def test_a_sweep_on_s3_goes_on_from_there(children, s3, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "one.onnx").write_bytes((DATA_DIR / "digits-mlp.onnx").read_bytes())
    (tmp_path / "sweep.toml").write_text(SPEC)
    spec, url = read_spec(tmp_path / "sweep.toml"), f"{s3}/whole"

    def stop(job: Any) -> None:
        if isinstance(job, MeasureJob) and len(children.of(MeasureJob)) > 3:
            raise KeyboardInterrupt

    children.before = stop
    with pytest.raises(KeyboardInterrupt):
        run_sweep(spec, url, reporter=Silent())
    (stopped,) = children.of(MeasureJob)[3:]
    children.jobs.remove(stopped)
    children.before = lambda job: None
    document = run_sweep(spec, url, reporter=Silent(), resume=True)
    assert {cell.row.status for cell in document.cells if cell.row} == {"ok"} and len(document.cells) == ROWS
    measured = Counter((str(j.engine.options), j.engine.batch, j.trial) for j in children.of(MeasureJob))
    assert len(measured) == TRIALS and set(measured.values()) == {1}
    again, written = report_sweep(url, ("html", "csv", "json"), tmp_path / "page")
    assert again == document and all(path.is_file() for path in written.paths)
    with pytest.raises(UsageError, match="--out DIR is missing"):
        report_sweep(url, ("html",))
    assert len(read_history(fetch_results_folder(url)).rows) == ROWS
