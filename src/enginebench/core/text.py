"""Text from files, models, logs and tools, made safe to show on a terminal, and the streams that it is printed to."""

import codecs
import io
import json
import math
import os
import re
import sys
import unicodedata
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

# A name of its own among the error handlers of codecs.
SPELLED = "enginebench.spelled"
# Replacements of characters that an encoding lacks; in tables and charts one for one, so that columns stay aligned.
ASCII = {
    **dict.fromkeys("·•–—−─━═", "-"),
    **dict.fromkeys("│┃║", "|"),
    **dict.fromkeys("█▉▊▋▌▍▎▏▐▇▆▅▄▃▂▁", "#"),
    **dict.fromkeys("‘’", "'"),
    **dict.fromkeys("“”", '"'),
    "×": "x",
    "µ": "u",
    "μ": "u",
    "±": "+-",
    "→": "->",
    "←": "<-",
    "…": "...",
    "≤": "<=",
    "≥": ">=",
    "≈": "~",
}
# Control, format (among them marks that reverse the direction of writing), surrogate, line, paragraph characters.
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def parse_finite(text: str) -> float | None:
    """Return the finite number that `text` spells, else None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def stamp_utc() -> str:
    """This moment in UTC, by ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def clean_lines(text: str) -> str:
    """Remove from `text` everything that moves a cursor, rings, colours or reverses, except line ends and tabs."""
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
    return f"{n} {inflect(n, things)}"


def inflect(n: int, things: str) -> str:
    """`layer` of one, else `layers`: the word that stands after a number."""
    if n != 1:
        return things
    ends = (("ies", "y"), ("sses", "ss"), ("ches", "ch"), ("s", ""))
    many, one = next((pair for pair in ends if things.endswith(pair[0])), ("", ""))
    return f"{things.removesuffix(many)}{one}"


def count_nonfinite(n: int) -> str:
    """`1 value is not finite`, `3 values are not finite`."""
    return f"{count_of(n, 'values')} {'is' if n == 1 else 'are'} not finite"


def name_type(value: object) -> str:
    """`a dict`, `an int`: the type of a value, with its article."""
    return add_article(type(value).__name__)


def add_article(name: str) -> str:
    return f"{'an' if name[0].lower() in 'aeio' else 'a'} {name}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; its class if the message is empty."""
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)


def list_or(names: Sequence[str]) -> str:
    """`--time-limit, --iters or --processes`; "" of none."""
    *first, last = names or ("",)
    return f"{', '.join(first)} or {last}" if first else last


def list_some(names: Sequence[str], most: int = 8) -> str:
    """The names, and only how many more there are beyond the first `most`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


# Paths are shorter, and a name of a graph that is longer tells nobody more.
_LONG_WORD = re.compile(r"(\S{60})\S{280,}(\S{60})")


def shorten_words(text: str) -> str:
    """The text with the middle of every word of 400 letters or more left out."""
    return _LONG_WORD.sub(r"\1…\2", text)


class Outlet(io.TextIOWrapper):
    """A standard stream that never raises: what cannot be written is lost, and `failure` has the error.

    Measurements are worth more than what is printed about them: a verb finishes, and stores its results.
    """

    failure: OSError | None = None

    def write(self, text: str) -> int:
        """Write as much as the stream takes."""
        try:
            return super().write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        """Write the rest."""
        try:
            super().flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.failure = self.failure or error
        _lead_nowhere(self.fileno())


def open_standard() -> None:
    """Make the standard streams of this process usable, however it was started."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:  # closed: the next file that is opened would get its number, and be printed into
            _lead_nowhere(number)
        if getattr(sys, name) is None:
            stream = open(number, "w" if number else "r", encoding="utf-8", closefd=False)  # noqa: SIM115 - it stays open
            setattr(sys, name, stream)
    codecs.register_error(SPELLED, _spell)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if type(stream) is io.TextIOWrapper:  # not what a test or a notebook has put there
            encoding, by_lines, at_once = stream.encoding, stream.line_buffering, stream.write_through
            outlet = Outlet(stream.detach(), encoding, SPELLED, None, by_lines, at_once)
            setattr(sys, name, outlet)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=SPELLED)


def find_failure() -> OSError | None:
    """Return why standard output could not be written; None if it could."""
    sys.stdout.flush()
    return getattr(sys.stdout, "failure", None)


def escape_json(text: str) -> str:
    """A JSON document as standard output can encode it: other characters as JSON escapes, which lose nothing."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return "".join(character if character.isascii() else json.dumps(character)[1:-1] for character in text)
    return text


def _lead_nowhere(number: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    if null != number:
        os.dup2(null, number)
        os.close(null)


def _spell(error: UnicodeError) -> tuple[str, int]:
    """Replace what an encoding lacks by ASCII: see `ASCII`, then letters without accents, then a question mark."""
    assert isinstance(error, UnicodeEncodeError)
    spelled = []
    for character in error.object[error.start : error.end]:
        plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
        spelled.append(ASCII.get(character) or plain or "?")
    return "".join(spelled), error.end


# The metavar of options that take a time: 200ms, 90s, 20m, 1.5h, or seconds.
TIME = "TIME"
_SECONDS_PER = {"ms": 1e-3, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smh]?)")


def parse_seconds(text: str) -> float | None:
    """Return the seconds of a time such as `90s`, `20m`, `1.5h` or `3`; None if it is none."""
    match = _TIME.fullmatch(text.strip())
    return float(match[1]) * _SECONDS_PER[match[2]] if match else None
