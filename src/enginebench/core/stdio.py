"""Standard streams that take whatever is printed: closed ones, full disks, readers that are gone, ASCII terminals."""

import codecs
import io
import json
import os
import sys
import unicodedata

# A name of its own among the error handlers of codecs.
SPELLED = "enginebench.spelled"
# What stands for a character that an encoding lacks; of tables and charts one for one, so that columns stay.
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


class Outlet(io.TextIOWrapper):
    """A standard stream that never raises: what cannot be written is lost, and `failure` says why.

    What was measured is worth more than what is printed about it: a verb finishes, and stores its results.
    """

    failure: OSError | None = None

    def write(self, text: str) -> int:
        """Writes what it can."""
        try:
            return super().write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        """Writes what is left."""
        try:
            super().flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.failure = self.failure or error
        _lead_nowhere(self.fileno())


def open_standard() -> None:
    """Makes the standard streams of this process usable, whatever it was started with."""
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
    """Why standard output could not be written; None if it could."""
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
    """Replaces what an encoding lacks by ASCII: see `ASCII`, then letters without accents, then a question mark."""
    assert isinstance(error, UnicodeEncodeError)
    spelled = []
    for character in error.object[error.start : error.end]:
        plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
        spelled.append(ASCII.get(character) or plain or "?")
    return "".join(spelled), error.end
