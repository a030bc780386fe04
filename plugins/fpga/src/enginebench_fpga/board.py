"""The simulated board behind the engine `fpga-sim`: outputs by compiled simulation, times by cycles, Fmax and link."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec import Struct

from enginebench.core.errors import UsageError
from enginebench.core.records import TensorSpec
from enginebench_fpga.compiled import CompiledDevice, compile_rtlil, convert_rtlil
from enginebench_fpga.frames import BANKS, FRAME_BYTES
from enginebench_fpga.gateware.device import Device, make_device
from enginebench_fpga.links import Link, parse_link
from enginebench_fpga.onnx_reader import read_network
from enginebench_fpga.simulation import CHUNK, FIXED_CYCLES, run_chunk
from enginebench_fpga.synth import Part, find_part

if TYPE_CHECKING:
    from enginebench.core.protocols import Array
    from enginebench.core.records import Artifact

SPEEDS_FILE = Path(__file__).parent / "data" / "fmax.json"
# In simulation the line only carries bytes; four cycles a bit sample each in its middle.
DIVISOR = 4


class Speed(Struct, frozen=True, kw_only=True):
    """The Fmax of one design on one part: median of the seeds, after routing."""

    part: str
    lanes: int
    multiplier_bits: int
    fmax_mhz: float
    seeds_mhz: tuple[float, ...]


class SpeedTable(Struct, frozen=True, kw_only=True):
    """The speeds that `benchmarks/fpga.py` measured by place and route."""

    schema: str = "enginebench.fpga.fmax/1"
    network: str
    tools: dict[str, str]
    speeds: tuple[Speed, ...]


class SimulatedBoard:
    """One network on one part behind one link. What the engine `fpga-sim` runs."""

    def __init__(self, design: Device, part: Part, clock_mhz: float, link: Link, cache_dir: Path) -> None:
        self._design, self._network, self._link, self.clock_mhz = design, design.network, link, clock_mhz
        network = design.network
        shapes = network.input_shape or ("batch", network.inputs), network.output_shape or ("batch", network.outputs)
        self.inputs = (TensorSpec(name=network.input_name, dtype="float32", shape=shapes[0]),)  # as in the file
        self.outputs = (TensorSpec(name=network.output_name, dtype="float32", shape=shapes[1]),)
        rtlil = convert_rtlil(design)
        self.design_sha256 = hashlib.sha256(rtlil.encode()).hexdigest()
        self.description = f"{part.name}, {design.lanes} lanes, {clock_mhz:.4g} MHz, {link.name}"
        self._device = CompiledDevice(compile_rtlil(rtlil, cache_dir))
        self._sent = 0

    def infer(self, inputs: Array) -> tuple[Array, list[int]]:
        """Return (real outputs [n, outputs], cycles of the engine for each), through UART and protocol.

        Raises:
            FeedError: an input has another size, or is not a number.
            MeasurementError: the device gave a wrong response, or none.
        """
        rows = self._network.encode(inputs.astype(np.float32))
        answers, cycles = [], []
        for first in range(0, len(rows), CHUNK):
            found, _, busy = run_chunk(self._design, rows[first : first + CHUNK], self._sent, self._device.run)
            self._sent += len(found)
            answers.append(found)
            cycles += busy
        return self._network.decode(np.concatenate(answers)), cycles

    def model_ns(self, cycles: int) -> tuple[int, int, int]:
        """Nanoseconds of (copy in, compute, copy back); the fixed cycles of the protocol count as compute."""
        answer = FRAME_BYTES + self._network.outputs * self._network.answer_bytes
        copy_in = float(self._link.transfer_s(FRAME_BYTES + self._network.inputs))
        copy_back = float(self._link.transfer_s(answer, answer=True))
        compute = (cycles + FIXED_CYCLES) / (self.clock_mhz * 1e6)
        return round(copy_in * 1e9), round(compute * 1e9), round(copy_back * 1e9)

    def model_interval_ns(self, cycles: int) -> int:
        """Nanoseconds between answers when calls overlap: the slowest stage, or half a call, since a bank is taken
        from its first byte in to its last byte out and there are two of them.

        The timer of a USB-serial adapter delays answers and does not thin them out.
        """
        terms = list(self.model_ns(cycles))
        terms[2] -= round(self._link.answer_latency_s * 1e9)
        shared = [terms[0] + terms[2]] if self._link.half_duplex else []
        return max(*terms, *shared, -(-sum(terms) // BANKS))

    def close(self) -> None:
        self._device.close()


def make_board(artifact: Artifact, options: Mapping[str, str], cache_dir: Path) -> SimulatedBoard:
    """The board for a quantized ONNX artifact; `clock_mhz` of "" means the Fmax that was found for it."""
    part = find_part(options["part"])
    lanes, bits = (int(_read_number(options, key, int, "a whole number")) for key in ("lanes", "multiplier_bits"))
    if options["clock_mhz"] == "":
        clock_mhz = find_speed(part.name, lanes, bits)
    else:
        clock_mhz = _read_number(options, "clock_mhz", _read_clock, "a number of MHz above zero")
    network = read_network(Path(artifact.path), bits)
    link = parse_link(options["link"])
    return SimulatedBoard(make_device(network, lanes, DIVISOR, part.split), part, clock_mhz, link, cache_dir)


def find_speed(part: str, lanes: int, multiplier_bits: int) -> float:
    """The median Fmax in MHz that place and route gave for the digits network."""
    speeds = read_speeds().speeds
    for speed in speeds:
        if (speed.part, speed.lanes, speed.multiplier_bits) == (part, lanes, multiplier_bits):
            return speed.fmax_mhz
    known = ", ".join(f"{s.part}/{s.lanes}/{s.multiplier_bits}" for s in speeds)
    raise UsageError(
        f"no Fmax is known for part {part} with {lanes} lanes and a multiplier of {multiplier_bits} bits; give "
        f"clock_mhz=..., as enginebench fpga synth finds it. Known (part/lanes/bits): {known}"
    )


def read_speeds() -> SpeedTable:
    return msgspec.json.decode(SPEEDS_FILE.read_bytes(), type=SpeedTable)


def _read_number(options: Mapping[str, str], key: str, read: Callable[[str], float], expected: str) -> float:
    try:
        return read(options[key])
    except ValueError as error:
        raise UsageError(f"option {key}={options[key]!r} of engine fpga-sim must be {expected}") from error


def _read_clock(text: str) -> float:
    if not 0 < float(text) < 1e4:
        raise ValueError(text)
    return float(text)
