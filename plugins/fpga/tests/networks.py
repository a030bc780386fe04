"""Networks, and runs of the engine and of other gateware by Amaranth's simulator."""

from itertools import pairwise

import numpy as np
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from enginebench_fpga.compiled import compile_rtlil, convert_rtlil
from enginebench_fpga.gateware.uart import Receiver, Transmitter
from enginebench_fpga.network import Network, Quantization, fit_multipliers, make_layer


def make_network(sizes=(64, 32, 10), seed=0, *, bits=32, zero_points=(3, -128, 30), relu=True, wide=False, spread=2.0):
    """A seeded network whose answers use the whole range of a byte."""
    rng = np.random.default_rng(seed)
    source = Quantization(scale=1 / 255, zero_point=zero_points[0])
    layers, start = [], source
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        is_last = i == len(sizes) - 2
        weights = rng.integers(-127, 128, (outputs, inputs))
        scale = 0.01 * spread ** -rng.random(outputs)
        target = Quantization(scale=scale.max() * start.scale * 60 * inputs**0.5, zero_point=zero_points[min(i + 1, 2)])
        bias = rng.normal(0, 30 * target.scale, outputs)
        keep = None if wide and is_last else target
        layers.append(make_layer(weights, bias, scale, start, keep, relu=relu and not is_last))
        start = target
    network = Network(layers=tuple(layers), input_quantization=source)
    return fit_multipliers(network, bits)


def draw_inputs(network, n, seed=0):
    """Seeded signed bytes [n, inputs]."""
    return np.random.default_rng(seed).integers(-128, 128, (n, network.inputs)).astype(np.int8)


def run_engine(engine, inputs):
    """(answers [n, outputs], cycles of each) by Amaranth's simulator; banks alternate."""
    network, answers, cycles = engine.network, [], []

    async def drive(ctx):
        for i, row in enumerate(inputs.tolist()):
            bank = i % 2
            ctx.set(engine.write_en, 1)
            for k, value in enumerate(row):
                ctx.set(engine.write_addr, bank << engine.input_bits | k)
                ctx.set(engine.write_data, value & 0xFF)
                await ctx.tick()
            ctx.set(engine.write_en, 0)
            ctx.set(engine.bank, bank)
            ctx.set(engine.start, 1)
            await ctx.tick()
            ctx.set(engine.start, 0)
            passed = 1
            while not ctx.get(engine.done):
                await ctx.tick()
                passed += 1
                assert passed < 100_000, "the engine never finishes"
            assert passed == ctx.get(engine.cycles) + 1
            cycles.append(ctx.get(engine.cycles))
            answer = []
            ctx.set(engine.answer_en, 1)
            for k in range(network.outputs):
                ctx.set(engine.answer_addr, bank << engine.answer_bits | k)
                await ctx.tick()
                answer.append(ctx.get(engine.answer_data))
            ctx.set(engine.answer_en, 0)
            answers.append(answer)

    simulator = Simulator(engine)
    simulator.add_clock(1e-6)
    simulator.add_testbench(drive)
    simulator.run()
    return np.array(answers), cycles


def simulate_pins(design, rx):
    """The `tx` pin of a design by Amaranth's own simulator while its `rx` pin follows `rx`, cycle for cycle."""
    tx = np.empty(len(rx), dtype=np.uint8)

    async def drive(ctx):
        for i, level in enumerate(rx.tolist()):
            ctx.set(design.rx, level)
            tx[i] = ctx.get(design.tx)
            await ctx.tick()

    simulator = Simulator(design)
    simulator.add_clock(1e-6)
    simulator.add_testbench(drive)
    simulator.run()
    return tx


def compile_device(design, cache_dir):
    return compile_rtlil(convert_rtlil(design), cache_dir)


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
