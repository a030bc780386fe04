"""The FPGA design: cycles, compiled simulation of all digits, closed forms, and place and route with three seeds.

    python benchmarks/fpga.py [--quick] [--write] [--only PART/LANES/BITS ...] [--out DIR]

--quick leaves place and route out. --write keeps the speeds found in the package, where `fpga-sim` reads them.

The claims of plugins/fpga/README.md rest on this.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np

from enginebench.core.store import encode, write_atomic
from enginebench_fpga.board import SPEEDS_FILE, Speed, SpeedTable, read_speeds
from enginebench_fpga.network import count_ideal_cycles, requantize, split_scale
from enginebench_fpga.simulation import count_engine_cycles, count_transaction_cycles
from enginebench_fpga.synth import Synthesis
from enginebench_fpga.verb import read_quantized_network, simulate_model, synthesize_model

# Source of every limit: the first draft of this design, which this one must not fall behind (issue "Beyond the GPU").
CYCLE_LIMITS = {1: 1.05, 4: 1.05, 8: 1.05, 16: 1.15}
SIMULATION_LIMIT_S = 60.0
CLOSED_FORM_LIMIT = 1e-3
TOP1_LIMIT = 2  # classes that may differ from ONNX Runtime
BAUD_DIVISORS = {115200: 104, 921600: 13, 3000000: 4}  # at 12 MHz
# (part, lanes, bits of the multiplier) -> least median Fmax in MHz, or None: to be reported
CELLS: dict[tuple[str, int, int], float | None] = {
    ("ecp5-25k", 16, 16): 110.0,
    ("ice40up5k", 4, 16): 32.0,
    ("ice40hx8k", 8, 16): 59.0,
    ("ecp5-25k", 16, 32): None,
    ("ice40up5k", 4, 32): None,
    ("ice40hx8k", 8, 32): None,
    ("ice40hx8k", 16, 16): None,
    ("ice40up5k", 8, 16): None,
}


def check_cycles() -> bool:
    """Prints cycles of an inference against the ideal; whether every limit is met."""
    network = read_quantized_network(None, 16)
    print("lanes  ideal  cycles  ratio  limit")
    met = True
    for lanes, limit in CYCLE_LIMITS.items():
        sizes = network.sizes
        ideal, cycles = count_ideal_cycles(sizes, lanes), count_engine_cycles(sizes, lanes)
        met &= cycles <= limit * ideal
        print(f"{lanes:5}  {ideal:5}  {cycles:6}  {cycles / ideal:.3f}  {limit}{mark(cycles <= limit * ideal)}")
    return met


def check_rounding() -> bool:
    """Prints how many of 640,000 requantized sums differ from what ONNX says; whether 32 bits never do.

    The sums are those of 64 products of bytes, seeded. The exact answer is the float64 product, rounded half to even.
    A scale that is a power of two makes every 256th sum an exact tie.
    """
    sums = np.random.default_rng(0).integers(-128, 128, (10_000, 64)) @ np.random.default_rng(1).integers(
        -127, 128, (64, 64)
    )
    scales = {"generic 1.43e-3": 1.43e-3, "power of two 2^-8": 2.0**-8}
    print(f"\nmultiplier    {'  '.join(scales)}   numbers of {sums.size} that differ")
    exact_ones_agree = True
    for bits in (32, 24, 16):
        wrong = []
        for scale in scales.values():
            exact = np.clip(np.rint(sums * scale), -128, 127)
            wrong.append(int((requantize(sums, *split_scale(scale, bits), 0) != exact).sum()))
        exact_ones_agree &= bits != 32 or not any(wrong)
        print(f"{bits:10}  {wrong[0]:16}  {wrong[1]:17}")
    return exact_ones_agree


def check_simulation() -> bool:
    """Prints what the compiled simulation of all digits found; whether every limit is met."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        found = simulate_model(None, (8, 12, 32), n=None, cache_dir=Path(scratch))
    seconds = time.perf_counter() - start
    wrong = len(found.differs_from_onnxruntime or ())
    print(
        f"\nall {found.n} digits through UART and engine, divisor 12: {seconds:.1f} s with quantizing and compiling "
        f"(limit {SIMULATION_LIMIT_S:g}){mark(seconds <= SIMULATION_LIMIT_S)}; {found.simulated_cycles} cycles, "
        f"{found.simulated_cycles / found.simulation_s / 1e6:.1f} million a second"
    )
    print(
        f"numbers that differ from the reference: {found.mismatches}{mark(not found.mismatches)}; classes that differ "
        f"from ONNX Runtime: {wrong} (limit {TOP1_LIMIT}){mark(wrong <= TOP1_LIMIT)}; top-1 {found.top1:.4f}"
    )
    return seconds <= SIMULATION_LIMIT_S and not found.mismatches and wrong <= TOP1_LIMIT


