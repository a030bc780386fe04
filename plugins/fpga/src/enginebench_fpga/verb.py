"""`fpga`: an INT8 network behind a UART, simulated, written as Verilog, synthesized."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypedDict

import click
import numpy as np
from msgspec import Struct

from enginebench import door
from enginebench.core.errors import MissingDependency, UsageError
from enginebench.core.records import Recipe
from enginebench.core.store import write_atomic
from enginebench.core.text import count_of
from enginebench.options import Opt, Printed
from enginebench_fpga.toolchain import convert_verilog, find_tool_package

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from enginebench_fpga.network import Network
    from enginebench_fpga.synth import Synthesis

DEFAULT_MODEL = "digits-mlp"
# The recipe of ONNX Runtime's INT8 row, so that both run the same file.
DEFAULT_RECIPE: Recipe = "cpu"
CALIBRATION_IMAGES = 256
DEFAULT_CLOCK_MHZ = 12.0  # the oscillator on boards with iCE40 devices


class Design(TypedDict, total=False):
    # Source: gateware/uart.py, LARGEST_DIVISOR; gateware/engine.py, MOST_LANES.
    lanes: Annotated[int, Opt("Products per clock cycle.", 8, ge=1, le=64)]
    divisor: Annotated[int, Opt("Clock cycles per bit on the UART.", 12, ge=1, le=65535)]
    multiplier_bits: Annotated[
        int, Opt("Width of the requantizer's multiplier: 32 agrees with ONNX Runtime, 16 is cheaper.", 32, ge=4, le=32)
    ]


Clock: TypeAlias = Annotated[float, Opt("Clock of the device.", DEFAULT_CLOCK_MHZ, gt=0, le=1e4)]


# A simulated inference takes about a millisecond: more would run for hours.
LARGEST_COUNT = 10_000_000


class Simulation(Design, Printed, total=False):
    n: Annotated[int | None, Opt("Number of inputs. [all 1797 digits]", ge=1, le=LARGEST_COUNT)]
    clock_mhz: Clock
    cache: Annotated[str | None, Opt("Folder that keeps compiled designs.", path="new folder")]


class VerilogFile(Design, total=False):
    out: Annotated[str, Opt("The Verilog file.", "device.v", path="new file")]


class SynthesisOptions(Design, Printed, total=False):
    part: Annotated[str, Opt("ice40up5k, ice40hx8k (or hx8k), or ecp5-25k.", required=True)]
    seeds: Annotated[int, Opt("Number of placements to try.", 3, ge=1, le=100)]
    out: Annotated[str | None, Opt("Folder for logs and reports. [results/fpga-PART-LANES]", path="new folder")]


@door.command(None, "[MODEL]", shown=Simulation, name="simulate")
def _simulate(model: str | None, shown: Simulation) -> None:
    """Send inputs through the simulated device, UART included, and compare every output.

    Example: enginebench fpga simulate --lanes 16 --n 10
    """
    document = simulate_model(
        model,
        (shown["lanes"], shown["divisor"], shown["multiplier_bits"]),
        n=shown["n"],
        clock_mhz=shown["clock_mhz"],
        cache_dir=Path(shown["cache"]) if shown["cache"] else None,
        say=lambda text: click.echo(text, err=True),
    )
    door.show(document, shown, lambda document, _: click.echo("\n".join(format_simulation(document))))


@door.command(None, "[MODEL]", shown=VerilogFile, name="verilog")
def _verilog(model: str | None, shown: VerilogFile) -> None:
    """Write the device as Verilog: a module `top` with ports clk, rst, rx, tx and computing.

    Example: enginebench fpga verilog --lanes 16 --out top.v
    """
    verilog = convert_verilog(make_rtlil(model, shown["lanes"], shown["divisor"], shown["multiplier_bits"]))
    write_atomic(Path(shown["out"]), verilog.encode())
    click.echo(f"{shown['out']}: {count_of(verilog.count(chr(10)), 'lines')}", err=True)


@door.command(None, "[MODEL]", shown=SynthesisOptions, name="synth")
def _synth(model: str | None, shown: SynthesisOptions) -> None:
    """Synthesize, place and route the device with open-source tools.

    Example: enginebench fpga synth --part ice40up5k --lanes 4

    This takes minutes. Every log is kept.
    """
    part, lanes, multiplier_bits = shown["part"], shown["lanes"], shown["multiplier_bits"]
    document = synthesize_model(
        model,
        part=part,
        lanes=lanes,
        divisor=shown["divisor"],
        multiplier_bits=multiplier_bits,
        seeds=shown["seeds"],
        out_dir=Path(shown["out"] or f"results/fpga-{part}-{lanes}-{multiplier_bits}"),
    )
    door.show(document, shown, lambda document, _: click.echo("\n".join(format_synthesis(document))))


command = door.group(
    "fpga",
    _simulate,
    _verilog,
    _synth,
    help="""Simulate or synthesize an INT8 network behind a UART.

    Example: enginebench fpga simulate --n 10

    MODEL is digits-mlp or a quantized .onnx file whose layers form a chain.
    """,
)


def format_simulation(document: SimulateDocument) -> list[str]:
    ratio = document.cycles_per_inference / document.ideal_cycles
    lines = [
        f"{document.n} inferences on {document.lanes} lanes: {document.mismatches} numbers differ from the reference",
        f"{document.cycles_per_inference} cycles per inference, {ratio:.3f} x ideal; "
        f"{document.latency_us:.2f} us at {document.clock_mhz:g} MHz",
        f"{document.transaction_cycles} cycles with the UART (divisor {document.divisor}), "
        f"{document.transaction_us:.1f} us; closed form {document.predicted_transaction_cycles}, "
        f"jitter {document.jitter_cycles}",
    ]
    if document.top1 is not None:
        lines.append(f"top-1 {document.top1:.4f}")
    if (differs := document.differs_from_onnxruntime) is not None:
        lines.append(f"{len(differs)} classes differ from ONNX Runtime")
        text = "  input {0.index}: device {0.device}, ONNX Runtime {0.onnxruntime}, margin {0.margin:.4g}"
        lines += map(text.format, differs)
    rate = document.simulated_cycles / max(document.simulation_s, 1e-9)
    lines.append(f"simulated {document.simulated_cycles} cycles in {document.simulation_s:.2f} s ({rate:.3g}/s)")
    return lines + list(document.notes)


def format_synthesis(document: Synthesis) -> list[str]:
    return [
        f"{document.part}, {document.lanes} lanes, multiplier of {document.multiplier_bits} bits: "
        f"{document.luts} LUTs, {document.ffs} flip-flops, {document.dsps} DSPs, {document.brams} block RAMs",
        f"Fmax after routing: median {document.fmax_mhz:.1f} MHz, best {document.fmax_best_mhz:.1f} MHz "
        f"({count_of(len(document.placements), 'seeds')})"
        if document.fits
        else f"does not fit: {document.placements[0].reason}",
        f"logs in {document.out}",
    ]


class Difference(Struct, frozen=True, kw_only=True):
    """An input for which the device and ONNX Runtime choose different classes, and how close the choice is."""

    index: int
    device: int
    onnxruntime: int
    label: int | None
    margin: float  # between the two classes, in units of the device's answers; 0 is a tie


class SimulateDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `fpga simulate`. `latency_us` is the engine's; `transaction_us` includes the UART."""

    schema: str = "enginebench.fpga.simulate/1"
    model: str
    network: str  # checksum
    n: int
    lanes: int
    divisor: int
    multiplier_bits: int
    simulator: str = "compiled"
    cycles_per_inference: int
    ideal_cycles: int
    clock_mhz: float
    latency_us: float
    transaction_cycles: int
    transaction_us: float
    predicted_transaction_cycles: int
    jitter_cycles: int
    mismatches: int  # numbers in the answers that differ from the integer reference
    top1: float | None
    differs_from_onnxruntime: tuple[Difference, ...] | None
    simulated_cycles: int
    simulation_s: float
    notes: tuple[str, ...]


