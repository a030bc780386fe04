"""The exporter's list of translations, without parsing the sources of all: half a second to a second of each export."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


class _Domain:
    """All that the list takes from a parsed function."""

    def __init__(self, domain: str) -> None:
        self.domain = domain


@contextlib.contextmanager
def leave_translations_unparsed() -> Iterator[None]:
    """Inside the block a traced function of onnxscript says its domain without parsing its source for it.

    PyTorch's exporter lists about 500 of them for each graph, parses each for its domain alone, and calls a few. In a
    version of onnxscript that keeps them elsewhere nothing is changed.
    """
    try:
        from onnxscript import values

        kind: Any = values.TracedOnnxFunction
        parsed = vars(kind)["function_ir"]
    except (ImportError, AttributeError, KeyError):
        yield
        return
    kind.function_ir = property(lambda function: _Domain(function.opset.domain))
    try:
        yield
    finally:
        kind.function_ir = parsed
