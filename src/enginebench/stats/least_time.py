"""The least time that a call can take on a processor: a bound that no correct engine beats.

It is the longer one of two times: of the multiply-accumulates that must be done at the processor's own peak, and of the
bytes that must be read and written at the rate of its first-level caches. Everything that is not known is taken as the
most favourable value that any processor has. Source of the idea: Williams, Waterman, Patterson, "Roofline: an
insightful visual performance model for multicore architectures", CACM 52(4), 2009; the peaks here are of the hardware,
not measured, because a measured peak is only the best that some program reached.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import get_args

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.records import LeastWork, Machine, Measurement, Precision, Result, ResultWarning
from enginebench.core.warnings import make_warning
from enginebench.stats.quantiles import median

# Winograd's algorithm F(4x4, 3x3) does a 3x3 convolution with a quarter of the multiplications. Source: Lavin, Gray,
# "Fast algorithms for convolutional neural networks", CVPR 2016. Larger tiles lose too many digits to be used.
WINOGRAD = 4.0
# Times below the bound in more than this share of the calls: an engine that works in every other call has a median of
# its choice. A clock that jumps touches single samples.
SHORT_SHARE = 0.05

# Multiply-accumulates a cycle of a core, by what its instruction set does: two ports for vectors of 512 or 256 bits, a
# product and a sum of each lane; AMX multiplies tiles of 16 rows and 16 columns in 16 cycles. Sources: Intel 64 and
# IA-32 Architectures Optimization Reference Manual (248966), chapters on AVX-512, VNNI and AMX; Agner Fog, "Instruction
# tables" (AMD Zen 4 and Zen 5, which do no more).
Rates = Mapping[str, float]
_AVX2: Rates = {"fp32": 16, "16": 32, "8": 64, "4": 128}
_AVX512: Rates = {"fp32": 32, "16": 64, "8": 128, "4": 256}
_AMX: Rates = {"fp32": 32, "16": 512, "8": 1024, "4": 2048}
# The outer products of SME and of Apple's matrix units, with vectors of 512 bits: more than any other instructions.
_ANY: Rates = {"fp32": 256, "16": 512, "8": 1024, "4": 2048}
_WIDTHS: Mapping[Precision, str] = {
    "fp32": "fp32",
    "tf32": "fp32",
    "fp16": "16",
    "bf16": "16",
    "int8": "8",
    "fp8": "8",
    "int4": "4",
}
# The highest clock of any x86 processor that is sold (Intel Core i9-14900KS), in MHz.
HIGHEST_MHZ = 6200.0
# Two loads and one store of 64 bytes in a cycle of a core.
BYTES_A_CYCLE = 192.0


class Chip(Struct, frozen=True):
    """A GPU: its multiprocessors, the multiply-accumulates of each in a cycle, and its highest clock."""

    processors: int
    rates: Mapping[str, float]
    mhz: float


def _make_rates(fp32: float, tf32: float, fp16: float, int8: float) -> Mapping[str, float]:
    """Return rates by precision. FP32 may be put together from three products in TF32, as cuBLAS does on request."""
    return {"fp32": max(fp32, tf32 / 3), "tf32": tf32 or fp32, "16": fp16, "8": int8, "4": 2 * int8}


# Sources: NVIDIA's architecture white papers (Volta, Turing, Ampere GA100 and GA102, Ada, Hopper, Blackwell), without
# sparsity: multiplications by zero weights are not counted as work.
_VOLTA = _make_rates(fp32=64, tf32=0, fp16=512, int8=512)
_TURING = _make_rates(fp32=64, tf32=0, fp16=512, int8=1024)
_GA100 = _make_rates(fp32=64, tf32=512, fp16=1024, int8=2048)
_GA102_AND_ADA = _make_rates(fp32=128, tf32=256, fp16=512, int8=1024)
_HOPPER = _make_rates(fp32=128, tf32=1024, fp16=2048, int8=4096)
_BLACKWELL = _make_rates(fp32=128, tf32=2048, fp16=4096, int8=8192)
# The largest variant of each name.
_CHIPS: Mapping[str, Chip] = {
    "V100": Chip(processors=80, rates=_VOLTA, mhz=1597),
    "T4": Chip(processors=40, rates=_TURING, mhz=1590),
    "A100": Chip(processors=108, rates=_GA100, mhz=1410),
    "A30": Chip(processors=56, rates=_GA100, mhz=1440),
    "A10": Chip(processors=84, rates=_GA102_AND_ADA, mhz=1800),
    "A10G": Chip(processors=84, rates=_GA102_AND_ADA, mhz=1800),
    "L4": Chip(processors=60, rates=_GA102_AND_ADA, mhz=2040),
    "L40": Chip(processors=142, rates=_GA102_AND_ADA, mhz=2520),
    "L40S": Chip(processors=142, rates=_GA102_AND_ADA, mhz=2520),
    "H100": Chip(processors=132, rates=_HOPPER, mhz=1980),
    "H200": Chip(processors=132, rates=_HOPPER, mhz=1980),
    "GH200": Chip(processors=132, rates=_HOPPER, mhz=1980),
    "B200": Chip(processors=148, rates=_BLACKWELL, mhz=1965),
}
# A GPU that is not listed: more than the largest of these.
_ANY_CHIP = Chip(256, _make_rates(256, 4096, 8192, 16384), 3000)
# What a multiprocessor reads from its own cache and shared memory, and writes, in a cycle.
CHIP_BYTES_A_CYCLE = 256.0


def bound_call_ms(
    work: LeastWork,
    precisions: Collection[str],
    device: str,
    machine: Machine,
    pinned: Sequence[int] | None,
    threads: int,
) -> float:
    """Return the milliseconds that no engine stays below.

    Args:
        precisions: those that ran, of which the fastest counts; empty: unknown, so the fastest of all.
        pinned: the processors that the engine could use; None: all of the machine.
    """
    kinds = {_WIDTHS[name] for name in get_args(Precision) if name in precisions} or set(_WIDTHS.values())
    macs = work.conv_macs / WINOGRAD + work.gemm_macs
    moved = work.read_bytes + work.written_bytes
    if device == "cpu":
        cores = len(pinned) if pinned else max(threads, machine.cores_logical)
        cycles_per_s = cores * _find_clock_mhz(machine) * 1e6
        rates, bytes_a_cycle = _find_rates(machine), BYTES_A_CYCLE
    else:
        name, clock_mhz = _find_gpu(machine, device)
        chip = next((_CHIPS[word] for word in re.split(r"[^A-Za-z0-9]+", name) if word in _CHIPS), _ANY_CHIP)
        cycles_per_s = chip.processors * max(chip.mhz, clock_mhz) * 1e6
        rates, bytes_a_cycle = chip.rates, CHIP_BYTES_A_CYCLE
        if "tf32" in precisions:
            kinds |= {"tf32"}
    rate = max(rates[kind] for kind in kinds if kind in rates)
    return 1e3 * max(macs / rate, moved / bytes_a_cycle) / cycles_per_s


def _find_rates(machine: Machine) -> Rates:
    flags = set(machine.cpu_flags)
    if any(flag.startswith("amx") for flag in flags):
        return _AMX
    if "avx512f" in flags:
        return _AVX512
    return _AVX2 if "avx2" in flags else _ANY


def _find_clock_mhz(machine: Machine) -> float:
    """Return the highest clock of the processor; of one whose highest is not known, the highest of all.

    AMD's drivers may name the highest clock without boost. So does Intel's older one (acpi-cpufreq), with 1 MHz more
    than the base clock where there is a boost.
    """
    named = machine.cpu_max_mhz
    unsure = named is None or "AMD" in machine.cpu_model or round(named) % 10 == 1
    return HIGHEST_MHZ if named is None or unsure else max(named, machine.cpu_mhz or 0.0)


def _find_gpu(machine: Machine, device: str) -> tuple[str, float]:
    """Return (name, highest clock in MHz) of the GPU `cuda:N`; empty where the machine does not list it."""
    for gpu in machine.gpus:
        if device in (f"cuda:{gpu.index}", "cuda"):
            return gpu.name, float(gpu.sm_clock_max_mhz or 0)
    return "", 0.0


def find_bound_ms(result: Result, measurement: Measurement) -> float | None:
    """Return the least time of a call of this configuration in milliseconds; None where nobody knows it."""
    if result.work is None or result.machine is None or measurement.clock == "modelled":
        return None
    named = {result.engine.precision, *(result.effective_precision or ())} - {None}
    engine = result.engine
    return bound_call_ms(
        result.work, {str(one) for one in named}, engine.device, result.machine, measurement.pinned_cpus, engine.threads
    )


def warn_implausible(result: Result) -> Result:
    """Return the result with a warning on each trial whose times no correct engine can have."""
    return replace(result, measurements=tuple(_warn_trial(result, m) for m in result.measurements))


def _warn_trial(result: Result, measurement: Measurement) -> Measurement:
    least_ms = find_bound_ms(result, measurement)
    warned = any(warning.template == "implausible_time.bound" for warning in measurement.warnings)
    if least_ms is None or warned or not measurement.latency_ns:
        return measurement
    short = float(np.mean(np.asarray(measurement.latency_ns) < least_ms * 1e6))
    if short <= SHORT_SHARE:
        return measurement
    warning: ResultWarning = make_warning(
        "implausible_time.bound",
        median_ms=median(measurement.latency_ns) / 1e6,
        least_ms=least_ms,
        precision=(result.engine.precision or "any precision").upper(),
        share=short,
    )
    return replace(measurement, warnings=(*measurement.warnings, warning))
