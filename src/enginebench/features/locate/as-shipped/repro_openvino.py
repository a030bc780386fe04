"""Exit with 1 while OpenVINO gives other outputs than expected.npz, those of the graph as it is written."""

import json
import sys
from pathlib import Path

import numpy as np
import openvino

HERE = Path(__file__).parent
SETTINGS = json.loads((HERE / "settings.json").read_text("utf-8"))
expected = np.load(HERE / "expected.npz")
inputs = dict(np.load(HERE / "inputs.npz"))

properties = {"INFERENCE_NUM_THREADS": SETTINGS["threads"], "INFERENCE_PRECISION_HINT": SETTINGS["hint"]}
model = openvino.compile_model(str(HERE / "model.onnx"), "CPU", properties)
results = model(inputs)
difference = 0.0
for i, name in enumerate(expected):
    a, b = expected[name], results[i]
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
