"""INT8 by NNCF's post-training quantization of the ONNX graph, placed for OpenVINO's CPU kernels."""

import contextlib
import hashlib
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from enginebench.core.errors import ArtifactError, MissingDependency
from enginebench.models.precision.calibration_data import CalibrationData
from enginebench.models.precision.graph import is_transformer, sort_nodes
from enginebench.models.precision.trying import answer

try:
    import nncf
except ModuleNotFoundError as missing:
    raise MissingDependency("nncf", 'pip install "enginebench[quantize]"') from missing
from onnx import ModelProto


def quantize_with_nncf(
    model: ModelProto, data: CalibrationData, exclude: Sequence[str] = (), keep_cosine: float | None = None
) -> ModelProto:
    """The graph with Q/DQ nodes where OpenVINO wants them: symmetric weights, activations unsigned where they are.

    The graph stays ONNX: OpenVINO compiles it to the same kernels as NNCF's own IR (ResNet-18 on AVX-512 VNNI: 9.0 ms
    both), and every check on Q/DQ graphs holds for it. NNCF's bias correction is off: on ONNX graphs it made ResNet-18
    worse, 0.952 against 0.975 in centred cosine, where on IR it changed nothing.

    Args:
        keep_cosine: the least centred cosine to the answers in FP32; NNCF's accuracy control takes quantizers back
            until the data keep it.
    """
    given = ModelProto()
    given.CopyFrom(model)
    axis = next(iter(model.graph.input)).type.tensor_type.shape.dim[0]
    size = 1 if data.apart else axis.dim_value or 1
    steps = data.n // size
    dataset = nncf.Dataset(_Entries(data, size, steps))
    try:
        with _silence():
            wishes: dict[str, Any] = {
                "preset": nncf.QuantizationPreset.MIXED,
                "target_device": nncf.TargetDevice.CPU,
                "subset_size": max(steps, 1),
                "model_type": nncf.ModelType.TRANSFORMER if is_transformer(model) else None,
                "ignored_scope": nncf.IgnoredScope(names=list(exclude)) if exclude else None,
            }
            advanced = nncf.AdvancedQuantizationParameters(disable_bias_correction=True)
            if keep_cosine is None:
                made = nncf.quantize(given, dataset, advanced_parameters=advanced, **wishes)
            else:
                made = nncf.quantize_with_accuracy_control(
                    given,
                    dataset,
                    nncf.Dataset(_Entries(data, size, steps)),
                    _Judge(model),
                    max_drop=1 - keep_cosine,
                    advanced_quantization_parameters=advanced,
                    **wishes,
                )
    except Exception as error:  # NNCF, ONNX and ONNX Runtime each have their own
        raise ArtifactError(f"NNCF cannot quantize this graph: {error}") from error
    sort_nodes(made)
    return made


class _Entries:
    """The data as often as NNCF asks for it: it reads more than once."""

    def __init__(self, data: CalibrationData, size: int, steps: int) -> None:
        self._data, self._size, self._steps = data, size, steps

    def __iter__(self) -> Iterator[object]:
        for i in range(self._steps):
            yield self._data.read(i * self._size, (i + 1) * self._size)

    def __len__(self) -> int:
        return self._steps


class _Judge:
    """The mean centred cosine of a graph's first output to that in FP32, as NNCF asks for it: with that of each entry.

    Source: the contract of `validation_fn` in `nncf.quantize_with_accuracy_control`, 3.4.
    """

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        self._known: dict[bytes, Any] = {}
        self._centre: Any = None

    def __call__(self, model: ModelProto, entries: Iterable[Mapping[str, Any]]) -> tuple[float, list[float]]:
        items = list(entries)
        for item in items:
            self._known.setdefault(_identify(item), None)
        missing = [item for item in items if self._known[_identify(item)] is None]
        for item, found in zip(missing, self._answer(self._model, missing) if missing else (), strict=True):
            self._known[_identify(item)] = found
        reference = np.stack([self._known[_identify(item)] for item in items])
        if self._centre is None:  # of all entries: NNCF asks for the graph as it was first
            self._centre = reference.mean(axis=0)
        a, b = reference - self._centre, self._answer(model, items) - self._centre
        norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        cosines = (a * b).sum(axis=1) / np.where(norms > 0, norms, 1.0)
        return float(cosines.mean()), [float(cosine) for cosine in cosines]

    def _answer(self, model: ModelProto, items: Sequence[Mapping[str, Any]]) -> Any:
        feeds = {name: np.concatenate([item[name] for item in items]) for name in items[0]}
        first = next(iter(answer(model, feeds, 1).values()))
        return first.reshape(len(items), -1).astype(np.float64)


def _identify(item: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(b"".join(array.tobytes() for array in item.values())).digest()


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """NNCF's progress bars go to stderr, which is where they belong, and its advice nowhere."""
    logger = logging.getLogger("nncf")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        logger.setLevel(level)
