"""Store and find peaks: one file per machine in the user's cache folder, and a copy in every run that used them."""

import os
from pathlib import Path

from msgspec import Struct, field

from enginebench.core.commands import format_command
from enginebench.core.errors import EngineBenchError
from enginebench.core.names import slug
from enginebench.core.peaks import PEAKS_SCHEMA, Peaks, list_differences
from enginebench.core.records import Machine
from enginebench.core.store import encode, find_cache, read_record, write_atomic

FILE = "ceilings.json"
_QUICK = format_command("roofline", options=[("--quick", None)])
ADVICE = f"`{format_command('roofline')}` measures it, `{_QUICK}` in less than a minute"


class StoredPeaks(Struct, frozen=True, kw_only=True):
    """The peaks of a machine, or the reason why there are none."""

    peaks: Peaks | None = field(default=None, name="ceilings")
    reason: str = ""
    exists: bool = True  # whether there is a file for this machine


def find_peak_store() -> Path:
    """Return the folder of this user's peaks: `$ENGINEBENCH_CEILINGS`, else one in the user's cache."""
    return Path(os.environ.get("ENGINEBENCH_CEILINGS") or find_cache() / "ceilings")


def name_file(machine: Machine) -> str:
    """Return the file name of a machine's peaks. Machines of several kinds can share one home folder."""
    gpus = [gpu.name for gpu in machine.gpus]
    return f"{slug(' '.join([machine.cpu_model, f'{len(machine.cpus_allowed)} cpus', *gpus]))[:120]}.json"


def locate_peaks(machine: Machine) -> Path:
    return find_peak_store() / name_file(machine)


def store_peaks(peaks: Peaks, out: Path | None = None) -> list[Path]:
    """Write the peaks to the user's cache, where `run` and `profile` read them, and to `out`."""
    paths = [locate_peaks(peaks.machine), *([out / "roofline.json"] if out else [])]
    for path in paths:
        write_atomic(path, encode(peaks, indent=2))
    return paths


def find_peaks(machine: Machine) -> StoredPeaks:
    """Find the stored peaks of this machine; those of another machine or library are refused, with the reason."""
    path = locate_peaks(machine)
    if not path.exists():
        return StoredPeaks(reason=f"no roofline is stored for this machine: {ADVICE}", exists=False)
    try:
        peaks = read_record(path, Peaks, PEAKS_SCHEMA, "Run enginebench roofline again")
    except EngineBenchError as error:
        return StoredPeaks(reason=f"the stored roofline cannot be used: {error}. {ADVICE}")
    if changed := "; ".join(list_differences(peaks.machine, machine)):
        when = peaks.measured_utc
        return StoredPeaks(reason=f"the stored roofline ({when}) no longer matches this machine: {changed}. {ADVICE}")
    return StoredPeaks(peaks=peaks)
