"""Bundles in virtual environments that hold their requirements.txt and nothing else, in every precision."""

import json
from pathlib import Path

import pytest

from bundles import ask, make_run
from enginebench.features.deliver.verb import deliver_row
from environments import Environments
from reporters import Silent

# The engines in one environment, and the precisions that each of them runs on some CPU.
FAMILIES = {
    ("ort",): ("fp32", "fp16", "int8.cpu"),
    ("openvino",): ("fp32", "fp16", "bf16", "int8.nncf"),
    ("pytorch", "pytorch-compile"): ("fp32", "fp16", "bf16"),
}


def run_family(folder: Path, engines: tuple[str, ...]) -> Path:
    """These engines in their precisions; what this CPU has no instructions for is forced.

    A run of its own for each family: workers that test side by side would each measure one of all engines.
    """
    names = ",".join(engine if engine == "ort" else f"{engine}:force=1" for engine in engines)
    asked = dict.fromkeys(precision.partition(".")[0] for precision in FAMILIES[engines])
    return make_run(folder, "--engines", names, "--precisions", ",".join(asked), "--processes", "1")


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("engines", FAMILIES, ids="+".join)
def test_the_check_passes_with_the_requirements_alone(
    environments: Environments, tmp_path: Path, engines: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_family(tmp_path, engines)
    # What the run compiled is found again; whether it can be compiled is not what is asked here.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(run / "artefacts" / "cache" / "inductor-cache"))
    monkeypatch.setenv("INDUCTOR_PROVENANCE", "1")  # as the run compiled it: the cache knows the two apart
    rows = json.loads((run / "run.json").read_text("utf-8"))["rows"]
    pythons = set()  # one, unless the precisions need different packages
    for engine in engines:
        for precision in FAMILIES[engines]:
            (row,) = (row for row in rows if matches(row, engine, precision))
            out = tmp_path / f"{engine}-{precision}"
            assert deliver_row(run, out, row=row, reporter=Silent()).checked
            lines = (out / "requirements.txt").read_text("utf-8").splitlines()
            python = environments.make(*(line for line in lines if not line.startswith("#")))
            done = ask(out, "--check", "--bench", "--calls", "3", python=str(python))
            assert done.returncode == 0, f"{row}: {done.stdout}{done.stderr}"
            pythons.add(python)
    for python in pythons:
        listed = environments.pip(python, "list", "--format=freeze").lower()
        assert "enginebench" not in listed and "onnx==" not in listed


def matches(row: str, engine: str, precision: str) -> bool:
    """Whether an id is that of a row; the options of an engine are in its name as a slug."""
    head, _, tail = row.partition(f"-{precision}-b1-")
    return bool(tail) and (head == engine or head.startswith(f"{engine}-force"))
