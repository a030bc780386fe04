"""The device: UART, framed protocol, and the engine between them, with two banks so that copies and compute overlap."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from amaranth import Array, C, Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.crc.catalog import CRC16_IBM_3740
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from enginebench.core.errors import UsageError
from enginebench_fpga.frames import (
    ANSWER_START,
    BANKS,
    CYCLES_FORMAT,
    FRAME_BITS,
    INFO_FORMAT,
    LARGEST_PAYLOAD,
    PROTOCOL_VERSION,
    REQUEST_START,
    Command,
    Status,
)
from enginebench_fpga.gateware.engine import MOST_LANES, InferenceCore
from enginebench_fpga.gateware.uart import Receiver, Transmitter, check_divisor
from enginebench_fpga.network import Network

# Answers that may wait to be sent: two inferences and a few short ones.
QUEUE_DEPTH = 4
# A frame that pauses for this many byte times is given up. A full-speed USB adapter sends 64 bytes in each millisecond,
# so a frame may pause for one: 64 byte times are 0.2 ms at 3 Mbaud and 5.6 ms at 115200 baud, hence the cycles, too.
TIMEOUT_BYTES = 64
TIMEOUT_CYCLES = 1 << 15  # 2.7 ms at 12 MHz


class _Banks(NamedTuple):
    """A flag for each bank of inputs and answers: in use, to be computed, computed; and which one is written next."""

    taken: Signal
    waiting: Signal
    ready: Signal
    next: Signal


class Device(wiring.Component):
    """The whole design: pins `rx` and `tx`. `computing` is high while the engine works.

    Args:
        split: as for `Engine`.
        timeout_cycles: pause after which an unfinished frame is given up.
    """

    def __init__(
        self, network: Network, lanes: int, divisor: int, split: int = 0, timeout_cycles: int | None = None
    ) -> None:
        self.network, self.lanes, self.divisor = network, lanes, divisor
        self.split = split
        self.timeout_cycles = timeout_cycles or max(TIMEOUT_CYCLES, TIMEOUT_BYTES * FRAME_BITS * divisor)
        super().__init__({"rx": In(1, init=1), "tx": Out(1, init=1), "computing": Out(1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.engine = engine = InferenceCore(self.network, self.lanes, self.split)
        m.submodules.receiver = receiver = Receiver(self.divisor)
        m.submodules.transmitter = transmitter = Transmitter(self.divisor)
        m.submodules.queue = queue = SyncFIFOBuffered(width=3 + 3 + 8 + 8 + 1, depth=QUEUE_DEPTH)
        m.d.comb += [receiver.line.eq(self.rx), self.tx.eq(transmitter.line), self.computing.eq(engine.busy)]
        taken, waiting, ready = (Signal(BANKS, name=name) for name in ("taken", "waiting", "ready"))
        banks = _Banks(taken, waiting, ready, Signal(name="next_bank"))
        dropped = Signal(16)
        self._add_parser(m, receiver, engine, queue, banks, dropped)
        self._add_scheduler(m, engine, banks)
        self._add_answers(m, transmitter, engine, queue, banks, dropped)
        return m

    def _add_parser(
        self,
        m: Module,
        receiver: Receiver,
        engine: InferenceCore,
        queue: SyncFIFOBuffered,
        banks: _Banks,
        dropped: Signal,
    ) -> None:
        """Bytes into requests, requests into the queue of answers; payloads go straight into the next bank."""
        m.submodules.request_crc = crc = CRC16_IBM_3740(8).create()
        command, sequence, length = Signal(8), Signal(8), Signal(8)
        index, blocked, pause = Signal(8), Signal(), Signal(range(self.timeout_cycles + 1))
        capacity = self.network.inputs
        m.d.comb += [
            crc.data.eq(receiver.data),
            engine.write_addr.eq(Cat(index[: engine.input_bits], banks.next)),
            engine.write_data.eq(receiver.data),
        ]
        m.d.sync += pause.eq(Mux(receiver.busy, 0, pause + 1))

        @contextmanager
        def take_byte(state: str) -> Iterator[None]:
            """A state that waits for a byte, and what it does with it."""
            with m.State(state):
                # A broken byte or a pause ends an unfinished frame: what comes next may be the start of a good one.
                m.d.comb += crc.valid.eq(receiver.valid)
                with m.If(receiver.error | (pause == self.timeout_cycles)):
                    m.d.sync += dropped.eq(dropped + 1)
                    m.next = "start"
                with m.If(receiver.valid):
                    yield

        with m.FSM():
            with m.State("start"):
                m.d.comb += crc.start.eq(1)
                m.d.sync += pause.eq(0)
                with m.If(receiver.valid & (receiver.data == REQUEST_START)):
                    m.next = "command"
            for state, register, following in (("command", command, "sequence"), ("sequence", sequence, "length")):
                with take_byte(state):
                    m.d.sync += register.eq(receiver.data)
                    m.next = following
            with take_byte("length"):
                m.d.sync += [length.eq(receiver.data), index.eq(0), blocked.eq(banks.taken.bit_select(banks.next, 1))]
                m.next = "payload"
                with m.If(receiver.data == 0):
                    m.next = "crc_high"
            with take_byte("payload"):
                m.d.comb += engine.write_en.eq(~blocked & (index < capacity))
                m.d.sync += index.eq(index + 1)
                with m.If(index == length - 1):
                    m.next = "crc_high"
            with take_byte("crc_high"):
                m.next = "crc_low"
            with take_byte("crc_low"):
                m.next = "judge"
            with m.State("judge"):
                self._judge(m, queue, (crc.match_detected, command, sequence, length, blocked), banks, dropped)
                m.next = "start"

    def _judge(
        self, m: Module, queue: SyncFIFOBuffered, request: tuple[Any, ...], banks: _Banks, dropped: Signal
    ) -> None:
        """A request's status, and its entry in the queue; a good one takes its bank."""
        sound, command, sequence, length, blocked = request
        status = Signal(3)
        capacity = self.network.inputs
        known = (command >= Command.ECHO) & (command <= Command.CYCLES)
        fits = Array([C(0), length <= capacity, length == capacity, length == 0, length == 0])
        uses_bank = (command == Command.ECHO) | (command == Command.INFER)
        with m.If(~sound):
            m.d.comb += status.eq(Status.BAD_CRC)
        with m.Elif(~known):
            m.d.comb += status.eq(Status.UNKNOWN_COMMAND)
        with m.Elif(~fits[command[:3]]):
            m.d.comb += status.eq(Status.BAD_LENGTH)
        with m.Elif(uses_bank & blocked):
            m.d.comb += status.eq(Status.BUSY)
        m.d.comb += [queue.w_en.eq(1), queue.w_data.eq(Cat(status, command[:3], sequence, length, banks.next))]
        with m.If(~queue.w_rdy):
            m.d.sync += dropped.eq(dropped + 1)
        with m.Elif((status == Status.OK) & uses_bank):
            m.d.sync += [banks.next.eq(~banks.next), banks.taken.bit_select(banks.next, 1).eq(1)]
            with m.If(command == Command.INFER):
                m.d.sync += banks.waiting.bit_select(banks.next, 1).eq(1)

    @staticmethod
    def _add_scheduler(m: Module, engine: InferenceCore, banks: _Banks) -> None:
        """Starts the engine on the older input that waits: with both banks in use, the one to be written next."""
        bank = Signal()
        m.d.comb += [
            bank.eq(Mux(banks.waiting.bit_select(banks.next, 1), banks.next, ~banks.next)),
            engine.bank.eq(bank),
            engine.start.eq((banks.waiting != 0) & ~engine.busy & ~engine.done),
        ]
        with m.If(engine.start):
            m.d.sync += banks.waiting.bit_select(bank, 1).eq(0)
        with m.If(engine.done):
            m.d.sync += banks.ready.bit_select(engine.done_bank, 1).eq(1)

    def _add_answers(
        self,
        m: Module,
        transmitter: Transmitter,
        engine: InferenceCore,
        queue: SyncFIFOBuffered,
        banks: _Banks,
        dropped: Signal,
    ) -> None:
        """Queue entries into frames, in the order of their requests."""
        m.submodules.answer_crc = crc = CRC16_IBM_3740(8).create()
        entry = queue.r_data
        status, command = entry[0:3], entry[3:6]
        sequence, length, bank = entry[6:14], entry[14:22], entry[22]
        good = status == Status.OK
        lengths = {
            Command.ECHO: length,
            Command.INFER: C(self.network.outputs * self.network.answer_bytes, 8),
            Command.INFO: C(INFO_FORMAT.size, 8),
            Command.CYCLES: C(CYCLES_FORMAT.size, 8),
        }
        size, index, count = Signal(8), Signal(8), Signal(16)
        may_send = queue.r_rdy & (~(good & (command == Command.INFER)) | banks.ready.bit_select(bank, 1))
        m.d.comb += size.eq(Mux(good, Array([C(0), *lengths.values(), C(0), C(0), C(0)])[command], 0))
        out, sent = transmitter.bytes, Signal()
        m.d.comb += [sent.eq(out.valid & out.ready), crc.data.eq(out.payload)]
        with m.If(engine.done):
            m.d.sync += count.eq(count + 1)
        byte = self._add_payload(m, engine, (command, bank, index), dropped, count)
        fetch = Signal()
        m.d.comb += [engine.peek_en.eq(fetch), engine.answer_en.eq(fetch)]

        @contextmanager
        def send_byte(state: str, value: Any, *more: Any, valid: Any = 1) -> Iterator[None]:
            """A state that offers a byte, and what follows once it is sent."""
            with m.State(state):
                m.d.comb += [out.payload.eq(value), out.valid.eq(valid), *more]
                with m.If(sent):
                    yield

        with m.FSM():
            with send_byte("idle", ANSWER_START, crc.start.eq(1), valid=may_send):
                m.next = "status"
            for state, value, following in (("status", status, "sequence"), ("sequence", sequence, "length")):
                with send_byte(state, value, crc.valid.eq(sent)):
                    m.next = following
            with m.State("length"):
                m.d.comb += [out.payload.eq(size), out.valid.eq(1), crc.valid.eq(sent)]
                m.d.sync += index.eq(0)
                with m.If(sent):
                    m.next = "fetch"
                    with m.If(size == 0):
                        m.next = "crc_high"
            with m.State("fetch"):
                m.d.comb += fetch.eq(1)
                m.next = "payload"
            with send_byte("payload", byte, crc.valid.eq(sent)):
                m.d.sync += index.eq(index + 1)
                m.next = "fetch"
                with m.If(index == size - 1):
                    m.next = "crc_high"
            with send_byte("crc_high", crc.crc[8:]):
                m.next = "crc_low"
            with send_byte("crc_low", crc.crc[:8]):
                m.d.comb += queue.r_en.eq(1)
                with m.If(good & ((command == Command.INFER) | (command == Command.ECHO))):
                    m.d.sync += [banks.taken.bit_select(bank, 1).eq(0), banks.ready.bit_select(bank, 1).eq(0)]
                m.next = "idle"

    def _add_payload(
        self, m: Module, engine: InferenceCore, place: tuple[Any, Any, Signal], dropped: Signal, count: Signal
    ) -> Signal:
        """The byte of the answer at `index`, one cycle after it was fetched."""
        network, byte, (command, bank, index) = self.network, Signal(8), place
        sizes = (network.inputs, network.outputs, network.answer_bytes, len(network.layers))
        fixed = INFO_FORMAT.pack(PROTOCOL_VERSION, self.lanes, *sizes, self.divisor, network.checksum, 0)
        info = Cat(C(int.from_bytes(fixed[:-2], "little"), 8 * len(fixed) - 16), dropped)
        counters = Cat(engine.cycles, C(0, 32 - len(engine.cycles)), count, C(0, 16))
        word_bits = network.answer_bytes.bit_length() - 1  # 0 for bytes, 2 for words of four
        m.d.comb += [
            engine.peek_addr.eq(Cat(index[: engine.input_bits], bank)),
            engine.answer_addr.eq(Cat(index[word_bits : word_bits + engine.answer_bits], bank)),
        ]
        word = engine.answer_data
        payloads = {
            Command.ECHO: engine.peek_data,
            Command.INFER: word.as_unsigned().word_select(index[:word_bits], 8) if word_bits else word,
            Command.INFO: info.word_select(index[: (INFO_FORMAT.size - 1).bit_length()], 8),
            Command.CYCLES: counters.word_select(index[:3], 8),
        }
        with m.Switch(command):
            for wanted, payload in payloads.items():
                with m.Case(wanted):
                    m.d.comb += byte.eq(payload)
        return byte


def make_device(network: Network, lanes: int, divisor: int, split: int = 0) -> Device:
    """A device that is possible. Checked before one is made: Amaranth warns about unused designs."""
    if not 1 <= lanes <= MOST_LANES:
        raise UsageError(f"{lanes} lanes; expected 1 to {MOST_LANES}")
    check_divisor(divisor)
    answer = network.outputs * network.answer_bytes
    if network.inputs > LARGEST_PAYLOAD or answer > LARGEST_PAYLOAD:
        raise UsageError(
            f"{network.inputs} bytes in and {answer} out; a frame carries at most {LARGEST_PAYLOAD} bytes each way"
        )
    return Device(network, lanes, divisor, split)
