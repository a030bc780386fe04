"""A board of an FPGA that only adds numbers."""

from enginebench.core.records import TensorSpec

INPUT = TensorSpec(name="x", dtype="float32", shape=("batch", 2))
OUTPUT = TensorSpec(name="y", dtype="float32", shape=("batch", 1))


class NumberBoard:
    """Adds its inputs; 100 cycles an inference, 10 ns a cycle, 300 ns in, 50 ns back."""

    design_sha256, description = "d" * 64, "a board of numbers"
    inputs, outputs = (INPUT,), (OUTPUT,)

    def __init__(self):
        self.closed = 0

    def infer(self, inputs):
        return inputs.sum(axis=1, keepdims=True), [100] * len(inputs)

    def model_ns(self, cycles):
        return 300, 10 * cycles, 50

    def model_interval_ns(self, cycles):
        return 10 * cycles

    def close(self):
        self.closed += 1
