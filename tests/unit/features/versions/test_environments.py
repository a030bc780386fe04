"""What pip and uv say, in one sentence, as copied from pip 23.2 and 25.3 and uv 0.9; and builds as units of figures."""

import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from enginebench.core.errors import BackendUnavailable, UsageError
from enginebench.core.records import Measurement
from enginebench.features.versions import env as environments
from enginebench.features.versions.env import find_install_error, list_index_versions
from enginebench.runs.child import programs
from enginebench.runs.child.programs import Unfinished, run_group
from enginebench.stats.builds import estimate_between, find_best_build
from enginebench.stats.compare import compare, compare_apart
from enginebench.stats.summary import estimate_p50

NO_VERSION = """\
ERROR: Could not find a version that satisfies the requirement onnxruntime==9.9 (from versions: 1.15.0, 1.15.1, 1.31.1)
ERROR: No matching distribution found for onnxruntime==9.9
"""
NONE_AT_ALL = """\
ERROR: Could not find a version that satisfies the requirement nosuch (from versions: none)
ERROR: No matching distribution found for nosuch
"""
NO_LINE = """\
WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<pip._vendor.urllib3>: Failed to
establish a new connection: [Errno -2] Name or service not known')': /simple/x/
ERROR: Could not find a version that satisfies the requirement x (from versions: none)
"""


@pytest.fixture(autouse=True)
def made_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def fill(place: Path, requirements: object) -> None:
    (place / "bin").mkdir()
    (place / "bin" / "python").touch()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (NO_VERSION, "no version on the package index satisfies onnxruntime==9.9; the newest there are 1.15.0, 1.15.1"),
        (NONE_AT_ALL, "no version on the package index satisfies nosuch; there is none for this system"),
        (NO_LINE, "the package index cannot be reached"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n", "No space left"),
        ("", "no reason was given"),
    ],
)
def test_a_failure_is_one_sentence(said: str, expected: str) -> None:
    told = find_install_error(said)
    assert expected in told and "\n" not in told


def test_versions_are_listed_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "p (1.3)\nAvailable versions: 1.3, 1.2.1, 1.2\n  INSTALLED: 1.2\n"
    monkeypatch.setattr(environments, "_run", lambda command: said)
    assert list_index_versions("p") == ["1.2", "1.2.1", "1.3"]
    monkeypatch.setattr(environments, "_run", lambda command: "nothing of the kind")
    with pytest.raises(BackendUnavailable, match="lists no version of p"):
        list_index_versions("p")


def test_a_half_made_environment_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(place: Path, requirements: object) -> None:
        fill(place, requirements)
        raise BackendUnavailable("the line broke")

    monkeypatch.setattr(environments, "_fill", fail)
    with pytest.raises(BackendUnavailable, match="the line broke"):
        environments.make_environment("half", ["numpy"])
    assert list(environments.environments_folder().iterdir()) == []
    assert environments.list_environments() == ()


def test_what_a_kill_left_hours_ago_is_cleared_away_and_what_another_fills_is_not(monkeypatch) -> None:
    folder, of_the_user = environments.environments_folder(), ".settings"
    for name in (".old-a1b2c3d4", ".new-a1b2c3d4", of_the_user):
        (folder / name / "lib").mkdir(parents=True)
    for name in (".old-a1b2c3d4", of_the_user):
        os.utime(folder / name, (0, 0))
    monkeypatch.setattr(environments, "_fill", lambda place, requirements: (place / "bin").mkdir())
    environments.make_environment("one", ["numpy"])
    assert sorted(path.name for path in folder.iterdir()) == [".new-a1b2c3d4", of_the_user, "one"]


def test_an_environment_that_was_half_removed_is_in_nobodys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(path: Path, **_: object) -> None:
        (path / "bin" / "python").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(environments, "_fill", fill)
    environments.make_environment("one", ["numpy"])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(environments.shutil, "rmtree", stop)
        environments.remove_environment("one")
    assert environments.list_environments() == ()
    environments.make_environment("one", ["numpy"])
    assert [line.name for line in environments.list_environments()] == ["one"]


@pytest.mark.parametrize(
    "printed",
    [
        r"printf '\\221\\377'",  # no UTF-8
        r"printf '\\221\\377' >&2; exit 3",
        "head -c 100000 /dev/zero | tr '\\0' '['",  # deeper than a parser goes
        "echo null",
        'echo \'{"python": 3, "arch": 1, "packages": []}\'',
    ],
)
def test_a_python_that_prints_anything_is_named_in_the_list(printed: str) -> None:
    python = environments.environments_folder() / "odd" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{printed}\n")
    python.chmod(0o755)
    (line,) = environments.list_environments()
    assert line.fault and "odd" in line.fault and "is not a working Python" in line.fault


def test_what_an_installer_prints_need_not_be_utf_8() -> None:
    assert run_group(["sh", "-c", r"printf 'caf\351\n'"], 60).stdout == "caf\ufffd\n"


@pytest.mark.parametrize("stream", ["", ">&2"])
def test_a_program_that_prints_without_end_is_stopped(stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "OUTPUT_LIMIT_BYTES", 1 << 20)
    with pytest.raises(Unfinished, match="printed more than 1 MB"):
        run_group(["sh", "-c", f"yes {stream}"], 600)