def find_network_file(model: str | None, out_dir: Path) -> Path:
    """The file; by default `digits-mlp` in INT8 by the recipe of ONNX Runtime's row, calibrated on training digits."""
    if model not in (None, DEFAULT_MODEL):
        if not model.lower().endswith(".onnx"):
            raise UsageError(f"{model!r}: the FPGA design runs {DEFAULT_MODEL} or a quantized .onnx file")
        return Path(model)
    from enginebench.models.onnx.source import read_packaged_onnx
    from enginebench.models.precision.calibrate import calibrate
    from enginebench.models.precision.calibration_data import open_data
    from enginebench.models.precision.quantize import quantize

    artifact = read_packaged_onnx(DEFAULT_MODEL)
    data = open_data("digits", model=DEFAULT_MODEL, inputs=artifact.inputs, n=CALIBRATION_IMAGES)
    ranges = calibrate(artifact, data, threads=1)
    out_dir.mkdir(parents=True, exist_ok=True)
    target = out_dir / f"{DEFAULT_MODEL}.int8.onnx"
    return Path(quantize(artifact, "int8", DEFAULT_RECIPE, target, calibration=ranges, threads=1).path)


def read_quantized_network(model: str | None, multiplier_bits: int) -> Network:
    find_tool_package("amaranth")
    from enginebench_fpga.onnx_reader import read_network

    with tempfile.TemporaryDirectory(prefix="enginebench-") as scratch:
        return read_network(find_network_file(model, Path(scratch)), multiplier_bits)


