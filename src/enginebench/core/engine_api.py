"""The parts of EngineBench that engines import: errors, specs of tensors and their checks, protocols.

It imports the standard library alone, and NumPy only inside functions that take arrays: bundles hold a copy of it, next
to the engine that was measured, and `--help` must not load NumPy. It must run on Python 3.10.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[np.generic]"
Feeds: TypeAlias = "Mapping[str, Array]"
# `engine.run`: fetched once by the loop, then called without arguments.
RunCall: TypeAlias = Callable[[], object]
Closed = TypeVar("Closed", bound="Closing")

# The dtype of text: arrays of kind "U", of whatever width.
TEXT = "str"
# The one axis of an output whose shape a graph does not declare.
UNKNOWN_RANK = "unknown_rank"


class DeviceTimes(NamedTuple):
    """Nanoseconds that a GPU took to copy a batch in, to compute it and to copy its outputs out, one after another."""

    copy_in: int
    compute: int
    copy_out: int


class TensorSpecLike(Protocol):
    """One input or output. A dynamic axis is a name ("batch"), a static one a number; `dtype` is NumPy's name.

    `sizes`: the length of each open axis where nobody gives one; 0 where it is the batch, or `shape` says it.
    """

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int | str, ...]: ...
    @property
    def sizes(self) -> tuple[int, ...]: ...


class ArtifactLike(Protocol):
    """The artifact that an engine opens."""

    @property
    def path(self) -> str: ...
    @property
    def precision(self) -> str | None: ...
    @property
    def inputs(self) -> Sequence[TensorSpecLike]: ...
    @property
    def outputs(self) -> Sequence[TensorSpecLike]: ...


class EngineSpecLike(Protocol):
    """The settings of an engine. Its options are passed separately, each with a value."""

    @property
    def backend(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def precision(self) -> str | None: ...
    @property
    def recipe(self) -> str | None: ...
    @property
    def batch(self) -> int: ...
    @property
    def threads(self) -> int: ...


class EngineBenchError(Exception):
    """The root; `exit_code` is what the command line ends with."""

    exit_code = 1
    log = ""  # the whole output of a tool, where the message holds only the relevant part
    stderr_tail = ""  # the last output of the child that it happened in


class UsageError(EngineBenchError):
    """A request is not valid: a wrong option, name or combination of them."""

    exit_code = 2


class DependencyError(EngineBenchError):
    """An engine or tool is not available here."""

    exit_code = 3


class BackendUnavailable(DependencyError):
    """An engine is installed but does not work here."""


class ArtifactError(EngineBenchError):
    """A model, graph, engine or stored file cannot be used."""

    exit_code = 5


class ModelError(ArtifactError):
    """A model cannot be found, built or exported."""


class FeedError(ArtifactError):
    """Arrays do not fit the inputs of an engine."""


class MeasurementError(EngineBenchError):
    """Timing did not end in a result that can be trusted."""

    exit_code = 6


def check_state(engine: str, *, closed: bool, bound: bool = True) -> None:
    """Check that an engine can be used now: neither after `close`, nor, for `run` and `fetch`, before `bind`."""
    if closed:
        raise UsageError(f"the engine {engine} is closed; load it again")
    if not bound:
        raise UsageError(f"the engine {engine} has no inputs yet; call bind first")


def read_index(spec: EngineSpecLike) -> int:
    """The N of `cuda:N`, the GPU that a spec names; UsageError if it names none."""
    kind, _, index = spec.device.partition(":")
    if kind != "cuda" or not (index or "0").isdecimal():
        raise UsageError(f"engine {spec.backend} runs on a GPU: expected --device cuda:N, found {spec.device!r}")
    return int(index or 0)


class Closing:
    """A `with` block that closes an engine at its end."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: Closed) -> Closed:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class SharedEngine(Closing):
    """An engine that several threads may call: one call at a time, so that each gets the outputs of its own inputs.

    `bind`, `run` and `fetch` on their own belong together within one thread: where another thread has bound inputs in
    between, `run` and `fetch` raise UsageError. A loop that times calls uses the engine itself, without this lock.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._lock = threading.RLock()
        self._bindings = 0  # number of calls of `bind` by any thread
        self._latest = threading.local()  # `binding`: the number of this thread's latest one

    def __call__(self, feeds: Feeds) -> dict[str, Array]:
        """The outputs by name, for the inputs by name."""
        with self._lock:
            self.bind(feeds)
            self._engine.run()
            outputs: dict[str, Array] = self._engine.fetch()
            return outputs

    def bind(self, feeds: Feeds) -> None:
        """Copy the inputs in."""
        with self._lock:
            self._bindings += 1  # first: what fails may have copied a part
            self._latest.binding = self._bindings
            self._engine.bind(feeds)

    def run(self) -> None:
        """Compute the outputs of what was bound; they are complete when it returns."""
        with self._lock:
            self._check_own()
            self._engine.run()

    def fetch(self) -> dict[str, Array]:
        """Return the outputs of the latest run, in arrays that the caller owns."""
        with self._lock:
            self._check_own()
            outputs: dict[str, Array] = self._engine.fetch()
            return outputs

    def close(self) -> None:
        """Free the engine, once no call is under way; may be called twice."""
        with self._lock:
            self._engine.close()

    def _check_own(self) -> None:
        """Check that no other thread bound inputs since this one did; one that never did uses another's."""
        if getattr(self._latest, "binding", self._bindings) != self._bindings:
            raise UsageError(
                "another thread has bound inputs to this engine since: the outputs would be its own. Call the object "
                "with the inputs, which serves one thread after another, or load one engine for each thread"
            )