def check_closed_form() -> bool:
    """Prints the closed-form latency beside simulated cycles at three baud rates; whether they agree."""
    print("\n   baud  divisor  simulated  closed form  jitter  total ms  compute share")
    met = True
    for baud, divisor in BAUD_DIVISORS.items():
        found = simulate_model(None, (8, divisor, 32), n=20)
        predicted = count_transaction_cycles(read_quantized_network(None, 32), 8, divisor)
        good = abs(found.transaction_cycles - predicted) <= CLOSED_FORM_LIMIT * predicted
        met &= good
        share = found.cycles_per_inference / found.transaction_cycles
        print(
            f"{baud:7}  {divisor:7}  {found.transaction_cycles:9}  {predicted:11}  {found.jitter_cycles:6}  "
            f"{found.transaction_us / 1e3:8.3f}  {share:.2%}{mark(good)}"
        )
    return met


def check_cell(cell: tuple[str, int, int], out: Path) -> tuple[bool, Synthesis]:
    """Prints one design on one part; whether its limit is met."""
    part, lanes, bits = cell
    start = time.perf_counter()
    found = synthesize_model(
        None, part=part, lanes=lanes, divisor=12, multiplier_bits=bits, seeds=3, out_dir=out / f"{part}-{lanes}-{bits}"
    )
    limit = CELLS[cell]
    met = limit is None or (found.fmax_mhz is not None and found.fmax_mhz >= limit)
    speeds = " ".join(f"{p.fmax_mhz:.1f}" for p in found.placements if p.fmax_mhz is not None)
    speed = f"median {found.fmax_mhz:.1f}  seeds {speeds}" if found.fmax_mhz else "does not fit"
    print(
        f"{part:9}  {lanes:5}  {bits:4}  {found.luts:5}  {found.ffs:5}  {found.logic_used or '-':>5}  {found.dsps:4}  "
        f"{found.brams:4}  {speed}{'' if limit is None else f'  limit {limit:g}'}{mark(met)}  "
        f"({time.perf_counter() - start:.0f} s)",
        flush=True,
    )
    return met, found


def mark(met: bool) -> str:
    """Nothing, or the words that a missed limit shows."""
    return "" if met else "  NOT met"


def write_speeds(found: list[Synthesis]) -> None:
    """Puts what was found into the table in the package; what was not tried now stays."""
    new = {
        (s.part, s.lanes, s.multiplier_bits): Speed(
            part=s.part,
            lanes=s.lanes,
            multiplier_bits=s.multiplier_bits,
            fmax_mhz=s.fmax_mhz,
            seeds_mhz=tuple(p.fmax_mhz for p in s.placements if p.fmax_mhz is not None),
        )
        for s in found
        if s.fmax_mhz is not None
    }
    old = {(s.part, s.lanes, s.multiplier_bits): s for s in read_speeds().speeds} if SPEEDS_FILE.exists() else {}
    tools: dict[str, str] = {}
    for synthesis in found:
        tools |= synthesis.tools
    speeds = tuple(speed for _, speed in sorted((old | new).items()))
    table = SpeedTable(network="digits-mlp, int8@cpu, divisor 12", tools=tools, speeds=speeds)
    write_atomic(SPEEDS_FILE, msgspec.json.format(encode(table), indent=1) + b"\n")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", nargs="*", help="PART/LANES/BITS")
    parser.add_argument("--out", type=Path, default=Path("results") / "fpga-synth")
    given = parser.parse_args()
    met = check_cycles() & check_rounding() & check_simulation() & check_closed_form()
    if given.quick:
        return 0 if met else 1
    print("\npart       lanes  bits   LUTs    FFs  cells  DSPs  RAMs  Fmax after routing, MHz", flush=True)
    wanted = given.only or ["/".join(map(str, cell)) for cell in CELLS]
    found = []
    for cell in CELLS:
        if "/".join(map(str, cell)) in wanted:
            good, synthesis = check_cell(cell, given.out)
            met &= good
            found.append(synthesis)
            if given.write:
                write_speeds(found)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
