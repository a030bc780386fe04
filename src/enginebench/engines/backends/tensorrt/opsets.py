"""Which ONNX operator sets a version of TensorRT reads; of newer graphs 8.6 makes another network without a word."""

from __future__ import annotations

# The first version that reads each. Sources: docs/operators.md of onnx-tensorrt, 8.6, 9.0, 10.0, 10.15; release notes
# of 10.6 (ONNX 1.17) and 11.5. Seen in 8.6.0: the axes input of ReduceMean is not read, so that it runs over all axes.
NEWEST = {(8, 6): 17, (9, 0): 19, (10, 0): 20, (10, 6): 22, (10, 15): 24, (11, 5): 25}


def find_newest_opset(version: str) -> int:
    """The newest operator set that this version (`8.6.1`) reads."""
    major, minor = (int(part) for part in version.split(".")[:2])
    return max((opset for first, opset in NEWEST.items() if first <= (major, minor)), default=min(NEWEST.values()))
