"""Find the node at which values that are not finite begin in a graph as it is written, and what it reads."""

from collections.abc import Sequence

import numpy as np

from enginebench.features.locate.program import Program


def explain_beginning(program: Program, tensors: Sequence[str]) -> str:
    """Explain where the values of these tensors that are not finite come from; "" if all are finite.

    It is followed back from them: infinities elsewhere, as those of a mask, are meant.
    """
    producers = {name: i for i, step in enumerate(program.steps) for name in step.outputs}
    names = [name for name in tensors if has_nonfinite(program, name)]
    seen = set(names)
    begins: list[int] = []
    while names:
        index = producers.get(names.pop())
        if index is None:
            continue
        before = [name for name in program.steps[index].inputs if has_nonfinite(program, name)]
        if not before:
            begins.append(index)
        names += [name for name in before if name not in seen]
        seen.update(before)
    if not begins:
        return "An input holds values that are not finite." if seen else ""
    return describe_beginning(program, min(begins))


def describe_beginning(program: Program, index: int) -> str:
    """Describe a node that makes values which are not finite: which, and the values that it reads there."""
    step = program.steps[index]
    made = next(program.values[name] for name in step.outputs if has_nonfinite(program, name))
    kind = "NaN" if np.isnan(made).any() else "infinity"
    read = [np.asarray(program.values[name]) for name in step.inputs if name in program.values]
    floats = [array for array in read if array.dtype.kind == "f" and array.size]
    if floats and all(array.shape == made.shape for array in floats):  # value by value
        first = np.unravel_index(int(np.argmax(~np.isfinite(made))), made.shape)
        source = f"where it reads {' and '.join(f'{float(array[first]):.6g}' for array in floats)}"
    else:
        largest = max((float(np.abs(array.astype(np.float64)).max()) for array in floats), default=None)
        source = (
            f"and the largest value that it reads is {largest:.6g}" if largest is not None else "from constants alone"
        )
    return f"Values that are not finite begin at {step.name} ({step.kind}): it makes {kind}, {source}."


def has_nonfinite(program: Program, name: str) -> bool:
    if name not in program.values:
        return False
    array = np.asarray(program.values[name])
    return array.dtype.kind == "f" and not bool(np.isfinite(array).all())
