"""What the kernel's files say about CPUs, quotas and limits."""

import os
from pathlib import Path

import pytest

from enginebench.measure import topology
from machines import AMD_V2, INTEL_HYBRID, INTEL_V1, LayOut


def test_cpus_of_one_core_are_found_together(lay_out: LayOut) -> None:
    assert topology.group_cores(range(6), lay_out(INTEL_HYBRID)) == [(0, 1), (2, 3), (4,), (5,)]
    assert topology.whole_cores((1, 4), lay_out(INTEL_HYBRID)) == {0, 1, 4}, "a CPU brings its siblings along"


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        (AMD_V2, 1.5),  # the tightest
        (INTEL_V1, 2.0),  # though the path is the host's
        ({**INTEL_V1, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1"}, None),
        # A path out of the mount is not followed.
        ({**AMD_V2, "proc/self/cgroup": "0::/../../../../tmp\n", "sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5),
    ],
)
def test_quotas(lay_out: LayOut, files: dict[str, str], quota: float | None) -> None:
    assert topology.read_cpu_quota(lay_out(files)) == quota


@pytest.mark.parametrize("text", ["max 100000", "", "nonsense", "100000", "1 0", "-1 5"])
def test_no_quota_or_a_broken_one_is_none(lay_out: LayOut, text: str) -> None:
    root = lay_out({**AMD_V2, "sys/fs/cgroup/kubepods/cpu.max": text})
    assert topology.read_cpu_quota(root) is None


def test_memory_limits_and_cpusets(lay_out: LayOut) -> None:
    root = lay_out(AMD_V2)
    assert (topology.read_memory_limit(root), topology.read_cpuset(root)) == (2 * 1024**3, {0, 1, 2})


def test_of_v1_and_a_limit_above_the_machine_is_none(lay_out: LayOut) -> None:
    root = lay_out(INTEL_V1)
    assert (topology.read_memory_limit(root), topology.read_cpuset(root)) == (None, {0, 1})


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8", {0, 1, 2, 3, 8}), ("0,2-2\n", {0, 2}), ("", set()), ("a-b", set()), ("1-", {1})]
)
def test_cpu_lists(text: str, cpus: set[int]) -> None:
    assert topology.parse_cpu_list(text) == cpus


def test_allowed_cpus_are_those_of_the_mask() -> None:
    if hasattr(os, "sched_getaffinity"):
        assert set(topology.read_allowed_cpus()) == os.sched_getaffinity(0)
    assert len(topology.read_allowed_cpus()) >= 1


def test_allowed_cpus_without_a_mask_are_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert topology.read_allowed_cpus() == (0, 1, 2)


def test_broken_files_are_none(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    (tmp_path / "folder").mkdir()
    assert topology.read_int(tmp_path / "binary") is None
    assert topology.read_text(tmp_path / "folder") is None
    assert topology.read_text(tmp_path / "missing") is None
