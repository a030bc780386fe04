"""An exported graph under the names of the user's own module, as if that had been exported without our wrapper."""

import ast
import re
from typing import Any

# Where the exporter says of a node in which modules it stands. Source: PyTorch 2.13,
# torch/onnx/_internal/exporter/_core.py; "namespace" reads `: root.Class/fc: torch.nn.Linear/addmm: aten.addmm`.
_SCOPES = "pkg.torch.onnx.name_scopes"
_CLASSES = "pkg.torch.onnx.class_hierarchy"
_NAMESPACE = "namespace"
_TRACED = "pkg.torch.onnx.fx_node"


def drop_wrapper(model: Any, child: str) -> None:
    """Renames weights and scopes of a graph in place: `fc.weight` for `module.fc.weight`.

    A name that something else in the graph has already stays as it is.
    """
    graph = model.graph
    taken = {value.name for node in graph.all_nodes() for value in node.outputs} | {v.name for v in graph.inputs}
    for old, value in list(graph.initializers.items()):
        new = old.removeprefix(f"{child}.")
        if new != old and new not in taken and new not in graph.initializers:
            _rename(graph, value, old, new)
    for node in graph.all_nodes():
        props = node.metadata_props
        for key, change in ((_SCOPES, _drop_scope), (_CLASSES, lambda classes, _: classes[len(classes) > 2 :])):
            if key in props:
                props[key] = str(change(_read_list(props[key]), child))
        if _NAMESPACE in props:
            props[_NAMESPACE] = _drop_namespace(props[_NAMESPACE], child)
        if _TRACED in props:  # parameters and buffers are its arguments
            props[_TRACED] = re.sub(rf"%([pb])_{child}_", r"%\1_", props[_TRACED])


def _rename(graph: Any, value: Any, old: str, new: str) -> None:
    """Newer versions of onnx_ir keep the tensor's name and the graph's table in step, older ones do not."""
    value.name = new
    if value.const_value is not None:
        value.const_value.name = new
    if graph.initializers.get(old) is value:
        graph.initializers[new] = graph.initializers.pop(old)


def _read_list(text: str) -> list[str]:
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return []
    return [str(part) for part in found] if isinstance(found, list) else []


def _drop_scope(scopes: list[str], child: str) -> list[str]:
    """`['', 'fc', 'addmm']` for `['', 'module', 'module.fc', 'addmm']`; what the wrapper does itself stays in it."""
    if scopes[1:2] != [child]:
        return scopes
    *around, operator = scopes[1:]
    return [*(scope.removeprefix(child).removeprefix(".") for scope in around), operator]


def _drop_namespace(text: str, child: str) -> str:
    """`: net.Net/fc: torch.nn.Linear/addmm: aten.addmm` without the wrapper in front."""
    _, _, inside = text.partition(f"/{child}: ")
    return ": " + inside.replace(f"/{child}.", "/") if inside else text
