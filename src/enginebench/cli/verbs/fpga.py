"""`enginebench fpga`: the INT8 network behind a UART, simulated, written as Verilog, synthesized, served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from enginebench.cli.options import FiniteRange
from enginebench.core.text import count_of

if TYPE_CHECKING:
    from enginebench.fpga.network import Network
    from enginebench.fpga.synth import Synthesis
    from enginebench.workflow.verbs.fpga import SimulateDocument

F = TypeVar("F", bound=Callable[..., Any])

# Source: gateware/uart.py, LARGEST_DIVISOR; gateware/engine.py, MOST_LANES.
DIVISOR = click.IntRange(1, 65535)
LANES = click.IntRange(1, 64)
BITS = click.IntRange(4, 32)
JSON_HELP = "Print one JSON document on stdout and nothing else."


def design_options(function: F) -> F:
    """Adds MODEL --lanes --divisor --multiplier-bits."""
    for option in reversed(
        (
            click.argument("model", required=False),
            click.option("--lanes", type=LANES, default=8, show_default=True, help="Products per clock cycle."),
            click.option(
                "--divisor", type=DIVISOR, default=12, show_default=True, help="Clock cycles per bit on the UART."
            ),
            click.option(
                "--multiplier-bits",
                type=BITS,
                default=32,
                show_default=True,
                help="Width of the requantizer's multiplier: 32 agrees with ONNX Runtime, 16 is cheaper.",
            ),
        )
    ):
        function = option(function)
    return function


@click.group("fpga")
def command() -> None:
    """Simulate, synthesize or serve an INT8 network behind a UART.

    Example: enginebench fpga simulate --n 10

    MODEL is digits-mlp or a quantized .onnx file whose layers form a chain.
    """


@command.command("simulate", short_help="Send inputs through the simulated device.")
@design_options
@click.option("--n", type=click.IntRange(1), help="Number of inputs. [all 1797 digits]")
@click.option(
    "--simulator",
    type=click.Choice(["compiled", "amaranth"]),
    default="compiled",
    show_default=True,
    help="compiled is fast; amaranth is Amaranth's own simulator.",
)
@click.option(
    "--rounding",
    type=click.Choice(["half_even", "half_away", "half_up", "floor"]),
    default="half_even",
    show_default=True,
    help="How the requantizer rounds.",
)
@click.option(
    "--clock-mhz",
    type=FiniteRange(0, 1e4, min_open=True),
    default=12.0,
    show_default=True,
    help="Clock of the device.",
)
@click.option("--cache", type=click.Path(path_type=Path, file_okay=False), help="Folder that keeps compiled designs.")
@click.option("--json", "as_json", is_flag=True, help=JSON_HELP)
def simulate(
    model: str | None,
    lanes: int,
    divisor: int,
    multiplier_bits: int,
    n: int | None,
    simulator: str,
    rounding: str,
    clock_mhz: float,
    cache: Path | None,
    as_json: bool,
) -> None:
    """Send inputs through the simulated device, UART included, and compare every answer.

    Example: enginebench fpga simulate --lanes 16 --n 10
    """
    from enginebench.core.store import encode
    from enginebench.workflow.verbs.fpga import simulate_model

    document = simulate_model(
        model,
        _make_options(lanes, divisor),
        n=n,
        multiplier_bits=multiplier_bits,
        rounding=rounding,  # type: ignore[arg-type]
        simulator=simulator,  # type: ignore[arg-type]
        clock_mhz=clock_mhz,
        cache_dir=cache,
    )
    if as_json:
        click.echo(encode(document).decode())
        return
    for line in describe_simulation(document):
        click.echo(line)


def describe_simulation(document: SimulateDocument) -> list[str]:
    """What the simulation found, one sentence each."""
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
    if document.differs_from_onnxruntime is not None:
        lines.append(f"{len(document.differs_from_onnxruntime)} classes differ from ONNX Runtime")
        lines += [
            f"  input {d.index}: device {d.device}, ONNX Runtime {d.onnxruntime}, margin {d.margin:.4g}"
            for d in document.differs_from_onnxruntime
        ]
    rate = document.simulated_cycles / max(document.simulation_s, 1e-9)
    lines.append(f"simulated {document.simulated_cycles} cycles in {document.simulation_s:.2f} s ({rate:.3g}/s)")
    return lines + list(document.notes)


@command.command("verilog", short_help="Write the device as Verilog.")
@design_options
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("device.v"),
    show_default=True,
    help="The Verilog file.",
)
def verilog(model: str | None, lanes: int, divisor: int, multiplier_bits: int, out: Path) -> None:
    """Write the device as Verilog: a module `top` with ports clk, rst, rx, tx and computing.

    Example: enginebench fpga verilog --lanes 16 --out top.v
    """
    from enginebench.workflow.verbs.fpga import write_verilog

    lines = write_verilog(model, _make_options(lanes, divisor), multiplier_bits, out)
    click.echo(f"{out}: {count_of(lines, 'lines')}", err=True)


@command.command("synth", short_help="Synthesize, place and route; show Fmax and cells.")
@design_options
@click.option("--part", required=True, help="ice40up5k, ice40hx8k (or hx8k), or ecp5-25k.")
@click.option("--seeds", type=click.IntRange(1, 100), default=3, show_default=True, help="Number of placements to try.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for logs and reports. [results/fpga-PART-LANES]",
)
@click.option("--json", "as_json", is_flag=True, help=JSON_HELP)
def synth(
    model: str | None,
    lanes: int,
    divisor: int,
    multiplier_bits: int,
    part: str,
    seeds: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Synthesize, place and route the device with open-source tools.

    Example: enginebench fpga synth --part ice40up5k --lanes 4

    This takes minutes. Every log is kept.
    """
    from enginebench.core.store import encode
    from enginebench.workflow.verbs.fpga import synthesize_model

    document = synthesize_model(
        model,
        part=part,
        lanes=lanes,
        divisor=divisor,
        multiplier_bits=multiplier_bits,
        seeds=seeds,
        out_dir=out or Path("results") / f"fpga-{part}-{lanes}-{multiplier_bits}",
    )
    if as_json:
        click.echo(encode(document).decode())
        return
    for line in describe_synthesis(document):
        click.echo(line)


