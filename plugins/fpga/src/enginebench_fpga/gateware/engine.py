"""The network as gateware: N multipliers side by side, one requantizer behind them, layers that overlap.

Every cycle one activation goes to all lanes, each with a weight of its own (output-stationary). Finished sums move into
a shift register and pass the requantizer one a cycle while the lanes are at the next outputs already. The next layer
starts as soon as the first answers of this one are written; it waits only for an activation that is not there yet.

    issue, memories, register, product, sum | shift, parameters, + bias, product, align, round, clamp, write
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from amaranth import Array, C, Cat, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from enginebench_fpga.network import HIGH, Layer, Network, count_ideal_cycles

# Cycles from the issue of the last activation of a group to its complete sums: memory, register, product, sum.
SUM_DELAY = 4
# From there to the written answer, the first of its group: shift, parameters, bias, product, align, round, clamp.
ANSWER_DELAY = 8
MOST_LANES = 64


class InferenceCore(wiring.Component):
    """Computes one inference a `start`; inputs and answers lie in two banks each, so that copies and compute overlap.

    `cycles` counts from the cycle behind `start` to the one that writes the last answer, and keeps the last count.

    Args:
        split: bits of the sum that the requantizer multiplies apart from the others, for devices whose multipliers are
            narrower than the sum; 0 for one product.
    """

    def __init__(self, network: Network, lanes: int, split: int = 0) -> None:
        self.network, self.lanes, self.split = network, lanes, split
        self.input_bits = ceil_log2(network.inputs)
        self.answer_bits = ceil_log2(network.outputs)
        self.answer_shape = signed(8 * network.answer_bytes)
        self.cycle_bits = (2 * count_cycles_at_most(network, lanes)).bit_length()
        super().__init__(
            {
                "start": In(1),
                "bank": In(1),
                "busy": Out(1),
                "done": Out(1),
                "done_bank": Out(1),
                "cycles": Out(self.cycle_bits),
                "write_en": In(1),
                "write_addr": In(1 + self.input_bits),
                "write_data": In(8),
                "peek_en": In(1),
                "peek_addr": In(1 + self.input_bits),
                "peek_data": Out(8),
                "answer_en": In(1),
                "answer_addr": In(1 + self.answer_bits),
                "answer_data": Out(self.answer_shape),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        bank = Signal()
        memories = self._add_memories(m)
        issue = self._add_issue(m, memories, bank)
        sums, loaded = self._add_lanes(m, memories, issue)
        drain = self._add_drain(m, sums, loaded, issue)
        answer = self._add_requantizer(m, drain)
        self._add_writes(m, memories, answer, issue, bank)
        return m

    def _add_memories(self, m: Module) -> dict[str, Any]:
        """Ports of: inputs (two banks), activations between layers (two halves), answers (two banks), weights."""
        layers = self.network.layers
        hidden = max((layer.outputs for layer in layers[:-1]), default=1)
        self.hidden_bits = ceil_log2(hidden)
        m.submodules.inputs = inputs = Memory(shape=signed(8), depth=2 << self.input_bits, init=[])
        m.submodules.hidden = between = Memory(shape=signed(8), depth=2 << self.hidden_bits, init=[])
        m.submodules.answers = answers = Memory(shape=self.answer_shape, depth=2 << self.answer_bits, init=[])
        words = pack_weights(layers, self.lanes)
        m.submodules.weights = weights = Memory(shape=unsigned(8 * self.lanes), depth=len(words), init=words)
        load, peek, take = inputs.write_port(), inputs.read_port(), answers.read_port()
        m.d.comb += [
            load.en.eq(self.write_en),
            load.addr.eq(self.write_addr),
            load.data.eq(self.write_data.as_signed()),
            peek.en.eq(self.peek_en),
            peek.addr.eq(self.peek_addr),
            self.peek_data.eq(peek.data),
            take.en.eq(self.answer_en),
            take.addr.eq(self.answer_addr),
            self.answer_data.eq(take.data),
        ]
        return {
            "inputs": inputs.read_port(),
            "hidden": between.read_port(),
            "hidden_write": between.write_port(),
            "answers_write": answers.write_port(),
            "weights": weights.read_port(),
            "depth": len(words),
        }

    def _add_issue(self, m: Module, memories: dict[str, Any], bank: Signal) -> dict[str, Signal]:
        """Walks through layers, groups of outputs and activations: one address a cycle, unless it has to wait.

        Flags are kept beside the counters, so that the decision to go is a few gates deep.
        """
        layers = self.network.layers
        groups = [-(-layer.outputs // self.lanes) for layer in layers]
        lengths = Array(C(layer.inputs - 1, range(max(2, *(x.inputs for x in layers)))) for layer in layers)
        group_counts = Array(C(count - 1, range(max(2, *groups))) for count in groups)
        running, layer = Signal(), Signal(range(max(2, len(layers))))
        k, group = Signal(range(max(2, *(x.inputs for x in layers)))), Signal(range(max(2, *groups)))
        left = Signal.like(k, init=layers[0].inputs - 1)  # activations behind this one
        address = Signal(range(max(2, memories["depth"])))
        first, last = Signal(init=1), Signal(init=layers[0].inputs == 1)
        waits = Signal()  # whether this group is the first to read the activations of its layer
        hidden = max((x.outputs for x in layers[:-1]), default=1)
        unread = Signal(range(hidden + 1))  # activations that are written and were read by no group
        signals = {"layer": layer, "first": first, "last": last, "go": Signal(), "room": Signal(), "written": Signal()}
        go = signals["go"]
        m.d.comb += go.eq(running & (~waits | (unread != 0)) & (~last | signals["room"]))
        m.d.sync += unread.eq(unread + signals["written"] - (go & waits))
        next_layer = Signal.like(layer)
        m.d.comb += next_layer.eq(layer)
        with m.If(go):
            m.d.sync += [k.eq(k + 1), left.eq(left - 1), address.eq(address + 1), first.eq(0), last.eq(left == 1)]
        with m.If(go & last):
            m.d.sync += [k.eq(0), group.eq(group + 1), first.eq(1), waits.eq(0)]
            with m.If(group == group_counts[layer]):
                m.d.comb += next_layer.eq(Mux(layer == len(layers) - 1, 0, layer + 1))
                m.d.sync += [group.eq(0), layer.eq(next_layer), waits.eq(next_layer != 0)]
                with m.If(next_layer == 0):
                    m.d.sync += [address.eq(0), running.eq(0)]
            m.d.sync += [left.eq(lengths[next_layer]), last.eq(lengths[next_layer] == 0)]
        with m.If(self.start & ~self.busy):
            m.d.sync += [running.eq(1), bank.eq(self.bank), self.busy.eq(1), self.cycles.eq(0)]
        with m.If(self.busy):
            m.d.sync += self.cycles.eq(self.cycles + 1)
        m.d.comb += [
            memories["weights"].en.eq(go),
            memories["weights"].addr.eq(address),
            memories["inputs"].en.eq(go),
            memories["inputs"].addr.eq(Cat(fit(k, self.input_bits), bank)),
            memories["hidden"].en.eq(go),
            memories["hidden"].addr.eq(Cat(fit(k, self.hidden_bits), layer[0])),
        ]
        return signals

    def _add_lanes(self, m: Module, memories: dict[str, Any], issue: dict[str, Signal]) -> tuple[list[Signal], Signal]:
        """The sums, and a flag for the cycle in which those of a group are complete."""
        flags = [Cat(issue["go"], issue["go"] & issue["first"], issue["go"] & issue["last"])]
        from_input = Signal()
        m.d.sync += from_input.eq(issue["layer"] == 0)
        for stage in range(SUM_DELAY - 1):
            delayed = Signal(3, name=f"flags_{stage + 1}")
            m.d.sync += delayed.eq(flags[-1])
            flags.append(delayed)
        loaded = Signal()
        m.d.sync += loaded.eq(flags[3][0] & flags[3][2])
        activation = Signal(signed(8))
        words = Signal(8 * self.lanes)
        m.d.sync += [
            activation.eq(Mux(from_input, memories["inputs"].data, memories["hidden"].data)),
            words.eq(memories["weights"].data),
        ]
        shape = signed(max(count_bits(*layer.bound_sums()) for layer in self.network.layers))
        sums = []
        for lane in range(self.lanes):
            product = Signal(signed(16), name=f"product_{lane}")
            total = Signal(shape, name=f"sum_{lane}")
            m.d.sync += product.eq(activation * words[8 * lane : 8 * lane + 8].as_signed())
            with m.If(flags[3][0]):
                m.d.sync += total.eq(Mux(flags[3][1], 0, total) + product)
            sums.append(total)
        return sums, loaded

    def _add_drain(self, m: Module, sums: list[Signal], loaded: Signal, issue: dict[str, Signal]) -> dict[str, Signal]:
        """Moves finished sums out, one a cycle, each with the address of its parameters."""
        layers = self.network.layers
        outputs = Array(C(layer.outputs, range(max(x.outputs for x in layers) + 1)) for layer in layers)
        shift = [Signal.like(total, name=f"shift_{i}") for i, total in enumerate(sums)]
        left, rest = Signal(range(self.lanes + 1)), Signal(range(max(x.outputs for x in layers) + 1))
        layer, in_flight = Signal(range(max(2, len(layers)))), Signal()
        address = Signal(range(sum(x.outputs for x in layers)))
        last_address = sum(x.outputs for x in layers) - 1
        m.d.sync += [a.eq(b) for a, b in pairwise(shift)]
        with m.If(left != 0):
            m.d.sync += [left.eq(left - 1), address.eq(Mux(address == last_address, 0, address + 1))]
        waiting = Signal(range(max(x.outputs for x in layers) + 1))
        m.d.comb += waiting.eq(Mux(rest == 0, outputs[layer], rest))
        with m.If(loaded):
            m.d.sync += [a.eq(b) for a, b in zip(shift, sums, strict=True)]
            with m.If(waiting > self.lanes):
                m.d.sync += [left.eq(self.lanes), rest.eq(waiting - self.lanes)]
            with m.Else():
                m.d.sync += [left.eq(waiting), rest.eq(0)]
                m.d.sync += layer.eq(Mux(layer == len(layers) - 1, 0, layer + 1))
        # A group may end only when the register will be empty by the time its sums arrive.
        with m.If(issue["go"] & issue["last"]):
            m.d.sync += in_flight.eq(1)
        with m.Elif(loaded):
            m.d.sync += in_flight.eq(0)
        m.d.comb += issue["room"].eq(~in_flight & (left <= SUM_DELAY))
        return {"value": shift[0], "valid": left != 0, "address": address}

    def _add_requantizer(self, m: Module, drain: dict[str, Signal]) -> dict[str, Signal]:
        """Bias, multiplication, alignment and rounding, a stage each; the zero point and the clamp are at the write."""
        table = ParameterTable(self.network)
        m.submodules.parameters = memory = Memory(shape=unsigned(table.width), depth=len(table.words), init=table.words)
        port = memory.read_port()
        m.d.comb += [port.addr.eq(drain["address"]), port.en.eq(drain["valid"])]
        total = Signal.like(drain["value"])
        biased = Signal(signed(table.biased_bits))
        multiplier = Signal(table.multiplier_bits)
        align, align_late = Signal(table.align_bits), Signal(table.align_bits)
        bias_field, multiplier_field, align_field = table.split(port.data)
        m.d.sync += [
            total.eq(drain["value"]),
            biased.eq(total + bias_field),
            multiplier.eq(multiplier_field),
            align.eq(align_field),
            align_late.eq(align),
        ]
        product = self._multiply(m, biased, multiplier)
        aligned = Signal(signed(table.product_bits + (1 << table.align_bits) - 1))
        m.d.sync += aligned.eq(product << align_late)
        rounded = Signal(signed(table.rounded_bits))
        floor = aligned >> table.shift
        half = aligned[table.shift - 1] if table.shift else C(0)
        sticky = aligned[: table.shift - 1].any() if table.shift > 1 else C(0)
        m.d.sync += rounded.eq(floor + round_up(floor, half, sticky))
        return {
            "value": rounded,
            "wide": self._delay(m, biased, 3) if self.network.answer_bytes == 4 else C(0),
            "valid": self._delay(m, drain["valid"], 5),
        }

    def _multiply(self, m: Module, biased: Signal, multiplier: Signal) -> Any:
        """The product, registered; where it is split, the sum of two registered ones."""
        if not 0 < self.split < len(biased):
            product = Signal(signed(len(biased) + len(multiplier)))
            m.d.sync += product.eq(biased * multiplier)
            return product
        low = Signal(signed(self.split + len(multiplier) + 1))
        high = Signal(signed(len(biased) - self.split + len(multiplier)))
        m.d.sync += [low.eq(biased[: self.split] * multiplier), high.eq(biased[self.split :].as_signed() * multiplier)]
        return low + (high << self.split)

    @staticmethod
    def _delay(m: Module, value: Any, cycles: int) -> Any:
        for _ in range(cycles):
            late = Signal.like(value)
            m.d.sync += late.eq(value)
            value = late
        return value

    def _add_writes(
        self, m: Module, memories: dict[str, Any], answer: dict[str, Signal], issue: dict[str, Signal], bank: Signal
    ) -> None:
        """Zero point and clamp, then into the activations of the next layer or the answers."""
        layers = self.network.layers
        layer, index = Signal(range(len(layers) + 1)), Signal(range(max(x.outputs for x in layers) + 1))
        clamped, wide = Signal(signed(8)), Signal(self.answer_shape)
        valid = Signal()
        rectified = Mux(answer["wide"] < 0, 0, answer["wide"]) if layers[-1].relu else answer["wide"]
        m.d.sync += [valid.eq(answer["valid"]), wide.eq(rectified)]
        ahead_layer = Signal(range(max(2, len(layers))))  # of the value that is clamped now
        for i, each in enumerate(layers):
            with m.If(ahead_layer == i):
                m.d.sync += clamped.eq(saturate(answer["value"] + each.zero_point, each.low, HIGH))
        counts = Array(C(x.outputs - 1, range(max(x.outputs for x in layers))) for x in layers)
        ahead = Signal(range(max(x.outputs for x in layers)))
        with m.If(answer["valid"]):
            m.d.sync += ahead.eq(ahead + 1)
            with m.If(ahead == counts[ahead_layer]):
                m.d.sync += [ahead.eq(0), ahead_layer.eq(Mux(ahead_layer == len(layers) - 1, 0, ahead_layer + 1))]
        is_last = layer == len(layers) - 1
        hidden, answers = memories["hidden_write"], memories["answers_write"]
        wide_answers = self.network.answer_bytes == 4
        m.d.comb += [
            hidden.en.eq(valid & ~is_last),
            hidden.addr.eq(Cat(fit(index, self.hidden_bits), ~layer[0])),
            hidden.data.eq(clamped),
            answers.en.eq(valid & is_last),
            answers.addr.eq(Cat(fit(index, self.answer_bits), bank)),
            answers.data.eq(wide if wide_answers else clamped),
            issue["written"].eq(valid & ~is_last),
            self.done_bank.eq(bank),
        ]
        m.d.sync += self.done.eq(0)
        with m.If(valid):
            m.d.sync += index.eq(index + 1)
            with m.If(index == counts[layer]):
                m.d.sync += [index.eq(0), layer.eq(layer + 1)]
                with m.If(is_last):
                    m.d.sync += [layer.eq(0), self.done.eq(1), self.busy.eq(0)]


def saturate(value: Any, low: int, high: int) -> Any:
    """`value` held between two constants; as wide as the constants need."""
    number = Value.cast(value)
    held = Mux(number < low, C(low), Mux(number > high, C(high), number))
    if low >= 0:
        return held[: high.bit_length() or 1]
    return held[: max((-low - 1).bit_length(), high.bit_length()) + 1].as_signed()


def round_up(floor: Any, half: Any, sticky: Any) -> Any:
    """Whether one is added to `floor`, ties to even: `half` is the bit behind it, `sticky` that any after is set."""
    return half & (sticky | Value.cast(floor)[0])


def fit(value: Signal, bits: int) -> Any:
    """`value` with exactly this many bits."""
    return Cat(value[:bits], C(0, max(0, bits - len(value))))


class ParameterTable:
    """Bias, multiplier and alignment of every output, packed into words; all shifts become one by aligning left."""

    def __init__(self, network: Network) -> None:
        layers = [layer for layer in network.layers if layer.quantization] or list(network.layers)
        self.shift = max(int(layer.shift.max()) for layer in layers)
        lowest = min(int(layer.shift.min()) for layer in layers)
        self.align_bits = (self.shift - lowest).bit_length()
        bounds = [layer.bound_accumulators() for layer in network.layers]
        self.bias_bits = max(count_bits(int(x.bias.min()), int(x.bias.max())) for x in network.layers)
        self.biased_bits = max(count_bits(int(low.min()), int(high.max())) for low, high in bounds)
        self.multiplier_bits = max(int(layer.multiplier.max()).bit_length() for layer in layers)
        self.product_bits = self.biased_bits + self.multiplier_bits
        self.rounded_bits = max(self._count_rounded_bits(layer) for layer in layers)
        self.words = [word for layer in network.layers for word in self._pack(layer)]

    @property
    def width(self) -> int:
        return self.bias_bits + self.multiplier_bits + self.align_bits

    def split(self, word: Any) -> tuple[Any, Any, Any]:
        """(bias, multiplier, alignment) of a word."""
        middle = self.bias_bits + self.multiplier_bits
        return word[: self.bias_bits].as_signed(), word[self.bias_bits : middle], word[middle:]

    def _pack(self, layer: Layer) -> list[int]:
        mask = (1 << self.bias_bits) - 1
        wide = layer.quantization is None  # its multiplier is of no use; its alignment must be in range
        return [
            (int(b) & mask)
            | (int(x) << self.bias_bits)
            | ((0 if wide else self.shift - int(s)) << (self.bias_bits + self.multiplier_bits))
            for b, x, s in zip(layer.bias, layer.multiplier, layer.shift, strict=True)
        ]

    @staticmethod
    def _count_rounded_bits(layer: Layer) -> int:
        low, high = (bounds * layer.multiplier >> layer.shift for bounds in layer.bound_accumulators())
        return count_bits(int(min(low.min(), high.min() + 1)), int(max(low.max(), high.max() + 1)))


def pack_weights(layers: Sequence[Layer], lanes: int) -> list[int]:
    """One word a cycle, in the order in which the engine reads them; lane i has byte i."""
    words: list[int] = []
    for layer in layers:
        groups = -(-layer.outputs // lanes)
        padded = np.zeros((groups * lanes, layer.inputs), np.int8)
        padded[: layer.outputs] = layer.weights
        rows = padded.reshape(groups, lanes, layer.inputs).transpose(0, 2, 1).reshape(-1, lanes)
        words += [int.from_bytes(row.tobytes(), "little") for row in rows]
    return words


def count_bits(low: int, high: int) -> int:
    """Bits of a signed word that holds every number from `low` to `high`."""
    return max((-low - 1).bit_length() if low < 0 else 0, high.bit_length() if high > 0 else 0) + 1


def count_cycles_at_most(network: Network, lanes: int) -> int:
    """A bound for the cycles of one inference: no overlap between groups or layers at all."""
    groups = sum(-(-outputs // lanes) for _, outputs in network.sizes)
    return count_ideal_cycles(network.sizes, lanes) + groups * (lanes + SUM_DELAY + ANSWER_DELAY + 4)