class PaddedEngine(Closing):
    """An engine whose inputs are padded with zeros to lengths that many requests share, and whose outputs are cut back.

    Args:
        engine: takes these lengths along its named axes.
        padding: {axis: (multiple, longest)}; what is longer than the longest is passed on as it is.
    """

    def __init__(self, engine: Any, padding: Mapping[str, tuple[int, int]]) -> None:
        self.engine = engine
        self.inputs: tuple[Any, ...] = tuple(engine.inputs)
        self.outputs: tuple[Any, ...] = tuple(engine.outputs)
        self._padding = padding
        self._lengths: dict[str, int] = {}  # of every axis, as the arrays that were bound have it

    @property
    def run(self) -> RunCall:
        """The engine's own call, without Python in between."""
        call: RunCall = self.engine.run
        return call

    def bind(self, feeds: Feeds) -> None:
        """Copy the arrays in, padded; lengths of an axis that differ would be equal after that, and are refused."""
        check_feeds(self.inputs, feeds)
        self._lengths = find_axis_lengths(self.inputs, feeds)
        for spec in self.inputs:
            for axis, length in zip(spec.shape, feeds[spec.name].shape, strict=True):
                if axis in self._padding and length != (other := self._lengths[str(axis)]):
                    raise FeedError(f"axis {axis!r} is {length} long in {spec.name!r}, and {other} in another input")
        self.engine.bind({spec.name: self._pad(spec.shape, feeds[spec.name]) for spec in self.inputs})

    def fetch(self) -> dict[str, Array]:
        """Return the outputs of the last run, without what belongs to the padding."""
        shapes = {spec.name: spec.shape for spec in self.outputs}
        return {name: self._cut(shapes[name], array) for name, array in self.engine.fetch().items()}

    def close(self) -> None:
        self.engine.close()

    def _pad(self, axes: Sequence[int | str], array: Array) -> Array:
        pairs = zip(axes, array.shape, strict=True)
        shape = tuple(pad_length(n, *self._padding[str(a)]) if a in self._padding else n for a, n in pairs)
        if shape == array.shape:
            return array
        import numpy as np

        padded: Array = np.zeros(shape, array.dtype)
        padded[tuple(map(slice, array.shape))] = array
        return padded

    def _cut(self, axes: Sequence[int | str], array: Array) -> Array:
        pairs = zip(axes, array.shape, strict=False)
        lengths = [self._lengths[str(a)] if a in self._padding else n for a, n in pairs]
        cut = array[tuple(map(slice, lengths))]
        return cut if cut.shape == array.shape else cut.copy()


