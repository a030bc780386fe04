"""Describe the machine: everything about it that affects a latency, and nothing that identifies its owner."""

import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import psutil
from msgspec.structs import replace

import enginebench
from enginebench.core.cuda_devices import find_gpu_name
from enginebench.core.records import Gpu, Machine, ResultWarning
from enginebench.core.warnings import make_warning
from enginebench.measure.caches import read_caches
from enginebench.measure.jetson import describe_jetson
from enginebench.measure.pin import default_threads
from enginebench.measure.topology import (
    ROOT,
    group_cores,
    read_allowed_cpus,
    read_cpu_quota,
    read_int,
    read_memory_limit,
    read_memory_total,
    read_system_file,
)
from enginebench.measure.watch import CPU_NOT_WATCHED

T = TypeVar("T")


def describe_gpus() -> tuple[Gpu, ...]:
    """Return every GPU that NVML lists; without NVML (on a Jetson) the first of CUDA's driver; empty without both."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # a missing module, library, driver or device
        name = find_gpu_name()
        return (Gpu(index=0, name=name, driver="", memory_bytes=0),) if name else ()
    try:
        return tuple(_describe_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
    except Exception:
        return ()
    finally:
        _query(pynvml.nvmlShutdown)


def _describe_gpu(nvml: Any, index: int) -> Gpu:
    def decode(text: str | bytes) -> str:
        return text.decode(errors="replace") if isinstance(text, bytes) else text

    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    limit_mw = _query(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    return Gpu(
        index=index,
        name=decode(nvml.nvmlDeviceGetName(handle)),
        driver=decode(nvml.nvmlSystemGetDriverVersion()),
        memory_bytes=_query(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total)) or 0,
        sm_clock_max_mhz=_query(lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))),
        memory_clock_max_mhz=_query(lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM))),
        power_limit_w=None if limit_mw is None else limit_mw / 1000,
    )


def _query(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except Exception:  # integrated and virtual GPUs support only some of the queries
        return None


# Instruction sets that inference kernels are chosen by, as Linux spells them in /proc/cpuinfo.
FLAGS = (
    *("f16c", "fma", "avx2", "avx_vnni", "avx_vnni_int8"),
    *("avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
    *("asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme"),
)

# Packages whose version can change a time or an output.
PACKAGES = (
    "numpy", "scipy", "torch", "torchvision", "timm", "triton", "onnx", "onnxscript", "onnxruntime",
    "onnxruntime-gpu", "onnxruntime-ep-openvino", "onnxruntime-ep-nv-tensorrt-rtx-cu13", "openvino", "nncf",
    "tensorrt", "tensorrt-cu12", "tensorrt-cu13", "tensorrt_rtx_cu13_bindings", "cuda-python", "cuda-bindings",
    "nvidia-ml-py", "nvidia-modelopt", "transformers", "msgspec", "psutil", "pillow", "amaranth",
)  # fmt: skip

# Arm names its cores by number only. Source: the MIDR_EL1 values in Arm's manuals of each core, gathered in
# util-linux, sys-utils/lscpu-arm.c.
ARM_CORES = {
    ("0x41", "0xd03"): "Cortex-A53", ("0x41", "0xd05"): "Cortex-A55", ("0x41", "0xd07"): "Cortex-A57",
    ("0x41", "0xd08"): "Cortex-A72", ("0x41", "0xd0b"): "Cortex-A76", ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1", ("0x41", "0xd42"): "Cortex-A78AE", ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2", ("0x4e", "0x003"): "NVIDIA Denver 2", ("0x4e", "0x004"): "NVIDIA Carmel",
}  # fmt: skip

# macOS's names (sysctl) of what Linux calls by other names.
MACOS_FLAGS = {
    "hw.optional.avx2_0": "avx2", "hw.optional.avx512f": "avx512f", "hw.optional.arm.FEAT_BF16": "bf16",
    "hw.optional.arm.FEAT_I8MM": "i8mm", "hw.optional.arm.FEAT_DotProd": "asimddp", "hw.optional.AdvSIMD": "asimd",
    "hw.optional.arm.FEAT_SME": "sme",
}  # fmt: skip
MACOS_CACHES = ("hw.l3cachesize", "hw.perflevel0.l2cachesize", "hw.l2cachesize")


def describe_machine(root: Path = ROOT, *, allowed: Sequence[int] | None = None) -> Machine:
    """Describe this machine, its limits and its versions. What cannot be read is None; nothing is raised."""
    cpus = read_allowed_cpus() if allowed is None else tuple(allowed)
    has_proc = (root / "proc/cpuinfo").exists()
    machine = _describe_linux(root, cpus) if has_proc else _describe_macos(cpus)
    return replace(machine, warnings=tuple(_list_machine_warnings(machine, root)))


@cache
def read_instructions() -> frozenset[str]:
    """Return the instruction sets of this CPU by which engines choose their kernels."""
    return frozenset(describe_machine().cpu_flags)


def read_package_versions() -> dict[str, str]:
    """Return the versions of Python, EngineBench and each package that can change a result, without importing any."""
    versions = {"python": platform.python_version(), "enginebench": enginebench.__version__}
    for package in PACKAGES:
        try:
            distribution = metadata.distribution(package)
        except metadata.PackageNotFoundError:
            continue
        # Read from the head of METADATA: `Distribution.version` parses all of it, long descriptions included.
        head = (distribution.read_text("METADATA") or "").partition("\n\n")[0]
        match = re.search(r"^Version: *(\S+)", head, re.MULTILINE)
        versions[package] = match[1] if match else distribution.version
    return versions


def _describe_linux(root: Path, cpus: tuple[int, ...]) -> Machine:
    info = read_system_file(root / "proc/cpuinfo") or ""
    online = [int(cpu) for cpu in re.findall(r"^processor\s*:\s*(\d+)", info, re.MULTILINE)]
    name = re.search(r'^PRETTY_NAME="?([^"\n]+)', read_system_file(root / "etc/os-release") or "", re.MULTILINE)
    line = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", info, re.MULTILINE)
    present = set(line[1].split()) if line else set[str]()
    folders = [root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq" for cpu in cpus]
    governors = {governor for folder in folders if (governor := read_system_file(folder / "scaling_governor"))}
    khz = [f for folder in folders if (f := read_int(folder / "scaling_cur_freq")) is not None]
    max_khz = [f for folder in folders if (f := read_int(folder / "cpuinfo_max_freq")) is not None]
    mhz = [f / 1000 for f in khz] or [float(f) for f in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", info, re.MULTILINE)]
    load = re.match(r"\d+\.\d+(?!\S)", read_system_file(root / "proc/loadavg") or "")
    kernel = read_system_file(root / "proc/sys/kernel/osrelease") or "unknown"
    return Machine(
        os=f"{name[1] if name else 'Linux'}, kernel {kernel}",
        arch=platform.machine(),
        cpu_model=_read_cpu_model(info, root),
        cpu_flags=tuple(flag for flag in FLAGS if flag in present),
        cores_physical=len(group_cores(online, root)),
        cores_logical=len(online),
        cpus_allowed=cpus,
        cpu_quota_cores=read_cpu_quota(root),
        memory_bytes=read_memory_total(root) or 0,
        memory_limit_bytes=read_memory_limit(root),
        governor=", ".join(sorted(governors)) or None,
        cpu_mhz=round(sum(mhz) / len(mhz), 1) if mhz else None,  # of the allowed CPUs, just now
        cpu_max_mhz=max(max_khz) / 1000 if max_khz else None,
        load_1m=float(load[0]) if load else None,
        virtual=_read_virtual(info, root),
        last_level_cache_bytes=next((c.size_bytes for c in read_caches(cpus[0] if cpus else 0, root)[::-1]), None),
        default_threads=default_threads(root=root, allowed=cpus),
        versions=read_package_versions(),
        gpus=describe_gpus(),
        jetson=describe_jetson(root),
    )


def _describe_macos(
    cpus: tuple[int, ...], read_sysctl: Callable[[Sequence[str]], dict[str, str]] | None = None
) -> Machine:
    """Describe a machine without /proc by what sysctl, psutil and the standard library report."""
    facts = (read_sysctl or _read_sysctl)(("machdep.cpu.brand_string", *MACOS_FLAGS, *MACOS_CACHES))
    caches = [int(facts[name]) for name in MACOS_CACHES if facts.get(name, "0") not in ("", "0")]
    physical = psutil.cpu_count(logical=False) or len(cpus)
    return Machine(
        os=f"{platform.system()} {platform.release()}",
        arch=platform.machine(),
        cpu_model=facts.get("machdep.cpu.brand_string") or platform.processor() or "unknown",
        cpu_flags=tuple(flag for name, flag in MACOS_FLAGS.items() if facts.get(name) == "1"),
        cores_physical=physical,
        cores_logical=len(cpus),
        cpus_allowed=cpus,
        cpu_quota_cores=None,
        memory_bytes=psutil.virtual_memory().total,
        memory_limit_bytes=None,
        governor=None,
        cpu_mhz=None,
        cpu_max_mhz=None,
        load_1m=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        virtual=None,
        last_level_cache_bytes=max(caches, default=None),
        default_threads=max(1, physical),
        versions=read_package_versions(),
        gpus=describe_gpus(),
    )


def _read_sysctl(names: Sequence[str]) -> dict[str, str]:
    """Return sysctl's values by name, without the names that it does not know."""
    try:
        done = subprocess.run(["sysctl", *names], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return {}
    pairs = (line.partition(":") for line in done.stdout.decode("utf-8", "replace").splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _list_machine_warnings(machine: Machine, root: Path) -> Iterator[ResultWarning]:
    if machine.governor and "powersave" in machine.governor:
        yield make_warning(
            "environment.setting",
            setting="CPU frequency governor",
            value="powersave",
            effect="clocks follow the load",
            cure="run sudo cpupower frequency-set -g performance",
        )
    if machine.jetson and machine.jetson.get("jetson_clocks") == "off":
        mode = f" (power mode {machine.jetson['power_mode']})" if "power_mode" in machine.jetson else ""
        yield make_warning(
            "environment.setting",
            setting="setting of jetson_clocks",
            value=f"off{mode}",
            effect="clocks of CPU and GPU follow the load",
            cure="run sudo jetson_clocks, after sudo nvpmodel -m MODE if another power mode is wanted",
        )
    if machine.cpu_quota_cores is not None and machine.cpu_quota_cores < len(machine.cpus_allowed):
        yield make_warning(
            "environment.setting",
            setting="CPU quota",
            value=f"{machine.cpu_quota_cores:g} cores",
            effect="it stops the process for part of each period when it is spent",
            cure="give the container a cpuset instead of a quota",
        )
    source = read_system_file(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    if source in ("hpet", "acpi_pm", "jiffies"):
        yield make_warning(
            "environment.setting",
            setting="clock source",
            value=source,
            effect="reading it costs a microsecond or more",
            cure="boot with clocksource=tsc",
        )
    if not (root / "proc/stat").exists():
        yield CPU_NOT_WATCHED


def _read_cpu_model(info: str, root: Path) -> str:
    model = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    if model:
        return model[1].strip()
    makers = re.findall(r"^CPU implementer\s*:\s*(\S+)", info, re.MULTILINE)
    parts = re.findall(r"^CPU part\s*:\s*(\S+)", info, re.MULTILINE)
    cores = dict.fromkeys(zip(makers, parts, strict=False))
    names = [ARM_CORES.get(core, f"implementer {core[0]} part {core[1]}") for core in cores]
    return " + ".join(names) or read_system_file(root / "proc/device-tree/model") or "unknown"


def _read_virtual(info: str, root: Path) -> str | None:
    """Return the hypervisor and the container that this system shows to run in; None if it shows neither."""
    kinds = []
    if re.search(r"^flags\s*:.*\bhypervisor\b", info, re.MULTILINE) or (root / "sys/hypervisor/type").exists():
        maker = read_system_file(root / "sys/hypervisor/type") or read_system_file(root / "sys/class/dmi/id/sys_vendor")
        kinds.append(f"hypervisor ({maker})" if maker else "hypervisor")
    if "microsoft" in (read_system_file(root / "proc/sys/kernel/osrelease") or "").lower():
        kinds.append("WSL")
    groups = read_system_file(root / "proc/self/cgroup") or ""
    signs = {
        "docker": (root / ".dockerenv").exists() or "docker" in groups,
        "podman": (root / "run/.containerenv").exists() or "libpod" in groups,
        "kubernetes": "kubepods" in groups,
        "lxc": "/lxc" in groups,
    }
    kinds += [f"container ({name})" for name, present in signs.items() if present]
    return ", ".join(kinds) or None
