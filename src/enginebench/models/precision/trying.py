"""A graph asked for its answers, while a recipe still decides what to quantize."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto

from enginebench.core.errors import ArtifactError
from enginebench.core.operators import register_operators
from enginebench.core.protocols import Feeds
from enginebench.core.sums import keep_sums_exact, open_cpu_session

# Entries that go through a graph at a time: of efficientnet_b0, 8 images stay below 300 MB.
STEP = 8


def answer(model: ModelProto, feeds: Feeds, threads: int, libraries: Sequence[str] = ()) -> dict[str, Any]:
    """The float outputs of a graph by name, in ONNX Runtime's own 8-bit kernels where it has them."""
    options = onnxruntime.SessionOptions()
    register_operators(options, libraries)
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    keep_sums_exact(options)  # as the engine has them
    try:
        session = open_cpu_session(model.SerializeToString(), options)
        fixed = session.get_inputs()[0].shape[0]
        step = fixed if isinstance(fixed, int) else STEP
        n = min(len(array) for array in feeds.values())
        parts = [
            session.run(None, {name: array[start : start + step] for name, array in feeds.items()})
            for start in range(0, n - n % step if isinstance(fixed, int) else n, step)
        ]
    except Exception as error:  # ONNX Runtime has a class of its own for every kind of failure
        raise ArtifactError(f"a graph with a part of its nodes quantized does not run: {error}") from error
    names = [output.name for output in session.get_outputs()]
    joined = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return {name: array for name, array in zip(names, joined, strict=True) if array.dtype.kind == "f"}
