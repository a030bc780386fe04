"""`bisect` around its measurements: which versions it asks for, what it finds, and what it says of them."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from enginebench.core.errors import BackendUnavailable, MeasurementError, UsageError
from enginebench.core.records import Result
from enginebench.features.versions import bisect as verb
from enginebench.features.versions.bisect import list_bisect
from enginebench.features.versions.document import BisectDocument
from enginebench.features.versions.env import cut_range
from enginebench.report.table import Notes
from enginebench.verbs.bench import BenchRequest
from samples import make_drift, make_measurements, make_result

VERSIONS = ["1.23.1", "1.24.0", "1.24.4", "1.25.0", "1.26.0", "1.27.0"]
MANY = [f"1.{minor}" for minor in range(10, 21)]
ROW = make_result("fake", processes=0)
AGREES = replace(make_drift(0.0), reference="r0")


@pytest.mark.parametrize(
    ("versions", "good", "bad", "said"),
    [
        (VERSIONS, "1.26", "1.24", "not a later version"),
        (VERSIONS, "1.24", "1.24.4", "not a later version"),
        (VERSIONS, "1.2", "1.25", r"p 1.2 is not on the package index; there are 1.23.1"),  # 1.2 is not 1.23
        (MANY, "99", "1.20", r"there are 1\.13, .*1\.20 and 3 earlier ones$"),
    ],
)
def test_versions_that_cannot_be_are_refused(versions: list[str], good: str, bad: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        cut_range(versions, "p", good, bad)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """What was measured: versions are their own latencies in us; environments are names, and nothing is installed.

    Version 666 fails, 777 cannot be installed, one that ends in .9 has other outputs. Of the times
    of 888 nobody can tell anything, of those of 999 after 20 trials.
    """
    asked: list[tuple[str, str, int]] = []

    def pretend(request: BenchRequest, root: Path, *, reporter: object, wait: bool = True) -> list[Result]:
        count = request.own.measure.processes
        versions = [side.engines[0][1]["env"].removeprefix("p-") for side in reversed(request.sides)]
        asked.append((versions[0], versions[1], count))
        rows = []
        for i, version in enumerate(versions):
            sd = 0.5 if version == "888" or (version == "999" and count < 20) else 0.001
            times = make_measurements(210e-3 if sd == 0.5 else float(version) / 1e3, processes=count, sd=sd)
            drift = replace(AGREES, passed=not version.endswith(".9"))
            status = "ok" if version != "666" else "failed"
            rows.append(replace(ROW, id=f"r{i}", measurements=times, status=status, drift=drift))
        return rows

    def install(name: str, requirements: Sequence[str], reporter: object) -> None:
        if name == "p-777":
            raise BackendUnavailable("no version on the package index satisfies p==777")

    monkeypatch.setattr(verb, "bench_sides", pretend)
    monkeypatch.setattr(verb, "validate_bench", lambda request: None)  # the environments are not there
    monkeypatch.setattr(verb, "list_named_environments", list)
    monkeypatch.setattr(verb, "install_environment", install)
    return asked


def bisect(root: Path, versions: list[str], *, drift: bool = False) -> BisectDocument:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verb, "list_index_versions", lambda package: versions)
        ends = {"good": versions[0], "bad": versions[-1]}
        return verb.bisect("digits-mlp", "p", **ends, engine="fake", processes=6, drift=drift, out=root)


def say(document: BisectDocument) -> list[str]:
    (section,) = list_bisect(document)
    notes = section.parts[0]
    assert isinstance(notes, Notes)
    return [text for _, text in notes.lines]


def test_the_first_slow_version_is_found(measured: list[tuple[str, str, int]], tmp_path: Path) -> None:
    document = bisect(tmp_path, ["200", "200.5", "201", "300", "301"])
    assert (document.first_bad, document.last_good, document.by) == ("300", "201", "time")
    assert [(row.id, row.verdict) for row in document.tried] == [
        ("301", "slower"),
        ("201", "equivalent"),
        ("300", "slower"),
    ]
    assert document.tried[-1].ratio is not None and document.tried[-1].ratio.value == pytest.approx(2 / 3, rel=0.01)
    assert measured == [("200", "301", 6), ("200", "201", 6), ("200", "300", 6)]
    assert say(document)[0] == "p 300 is the first that is significantly slower; 201 is not."
    measured.clear()
    document = bisect(tmp_path, ["200", "200.05", "200.1"])
    assert document.first_bad is None and document.tried[0].verdict == "equivalent" and len(measured) == 1
    assert say(document)[0] == "p 200.1 is not significantly slower."
    unsure = say(bisect(tmp_path / "again", ["200", "888"]))[0]
    assert unsure == "p 888 is not significantly slower, but not shown to be as fast either."


@pytest.mark.usefixtures("measured")
def test_other_outputs_are_bad_where_they_are_asked_about(tmp_path: Path) -> None:
    document = bisect(tmp_path, ["200", "300", "200.9", "201.9"], drift=True)
    assert (document.first_bad, document.last_good, document.by) == ("200.9", "300", "drift")
    assert say(document)[0] == "p 200.9 is the first that is different in its outputs; 300 is not."
    assert say(bisect(tmp_path, ["200", "300"], drift=True))[0] == "p 300 is not different in its outputs."


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(
    ("last", "error", "said"),
    [
        ("666", MeasurementError, "p 666 cannot be compared: .*failed"),
        ("777", BackendUnavailable, "no version on the package index satisfies"),
        ("200.9", MeasurementError, "p 200.9 cannot be compared: the outputs are not within"),
    ],
)
def test_what_cannot_be_compared_ends_with_the_reason(
    tmp_path: Path, last: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        bisect(tmp_path, ["200", last])


@pytest.mark.parametrize("between", ["666", "777", "888"])
def test_a_version_between_without_a_verdict_is_passed_over(
    measured: list[tuple[str, str, int]], tmp_path: Path, between: str
) -> None:
    """One that fails, one that cannot be installed, and one that stays inconclusive with four times the trials."""
    found = bisect(tmp_path, ["200", "200.5", between, "300", "301"])
    assert (found.first_bad, found.last_good, found.undecided) == (None, "200.5", (between, "300"))
    assert say(found)[0].startswith(f"One of {between}, 300 is the first that is significantly slower.")
    assert ("Raise --processes" in say(found)[0]) == (between == "888")
    asked = [count for _, version, count in measured if version == between]
    assert asked == {"666": [6], "777": [], "888": [6, 12, 24]}[between]
    beside = bisect(tmp_path, ["200", between, "201", "300", "301"])
    assert (beside.first_bad, beside.last_good, beside.undecided) == ("300", "201", ())


def test_a_package_is_for_an_engine() -> None:
    with pytest.raises(UsageError, match="no engine needs the package flask; name the engine with --engine"):
        verb.bisect("digits-mlp", "flask", "1", "2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verb, "list_index_versions", lambda package: ["1", "2"])
        with pytest.raises(UsageError, match="onnxruntime 9 is not on the package index"):
            verb.bisect("digits-mlp", "onnxruntime", "1", "9")