def test_a_program_that_leaves_its_output_to_another_is_not_waited_for() -> None:
    with pytest.raises(Unfinished, match=r"did not finish within 0\.2 s"):
        run_group(["sh", "-c", "sleep 600 & exit 0"], 0.2)


@pytest.mark.parametrize("text", ["numpy; rm", "--hash=1;rm"])
def test_what_is_no_requirement_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a requirement"):
        environments.make_environment("x", [text])


def draw(rng: np.random.Generator, builds: int, processes: int, between: float, within: float) -> list[list[float]]:
    """Logs of process medians of each build."""
    effects = between * rng.standard_normal(builds)
    return [list(effect + within * rng.standard_normal(processes)) for effect in effects]


def measure(groups: Sequence[Sequence[float]], scale: float = 1.0) -> list[Measurement]:
    """Process i times build i modulo K, as a run does."""
    turns = [(build, log) for logs in zip(*groups, strict=True) for build, log in enumerate(logs)]
    several, known = len(groups) > 1, {"clock": "host", "blocks": (), "stop_rule": "settled"}
    times = [[round(1e8 * scale * math.exp(log))] * 3 for _, log in turns]
    return [
        Measurement(**known, latency_ns=times[i], trial=i, build=build if several else None)  # type: ignore[arg-type]
        for i, (build, _) in enumerate(turns)
    ]


def test_deviations_are_those_of_the_textbook() -> None:
    """One-way ANOVA by SciPy; the F of the interval's ends gives back the chance that they were made for."""
    groups = draw(np.random.default_rng(3), 5, 4, 0.05, 0.01)
    found, within = estimate_between(groups)
    assert found is not None and within is not None
    f = stats.f_oneway(*groups).statistic
    assert within == pytest.approx(math.sqrt(np.mean([np.var(group, ddof=1) for group in groups])))
    assert found.value == pytest.approx(within * math.sqrt((f - 1) / 4))
    for end, p in ((found.low, 0.975), (found.high, 0.025)):
        expected = within**2 * 4 * (f - stats.f.ppf(p, 4, 15)) / (4 * stats.chi2.ppf(p, 4))
        assert end == pytest.approx(math.sqrt(expected))


def test_the_best_of_builds_that_are_alike_gains_nothing() -> None:
    """Who told by the processes that chose would find 1 % here; half of them tells, and finds none."""
    rng = np.random.default_rng(4)
    drawn = [draw(rng, 8, 4, 0.0, 0.01) for _ in range(300)]
    gains = [find_best_build(groups, [10.0] * 8) for groups in drawn]
    naive = [np.mean(groups) - min(np.mean(group) for group in groups) for groups in drawn]
    assert abs(np.mean([g.gain.value for g in gains if g])) < 0.001 < 0.006 < np.mean(naive)
    assert np.mean([(g.gain.low or 0) <= 0 <= (g.gain.high or 0) for g in gains if g]) >= 0.93


def test_the_best_of_builds_that_differ_gains_and_pays() -> None:
    groups = [[-0.05, -0.05], [0.0, 0.0], [0.05, 0.05]]
    best = find_best_build(groups, [10.0, 10.0, 10.0])
    assert best is not None and best.cost_s == pytest.approx(20)
    assert best.gain.value == pytest.approx(1 - math.exp(-0.05))
    assert best.pays_after == math.ceil(20 / (best.gain.value * 1e-9))
    worse = find_best_build([[0.05, -0.1], [0.0, 0.0], [-0.05, 0.1]], [None, 1.0, 1.0])
    assert worse is not None and worse.cost_s is None and worse.pays_after is None


def test_the_build_is_the_unit_of_a_comparison() -> None:
    """Five processes of each of three builds are three values: no verdict, whatever the processes would say."""
    rng = np.random.default_rng(7)
    base, cand = draw(rng, 3, 5, 0.03, 0.001), draw(rng, 3, 5, 0.03, 0.001)
    found = compare(measure(base), measure(cand, 0.5))
    assert (found.verdict, found.unit) == ("not_shown", "build")
    assert found.ratio is not None and found.ratio.n == 3 and "3 of the 6 builds" in found.reasons[0]
    assert "3 builds of 15 neighbouring trials" in found.ratio.method
    values = [np.mean(b) - np.mean(c) for b, c in zip(base, cand, strict=True)]
    assert found.ratio.value == pytest.approx(2 * math.exp(np.mean(values)), rel=1e-6)
    apart = compare_apart(measure(base), measure(cand, 0.5))
    assert apart.unit == "build" and apart.ratio is not None and apart.ratio.n == 3
    assert estimate_p50(measure(base)).n == 3


def test_one_side_without_builds_is_held_against_the_builds_of_the_other() -> None:
    rng = np.random.default_rng(8)
    built = measure(draw(rng, 6, 2, 0.02, 0.001))
    plain = measure([list(0.001 * rng.standard_normal(12))], 0.5)
    for base, cand in ((built, plain), (plain, built)):
        found = compare(base, cand)
        assert found.ratio is not None and (found.ratio.n, found.unit) == (6, "build")
    assert compare(built, plain).verdict == "faster"
