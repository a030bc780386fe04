"""Layers of any engine joined to the nodes of the ONNX graph that they were made of.

Runtimes name what they fuse after one of its parts, or after all of them, and add endings of their own. A layer is
joined to the nodes that its name tells; nodes that no layer tells are fused into a neighbour, as far as they can be.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from enginebench.core.precisions import REORDER
from enginebench.core.records import LayerTime
from enginebench.features.roofline.jobs import GraphWork, NodeWork
from enginebench.stats.layer_records import split_name, strip_reformat

# What runtimes put behind the name of a node that they rewrote. Sources: ONNX Runtime 1.31 (`_nchwc`, `_token_N`,
# `_quant`, the names of fusions after a slash), OpenVINO 2026.4 (its transformations, after a slash).
_ENDINGS = re.compile(
    r"(?:_nchwc|_nhwc|_token_\d+|_quant(?:ized)?|_transformed|_folded|_fused|_reshape|_squeeze|_q|_dq"
    r"|_original|_decomposed|_flatten_reshape|/+[A-Za-z]\w*/?|/+)$"
)
# Types of layers that multiply: what a product is called, whose own name may be gone in a fusion.
_PRODUCTS = re.compile(r"conv|gemm|matmul|mm$|fullyconnected|linear|lstm|gru", re.IGNORECASE)
# Types of layers that may hold several products: regions that a compiler made.
_REGIONS = re.compile(r"attention|subgraph|mha|myelin|fused", re.IGNORECASE)
# Names that stand between two others in the name of what moves values from one layout to another.
_MOVED = re.compile(r"_[a-zA-Z]{2,6}_[a-zA-Z]{2,6}_")
_PARTS = re.compile(r"[,;&]| \+ | \|\| ")
_MODULE_OPERATOR = ": "
_OWN_OPERATOR = re.compile(r"[a-z_]\w*(?: \d+)?")
# How the exporter calls what Python does by another name.
_EXPORTED = {"truediv": "div", "floordiv": "floor_divide", "concat": "cat"}


class JoinedLayer(Struct, frozen=True, kw_only=True):
    """A layer with the nodes that it does the work of. A layer that only `shares` nodes moves values for them."""

    layer: LayerTime
    nodes: tuple[str, ...] = ()
    absorbed: tuple[str, ...] = ()  # those among them that no layer tells, and that this one can have fused
    shares: bool = False


class Joining(Struct, frozen=True, kw_only=True):
    layers: tuple[JoinedLayer, ...]
    left: tuple[str, ...]  # nodes that no layer does the work of
    unmapped_share: float | None  # of the layers' time, in those that stand for no node; None: they took none


def join_layers(layers: Sequence[LayerTime], graph: GraphWork) -> Joining:
    """Each layer with its nodes, those that it names where it names any; every node belongs to one layer at most."""
    index = _Index(graph, layers)
    told = [tuple(index.find(layer)) for layer in layers]
    owner: dict[str, int] = {}
    for number, layer in enumerate(layers):
        if layer.precision != REORDER:
            owner.update({name: number for name in index.list_weighted(layer) if name not in owner})
    works = [any(index.nodes[name].macs for name in names) for names in told]
    for number in sorted(range(len(layers)), key=lambda i: not works[i]):
        if layers[number].precision != REORDER:
            for name in told[number]:
                owner.setdefault(name, number)
    pull_products(graph, layers, told, owner)
    sure = set(owner)
    absorb(graph, owner)
    owned: dict[int, list[str]] = {}
    for node in graph.nodes:
        if node.name in owner:
            owned.setdefault(owner[node.name], []).append(node.name)
    joined = [
        JoinedLayer(layer=layer, nodes=tuple(mine), absorbed=tuple(name for name in mine if name not in sure))
        if (mine := owned.get(i))
        else JoinedLayer(layer=layer, nodes=told[i], shares=bool(told[i]))
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
    """Everything by which a name can be found: nodes, tensors that they make, modules that they were exported from."""

    def __init__(self, graph: GraphWork, layers: Sequence[LayerTime]) -> None:
        self.nodes = {node.name: node for node in graph.nodes}
        self._makers = {tensor: node.name for node in graph.nodes for tensor in node.outputs}
        self._readers = _list_readers(graph)
        # Path of a module -> the nodes that multiply by its weight, one for each time that it is called: exporters name
        # parameters after their module.
        self._weights: defaultdict[str, list[str]] = defaultdict(list)
        for node in [node for node in graph.nodes if node.macs]:
            for tensor in node.inputs[1:2]:
                self._weights[re.sub(r"\.weight(?:_\w+)?$", "", tensor)].append(node.name)
        self._scopes: defaultdict[str, list[str]] = defaultdict(list)  # -> its nodes, of the modules in it too
        for node in graph.nodes:
            for scope in node.scopes:
                self._scopes[scope].append(node.name)
        self._scopes[""] = [node.name for node in graph.nodes if node.operator and not node.scopes]
        self._exported = any(node.operator for node in graph.nodes)
        self._counts = _count_operators(layers)

    def find(self, layer: LayerTime) -> Iterator[str]:
        """The nodes that a layer names, each once."""
        said = [node for name in layer.onnx_nodes for node in self._find_one(name)]
        if not said and self._exported and _is_pytorch(layer):
            parts = [part.strip() for part in _PARTS.split(layer.name)]
            if any(self._is_own_operator(part) for part in parts):
                found = [
                    self._find_operator("", *_split_operator(part))
                    if self._is_own_operator(part)
                    else self._find_one(part)
                    for part in parts
                ]
                yield from dict.fromkeys(node for nodes in found for node in nodes)
                return
        yield from dict.fromkeys(said or self._find_any(layer.name, layer))

    def _is_own_operator(self, part: str) -> bool:
        """Whether a part of a layer's name is an operator of the model itself, which PyTorch names without a path."""
        return bool(_OWN_OPERATOR.fullmatch(part)) and part not in self._scopes and part not in self._weights

    def list_weighted(self, layer: LayerTime) -> Iterator[str]:
        """The nodes that multiply by the weights of modules that a layer names: theirs before anybody else's.

        An exporter that folds a BatchNorm into a convolution leaves a node that stands in the scope of the BatchNorm.
        """
        for name in layer.onnx_nodes or (layer.name, *_PARTS.split(layer.name)):
            if name.strip() in self._weights:
                yield from self._weights[name.strip()]

    def _find_any(self, name: str, layer: LayerTime) -> Iterator[str]:
        if found := self._find_one(name):
            yield from found
        elif "ForeignNode[" in name:
            yield from self._list_between([node for part in split_name(name) for node in self._find_one(part)])
        elif parts := [part for part in (*split_name(name), *_PARTS.split(name)) if part != name]:
            yield from (node for part in parts for node in self._find_one(part.strip()))
        elif layer.precision == REORDER:
            yield from self._find_moved(name)

    def _list_between(self, ends: Sequence[str]) -> Iterator[str]:
        """The nodes on the ways from the first of these to the last: a compiler's region is named by its ends."""
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
        """The nodes of a name, with its endings taken off one after the other."""
        while name:
            if name in self.nodes:
                return (name,)
            if name in self._makers:
                return (self._makers[name],)
            path, _, operator = name.partition(_MODULE_OPERATOR)
            # Nodes of a PyTorch module by its path; `path: operator 2` is the second operator of that kind there.
            module = self._find_operator(path, *_split_operator(operator)) if operator else self._scopes.get(name, ())
            if found := self._weights.get(name) or module:
                return tuple(found)
            shorter = _ENDINGS.sub("", name)
            if shorter == name:
                return ()
            name = shorter
        return ()

    def _find_operator(self, path: str, kind: str, count: int) -> tuple[str, ...]:
        """Nodes of one of a module's operators; of none where the graph has fewer than there are layers: it may have
        dropped any of them."""
        alike: dict[str, list[str]] = {}
        for name in self._scopes.get(path, ()):
            node = self.nodes[name]
            if (node.scopes[-1] if node.scopes else "") == path and _is_alike(node, kind):
                alike.setdefault(node.operator or name, []).append(name)
        if max(count, self._counts.get((path, kind), 0)) > len(alike):
            return ()
        return tuple(list(alike.values())[count - 1])

    def _find_moved(self, name: str) -> tuple[str, ...]:
        """The node for which values are moved: `input_abcd_acdb_node`, `Reformatting CopyNode for ... to node`."""
        target = strip_reformat(name)
        for piece in [target] if target else [*reversed(_MOVED.split(name)), *_MOVED.split(name)]:
            found = self._find_one(piece) or tuple(self._readers.get(piece, ()))[:1]
            if found:
                return found
        return ()


