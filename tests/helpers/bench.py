"""Runs combinational gateware on arrays: one vector a step of Amaranth's simulator."""

import numpy as np
from amaranth import C, Module, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from enginebench.features.fpga.gateware.engine import round_up, saturate
from enginebench.features.fpga.gateware.uart import Receiver, Transmitter


def evaluate(shapes, build, *columns):
    """`build(signals...)` for each row of `columns`, as int64; `shapes` are those of the signals."""
    inputs = [Signal(shape, name=f"input_{i}") for i, shape in enumerate(shapes)]
    result = build(*inputs)
    output = Signal(result.shape())
    module = Module()
    module.d.comb += output.eq(result)
    answers = []

    async def drive(ctx):
        for row in zip(*(np.asarray(c).tolist() for c in columns), strict=True):
            for signal, value in zip(inputs, row, strict=True):
                ctx.set(signal, value)
            answers.append(ctx.get(output))

    simulator = Simulator(module)
    simulator.add_testbench(drive)
    simulator.run()
    return np.asarray(answers, dtype=np.int64)


class Echo(wiring.Component):
    """Sends every byte back. Bytes with a broken frame are dropped; `overrun` stays set after one that had no room."""

    def __init__(self, divisor):
        self.divisor = divisor
        super().__init__({"rx": In(1, init=1), "tx": Out(1, init=1), "overrun": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.receiver = receiver = Receiver(self.divisor)
        m.submodules.transmitter = transmitter = Transmitter(self.divisor)
        m.submodules.fifo = fifo = SyncFIFOBuffered(width=8, depth=16)
        wiring.connect(m, fifo.r_stream, transmitter.bytes)
        m.d.comb += [
            receiver.line.eq(self.rx),
            self.tx.eq(transmitter.line),
            fifo.w_data.eq(receiver.data),
            fifo.w_en.eq(receiver.valid),
        ]
        with m.If(receiver.valid & ~fifo.w_rdy):
            m.d.sync += self.overrun.eq(1)
        return m


def shift_right(value, shift):
    """`value` / 2**shift, rounded once; `shift` is a constant."""
    number = Value.cast(value)
    if shift == 0:
        return number
    if len(number) <= shift:  # room for the sign and the bits that are shifted out
        number = number | C(0, signed(shift + 2)) if number.shape().signed else number | C(0, shift + 2)
    floor = number >> shift
    return floor + round_up(floor, number[shift - 1], number[: shift - 1].any() if shift > 1 else C(0))


def requantize(accumulator, multiplier, shift, zero_point, low=-128, high=127):
    """clamp(round(accumulator * multiplier / 2**shift) + zero_point) in one combinational piece.

    The engine spreads the same steps over pipeline stages; this form is the one that is proved against the reference.
    """
    return saturate(shift_right(accumulator * multiplier, shift) + zero_point, low, high)
