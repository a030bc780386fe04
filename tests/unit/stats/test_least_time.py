"""The least time of a call, worked out by hand for processors that exist, and what happens below it."""

import pytest
from msgspec.structs import replace

from enginebench.core.records import Gpu, LeastWork, Machine, Measurement, Result
from enginebench.measure.machine import describe_machine
from enginebench.stats.least_time import HIGHEST_MHZ, bound_call_ms, find_bound_ms, warn_implausible
from enginebench.stats.validity import assess_samples, explain_implausible, is_implausible
from samples import make_result

XEON = replace(
    describe_machine(),
    cpu_model="Intel Xeon Platinum 8480+",
    cpu_max_mhz=3800.0,
    cpu_mhz=2000.0,
    cpu_flags=("fma", "avx2", "avx512f", "avx512_vnni", "amx_tile", "amx_int8", "amx_bf16"),
    cores_logical=8,
    gpus=(),
)
# A thousand million of each, so that a figure below reads as milliseconds of one core at 1 GHz.
PRODUCTS = LeastWork(conv_macs=0.0, gemm_macs=1e9, read_bytes=0.0, written_bytes=0.0)


def bound(machine: Machine, *precisions: str, work: LeastWork = PRODUCTS, device: str = "cpu") -> float:
    return bound_call_ms(work, precisions, device, machine, pinned=(0, 1), threads=2)


@pytest.mark.parametrize(
    ("flags", "precision", "macs_a_cycle"),
    [
        (XEON.cpu_flags, "fp32", 32),
        (XEON.cpu_flags, "bf16", 512),
        (XEON.cpu_flags, "int8", 1024),
        (("avx2", "avx512f", "avx512_vnni"), "int8", 128),
        (("fma", "avx2"), "fp32", 16),
        ((), "fp32", 256),  # unknown instructions: the most that any have
    ],
)
def test_the_instruction_set_and_the_precision_set_the_rate(
    flags: tuple[str, ...], precision: str, macs_a_cycle: int
) -> None:
    found = bound(replace(XEON, cpu_flags=flags), precision)
    assert found == pytest.approx(1e3 * 1e9 / (macs_a_cycle * 2 * 3.8e9))


def test_of_several_precisions_the_fastest_counts_and_of_none_the_fastest_of_all() -> None:
    assert bound(XEON, "fp32", "int8", "reorder") == bound(XEON, "int8") < bound(XEON, "fp32")
    assert bound(XEON) < bound(XEON, "int8")  # four bits


def test_convolutions_count_a_quarter() -> None:
    work = replace(PRODUCTS, conv_macs=4e9, gemm_macs=0.0)
    assert bound(XEON, "fp32", work=work) == bound(XEON, "fp32")


def test_bytes_set_the_bound_of_a_graph_without_products() -> None:
    work = replace(PRODUCTS, gemm_macs=0.0, read_bytes=0.7e9, written_bytes=0.3e9)
    assert bound(XEON, "fp32", work=work) == pytest.approx(1e3 * 1e9 / (192 * 2 * 3.8e9))


@pytest.mark.parametrize(
    ("model", "mhz", "highest"),
    [
        ("Intel Xeon", None, HIGHEST_MHZ),
        ("Intel Xeon", 2401.0, HIGHEST_MHZ),  # a boost that the driver does not name
        ("AMD EPYC 7763", 2450.0, HIGHEST_MHZ),
        ("Intel Xeon", 3800.0, 3800.0),
    ],
)
def test_a_clock_that_is_not_known_to_be_the_highest_is_the_highest_of_all(
    model: str, mhz: float | None, highest: float
) -> None:
    found = bound(replace(XEON, cpu_model=model, cpu_max_mhz=mhz), "fp32")
    assert found == pytest.approx(1e3 * 1e9 / (32 * 2 * highest * 1e6))


def test_the_fastest_precision_that_ran_counts_beside_tf32() -> None:
    machine = replace(XEON, gpus=(Gpu(index=0, name="NVIDIA H200", driver="", memory_bytes=1, sm_clock_max_mhz=1000),))
    assert bound(machine, "tf32", "int8", device="cuda:0") == bound(machine, "int8", device="cuda:0")


def test_without_pinning_all_processors_of_the_machine_count() -> None:
    found = bound_call_ms(PRODUCTS, ["fp32"], "cpu", XEON, pinned=None, threads=2)
    assert found == pytest.approx(bound(XEON, "fp32") * 2 / 8)


@pytest.mark.parametrize(
    ("name", "precision", "tera_macs"),
    [
        ("NVIDIA H200", "fp16", 132 * 2048 * 1.98e9 / 1e12),
        ("NVIDIA H200", "tf32", 132 * 1024 * 1.98e9 / 1e12),
        ("NVIDIA H200", "fp32", 132 * 1024 / 3 * 1.98e9 / 1e12),  # three products in TF32
        ("Tesla T4", "int8", 40 * 1024 * 1.59e9 / 1e12),
        ("NVIDIA GeForce RTX 6090", "fp16", 256 * 8192 * 3e9 / 1e12),  # more than any that is listed
    ],
)
def test_a_gpu_is_known_by_its_name(name: str, precision: str, tera_macs: float) -> None:
    gpu = Gpu(index=0, name=name, driver="", memory_bytes=1, sm_clock_max_mhz=1000)
    found = bound(replace(XEON, gpus=(gpu,)), precision, device="cuda:0")
    assert found == pytest.approx(1e9 / (tera_macs * 1e12) * 1e3)


def make_timed(median_ms: float, *, share: float = 1.0, **fields: object) -> Result:
    """A row on two cores of XEON with a least time of 1e9 / (32 * 2 * 3.8e9) s, 4.11 ms, in FP32.

    Only `share` of its calls take the median; the others take 10 ms.
    """
    row = make_result("ort", median_ms=median_ms)
    short = round(100 * share)
    calls = [round(median_ms * 1e6)] * short + [10_000_000] * (100 - short)
    trials = tuple(replace(m, latency_ns=calls, blocks=(), pinned_cpus=(0, 1)) for m in row.measurements)
    return replace(row, **{"machine": XEON, "work": PRODUCTS, "measurements": trials} | fields)


@pytest.mark.parametrize(
    ("row", "implausible"),
    [
        (make_timed(4.2), False),
        (make_timed(4.0), True),
        (make_timed(0.1, share=0.04), False),  # single samples: a clock that jumps
        (make_timed(0.1, share=0.3), True),  # every third call does nothing
        (make_timed(4.0, work=None), False),
        (make_timed(4.0, effective_precision={"fp32": 0.2, "bf16": 0.8}), False),
    ],
)
def test_times_below_the_bound_are_implausible(row: Result, implausible: bool) -> None:
    warned = warn_implausible(row)
    assert is_implausible(warned.measurements) == implausible
    assert (assess_samples(warned.measurements)[0] == "implausible") == implausible
    assert ("no correct engine is so fast" in explain_implausible(warned.measurements)) == implausible
    assert warn_implausible(warned) == warned, "once is enough"


def test_modelled_times_have_no_bound() -> None:
    row = make_timed(4.0)
    modelled: Measurement = replace(row.measurements[0], clock="modelled")
    assert find_bound_ms(row, modelled) is None and find_bound_ms(row, row.measurements[0]) is not None
