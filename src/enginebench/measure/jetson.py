"""The state of a Jetson: clocks, power, temperature and over-current from its sysfs; one line of `tegrastats`.

Its GPU is part of the chip: NVML shows little or nothing of it. Nothing here changes a setting or needs root, and what
cannot be read is None.

Sources: Jetson Linux Developer Guide, r32.7 to r36.4, "Clock Frequency and Power Management" (GPU's devfreq, INA3221,
thermal zones, over-current events) and "tegrastats Utility". No Jetson was at hand: the tests' files are written after
these pages.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from enginebench.core.records import BlockReading
from enginebench.measure.nvml import find_marks
from enginebench.measure.topology import ROOT, read_int, read_system_file

# The GPU's node in the device tree: of TX2, Xavier, Orin, and of all from L4T 36 on.
GPU_NODES = frozenset({"gp10b", "gv11b", "ga10b", "gpu"})
# The supply of the whole module, where a board measures it; else the parts are added up.
WHOLE_MODULE = ("VDD_IN", "POM_5V_IN")
# A channel of the sensor that is connected to nothing.
UNCONNECTED = "NC"
# tegrastats prints a first line after an interval, of 100 ms here, and goes on until it is stopped.
TEGRASTATS_S = 1.0

_MHZ, _MILLI = 1_000_000, 1000


def is_jetson(root: Path = ROOT) -> bool:
    return "jetson" in (read_system_file(root / "proc/device-tree/model") or "").lower()


def describe_jetson(root: Path = ROOT) -> dict[str, str] | None:
    """Return model, L4T release, power mode, memory and fixed clocks of a Jetson; None on any other machine."""
    if not is_jetson(root):
        return None
    release = (read_system_file(root / "etc/nv_tegra_release") or "").split(", GCID")[0].lstrip("# ")
    # nvpmodel's status (`pmode:0002`), and the names in its configuration: `NAME (id)`.
    status = re.search(r"pmode:0*(\d+)", read_system_file(root / "var/lib/nvpmodel/status") or "")
    names = dict(re.findall(r"POWER_MODEL ID=(\d+) NAME=(\S+)", read_system_file(root / "etc/nvpmodel.conf") or ""))
    mode = status[1] if status else ""
    fixed = has_fixed_clocks(root)
    facts = {
        "model": read_system_file(root / "proc/device-tree/model") or "",
        "l4t": release,
        "power_mode": f"{names[mode]} ({mode})" if mode in names else mode,
        "jetson_clocks": {True: "on", False: "off", None: ""}[fixed],
        "memory": "unified: CPU and GPU share it",
    }
    return {name: value for name, value in facts.items() if value}


def has_fixed_clocks(root: Path = ROOT) -> bool | None:
    """Whether the GPU's and the CPUs' clocks have no room to move, as after `jetson_clocks`; None if unknown."""
    gpu = find_gpu_folder(root)
    pairs = [(read_int(gpu / "min_freq"), read_int(gpu / "max_freq"))] if gpu else []
    for folder in sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq")):
        pairs.append((read_int(folder / "scaling_min_freq"), read_int(folder / "scaling_max_freq")))
    if gpu is None or any(None in pair for pair in pairs):
        return None
    return all(low == high for low, high in pairs)


def find_gpu_folder(root: Path = ROOT) -> Path | None:
    """Return the folder in which the kernel shows the GPU's clock."""
    for folder in sorted((root / "sys/class/devfreq").glob("*")):
        name = read_system_file(folder / "device/of_node/name") or folder.name.rpartition(".")[2]
        if name in GPU_NODES:
            return folder
    return None


def read_power_mw(root: Path = ROOT) -> dict[str, float]:
    """Return the power of every supply that the board's sensors measure, in milliwatts.

    From L4T 34 on the sensors give volts and amperes (hwmon), before it power (iio).
    """
    rails: dict[str, float] = {}
    for sensor in sorted((root / "sys/bus/i2c/devices").glob("*")):
        for label in sorted(sensor.glob("hwmon/hwmon*/in*_label")):
            number = label.name.removeprefix("in").removesuffix("_label")
            millivolts = read_int(label.with_name(f"in{number}_input"))
            milliamperes = read_int(label.with_name(f"curr{number}_input"))  # none of the sum of shunt voltages
            name = read_system_file(label)
            if name and millivolts is not None and milliamperes is not None:
                rails[name] = millivolts * milliamperes / _MILLI
        for label in sorted(sensor.glob("iio:device*/rail_name_*")):
            power = read_int(label.with_name(f"in_power{label.name.rpartition('_')[2]}_input"))
            name = read_system_file(label)
            if name and power is not None:
                rails[name] = float(power)
    return {name: power for name, power in rails.items() if name != UNCONNECTED}


def add_up_power_w(rails: dict[str, float]) -> float | None:
    """Return the power of the module in watts: its own supply, else the sum of its parts; None without any."""
    whole = next((rails[name] for name in WHOLE_MODULE if name in rails), sum(rails.values()))
    return whole / _MILLI if rails else None


