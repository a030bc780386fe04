"""The pytest plug-in: the fixture `enginebench`, whose assertions are those of `run`, `bench` and `diff`.

Pytest imports this file whenever it starts, so it imports next to nothing of EngineBench until the fixture is used.
"""

from __future__ import annotations

import itertools
import os
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from enginebench.core.limits import MARGIN

if TYPE_CHECKING:
    from enginebench.options import Model, PathLike, Side
    from enginebench.report.run.rows import Row
    from enginebench.stats.diff import DiffRow
    from enginebench.verbs.benches import Bench
    from enginebench.verbs.runs import Run

# The verdicts that an assertion can pass on; see `core.records.Verdict`.
PASSES = ("faster", "equivalent")
# Outputs do not depend on how often a model was timed: one call in one trial is enough for them.
OUTPUTS_ALONE: dict[str, Any] = {"processes": 1, "iters": 1, "warmup": 0}


class Inconclusive(UserWarning):
    """Nothing was shown, for or against an assertion; with --enginebench-strict it is a failure instead."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plug-in."""
    group = parser.getgroup("enginebench")
    group.addoption(
        "--enginebench-update",
        action="store_true",
        help="store the baselines that assert_not_slower compares with, instead of comparing",
    )
    group.addoption(
        "--enginebench-strict", action="store_true", help="fail where an assertion is inconclusive, instead of warning"
    )


