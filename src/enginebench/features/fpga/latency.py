"""Cycles in closed form: of the engine, and of a request with its answer. The simulators give the same numbers."""

from collections.abc import Sequence

from enginebench.features.fpga.frames import FRAME_BYTES
from enginebench.features.fpga.network import Network
from enginebench.features.fpga.waves import FRAME_BITS

# From the issue of an activation to the cycle that writes the first answer of its group. Sums take 4 cycles, the shift
# register 1, parameters, bias, product, alignment, rounding and clamp 6. Source: gateware/engine.py.
WRITE_DELAY = 11
LOAD_DELAY = 4  # to the cycle in which the sums are complete
# Receiver: two flip-flops, one cycle to tell the byte; verdict 1, start 1; engine; its end 1, ready 1, transmitter 1.
FIXED_CYCLES = 8


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


def list_sizes(network: Network) -> list[tuple[int, int]]:
    """(inputs, outputs) of each layer."""
    return [(layer.inputs, layer.outputs) for layer in network.layers]


def count_transaction_cycles(network: Network, lanes: int, divisor: int) -> int:
    """Cycles of one inference over the UART: from the first start bit of the request to the end of the answer's last
    stop bit, on an otherwise idle device.

    The device acts in the middle of the request's last stop bit, so half a bit of the request is not waited for.
    """
    request, answer = FRAME_BYTES + network.inputs, FRAME_BYTES + network.outputs * network.answer_bytes
    listening = (request * FRAME_BITS - 1) * divisor + divisor // 2
    compute = count_engine_cycles(list_sizes(network), lanes)
    return listening + FIXED_CYCLES + compute + answer * FRAME_BITS * divisor
