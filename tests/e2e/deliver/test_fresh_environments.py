"""Bundles in virtual environments that hold their requirements.txt and nothing else, in every precision."""

import json

import pytest

from bundles import ask, make_run
from enginebench.features.deliver.verb import deliver_configuration
from enginebench.runs import trust
from reporters import Silent

# What each runs on some CPU: floats as they are, and whatever else its file has lines for.
PRECISIONS = {
    "ort": ("fp32", "int8.cpu"),
    "openvino": ("fp32", "bf16", "int8.cpu"),
    "pytorch": ("bf16",),
    "pytorch-compile": ("fp32",),
}
# What is compiled is a module of the user's own, of which a recurrent layer is left to run eagerly.
RECURRENT = """
import torch

class Heard(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ear, self.memory = torch.nn.Conv1d(3, 4, 3), torch.nn.GRU(4, 4, batch_first=True)

    def forward(self, sound):
        kept, _ = self.memory(self.ear(sound).relu().transpose(1, 2))
        return kept.mean(1).tanh()

def make():
    torch.manual_seed(3)
    return Heard(), torch.zeros(1, 3, 4)
"""


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", PRECISIONS)
def test_the_check_passes_with_the_requirements_alone(environments, tmp_path, engine, monkeypatch) -> None:
    # What this CPU has no instructions for is forced.
    named = engine if engine == "ort" else f"{engine}:force=1"
    asked = ",".join(dict.fromkeys(precision.partition(".")[0] for precision in PRECISIONS[engine]))
    model = "own_net:make" if engine == "pytorch-compile" else "digits-mlp"
    if model != "digits-mlp":
        (tmp_path / "own_net.py").write_text(RECURRENT)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(trust, "_named", {model: model})
    run = make_run(tmp_path, "--engines", named, "--precisions", asked, "--processes", "1", model=model)
    # What the run compiled is found again; whether it can be compiled is not what is asked here.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(run / "artefacts" / "cache" / "inductor-cache"))
    monkeypatch.setenv("INDUCTOR_PROVENANCE", "1")  # as the run compiled it: the cache knows the two apart
    rows = json.loads((run / "run.json").read_text("utf-8"))["rows"]
    pythons = set()  # one, unless the precisions need different packages
    for precision in PRECISIONS[engine]:
        (row,) = (row for row in rows if f"-{precision}-b1-" in row)
        out = tmp_path / precision
        assert deliver_configuration(run, out, row=row, reporter=Silent()).checked
        lines = (out / "requirements.txt").read_text("utf-8").splitlines()
        # That pip takes the lines shows with the smallest engine; what they bring is linked for the others.
        make = environments.make if engine == "ort" else environments.link
        python = make(*(line for line in lines if not line.startswith("#")))
        done = ask(out, "--check", "--bench", "--calls", "3", python=str(python))
        assert done.returncode == 0, f"{row}: {done.stdout}{done.stderr}"
        pythons.add(python)
    for python in pythons:
        listed = environments.pip(python, "list", "--format=freeze").lower()
        assert "enginebench" not in listed and "onnx==" not in listed
