"""`fpga-sim` with a board of numbers: what it asks for, what it tells, what it refuses."""

import sys

import numpy as np
import pytest
from msgspec.structs import replace

from boards import INPUT, OUTPUT, NumberBoard
from enginebench.core.errors import BackendUnavailable, FeedError, UsageError
from enginebench.core.records import Artifact, EngineSpec, MeasureSpec
from enginebench.features.fpga import engine as module
from enginebench.features.fpga import verb
from enginebench.features.fpga.engine import FpgaSimBackend

SPEC = EngineSpec(backend="fpga-sim", precision="int8")


@pytest.fixture
def artifact(tmp_path):
    path = tmp_path / "é model.onnx"
    path.write_bytes(b"graph")
    return Artifact(
        kind="onnx", model="m", path=str(path), sha256="a" * 64, files=(), inputs=(INPUT,), outputs=(OUTPUT,)
    )


@pytest.fixture
def opened(monkeypatch):
    """(boards that were opened, options and caches that were asked for)"""
    boards, asked = [], []

    def make_board(artifact, options, cache_dir):
        asked.append((artifact.path, dict(options), cache_dir))
        boards.append(NumberBoard())
        return boards[-1]

    monkeypatch.setattr(module, "make_board", make_board)
    return boards, asked


def test_measurement_is_modelled_and_says_so(opened, artifact, tmp_path):
    backend = FpgaSimBackend(tmp_path)
    measured = backend.measure(artifact, SPEC, MeasureSpec(iters=7))
    assert (measured.clock, measured.latency_ns) == ("modelled", [1350] * 7)
    assert (measured.h2d_ns, measured.device_ns, measured.d2h_ns) == ([300] * 7, [1000] * 7, [50] * 7)
    assert measured.throughput_pipelined_per_s == 1e6
    assert [c.code for c in measured.caveats] == ["modelled"]
    assert len(backend.measure(artifact, SPEC, MeasureSpec()).latency_ns) >= 368
    assert all(board.closed for board in opened[0])


def test_design_keeps_its_chain(opened, artifact, tmp_path):
    assert FpgaSimBackend(None).probe().available
    built = FpgaSimBackend(None).build(artifact, SPEC, tmp_path)
    assert (built.kind, built.precision, built.parent_sha256, built.sha256) == ("design", "int8", "a" * 64, "d" * 64)
    assert opened[1][0][2] == tmp_path / "cache"
    assert [c.code for c in built.caveats] == ["modelled"]
    FpgaSimBackend(None).measure(built, SPEC, MeasureSpec(iters=1))


def test_engine_answers_what_the_board_answers(opened, artifact, tmp_path):
    with FpgaSimBackend(tmp_path).load(artifact, SPEC) as engine:
        for use in (lambda: engine.run, engine.fetch):
            with pytest.raises(UsageError, match="bind"):
                use()
        given = np.array([[1, 2], [3, 4]], np.float32)
        engine.bind({"x": given})
        given[:] = 0
        engine.run()
        assert engine.fetch()["y"].tolist() == [[3], [7]]
        assert engine.effective_precision() == {"int8": 1.0}
        with pytest.raises(FeedError, match="'x'"):
            engine.bind({"x": np.zeros((1, 3), np.float32)})
    engine.close()
    with pytest.raises(UsageError, match="closed"):
        engine.fetch()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"precision": "fp32"}, BackendUnavailable),
        ({"batch": 8}, BackendUnavailable),
        ({"device": "cuda:0"}, BackendUnavailable),
        ({"options": {"speed": "11"}}, UsageError),
        ({"options": {"part": "xc7"}}, UsageError),
    ],
)
def test_what_it_cannot_do_is_refused(change, error, opened, artifact, tmp_path):
    with pytest.raises(error):
        FpgaSimBackend(tmp_path).build(artifact, replace(SPEC, **change), tmp_path)
    assert not opened[0]


def test_missing_package_is_named(artifact, tmp_path, monkeypatch):
    def make_board(*args):
        raise ModuleNotFoundError("No module named 'amaranth'", name="amaranth")

    monkeypatch.setattr(module, "make_board", make_board)
    with pytest.raises(BackendUnavailable, match=r"enginebench\[fpga\]"):
        FpgaSimBackend(tmp_path).load(artifact, SPEC)


def test_without_onnx_runtime_a_simulation_is_compared_with_nothing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "enginebench.models.precision.graph", raising=False)
    assert verb._run_onnxruntime(tmp_path / "m.onnx", None, np.zeros((1, 64), np.float32)) is None
