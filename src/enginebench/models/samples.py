"""The user's inputs: read once from files or a function, stored one entry a file, and joined to an engine's feeds."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from enginebench.core.array_files import ONLY, declare_arrays, read_array_file
from enginebench.core.blame import explain
from enginebench.core.errors import ArtifactError, FeedError, ModelError, ParseError, UsageError, explaining
from enginebench.core.feeds import has_dtype
from enginebench.core.protocols import Array
from enginebench.core.records import TensorSpec
from enginebench.core.shapes import find_batch_axes, fits_shape, format_shape
from enginebench.core.text import name_type
from enginebench.models.objects import FACTORY, import_named

# Name of the folder beside a run's artifacts.
SAMPLES = "samples"
EXPECTED = "one array for each input, as numpy.savez writes them"


def declare_input_calls(text: str) -> list[dict[str, Array]]:
    """Return the inputs that `--inputs` names, like `read_input_calls`, but of files only names, dtypes and shapes."""
    return [read_heads(file) for file in list_input_files(text)] or read_input_calls(text)


def list_input_files(text: str) -> list[Path]:
    """Return the files that `--inputs` names; none for `package.module:function`.

    Raises:
        UsageError: there is no such file or folder, or no array file in the folder.
    """
    path = Path(text)
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix.lower() in (".npz", ".npy") and not p.name.startswith("."))
        if not files:
            raise UsageError(f"--inputs {text}: the folder holds no .npz file; expected one for each sample")
        return files
    if path.suffix.lower() in (".npz", ".npy"):
        return [path]
    module, _, attribute = text.partition(":")
    if not module or not attribute:
        raise UsageError(
            f"--inputs {text}: no such folder; expected F.npz, a folder of such files, or package.module:function"
        )
    return []


def read_input_calls(text: str) -> list[dict[str, Array]]:
    """Return the inputs that `--inputs` names: for each call of the model a dictionary of arrays by input name.

    Args:
        text: an .npz or .npy file, a folder of them, or `package.module:function`, which returns a dictionary of arrays
            or several of them.
    """
    if files := list_input_files(text):
        return [read_file(file) for file in files]
    function = import_named(text, ModelError, f"--inputs {text}", FACTORY)
    failing = explaining(ModelError, f"--inputs {text}", Exception, SystemExit, describe=explain)
    with failing:  # user code: anything can come out of it, also the end of a script
        returned: Any = function()
        calls = []
        for entry in [returned] if isinstance(returned, Mapping) else returned:
            if not isinstance(entry, Mapping):
                raise ModelError(
                    f"--inputs {text} returned {name_type(entry)}; expected {{input name: array}}, or several of these"
                )
            calls.append({str(name): np.asarray(value) for name, value in entry.items()})
    if not calls:
        raise ModelError(f"--inputs {text} returned nothing; expected one or more dictionaries of arrays")
    return calls


def read_entries(text: str, specs: Sequence[TensorSpec]) -> list[dict[str, Array]]:
    """Return the entries of the inputs that `--inputs` names, each with a batch of one.

    Files that do not fit the inputs are refused before anything in them is unpacked.
    """
    for file in list_input_files(text):
        count_entries(read_heads(file), specs)
    return [entry for arrays in read_input_calls(text) for entry in cut_entries(arrays, specs)]


def read_file(path: Path) -> dict[str, Array]:
    """Return the arrays of an .npz file by name; that of an .npy file under `ONLY`."""
    return _check_any(path, drop_hidden(read_array_file(path, EXPECTED)))


def read_heads(path: Path) -> dict[str, Array]:
    """Return the arrays of a file like `read_file`, but read the headers only: each repeats one value in its shape."""
    return _check_any(path, drop_hidden(declare_arrays(path, EXPECTED)))


def _check_any(path: Path, arrays: dict[str, Array]) -> dict[str, Array]:
    if not arrays:
        raise ParseError(path, "", "no array", EXPECTED)
    return arrays


def drop_hidden(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays without the metadata that `calibrate --keep-batches` stores beside them."""
    return {name: array for name, array in arrays.items() if not name.startswith("__")}


