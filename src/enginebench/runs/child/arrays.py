"""Files of arrays that pass between the processes of a run."""

import io
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from enginebench.core.array_files import read_array_file
from enginebench.core.errors import ParseError
from enginebench.core.protocols import Array
from enginebench.core.store import write_atomic

ARRAYS = "an .npz file of plain arrays"
# Prefixes in a file of outputs for labelled samples: counts by metric, outputs by name, the reason of a failed metric.
COUNTS, OUTPUTS, FAILURE = "counts/", "outputs/", "failure/"
# Indices of the labelled samples that have outputs, ascending; without it all have.
PLACES = "places"
# Number of calls whose outputs a file holds; no output has this name.
CALLS = "__calls__"
# Limit on the values of one configuration's outputs for the check inputs: 64 MB in FP32. A segmenter gives five million
# values for one picture, 32 of which are 0.7 GB; smaller outputs are all compared.
CHECKED_VALUES = 1 << 24
# Limit on the values that are kept after the comparison, for the check of a bundle.
KEPT_VALUES = 1 << 20
# One call alone has no centred cosine.
FEWEST_CALLS = 2


def save_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Store arrays as .npz, atomically."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    write_atomic(path, buffer.getvalue())


def load_arrays(path: Path) -> dict[str, Array]:
    """The arrays of a file that `save_arrays` wrote, by name; ParseError if it is not as that writes it."""
    return read_array_file(path, ARRAYS, compressed=False)


def save_sets(path: Path, sets: Mapping[str, Mapping[str, Array]]) -> None:
    """Store the outputs for several sets of inputs."""
    save_arrays(path, {f"{name}/{output}": array for name, arrays in sets.items() for output, array in arrays.items()})


def load_sets(path: Path) -> dict[str, dict[str, Array]]:
    """Set of inputs -> its outputs; none where the file is not there."""
    sets: dict[str, dict[str, Array]] = {}
    for key, array in load_arrays(path).items() if path.is_file() else ():
        name, _, output = key.partition("/")
        sets.setdefault(name, {})[output] = array
    return sets


def limit_calls(calls: int, values: int, most: int = CHECKED_VALUES) -> int:
    """The number of calls to compare, or to keep, where each has so many output values."""
    return min(calls, max(FEWEST_CALLS, most // max(1, values)))


def limit_time(calls: int, call_s: float, budget_s: float) -> int:
    """The number of calls of `call_s` seconds each that fit into the budget."""
    return min(calls, max(FEWEST_CALLS, int(budget_s / call_s) if math.isfinite(budget_s) and call_s else calls))


def count_values(arrays: Mapping[str, Array]) -> int:
    return sum(array.size for array in arrays.values())


def save_outputs(path: Path, outputs: Mapping[str, Array], calls: int) -> None:
    """Store the outputs of so many calls, joined along the first axis."""
    save_arrays(path, {**outputs, CALLS: np.array(calls)})


def load_outputs(path: Path) -> tuple[dict[str, Array], int | None]:
    """Load (outputs of a configuration, number of their calls); None if an older version stored them."""
    arrays = load_arrays(path)
    calls = arrays.pop(CALLS, None)
    return arrays, None if calls is None else int(calls)


def reduce_outputs(path: Path) -> None:
    """Keep only the outputs of the first few calls, if there are many values."""
    outputs, calls = load_outputs(path)
    if not calls or any(len(array) % calls for array in outputs.values()):
        return
    kept_calls = limit_calls(calls, count_values(outputs) // calls, KEPT_VALUES)
    if kept_calls < calls:
        cut = {name: array[: len(array) // calls * kept_calls] for name, array in outputs.items()}
        save_outputs(path, cut, kept_calls)


def holds_arrays(path: Path) -> bool:
    """Whether the file is there and whole: every array is read, and its checksum with it."""
    try:
        load_arrays(path)
    except ParseError:
        return False
    return True


def find_common(
    own: Mapping[str, Array], other: Mapping[str, Array]
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Find (indices in `own`, indices in `other`) of the samples that both files have; None if both have all."""
    here, there = own.get(PLACES), other.get(PLACES)
    if here is None and there is None:
        return None
    if here is None or there is None:
        listed = np.asarray(there if here is None else here, np.int64)
        every = np.arange(len(listed))
        return (listed, every) if here is None else (every, listed)
    _, first, second = np.intersect1d(here, there, return_indices=True)
    return first.astype(np.int64), second.astype(np.int64)
