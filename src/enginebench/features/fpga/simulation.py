"""Inferences through a simulated device, UART and all: answers, cycles, and what differs from the reference."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from msgspec import Struct

from enginebench.core.errors import MeasurementError
from enginebench.features.fpga import waves
from enginebench.features.fpga.compiled import CompiledDevice, compile_rtlil, convert_rtlil
from enginebench.features.fpga.frames import (
    CYCLES_FORMAT,
    FRAME_BYTES,
    Answer,
    Command,
    Status,
    pack_request,
    split_answers,
    unpack_cycles,
)
from enginebench.features.fpga.gateware.device import Device, check_design
from enginebench.features.fpga.latency import count_transaction_cycles
from enginebench.features.fpga.network import Network

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from enginebench.features.fpga.waves import Wave

RunCall: TypeAlias = "Callable[[Wave], tuple[Wave, Wave]]"
# Inferences whose line is laid out at once: a few megabytes of samples at any divisor that a UART needs.
CHUNK = 64
# Cycles that the line rests behind the expected end of an answer, so that a late one is seen and not cut off.
MARGIN_CYCLES = 64


class DesignOptions(Struct, frozen=True, kw_only=True):
    """What can be chosen about the hardware around a network."""

    lanes: int = 8
    divisor: int = 12
    split: int = 0


class Simulated(Struct, frozen=True, kw_only=True, eq=False):
    """What came out of a simulation."""

    answers: NDArray[np.int64]  # [n, outputs]
    cycles_per_inference: int  # counted by the device
    transaction_cycles: tuple[int, ...]  # of each inference: request's first start bit to answer's last stop bit
    compute_cycles: tuple[int, ...]  # of each inference: cycles in which the engine was at work, seen on its pin
    simulated_cycles: int
    seconds: float  # of simulation, compilation left out


def simulate_inferences(
    network: Network,
    options: DesignOptions,
    inputs: NDArray[np.int8],
    cache_dir: Path,
    say: Callable[[str], None] = lambda text: None,
) -> Simulated:
    """Every input through the device, one after the other, each answer awaited.

    Args:
        inputs: signed bytes [n, inputs], n at least 1.
    """
    check_design(network, options.lanes, options.divisor)
    say("making the circuit; compiling it takes up to a minute where --cache has none")
    device = Device(network, options.lanes, options.divisor, options.split)
    with CompiledDevice(compile_rtlil(convert_rtlil(device), cache_dir)) as running:
        return _simulate_all(network, options, inputs, running.run, say)


def _simulate_all(
    network: Network, options: DesignOptions, inputs: NDArray[np.int8], run: RunCall, say: Callable[[str], None]
) -> Simulated:
    answers: list[NDArray[np.int64]] = []
    transactions: list[int] = []
    computed: list[int] = []
    total, seconds = 0, 0.0

    def run_timed(rx: Wave) -> tuple[Wave, Wave]:
        nonlocal total, seconds
        begin = time.perf_counter()
        pins = run(rx)
        seconds += time.perf_counter() - begin
        total += len(rx)
        return pins

    for first in range(0, len(inputs), CHUNK):
        say(f"simulating from input {first + 1} of {len(inputs)}")
        found, took, busy = run_chunk(network, options, inputs[first : first + CHUNK], first, run_timed)
        answers.append(found)
        transactions += took
        computed += busy
    # What the device counted for its last inference, asked over its line.
    number = len(inputs)
    request = waves.encode_bytes(pack_request(Command.CYCLES, number & 0xFF), options.divisor)
    answer_cycles = (FRAME_BYTES + CYCLES_FORMAT.size) * waves.FRAME_BITS * options.divisor
    tx, _ = run_timed(waves.join([request, waves.rest(answer_cycles + MARGIN_CYCLES)]))
    (answer,), _ = read_answers(tx, options.divisor)
    return Simulated(
        answers=np.concatenate(answers),
        cycles_per_inference=unpack_cycles(take_answer(answer, number).payload)[0],
        transaction_cycles=tuple(transactions),
        compute_cycles=tuple(computed),
        simulated_cycles=total,
        seconds=seconds,
    )


def run_chunk(
    network: Network, options: DesignOptions, inputs: NDArray[np.int8], first: int, run: RunCall
) -> tuple[NDArray[np.int64], list[int], list[int]]:
    """(answers [n, outputs], cycles of each transaction, cycles of the engine for each) of inputs in one go.

    Args:
        inputs: signed bytes [n, inputs].
        first: number of the first request, modulo 256 its sequence number.
        run: the device.
    """
    line, starts = lay_out(network, options, inputs, first)
    tx, busy = run(line)
    found, ends = read_answers(tx, options.divisor)
    if len(found) != len(starts):
        raise MeasurementError(f"{len(found)} replies to {len(starts)} requests; the device lost some")
    kind = "<i1" if network.answer_bytes == 1 else "<i4"
    payload = b"".join(take_answer(answer, first + i).payload for i, answer in enumerate(found))
    answers = np.frombuffer(payload, kind).reshape(len(inputs), network.outputs).astype(np.int64)
    took = [end - start for start, end in zip(starts, ends, strict=True)]
    parts = np.split(busy.astype(np.int64), starts[1:])
    return answers, took, [int(part.sum()) for part in parts]


def lay_out(network: Network, options: DesignOptions, inputs: NDArray[np.int8], first: int) -> tuple[Wave, list[int]]:
    """(line with a request for each input and a rest for each answer, cycle at which each request begins)."""
    slot = count_transaction_cycles(network, options.lanes, options.divisor) + MARGIN_CYCLES
    pieces, starts = [waves.rest(MARGIN_CYCLES)], []
    for i, row in enumerate(inputs):
        request = waves.encode_bytes(pack_request(Command.INFER, (first + i) & 0xFF, row.tobytes()), options.divisor)
        starts.append(MARGIN_CYCLES + i * slot)
        pieces += [request, waves.rest(slot - len(request))]
    return waves.join(pieces), starts


def read_answers(tx: Wave, divisor: int) -> tuple[list[Answer], list[int]]:
    """(answers on a line, cycle at which the last stop bit of each one ends)."""
    data, starts = waves.decode_timed(tx, divisor)
    answers, rest = split_answers(data)
    ends, place = [], 0
    for answer in answers:
        place += 6 + len(answer.payload)
        ends.append(starts[place - 1] + waves.FRAME_BITS * divisor)
    if rest or place != len(data):
        raise MeasurementError(f"{len(data) - place} bytes on the line belong to no reply")
    return answers, ends


def take_answer(answer: Answer, number: int) -> Answer:
    """The answer, if it is a good one to this request."""
    if answer.status != Status.OK or answer.sequence != number & 0xFF:
        raise MeasurementError(
            f"request {number} got a reply with status {answer.status} and sequence {answer.sequence}; "
            f"expected 0 and {number & 0xFF}"
        )
    return answer