def describe_synthesis(document: Synthesis) -> list[str]:
    """What synthesis found, one sentence each."""
    lines = [
        f"{document.part}, {document.lanes} lanes, multiplier of {document.multiplier_bits} bits: "
        f"{document.luts} LUTs, {document.ffs} flip-flops, {document.dsps} DSPs, {document.brams} block RAMs"
    ]
    if document.fits and document.fmax_mhz is not None and document.fmax_best_mhz is not None:
        lines.append(
            f"Fmax after routing: median {document.fmax_mhz:.1f} MHz, best {document.fmax_best_mhz:.1f} MHz "
            f"({count_of(len(document.placements), 'seeds')})"
        )
    else:
        lines.append(f"does not fit: {document.placements[0].reason}")
    return [*lines, f"logs in {document.out}"]


@command.command("serve", short_help="Serve a simulated board on a pseudo-terminal.")
@design_options
@click.option(
    "--clock-mhz",
    type=FiniteRange(0, 1e4, min_open=True),
    default=12.0,
    show_default=True,
    help="Clock of the device.",
)
def serve(model: str | None, lanes: int, divisor: int, multiplier_bits: int, clock_mhz: float) -> None:
    """Serve a simulated board on a pseudo-terminal until interrupted.

    Example: enginebench fpga serve --divisor 104

    The line runs at its real rate, the clock divided by the divisor.
    """
    from enginebench.workflow.verbs.fpga import serve_model

    try:
        serve_model(
            model,
            lanes=lanes,
            divisor=divisor,
            multiplier_bits=multiplier_bits,
            clock_mhz=clock_mhz,
            on_ready=_announce,
            stop=lambda: False,
        )
    except KeyboardInterrupt:
        click.echo("closed", err=True)


def _announce(path: str, baud: float, network: Network) -> None:
    """Prints the path alone on stdout, for scripts, and the rest on stderr."""
    click.echo(path)
    sizes = "-".join(str(n) for n in [network.inputs, *(layer.outputs for layer in network.layers)])
    click.echo(f"{sizes} network at {baud:.0f} baud; interrupt to end", err=True)


def _make_options(lanes: int, divisor: int) -> Any:
    from enginebench.fpga.simulation import DesignOptions

    return DesignOptions(lanes=lanes, divisor=divisor)
