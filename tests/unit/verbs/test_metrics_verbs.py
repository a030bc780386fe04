"""Models judged by labels: by `accuracy`, `run` and `diff`, by a metric of one's own, from folders of pictures."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from calls import ask
from enginebench.models.task import load_digits
from enginebench.models.zoo import DATA_DIR
from graphs import write_text
from own_model import QUICK, make_worse, own
from processes import Cli

__all__ = ["own"]


def test_a_model_of_ones_own_is_scored_on_ones_own_inputs(cli: Cli, own: Path) -> None:
    """The same share, whichever way the samples and the answers come."""
    by_inputs = ask(cli, "accuracy", "ort@mine.onnx", "--inputs", "in.npz", "--targets", "t.csv")
    by_data = ask(cli, "accuracy", "ort@mine.onnx", "--data", "in.npz", "--targets", "t.npy")
    by_function = ask(
        cli, "accuracy", "ort@mine.onnx", "--inputs", "in.npz", "--targets", "t.npy", "--metric", "my_metrics:right"
    )
    top1 = by_inputs["scores"][0]
    assert by_inputs["n"] == 120 and top1["metric"] == "top1" and top1["value"]["value"] > 0.9
    assert by_data["scores"] == by_inputs["scores"]
    assert by_function["scores"][0]["value"] == top1["value"]
    assert by_function["scores"][0]["metric"] == "my_metrics:right"


def test_two_models_that_differ_on_purpose(cli: Cli, own: Path) -> None:
    worse = make_worse(own)
    given = ("--inputs", "in.npz", "--targets", "t.npy", "--metric", "my_metrics:far", "--metric", "top1")
    found = ask(cli, "accuracy", f"ort@{worse}", *given, "--ref", "ort@mine.onnx")
    far, top1 = found["scores"]
    assert not far["higher_is_better"] and far["delta"]["low"] > 0
    assert top1["delta"]["high"] < 0 and top1["mcnemar_p"] < 0.01
    before = found["reference_scores"][1]["value"]["value"]
    assert top1["value"]["value"] - before == pytest.approx(top1["delta"]["value"])
    failed = cli("accuracy", f"ort@{worse}", *given, "--ref", "ort@mine.onnx", "--max-metric-drop", "0.01")
    assert failed.returncode == 4 and "the gate failed. far went from" in failed.stderr
    cli("accuracy", "ort@mine.onnx", *given, "--ref", "ort@mine.onnx", "--max-metric-drop", "0", code=0)


def test_outputs_that_are_not_finite_are_reported_and_pass_no_gate(cli: Cli, own: Path) -> None:
    """Both sides are the same graph, so that nothing is lost; and a limit that allows any loss."""
    # A NaN wherever an input is negative; the first class is as likely as it was.
    write_text(own / "roots.onnx", "(float[batch, 3] x) => (float[batch, 3] y) { y = Sqrt(x) }")
    inputs = np.ones((20, 3), np.float32)
    inputs[:6, 2] = -1
    np.savez(own / "x.npz", x=inputs)
    np.save(own / "y.npy", np.zeros(20, np.int64))
    given = ("accuracy", "ort@roots.onnx", "--inputs", "x.npz", "--targets", "y.npy", "--metric", "top1")
    told = "ort@roots.onnx: the replies to 6 of 20 samples hold values that are not finite"
    alone = ask(cli, *given)
    assert alone["nonfinite"] == 6 and alone["failures"] == [told]
    shown = cli(*given, "--ref", "ort@roots.onnx")
    assert shown.returncode == 0 and shown.stdout.count(told) == 2, "of the side, and of the reference"
    for limit in (("--max-metric-drop", "0"), ("--max-top1-drop", "100")):
        gate = cli(*given, "--ref", "ort@roots.onnx", *limit)
        assert gate.returncode == 4 and f"the gate failed. {told}" in gate.stderr
    np.savez(own / "x.npz", x=np.abs(inputs))
    assert cli(*given, "--ref", "ort@roots.onnx", "--max-metric-drop", "0").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--data", "in.npz"], 2, "has no labels; give them, one for each sample, with --targets"),
        (["--inputs", "in.npz", "--targets", "nowhere.csv"], 5, "no such file"),
        (["--inputs", "in.npz", "--targets", "t.npy", "--metric", "my_metrics:boom"], 2, "my_metrics.py:12: return"),
        (["--data", "drawn"], 2, "of floats or uint8, 3 x SIDE x SIDE. For others give run prepared arrays"),
    ],
)
def test_what_cannot_be_judged_is_explained(cli: Cli, own: Path, arguments: list[str], code: int, words: str) -> None:
    (own / "drawn" / "0").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(own / "drawn" / "0" / "a.png")
    done = cli("accuracy", "ort@mine.onnx", *arguments)
    assert done.returncode == code, done.stderr
    assert words in " ".join(done.stderr.split()) and "Traceback" not in done.stderr


def test_a_run_with_a_wrong_metric_ends_before_anything_is_made(cli: Cli, own: Path) -> None:
    given = ("--inputs", "in.npz", "--targets", "t.npy", *QUICK, "--out", "r")
    for name, words in (("my_metrics:nothing", "has no 'nothing'"), ("speed", "expected package.module:function")):
        assert words in cli("run", "mine.onnx", "--engines", "ort", "--metric", name, *given, code=2).stderr
        assert not (own / "r").exists()
    done = cli("run", "mine.onnx", "--engines", "ort", "--metric", "top1", *QUICK, "--out", "r", code=2)
    assert "a metric needs labelled samples" in done.stderr


def test_pictures_for_a_classifier_of_ones_own(cli: Cli, own: Path) -> None:
    """They are prepared as ImageNet's are, which is said; these are no such pictures, so the share says nothing."""
    pool = "{ y = ReduceMean <axes = [2, 3], keepdims = 0> (x) }"
    write_text(own / "net.onnx", f"(float[batch, 3, 16, 16] x) => (float[batch, 3] y) {pool}")
    for label, name in enumerate(("red", "green", "blue")):
        (own / "pictures" / name).mkdir(parents=True)
        for i in range(3):
            colour = np.zeros((20, 24, 3), np.uint8)
            colour[..., label] = 200 + 20 * i
            Image.fromarray(colour).save(own / "pictures" / name / f"{i}.png")
    (own / "pictures" / "classes.txt").write_text("red\ngreen\nblue\n")
    found = ask(cli, "accuracy", "ort@net.onnx", "--data", "pictures", "--task", "classification")
    assert found["scores"][0]["value"]["value"] == 1.0 and found["n"] == 9
    assert any("prepared as ImageNet's" in warning["message"] for warning in found["caveats"])
    rows = "".join(f"{name}/{i}.png,{label}\n" for label, name in enumerate(("red", "green", "blue")) for i in range(3))
    (own / "wrong.csv").write_text("file,label\n" + rows.replace(",2", ",1"))
    found = ask(
        cli, "accuracy", "ort@net.onnx", "--data", "pictures", "--task", "classification", "--targets", "wrong.csv"
    )
    assert found["scores"][0]["value"]["value"] == pytest.approx(2 / 3)


