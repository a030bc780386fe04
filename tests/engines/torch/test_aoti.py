"""`pytorch-aoti`: a package is what it was compiled for, and is opened on this machine alone."""

from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from calls import run_on
from enginebench.core import aoti
from enginebench.core.errors import ArtifactError, BackendUnavailable, FeedError, UsageError
from enginebench.core.feeds import random_feeds
from enginebench.core.records import Artifact, EngineSpec, ModelSource, Normalize
from enginebench.engines.registry import open_backend
from enginebench.models.task import complete_normalize, take_bytes
from enginebench.models.torch.source import load_module, make_torch_artifact
from enginebench.runs import trust
from enginebench.runs.child.jobs import SourceJob
from enginebench.runs.child.perform.sources import make_source
from enginebench.runs.targets.sources import make_sources
from reporters import Silent

SPEC = EngineSpec(backend="pytorch-aoti", threads=1, batch=2)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    made = make_torch_artifact("digits-mlp", tmp_path_factory.mktemp("source"), batch=2)
    return take_bytes(made, complete_normalize(Normalize(), "digits-mlp"))


@pytest.fixture(scope="module")
def package(source: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    out = tmp_path_factory.mktemp("ä b")
    return open_backend("pytorch-aoti", load_module, out / "cache").build(source, SPEC, out)


def test_a_package_computes_like_its_module_and_shows_what_ran(source: Artifact, package: Artifact) -> None:
    feeds, answers = random_feeds(source.inputs, 2, seed=0), []
    for name, artifact in (("pytorch", source), ("pytorch-aoti", package)):
        backend: Any = open_backend(name, load_module)
        with backend.load(artifact, replace(SPEC, backend=name)) as engine:
            answers.append(run_on(engine, feeds)["output"])
    np.testing.assert_allclose(*answers, rtol=1e-4, atol=1e-5)
    with backend.load(package, SPEC) as engine:
        engine.bind(feeds)
        assert set(engine.effective_precision()) <= {"fp32", "reorder", "unknown"}
        assert engine.profile_layers().layers
        with pytest.raises(FeedError, match="has shape 4x64, not 2x64"):
            engine.bind(random_feeds([replace(package.inputs[0], shape=(4, 64))], 4, seed=0))


def test_nothing_is_loaded_of_a_package_that_is_another(package, source, monkeypatch) -> None:
    import torch

    monkeypatch.setattr(torch._C._aoti, "AOTIModelPackageLoader", None)
    backend: Any = open_backend("pytorch-aoti", load_module)
    for artifact, spec, why in (
        (source, SPEC, "opens packages"),
        (package, replace(SPEC, precision="bf16", options={"force": "1"}), "was built in fp32, not bf16"),
        (package, replace(SPEC, options={"freezing": "1"}), "ask for pytorch-aoti:freezing=0"),
        (replace(package, sha256="0"), SPEC, "was changed since it was built"),
    ):
        with pytest.raises((ArtifactError, BackendUnavailable), match=why):
            backend.load(artifact, spec)
    monkeypatch.setattr(aoti, "read_flags", list)
    with pytest.raises(ArtifactError, match=r"which this CPU lacks\. Build it again here"):
        backend.load(package, SPEC)


def test_a_package_as_model_is_described_by_its_record_and_only_where_that_is_allowed(package, tmp_path, monkeypatch):
    monkeypatch.setattr(trust, "_named", {})
    job = SourceJob(source=ModelSource(model=package.path), out_dir=str(tmp_path), onnx=False)
    (taken,) = make_source(job, lambda _: None, lambda _: None).artifacts
    assert (taken.kind, taken.inputs, taken.sha256) == ("aoti", package.inputs, package.sha256)
    with pytest.raises(UsageError, match="add --allow-native-code"):
        make_sources(job, threads=1, timeout_s=60, reporter=Silent())
    trust.allow_code("mine:make")  # a record may claim any hash; one that is a name that was allowed is no hash
    assert trust.holds_refused(replace(taken, sha256="mine:make"))
    trust.allow_code(trust.NATIVE_CODE)
    assert make_sources(job, threads=1, timeout_s=60, reporter=Silent()) == (taken,)
    with pytest.raises(UsageError, match="holds no graph"):
        make_source(msgspec.structs.replace(job, onnx=True), lambda _: None, lambda _: None)
