"""The verbs `calibrate` and `quantize`, one after the other as a user calls them."""

from pathlib import Path

from enginebench.verbs.calibrate import command as calibrate
from enginebench.verbs.quantize import command as quantize
from quantizing import call_json, folder

__all__ = ["folder"]


def test_a_built_in_model_from_its_name_to_int8(folder: Path) -> None:
    document = call_json(
        calibrate, "digits-mlp", "--data", "digits", "--n", "64", "--method", "entropy", "--keep-batches", "kept.npz"
    )
    assert document["schema"] == "enginebench.calibrate/1" and document["path"] == "calib.json"
    assert (document["n"], document["source"], document["method"]) == (64, "digits", "entropy")
    assert len(document["preprocess_sha256"]) == 64 and document["batches"] == "kept.npz"
    for recipe in ("tensorrt", "cpu", "nncf"):
        made = call_json(quantize, "mlp.onnx", "--to", f"int8@{recipe}", "--calib", "calib.json", "--out", "q.onnx")
        assert made["schema"] == "enginebench.quantize/1"
        assert (made["artifact"]["precision"], made["artifact"]["recipe"]) == ("int8", recipe)
        assert made["artifact"]["preprocess_sha256"] == document["preprocess_sha256"]
        assert made["coverage"] == 1 and made["quantizers"] > 0
        assert (made["tensorrt_refusals"] == []) == (recipe == "tensorrt")
    kept = call_json(quantize, "mlp.onnx", "--to", "int8@nncf", "--calib", "kept.npz", "--out", "k.onnx")
    assert kept["artifact"]["sha256"] == made["artifact"]["sha256"]
