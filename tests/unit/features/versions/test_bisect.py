"""`bisect` around its measurements, what it says of them, and its search over simulated versions."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from enginebench.core.errors import MeasurementError, UsageError
from enginebench.core.records import MeasureSpec, Result
from enginebench.features.versions import bisect as verb
from enginebench.features.versions.bisect import (
    BisectDocument,
    By,
    Judgement,
    TriedVersion,
    bisect_package,
    cut_range,
    find_engine_of,
    find_first_bad,
    format_outcome,
    judge_rows,
)
from enginebench.runs.folder import RunRequest
from enginebench.runs.targets.sides import Side
from reporters import Silent
from samples import make_drift, make_estimate, make_measurements, make_result, make_scores

VERSIONS = ["1.23.1", "1.24.0", "1.24.4", "1.25.0", "1.26.0", "1.27.0"]
MANY = [f"1.{minor}" for minor in range(10, 21)]
ROW = make_result("fake", processes=0)
REQUEST = RunRequest(model="digits-mlp", engines=(("fake", {}),), measure=MeasureSpec(processes=6))


def test_a_series_stands_for_its_newest() -> None:
    assert cut_range(VERSIONS, "p", "1.24", "1.26") == ["1.24.4", "1.25.0", "1.26.0"]
    assert cut_range(VERSIONS, "p", "1.24.0", "1.25") == ["1.24.0", "1.24.4", "1.25.0"]


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


def score(row: Result, value: float, n: int = 450) -> Result:
    return replace(row, scores=make_scores(value, n))


def judge(base: Result, cand: Result, max_drop: float | None = None) -> TriedVersion:
    request = replace(REQUEST, metrics=("top1",), max_metric_drop=max_drop)
    return judge_rows((base, cand), "2", "metric", 0.05, request)


def test_a_metric_judges_by_what_it_lost() -> None:
    base = score(ROW, 0.98)
    assert judge(base, score(ROW, 0.96)).judgement == "bad"
    assert judge(base, score(ROW, 0.975)).judgement == "good"
    assert judge(base, score(ROW, 0.975), 0.001).judgement == "bad"
    better = judge(base, score(ROW, 0.99))
    assert better.judgement == "good" and better.metric_change == pytest.approx(0.01)
    assert judge(base, ROW).judgement == "not_comparable"
    fewer = judge(base, score(ROW, 0.98, n=30))
    assert fewer.judgement == "not_comparable" and "450 samples of the base, 30" in "; ".join(fewer.reasons)


@pytest.mark.parametrize(
    ("agree", "said"),
    [(True, "The outputs of p 2 agree with those of 1."), (None, "p 2 is not significantly different")],
)
def test_a_ratio_of_times_says_nothing_about_answers(agree: bool | None, said: str) -> None:
    ratio = make_estimate(0.945, 0.9, 0.99)
    tried = TriedVersion(
        version="2", judgement="good", repetitions=6, verdict="not_shown", ratio=ratio, outputs_agree=agree
    )
    document = BisectDocument(
        package="p", engine="ort", by="drift", good="1", bad="2", verdict="not_shown", ratio=ratio, changed=(),
        tried=(tried,),
    )  # fmt: skip
    (line,) = format_outcome(document)
    assert line.startswith(said) and "0.945" not in line


def test_a_package_is_for_an_engine() -> None:
    assert [find_engine_of(name) for name in ("onnxruntime", "openvino", "torch")] == ["ort", "openvino", "pytorch"]
    with pytest.raises(UsageError, match="no engine needs the package flask; name the engine with --engine"):
        find_engine_of("flask")


AGREES = replace(make_drift(0.0), reference="r0")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """What was measured: versions are their own latencies in us; environments are names, and nothing is installed."""
    asked: list[tuple[str, str, int]] = []

    def pretend(request: RunRequest, side: Side, root: Path, *, reporter: object) -> list[Result]:
        (_, cand), base = request.engines[0], side.engine[1]
        versions = [options["env"].removeprefix("p-") for options in (base, cand)]
        asked.append((*versions, request.measure.processes))  # type: ignore[arg-type]
        rows = []
        for i, version in enumerate(versions):
            times = make_measurements(float(version) / 1e3, processes=request.measure.processes, sd=0.001)
            status = "ok" if version != "666" else "failed"
            rows.append(replace(ROW, id=f"r{i}", measurements=times, status=status, drift=AGREES))
        return rows

    monkeypatch.setattr(verb, "bench_sides", pretend)
    monkeypatch.setattr(verb, "list_environments", list)
    monkeypatch.setattr(verb, "install_environment", lambda name, requirements, reporter: None)
    return asked


def bisect(root: Path, versions: list[str], request: RunRequest = REQUEST) -> BisectDocument:
    by: By = "metric" if request.metrics else "time"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verb, "list_versions", lambda package: versions)
        ends = versions[0], versions[-1]
        return bisect_package(request, "p", *ends, root, by=by, margin=0.05, reporter=Silent())


def test_the_first_slow_version_is_found(measured: list[tuple[str, str, int]], tmp_path: Path) -> None:
    document = bisect(tmp_path, ["200", "200.5", "201", "300", "301"])
    assert (document.first_bad, document.last_good, document.verdict) == ("300", "201", "slower")
    assert document.ratio is not None and document.ratio.value == pytest.approx(2 / 3, rel=0.01)
    assert measured == [("200", "301", 6), ("200", "201", 6), ("200", "300", 6)]
    assert "p 300 is the first that is slower" in format_outcome(document)[0]
    measured.clear()
    document = bisect(tmp_path, ["200", "200.05", "200.1"])
    assert document.first_bad is None and document.verdict == "equivalent" and len(measured) == 1
    assert "p 200.1 is not significantly slower" in format_outcome(document)[0]


def test_other_outputs_are_bad_where_they_are_asked_about() -> None:
    drifted = replace(ROW, id="r1", drift=replace(AGREES, passed=False))
    assert judge_rows((replace(ROW, id="r0"), drifted), "2", "drift", 0.05, REQUEST).judgement == "bad"
    agreeing = replace(drifted, drift=AGREES)
    assert judge_rows((replace(ROW, id="r0"), agreeing), "2", "drift", 0.05, REQUEST).judgement == "good"
    assert judge_rows((ROW, ROW), "2", "drift", 0.05, REQUEST).judgement == "not_comparable"


def test_what_cannot_be_compared_ends_with_the_reason(measured: list[tuple[str, str, int]], tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=r"p 666 cannot be compared with 200: .*failed"):
        bisect(tmp_path, ["200", "666"])


def test_a_version_between_that_cannot_be_compared_is_passed_over(measured, tmp_path) -> None:
    found = bisect(tmp_path, ["200", "200.5", "666", "300", "301"])
    assert (found.first_bad, found.last_good, found.undecided) == (None, "200.5", ("666", "300"))
    said = format_outcome(found)
    assert "is among 666, 300" in said[0] and said[1].startswith("666: the candidate is failed")
    assert measured.count(("200", "666", 6)) == 1, "more repetitions would show nothing more"
    beside = bisect(tmp_path, ["200", "666", "201", "300", "301"])
    assert (beside.first_bad, beside.last_good, beside.undecided) == ("300", "201", ())


def test_the_first_version_that_is_worse_by_a_metric_is_found(monkeypatch, measured, tmp_path) -> None:
    """All are as fast; from 201.2 on the accuracy is lower by two points."""
    timed = verb.bench_sides

    def pretend(request: RunRequest, side: Side, root: Path, *, reporter: object) -> list[Result]:
        rows = timed(request, side, root, reporter=reporter)  # type: ignore[arg-type]
        return [score(row, 0.96 if name >= "201.2" else 0.98) for row, name in zip(rows, measured[-1][:2], strict=True)]

    monkeypatch.setattr(verb, "bench_sides", pretend)
    document = bisect(tmp_path, [f"201.{i}" for i in range(5)], replace(REQUEST, metrics=("top1",)))
    assert (document.first_bad, document.last_good, document.metric) == ("201.2", "201.1", "top1")
    assert format_outcome(document)[0] == "p 201.2 is the first that is worse by top1 (-0.02); 201.1 is not."
    assert all(judgement != "not_shown" for judgement in (tried.judgement for tried in document.tried))


Found = tuple[str | None, str | None, tuple[str, ...]]


@pytest.mark.parametrize(
    ("answers", "asked", "found"),
    [
        # What is inconclusive is measured with more trials; where it stays so it is named, and not guessed.
        ({"2": ["not_shown", "bad"], "3": ["bad"]}, [("3", 6), ("2", 6), ("2", 12)], ("1", "2", ())),
        ({"2": ["good"], "3": ["not_shown"] * 3, "4": ["bad"], "5": ["bad"]},
         [("5", 6), ("3", 6), ("3", 12), ("3", 24), ("2", 6), ("4", 6)], ("2", None, ("3", "4"))),
        # A last version that is not bad ends it; neighbours need no step.
        ({"2": [], "3": ["good"]}, [("3", 6)], (None, None, ())),
        ({"2": [], "3": ["not_shown"] * 3}, [("3", 6), ("3", 12), ("3", 24)], (None, None, ())),
        ({"2": ["bad"]}, [("2", 6)], ("1", "2", ())),
    ],
)  # fmt: skip
def test_versions_are_asked_for_in_halves(answers, asked, found) -> None:
    seen: list[tuple[str, int]] = []

    def judge(version: str, repetitions: int) -> Judgement:
        seen.append((version, repetitions))
        return answers[version].pop(0)

    assert find_first_bad(["1", *answers], judge, repetitions=6) == found
    assert seen == asked
