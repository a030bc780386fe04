"""What a user needs of a configuration, read from an option, and why a figure does not meet it."""

import pytest
from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.core.records import Measurement, MemoryPhases, Result
from enginebench.stats.needs import explain_excess, find_costs, find_memory, format_figure, read_needs
from samples import make_result


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ("memory=512MB,first-output=500ms", {"memory": 512e6, "first-output": 0.5}),
        (["memory=1.5GiB", "build=2min"], {"memory": 1.5 * 2**30, "build": 120.0}),
        ({"size": "20MB", "build": 60}, {"size": 20e6, "build": 60.0}),
        (" size = 3 kB ", {"size": 3000.0}),
        (None, {}),
        ((), {}),
    ],
)
def test_needs_are_kept_in_bytes_and_seconds(requested: object, expected: dict[str, float]) -> None:
    assert read_needs(requested) == pytest.approx(expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("requested", "words"),
    [
        ("memory", "memory"),
        ("memory=512", "with a unit of B, kB"),
        ("memory=500ms", "with a unit of B, kB"),
        ("first-output=1MB", "with a unit of us, ms"),
        ("memory=0MB", "above 0"),
        ("memory=-1MB", "above 0"),
        ("memory=1e400MB", "above 0"),
        ("memory=nanMB", "above 0"),
        ("latency=1ms", "memory, first-output, size, build"),
        ("size=1MB,size=2MB", "there twice"),
        ("size=1MB,", "expected NAME=LIMIT"),
        ({"size": float("inf")}, "above 0"),
        ("memory=" + "9" * 400 + "MB", "above 0"),
    ],
)
def test_what_cannot_be_needed_is_refused(requested: object, words: str) -> None:
    with pytest.raises(UsageError, match="--need") as caught:
        read_needs(requested)  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_an_excess_names_figure_and_limit() -> None:
    assert explain_excess("first-output", 0.98, 0.5) == "takes 0.98 s to its first output; needed: 0.5 s"
    assert explain_excess("memory", 612e6, 512e6) == "takes 612 MB of memory; needed: 512 MB"
    assert explain_excess("memory", 512e6, 512e6) is None
    # Digits that hide the difference would read as nonsense.
    assert "a little more than 512 MB" in str(explain_excess("memory", 512.2e6, 512e6))
    assert "was not measured" in str(explain_excess("memory", None, 512e6))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [("size", 145000, "145 kB"), ("size", 12, "12 B"), ("build", 74.6, "74.6 s"), ("first-output", 0.031, "31 ms")],
)
def test_figures_have_a_unit_that_fits(name: str, value: float, text: str) -> None:
    assert format_figure(name, value) == text


def change_trials(*changes: dict[str, object]) -> Result:
    """A configuration with a trial for each of these changes."""
    result = make_result(processes=len(changes))
    trials: list[Measurement] = [replace(m, **one) for m, one in zip(result.measurements, changes, strict=True)]
    return replace(result, measurements=tuple(trials))


def test_memory_is_the_most_of_any_trial() -> None:
    first, second = (MemoryPhases(load_bytes=load, steady_bytes=900) for load in (700, 500))
    result = change_trials(
        {"peak_memory_bytes": 900, "memory": first},
        {"peak_memory_bytes": 800, "memory": second},
        {"peak_memory_bytes": None, "memory": None},
    )
    assert find_costs(result)["memory"] == 900
    assert find_memory(result) == {"load": 700, "steady": 900}


def test_a_first_output_without_one_of_its_parts_is_not_known() -> None:
    parts = {"import_s": 0.5, "load_s": 0.25, "first_run_s": 0.125}
    assert find_costs(change_trials(parts, parts))["first-output"] == 0.875
    assert find_costs(change_trials(parts | {"import_s": None}))["first-output"] is None