def _split_operator(operator: str) -> tuple[str, int]:
    """(kind, number) of `add 2`, of `add`."""
    kind, _, count = operator.partition(" ")
    return kind, max(1, int(count)) if count.isdigit() else 1


def _count_operators(layers: Iterable[LayerTime]) -> dict[tuple[str, str], int]:
    """(path, kind) -> how many operators of that kind the layers name there."""
    found: dict[tuple[str, str], int] = {}
    for layer in layers:
        for part in (part.strip() for part in _PARTS.split(layer.name)):
            path, _, operator = part.rpartition(_MODULE_OPERATOR)
            if path or (_is_pytorch(layer) and _OWN_OPERATOR.fullmatch(part)):
                kind, count = _split_operator(operator)
                found[path, kind] = max(count, found.get((path, kind), 0))
    return found


def _is_pytorch(layer: LayerTime) -> bool:
    """Whether a layer is of operators that PyTorch named: other runtimes write their types with capitals."""
    return layer.kind is not None and layer.kind.islower() and layer.kind != "kernel"


def _is_alike(node: NodeWork, kind: str) -> bool:
    """Whether a node is of an operator that PyTorch calls so: by what the exporter says, else by what it became."""
    plain = kind.strip("_")
    exported = re.sub(r"_\d+$", "", node.operator).strip("_")
    if exported and not node.operator.startswith(("_", "getitem")):
        return exported == _EXPORTED.get(plain, plain)
    short = plain.lower().replace("_", "")
    return short.startswith(node.op.lower()[: len(short)] or "?")


