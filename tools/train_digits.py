"""Trains digits-cnn and digits-mlp and writes everything in src/enginebench/models/data but its README.

Run it from the root of the repository, with the `dev` extra installed: `python tools/train_digits.py`.
The same versions give the same bytes: one thread, seed 0.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits as load_bundled_digits
from sklearn.model_selection import train_test_split
from torch import nn

from enginebench.models.task import feed_digits, load_digits
from enginebench.models.torch.digits_modules import DigitsCnn, DigitsMlp
from enginebench.models.torch.export import export_onnx
from enginebench.models.torch.source import make_torch_artifact, write_state
from enginebench.models.zoo import DATA_DIR

SEED = 0
HELD_OUT = 450
EPOCHS = {"digits-cnn": 15, "digits-mlp": 60}
MODULES = {"digits-cnn": DigitsCnn, "digits-mlp": DigitsMlp}
BATCH = 32
PEAK_LEARNING_RATE = 4e-3


def main() -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    write_digits()
    for name in MODULES:
        module = train_module(name)
        write_state(module, DATA_DIR / f"{name}.pt")
        with tempfile.TemporaryDirectory() as folder:
            artifact = make_torch_artifact(name, Path(folder), batch=2)
            export_onnx(artifact, DATA_DIR / f"{name}.onnx", dynamic_batch=True)
        print(f"{name}: top-1 {measure_top1(name, module):.4f} on {HELD_OUT} held-out digits", file=sys.stderr)


def write_digits() -> None:
    bundled = load_bundled_digits()
    indices = np.arange(len(bundled.target))
    _, test = train_test_split(indices, test_size=HELD_OUT, stratify=bundled.target, random_state=SEED)
    np.savez_compressed(
        DATA_DIR / "digits.npz",
        images=bundled.images.astype(np.uint8),
        labels=bundled.target.astype(np.uint8),
        held_out=np.isin(indices, test),
    )


def train_module(name: str) -> nn.Module:
    torch.manual_seed(SEED)
    digits = load_digits().select(held_out=False)
    inputs = torch.from_numpy(feed_digits(name, digits.images))
    labels = torch.from_numpy(digits.labels)
    module = MODULES[name]().train()
    optimizer = torch.optim.Adam(module.parameters(), lr=PEAK_LEARNING_RATE)
    steps = EPOCHS[name] * -(-len(labels) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=PEAK_LEARNING_RATE, total_steps=steps)
    for _ in range(EPOCHS[name]):
        for chosen in torch.randperm(len(labels)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(inputs[chosen]), labels[chosen]).backward()
            optimizer.step()
            schedule.step()
    return module.eval()


def measure_top1(name: str, module: nn.Module) -> float:
    digits = load_digits().select(held_out=True)
    with torch.inference_mode():
        logits = module(torch.from_numpy(feed_digits(name, digits.images)))
    return float(np.mean(logits.argmax(1).numpy() == digits.labels))


if __name__ == "__main__":
    main()
