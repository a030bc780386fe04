from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from torch._inductor import cpu_vec_isa

from enginebench.engines.backends.torch.pytorch_compile import trust_instructions

Asked = list[tuple[str, str]]


def forget() -> None:
    """As in a process that has asked nothing yet."""
    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    kinds = (type(isa) for isa in cpu_vec_isa.supported_vec_isa_list)
    for one in (cpu_vec_isa.VecISA._VecISA__bool__impl, *(kind.__bool__ for kind in kinds)):
        getattr(one, "cache_clear", bool)()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    """(flags, program) of each program that was compiled; all but 8 bits and tiles work."""
    found: Asked = []

    def check_build(isa: cpu_vec_isa.VecISA, code: str) -> bool:
        found.append((isa.build_arch_flags(), code))
        return "dpbusd" not in code

    monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", check_build)
    forget()
    yield found
    forget()


def test_without_a_folder_every_process_asks(asked: Asked) -> None:
    trust_instructions(None)
    assert bool(cpu_vec_isa.pick_vec_isa()) and asked


def test_the_first_process_asks_and_the_next_ones_believe_it(tmp_path: Path, asked: Asked) -> None:
    trust_instructions(tmp_path)
    questions, flags = len(asked), cpu_vec_isa.pick_vec_isa().build_arch_flags()
    assert questions == len(set(asked)) == len(list(tmp_path.iterdir())) > 0
    forget()
    trust_instructions(tmp_path)
    assert len(asked) == questions and cpu_vec_isa.pick_vec_isa().build_arch_flags() == flags
