"""Facts of an output: fragments of its lines, in their order."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any


def find_fault(facts: Sequence[str], text: str) -> str | None:
    """What a stream lacks of its facts, or has without any; None: nothing."""
    lines = list_lines(text)
    if not facts:
        return f"expected nothing, printed {text!r}" if text else None
    start = 0
    for fact in facts:
        parts = (" ".join(part.split()) for part in fact.split("..."))
        pattern = re.compile(".*".join(map(re.escape, parts)))
        place = next((at for at in range(start, len(lines)) if pattern.search(lines[at])), None)
        if place is None and fact != "...":
            return f"expected {fact!r} below line {start}, printed\n" + "\n".join(lines)
        start = start if place is None else place + 1
    return None


def list_lines(text: str) -> list[str]:
    """The lines of a text, or one for each value of a JSON document; spaces between words are one."""
    try:
        document = json.loads(text) if text.startswith(("{", "[")) else None
    except ValueError:
        document = None
    lines = text.splitlines() if document is None else list_values(document, "")
    return [" ".join(line.split()) for line in lines]


def list_values(node: Any, path: str) -> Iterator[str]:
    """`rows[0].id = "a"` for each value of a document; numbers to six digits."""
    if isinstance(node, dict) and node:
        for name, value in node.items():
            yield from list_values(value, f"{path}.{name}" if path else name)
    elif isinstance(node, list) and node:
        for at, value in enumerate(node):
            yield from list_values(value, f"{path}[{at}]")
    else:
        yield f"{path} = " + (f"{node:.6g}" if isinstance(node, float) else json.dumps(node, ensure_ascii=False))
