"""Exit with 1 while ONNX Runtime's optimized graph gives other outputs than the graph as it is written."""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

HERE = Path(__file__).parent
SETTINGS = json.loads((HERE / "settings.json").read_text("utf-8"))
LEVELS = {"all": "ENABLE_ALL", "extended": "ENABLE_EXTENDED", "basic": "ENABLE_BASIC", "none": "DISABLE_ALL"}


def compute(level: str) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{LEVELS[level]}")
    options.intra_op_num_threads = SETTINGS["threads"]
    options.log_severity_level = 3
    if SETTINGS["disabled"]:
        options.add_session_config_entry("optimization.disable_specified_optimizers", SETTINGS["disabled"])
    session = onnxruntime.InferenceSession(str(HERE / "model.onnx"), options, providers=[SETTINGS["provider"]])
    outputs: list[np.ndarray] = session.run(None, dict(np.load(HERE / "inputs.npz")))
    return outputs


expected, actual = compute("none"), compute(SETTINGS["opt"])
difference = 0.0
for a, b in zip(expected, actual, strict=True):
    print("expected", a.reshape(-1)[:8], "found", b.reshape(-1)[:8], sep="\n")
    if a.shape != b.shape:
        difference = np.inf
        continue
    # The same infinity on both sides is no difference, and NaN on both is none.
    same = np.isclose(a, b, rtol=0, atol=0, equal_nan=True)
    gap = np.where(same, 0.0, np.abs(a.astype(np.float64) - b.astype(np.float64)))
    difference = max(difference, float(np.max(np.where(np.isnan(gap), np.inf, gap), initial=0.0)))
print(f"largest difference {difference:g}; the fault is there above {SETTINGS['tolerance']:g}")
sys.exit(difference > SETTINGS["tolerance"])
