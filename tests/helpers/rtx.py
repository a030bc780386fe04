"""NVIDIA's own parser and builder as a judge of graphs: in a process of its own, since some graphs crash it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from enginebench.engines.registry import find_installed
from processes import ROOT, environment

FOUND = find_installed("tensorrt-rtx")
needs_rtx = pytest.mark.skipif(
    not FOUND.available, reason=f"TensorRT for RTX is not installed ({FOUND.reason}); to add: {FOUND.fix}"
)


class Judge:
    """Builds graphs one after another, as `enginebench build` does; a crash ends the process, and the next begins one.

    Args:
        folder: for plans.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def build(self, graph: Path, precision: str = "fp32", /, **options: str) -> dict[str, Any]:
        """{products, layers, warnings} of the plan, or {refused} in the library's words, or {crashed}."""
        if self._process is None:
            command = [sys.executable, str(Path(__file__)), str(self._folder)]
            path = ":".join(str(ROOT / place) for place in ("src", "tests", "tests/helpers"))
            variables = {**environment(self._folder), "PYTHONPATH": path}
            ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            self._process = subprocess.Popen(command, text=True, env=variables, **ends)
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps([str(graph), precision, options]), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self.close()
            return {"crashed": status}
        return dict(json.loads(line))

    def close(self) -> None:
        if self._process is not None:
            with self._process as process:
                process.kill()
            self._process = None


def answer(folder: str, path: str, precision: Any, options: dict[str, str]) -> dict[str, Any]:
    """What the child says to one line."""
    from enginebench.core.errors import EngineBenchError
    from enginebench.core.records import EngineSpec
    from enginebench.models.onnx.source import read_onnx
    from enginebench.runs.child.opening import build_graph, open_for

    spec = EngineSpec(backend="tensorrt-rtx", device="cuda:0", precision=precision, options=options)
    try:
        built = build_graph(open_for(spec, folder), read_onnx(Path(path)), spec, folder, lambda text: None)
    except EngineBenchError as error:
        return {"refused": str(error)}
    assert built.ahead_of_time is not None
    return {
        "products": built.ahead_of_time.products,
        "layers": [[layer.kind, layer.precision, layer.onnx_nodes] for layer in built.ahead_of_time.layers],
        "warnings": [warning.message for warning in built.warnings if warning.template.startswith("low_effective")],
        "sha256": built.sha256,
    }


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(sys.argv[1], *json.loads(line))), flush=True)