def test_boxes_are_scored_by_map(cli: Cli, own: Path) -> None:
    pytest.importorskip("pycocotools")
    write_text(own / "boxes.onnx", "(float[batch, 5, 6] x) => (float[batch, 5, 6] y) { y = Identity(x) }")
    rng = np.random.default_rng(0)
    low = rng.uniform(0, 50, (20, 5, 2))
    boxes, labels = np.concatenate([low, low + 20], axis=2), rng.integers(0, 3, (20, 5))
    found = np.concatenate([boxes, rng.uniform(0.5, 1, (20, 5, 1)), labels[..., None]], axis=2).astype(np.float32)
    np.savez(own / "found.npz", x=found)
    found[::2, 0, :4] += 40
    np.savez(own / "moved.npz", x=found)
    np.savez(own / "t.npz", boxes=boxes, labels=labels)
    given = ("--targets", "t.npz", "--task", "detection")
    (score,) = ask(cli, "accuracy", "ort@boxes.onnx", "--inputs", "found.npz", *given)["scores"]
    assert score["metric"] == "map" and score["value"]["value"] == pytest.approx(1.0)
    (moved,) = ask(cli, "accuracy", "ort@boxes.onnx", "--inputs", "moved.npz", *given)["scores"]
    assert 0.5 < moved["value"]["low"] < moved["value"]["value"] < moved["value"]["high"] < 1


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
