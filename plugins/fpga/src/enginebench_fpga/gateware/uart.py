"""UART, 8 data bits, no parity, one stop bit: receiver and transmitter. A bit lasts `divisor` clock cycles."""

from typing import Any

from amaranth import C, Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import In, Out

from enginebench.core.errors import UsageError
from enginebench_fpga.frames import FRAME_BITS

# At 115200 baud from 400 MHz the divisor is 3,472; sixteen bits hold every sensible pair.
LARGEST_DIVISOR = (1 << 16) - 1


def check_divisor(divisor: int) -> None:
    """Checks that a UART can have it. On a line with a clock of its own it should be 4 or more."""
    if not 1 <= divisor <= LARGEST_DIVISOR:
        raise UsageError(f"a UART divisor of {divisor}; expected 1 to {LARGEST_DIVISOR} clock cycles per bit")


class Receiver(wiring.Component):
    """Bytes from a line: `valid` for one cycle with `data`, or `error` for one where the stop bit is missing.

    The line passes two flip-flops first. A start bit that is gone by its middle was a glitch and starts nothing.
    Bits are sampled in their middle. After a missing stop bit the receiver waits for the line to rise.
    """

    def __init__(self, divisor: int) -> None:
        self.divisor = divisor
        super().__init__({"line": In(1, init=1), "data": Out(8), "valid": Out(1), "error": Out(1), "busy": Out(1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        line = Signal(init=1)
        m.submodules.synchronizer = FFSynchronizer(self.line, line, init=1)
        timer = Signal(range(self.divisor))
        count = Signal(range(8))
        byte = Signal(8)
        m.d.comb += self.data.eq(byte)
        m.d.sync += [self.valid.eq(0), self.error.eq(0), timer.eq(timer - 1)]
        half = self.divisor // 2
        with m.FSM() as fsm:
            with m.State("idle"):
                with m.If(~line):
                    m.d.sync += [timer.eq(half - 1 if half else 0), count.eq(0)]
                    m.next = "start" if half else "data"
            with m.State("start"):
                with m.If(timer == 0):
                    m.d.sync += timer.eq(self.divisor - 1)
                    m.next = "data"
                    with m.If(line):
                        m.next = "idle"
            with m.State("data"):
                with m.If(timer == 0):
                    m.d.sync += [timer.eq(self.divisor - 1), count.eq(count + 1), byte.eq(Cat(byte[1:], line))]
                    with m.If(count == 7):
                        m.next = "stop"
            with m.State("stop"):
                with m.If(timer == 0):
                    m.d.sync += [self.valid.eq(line), self.error.eq(~line)]
                    m.next = "idle"
                    with m.If(~line):
                        m.next = "break"
            with m.State("break"):
                with m.If(line):
                    m.next = "idle"
        m.d.comb += self.busy.eq(~fsm.ongoing("idle") | self.valid)
        return m


class Transmitter(wiring.Component):
    """Bytes onto a line; the next one follows without a gap, 10 * divisor cycles after its predecessor."""

    def __init__(self, divisor: int) -> None:
        self.divisor = divisor
        super().__init__({"bytes": In(stream.Signature(8)), "line": Out(1, init=1), "busy": Out(1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        timer = Signal(range(self.divisor))
        left = Signal(range(FRAME_BITS + 1))  # bits that are not over yet
        frame = Signal(FRAME_BITS, init=(1 << FRAME_BITS) - 1)
        m.d.comb += [
            self.line.eq(frame[0]),
            self.busy.eq(left != 0),
            self.bytes.ready.eq((left == 0) | ((left == 1) & (timer == 0))),
        ]
        m.d.sync += timer.eq(timer - 1)
        with m.If((timer == 0) & (left != 0)):
            m.d.sync += [timer.eq(self.divisor - 1), frame.eq(Cat(frame[1:], C(1))), left.eq(left - 1)]
        with m.If(self.bytes.ready & self.bytes.valid):
            m.d.sync += [
                frame.eq(Cat(C(0, 1), self.bytes.payload, C(1, 1))),
                left.eq(FRAME_BITS),
                timer.eq(self.divisor - 1),
            ]
        return m
