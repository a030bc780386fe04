"""Runs combinational gateware on arrays: one vector a step of Amaranth's simulator."""

import numpy as np
from amaranth import Module, Signal
from amaranth.sim import Simulator


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
