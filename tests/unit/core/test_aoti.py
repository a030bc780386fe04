"""Packages of AOTInductor, read as data: what is refused before PyTorch's loader, which unpacks anything, sees it."""

import json
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from enginebench.core import aoti
from enginebench.core.errors import ArtifactError

# Not imported, which takes seconds: a package is of one version of PyTorch, and only that is compared.
if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed", allow_module_level=True)

LIBRARY = "m/data/aotinductor/model/c.wrapper.so"


def write(path: Path, *, record: Any = None, names: tuple[str, ...] = (LIBRARY,), packed: bool = False) -> Path:
    how = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", how) as archive:
        for name in names:
            archive.writestr(name, b"\0" * 1000)
        if record is not None:
            archive.writestr(f"m/{aoti.RECORD}", json.dumps(record))
    return path


def make(**here: Any) -> dict[str, Any]:
    return {"schema": aoti.SCHEMA, "here": aoti.describe_here(None) | here}


def test_a_package_is_distinguished_from_other_files_by_its_names_alone(tmp_path: Path) -> None:
    package = write(tmp_path / "ä b.pt2", record=make())
    other = write(tmp_path / "o.pt2", names=("m/models/model.json",))
    (tmp_path / "t.pt2").write_bytes(package.read_bytes()[:-40])
    found = [aoti.is_package(path) for path in (package, other, tmp_path / "t.pt2", tmp_path, tmp_path / "none.pt2")]
    assert found == [True, False, False, False, False]
    assert [*aoti.find_differences(aoti.read_package_record(package), None)] == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "does not say for which machine"),
        ({"record": {"schema": "x"}}, "does not say for which machine"),
        ({"record": {"schema": aoti.SCHEMA, "here": 1}}, "does not say for which machine"),
        ({"record": make(), "packed": True}, "compressed"),
        ({"record": make(), "names": (LIBRARY, "m/../../../etc/x")}, "not a plain path"),
        ({"record": make(), "names": (LIBRARY, "/etc/x")}, "not a plain path"),
        ({"record": make(), "names": (LIBRARY, "m\\..\\x")}, "not a plain path"),
        ({"record": make(), "names": (LIBRARY, "other/x")}, "several folders"),
    ],
)
def test_a_package_that_would_be_unpacked_elsewhere_or_says_nothing_is_refused(tmp_path, changes, why) -> None:
    with pytest.raises(ArtifactError, match=why):
        aoti.read_package_record(write(tmp_path / "m.pt2", **changes))


@pytest.mark.parametrize("cut", [0, 10, 500, 1500])
def test_a_package_that_was_cut_is_damaged(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path / "m.pt2", record=make())
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ArtifactError, match="is damaged"):
        aoti.read_package_record(path)


@pytest.mark.parametrize(
    ("here", "why"),
    [
        ({"torch": "1.0"}, "compiled for torch 1.0; here is"),
        ({"platform": "linux riscv64"}, "compiled for platform linux riscv64"),
        ({"gpu": "NVIDIA H200, 9.0"}, "compiled for gpu NVIDIA H200, 9.0; here is none"),
        ({"instructions": ["avx1024"]}, "the instructions avx1024, which this CPU lacks"),
        ({"instructions": None}, "the instructions all"),
    ],
)
def test_a_package_of_another_machine_or_version_is_another(here: dict[str, Any], why: str) -> None:
    (found,) = aoti.find_differences(make(**here), None)
    assert why in found


def test_sources_of_a_package_are_empty(tmp_path: Path) -> None:
    """They name folders; that they are there is how PyTorch 2.11 finds what goes with the library."""
    source = "m/data/aotinductor/model/c.wrapper.cpp"
    written = write(tmp_path / "w.pt2", names=(source, LIBRARY))
    aoti.write_record(written, tmp_path / "m.pt2", make())
    with zipfile.ZipFile(tmp_path / "m.pt2") as archive:
        empty, found = (name.replace("m/", "model/", 1) for name in (source, LIBRARY))
        assert archive.namelist() == [empty, found, f"model/{aoti.RECORD}"]
        assert (archive.read(empty), archive.read(found)) == (b"", b"\0" * 1000)