def simulate_model(
    model: str | None,
    design: tuple[int, int, int],
    *,
    n: int | None,
    clock_mhz: float = DEFAULT_CLOCK_MHZ,
    cache_dir: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> SimulateDocument:
    """Sends inputs through the simulated device and compares the answers with the integer reference and ONNX Runtime.

    Args:
        design: lanes, divisor of the UART, bits of the multiplier.
        n: number of inputs; None: all digits, or 100 random inputs for another network.
        cache_dir: folder that keeps compiled designs; None: they are not kept.
    """
    find_tool_package("amaranth")
    from enginebench_fpga.gateware.device import make_device
    from enginebench_fpga.network import count_ideal_cycles
    from enginebench_fpga.onnx_reader import read_network
    from enginebench_fpga.simulation import count_transaction_cycles, simulate_inferences

    lanes, divisor, bits = design
    with tempfile.TemporaryDirectory(prefix="enginebench-") as scratch:
        path = find_network_file(model, Path(scratch))
        network = read_network(path, bits)
        inputs, labels = _choose_inputs(network, n)
        rows = network.encode(inputs)
        found = simulate_inferences(make_device(network, lanes, divisor), rows, cache_dir or Path(scratch), say)
        theirs = _run_onnxruntime(path, network, inputs)
    ours = network.decode(found.answers)
    longest = max(found.transaction_cycles)
    return SimulateDocument(
        model=model or DEFAULT_MODEL,
        network=f"{network.checksum:08x}",
        n=len(rows),
        lanes=lanes,
        divisor=divisor,
        multiplier_bits=bits,
        cycles_per_inference=found.cycles_per_inference,
        ideal_cycles=count_ideal_cycles(network.sizes, lanes),
        clock_mhz=clock_mhz,
        latency_us=found.cycles_per_inference / clock_mhz,
        transaction_cycles=longest,
        transaction_us=longest / clock_mhz,
        predicted_transaction_cycles=count_transaction_cycles(network, lanes, divisor),
        jitter_cycles=longest - min(found.transaction_cycles),
        mismatches=int((found.answers != network.infer_bytes(rows)).sum()),
        top1=None if labels is None else float((ours.argmax(axis=1) == labels).mean()),
        differs_from_onnxruntime=None if theirs is None else find_other_classes(ours, theirs, labels),
        simulated_cycles=found.simulated_cycles,
        simulation_s=found.seconds,
        notes=network.notes,
    )


def _choose_inputs(network: Network, n: int | None) -> tuple[NDArray[np.float32], NDArray[np.int64] | None]:
    """(inputs, their labels): digits for a network that takes them, else seeded bytes."""
    if network.inputs == 64 and network.outputs == 10:
        from enginebench.models.task import feed_digits, load_digits

        digits = load_digits()
        return feed_digits(DEFAULT_MODEL, digits.images[:n]), digits.labels[:n]
    kind = network.input_quantization
    drawn = np.random.default_rng(0).integers(-128, 128, (n or 100, network.inputs)) - kind.zero_point
    return (drawn * kind.scale).astype(np.float32), None


def _run_onnxruntime(path: Path, network: Network, inputs: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """ONNX Runtime's outputs for the same inputs; None if it is not installed."""
    try:
        from enginebench.models.precision.graph import load_whole_graph, run_graph
    except MissingDependency:
        return None
    shaped = inputs.reshape(-1, *(axis for axis in network.input_shape[1:] if isinstance(axis, int)))
    answers = run_graph(load_whole_graph(path), {network.input_name: shaped}, threads=1)[network.output_name]
    return np.asarray(answers, np.float32).reshape(len(answers), -1)


def find_other_classes(
    ours: NDArray[np.float32], theirs: NDArray[np.float32], labels: NDArray[np.int64] | None
) -> tuple[Difference, ...]:
    """The inputs, rows of [n, classes], for which the largest answers belong to different classes."""
    mine, other = ours.argmax(axis=1), theirs.argmax(axis=1)
    return tuple(
        Difference(
            index=int(i),
            device=int(mine[i]),
            onnxruntime=int(other[i]),
            label=None if labels is None else int(labels[i]),
            margin=float(ours[i, mine[i]] - ours[i, other[i]]),
        )
        for i in np.flatnonzero(mine[: len(other)] != other)
    )


def make_rtlil(model: str | None, lanes: int, divisor: int, multiplier_bits: int, split: int = 0) -> str:
    network = read_quantized_network(model, multiplier_bits)
    from enginebench_fpga.compiled import convert_rtlil
    from enginebench_fpga.gateware.device import make_device

    return convert_rtlil(make_device(network, lanes, divisor, split))


def synthesize_model(
    model: str | None, *, part: str, lanes: int, divisor: int, multiplier_bits: int, seeds: int, out_dir: Path
) -> Synthesis:
    from enginebench_fpga.synth import find_part, synthesize

    found = find_part(part)
    return synthesize(
        make_rtlil(model, lanes, divisor, multiplier_bits, found.split),
        found,
        out_dir,
        lanes=lanes,
        multiplier_bits=multiplier_bits,
        divisor=divisor,
        seeds=range(1, seeds + 1),
    )
