"""The folder of a run is untrusted: nothing that it names leads out of it."""

from pathlib import Path

import pytest

from enginebench.core.errors import ArtifactError
from enginebench.runs.folder import RunFolder, check_inside
from stored_run import make_results, write_run


def test_a_link_inside_a_run_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    root = write_run(tmp_path / "run", make_results())
    (row,) = root.glob("rows/ort-fp32-*.json")
    row.rename(secret)
    row.symlink_to(secret)
    with pytest.raises(ArtifactError, match="is a symbolic link; links inside a run's folder are not followed"):
        RunFolder(root).read_result(row.stem)


@pytest.mark.parametrize("name", ["../secret.json", "rows/../../secret.json"])
def test_a_path_that_leads_out_is_not_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArtifactError, match="leads out of the folder"):
        check_inside(tmp_path / "run", tmp_path / "run" / name)


def test_a_folder_that_is_itself_a_link_is_read(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", make_results())
    (tmp_path / "link").symlink_to(root)
    assert RunFolder(tmp_path / "link").read_record().rows
    check_inside(tmp_path / "link", tmp_path / "link" / "run.json")