@pytest.fixture(scope="session")
def enginebench(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> ModelAssertions:
    """Return assertions on the outputs, the speed and the precision of a model."""
    options = pytestconfig.option
    return ModelAssertions(
        tmp_path_factory.mktemp("enginebench"), update=options.enginebench_update, strict=options.enginebench_strict
    )


class ModelAssertions:
    """Assertions on a model; each measures in processes of its own, and waits while another one has the device.

    `model`, `engine`, `precision` and further options are those of `enginebench.run` or, for `assert_not_slower`, of
    `enginebench.bench`. A failure is an AssertionError with the table.
    """

    def __init__(self, folder: Path, *, update: bool = False, strict: bool = False) -> None:
        self._folders = (folder / str(number) for number in itertools.count())
        self._update, self._strict, self._stored = update, strict, set[Path]()

    def assert_same_outputs(self, model: Model, *, engine: str = "ort", precision: str = "fp32", **options: Any) -> Run:
        """Fail if the outputs differ from those of the model in FP32 by more than the limits.

        Args:
            model: as `run` takes it.
            engine: ENGINE[:key=value,...].
            precision: that the engine runs in.
            options: of `run`, such as `data`, `inputs` and `limit`.
        """
        __tracebackhide__ = True
        run, row = self._check_outputs(model, engine, precision, options)
        what = f"the outputs of {engine} {precision}"
        if row.outputs == "changed":
            raise AssertionError(f"{what} changed: {row.outputs_reason}\n\n{run!r}")
        if row.outputs == "not_judged" or row.is_reference:
            why = row.outputs_reason or "there is nothing to compare them with"
            self._leave_open(f"{what} were not judged: {why}", run)
        return run

    def assert_precision(
        self, model: Model, precision: str, *, engine: str = "ort", at_least: float = 0.9, **options: Any
    ) -> Run:
        """Fail if less of the time ran in a precision than `at_least`, by the runtime's own record.

        Args:
            model: as `run` takes it.
            precision: that is requested, and must run.
            engine: ENGINE[:key=value,...].
            at_least: a fraction of the time.
            options: of `run`, such as `data` and `inputs`.
        """
        __tracebackhide__ = True
        if not 0 < at_least <= 1:
            raise ValueError(f"at_least={at_least!r}: expected a fraction above 0, at most 1")
        run, row = self._check_outputs(model, engine, precision, options)
        name = precision.partition("@")[0]
        if row.effective_precision is None:
            self._leave_open(f"{engine} keeps no record of the precision that ran", run)
        elif (share := row.effective_precision.get(name, 0.0)) < at_least:
            message = f"{engine} ran {share:.0%} of the time in {name}; expected at least {at_least:.0%}"
            raise AssertionError(f"{message}\n\n{run!r}")
        return run

    def assert_not_slower(
        self,
        model: Model,
        *,
        than: Side,
        engine: str = "ort",
        precision: str = "fp32",
        margin: float = MARGIN,
        **options: Any,
    ) -> Bench:
        """Fail if the model is slower than the other side, or if its outputs differ from those of that side.

        A side is measured now, interleaved with the model. A baseline was measured before: its outputs are not
        compared, and where the machine is another one, or in another state, the assertion is inconclusive.

        Args:
            model: as `bench` takes it.
            than: ENGINE@TARGET, ENGINE, the file of a stored result, a bundle, or the folder of a baseline, which
                --enginebench-update stores.
            engine: ENGINE[:key=value,...].
            precision: that the engine runs in; of `than`, too, if it names an engine.
            margin: relative difference that matters.
            options: of `bench`, such as `inputs`, `processes` and `time_limit`.
        """
        __tracebackhide__ = True
        from enginebench import bench, save_baseline

        settings = {"precision": precision, "margin": margin, "progress": False, "out": next(self._folders), **options}
        if isinstance(than, tuple) or is_side(than):
            done = bench(model, engine, against=than, **settings)
            assert done.document.comparison is not None
            self._decide(done.document.comparison, done, repr(done))
            return done
        baseline = Path(than).absolute()
        check_baseline(baseline)
        if not self._update and not (baseline / "run.json").is_file():
            raise AssertionError(f"there is no baseline in {baseline}; store it with: pytest --enginebench-update")
        done = bench(model, engine, **settings)
        if self._update:
            if baseline in self._stored:
                raise AssertionError(f"two assertions would store their baselines in {baseline}; give each its own")
            self._stored.add(baseline)
            save_baseline(baseline.name, done.folder, store=baseline.parent, force=True)
        else:
            self._compare(baseline, done, margin)
        return done

    def _check_outputs(self, model: Model, engine: str, precision: str, options: dict[str, Any]) -> tuple[Run, Row]:
        """Return the run of one configuration, and its row: further ones are what `run` proposes instead of it."""
        from enginebench import run

        settings = {**OUTPUTS_ALONE, "progress": False, "out": next(self._folders), **options}
        done = run(model, engines=[engine], precisions=[precision], **settings)
        (row,) = (row for row in done.rows if row.id == done.results[0].id)
        return done, row

    def _compare(self, baseline: Path, done: Bench, margin: float) -> None:
        __tracebackhide__ = True
        from enginebench import diff
        from enginebench.report.run.diff import list_diff
        from enginebench.report.terminal import format_text

        document = diff(os.fspath(baseline), done.folder, margin=margin)
        for row in document.rows:
            self._decide(row, done, f"{format_text(list_diff(document))}\n\n{done!r}", stored=True)

    def _decide(self, comparison: DiffRow, done: Bench, table: str, *, stored: bool = False) -> None:
        """Pass, fail or warn by the verdict; what was stored on another machine can only be inconclusive."""
        __tracebackhide__ = True
        open_ratio = comparison.outputs_agree is not False and (stored or comparison.ratio_validity == "not_given")
        if comparison.verdict == "not_shown" or (comparison.verdict == "not_comparable" and open_ratio):
            self._leave_open("; ".join(comparison.reasons) or "the times show no difference", done, table)
        elif comparison.verdict not in PASSES or comparison.failures:
            why = "; ".join(dict.fromkeys((*comparison.failures, *comparison.reasons)))
            raise AssertionError(f"{done.row.id}: {why}\n\n{table}")

    def _leave_open(self, why: str, done: Run | Bench, table: str = "") -> None:
        __tracebackhide__ = True
        if self._strict:
            raise AssertionError(f"inconclusive: {why}\n\n{table or repr(done)}")
        warnings.warn(Inconclusive(f"inconclusive: {why}"), stacklevel=4)


def is_side(than: PathLike) -> bool:
    """Whether a text names a side that can be measured now, not the folder of a baseline."""
    from enginebench.core.store import is_bundle
    from enginebench.engines.registry import has_engine

    text = os.fspath(than)
    return (
        bool(re.match(r"[\w-]+(:[^/]*)?@", text))
        or has_engine(text.partition(":")[0])
        or (Path(text).is_file() or is_bundle(Path(text)))
    )


def check_baseline(folder: Path) -> None:
    """Refuse a folder with anything but a baseline: an update would replace it."""
    from enginebench.core.errors import UsageError
    from enginebench.core.names import slug

    if slug(folder.name) != folder.name:
        raise UsageError(f"than: {folder.name!r}: a baseline is named by lower-case letters, digits, dots and hyphens")
    other = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else [folder.name] * folder.exists()
    if other := [name for name in other if name not in ("run.json", "rows")]:
        raise UsageError(f"than: {folder} is neither a side nor a baseline: it has {', '.join(other[:3])}")
