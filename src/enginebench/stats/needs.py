"""The costs of a configuration beside the time of a call, and limits on them: memory, first output, size, build."""

import re
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from enginebench.core.errors import UsageError
from enginebench.core.records import Measurement, Result
from enginebench.stats.quantiles import median


class Need(Struct, frozen=True):
    """One figure of a configuration that `--need` limits."""

    unit: str  # in which limits and figures are kept: "bytes" or "s"
    words: str  # a message about a figure, which takes the place of {}
    missing: str  # what was not measured, where there is no figure


NEEDS = {
    "memory": Need("bytes", "takes {} of memory", "its memory"),
    "first-output": Need("s", "takes {} to its first output", "its time to the first output"),
    "size": Need("bytes", "has files of {}", "the size of its files"),
    "build": Need("s", "takes {} to build", "its time to build"),
}
# Decimal, as disks and clouds count, and binary, as memory is; without a unit a figure could be anything.
UNITS = {
    "bytes": {"B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30},
    "s": {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0},
}
_FIGURE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-z]+)")


def read_needs(requested: Mapping[str, str | float] | Iterable[str] | str | None) -> dict[str, float]:
    """Return the limits, in bytes and seconds, from `memory=512MB,first-output=500ms` or {"memory": "512MB"}.

    A number without a unit is taken from a mapping alone, where it is in bytes or seconds.

    Raises:
        UsageError: an unknown name, one that is there twice, or no positive figure with a unit of its kind.
    """
    if isinstance(requested, Mapping):
        named = {_find_name(name, name): value for name, value in requested.items()}
        return {name: _read_figure(name, value, f"{name}={value}") for name, value in named.items()}
    parts = (requested,) if isinstance(requested, str) else requested or ()
    needs = dict[str, float]()
    for text in (piece.strip() for part in parts for piece in part.split(",")):
        name, _, value = text.partition("=")
        name = _find_name(name.strip(), text)
        if name in needs:
            raise UsageError(f"--need {text!r}: {name} is there twice")
        needs[name] = _read_figure(name, value.strip(), text)
    return needs


def _find_name(name: str, text: str) -> str:
    if name not in NEEDS:
        raise UsageError(f"--need {text!r}: expected NAME=LIMIT, with a NAME of {', '.join(NEEDS)}")
    return name


def _read_figure(name: str, value: str | float, text: str) -> float:
    units = UNITS[NEEDS[name].unit]
    if isinstance(value, str):
        match = _FIGURE.fullmatch(value)
        figure = float(match[1]) * units[match[2]] if match and match[2] in units else 0.0
    else:
        figure = float(value)
    if not 0 < figure < float("inf"):
        example = "512MB" if NEEDS[name].unit == "bytes" else "500ms"
        raise UsageError(
            f"--need {text!r}: expected a figure above 0 with a unit of {', '.join(units)}, such as {example}"
        )
    return figure


def format_figure(name: str, value: float) -> str:
    """Format a figure of a need with its unit: `612 MB`, `0.98 s`, `31 ms`."""
    if NEEDS[name].unit == "bytes":
        unit = next((unit for unit in ("GB", "MB", "kB") if value >= UNITS["bytes"][unit]), "B")
        return f"{_round(value / UNITS['bytes'][unit])} {unit}"
    unit = "us"
    if value >= 0.1:
        unit = "s"
    elif value >= 1e-4:
        unit = "ms"
    return f"{_round(value / UNITS['s'][unit])} {unit}"


def _round(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def explain_excess(name: str, value: float | None, limit: float) -> str | None:
    """Explain why a figure does not meet a need: `takes 0.98 s to its first output; needed: 0.5 s`; None if it does.

    A figure that was not measured does not meet it: nobody knows.
    """
    need = NEEDS[name]
    if value is None:
        return f"{need.missing} was not measured; needed: {format_figure(name, limit)}"
    if value <= limit:
        return None
    shown, needed = format_figure(name, value), format_figure(name, limit)
    if shown == needed:  # beyond the limit by less than the digits show
        shown = f"a little more than {needed}"
    return f"{need.words.format(shown)}; needed: {needed}"


def find_costs(result: Result) -> dict[str, float | None]:
    """Return what a configuration has of each figure that can be needed, in bytes and seconds; None: not measured."""
    measured = [m for m in result.measurements if m.latency_ns]
    return {
        "memory": max((m.peak_memory_bytes for m in measured if m.peak_memory_bytes), default=None),
        "first-output": find_median(result, find_first_output_s),
        "size": result.size_bytes,
        "build": result.build_s or 0.0,  # what is not built before it is loaded costs nothing
    }


def explain_excesses(result: Result, needs: Mapping[str, float]) -> list[str]:
    """Explain each need that a configuration does not meet; empty if it meets all."""
    costs = find_costs(result)
    reasons = (explain_excess(name, costs[name], limit) for name, limit in needs.items())
    return [reason for reason in reasons if reason is not None]


def find_first_output_s(measurement: Measurement) -> float | None:
    """Return the seconds from importing the engine to its first output; None where a part of it was not measured."""
    parts = (measurement.import_s, measurement.load_s, measurement.first_run_s)
    measured = [part for part in parts if part is not None]
    return sum(measured) if len(measured) == len(parts) else None


def find_median(result: Result, take: Callable[[Measurement], float | None]) -> float | None:
    """Return the median over the trials of a figure of each; None: no trial has it."""
    figures = [figure for m in result.measurements if (figure := take(m)) is not None]
    return median(figures) if figures else None


def find_memory(result: Result) -> dict[str, int]:
    """Return phase -> the most bytes that it took in any trial: before, import, load, first_run, steady, proportional.

    `before` is what Python and EngineBench take without the engine, `proportional` what the process has at its end with
    shared pages counted in part. A phase that the system did not report is missing.
    """
    most: dict[str, int] = {}
    for memory in filter(None, (m.memory for m in result.measurements)):
        for name in memory.__struct_fields__:
            value = getattr(memory, name)
            if value is not None:
                phase = name.removesuffix("_bytes")
                most[phase] = max(value, most.get(phase, 0))
    return most
