"""A module of the user's own script through `run`: real children, a class of `__main__`, weights intact."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from processes import Cli, environment

pytest.importorskip("torch")

# A plain script without a guard. Its class, its lambda and its closure are of `__main__`; the class of one layer lies
# in a file beside the script, in a folder that is not the current one.
SCRIPT = """
import json, sys
import numpy as np
import torch
from torch import nn
import enginebench
from layers_beside import Scale

FACTOR = 3.0

def make_shift(amount):
    return lambda x: x + amount

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.again = nn.Linear(6, 6), nn.Linear(6, 6)
        self.again.weight = self.linear.weight
        self.drop, self.norm, self.scale = nn.Dropout(0.5), nn.BatchNorm1d(6), Scale(2.0)
        self.shift = make_shift(0.5)
        self.register_buffer("table", torch.zeros(6), persistent=False)

    def forward(self, x):
        return self.shift(self.scale(self.norm(self.drop(self.again(self.linear(x)))))) * FACTOR + self.table

torch.manual_seed(3)
net = Net().train()
net.table += torch.arange(6)
net.linear.bias.requires_grad_(False)
x = torch.randn(4, 6)
run = enginebench.run(
    net, example_inputs=x, engines="pytorch,ort", processes=1, iters=5, warmup=1, threads=1, out="run", timeout=200
)
same = net.training and not net.linear.bias.requires_grad and net.norm.num_batches_tracked == 0
got = enginebench.infer(net, {"input": x.numpy()}, engine="pytorch", threads=1)
wanted = net.eval()(x).detach().numpy()
print(json.dumps({
    "same": bool(same),
    "rows": [[row.engine, row.status, row.outputs_agree, row.batch] for row in run.rows],
    "model": run.document.model,
    "equal": bool(np.array_equal(got["output"], wanted)),
    "moves": float(np.abs(wanted).max()),
}))
"""
LAYER = """
from torch import nn
class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
    def forward(self, x):
        return x * self.factor
"""


def test_a_module_of_a_plain_script_is_measured_as_it_is(tmp_path: Path, cli: Cli) -> None:
    home, work = tmp_path / "home of the script", tmp_path / "work"
    home.mkdir(), work.mkdir()
    (home / "script.py").write_text(SCRIPT)
    (home / "layers_beside.py").write_text(LAYER)
    done = subprocess.run(
        [sys.executable, str(home / "script.py")],
        cwd=work, env=environment(tmp_path), capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["rows"] == [["pytorch", "ok", True, 4], ["ort", "ok", True, 4]]
    assert said["model"].startswith("Net@")
    assert said["same"], "the module was changed"
    assert said["equal"] and said["moves"] > 1
    check_that_nobody_else_opens_it(work / "run", said["model"], cli)


def check_that_nobody_else_opens_it(run: Path, model: str, cli: Cli) -> None:
    """Another process shows the run and does not open the pickle in it, also where that would end a run."""
    (pickle,) = (run / "artefacts").glob("Net-*.pkl")
    cli("report", run, "--format", "md", code=0)
    for row in (run / "rows").glob("*.json"):
        row.unlink()
    resumed = cli("run", model, "--resume", "--out", run)
    rows = {path.stem.split("-")[0]: json.loads(path.read_bytes()) for path in (run / "rows").glob("*.json")}
    assert pickle.is_file()
    assert set(rows) == {"pytorch", "ort"}, resumed.stderr
    assert rows["pytorch"]["status"] == "failed"
    assert "a pickle that this program did not write" in rows["pytorch"]["reason"]
    assert rows["ort"]["status"] == "ok", "a graph needs no pickle"
    assert resumed.returncode == 6
