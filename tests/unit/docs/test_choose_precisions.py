"""`make run` asks for BF16 where the CPU multiplies in it, and where it does not, for none that engines refuse."""

import runpy
from pathlib import Path

import pytest

from enginebench.core.names import parse_precision
from enginebench.core.recipes import BF16

TOOL = runpy.run_path(str(Path(__file__).parents[3] / "tools/choose_precisions.py"))


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("flags\t: fma avx2 avx512_vnni\n", "fp32,int8"),
        ("flags\t: fma avx512_bf16 avx512_vnni\n", "fp32,bf16,int8"),
        ("flags\t: amx_bf16 amx_tile amx_int8\n", "fp32,bf16,int8"),
        (None, "fp32,int8"),
    ],
)
def test_bf16_is_asked_for_where_it_is_there(flags: str | None, found: str, tmp_path: Path) -> None:
    if flags is not None:
        (tmp_path / "cpuinfo").write_text(flags)
    assert TOOL["choose_precisions"](tmp_path / "cpuinfo") == found
    assert [parse_precision(text)[1] for text in found.split(",")] == [None] * len(found.split(","))
    assert TOOL["BF16"] == BF16, "as `run` reads the processor"
