"""Nodes to be excluded from a lower precision: a text file of names, and their nodes in the prepared graph."""

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
    """Read the names of a list of excluded nodes, in order: one a line, without empty lines and comments (#)."""
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


def resolve_exclusion(names: Sequence[str], original: ModelProto, prepared: ModelProto) -> tuple[str, ...]:
    """Return the nodes of the prepared graph that do the work of the named ones.

    Preparation folds nodes into their neighbours. For a node that is gone, the one that now makes its output is
    returned; for one that was folded into a constant there is none.
    """
    homes = find_homes(original, prepared)
    if unknown := [name for name in names if name not in homes]:
        similar = {name: difflib.get_close_matches(name, homes, n=3) for name in unknown[:LISTED]}
        listed = [f"{name!r} (near: {', '.join(like)})" if like else repr(name) for name, like in similar.items()]
        more = f" and {len(unknown) - LISTED} more" if len(unknown) > LISTED else ""
        raise UsageError(
            f"--exclude names {len(unknown)} of the graph's nodes that it does not have: {', '.join(listed)}{more}. "
            "Expected names of the graph before it was quantized"
        )
    return tuple(dict.fromkeys(homes[name] for name in names if homes[name]))


def find_homes(original: ModelProto, prepared: ModelProto) -> dict[str, str]:
    """Return {node of the original graph: node of the prepared graph that does its work, or "" if there is none}."""
    named = ModelProto()
    named.CopyFrom(original)
    name_nodes(named)
    prepared_names = {node.name for node in walk_nodes(prepared)}
    makers = {tensor: node.name for tensor, node in make_producers(prepared).items()}
    readers = make_consumers(named)
    return {
        node.name: node.name if node.name in prepared_names else _follow(node.output, makers, readers)
        for node in walk_nodes(named)
    }


def _follow(tensors: Iterable[str], makers: Mapping[str, str], readers: Mapping[str, Sequence[object]]) -> str:
    """Return the node that makes the first of the tensors, or of those computed from them, that still exists."""
    followed: set[str] = set()
    pending = [name for name in tensors if name]
    while pending:
        tensor = pending.pop(0)
        if tensor in makers:
            return makers[tensor]
        if tensor not in followed:
            followed.add(tensor)
            pending += [name for node in readers.get(tensor, ()) for name in node.output if name]  # type: ignore[attr-defined]
    return ""


def find_originals(graph: ModelProto, prepared: ModelProto) -> dict[str, tuple[str, ...]]:
    """Return {node of the prepared graph: its names in a list of exclusions}: its own if the original has it, too."""
    origins: defaultdict[str, list[str]] = defaultdict(list)
    for original_name, home in find_homes(graph, prepared).items():
        origins[home].append(original_name)
    return {
        node.name: (node.name,) if node.name in origins[node.name] else tuple(origins[node.name])
        for node in prepared.graph.node
    }
