"""ONNX operators in what TensorRT calls a layer: its metadata, or its fused name."""

import re

_METADATA = re.compile(r"\[ONNX Layer: (.*?)\](?=[\x1e\x1f\s\[]|$)", re.DOTALL)
_REFORMAT = re.compile(r"^Reformatting CopyNode for (?:Input|Output) Tensor \d+ to ")
# Names that TensorRT makes up while it lowers a graph; no operator of the model has them.
_MADE_UP = re.compile(
    r"^\(Unnamed Layer|^(?:copied_)?(?:un)?squeeze_(?:node_)?after_|^(?:reshape|shuffle|transpose)_(?:before|after)_"
    r"|^__myl|\.(?:weight|bias)$",  # and parameters, which PyTorch names so
    re.IGNORECASE,
)
# Longer than any fused name that was seen (a whole transformer in one Myelin layer has some 20 kB); what is longer
# is cut so that hostile files cost no time.
_MAX_NAME = 1 << 20


def read_metadata(text: str | None) -> tuple[str, ...]:
    """The operators in a layer's `Metadata`.

    Each stands as "[ONNX Layer: /conv/Conv]", separated by the control characters 0x1E (groups) and 0x1F (members).
    """
    nodes: list[str] = []
    for match in _METADATA.finditer((text or "")[:_MAX_NAME]):
        nodes += [node.strip() for node in match[1].split(" + ")]
    return tuple(dict.fromkeys(node for node in nodes if node))


def split_name(name: str) -> tuple[str, ...]:
    """The operators in a fused name: "Conv_0 + Relu_1", "Conv_1 || Conv_2", "PWN(PWN(Sigmoid_3), Mul_4)".

    A reformat layer stands for no operator. Names that TensorRT made up are left out.
    """
    name = name[:_MAX_NAME]
    if _REFORMAT.match(name):
        return ()
    nodes: list[str] = []
    for part in re.split(r" \+ | \|\| ", name):
        nodes += unwrap(part.strip())
    return tuple(dict.fromkeys(node for node in nodes if node and not _MADE_UP.search(node)))


def unwrap(part: str) -> list[str]:
    """The operators inside PWN(...) and {ForeignNode[a...b]}."""
    if part.startswith("PWN("):
        return [piece.strip(" ()") for piece in part.replace("PWN(", "").split(",")]
    if "ForeignNode[" in part:
        inner = part.split("ForeignNode[", 1)[1].rstrip("]}")
        return [piece for piece in inner.split("...") if piece]
    return [part]


def strip_reformat(name: str) -> str | None:
    """X of "Reformatting CopyNode for Input Tensor 0 to X", or None."""
    match = _REFORMAT.match(name)
    return name[match.end() :] if match else None
