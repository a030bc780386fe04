"""Choose the number of CPUs that an engine runs on, and which CPUs, and bind the process to them."""

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from enginebench.core.errors import UsageError
from enginebench.measure.topology import ROOT, group_cores, read_allowed_cpus, read_capacity, read_cpu_quota

# Small cores of hybrid CPUs reach 40 to 75 % of a large one; favoured cores differ from the others by a few percent.
SMALL_CORE_SHARE = 0.8


def default_threads(*, root: Path = ROOT, allowed: Collection[int] | None = None) -> int:
    """Return the threads for every engine: physical cores in the affinity mask, within the container's quota, or 1.

    Two threads on one core share its arithmetic units, so a second one seldom helps and always adds noise.
    """
    cores = len(group_cores(read_allowed_cpus() if allowed is None else allowed, root))
    quota = read_cpu_quota(root)
    return max(1, cores if quota is None else min(cores, int(quota)))


def choose_cpus(threads: int, allowed: Collection[int], root: Path = ROOT) -> tuple[int, ...]:
    """Return the CPUs for `threads` threads: the last ones, large cores before small, cores before their siblings.

    The last ones, because interrupts and other processes gather on the first. All of `allowed` where it has fewer.
    """
    cores = group_cores(allowed, root)
    strongest = max((read_capacity(core[0], root) or 0 for core in cores), default=0)

    def rank(position: tuple[int, int]) -> tuple[bool, int, int]:
        core, sibling = position
        capacity = read_capacity(cores[core][0], root)
        return capacity is not None and capacity < SMALL_CORE_SHARE * strongest, sibling, -core

    positions = [(core, sibling) for core in range(len(cores)) for sibling in range(len(cores[core]))]
    chosen = sorted(positions, key=rank)[:threads]
    return tuple(sorted(cores[core][sibling] for core, sibling in chosen))


def pin_process(threads: int) -> tuple[int, ...] | None:
    """Bind every thread of this process to CPUs and return these; None where the system cannot do that (macOS).

    Threads that are started later inherit it, so an engine loaded afterwards stays on these CPUs.
    """
    if threads < 1:
        raise UsageError(f"threads is {threads}; at least 1 is needed")
    return pin_to(choose_cpus(threads, read_allowed_cpus()))


def pin_to(cpus: tuple[int, ...]) -> tuple[int, ...] | None:
    """Bind every thread of this process to `cpus`, like `pin_process`."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        os.sched_setaffinity(0, cpus)
    except OSError:
        return None  # forbidden in some sandboxes; the caller records that nothing is pinned
    for task in Path("/proc/self/task").glob("*"):
        with suppress(OSError, ValueError):  # a thread may end meanwhile
            os.sched_setaffinity(int(task.name), cpus)
    return cpus


def share_cpus(
    threads: int, share: float = 0.0, allowed: Collection[int] | None = None, root: Path = ROOT
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (CPUs of an engine, CPUs of the process that feeds it).

    The latter gets a whole core if the engine's threads leave one, else both get all CPUs. With a `share`, it gets
    that fraction of the cores, and the engine's threads are cut to the rest.
    """
    cpus = tuple(sorted(read_allowed_cpus() if allowed is None else allowed))
    cores = group_cores(cpus, root)
    own = tuple(sorted(cpu for core in cores[: max(1, int(share * len(cores)))] for cpu in core))
    left = [cpu for cpu in cpus if cpu not in own]
    threads = min(threads, len(left)) if share else threads
    if len(cores) < 2 or threads > len(left):
        return cpus, cpus
    return choose_cpus(threads, left, root), own


def count_stream_threads(streams: int) -> int:
    """Return the default threads of each of `streams`: all cores but that of the generator of requests."""
    return max(1, (default_threads() - 1) // streams)
