"""Text from files, models, logs and tools, made safe to show on a terminal."""

import unicodedata
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

# Control, format (among them marks that reverse the direction of writing), surrogate, line, paragraph characters.
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def stamp_utc() -> str:
    """This moment in UTC, by ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def clean_lines(text: str) -> str:
    """`text` with its line ends and tabs, but nothing else that moves a cursor, rings, colours or reverses."""
    if text.isprintable():
        return text
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in HIDDEN)


def clean_text(text: str) -> str:
    """`text` on one line without control characters; line ends and tabs become spaces."""
    return clean_lines("".join(" " if c in "\n\r\t\v\f\x85\u2028\u2029" else c for c in text))


def clean_texts(value: Any) -> Any:
    """A value made of lists and dictionaries with every text in it, also the keys, as `clean_text` gives it."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_texts(key): clean_texts(one) for key, one in value.items()}
    return [clean_texts(one) for one in value] if isinstance(value, list | tuple) else value


def count_of(n: int, things: str) -> str:
    """`1 layer`, `2 layers`: a number with its word."""
    if n != 1:
        return f"{n} {things}"
    ends = (("ies", "y"), ("sses", "ss"), ("ches", "ch"), ("s", ""))
    many, one = next((pair for pair in ends if things.endswith(pair[0])), ("", ""))
    return f"{n} {things.removesuffix(many)}{one}"


def name_type(value: object) -> str:
    """`a dict`, `an int`: the type of a value, with its article."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeio' else 'a'} {name}"


def first_line(error: BaseException) -> str:
    """What an error says first; its class where it says nothing."""
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)


def list_some(names: Sequence[str], most: int = 8) -> str:
    """The names, and only how many more there are beyond the first `most`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
