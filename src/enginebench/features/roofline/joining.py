"""Join the layers of any engine to the nodes of the ONNX graph from which they were made.

Runtimes name a fused layer after one of its nodes, or after all of them, and add endings of their own. A layer is
joined to the nodes that its name contains; nodes in the name of no layer are fused into a neighbour, if they can be.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from enginebench.core.precisions import REORDER
from enginebench.core.records import LayerTime
from enginebench.features.roofline.jobs import GraphWork, NodeWork
from enginebench.stats.layer_records import split_name, strip_reformat

# Endings that runtimes append to the name of a node that they rewrote. Sources: ONNX Runtime 1.31 (`_nchwc`,
# `_token_N`, `_quant`, the names of fusions after a slash), OpenVINO 2026.4 (its transformations, after a slash).
_ENDINGS = re.compile(
    r"(?:_nchwc|_nhwc|_token_\d+|_quant(?:ized)?|_transformed|_folded|_fused|_reshape|_squeeze|_q|_dq"
    r"|_original|_decomposed|_flatten_reshape|/+[A-Za-z]\w*/?|/+)$"
)
# Types of layers that multiply. The name of the product itself may be lost in a fusion; the type remains.
_PRODUCTS = re.compile(r"conv|gemm|matmul|mm$|fullyconnected|linear|lstm|gru", re.IGNORECASE)
# Types of layers that may contain several products: regions made by a compiler.
_REGIONS = re.compile(r"attention|subgraph|mha|myelin|fused", re.IGNORECASE)
# The part between two names in the name of a layer that converts values from one layout to another.
_MOVED = re.compile(r"_[a-zA-Z]{2,6}_[a-zA-Z]{2,6}_")
_PARTS = re.compile(r"[,;&]| \+ | \|\| ")
_MODULE_OPERATOR = ": "
_OWN_OPERATOR = re.compile(r"[a-z_]\w*(?: \d+)?")
# Names in an exported graph of operators that have another name in Python.
_EXPORTED = {"truediv": "div", "floordiv": "floor_divide", "concat": "cat"}


class JoinedLayer(Struct, frozen=True, kw_only=True):
    """A layer with the nodes whose work it does. A layer that only `shares` nodes moves values for them."""

    layer: LayerTime
    nodes: tuple[str, ...] = ()
    unnamed: tuple[str, ...] = ()  # those of them that no layer names, and that this one may have fused
    shares: bool = False


class Joining(Struct, frozen=True, kw_only=True):
    layers: tuple[JoinedLayer, ...]
    left: tuple[str, ...]  # nodes whose work no layer does
    unmapped_share: float | None  # fraction of the layers' time in layers without nodes; None: they took no time


def join_layers(layers: Sequence[LayerTime], graph: GraphWork) -> Joining:
    """Join each layer to its nodes, to those that it names if it names any; a node belongs to one layer at most."""
    index = _Index(graph, layers)
    named = [tuple(index.find(layer)) for layer in layers]
    owner: dict[str, int] = {}
    for number, layer in enumerate(layers):
        if layer.precision != REORDER:
            owner.update({name: number for name in index.list_weighted(layer) if name not in owner})
    works = [any(index.nodes[name].macs for name in names) for names in named]
    for number in sorted(range(len(layers)), key=lambda i: not works[i]):
        if layers[number].precision != REORDER:
            for name in named[number]:
                owner.setdefault(name, number)
    pull_products(graph, layers, named, owner)
    sure = set(owner)
    fuse_into_neighbours(graph, owner)
    owned: dict[int, list[str]] = {}
    for node in graph.nodes:
        if node.name in owner:
            owned.setdefault(owner[node.name], []).append(node.name)
    joined = [
        JoinedLayer(layer=layer, nodes=tuple(mine), unnamed=tuple(name for name in mine if name not in sure))
        if (mine := owned.get(i))
        else JoinedLayer(layer=layer, nodes=named[i], shares=bool(named[i]))
        for i, layer in enumerate(layers)
    ]
    total = sum(layer.mean_ns for layer in layers)
    unmapped = sum(one.layer.mean_ns for one in joined if not one.nodes)
    return Joining(
        layers=tuple(joined),
        left=tuple(node.name for node in graph.nodes if node.name not in owner and not node.moves),
        unmapped_share=unmapped / total if total else None,
    )


class _Index:
    """Find nodes by their names, by the tensors that they make, or by the modules from which they were exported."""

    def __init__(self, graph: GraphWork, layers: Sequence[LayerTime]) -> None:
        self.nodes = {node.name: node for node in graph.nodes}
        self._makers = {tensor: node.name for node in graph.nodes for tensor in node.outputs}
        self._readers = _list_readers(graph)
        # Path of a module -> the nodes that multiply by its weight, one for each call of the module: exporters name
        # parameters after their module.
        self._weights: defaultdict[str, list[str]] = defaultdict(list)
        for node in [node for node in graph.nodes if node.macs]:
            for tensor in node.inputs[1:2]:
                self._weights[re.sub(r"\.weight(?:_\w+)?$", "", tensor)].append(node.name)
        # Path of a module -> its nodes, including those of the modules inside it.
        self._scopes: defaultdict[str, list[str]] = defaultdict(list)
        for node in graph.nodes:
            for scope in node.scopes:
                self._scopes[scope].append(node.name)
        self._scopes[""] = [node.name for node in graph.nodes if node.operator and not node.scopes]
        self._exported = any(node.operator for node in graph.nodes)
        self._counts = _count_operators(layers)

    def find(self, layer: LayerTime) -> Iterator[str]:
        """Yield the nodes that a layer names, each once."""
        annotated = [node for name in layer.onnx_nodes for node in self._find_one(name)]
        if not annotated and self._exported and _is_pytorch(layer):
            parts = [part.strip() for part in _PARTS.split(layer.name)]
            if any(self._is_own_operator(part) for part in parts):
                nodes_by_part = [
                    self._find_operator("", *_split_operator(part))
                    if self._is_own_operator(part)
                    else self._find_one(part)
                    for part in parts
                ]
                yield from dict.fromkeys(node for nodes in nodes_by_part for node in nodes)
                return
        yield from dict.fromkeys(annotated or self._find_any(layer.name, layer))

    def _is_own_operator(self, part: str) -> bool:
        """Return whether a part of a layer's name is an operator of the model itself, which has no path in PyTorch."""
        return bool(_OWN_OPERATOR.fullmatch(part)) and part not in self._scopes and part not in self._weights

    def list_weighted(self, layer: LayerTime) -> Iterator[str]:
        """Yield the nodes that multiply by the weights of modules that a layer names: these belong to it first.

        An exporter that folds a BatchNorm into a convolution leaves the node in the scope of the BatchNorm.
        """
        for name in layer.onnx_nodes or (layer.name, *_PARTS.split(layer.name)):
            if name.strip() in self._weights:
                yield from self._weights[name.strip()]

    def _find_any(self, name: str, layer: LayerTime) -> Iterator[str]:
        if nodes := self._find_one(name):
            yield from nodes
        elif "ForeignNode[" in name:
            yield from self._list_between([node for part in split_name(name) for node in self._find_one(part)])
        elif parts := [part for part in (*split_name(name), *_PARTS.split(name)) if part != name]:
            yield from (node for part in parts for node in self._find_one(part.strip()))
        elif layer.precision == REORDER:
            yield from self._find_moved(name)

    def _list_between(self, ends: Sequence[str]) -> Iterator[str]:
        """Yield the nodes on the paths from the first of `ends` to the last: a compiler names a region by its ends."""
        if not ends:
            return
        after, before = {ends[0]}, {ends[-1]}
        for node in self.nodes.values():
            if any(self._makers.get(tensor) in after for tensor in node.inputs):
                after.add(node.name)
        for node in reversed(list(self.nodes.values())):
            if any(before.intersection(self._readers.get(tensor, ())) for tensor in node.outputs):
                before.add(node.name)
        yield from (name for name in self.nodes if name in ends or (name in after and name in before))

    def _find_one(self, name: str) -> tuple[str, ...]:
        """Return the nodes of a name, removing its endings one after the other until there are any."""
        while name:
            if name in self.nodes:
                return (name,)
            if name in self._makers:
                return (self._makers[name],)
            path, _, operator = name.partition(_MODULE_OPERATOR)
            # Nodes of a PyTorch module by its path; `path: operator 2` is its second operator of that kind.
            module = self._find_operator(path, *_split_operator(operator)) if operator else self._scopes.get(name, ())
            if nodes := self._weights.get(name) or module:
                return tuple(nodes)
            shorter = _ENDINGS.sub("", name)
            if shorter == name:
                return ()
            name = shorter
        return ()

    def _find_operator(self, path: str, kind: str, count: int) -> tuple[str, ...]:
        """Return the nodes of one of a module's operators.

        If the graph has fewer of that kind than there are layers, none: any of them may have been dropped.
        """
        alike: dict[str, list[str]] = {}
        for name in self._scopes.get(path, ()):
            node = self.nodes[name]
            if (node.scopes[-1] if node.scopes else "") == path and _is_alike(node, kind):
                alike.setdefault(node.operator or name, []).append(name)
        if max(count, self._counts.get((path, kind), 0)) > len(alike):
            return ()
        return tuple(list(alike.values())[count - 1])

    def _find_moved(self, name: str) -> tuple[str, ...]:
        """Return the node for which `input_abcd_acdb_node` or `Reformatting CopyNode for ... to node` moves values."""
        target, parts = strip_reformat(name), _MOVED.split(name)
        candidates = [target] if target else [*reversed(parts), *parts]
        for piece in candidates:
            nodes = self._find_one(piece) or tuple(self._readers.get(piece, ()))[:1]
            if nodes:
                return nodes
        return ()