def pad_length(length: int, multiple: int, longest: int) -> int:
    """Return a length after padding to a multiple, but to no more than the longest; of a longer one itself."""
    return max(length, min(-(-length // multiple) * multiple, longest))


def check_feeds(specs: Sequence[TensorSpecLike], feeds: Mapping[str, object]) -> None:
    """Check that `feeds` are exactly the inputs of `specs`, in dtype and shape; FeedError names every fault."""
    import numpy as np

    faults = [f"unknown input {name!r}" for name in feeds if name not in {s.name for s in specs}]
    for spec in specs:
        array = feeds.get(spec.name)
        if array is None:
            faults.append(f"missing input {spec.name!r}")
        elif not isinstance(array, np.ndarray):
            faults.append(f"input {spec.name!r} is a {type(array).__name__}, not a NumPy array")
        elif not has_dtype(array.dtype, spec.dtype):
            faults.append(f"input {spec.name!r} has dtype {array.dtype}, not {spec.dtype}")
        elif not fits_shape(spec.shape, array.shape):
            faults.append(f"input {spec.name!r} has shape {format_shape(array.shape)}, not {format_shape(spec.shape)}")
    if faults:
        expected = ", ".join(f"{s.name}: {s.dtype}[{format_shape(s.shape)}]" for s in specs)
        raise FeedError(f"{'; '.join(faults)}. Expected {expected}")


def are_alike(views: Mapping[str, Array], feeds: Mapping[str, Any]) -> bool:
    """Return whether arrays have the names, shapes and dtypes of the ones bound before, which were checked."""
    if len(views) != len(feeds):
        return False
    for name, view in views.items():
        array = feeds.get(name)
        if getattr(array, "shape", None) != view.shape or getattr(array, "dtype", None) != view.dtype:
            return False
    return True


def fill_entries(views: Mapping[str, Array], samples: Sequence[Mapping[str, Array]]) -> None:
    """Copy samples one after another to the front of arrays; what is behind them stays as it is."""
    for name, view in views.items():
        start = 0
        for sample in samples:
            if view.shape == sample[name].shape:  # all of it, which may have no axis
                view[...] = sample[name]
                break
            end = start + len(sample[name])
            view[start:end] = sample[name]
            start = end


def join_shapes(views: Mapping[str, Array], samples: Sequence[Mapping[str, Array]]) -> dict[str, tuple[int, ...]]:
    """The shapes of arrays that take all samples, each with a first axis, and no fewer entries than `views`."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, array in samples[0].items():
        if array.ndim:
            entries = max(sum(len(sample[name]) for sample in samples), len(views.get(name, ())))
            shapes[name] = (entries, *array.shape[1:])
        else:
            shapes[name] = ()  # which one sample alone may be
    return shapes


def has_dtype(dtype: np.dtype[Any], expected: str) -> bool:
    """Return whether a dtype is the one that a spec expects; text may be of any width."""
    return dtype.kind == "U" if expected == TEXT else bool(dtype == expected)


def fits_shape(expected: Sequence[int | str], shape: Sequence[int]) -> bool:
    """Whether a shape has the rank and the fixed axes that are expected."""
    return len(expected) == len(shape) and all(
        want == have for want, have in zip(expected, shape, strict=True) if isinstance(want, int)
    )


def format_shape(shape: Sequence[int | str]) -> str:
    """`1x3x224x224`."""
    return "x".join(str(axis) for axis in shape) or "scalar"


def default_shape(spec: TensorSpecLike) -> tuple[int, ...]:
    """Return the default length of each axis: 0, the batch, of the first, and 1 of any other."""
    return spec.sizes or (0, *[1] * (len(spec.shape) - 1))


def concrete_shape(spec: TensorSpecLike, batch: int) -> tuple[int, ...]:
    """The shape with every dynamic axis replaced: by its size; else the first axis by `batch`, any other by 1."""
    pairs = zip(spec.shape, default_shape(spec), strict=False)
    return tuple(axis if isinstance(axis, int) else size or batch for axis, size in pairs)


def find_batch_axes(specs: Sequence[TensorSpecLike]) -> dict[str, int | None]:
    """{input name: the axis along which its entries lie}; None for an input that every entry shares.

    Where no open axis is the batch, entries lie on the first axis, if that is fixed, and as long as the first input's.
    """
    opened: dict[str, int | None] = {}
    for spec in specs:
        pairs = enumerate(zip(spec.shape, default_shape(spec), strict=False))
        opened[spec.name] = next((i for i, (axis, size) in pairs if isinstance(axis, str) and not size), None)
    if any(axis is not None for axis in opened.values()):
        return opened
    length = next((spec.shape[0] for spec in specs if spec.shape), None)
    return {spec.name: 0 if isinstance(length, int) and spec.shape[:1] == (length,) else None for spec in specs}


def find_axis_lengths(inputs: Sequence[TensorSpecLike], feeds: Feeds) -> dict[str, int]:
    """Length of every named axis, as the bound arrays have it."""
    return {
        axis: length
        for spec in inputs
        for axis, length in zip(spec.shape, feeds[spec.name].shape, strict=True)
        if isinstance(axis, str)
    }


def make_output(spec: TensorSpecLike, axes: Mapping[str, int]) -> Array | None:
    """Make a buffer for an output; None where its shape is known only after the run.

    Floats start as NaN, so that a buffer that no run has filled is never taken for an output.
    """
    shape = [axes.get(axis, -1) if isinstance(axis, str) else axis for axis in spec.shape]
    if min(shape, default=0) < 0:
        return None
    import numpy as np

    dtype = np.dtype(spec.dtype)
    return np.full(shape, np.nan if dtype.kind == "f" else 0, dtype)


def flatten_output(value: Any) -> Array:
    """Return one output of a runtime as one array.

    Text keeps its shape. Maps, which classifiers of ai.onnx.ml give for each sample, become rows of their values in the
    order of their keys. A sequence of tensors becomes one row, its tensors one after another; an optional value that is
    absent a row without values.
    """
    import numpy as np

    if isinstance(value, np.ndarray):
        return value.astype(str) if value.dtype.kind == "O" else value
    if isinstance(value, Mapping):
        value = [value]
    if value is None or not isinstance(value, list):
        return np.atleast_1d(np.asarray([] if value is None else value))[None]
    if value and isinstance(value[0], Mapping):
        return np.array([[scores[key] for key in sorted(scores)] for scores in value])
    pieces = [flatten_output(piece).reshape(-1) for piece in value]
    return np.concatenate(pieces)[None] if pieces else np.empty((1, 0), np.float32)
