"""`bench --against` holds the answers of both sides against each other: what makes it say no, and what it then says."""

from pathlib import Path

from processes import Cli
from scale_graphs import bench, make_scale


def test_the_same_function_in_two_files_agrees(cli: Cli, tmp_path: Path) -> None:
    one = make_scale(tmp_path / "a.onnx", 3)
    two = make_scale(tmp_path / "b.onnx", 3.0000001)
    document = bench(cli, one, "--engine", "openvino", "--against", f"ort@{two}")
    comparison = document["comparison"]
    assert (comparison["outputs_agree"], comparison["failures"]) == (True, [])
    assert document["row"]["max_abs_diff"] < 1e-5
    # Nothing was compared with the side that is the reference but itself.
    assert document["against"]["outputs_agree"] is document["against"]["max_abs_diff"] is None


def test_a_built_in_model_and_its_file_are_fed_alike(cli: Cli, tiny_onnx: Path) -> None:
    """By its name `digits-mlp` is fed digits, its file random arrays; that must not look like other answers."""
    for target, engine, other in (
        (tiny_onnx, "ort", "pytorch@digits-mlp"),
        ("digits-mlp", "pytorch", f"ort@{tiny_onnx}"),
    ):
        document = bench(cli, target, "--engine", engine, "--against", other)
        assert document["comparison"]["outputs_agree"] is True, document["comparison"]
        assert 0 < document["row"]["max_abs_diff"] < 1e-3
