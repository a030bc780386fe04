"""Starts without the page cache: kept only where files were read from the disk."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from enginebench.core.records import Artifact, ColdStart
from enginebench.runs import starts
from enginebench.runs.child.jobs import StartResponse
from samples import make_result

WARM = ColdStart(import_s=1.0, load_s=1.0, first_run_s=1.0, read_bytes=1000)
GRAPH = Artifact(kind="onnx", model="m", path="m.onnx", sha256="", files=(), inputs=(), outputs=())


@pytest.mark.parametrize(("read_bytes", "kept"), [(5000, True), (1000, False), (0, False)])
def test_a_start_counts_as_cold_only_if_it_read_more_than_the_warm_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, read_bytes: int, kept: bool
) -> None:
    cold, dropped = replace(WARM, import_s=3.0, read_bytes=read_bytes), list[str]()
    responses = iter([StartResponse(start=WARM, files=("lib.so",)), StartResponse(start=cold, files=())])
    monkeypatch.setattr(starts, "run_child", lambda job, timeout_s: next(responses))
    monkeypatch.setattr(starts, "_drop_from_cache", dropped.extend)
    folder: Any = SimpleNamespace(artifacts=tmp_path)
    record: Any = SimpleNamespace(request=SimpleNamespace(timeout_s=1.0))
    found = starts._time_cold_start(folder, record, replace(make_result(), artifacts=(GRAPH,)))
    assert found == (cold if kept else None) and dropped == ["lib.so"]
