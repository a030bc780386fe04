"""The promises of every engine (`enginebench.testing`), each held for each engine that this version ships."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from enginebench.core.errors import ArtifactError
from enginebench.core.records import EngineSpec
from enginebench.engines.abilities import CountsWork
from enginebench.engines.fake import project_feeds
from enginebench.engines.registry import ENTRIES, open_backend, probe
from enginebench.testing import CHECKS, INPUT, OUTPUT, Case, Inconclusive, check_batch_may_change, open_case
from intel import skip_without_provider

# Engines for GPUs keep the same promises in tests of their own, over stand-ins; `fpga-sim`, for INT8 chains alone, too.
SHIPPED = [name for name, entry in ENTRIES.items() if not entry.device and name != "fpga-sim"]

# PyTorch's compiler imports a module of PyTorch's own that still uses what PyTorch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")


def project(feeds: Any) -> dict[str, np.ndarray]:
    """What `fake` answers: its own rule in place of the network."""
    return project_feeds((INPUT,), (OUTPUT,), feeds)


@pytest.fixture(scope="module", params=SHIPPED)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    name = request.param
    skip_without_provider(name)
    assert probe(name).available, probe(name).reason
    folder = tmp_path_factory.mktemp("cache")
    with open_case(name, expect=project if name == "fake" else None, cache_dir=folder) as case:
        yield case


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_every_engine_keeps_its_promises(case: Case, check: Callable[[Case], None]) -> None:
    if case.entry.name == "pytorch-aoti" and check is check_batch_may_change:
        pytest.skip("a package is of one batch; that others are refused is in torch/test_aoti.py")
    try:
        check(case)
    except Inconclusive as error:
        pytest.skip(f"inconclusive: {error}")


def test_our_own_engines_count_their_threads_and_list_options(case: Case) -> None:
    """Both are left to the author of a plug-in; the checks above pass over what is not there."""
    assert case.shared.threads >= 1  # type: ignore[attr-defined]
    assert case.entry.options


def test_the_least_time_of_a_call_is_counted_on_one_thread(case: Case) -> None:
    engine: Any = case.shared
    if isinstance(engine, CountsWork):
        engine.bind({INPUT.name: np.zeros((1, *INPUT.shape[1:]), dtype=np.float32)})
        threads, least_ns = engine.threads, engine.count_least_ns()
        assert (least_ns > 0, engine.threads) == (case.entry.name not in ("pytorch-compile", "pytorch-aoti"), threads)


@pytest.mark.parametrize("name", ["ort", "openvino"])
def test_damaged_files_and_artifacts_of_another_graph_are_refused(name, onnx_artifact, tmp_path) -> None:
    backend, spec, path = open_backend(name), EngineSpec(backend=name), tmp_path / "damaged.onnx"
    load: Any = backend.load  # type: ignore[attr-defined]
    for content in (b"", b"not a graph", Path(onnx_artifact.path).read_bytes()[:500]):
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match=r"damaged\.onnx"):
            load(msgspec.structs.replace(onnx_artifact, path=str(path)), spec)
    (taken,), (given,) = onnx_artifact.inputs, onnx_artifact.outputs
    for side, wrong in (("inputs", (taken, "dtype", "float16")), ("outputs", (given, "name", "other"))):
        other = msgspec.structs.replace(wrong[0], **{wrong[1]: wrong[2]})
        with pytest.raises(ArtifactError, match=rf"its artifact has .*{wrong[2]}"):
            load(msgspec.structs.replace(onnx_artifact, **{side: (other,)}), spec)
