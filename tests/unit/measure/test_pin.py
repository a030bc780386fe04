"""How many threads, and on which CPUs."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from enginebench.core.errors import UsageError
from enginebench.measure import pin
from enginebench.measure.pin import choose_cpus, default_threads, pin_process
from machines import AMD_V2, INTEL_HYBRID, INTEL_V1, LayOut


@pytest.mark.parametrize(
    ("files", "allowed", "threads"),
    [
        (INTEL_HYBRID, range(6), 4),  # physical cores
        (INTEL_HYBRID, (0, 1), 1),
        (AMD_V2, range(4), 1),  # within a quota
        (INTEL_V1, range(8), 2),
        ({**INTEL_V1, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "10000\n"}, (0,), 1),
    ],
)
def test_default_threads(lay_out: LayOut, files: dict[str, str], allowed: Sequence[int], threads: int) -> None:
    assert default_threads(root=lay_out(files), allowed=allowed) == threads


def test_large_cores_come_before_small_ones(lay_out: LayOut) -> None:
    root = lay_out(INTEL_HYBRID)  # large cores (0, 1) and (2, 3), small cores 4 and 5
    assert choose_cpus(1, range(6), root) == (2,)
    assert choose_cpus(2, range(6), root) == (0, 2)
    assert choose_cpus(4, range(6), root) == (0, 1, 2, 3)
    assert choose_cpus(5, range(6), root) == (0, 1, 2, 3, 5)


def test_without_files_the_last_cpus(tmp_path: Path) -> None:
    assert choose_cpus(2, (0, 3, 5, 9), tmp_path) == (5, 9)


def test_pinning_binds_this_process_and_its_threads() -> None:
    """In a process of its own, so that the test run keeps its CPUs."""
    code = (
        "import os, threading; from enginebench.measure.pin import pin_process\n"
        "go = threading.Event(); seen = []\n"
        "t = threading.Thread(target=lambda: (go.wait(), seen.append(os.sched_getaffinity(0)))); t.start()\n"
        "cpus = pin_process(1); go.set(); t.join()\n"
        "print(cpus is not None and os.sched_getaffinity(0) == set(cpus) == seen[0], len(cpus))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "1"]


@pytest.mark.parametrize("known", [False, True])
def test_where_pinning_is_unknown_or_forbidden_the_answer_is_none(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    def forbid(pid: int, cpus: object) -> None:
        raise PermissionError("not allowed here")

    monkeypatch.setattr(os, "sched_setaffinity", forbid, raising=False)
    if not known:
        monkeypatch.delattr(os, "sched_setaffinity")
    assert pin_process(1) is None


def test_no_threads_is_an_error() -> None:
    with pytest.raises(UsageError, match="threads is 0"):
        pin_process(0)


@pytest.mark.parametrize(("cores", "streams", "threads"), [(8, 1, 7), (8, 2, 3), (2, 1, 1), (1, 4, 1)])
def test_streams_share_the_cores_that_the_generator_leaves(monkeypatch, cores, streams, threads) -> None:
    monkeypatch.setattr(pin, "default_threads", lambda: cores)
    assert pin.count_stream_threads(streams) == threads
