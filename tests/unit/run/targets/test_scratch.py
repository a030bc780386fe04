"""What stays of a folder that is needed only meanwhile."""

from pathlib import Path

import pytest

from enginebench.core.errors import MeasurementError
from enginebench.runs.targets.scratch import open_scratch


def fill(folder: Path) -> Path:
    (folder / "a" / "b").mkdir(parents=True)
    for name in ("net.onnx", "a/outputs.npz", "a/b/build.log"):
        (folder / name).write_text(name)
    return folder / "a" / "b" / "build.log"


def test_nothing_stays_of_what_went_well() -> None:
    with open_scratch() as folder:
        fill(folder)
    assert not folder.exists()


@pytest.mark.parametrize("error", [MeasurementError("the engine failed"), KeyboardInterrupt()])
def test_nothing_stays_of_an_error_that_names_no_file(error: BaseException) -> None:
    with pytest.raises(type(error)), open_scratch() as folder:
        fill(folder)
        raise error
    assert not folder.exists()


def test_a_log_that_an_error_names_can_be_read() -> None:
    with pytest.raises(MeasurementError), open_scratch() as folder:
        log = fill(folder)
        raise MeasurementError(f"trtexec failed. Its whole log: {log}")
    assert [p for p in folder.rglob("*") if p.is_file()] == [log] and log.read_text() == "a/b/build.log"


def test_nothing_stays_of_an_error_that_names_a_file_but_no_log() -> None:
    with pytest.raises(MeasurementError), open_scratch() as folder:
        fill(folder).unlink()
        raise MeasurementError(f"the engine cannot load {folder / 'net.onnx'}")
    assert not folder.exists()
