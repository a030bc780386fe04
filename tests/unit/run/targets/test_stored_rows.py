"""What is said of a stored row whose artifact cannot be taken."""

from pathlib import Path

import pytest

from enginebench.core.errors import ArtifactError
from enginebench.core.records import Artifact, EngineSpec, MeasureSpec, Result
from enginebench.core.store import encode
from enginebench.runs.targets.stored import open_stored


def test_an_artifact_that_is_gone_is_not_called_foreign(tmp_path: Path) -> None:
    graph = Artifact(kind="onnx", path="artefacts/m.onnx", sha256="0" * 64, model="m", files=(), inputs=(), outputs=())
    row = Result(
        id="r",
        model="m",
        engine=EngineSpec(backend="ort"),
        measure=MeasureSpec(),
        requested_precision="fp32",
        status="ok",
        artifacts=(graph,),
    )
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "r.json").write_bytes(encode(row))
    with pytest.raises(ArtifactError, match=r"m\.onnx is no longer there\. Name ENGINE@TARGET"):
        open_stored(tmp_path / "rows" / "r.json")
