"""What the code that torch.compile generated is for: each of its kernels with the modules whose work it does.

Inductor can say of each call in its code from which nodes of its own graph that came, and of those from which nodes of
the traced graph. In which module such a node stands is found by tracing once more. Source: PyTorch 2.13,
torch/_inductor/debug.py and torch/_inductor/compile_fx.py, where it is called provenance tracking.
"""

from __future__ import annotations

import inspect
import json
import logging
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import accumulate, chain
from typing import Any, NamedTuple

import torch
import torch._inductor.config as inductor

from enginebench.engines.backends.torch.operators import (
    GENERATED,
    WATCHED_KERNEL,
    describe_modules,
    find_wrapped,
    moves_memory,
    multiplies_matrices,
    name_modules,
)
from enginebench.engines.proof import Operator
from enginebench.engines.pytorch_compile import listen_to_left

# The logger to which PyTorch writes what its compiler did, one record a finding, and the finding that is wanted.
TRACE = "torch.__trace"
MAPPING = "inductor_provenance_tracking_node_mappings"
# How the calls begin that go to a library, in the generated code.
LIBRARY = ("extern_kernels.", "torch.ops.", "aten.")
# What a compiled graph spends outside of what it calls: Python, and memory.
BETWEEN = "between the kernels"
# Between two graphs runs what PyTorch does not compile; what that is called where nobody knows.
EAGER = "eager.module"
EAGER_CODE = "eager code"
# Part of the name of the kernel that copies what a graph of launches is given.
FEEDING = "multi_tensor_apply"
UNTOLD = "this version of PyTorch does not report what its generated code is for"
# What PyTorch's operators are called that Python writes as `a += b`.
_IN_PLACE = {operator.iadd: "add", operator.isub: "sub", operator.imul: "mul", operator.itruediv: "div"}


class MappingHandler(logging.Handler):
    """Collects what Inductor says of each graph that it compiles, or takes from its cache."""

    def __init__(self) -> None:
        super().__init__()
        self.mappings: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record if it has the mapping of nodes; PyTorch's own tools read the same file."""
        artifact = getattr(record, "metadata", {}).get("artifact") or {}
        if artifact.get("name") == MAPPING:
            self.mappings.append(getattr(record, "payload", None) or "{}")


# By what makes modules alike: what was said when one of them was compiled. PyTorch compiles code once in a process for
# all modules that run it and are alike.
_MAPPINGS_BY_MODULE: dict[Any, list[str]] = {}


class GeneratedCode:
    """What was compiled for one engine.

    Args:
        strict: whether nothing runs eagerly between two graphs but recurrent layers.
    """

    def __init__(self, module: Any, *, fullgraph: bool, strict: bool = True) -> None:
        self._module, self._fullgraph, self._strict = module, fullgraph, strict
        self._own_mappings: list[str] = []
        self._alike: Any = module
        if isinstance(module, torch.nn.Module):  # one class wraps every module of a user: its own code says nothing
            shapes = tuple((path, tuple(one.shape)) for path, one in module.named_parameters())
            self._alike = tuple((path, type(one)) for path, one in module.named_modules()), shapes

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Whatever is compiled meanwhile is known afterwards."""
        handler, log = MappingHandler(), logging.getLogger(TRACE)
        with ExitStack() as after:
            if hasattr(inductor.trace, "provenance_tracking_level"):
                after.enter_context(inductor.patch({"trace.provenance_tracking_level": 1}))
                log.addHandler(handler)
                after.callback(log.removeHandler, handler)
            yield
        if handler.mappings:
            self._own_mappings = _MAPPINGS_BY_MODULE[self._alike] = handler.mappings

    @property
    def _mappings(self) -> list[str]:
        return self._own_mappings or _MAPPINGS_BY_MODULE.get(self._alike, [])

    @contextmanager
    def mark(self) -> Iterator[None]:
        """Meanwhile every call of a kernel that was generated for the CPU is a span in the profiler's record."""
        kernels = {call.kernel for mapping in self._mappings for call in read_calls(mapping) if not call.library}
        with ExitStack() as after:
            for module in list_wrappers():
                for name in kernels & vars(module).keys():
                    kernel = getattr(module, name)
                    if callable(kernel):
                        setattr(module, name, partial(_call_marked, WATCHED_KERNEL + name, kernel))
                        after.callback(setattr, module, name, kernel)
            yield

    def name_layers(
        self, runs: Sequence[Sequence[Operator]], tensors: Sequence[Any]
    ) -> tuple[list[list[Operator]], str | None]:
        """(the runs with each kernel under the modules whose work it does, None), or the runs as they are and why."""
        plain = [list(run) for run in runs]
        if not self._mappings:
            return plain, UNTOLD
        left: list[tuple[int, str]] = []
        try:
            graphs = trace_modules(self._module, tensors, fullgraph=self._fullgraph, left=left)
        except Exception as error:  # whatever a user's module does when it is traced again
            return plain, f"the module could not be traced again: {type(error).__name__}"
        if len(graphs) != len(self._mappings):
            return plain, f"the module was traced into {len(graphs)} graphs and compiled into {len(self._mappings)}"
        eager = left if self._strict else [(i, EAGER_CODE) for i in range(1, len(graphs))]
        calls = list[NamedCall]()
        for i, (mapping, graph) in enumerate(zip([*self._mappings, "{}"], [*graphs, {}], strict=True)):
            calls += [NamedCall(EAGER, True, layer) for at, layer in eager if at == i]  # behind the graph before it
            calls += name_calls(read_calls(mapping), graph)
        named = [match_run(run, calls) for run in plain]
        if any(run is None for run in named):
            return plain, "what ran is not what the compiler reported"
        return [run for run in named if run is not None], None


