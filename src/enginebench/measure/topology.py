"""The CPUs of this machine, the cores that they belong to, and the limits of a container.

Every reader takes the file-system root under which proc and sys lie, returns None for what the system does not report,
and never raises.
"""

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

ROOT = Path("/")


def read_allowed_cpus() -> tuple[int, ...]:
    """Return the CPUs in this process's affinity mask; all CPUs where the system has no such mask (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def group_cores(cpus: Collection[int], root: Path = ROOT) -> list[tuple[int, ...]]:
    """Group `cpus` by physical core, in the order of their lowest CPU; CPUs of unknown siblings are cores of one."""
    cores: dict[object, list[int]] = {}
    for cpu in sorted(cpus):
        cores.setdefault(_read_siblings(cpu, root) or cpu, []).append(cpu)
    return [tuple(core) for core in cores.values()]


def _read_siblings(cpu: int, root: Path) -> str | None:
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    return read_system_file(topology / "core_cpus_list") or read_system_file(topology / "thread_siblings_list")


def whole_cores(cpus: Collection[int], root: Path = ROOT) -> frozenset[int]:
    """Return `cpus` with the siblings that share a core with one of them: work on a sibling slows them down."""
    return frozenset().union(*({cpu} | parse_cpu_list(_read_siblings(cpu, root) or "") for cpu in cpus))


def read_capacity(cpu: int, root: Path = ROOT) -> int | None:
    """Return the strength of a CPU relative to the others: the kernel's capacity, or its highest frequency."""
    folder = root / f"sys/devices/system/cpu/cpu{cpu}"
    return read_int(folder / "cpu_capacity") or read_int(folder / "cpufreq/cpuinfo_max_freq")


def read_cpu_quota(root: Path = ROOT) -> float | None:
    """Return the cores granted by the container's CPU quota, the tightest of all levels; None without a quota.

    Source: Linux Documentation/admin-guide/cgroup-v2.rst (cpu.max) and scheduler/sched-bwc.rst (cfs_quota_us).
    """
    # "max 100000", and -1, are no quota.
    texts = (read_system_file(folder / "cpu.max") or "" for folder in _unified_folders(root))
    quotas = [int(m[1]) / int(m[2]) for m in (re.fullmatch(r"(\d+)\s+(0*[1-9]\d*)", text) for text in texts) if m]
    for folder in _controller_folders(root, "cpu"):
        quota, period = read_int(folder / "cpu.cfs_quota_us"), read_int(folder / "cpu.cfs_period_us")
        quotas += [quota / period] if quota is not None and quota > 0 and period else []
    return min(quotas, default=None)


def read_memory_limit(root: Path = ROOT) -> int | None:
    """Return the container's memory limit in bytes, the tightest of all levels; None if none is below the memory."""
    limits = [read_int(folder / "memory.max") for folder in _unified_folders(root)]
    limits += [read_int(folder / "memory.limit_in_bytes") for folder in _controller_folders(root, "memory")]
    total = read_memory_total(root)
    return min((limit for limit in limits if limit is not None and (total is None or limit < total)), default=None)


def read_memory_total(root: Path = ROOT) -> int | None:
    match = re.search(r"^MemTotal:\s*(\d+)", read_system_file(root / "proc/meminfo") or "", re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def read_cpuset(root: Path = ROOT) -> frozenset[int] | None:
    """Return the CPUs of the container's cpuset; None without one. Pinning in the container does not change it."""
    candidates = [folder / "cpuset.cpus.effective" for folder in _unified_folders(root)]
    for folder in _controller_folders(root, "cpuset"):
        candidates += [folder / "cpuset.effective_cpus", folder / "cpuset.cpus"]
    texts = (read_system_file(path) for path in candidates)
    return next((cpus for text in texts if text and (cpus := parse_cpu_list(text))), None)


def parse_cpu_list(text: str) -> frozenset[int]:
    """The CPUs of the kernel's list format: "0-3,8" is 0, 1, 2, 3, 8; empty where it is not such a list."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            return frozenset()
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def read_system_file(path: Path) -> str | None:
    """Return the file's text without surrounding blanks and NULs; None if it cannot be read or is empty."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip().strip("\0").strip() or None
    except (OSError, ValueError):
        return None


def read_int(path: Path) -> int | None:
    """Return the whole number that the file holds; None for anything else, such as "max"."""
    text = read_system_file(path)
    return int(text) if text and text.lstrip("-").isdigit() else None


def _unified_folders(root: Path) -> Iterator[Path]:
    """Return the cgroup v2 folders of this process, innermost first, up to the mount point."""
    mount = root / "sys/fs/cgroup"
    if not (mount / "cgroup.controllers").exists():
        mount = mount / "unified"
    return _folders_upwards(mount, _read_cgroup_path(root, ""))


def _controller_folders(root: Path, controller: str) -> Iterator[Path]:
    """Return the cgroup v1 folders of one controller for this process, innermost first, up to the mount point."""
    path = _read_cgroup_path(root, controller)
    for name in {"cpu": ("cpu", "cpu,cpuacct", "cpuacct,cpu")}.get(controller, (controller,)):
        mount = root / "sys/fs/cgroup" / name
        if mount.is_dir():
            return _folders_upwards(mount, path)
    return iter(())


def _folders_upwards(mount: Path, path: str) -> Iterator[Path]:
    # A path that does not exist under the mount is the host's name for what the container sees as the mount itself.
    relative = Path(path.lstrip("/"))
    if ".." in relative.parts:
        relative = Path()
    for folder in (relative, *relative.parents):
        if (mount / folder).is_dir():
            yield mount / folder


def _read_cgroup_path(root: Path, controller: str) -> str:
    """Return the path of this process in a hierarchy; "" as controller stands for cgroup v2. Source: cgroups(7)."""
    for line in (read_system_file(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            return path
    return "/"
