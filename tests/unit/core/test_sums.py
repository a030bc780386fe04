"""8-bit sums that do not saturate are asked for where they would, and nowhere else."""

import platform
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from enginebench.core import judging, sums
from graphs import write_text


@pytest.fixture
def old_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An x86-64 with AVX2 and nothing after it."""
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nflags\t\t: fpu fma avx2\n")
    monkeypatch.setattr(judging, "PROCESSOR", info)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return info


@pytest.mark.parametrize("flag", sorted(sums.WIDE_SUMS))
def test_processors_that_add_in_32_bits_keep_their_fast_kernels(old_processor: Path, flag: str) -> None:
    assert sums.sums_saturate()
    old_processor.write_text(f"flags : avx2 {flag} f16c\n")
    assert not sums.sums_saturate()


def test_what_is_no_x86_has_no_such_kernels(old_processor: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert not sums.sums_saturate()


def test_an_x86_that_does_not_tell_its_instructions_is_taken_for_an_old_one(old_processor: Path) -> None:
    old_processor.write_text("processor : 0\n")
    assert sums.sums_saturate()
    old_processor.unlink()
    assert sums.sums_saturate()


def refuse_exact_sums(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """ONNX Runtime as it meets signed activations on a CPU without VNNI; returns the settings of what it opened."""
    opened: list[str] = []
    real = onnxruntime.InferenceSession

    def open_like_avx2(model: str, settings: Any, **others: Any) -> Any:
        if settings.get_session_config_entry(sums.EXACT_SUMS) == "1":
            raise NotImplementedError("QLinearMatMul is implemented only for tensor(int8)")
        opened.append(settings.get_session_config_entry(sums.EXACT_SUMS))
        return real(model, settings, **others)

    monkeypatch.setattr(onnxruntime, "InferenceSession", open_like_avx2)
    return opened


def test_a_graph_without_exact_kernels_is_loaded_with_others(old_processor, tmp_path, monkeypatch) -> None:
    settings = onnxruntime.SessionOptions()
    sums.keep_sums_exact(settings)
    opened = refuse_exact_sums(monkeypatch)
    graph = write_text(tmp_path / "g.onnx", "(float[1] x) => (float[1] y) { y = Relu(x) }")
    assert sums.open_cpu_session(str(graph), settings).get_providers() == ["CPUExecutionProvider"]
    assert opened == ["0"]


def test_a_damaged_file_is_reported_in_the_words_of_the_first_refusal(old_processor, tmp_path, monkeypatch) -> None:
    settings = onnxruntime.SessionOptions()
    sums.keep_sums_exact(settings)
    refuse_exact_sums(monkeypatch)
    (tmp_path / "damaged.onnx").write_bytes(b"no graph")
    with pytest.raises(NotImplementedError, match="only for tensor"):
        sums.open_cpu_session(str(tmp_path / "damaged.onnx"), settings)


@pytest.mark.parametrize("stored", [False, True])
def test_weights_in_blocks_run_where_sums_would_saturate(old_processor: Path, tmp_path: Path, stored: bool) -> None:
    settings = onnxruntime.SessionOptions()
    sums.keep_sums_exact(settings)
    text = """(float[n, 64] x) => (float[n, 4] y) {
        w = DequantizeLinear <axis = 0, block_size = 32> (blocks, scales)
        y = MatMul (x, w)
    }"""
    rng = np.random.default_rng(0)
    blocks, scales = rng.integers(-127, 128, (64, 4), np.int8), rng.random((2, 4), np.float32)
    graph = write_text(tmp_path / "g.onnx", text, {"blocks": blocks, "scales": scales}, 21)
    session = sums.open_cpu_session(str(graph) if stored else graph.read_bytes(), settings)
    x = rng.standard_normal((3, 64), np.float32)
    expected = x @ (blocks * scales.repeat(32, 0))
    # The fused kernel may round the activations to eight bits, too.
    assert np.abs(session.run(None, {"x": x})[0] - expected).max() < 0.02 * np.abs(expected).max()
