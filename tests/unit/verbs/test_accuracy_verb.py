"""The verb accuracy: digits and labelled folders, through the model's own preprocessing."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from enginebench.models.task import load_digits
from enginebench.models.zoo import DATA_DIR
from processes import Cli

# The graph that ships: no PyTorch, no export.
CNN = (f"ort@{DATA_DIR / 'digits-cnn.onnx'}", "--model", "digits-cnn")


def save_digits(folder: Path, count: int) -> list[int]:
    """Held-out digits as pictures in ten class folders, most of them; the labels in order."""
    digits = load_digits().select(held_out=True)
    for i in range(count):
        place = folder / f"{digits.labels[i]}"
        place.mkdir(parents=True, exist_ok=True)
        # Preprocessing divides by 16, as the digits' own levels need it: grey levels 0 to 16 are kept as they are.
        Image.fromarray(digits.images[i].astype(np.uint8)).save(place / f"{i}.png")
    return [int(label) for label in digits.labels[:count]]


def test_a_labelled_folder_is_read(cli: Cli, tmp_path: Path) -> None:
    labels = save_digits(tmp_path / "Bilder é", 60)
    document = json.loads(cli("accuracy", *CNN, "--data", "Bilder é", "--n", "50", "--json", code=0).stdout)
    assert document["n"] == 50 and document["scores"][0]["value"]["value"] > 0.9
    assert document["scores"][0]["delta"] is None and document["scores"][0]["mcnemar_p"] is None
    shown = cli("accuracy", *CNN, "--data", "Bilder é").stdout.replace("\n", " ")
    assert f"on {len(labels)} labelled samples" in shown and "top-1" in shown and "%" in shown


def test_a_class_index_file_is_obeyed(cli: Cli, tmp_path: Path) -> None:
    """Class folders renamed, and an index that numbers them wrongly: nothing is right any more."""
    save_digits(tmp_path / "data", 40)
    names = [str(i) for i in range(10)]
    index = {name: (i + 1) % 10 for i, name in enumerate(names)}
    (tmp_path / "data" / "class_index.json").write_text(json.dumps(index))
    done = cli("accuracy", *CNN, "--data", "data", "--json", code=0)
    assert json.loads(done.stdout)["scores"][0]["value"]["value"] < 0.2


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["ort@FILE", "--data", "fake"], 2, "is made up"),
        (["ort@FILE", "--data", "FLAT"], 2, "has no labels: FLAT/0.png is not in a class folder"),
        (["ort@FILE", "--data", "EMPTY", "--model", "digits-mlp"], 5, "holds no images"),
    ],
)
def test_what_cannot_be_counted_is_explained(cli, tiny_onnx, tmp_path, arguments, code, words) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "flat").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "flat" / "0.png")
    names = {"FILE": str(tiny_onnx), "EMPTY": str(tmp_path / "empty"), "FLAT": str(tmp_path / "flat")}
    for name, path in names.items():
        arguments = [a.replace(name, path) for a in arguments]
        words = words.replace(name, path)
    done = cli("accuracy", *arguments)
    assert done.returncode == code, done.stderr
    assert words in done.stderr and "Traceback" not in done.stderr