class JetsonWatch:
    """Reads a Jetson's GPU before and after each block, as `GpuWatch` reads a card's.

    Attributes:
        default_clock_mhz: the highest clock of the power mode.
        hides_processes: always: who works on the GPU beside this process is not to be seen.
    """

    hides_processes = True

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._gpu = find_gpu_folder(root)
        highest = read_int(self._gpu / "max_freq") if self._gpu else None
        self.default_clock_mhz = None if highest is None else highest // _MHZ
        self._zone = next(iter(_find_gpu_zones(root)), None)
        self._events = 0

    def begin(self) -> None:
        self._events = self._count_events()

    def end(self) -> BlockReading:
        """Return the reading right after a block. The clock is read first, because it falls once the load is gone."""
        clock = self.read_clock_mhz()
        millidegrees = read_int(self._zone / "temp") if self._zone else None
        reasons = ("over_current",) if self._count_events() > self._events else ()
        return BlockReading(
            sm_clock_mhz=clock,
            temperature_c=None if millidegrees is None else round(millidegrees / _MILLI),
            power_w=add_up_power_w(read_power_mw(self._root)),
            throttle_reasons=reasons,
            marks=find_marks(clock, reasons, None, self.default_clock_mhz),
        )

    def read_clock_mhz(self) -> int | None:
        hertz = read_int(self._gpu / "cur_freq") if self._gpu else None
        return None if hertz is None else hertz // _MHZ

    def watch_energy_counter(self) -> None:
        """Do nothing: the sensors have no such counter."""

    def peak_memory_bytes(self) -> int | None:
        """Return None: the GPU has no memory of its own."""
        return None

    def energy_per_image(self, images: int) -> tuple[float, float] | None:
        """Return None: power at the ends of blocks is no energy."""
        return None

    def _count_events(self) -> int:
        """Return how often an over-current has lowered the clocks since the start of the machine."""
        files = (self._root / "sys/class/hwmon").glob("hwmon*/oc*_event_cnt")
        return sum(filter(None, map(read_int, files)))


def open_jetson_watch(root: Path = ROOT) -> JetsonWatch | None:
    """Open a watch on the GPU of a Jetson; None elsewhere, and in a container that hides the GPU's clock."""
    return JetsonWatch(root) if is_jetson(root) and find_gpu_folder(root) else None


def _find_gpu_zones(root: Path) -> Iterator[Path]:
    for zone in sorted((root / "sys/class/thermal").glob("thermal_zone*")):
        if (read_system_file(zone / "type") or "").lower() in ("gpu-thermal", "gpu-therm"):
            yield zone


class Tegrastats(Struct, frozen=True, kw_only=True):
    """One line of `tegrastats`; None of what it does not print, as clocks without root."""

    ram_used_mb: int
    ram_mb: int
    gpu_mhz: int | None = None
    memory_mhz: int | None = None
    power_mw: dict[str, int] = {}
    temperature_c: float | None = None


# Bounded numbers: int() refuses thousands of digits.
_RAM = re.compile(r"\bRAM (\d{1,9})/(\d{1,9})MB")
_MEMORY_CLOCK = re.compile(r"\bEMC_FREQ \d+%@(\d{1,9})\b")
# `GR3D_FREQ 0%@318`, from L4T 35 on `GR3D_FREQ 0%@[510]`; on Orin a clock of each cluster: `GR3D_FREQ 99%@[1300,1300]`.
_GPU_CLOCK = re.compile(r"\bGR3D_FREQ \d+%@\[?(\d{1,9})\b")
_TEMPERATURE = re.compile(r"\bgpu@(-?\d{1,9}(?:\.\d{1,9})?)C", re.IGNORECASE)
# `VDD_IN 5079mW/5079mW`, and before L4T 32.6 `SYS5V 1483/1483`: now and on average.
_RAIL = re.compile(r"\b([A-Z][A-Z0-9_]*) (\d{1,9})(?:mW)?/\d+(?:mW)?(?= |$)")
# What a sensor of a switched-off part shows.
_OFF_C = -256.0


def parse_tegrastats(line: str) -> Tegrastats | None:
    """Parse a line of `tegrastats` of L4T 32 to 36; None of anything else."""
    if (ram := _RAM.search(line)) is None:
        return None
    gpu, memory, heat = _GPU_CLOCK.search(line), _MEMORY_CLOCK.search(line), _TEMPERATURE.search(line)
    celsius = float(heat[1]) if heat else None
    rails = {name: int(now) for name, now in _RAIL.findall(line) if name not in (UNCONNECTED, "RAM", "SWAP", "IRAM")}
    return Tegrastats(
        ram_used_mb=int(ram[1]),
        ram_mb=int(ram[2]),
        gpu_mhz=int(gpu[1]) if gpu else None,
        memory_mhz=int(memory[1]) if memory else None,
        power_mw=rails,
        temperature_c=None if celsius == _OFF_C else celsius,
    )


def read_tegrastats(find: Callable[[str], str | None] = shutil.which) -> Tegrastats | None:
    """Return the first line that `tegrastats` prints; None where there is no such tool, or it prints something else."""
    if (path := find("tegrastats")) is None:
        return None
    try:
        command = [path, "--interval", "100"]
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=TEGRASTATS_S, check=False)
        printed = done.stdout
    except subprocess.TimeoutExpired as error:  # as always: it prints until it is stopped
        printed = error.stdout or b""
    except OSError:
        return None
    return parse_tegrastats(printed.decode("utf-8", "replace").partition("\n")[0])


def list_readings(readings: Tegrastats | None) -> Iterator[tuple[str, str]]:
    """Yield what `tegrastats` showed just now, as lines for a reader."""
    if readings is None:
        return
    yield "memory now", f"{readings.ram_used_mb} of {readings.ram_mb} MB used, by CPU and GPU together"
    clocks = {"GPU": readings.gpu_mhz, "memory": readings.memory_mhz}
    shown = ", ".join(f"{name} {mhz} MHz" for name, mhz in clocks.items() if mhz is not None)
    yield "clocks now", shown or "not shown without root: sudo tegrastats"
    watts = {name: power / _MILLI for name, power in readings.power_mw.items()}
    if watts:
        yield "power now", ", ".join(f"{name} {power:.1f} W" for name, power in watts.items())
    if readings.temperature_c is not None:
        yield "temperature now", f"GPU {readings.temperature_c:.0f} C"
