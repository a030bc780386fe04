"""The nodes that a graph leaves out of a lower precision: a text file of names, and where each is after preparation."""

import difflib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from onnx import ModelProto

from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.store import check_regular, explain_access, write_atomic
from enginebench.models.precision.graph import make_consumers, make_producers, name_nodes, walk_nodes

COMMENT = "#"
# Names that a message lists before it counts the rest.
LISTED = 5


def read_exclusion(path: Path) -> tuple[str, ...]:
    """The names in a list of excluded nodes, in its order: one a line; empty lines and remarks (#) are left out."""
    try:
        with explain_access(f"--exclude {path} cannot be read", "Check the path"):
            lines = check_regular(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ArtifactError(f"--exclude {path} is not text: expected one node name a line, in UTF-8") from error
    names = [name for line in lines if (name := line.strip()) and not name.startswith(COMMENT)]
    if not names:
        raise UsageError(f"--exclude {path} names no node; give one name a line, or leave --exclude out")
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise UsageError(f"--exclude {path} names {twice[0]!r} twice; keep one")
    return tuple(names)


def write_exclusion(path: Path, names: Iterable[str], remarks: Sequence[str] = ()) -> None:
    lines = [*(f"{COMMENT} {remark}" for remark in remarks), *names]
    write_atomic(path, ("\n".join(lines) + "\n").encode())


def resolve_exclusion(names: Sequence[str], given: ModelProto, prepared: ModelProto) -> tuple[str, ...]:
    """The nodes of the prepared graph that do the work of the named ones.

    Preparation folds nodes into their neighbours. One that is gone is followed along its result to the node that makes
    it now; one that was computed ahead of time has no node left, and none is returned for it.
    """
    homes = find_homes(given, prepared)
    if unknown := [name for name in names if name not in homes]:
        near = {name: difflib.get_close_matches(name, homes, n=3) for name in unknown[:LISTED]}
        said = [f"{name!r} (near: {', '.join(like)})" if like else repr(name) for name, like in near.items()]
        more = f" and {len(unknown) - LISTED} more" if len(unknown) > LISTED else ""
        raise UsageError(
            f"--exclude names {len(unknown)} of the graph's nodes that it does not have: {', '.join(said)}{more}. "
            "Expected names of the graph before it was quantized"
        )
    return tuple(dict.fromkeys(homes[name] for name in names if homes[name]))


def find_homes(given: ModelProto, prepared: ModelProto) -> dict[str, str]:
    """Node of the exported graph -> the node of the prepared graph that does its work; "" for one that has none."""
    named = ModelProto()
    named.CopyFrom(given)
    name_nodes(named)
    there = {node.name for node in walk_nodes(prepared)}
    makers = {tensor: node.name for tensor, node in make_producers(prepared).items()}
    readers = make_consumers(named)
    return {
        node.name: node.name if node.name in there else _follow(node.output, makers, readers)
        for node in walk_nodes(named)
    }


def _follow(tensors: Iterable[str], makers: Mapping[str, str], readers: Mapping[str, Sequence[object]]) -> str:
    """The node that makes the first of the tensors that is still made, or of what is made from them."""
    seen: set[str] = set()
    pending = [name for name in tensors if name]
    while pending:
        tensor = pending.pop(0)
        if tensor in makers:
            return makers[tensor]
        if tensor not in seen:
            seen.add(tensor)
            pending += [name for node in readers.get(tensor, ()) for name in node.output if name]  # type: ignore[attr-defined]
    return ""


def find_originals(given: ModelProto, prepared: ModelProto) -> dict[str, tuple[str, ...]]:
    """Node of the prepared graph -> its names in a list of exclusions: its own where the exported graph has it, too."""
    origins: defaultdict[str, list[str]] = defaultdict(list)
    for original, home in find_homes(given, prepared).items():
        origins[home].append(original)
    return {
        node.name: (node.name,) if node.name in origins[node.name] else tuple(origins[node.name])
        for node in prepared.graph.node
    }