def _split_operator(operator: str) -> tuple[str, int]:
    """Return (kind, number): ("add", 2) of `add 2`, ("add", 1) of `add`."""
    kind, _, count = operator.partition(" ")
    return kind, max(1, int(count)) if count.isdigit() else 1


def _count_operators(layers: Iterable[LayerTime]) -> dict[tuple[str, str], int]:
    """Return the number of operators of each (path, kind) that the layers name."""
    counts: dict[tuple[str, str], int] = {}
    for layer in layers:
        for part in (part.strip() for part in _PARTS.split(layer.name)):
            path, _, operator = part.rpartition(_MODULE_OPERATOR)
            if path or (_is_pytorch(layer) and _OWN_OPERATOR.fullmatch(part)):
                kind, count = _split_operator(operator)
                counts[path, kind] = max(count, counts.get((path, kind), 0))
    return counts


def _is_pytorch(layer: LayerTime) -> bool:
    """Return whether PyTorch named the operators of a layer: other runtimes capitalize their types."""
    return layer.kind is not None and layer.kind.islower() and layer.kind != "kernel"


def _is_alike(node: NodeWork, kind: str) -> bool:
    """Return whether a node comes from PyTorch's operator `kind`: by the exporter's note, else by its own operator."""
    plain = kind.strip("_")
    exported = re.sub(r"_\d+$", "", node.operator).strip("_")
    if exported and not node.operator.startswith(("_", "getitem")):
        return exported == _EXPORTED.get(plain, plain)
    short = plain.lower().replace("_", "")
    return short.startswith(node.op.lower()[: len(short)] or "?")


