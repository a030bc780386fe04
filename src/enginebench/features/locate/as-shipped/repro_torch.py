"""Exit with 1 while torch.compile gives other outputs than the same operations run one by one."""

import json
import sys
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
SETTINGS = json.loads((HERE / "settings.json").read_text("utf-8"))
torch.set_num_threads(SETTINGS["threads"])
module = torch.export.load(HERE / "model.pt2").module().to(SETTINGS["device"])
arrays = np.load(HERE / "inputs.npz")
inputs = [torch.from_numpy(arrays[f"x{i}"]).to(SETTINGS["device"]) for i in range(len(arrays))]
mode = None if SETTINGS["mode"] == "default" else SETTINGS["mode"]
difference = 0.0
with torch.inference_mode():
    expected = module(*inputs)
    actual = torch.compile(module, mode=mode, dynamic=False)(*inputs)
for a, b in zip(expected, actual, strict=True):
    print("expected", a.flatten()[:8], "found", b.flatten()[:8], sep="\n")
    a, b = (one.cpu().numpy().astype(np.float64) for one in (a, b))
    if a.shape != b.shape:
        difference = np.inf
        continue
    # The same infinity on both sides is no difference, and NaN on both is none.
    gap = np.where(np.isclose(a, b, rtol=0, atol=0, equal_nan=True), 0.0, np.abs(a - b))
    difference = max(difference, float(np.max(np.where(np.isnan(gap), np.inf, gap), initial=0.0)))
print(f"largest difference {difference:g}; the fault is there above {SETTINGS['tolerance']:g}")
sys.exit(difference > SETTINGS["tolerance"])
