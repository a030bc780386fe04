"""Inferences through a simulated device, UART and all; and their cycles in closed form, the same numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from msgspec import Struct

from enginebench.core.errors import MeasurementError
from enginebench_fpga import waves
from enginebench_fpga.compiled import CompiledDevice, compile_rtlil, convert_rtlil
from enginebench_fpga.frames import (
    CYCLES_FORMAT,
    FRAME_BITS,
    FRAME_BYTES,
    Answer,
    Command,
    Status,
    pack_request,
    split_answers,
    unpack_cycles,
)
from enginebench_fpga.gateware.device import Device
from enginebench_fpga.network import Network

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from enginebench_fpga.waves import Wave

RunCall: TypeAlias = "Callable[[Wave], tuple[Wave, Wave]]"
# Inferences whose line is laid out at once: a few megabytes of samples at any divisor that a UART needs.
CHUNK = 64
# Cycles that the line rests behind the expected end of an answer, so that a late one is seen and not cut off.
MARGIN_CYCLES = 64
# From the issue of an activation to the cycle that writes the first answer of its group. Sums take 4 cycles, the shift
# register 1, parameters, bias, product, alignment, rounding and clamp 6. Source: gateware/engine.py.
WRITE_DELAY = 11
LOAD_DELAY = 4  # to the cycle in which the sums are complete
# Receiver: two flip-flops, one cycle to tell the byte; verdict 1, start 1; engine; its end 1, ready 1, transmitter 1.
FIXED_CYCLES = 8


class Simulated(Struct, frozen=True, kw_only=True, eq=False):
    answers: NDArray[np.int64]  # [n, outputs]
    cycles_per_inference: int  # counted by the device
    transaction_cycles: tuple[int, ...]  # of each inference: request's first start bit to answer's last stop bit
    simulated_cycles: int
    seconds: float  # of simulation, compilation left out


def simulate_inferences(
    device: Device, inputs: NDArray[np.int8], cache_dir: Path, say: Callable[[str], None] = lambda text: None
) -> Simulated:
    """Every input, signed bytes [n, inputs], through the device, one after the other, each answer awaited."""
    say("making the circuit; compiling it takes up to a minute where --cache has none")
    library = compile_rtlil(convert_rtlil(device), cache_dir)
    answers: list[NDArray[np.int64]] = []
    transactions: list[int] = []
    total, seconds = 0, 0.0

    def run_timed(rx: Wave) -> tuple[Wave, Wave]:
        nonlocal total, seconds
        begin = time.perf_counter()
        pins = running.run(rx)
        seconds += time.perf_counter() - begin
        total += len(rx)
        return pins

    with CompiledDevice(library) as running:
        for first in range(0, len(inputs), CHUNK):
            say(f"simulating from input {first + 1} of {len(inputs)}")
            found, took, _ = run_chunk(device, inputs[first : first + CHUNK], first, run_timed)
            answers.append(found)
            transactions += took
        # What the device counted for its last inference, asked over its line.
        number = len(inputs)
        request = waves.encode_bytes(pack_request(Command.CYCLES, number & 0xFF), device.divisor)
        answer_cycles = (FRAME_BYTES + CYCLES_FORMAT.size) * FRAME_BITS * device.divisor
        tx, _ = run_timed(np.concatenate([request, waves.rest(answer_cycles + MARGIN_CYCLES)]))
    (answer,), _ = decode_responses(tx, device.divisor)
    return Simulated(
        answers=np.concatenate(answers),
        cycles_per_inference=unpack_cycles(take_payload(answer, number))[0],
        transaction_cycles=tuple(transactions),
        simulated_cycles=total,
        seconds=seconds,
    )


def run_chunk(
    device: Device, inputs: NDArray[np.int8], first: int, run: RunCall
) -> tuple[NDArray[np.int64], list[int], list[int]]:
    """(answers [n, outputs], cycles of each transaction, cycles of the engine for each) of inputs in one go.

    `first` is the number of the first request, modulo 256 its sequence number; `run` is the device at work.
    """
    network, divisor = device.network, device.divisor
    slot = count_transaction_cycles(network, device.lanes, divisor) + MARGIN_CYCLES
    line = [waves.rest(MARGIN_CYCLES)]  # then a request for each input, and a rest for each answer
    for i, row in enumerate(inputs):
        request = waves.encode_bytes(pack_request(Command.INFER, (first + i) & 0xFF, row.tobytes()), divisor)
        line += [request, waves.rest(slot - len(request))]
    tx, busy = run(np.concatenate(line))
    found, ends = decode_responses(tx, divisor)
    if len(found) != len(inputs):
        raise MeasurementError(f"{len(found)} replies to {len(inputs)} requests; the device lost some")
    kind = "<i1" if network.answer_bytes == 1 else "<i4"
    payload = b"".join(take_payload(answer, first + i) for i, answer in enumerate(found))
    answers = np.frombuffer(payload, kind).reshape(len(inputs), network.outputs).astype(np.int64)
    starts = [MARGIN_CYCLES + i * slot for i in range(len(inputs))]
    took = [end - start for start, end in zip(starts, ends, strict=True)]
    return answers, took, [int(part.sum()) for part in np.split(busy.astype(np.int64), starts[1:])]


def decode_responses(tx: Wave, divisor: int) -> tuple[list[Answer], list[int]]:
    """(answers on a line, cycle at which the last stop bit of each one ends)."""
    data, starts = waves.decode_timed(tx, divisor)
    answers, rest = split_answers(data)
    ends = np.cumsum([FRAME_BYTES + len(answer.payload) for answer in answers], dtype=int).tolist()
    used = ends[-1] if ends else 0
    if rest or used != len(data):
        raise MeasurementError(f"{len(data) - used} bytes on the line belong to no reply")
    return answers, [starts[end - 1] + FRAME_BITS * divisor for end in ends]


def take_payload(answer: Answer, number: int) -> bytes:
    """The payload of an answer, if it is a good one to this request."""
    if answer.status != Status.OK or answer.sequence != number & 0xFF:
        raise MeasurementError(
            f"request {number} got a reply with status {answer.status} and sequence {answer.sequence}; "
            f"expected 0 and {number & 0xFF}"
        )
    return answer.payload


def count_engine_cycles(sizes: Sequence[tuple[int, int]], lanes: int) -> int:
    """Cycles of one inference, waits included: each activation is issued as soon as the design can.

    Without waits it is the ideal (`count_ideal_cycles`) + 10 + the number of outputs in the last group.
    """
    now, loaded, in_register = 0, 0, 0  # last issue; cycle in which sums were last complete, and how many there were
    ready: list[int] = []  # for each activation the first cycle that may issue it
    for inputs, outputs in sizes:
        written: list[int] = []
        for first in range(0, outputs, lanes):
            count = min(lanes, outputs - first)
            for k in range(inputs):
                now += 1
                if ready and first == 0:
                    now = max(now, ready[k])
                if k == inputs - 1 and loaded:
                    # The shift register takes new sums when at most LOAD_DELAY of the old ones are left in it.
                    now = max(now, loaded + 1, loaded + 1 + in_register - LOAD_DELAY)
            loaded, in_register = now + LOAD_DELAY, count
            written += [now + WRITE_DELAY + j for j in range(count)]
        ready = [cycle + 1 for cycle in written]
    return ready[-1] - 1


def count_transaction_cycles(network: Network, lanes: int, divisor: int) -> int:
    """Cycles of one inference over the UART: from the first start bit of the request to the end of the answer's last
    stop bit, on an otherwise idle device.

    The device acts in the middle of the request's last stop bit, so half a bit of the request is not waited for.
    """
    request, answer = FRAME_BYTES + network.inputs, FRAME_BYTES + network.outputs * network.answer_bytes
    listening = (request * FRAME_BITS - 1) * divisor + divisor // 2
    compute = count_engine_cycles(network.sizes, lanes)
    return listening + FIXED_CYCLES + compute + answer * FRAME_BITS * divisor
