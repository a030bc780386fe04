"""A model of one's own, judged by metrics of one's own."""

from pathlib import Path

import numpy as np
import pytest

from enginebench.models.task import feed_digits, load_digits
from enginebench.models.zoo import DATA_DIR

GRAPH = DATA_DIR / "digits-mlp.onnx"


QUICK = ("--warmup", "1", "--iters", "3", "--processes", "1")


METRICS = """
import numpy as np

def right(outputs, targets):
    return outputs.argmax(axis=1) == targets

def far(outputs, targets):
    return float(np.abs(outputs.argmax(axis=1) - targets).mean())
far.higher_is_better = False

def boom(outputs, targets):
    return outputs["logits"]
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A graph that nobody knows, inputs for it, and the right answers in every form."""
    digits = load_digits().select(held_out=True)
    (tmp_path / "mine.onnx").write_bytes(GRAPH.read_bytes())
    np.savez(tmp_path / "in.npz", input=feed_digits("digits-mlp", digits.images[:120]))
    np.save(tmp_path / "t.npy", digits.labels[:120])
    (tmp_path / "t.csv").write_text("label\n" + "\n".join(map(str, digits.labels[:120])))
    (tmp_path / "my_metrics.py").write_text(METRICS)
    return tmp_path


def make_worse(own: Path) -> Path:
    """The same graph with noise on its last weights: it still computes, and is wrong now and then."""
    onnx = pytest.importorskip("onnx")
    model = onnx.load(own / "mine.onnx")
    tensor = next(t for t in model.graph.initializer if 10 in t.dims and len(t.dims) == 2)
    weights = onnx.numpy_helper.to_array(tensor)
    noise = np.random.default_rng(0).normal(0, weights.std() * 1.2, weights.shape).astype(weights.dtype)
    tensor.CopyFrom(onnx.numpy_helper.from_array(weights + noise, tensor.name))
    onnx.save(model, own / "worse.onnx")
    return own / "worse.onnx"