def _call_marked(span: str, kernel: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with torch.profiler.record_function(span):
        return kernel(*args, **kwargs)


def list_wrappers() -> list[Any]:
    """The Python modules that Inductor generated in this process."""
    from torch._inductor.codecache import PyCodeCache

    return list(getattr(PyCodeCache, "modules", ()))


class RawCall(NamedTuple):
    """One call in the generated code: its number, and the nodes of the traced graph of each node that it came from."""

    number: int
    kernel: str
    library: bool
    origins: tuple[tuple[str, ...], ...]


def read_calls(mapping: str) -> list[RawCall]:
    """The calls of one graph, in the order of the code. Of nodes that came from none of the traced graph there is none.

    Args:
        mapping: JSON: `cppCodeToPost`, `kernel:number` -> nodes; `postToPre`, node -> nodes of the traced graph.
    """
    document = json.loads(mapping)
    before = document.get("postToPre", {})
    calls = []
    for key, nodes in document.get("cppCodeToPost", {}).items():
        kernel, _, number = key.rpartition(":")
        origins = tuple(tuple(before[node]) for node in nodes if before.get(node))
        calls.append(RawCall(int(number), kernel, kernel.startswith(LIBRARY), origins))
    return sorted(calls)


class TracedNode(NamedTuple):
    """A node of the traced graph that computes."""

    layer: str  # that it is of
    inputs: tuple[str, ...]
    product: bool


def name_calls(calls: Sequence[RawCall], graph: Mapping[str, TracedNode]) -> list[NamedCall]:
    """The calls under the layers of the nodes whose work they do; each node of the traced graph is one call's.

    Inductor names beside the node that a call is for those before it whose values it only reads, as far as these were
    never stored. A library's call is for the first that is named; of two for one node the later one writes its values
    (an addition in place). A generated kernel that is for a library's node prepares or finishes for it. All others
    work on what nobody before them worked on, and that can be computed by then.
    """
    owner: dict[str, int] = {}
    libraries = [call for call in calls if call.library and call.origins]
    for call in libraries:
        owner.update(dict.fromkeys(call.origins[0], call.number))
    for call in libraries:
        _find_product(call, graph, owner)
    for call in calls:
        first = call.origins[0][0] if call.origins else None
        if not call.library and first is not None and first not in owner:
            named = {name for names in call.origins for name in names}
            for name in (name for name in graph if name in named and name not in owner):
                if _is_ready(name, call.number, graph, owner):
                    owner[name] = call.number
    owned = {call.number: [name for name in graph if owner.get(name) == call.number] for call in calls}
    named_calls = []
    for call in calls:
        own = owned[call.number]
        # A call without a node of its own works for the one that it is for, and both are one layer: one of several that
        # a single node became, an attention or the layers of an LSTM. Of oneDNN's fused products the node may be
        # another one's.
        if not own and call.origins and (not call.library or "pointwise" not in call.kernel):
            helped = call.origins[0][0]
            own = owned.get(owner.get(helped, -1), []) if helped in graph else []
        layers = dict.fromkeys(graph[name].layer for name in own)
        named_calls.append(NamedCall(call.kernel, call.library, " + ".join(layers)))
    return named_calls


def _find_product(call: RawCall, graph: Mapping[str, TracedNode], owner: dict[str, int]) -> None:
    """A library's product that Inductor names after what was fused behind it gets what is between, if one fits.

    If several fit, or none does, nobody knows what the call is for.
    """
    own = [name for name in call.origins[0] if owner.get(name) == call.number and name in graph]
    if (
        not own
        or any(graph[name].product for name in own)
        or not multiplies_matrices(name_library_operator(call.kernel))
    ):
        return
    between, products = list(own), list[str]()
    for each in between:  # which grows meanwhile
        for name in graph[each].inputs:
            if name in graph and not any(name in names for names in (owner, between, products)):
                (products if graph[name].product else between).append(name)
    if len(products) == 1:
        behind = set(products)
        for name, node in graph.items():
            if name in between and behind.intersection(node.inputs):
                behind.add(name)
        owner.update(dict.fromkeys(behind, call.number))
    else:
        for name in own:
            del owner[name]


def _is_ready(name: str, number: int, graph: Mapping[str, TracedNode], owner: Mapping[str, int]) -> bool:
    """Whether a call can work on a node: what that reads was made by calls before, or can be made by this one."""
    return all(
        owner[made] <= number if made in owner else made not in graph or _is_ready(made, number, graph, owner)
        for made in graph[name].inputs
    )


def trace_modules(
    module: Any, tensors: Sequence[Any], *, fullgraph: bool, left: list[tuple[int, str]] | None = None
) -> list[dict[str, TracedNode]]:
    """The nodes by name, of each graph into which a module is traced, in their order.

    A module is a layer, if it is one node; any other node is a layer of its own, as `path: operator` or
    `path: operator 2`.

    Args:
        left: gets (number of graphs before it, path) of each recurrent layer that runs eagerly.
    """
    named = name_modules(module)
    kinds, places = describe_modules(named), {id(one): path for path, one in named.items()}
    graphs: list[tuple[list[Any], str]] = []
    seen = Counter[tuple[str, str]]()

    def record(graph: Any, _: Any) -> Any:
        """Keep the nodes, with the innermost module that runs: after a break PyTorch traces its code alone."""
        running, frame = "", inspect.currentframe()
        while frame is not None and not running:
            if frame.f_code.co_name == "_call_impl":
                running = places.get(id(frame.f_locals.get("self")), "")
            frame = frame.f_back
        graphs.append((list(graph.graph.nodes), running))
        return graph.forward

    def note(layer: Any) -> None:
        if left is not None:
            left.append((len(graphs), places.get(id(layer), EAGER_CODE)))

    with torch.inference_mode(), listen_to_left(note):
        torch.compile(module, backend=record, dynamic=False, fullgraph=fullgraph)(*tensors)
    broken = len(graphs) > 1
    wrapped = find_wrapped(module)
    return [
        collect_compute_nodes(nodes, kinds, seen, within, wrapped=wrapped, broken=broken) for nodes, within in graphs
    ]


def collect_compute_nodes(
    nodes: Iterable[Any],
    kinds: Mapping[str, str],
    seen: Counter[tuple[str, str]] | None = None,
    within: str = "",
    *,
    wrapped: str = "",
    broken: bool = False,
) -> dict[str, TracedNode]:
    """The nodes of a traced graph that compute, by name.

    Args:
        kinds: path -> class of the modules that have no children.
        seen: (path, operator) -> how many of them the graphs before had; those of this one are added.
        within: path of the module whose code was traced, from which the nodes' own paths start.
        wrapped: what those paths begin with and a layer's name does not, as `find_wrapped` has it.
        broken: there are other graphs, in which a module with children may have more than what is seen here.
    """
    seen = Counter() if seen is None else seen
    working = [node for node in nodes if node.op in ("call_function", "call_method", "call_module")]
    stacks = {node.name: node.meta.get("nn_module_stack") for node in working}
    paths = {name: ".".join(filter(None, (within, find_path(stack, wrapped)))) for name, stack in stacks.items()}
    together = Counter(paths.values())
    # A path and those of the modules around it, without the model itself.
    outer = (accumulate(path.split("."), "{}.{}".format) for path in paths.values() if path)
    inside = Counter(chain.from_iterable(outer))
    traced = {}
    for node in working:
        path, kind = paths[node.name], name_operator(node)
        seen[path, kind] += 1
        alone = together[path] == 1 if path in kinds else inside[path] == 1 and not broken
        count = f" {seen[path, kind]}" if seen[path, kind] > 1 else ""
        layer = path if alone else f"{path}: {kind}{count}".removeprefix(": ")
        inputs = tuple(other.name for other in node.all_input_nodes)
        traced[node.name] = TracedNode(layer, inputs, multiplies_matrices(kind))
    return traced


def name_operator(node: Any) -> str:
    """The operator of a node, as PyTorch calls it."""
    if isinstance(node.target, str):
        return node.target
    return _IN_PLACE.get(node.target) or str(getattr(node.target, "__name__", node.name))


def find_path(stack: Mapping[str, Any] | None, wrapped: str = "") -> str:
    """The path of the innermost module of a node's stack, as `name_modules` has it; empty: the model itself.

    The stack says `L['self'].layer1.0.conv1`, older versions `L['self']._modules['layer1']._modules['0']`.
    """
    if not stack:
        return ""
    frame = str(list(stack.values())[-1][0])
    words = re.findall(r"\w+", re.sub(r"^L\['\w+'\]|@\d+$", "", frame))
    path = "".join(f"{word}." for word in words if word != "_modules")
    return path.removeprefix(wrapped).removesuffix(".")


class NamedCall(NamedTuple):
    """One call in the generated code with the layer that it is of; empty: of none that is known."""

    kernel: str
    library: bool
    layer: str

    @property
    def kind(self) -> str:
        """What it is: generated, or the library's operator."""
        return name_library_operator(self.kernel) if self.library else GENERATED


def name_library_operator(kernel: str) -> str:
    """The operator of a library's call: `mm` of `extern_kernels.mm`, of `torch.ops.aten.mm.default`, of `aten.mm`."""
    words = kernel.split(".")
    return words[3] if kernel.startswith("torch.ops.") and len(words) > 3 else words[1]


def match_run(run: Sequence[Operator], calls: Sequence[NamedCall]) -> list[Operator] | None:
    """What ran, each under the layer of its call; None where it does not fit the calls.

    Generated kernels are known by name. What runs between two of them belongs to the library's calls that stand between
    them: one to each where they are as many, else all of it to all of them.
    """
    named, waiting, place = list(run), list[int](), 0
    generated = {call.kernel for call in calls if not call.library}
    for i, operator_ in enumerate(run):
        if operator_.name == GENERATED:
            named[i] = operator_._replace(name=BETWEEN, kind="host")
            continue
        if operator_.name not in generated:
            waiting.append(i)
            continue
        ahead = next((j for j in range(place, len(calls)) if not calls[j].library), None)
        if ahead is None or calls[ahead].kernel != operator_.name:
            return None
        _name_library(named, waiting, calls[place:ahead])
        named[i] = _rename(operator_, [calls[ahead]])
        waiting, place = [], ahead + 1
    if any(not call.library for call in calls[place:]):
        return None
    _name_library(named, waiting, calls[place:])
    return named


def _name_library(named: list[Operator], waiting: Sequence[int], calls: Sequence[NamedCall]) -> None:
    """Name what ran between two generated kernels."""
    if any(named[i].kind != "kernel" for i in waiting):  # on the host, what runs eagerly has names of its own
        calls = [call for call in calls if call.kernel != EAGER]
    alike = [i for i in waiting if _is_of_library(named[i], calls)]
    # What runs eagerly between two graphs may be any number of kernels.
    each = len(alike) == len(calls) and all(call.kernel != EAGER for call in calls)
    for k, i in enumerate(alike):
        own = [calls[k]] if each else calls
        named[i] = _rename(named[i], own)


def _is_of_library(ran: Operator, calls: Sequence[NamedCall]) -> bool:
    """Whether a call can have led to it: a kernel of a GPU, unless it moves bytes; of operators, those of its name."""
    if ran.kind == "kernel":
        return bool(calls) and not moves_memory(ran.name) and FEEDING not in ran.name
    return ran.kind in {call.kind for call in calls}


def _rename(ran: Operator, calls: Sequence[NamedCall]) -> Operator:
    layer = " + ".join(dict.fromkeys(call.layer for call in calls if call.layer))
    kernel = ran.name if ran.kind == "kernel" else ""
    return ran._replace(name=layer or ran.name, kind=calls[0].kind, kernel=kernel)
