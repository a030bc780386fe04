"""What a key of a timing file means: quantity and unit, whoever named it."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Quantity = Literal[
    "start_enqueue",
    "end_enqueue",
    "start_h2d",
    "start_compute",
    "end_d2h",
    "h2d",
    "compute",
    "d2h",
    "latency",
    "end_to_end",
    "enqueue",
]

# trtexec's own names. 8.2 and older wrote In and Out for H2d and D2h.
# Source: exportJSONTrace in samples/common/sampleReporting.cpp, tags 7.1 to 11.1.
CURRENT: dict[Quantity, str] = {
    "start_enqueue": "startEnqMs",
    "end_enqueue": "endEnqMs",
    "start_h2d": "startH2dMs",
    "start_compute": "startComputeMs",
    "end_d2h": "endD2hMs",
    "h2d": "h2dMs",
    "compute": "computeMs",
    "d2h": "d2hMs",
    "latency": "latencyMs",
}
CURRENT_OPTIONAL: dict[Quantity, str] = {"end_to_end": "endToEndMs"}
OLD: dict[Quantity, str] = {
    "start_h2d": "startInMs",
    "start_compute": "startComputeMs",
    "end_d2h": "endOutMs",
    "h2d": "inMs",
    "compute": "computeMs",
    "d2h": "outMs",
    "latency": "latencyMs",
}
OLD_OPTIONAL: dict[Quantity, str] = {
    "start_enqueue": "startEnqMs",
    "end_enqueue": "endEnqMs",
    "end_to_end": "endToEndMs",
}
CURRENT_KEYS = frozenset({*CURRENT.values(), "endH2dMs", "endComputeMs", "startD2hMs", "endToEndMs"})
OLD_KEYS = frozenset({*OLD.values(), *OLD_OPTIONAL.values(), "endInMs", "endComputeMs", "startOutMs"})

# Milliseconds in one unit, by the last word of a key.
_UNIT_MS = {
    **dict.fromkeys(("ns", "nanos", "nanoseconds", "nsec"), 1e-6),
    **dict.fromkeys(("us", "micros", "microseconds", "usec", "µs"), 1e-3),
    **dict.fromkeys(("ms", "millis", "milliseconds", "msec"), 1.0),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1e3),
}
# Names that others gave to the same quantities (scripts around trtexec rename them), without case and separators.
_ALIASES: dict[str, Quantity] = {
    **dict.fromkeys(
        ("latency", "latencies", "hostlatency", "time", "times", "inferencetime", "periteration", "iteration"),
        "latency",
    ),
    **dict.fromkeys(("elapsed", "elapsedtime", "duration", "durations", "runtime"), "latency"),
    **dict.fromkeys(("compute", "gpu", "gpucompute", "gpucomputetime", "gputime", "gpulatency"), "compute"),
    **dict.fromkeys(("enqueue", "enqueuetime", "enq", "enqueuelatency"), "enqueue"),
    **dict.fromkeys(("h2d", "h2dlatency", "inputcopy", "copyin"), "h2d"),
    **dict.fromkeys(("d2h", "d2hlatency", "outputcopy", "copyout"), "d2h"),
    **dict.fromkeys(("endtoend", "e2e", "endtoendhostlatency", "endtoendlatency"), "end_to_end"),
    **dict.fromkeys(("startenq", "startenqueue"), "start_enqueue"),
    **dict.fromkeys(("endenq", "endenqueue"), "end_enqueue"),
    **dict.fromkeys(("starth2d", "startin"), "start_h2d"),
    **dict.fromkeys(("startcompute",), "start_compute"),
    **dict.fromkeys(("endd2h", "endout"), "end_d2h"),
}
_WORD = re.compile(r"[A-Z]?[a-zµ]+[0-9]?[a-z]?|[A-Z]+(?![a-z])|[0-9]+")


class KeyMeaning(NamedTuple):
    """A quantity, how many ms its unit has, and whether the key says so."""

    quantity: Quantity
    scale_ms: float
    unit_given: bool


def read_key(path: tuple[str, ...]) -> KeyMeaning | None:
    """The meaning of a key and the keys around it, outermost first; None if it names no known quantity.

    `("latencyMs",)`, `("latency", "us")` and `("stats", "gpu_time_s")` are all understood. A key without unit is in
    ms, which is the only unit that trtexec writes.
    """
    words = [word.lower() for part in path[-2:] for word in _WORD.findall(part[:80])]
    scale = _UNIT_MS.get(words[-1]) if words else None
    if scale is not None:
        words.pop()
    own = [word.lower() for word in _WORD.findall(path[-1][:80])] if path else []
    if scale is not None and own:
        own.pop()
    for candidate in ("".join(own), "".join(words)):
        if candidate in _ALIASES:
            return KeyMeaning(_ALIASES[candidate], scale or 1.0, scale is not None)
    return None