def write_samples(calls: Iterable[Mapping[str, Array]], specs: Sequence[TensorSpec], folder: Path) -> int:
    """Write each entry of the calls into a file of its own; return the number of entries."""
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for arrays in calls:
        for entry in cut_entries(arrays, specs):
            np.savez(folder / f"{count:06}.npz", **entry)  # type: ignore[arg-type]
            count += 1
    return count


def name_arrays(arrays: Mapping[str, Array], specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Return the arrays by input name; the single array of an .npy file gets the name of the only input."""
    if ONLY not in arrays:
        return dict(arrays)
    if len(specs) != 1:
        raise FeedError(f"--inputs names a single array; the model has {len(specs)} inputs. Give an .npz")
    return {specs[0].name: arrays[ONLY]}


def cut_entries(arrays: Mapping[str, Array], specs: Sequence[TensorSpec]) -> list[dict[str, Array]]:
    """Return the entries of one call, each with a batch of one; inputs without a batch axis are whole in each."""
    count, axes = count_entries(arrays, specs), find_batch_axes(specs)
    arrays = name_arrays(arrays, specs)
    if count is None:
        return [dict(arrays)]
    entries: list[dict[str, Array]] = [{} for _ in range(count)]
    for name, array in arrays.items():
        axis = axes[name]
        for i, entry in enumerate(entries):
            entry[name] = array if axis is None else np.take(array, [i], axis=axis)
    return entries


def count_entries(arrays: Mapping[str, Array], specs: Sequence[TensorSpec]) -> int | None:
    """Return the number of entries of one call; None where no input has a batch axis.

    Raises:
        FeedError: the arrays do not fit the inputs.
    """
    arrays, axes = name_arrays(arrays, specs), find_batch_axes(specs)
    if problems := list_problems(arrays, specs, axes):
        expected = ", ".join(f"{s.name}: {s.dtype}[{format_shape(s.shape)}]" for s in specs)
        raise FeedError(f"the inputs do not fit the model: {'; '.join(problems)}. Expected {expected}")
    lengths = {name: arrays[name].shape[axis] for name, axis in axes.items() if axis is not None}
    counts = set(lengths.values())
    if len(counts) > 1:
        listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise FeedError(f"the inputs have different numbers of entries ({listed}); give each as many")
    return counts.pop() if counts else None


def list_problems(
    arrays: Mapping[str, Array], specs: Sequence[TensorSpec], axes: Mapping[str, int | None]
) -> list[str]:
    """Return every fault of names, dtypes and shapes; a batch axis may have any length but 0."""
    names = {spec.name for spec in specs}
    problems = [f"unknown input {name!r}" for name in arrays if name not in names]
    for spec in specs:
        array = arrays.get(spec.name)
        if array is None:
            problems.append(f"missing input {spec.name!r}")
            continue
        free = tuple("batch" if i == axes[spec.name] else axis for i, axis in enumerate(spec.shape))
        if not has_dtype(array.dtype, spec.dtype):
            problems.append(f"input {spec.name!r} has dtype {array.dtype}, not {spec.dtype}")
        if 0 in array.shape and fits_shape(free, array.shape):
            empty = "a batch" if array.shape.index(0) == axes[spec.name] else "an axis"
            problems.append(
                f"input {spec.name!r} has shape {format_shape(array.shape)}: {empty} of 0 has nothing to compute"
            )
        elif not fits_shape(free, array.shape):
            problems.append(f"input {spec.name!r} has shape {format_shape(array.shape)}, not {format_shape(free)}")
    return problems


def require_names(model: str, names: Sequence[str], arrays: Mapping[str, Array]) -> None:
    """Check that arrays have the names of a model's inputs, where these are all that is known of them.

    Raises:
        FeedError: one is missing, or is none of them.
    """
    if set(arrays) not in ({*names}, {ONLY}):
        raise FeedError(f"{model} takes {', '.join(names)}; --inputs holds {', '.join(arrays)}. Name the arrays so")


def take_sizes(
    specs: Sequence[TensorSpec], arrays: Mapping[str, Array], axes: Mapping[str, int | None] | None = None
) -> tuple[TensorSpec, ...]:
    """Return the specs with the lengths that one entry has on the dynamic axes; the batch axis stays dynamic.

    Arrays that do not fit are left to `cut_entries`, which reports all that is wrong.
    """
    axes = find_batch_axes(specs) if axes is None else axes

    def take(spec: TensorSpec) -> TensorSpec:
        shape = arrays[spec.name].shape if spec.name in arrays else ()
        others = [isinstance(axis, str) and i != axes[spec.name] for i, axis in enumerate(spec.shape)]
        if not any(others) or len(shape) != len(others):
            return spec
        return replace(spec, sizes=tuple(length if other else 0 for length, other in zip(shape, others, strict=True)))

    return tuple(map(take, specs))


def find_samples(artifacts: Path) -> str | None:
    """Return the folder of samples beside `artifacts`; None if the user gave no inputs."""
    return str(folder) if (folder := artifacts.absolute() / SAMPLES).is_dir() else None


def list_samples(folder: str) -> list[Path]:
    """Return the files that `write_samples` wrote to a folder, in order.

    Raises:
        ArtifactError: one of them is a symbolic link.
    """
    paths = sorted(Path(folder).glob("*.npz"))
    if links := [path for path in (Path(folder), *paths) if path.is_symlink()]:
        raise ArtifactError(f"{links[0]} is a symbolic link; those of stored samples are not followed. Copy the file")
    return paths


def read_samples(folder: str, n: int | None = None) -> list[dict[str, Array]]:
    """Return the entries that `write_samples` wrote to a folder, the first `n` of them."""
    return [read_file(path) for path in list_samples(folder)[:n]]


def group_samples(samples: Sequence[Mapping[str, Array]], batch: int, specs: Sequence[TensorSpec]) -> list[list[int]]:
    """Return the indices of the entries of each call: at most `batch`, in their order.

    The entries of a call have equal shapes, and equal values in every input without a batch axis; where the model has
    no batch axis at all, each entry is a call of its own.
    """
    axes = find_batch_axes(specs)
    shared = [name for name, axis in axes.items() if axis is None]
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, sample in enumerate(samples):
        shapes = tuple(sorted((name, array.shape) for name, array in sample.items()))
        if len(shared) == len(axes):
            groups[shapes, index] = [index]
            continue
        values = tuple(hashlib.sha256(sample[name].tobytes()).digest() for name in shared if name in sample)
        groups.setdefault((shapes, values), []).append(index)
    return [group[i : i + batch] for group in groups.values() for i in range(0, len(group), batch)]


def join_samples(members: Sequence[Mapping[str, Array]], specs: Sequence[TensorSpec], batch: int) -> dict[str, Array]:
    """Return one feed of `batch` entries: the members, then the first ones again if there are fewer."""
    axes, feed = find_batch_axes(specs), {}
    for spec in specs:
        axis = axes[spec.name]
        arrays = [members[i % len(members)][spec.name] for i in range(1 if axis is None else batch)]
        joined = arrays[0] if axis is None else np.concatenate(arrays, axis=axis)
        feed[spec.name] = np.asarray(joined, dtype=spec.dtype, order="C")
    return feed


def find_batch(specs: Sequence[TensorSpec], batch: int) -> int:
    """Return the number of entries of one call: the fixed batch of the graph, else `batch`."""
    axes = find_batch_axes(specs)
    lengths = (spec.shape[axis] for spec in specs if (axis := axes[spec.name]) is not None)
    return next((length for length in lengths if isinstance(length, int)), batch)
