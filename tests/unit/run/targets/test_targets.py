"""What verbs are given: sides, stored rows, scratch folders, engines."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import enginebench
from enginebench.core.errors import ArtifactError, BackendUnavailable, MeasurementError, UsageError
from enginebench.core.records import Artifact, ModelSource
from enginebench.core.store import open_temporary
from enginebench.models.onnx.source import read_packaged_onnx
from enginebench.models.zoo import DATA_DIR
from enginebench.runs.child.jobs import SourceJob
from enginebench.runs.targets import sides
from enginebench.runs.targets.ahead import parse_sides_ahead
from enginebench.runs.targets.bundles import load_engine
from enginebench.runs.targets.scratch import open_scratch
from enginebench.runs.targets.sides import SideRequest
from fakes.tensorrt_modules import forget_modules, use_fakes


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    use_fakes(monkeypatch, "11.4")
    yield
    forget_modules()


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize("name", ["tensorrt", "ort"])
def test_five_lines(name: str) -> None:
    with load_engine(DATA_DIR / "digits-cnn.onnx", name, batch=2) as engine:
        engine.bind({"input": np.zeros((2, 1, 8, 8), np.float32)})
        engine.run()
        assert engine.fetch()["output"].shape == (2, 10)


def test_it_is_open_at_once_and_closed_when_it_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    batch = np.zeros((2, 1, 8, 8), np.float32)
    engine = load_engine(DATA_DIR / "digits-cnn.onnx", "ort", batch=2)
    engine.bind({"input": batch})
    engine.run()
    assert np.array_equal(engine.fetch()["output"], engine({"input": batch})["output"])
    assert engine.threads == 1  # as only some engines say
    assert len(list(tmp_path.iterdir())) == 1
    engine.close()
    engine.close()
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="is closed"):
        engine.bind({"input": batch})
    engine = load_engine(DATA_DIR / "digits-cnn.onnx", "ort")
    del engine
    assert not list(tmp_path.iterdir())


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads that take turns as often as Python lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_threads")
@pytest.mark.parametrize("name", ["ort", "openvino"])
def test_each_thread_gets_the_outputs_of_its_own_inputs(name: str) -> None:
    pytest.importorskip({"ort": "onnxruntime"}.get(name, name))
    feeds = [{"input": np.full((1, 64), value, np.float32)} for value in range(6)]
    with load_engine(DATA_DIR / "digits-mlp.onnx", name) as engine:
        expected = [engine(feed)["output"] for feed in feeds]
        assert not np.array_equal(expected[0], expected[1])

        def count_wrong(place: int) -> int:
            calls = (engine(feeds[place])["output"] for _ in range(200))
            return sum(not np.allclose(output, expected[place], atol=1e-3) for output in calls)

        with ThreadPoolExecutor(len(feeds)) as threads:
            assert list(threads.map(count_wrong, range(len(feeds)))) == [0] * len(feeds)


def test_outputs_of_inputs_that_another_thread_bound_are_refused() -> None:
    ones, twos = ({"input": np.full((1, 64), value, np.float32)} for value in (1, 2))
    with load_engine(DATA_DIR / "digits-mlp.onnx", "ort") as engine, ThreadPoolExecutor(1) as other:
        engine.bind(ones)
        other.submit(engine.run).result()  # it bound nothing of its own: the inputs are those of here
        expected = engine(ones)["output"]
        engine.bind(ones)
        other.submit(engine, twos).result()
        for step in (engine.run, engine.fetch):
            with pytest.raises(UsageError, match="another thread has bound inputs"):
                step()
        assert np.array_equal(engine(ones)["output"], expected)


@pytest.mark.feature("trtexec")
@pytest.mark.parametrize(
    ("path", "engine", "options", "error", "said"),
    [
        (DATA_DIR / "digits-cnn.onnx", "trtexec", {}, UsageError, "times itself"),
        ("no.plan", "ort", {}, ArtifactError, "missing or empty"),
        (DATA_DIR / "digits-cnn.onnx", "orf", {}, UsageError, "unknown engine 'orf'"),
        (DATA_DIR / "digits-cnn.onnx", "ort", {"colour": "red"}, UsageError, "no option 'colour'"),
    ],
)
def test_what_cannot_be_loaded_is_refused_by_the_call(path, engine, options, error, said) -> None:
    with pytest.raises(error, match=said):
        load_engine(path, engine, options=options)


@pytest.mark.parametrize("to", ["fp16", "int8@cpu"])
def test_a_graph_in_another_precision_is_opened_as_it_is(to: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((2, 1, 8, 8), np.float32)
    np.savez(tmp_path / "x.npz", input=x)
    enginebench.quantize(DATA_DIR / "digits-cnn.onnx", to, tmp_path / "q.onnx", calib=tmp_path / "x.npz")
    with load_engine(tmp_path / "q.onnx", "ort", batch=2) as engine:
        engine.bind({"input": x})
        engine.run()
        loaded = engine.fetch()["output"]
    assert np.array_equal(loaded, enginebench.infer(tmp_path / "q.onnx", {"input": x}, engine="ort")["output"])


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[SourceJob]:
    """Every job that would have made sources."""
    asked: list[SourceJob] = []

    def make(job: SourceJob, **_: Any) -> tuple[Artifact, ...]:
        asked.append(job)
        return (read_packaged_onnx("digits-mlp"),)

    monkeypatch.setattr(sides, "make_sources", make)
    return asked


def test_an_engine_of_cpus_is_refused_on_a_gpu_before_anything_is_opened(fakes: None) -> None:
    pytest.importorskip("torch")
    request = SideRequest(device="cuda:0", source=ModelSource(model=""))
    with pytest.raises(BackendUnavailable, match="engine ort runs on cpu, not on cuda:0"):
        parse_sides_ahead(["ort@digits-mlp"], request)
    named = parse_sides_ahead(["pytorch@digits-mlp", "tensorrt@digits-mlp"], request)
    assert [(side.engine[0], side.find_device("cuda:0")) for side in named] == [
        ("pytorch", "cuda:0"),
        ("tensorrt", "cuda:0"),
    ]


def fill(folder: Path) -> Path:
    (folder / "a" / "b").mkdir(parents=True)
    for name in ("net.onnx", "a/outputs.npz", "a/b/build.log"):
        (folder / name).write_text(name)
    return folder / "a" / "b" / "build.log"


@pytest.mark.parametrize("error", [None, MeasurementError("the engine failed"), KeyboardInterrupt()])
def test_nothing_stays_of_what_went_well_or_of_an_error_that_names_no_file(error: BaseException | None) -> None:
    with pytest.raises(type(error)) if error else nullcontext(), open_scratch() as folder:
        fill(folder)
        if error:
            raise error
    assert not folder.exists()


def test_a_log_that_an_error_names_can_be_read() -> None:
    with pytest.raises(MeasurementError), open_scratch() as folder:
        log = fill(folder)
        raise MeasurementError(f"trtexec failed. Its whole log: {log}")
    assert [p for p in folder.rglob("*") if p.is_file()] == [log] and log.read_text() == "a/b/build.log"


@pytest.mark.parametrize("open_folder", [open_scratch, open_temporary])
def test_what_a_killed_process_left_goes_with_the_next_and_logs_that_are_named_stay(
    open_folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = (
        "import os\nfrom enginebench.core.store import open_temporary\n"
        "with open_temporary() as folder:\n    (folder / 'net.onnx').write_text('net')\n    os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    (left,) = tmp_path.iterdir()
    with pytest.raises(MeasurementError), open_scratch() as named:
        log = fill(named)
        raise MeasurementError(f"trtexec failed. Its whole log: {log}")
    assert not left.exists()
    with open_folder() as living, open_folder() as other:
        assert {*tmp_path.iterdir()} == {named, living, other}
    assert log.read_text() == "a/b/build.log" and {*tmp_path.iterdir()} == {named}


def test_nothing_stays_of_an_error_that_names_a_file_but_no_log() -> None:
    with pytest.raises(MeasurementError), open_scratch() as folder:
        fill(folder).unlink()
        raise MeasurementError(f"the engine cannot load {folder / 'net.onnx'}")
    assert not folder.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("onnxruntime@net.onnx", "unknown engine 'onnxruntime'.*Did you mean ort,"),
        ("openvin@net.onnx", "Did you mean openvino"),
        ("a folder/x@y", "neither ENGINE@TARGET"),
    ],
)
def test_a_mistyped_engine_of_a_side_gets_the_nearest_names(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sides.parse_side(text)
