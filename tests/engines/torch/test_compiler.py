"""What `pytorch-compile` needs around PyTorch's compiler: a hash of what it made, its questions, plain paths."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch._inductor import cpu_vec_isa

from enginebench.engines.backends.torch.pytorch_compile import (
    CACHE_NAME,
    PytorchCompileBackend,
    is_one_word,
    reach_by_plain_path,
    trust_instructions,
)

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


@pytest.mark.parametrize("name", ["a b", "it's", 'a"b', "back\\slash", "tab\tbed"])
def test_a_folder_that_a_command_would_split_is_reached_by_a_link(name, tmp_path, monkeypatch) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    folder = tmp_path / name / "cache"
    with reach_by_plain_path(folder) as plain:
        assert is_one_word(plain)
        (plain / "file").write_text("kept")
    assert (folder / "file").read_text() == "kept"
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("name", ["plain", "größe", "a-b_c.d"])
def test_other_folders_stay_as_they_are(name: str, tmp_path: Path) -> None:
    with reach_by_plain_path(tmp_path / name) as plain:
        assert plain == tmp_path / name
    assert not plain.exists()
