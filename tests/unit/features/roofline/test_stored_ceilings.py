"""Ceilings kept, found again, and refused; the verb with children that answer at once."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from enginebench.core.ceilings import UNITS, Ceiling, CeilingKind, Ceilings
from enginebench.core.errors import ChildFailed, UsageError
from enginebench.core.records import Gpu, Machine, Precision
from enginebench.features.roofline import verb as roofline
from enginebench.features.roofline.jobs import CeilingsAnswer, CeilingsJob
from enginebench.features.roofline.verb import choose_threads, measure_ceilings, plan_jobs, read_request
from enginebench.measure.machine import describe_machine
from enginebench.runs.ceilings import find_ceilings, name_file, store_ceilings
from reporters import Silent

HERE = describe_machine()


def ceiling(kind: CeilingKind, value: float, precision: Precision | None = None, threads: int | None = 1) -> Ceiling:
    return Ceiling(
        kind=kind, precision=precision, threads=threads, value=value, unit=UNITS[kind], low=value, high=value
    )


def ceilings_of(machine: Machine) -> Ceilings:
    return Ceilings(machine=machine, ceilings=(ceiling("gemm", 40.0, "fp32"),), measured_utc="2026-11-22T10:00:00")


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEBENCH_CEILINGS", str(tmp_path / "store"))


def test_what_was_stored_is_found(tmp_path: Path) -> None:
    kept = ceilings_of(HERE)
    assert find_ceilings(HERE).ceilings is None
    assert "enginebench roofline" in find_ceilings(HERE).reason
    paths = store_ceilings(kept, tmp_path / "out")
    assert paths == [tmp_path / "store" / name_file(HERE), tmp_path / "out" / "roofline.json"]
    assert find_ceilings(HERE).ceilings == kept


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"cpu_model": "Another 9000"}, "processor was Another 9000"),
        ({"cpus_allowed": tuple(range(99))}, "allowed CPUs was 99"),
        ({"cpu_quota_cores": 0.5}, "CPU quota was 0.5"),
        ({"versions": {"torch": "1.0"}}, "torch was 1.0"),
        ({"gpus": (Gpu(index=0, name="H999", driver="1", memory_bytes=1),)}, "GPUs was H999"),
    ],
)
def test_those_of_another_machine_are_refused_with_words(tmp_path: Path, changes: Any, word: str) -> None:
    *_, given = store_ceilings(ceilings_of(replace(HERE, **changes)), tmp_path / "given")
    (tmp_path / "store" / name_file(HERE)).write_bytes(given.read_bytes())
    found = find_ceilings(HERE)
    assert found.ceilings is None and word in found.reason and "`enginebench roofline` measures it" in found.reason


@pytest.mark.parametrize("text", ["", "{", '{"schema": "enginebench.roofline/9"}'])
def test_a_damaged_file_costs_the_column_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "store" / name_file(HERE)
    path.parent.mkdir()
    path.write_text(text)
    found = find_ceilings(HERE)
    assert found.ceilings is None and str(path) in found.reason and "roofline" in found.reason


def test_every_device_and_number_of_threads_has_children_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter([40.0, 44.0, 42.0])

    def answer(job: CeilingsJob, **_: Any) -> CeilingsAnswer:
        return CeilingsAnswer(ceilings=(ceiling("gemm", next(values), "fp32", job.threads), ceiling("call", 0.1)))

    monkeypatch.setattr(roofline, "run_child", answer)
    found = measure_ceilings(read_request(threads="1", device="cpu"), reporter=Silent())
    gemm, call = found.ceilings
    assert (gemm.value, gemm.low, gemm.high, gemm.n) == (44.0, 40.0, 44.0, 3)
    assert call.value == 0.1 and found.processes == 3 and not found.quick


def test_a_child_that_dies_costs_what_it_did_not_find(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([CeilingsAnswer(ceilings=(ceiling("gemm", 40.0, "fp32"),))])

    def answer(job: CeilingsJob, **_: Any) -> CeilingsAnswer:
        try:
            return next(answers)
        except StopIteration:
            raise ChildFailed("the process was killed by SIGKILL") from None

    monkeypatch.setattr(roofline, "run_child", answer)
    found = measure_ceilings(read_request(threads="1", device="cpu"), reporter=Silent())
    assert [one.value for one in found.ceilings] == [40.0]
    assert "SIGKILL" in found.notes[0]
    with pytest.raises(UsageError, match="SIGKILL"):
        measure_ceilings(read_request(threads="1", device="cpu"), reporter=Silent())


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"precisions": "fp33"}, "fp33"),
        ({"precisions": "int8@cpu"}, "no recipe"),
        ({"threads": "0"}, "'0'"),
        ({"threads": "two"}, "'two'"),
        ({"device": "tpu"}, "tpu"),
    ],
)
def test_what_cannot_be_is_named(given: dict[str, str], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        read_request(**given)


def test_threads_are_doubled_up_to_the_cores() -> None:
    machine = replace(HERE, default_threads=12, cpus_allowed=tuple(range(24)))
    assert choose_threads(read_request(), machine) == (1, 2, 4, 8, 12)
    assert choose_threads(read_request(quick=True), machine) == (1, 12)
    assert choose_threads(read_request(threads="3,20"), machine) == (3, 20)
    with pytest.raises(UsageError, match="may use 24"):
        choose_threads(read_request(threads="25"), machine)
    with pytest.raises(UsageError, match="cuda:7"):
        list(plan_jobs(read_request(device="cuda:7"), machine))
