"""CPUs: what the kernel's files say of them, how many threads, on which, and inputs that leave their caches."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebench.core.errors import UsageError
from enginebench.measure import pin, topology
from enginebench.measure.caches import MAX_SET_BYTES, OBJECT_BYTES, rotate_feeds, rotating_count
from enginebench.measure.pin import choose_cpus, default_threads, pin_process
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


@pytest.mark.parametrize(
    ("files", "limit", "cpus"),
    [(AMD_V2, 2 * 1024**3, {0, 1, 2}), (INTEL_V1, None, {0, 1})],  # above the machine: none
)
def test_memory_limits_and_cpusets(lay_out: LayOut, files, limit, cpus) -> None:
    root = lay_out(files)
    assert (topology.read_memory_limit(root), topology.read_cpuset(root)) == (limit, cpus)


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8", {0, 1, 2, 3, 8}), ("0,2-2\n", {0, 2}), ("", set()), ("a-b", set()), ("1-", {1})]
)
def test_cpu_lists(text: str, cpus: set[int]) -> None:
    assert topology.parse_cpu_list(text) == cpus


def test_allowed_cpus_are_those_of_the_mask_and_without_one_all(monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(os, "sched_getaffinity"):
        assert set(topology.read_allowed_cpus()) == os.sched_getaffinity(0)
    assert len(topology.read_allowed_cpus()) >= 1
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert topology.read_allowed_cpus() == (0, 1, 2)


def test_broken_files_are_none(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    (tmp_path / "folder").mkdir()
    assert topology.read_int(tmp_path / "binary") is None
    assert topology.read_system_file(tmp_path / "folder") is None
    assert topology.read_system_file(tmp_path / "missing") is None


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
    assert choose_cpus(2, (0, 3, 5, 9), root / "no files") == (5, 9), "the last ones"


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
def test_where_pinning_is_unknown_or_forbidden_the_result_is_none_and_no_threads_are_an_error(
    monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    def forbid(pid: int, cpus: object) -> None:
        raise PermissionError("not allowed here")

    monkeypatch.setattr(os, "sched_setaffinity", forbid, raising=False)
    if not known:
        monkeypatch.delattr(os, "sched_setaffinity")
    assert pin_process(1) is None
    with pytest.raises(UsageError, match="threads is 0"):
        pin_process(0)


@pytest.mark.parametrize(("cores", "streams", "threads"), [(8, 1, 7), (8, 2, 3), (2, 1, 1), (1, 4, 1)])
def test_streams_share_the_cores_that_the_generator_leaves(monkeypatch, cores, streams, threads) -> None:
    monkeypatch.setattr(pin, "default_threads", lambda: cores)
    assert pin.count_stream_threads(streams) == threads


MIB = 1024 * 1024


@given(st.integers(0, 1 << 30), st.integers(0, 1 << 30))
def test_the_set_is_larger_than_the_cache_and_bounded(input_bytes: int, cache: int) -> None:
    count = rotating_count(input_bytes, cache)
    total, each = count * (input_bytes + OBJECT_BYTES), input_bytes + OBJECT_BYTES
    assert count >= 2
    assert total > cache
    assert total < max(MAX_SET_BYTES, cache) + 2 * each or count == 2


@pytest.mark.parametrize(
    ("input_bytes", "cache", "count"),
    [(602_112, 32 * MIB, 112), (MIB, 512 * MIB, 512), (MIB, None, 192)],  # twice, just exceeded, unknown and so large
)
def test_the_size_of_the_set(input_bytes: int, cache: int | None, count: int) -> None:
    assert rotating_count(input_bytes, cache) == pytest.approx(count, abs=1 if count > 112 else 0)


def test_copies_are_equal_contiguous_and_lie_at_addresses_of_their_own() -> None:
    feeds = {
        "x": np.arange(12, dtype=np.float32).reshape(1, 3, 4),
        "n": np.array(7),
        "t": np.arange(6.0).reshape(2, 3).T,
    }
    copies = rotate_feeds(feeds, 5)
    for name, array in feeds.items():
        for copy in (copy[name] for copy in copies):
            assert (copy.shape, copy.dtype, copy.flags.c_contiguous) == (array.shape, array.dtype, True)
            np.testing.assert_array_equal(copy, array)
        assert len({array.ctypes.data, *(copy[name].ctypes.data for copy in copies)}) == 6
