from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._inductor.config as inductor
from torch._inductor import cpu_vec_isa

from enginebench.engines.backends.torch.pytorch_compile import trust_instructions


@pytest.fixture(autouse=True)
def keep_settings() -> Iterator[None]:
    yield
    inductor.cpp.vec_isa_ok = None
    cpu_vec_isa.valid_vec_isa_list.cache_clear()


def answer_file(folder: Path) -> Path:
    return folder / f"instructions-{torch.__version__}.txt"


def test_without_a_folder_every_process_asks() -> None:
    inductor.cpp.vec_isa_ok = True
    trust_instructions(None)
    assert inductor.cpp.vec_isa_ok is None


def test_the_first_process_asks_and_the_next_believes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust_instructions(tmp_path)
    chosen = answer_file(tmp_path).read_text("utf-8")
    assert inductor.cpp.vec_isa_ok is True
    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", lambda self, code: pytest.fail("it was asked again"))
    trust_instructions(tmp_path)
    assert inductor.cpp.vec_isa_ok is True and str(cpu_vec_isa.pick_vec_isa()) == chosen


def test_another_answer_makes_it_ask_again(tmp_path: Path) -> None:
    answer_file(tmp_path).write_text("instructions of another machine", "utf-8")
    trust_instructions(tmp_path)
    assert inductor.cpp.vec_isa_ok is None