def pull_products(
    graph: GraphWork, layers: Sequence[LayerTime], named: Sequence[Sequence[str]], owner: dict[str, int]
) -> None:
    """Assign a product that no layer names to the layer that is named after the nodes fused behind it.

    The layer must be of a type that multiplies, and have no product yet. The assignments are added to `owner`.
    """
    nodes = {node.name: node for node in graph.nodes}
    makers = {tensor: node for node in graph.nodes for tensor in node.outputs}
    for number, layer in enumerate(layers):
        own = [name for name in named[number] if owner.get(name) == number]
        if not own or any(nodes[name].macs for name in own):
            continue
        region = bool(_REGIONS.search(layer.kind or ""))
        if region or _PRODUCTS.search(layer.kind or ""):
            gathered = _gather_back([nodes[name] for name in own], makers, owner, region)
            owner.update(dict.fromkeys(_list_from_products(graph, gathered), number))


def _list_from_products(graph: GraphWork, gathered: Sequence[NodeWork]) -> list[str]:
    """Return the nodes that multiply, and those behind them; the nodes before a product belong to other layers."""
    names, made, kept = {node.name for node in gathered}, set[str](), []
    for node in graph.nodes:
        if node.name in names and (node.macs or made.intersection(node.inputs)):
            kept.append(node.name)
            made.update(node.outputs)
    return kept


def _gather_back(
    start: Sequence[NodeWork], makers: Mapping[str, NodeWork], owner: Mapping[str, int], region: bool
) -> list[NodeWork]:
    """Return the nodes without an owner that feed `start`: back to the nearest product, in a region beyond it."""
    gathered: dict[str, NodeWork] = {}
    pending = list(start)
    while pending:
        node = pending.pop()
        free = [made for t in node.inputs if (made := makers.get(t)) is not None and made.name not in owner]
        for made in free if region else free[:1]:
            if made.name not in gathered:
                gathered[made.name] = made
                pending += [made] if region or not made.macs else []
    return list(gathered.values())


def fuse_into_neighbours(graph: GraphWork, owner: dict[str, int]) -> None:
    """Assign nodes that no layer names to a layer that may have fused them: that of a neighbour.

    First the layer that makes a node's input, then the one that reads its output. Products are never assigned: the
    layer that computes one names it, or it remains unknown.
    """
    makers = {tensor: node.name for node in graph.nodes for tensor in node.outputs}
    position = {node.name: i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        _assign_to_latest(node, [makers[t] for t in node.inputs if t in makers], owner, position)
    readers = _list_readers(graph)
    for node in reversed(graph.nodes):
        _assign_to_latest(node, [name for tensor in node.outputs for name in readers.get(tensor, ())], owner, position)


def _list_readers(graph: GraphWork) -> Mapping[str, list[str]]:
    readers: defaultdict[str, list[str]] = defaultdict(list)
    for node in graph.nodes:
        for tensor in node.inputs:
            readers[tensor].append(node.name)
    return readers


def _assign_to_latest(
    node: NodeWork, neighbours: Sequence[str], owner: dict[str, int], position: Mapping[str, int]
) -> None:
    """Assign a node to the owner of its last neighbour that has one: an addition belongs to its latest operand."""
    candidates = [name for name in neighbours if name in owner]
    if node.name not in owner and not node.macs and candidates:
        owner[node.name] = owner[max(candidates, key=lambda name: position[name])]
