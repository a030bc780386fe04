"""Entropy calibration for weakly typed INT8 networks of TensorRT 8.6 and 10; 11 has no calibrators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from enginebench.engines.backends.tensorrt.settings import adapt_cache
from enginebench.core.protocols import Array
from enginebench.core.store import write_atomic
from enginebench.engines import cuda
from enginebench.engines.backends.tensorrt.settings import adapt_cache
from enginebench.engines.tensorrt_library import import_tensorrt

trt = import_tensorrt()


def make_calibrator(batches: list[dict[str, Array]], cache: Path | None) -> Any:
    """A calibrator on these batches that reads and writes `cache`; without batches the cache is all it has."""

    class Calibrator(trt.IInt8EntropyCalibrator2):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IInt8EntropyCalibrator2.__init__(self)
            self._left = list(batches)
            self._stream = cuda.Stream()
            self._buffers: dict[str, tuple[cuda.PinnedArray, cuda.DeviceBuffer]] = {}

        def get_batch_size(self) -> int:
            return len(next(iter(batches[0].values()))) if batches else 1

        def get_batch(self, names: Sequence[str]) -> list[int] | None:
            if not self._left:
                return None
            batch = self._left.pop(0)
            for name in names:
                self._copy(name, batch[name])
            self._stream.synchronize()
            return [self._buffers[name][1].address for name in names]

        def read_calibration_cache(self) -> bytes | None:
            if cache is None or not cache.is_file():
                return None
            return adapt_cache(cache.read_bytes(), tuple(map(int, trt.__version__.split(".")[:3])))

        def write_calibration_cache(self, data: Any) -> None:
            if cache is not None:
                write_atomic(cache, bytes(data))

        def _copy(self, name: str, array: Array) -> None:
            if name not in self._buffers:
                pinned = cuda.PinnedArray(array.shape, array.dtype.name)
                self._buffers[name] = pinned, cuda.DeviceBuffer(array.nbytes)
            pinned, buffer = self._buffers[name]
            np.copyto(pinned.array, array)
            cuda.copy_to_device(buffer, pinned, self._stream)

    return Calibrator()
