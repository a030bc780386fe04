"""Names of layers as a reader wants them: what a fusion is made of, without the path that all of it shares."""

from __future__ import annotations

import re
from itertools import groupby

# The path of a module, or an operator in it; names of nodes have slashes.
_PART = re.compile(r"[\w.]+(?:: \w+(?: \d+)?)?")


def fold_name(name: str) -> str:
    """`layer4.1: bn2 + add` for `layer4.1.bn2 + layer4.1: add`; a name that has no such parts stays as it is.

    Args:
        name: paths of modules, joined by " + "; `path: operator` is what a module does beside its children.
    """
    parts = name.split(" + ")
    if len(parts) < 2 or not all(_PART.fullmatch(part) for part in parts):
        return name
    folded, shorter = [], False
    for parent, group in groupby(parts, key=lambda part: _split(part)[0]):
        together = list(group)
        alone = len(together) == 1 or not parent
        shorter = shorter or not alone
        leaves = " + ".join(together if alone else [_split(part)[1] for part in together])
        folded.append(leaves if alone else f"{parent}: {leaves}")
    return ("; " if shorter else " + ").join(folded)


def _split(part: str) -> tuple[str, str]:
    """(path of the module around, what is done there); `relu: relu 2` is the second call of a module `relu`."""
    path, _, operator = part.partition(": ")
    parent, _, own = path.rpartition(".")
    if operator and operator.partition(" ")[0] != own:
        return path, operator
    return parent, operator or own
