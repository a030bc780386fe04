"""What every engine promises, whatever runs underneath; each test runs once for each engine that this version ships."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from enginebench.backends.fake import project_feeds
from enginebench.backends.registry import ENTRIES, open_backend, probe
from enginebench.core.errors import ArtifactError, BackendUnavailable, FeedError, UsageError
from enginebench.core.feeds import random_feeds
from enginebench.core.protocols import Backend, Loadable
from enginebench.core.records import Artifact, EngineSpec, TensorSpec

# Engines for GPUs keep the same promises in tests of their own, over stand-ins; `fpga-sim`, for INT8 chains alone, too.
SHIPPED = [name for name, entry in ENTRIES.items() if not entry.device and not entry.boards]

# FP32 engines against a double-precision truth: sums of 256 products of values near 1, each rounded at 6e-8.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}

IMAGE = TensorSpec(name="image", dtype="float32", shape=("batch", 3, 8, 8))

# PyTorch's compiler imports a module of PyTorch's own that still uses what PyTorch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")

Load = Callable[..., Any]
Expect = Callable[[np.ndarray], np.ndarray]


@pytest.fixture(scope="module", params=SHIPPED)
def name(request: pytest.FixtureRequest) -> str:
    assert probe(request.param).available, probe(request.param).reason
    return str(request.param)


@pytest.fixture(scope="module")
def shared_engine(name: str, load_engine: Load) -> Iterator[Any]:
    """One engine for the tests that leave it as it was: compiling takes seconds."""
    with load_engine(name) as engine:
        yield engine


@pytest.fixture
def truth(name: str, expect: Expect) -> Callable[[Any, dict[str, np.ndarray]], np.ndarray]:
    """The right answer: the network's, and for `fake` its own rule's."""

    def answer(engine: Any, feeds: dict[str, np.ndarray]) -> np.ndarray:
        if name == "fake":
            return project_feeds(engine.inputs, engine.outputs, feeds)["scores"]
        return expect(feeds["image"])

    return answer


def make_feeds(batch: int = 1, seed: int = 0) -> dict[str, np.ndarray]:
    return random_feeds([IMAGE], batch, seed)


def infer(engine: Any, feeds: dict[str, np.ndarray]) -> np.ndarray:
    engine.bind(feeds)
    engine.run()
    return engine.fetch()["scores"]


def test_backend_follows_the_seam(name: str) -> None:
    backend = open_backend(name)
    assert isinstance(backend, Backend)
    assert isinstance(backend, Loadable)
    assert backend.name == name


def test_outputs_are_complete_when_run_returns(shared_engine: Any, truth: Any) -> None:
    run = None
    for seed in range(5):
        feeds = make_feeds(seed=seed)
        shared_engine.bind(feeds)
        run = run or shared_engine.run  # fetched once, as the loop does
        run()
        np.testing.assert_allclose(shared_engine.fetch()["scores"], truth(shared_engine, feeds), **TOLERANCE)


def test_outputs_belong_to_the_caller(shared_engine: Any, truth: Any) -> None:
    first, second = make_feeds(seed=1), make_feeds(seed=2)
    answer = infer(shared_engine, first)
    kept = answer.copy()
    infer(shared_engine, second)
    np.testing.assert_array_equal(answer, kept)
    answer[...] = 0
    np.testing.assert_allclose(shared_engine.fetch()["scores"], truth(shared_engine, second), **TOLERANCE)


def test_inputs_are_copied_by_bind(shared_engine: Any, truth: Any) -> None:
    feeds = make_feeds(seed=3)
    expected = truth(shared_engine, feeds)
    shared_engine.bind(feeds)
    feeds["image"][...] = 1e6
    shared_engine.run()
    np.testing.assert_allclose(shared_engine.fetch()["scores"], expected, **TOLERANCE)


def test_run_leaves_its_inputs_as_they_are(shared_engine: Any) -> None:
    feeds = make_feeds(seed=4)
    first = infer(shared_engine, feeds)
    shared_engine.run()
    np.testing.assert_array_equal(shared_engine.fetch()["scores"], first)


def test_odd_arrays_are_taken(shared_engine: Any, truth: Any) -> None:
    """Read-only, strided and Fortran-ordered arrays are arrays, too."""
    feeds = make_feeds(seed=5)
    expected = truth(shared_engine, feeds)
    fortran = np.asfortranarray(feeds["image"])
    strided = np.repeat(feeds["image"], 2, axis=3)[..., ::2]
    fortran.flags.writeable = False
    for image in (fortran, strided):
        np.testing.assert_allclose(infer(shared_engine, {"image": image}), expected, **TOLERANCE)


def test_outputs_are_as_the_artifact_says(shared_engine: Any) -> None:
    answer = infer(shared_engine, make_feeds())
    assert [s.name for s in shared_engine.inputs] == ["image"]
    assert [s.name for s in shared_engine.outputs] == ["scores"]
    assert answer.dtype == np.dtype(shared_engine.outputs[0].dtype)
    assert answer.shape == (1, 5)
    assert answer.flags.c_contiguous
    assert answer.flags.writeable


def test_batch_may_change(name: str, load_engine: Load, truth: Any) -> None:
    with load_engine(name, batch=2) as engine:
        run = None
        for batch in (2, 3, 2):
            feeds = make_feeds(batch, seed=batch)
            engine.bind(feeds)
            run = run or engine.run
            run()
            np.testing.assert_allclose(engine.fetch()["scores"], truth(engine, feeds), **TOLERANCE)


def test_two_engines_do_not_meet(name: str, shared_engine: Any, load_engine: Load, truth: Any) -> None:
    first, second = make_feeds(seed=1), make_feeds(seed=2)
    with load_engine(name) as other:
        shared_engine.bind(first)
        other.bind(second)
        shared_engine.run()
        other.run()
        np.testing.assert_allclose(shared_engine.fetch()["scores"], truth(other, first), **TOLERANCE)
        np.testing.assert_allclose(other.fetch()["scores"], truth(other, second), **TOLERANCE)
    np.testing.assert_allclose(infer(shared_engine, second), truth(shared_engine, second), **TOLERANCE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda image: {"image": image[:, :2]}, "has shape"),
        (lambda image: {"image": image[0]}, "has shape"),
        (lambda image: {"image": image.astype(np.float64)}, "has dtype float64"),
        (lambda image: {"image": image.tolist()}, "is a list"),
        (lambda image: {}, "missing input 'image'"),
        (lambda image: {"image": image, "mask": image}, "unknown input 'mask'"),
    ],
    ids=["channels", "rank", "dtype", "list", "missing", "unknown"],
)
def test_wrong_feeds_are_refused(shared_engine: Any, change: Any, message: str) -> None:
    before = infer(shared_engine, make_feeds())
    with pytest.raises(FeedError, match=message):
        shared_engine.bind(change(make_feeds(seed=9)["image"]))
    shared_engine.run()
    np.testing.assert_array_equal(shared_engine.fetch()["scores"], before)


def test_run_and_fetch_want_inputs_first(name: str, load_engine: Load) -> None:
    with load_engine(name) as engine:
        with pytest.raises(UsageError, match="call bind first"):
            _ = engine.run
        with pytest.raises(UsageError, match="call bind first"):
            engine.fetch()


def test_close_is_final_and_may_be_repeated(name: str, load_engine: Load) -> None:
    engine = load_engine(name)
    infer(engine, make_feeds())
    engine.close()
    engine.close()
    for use in (lambda: engine.run, engine.fetch, lambda: engine.bind(make_feeds())):
        with pytest.raises(UsageError, match="is closed"):
            use()


def test_context_manager_closes(name: str, load_engine: Load) -> None:
    with load_engine(name) as engine:
        infer(engine, make_feeds())
    with pytest.raises(UsageError, match="is closed"):
        engine.fetch()


def test_threads_are_those_of_the_spec(name: str, load_engine: Load) -> None:
    with load_engine(name, threads=2) as engine:
        infer(engine, make_feeds())
        assert engine.threads == 2
    with load_engine(name, threads=1) as engine:
        infer(engine, make_feeds())
        assert engine.threads == 1


def test_unknown_options_are_refused_with_the_known_ones(name: str, load_engine: Load) -> None:
    with pytest.raises(UsageError, match=f"engine {name} has no option 'colour'; known: .+="):
        load_engine(name, options={"colour": "red"})


def test_other_devices_and_no_threads_are_refused(name: str, load_engine: Load) -> None:
    with pytest.raises(BackendUnavailable, match="not on tpu:0"):
        load_engine(name, device="tpu:0")
    with pytest.raises(UsageError, match="1 or more"):
        load_engine(name, threads=0)


def test_artifact_of_another_kind_is_refused(name: str, onnx_artifact: Artifact) -> None:
    design = msgspec.structs.replace(onnx_artifact, kind="design")
    backend: Any = open_backend(name)
    with pytest.raises(ArtifactError, match="comes as design"):
        backend.load(design, EngineSpec(backend=name))


def test_missing_file_is_refused(name: str, onnx_artifact: Artifact) -> None:
    gone = msgspec.structs.replace(onnx_artifact, path="nowhere/gone.bin", kind=ENTRIES[name].takes)
    backend: Any = open_backend(name)
    with pytest.raises(ArtifactError, match=r"nowhere/gone\.bin"):
        backend.load(gone, EngineSpec(backend=name))


@pytest.mark.parametrize("engine_name", ["ort", "openvino"])
def test_weights_may_lie_beside_the_graph(
    engine_name: str, onnx_artifact: Artifact, tmp_path: Path, expect: Any
) -> None:
    """External data: the graph names a second file, relative to itself."""
    import onnx

    path = tmp_path / "outer.onnx"
    graph = onnx.load(onnx_artifact.path)
    onnx.save(graph, str(path), save_as_external_data=True, location="outer.data", size_threshold=0)
    backend: Any = open_backend(engine_name)
    spec = EngineSpec(backend=engine_name)
    outer = msgspec.structs.replace(onnx_artifact, path=str(path))
    feeds = make_feeds()
    with backend.load(backend.build(outer, spec, tmp_path / "built"), spec) as engine:
        np.testing.assert_allclose(infer(engine, feeds), expect(feeds["image"]), **TOLERANCE)
    (tmp_path / "outer.data").write_bytes(b"")
    with pytest.raises(ArtifactError, match=r"outer\.onnx"):
        backend.load(outer, spec)
