"""Rows that are known to be impossible before anything is built."""

from __future__ import annotations

import pytest

from enginebench.core.records import Artifact, Availability, Cache, MeasureSpec, TensorSpec
from enginebench.workflow.folder import RunRequest
from enginebench.workflow.plan import plan_rows

AXES = ("batch", 4)
GRAPH = Artifact(
    kind="onnx",
    model="toy",
    path="toy.onnx",
    sha256="0" * 64,
    files=(),
    inputs=(TensorSpec(name="x", dtype="float32", shape=AXES),),
    outputs=(TensorSpec(name="y", dtype="float32", shape=AXES),),
)


@pytest.mark.parametrize(
    ("cache", "device", "skip"),
    [
        ("hot", "cpu", None),
        ("cold", "cuda:0", None),
        ("cold", "cpu", "--cache cold empties the cache of a GPU; fake runs on the CPU. Use hot"),
    ],
)
def test_a_cold_cache_needs_a_gpu(cache: Cache, device: str, skip: str | None) -> None:
    request = RunRequest(model="toy", engines=(("fake", {}),), device=device, measure=MeasureSpec(cache=cache))
    (row,) = plan_rows(
        request,
        (GRAPH,),
        probe=lambda name: Availability(engine=name, available=True),
        takes=lambda name: "onnx",
    )
    assert row.skip == skip
