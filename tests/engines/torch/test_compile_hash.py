"""What tells two builds of `pytorch-compile` apart: the code that was generated, and what timing chose."""

from pathlib import Path

import pytest

from enginebench.engines.backends.torch.pytorch_compile import CACHE_NAME, PytorchCompileBackend

KERNEL = "# kernel path: {folder}/ab/cabc.py\ntmp0 = x0 / 8\ntmp1 = x1//16\ntmp2 = (x2)/4\n"
CHOICE = '{{"XBLOCK": {block}, "num_warps": 4, "time_taken_ms": {time}, "found_by_coordesc": false}}'


def build(folder: Path, *, kernel: str = KERNEL, block: int = 256, time: int = 12) -> str | None:
    """The hash of a build that left these files."""
    cache = folder / CACHE_NAME / "ab"
    cache.mkdir(parents=True)
    (cache / "cabc.py").write_text(kernel.format(folder=folder))
    (cache / "x.best_config").write_text(CHOICE.format(block=block, time=time))
    (cache / "main.so").write_bytes(b"compiled, with its folder inside: " + str(folder).encode())
    return PytorchCompileBackend(None, folder).hash_code()


def test_builds_that_are_alike_have_one_hash_wherever_they_lie(tmp_path: Path) -> None:
    assert build(tmp_path / "1") == build(tmp_path / "2", time=99)


@pytest.mark.parametrize(
    "changed", [{"block": 512}, {"kernel": KERNEL.replace("/ 8", "/ 9")}, {"kernel": KERNEL.replace("/16", "/17")}]
)
def test_another_kernel_or_choice_is_another_build(tmp_path: Path, changed: dict[str, object]) -> None:
    assert build(tmp_path / "1") != build(tmp_path / "2", **changed)  # type: ignore[arg-type]


def test_where_nothing_was_left_nothing_is_said(tmp_path: Path) -> None:
    assert PytorchCompileBackend(None, tmp_path).hash_code() is None
    assert PytorchCompileBackend(None, None).hash_code() is None
