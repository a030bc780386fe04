"""The measured peaks of a machine: rates, bandwidths and launch costs, stored with its description."""

from typing import Literal

from msgspec import Struct, field

from enginebench.core.records import Machine, Precision

PEAKS_SCHEMA = "enginebench.roofline/1"

# Rates of multiply-accumulates, rates of bytes, and the shortest times of a launch or a call.
PeakKind = Literal["gemm", "conv", "l1", "l2", "l3", "l4", "memory", "kernel", "graph", "call"]
Unit = Literal["GMAC/s", "GB/s", "us"]
UNITS: dict[PeakKind, Unit] = {
    "gemm": "GMAC/s",
    "conv": "GMAC/s",
    "l1": "GB/s",
    "l2": "GB/s",
    "l3": "GB/s",
    "l4": "GB/s",
    "memory": "GB/s",
    "kernel": "us",
    "graph": "us",
    "call": "us",
}
LEVELS: tuple[PeakKind, ...] = ("l1", "l2", "l3", "l4", "memory")


class Peak(Struct, frozen=True, kw_only=True):
    """The best observed value of one quantity: the highest rate, or the shortest time.

    Each trial has a best of its own; `low` and `high` are the smallest and the largest of them, and one is `value`.
    """

    kind: PeakKind
    precision: Precision | None  # of what is multiplied; None where nothing is
    threads: int | None  # None on a GPU
    value: float
    unit: Unit
    low: float
    high: float
    device: str = "cpu"
    capacity_bytes: int | None = None  # of a cache: of all the cores that the threads have
    n: int = 1  # trials
    method: str = field(default="", name="how")  # the operator and the size that reached it


class Peaks(Struct, frozen=True, kw_only=True):
    """The JSON document of `roofline`, which is also what is stored."""

    schema: str = PEAKS_SCHEMA
    machine: Machine
    peaks: tuple[Peak, ...] = field(name="ceilings")
    measured_utc: str = ""
    quick: bool = False
    processes: int = 1  # fresh ones for each device and number of threads
    notes: tuple[str, ...] = ()  # what could not be measured, and why


def list_differences(then: Machine, now: Machine) -> list[str]:
    """Return the differences of two machines that affect peaks; empty if peaks of `then` hold for `now`."""
    drivers = [next((gpu.driver for gpu in machine.gpus), None) for machine in (then, now)]
    parts: list[tuple[str, object, object]] = [
        ("processor", then.cpu_model, now.cpu_model),
        ("instruction sets", " ".join(then.cpu_flags), " ".join(now.cpu_flags)),
        ("allowed CPUs", len(then.cpus_allowed), len(now.cpus_allowed)),
        ("CPU quota", then.cpu_quota_cores, now.cpu_quota_cores),
        ("GPUs", ", ".join(gpu.name for gpu in then.gpus), ", ".join(gpu.name for gpu in now.gpus)),
        ("torch", then.versions.get("torch"), now.versions.get("torch")),
        ("driver", drivers[0], drivers[1]),
    ]
    return [f"{what} was {old or 'none'}, now {new or 'none'}" for what, old, new in parts if old != new]