def pull_products(
    graph: GraphWork, layers: Sequence[LayerTime], told: Sequence[Sequence[str]], owner: dict[str, int]
) -> None:
    """Gives a product that no layer tells to the layer that is named after what was fused behind it.

    The layer must be of a type that multiplies, and have no product yet. What was given is added to `owner`.
    """
    nodes = {node.name: node for node in graph.nodes}
    makers = {tensor: node for node in graph.nodes for tensor in node.outputs}
    for number, layer in enumerate(layers):
        own = [name for name in told[number] if owner.get(name) == number]
        if not own or any(nodes[name].macs for name in own):
            continue
        region = bool(_REGIONS.search(layer.kind or ""))
        if region or _PRODUCTS.search(layer.kind or ""):
            found = _gather_back([nodes[name] for name in own], makers, owner, region)
            owner.update(dict.fromkeys(_list_from_products(graph, found), number))


def _list_from_products(graph: GraphWork, found: Sequence[NodeWork]) -> list[str]:
    """Those of the nodes that multiply or work on what one of them multiplied; what is before belongs to others."""
    gathered, made, kept = {node.name for node in found}, set[str](), []
    for node in graph.nodes:
        if node.name in gathered and (node.macs or made.intersection(node.inputs)):
            kept.append(node.name)
            made.update(node.outputs)
    return kept


def _gather_back(
    start: Sequence[NodeWork], makers: Mapping[str, NodeWork], owner: Mapping[str, int], region: bool
) -> list[NodeWork]:
    """The nodes on whose values these work and that nobody has: up to the nearest product, of a region beyond it."""
    found: dict[str, NodeWork] = {}
    pending = list(start)
    while pending:
        node = pending.pop()
        free = [made for t in node.inputs if (made := makers.get(t)) is not None and made.name not in owner]
        for made in free if region else free[:1]:
            if made.name not in found:
                found[made.name] = made
                pending += [made] if region or not made.macs else []
    return list(found.values())


def absorb(graph: GraphWork, owner: dict[str, int]) -> None:
    """Gives nodes that no layer tells to the layer that can have fused them: that of who makes their input, or takes
    their output. Products are never given away: who does them says so, or nobody knows."""
    makers = {tensor: node.name for node in graph.nodes for tensor in node.outputs}
    place = {node.name: i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        _give(node, [makers[t] for t in node.inputs if t in makers], owner, place)
    readers = _list_readers(graph)
    for node in reversed(graph.nodes):
        _give(node, [name for tensor in node.outputs for name in readers.get(tensor, ())], owner, place)


def _list_readers(graph: GraphWork) -> Mapping[str, list[str]]:
    readers: defaultdict[str, list[str]] = defaultdict(list)
    for node in graph.nodes:
        for tensor in node.inputs:
            readers[tensor].append(node.name)
    return readers


def _give(node: NodeWork, neighbours: Sequence[str], owner: dict[str, int], place: Mapping[str, int]) -> None:
    """To the latest of the neighbours that have an owner: an addition goes with the last of what it adds."""
    known = [name for name in neighbours if name in owner]
    if node.name not in owner and not node.macs and known:
        owner[node.name] = owner[max(known, key=lambda name: place[name])]
