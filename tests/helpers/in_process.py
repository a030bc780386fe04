"""Children that do their jobs in this process: the real work, without the price of a process for each."""

import contextlib
import gc
import importlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Generic
from unittest import mock

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from enginebench.core.errors import ChildFailed, EngineBenchError
from enginebench.door import main
from enginebench.measure import loop
from enginebench.runs import building, campaign, trials
from enginebench.runs.child import isolate
from enginebench.runs.child.jobs import Job, MeasureJob, PreloadJob, PrepareJob, Response
from enginebench.runs.child.perform import measure as perform_measure
from enginebench.runs.targets import sources
from processes import UNDRAWN, Cli, environment

# They hold Child by its name: first imported while a test has its stand-in, they would keep that for all later tests.
for _holder in ("enginebench.features.load.probe", "enginebench.runs.child.perform.beside"):
    with contextlib.suppress(ModuleNotFoundError):  # of a feature that was lifted out
        importlib.import_module(_holder)


class Children:
    """All children of a test: `jobs` as they were asked for, `turns` as (seed of the fake engine, trial, order).

    `before` is called with each job ahead of it: what it raises is the child's failure.
    """

    def __init__(self) -> None:
        self.jobs: list[Job[Any] | PreloadJob] = []
        self.environments: list[Mapping[str, str]] = []
        self.closed = 0
        self.before: Callable[[Job[Any]], None] = lambda job: None

    @property
    def turns(self) -> list[tuple[str, int, int]]:
        return [(j.engine.options.get("seed", "0"), j.trial, j.order) for j in self.of(MeasureJob)]

    def of(self, kind: type[Any]) -> list[Any]:
        return [job for job in self.jobs if isinstance(job, kind)]

    def fail_in(self, seed: str, trial: int, error: BaseException) -> None:
        """Makes one trial of one row fail."""

        def before(job: Any) -> None:
            if isinstance(job, MeasureJob) and (job.engine.options["seed"], job.trial) == (seed, trial):
                raise error

        self.before = before

    def start(self, environment: Mapping[str, str] | None = None, place: object = None) -> "InProcess":
        self.environments.append(environment or {})
        return InProcess(self, environment or {})


class InProcess:
    """What stands in for one `Child`."""

    alive = True

    def __init__(self, family: Children, environment: Mapping[str, str]) -> None:
        self.kept: Any = None
        self._family, self._environment = family, environment

    def __enter__(self) -> "InProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._family.closed += 1

    def ask_to_preload(self, job: PreloadJob) -> None:
        self._family.jobs.append(job)

    def wait_until_ready(self, deadline: float) -> None: ...

    def start(self, job: Job[Response], **_: object) -> "InProcessWork[Response]":
        return InProcessWork(self, job)

    def perform(self, job: Job[Response], on_note: Callable[[str], None] = lambda text: None, **_: object) -> Response:
        self._family.jobs.append(job)
        try:
            self._family.before(job)
            with mock.patch.dict(os.environ, self._environment):
                return unpin_job(job).perform(on_note, self._keep)
        except EngineBenchError:
            raise
        except Exception as error:  # as a child answers
            raise ChildFailed(f"{type(error).__name__}: {error}", "its last words") from error

    def _keep(self, answer: object) -> None:
        self.kept = answer


class InProcessWork(Generic[Response]):
    """What stands in for one `Work`: it is done when it is asked for."""

    sure = True

    def __init__(self, child: InProcess, job: Job[Response]) -> None:
        self._child, self._job = child, job

    def restart_clock(self) -> None: ...

    def finish(self) -> Response:
        return self._child.perform(self._job)


def unpin_job(job: Job[Response]) -> Job[Response]:
    """The same job without binding this process to a core; of `fake`, on the CPU, which it needs."""
    if isinstance(job, MeasureJob):
        job = replace(job, pin=False)
    if isinstance(job, MeasureJob | PrepareJob) and job.engine.backend == "fake":
        return replace(job, engine=replace(job.engine, device="cpu"))
    return job


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Iterator[Children]:
    """Every child of a run is one of these; few labelled pictures and few runs of the reference are enough for it."""
    family = Children()
    for module in (isolate, building, trials, sources):
        monkeypatch.setattr(module, "Child", family.start)
    monkeypatch.setattr(campaign, "count_at_once", lambda machine: 1)  # whatever the machine of the test could do
    monkeypatch.setattr(sources, "LABELLED_ENTRIES", 24)
    monkeypatch.setattr(perform_measure, "REFERENCE_REPEATS", 1)
    gc.freeze()  # before a measurement the garbage is collected, and this process holds far more than a child
    monkeypatch.setattr(loop, "holds_frozen", lambda: True)  # as it is now; to count them takes as long as collecting
    yield family
    gc.unfreeze()


def run_here(
    folder: Path, *args: object, env: Mapping[str, str] | None = None, code: int | None = None
) -> subprocess.CompletedProcess[str]:
    """`enginebench ARGS` in this process, as if started in `folder`; it must end with `code` where one is given."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    runner = CliRunner()
    variables = {**environment(folder), **(env or {})}
    # What a command sets for its own children (`--trtexec`) ends with it.
    with pytest.MonkeyPatch.context() as patch, mock.patch.dict(os.environ), runner.isolation(env=variables) as streams:
        patch.chdir(folder)
        if str(UNDRAWN) in variables["PYTHONPATH"]:
            patch.setitem(sys.modules, "vl_convert", None)
        patch.setattr(tempfile, "tempdir", str(folder))
        try:
            main([str(arg) for arg in args])
        except SystemExit as end:
            ended = int(end.code or 0)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            # The next folder may have a module of the same name, and this folder goes when its test has passed.
            for name, module in list(sys.modules.items()):
                if str(getattr(module, "__file__", None)).startswith(str(folder)):
                    del sys.modules[name]
        texts = [stream.getvalue().decode() for stream in streams[:2]]
    assert code in (None, ended), texts[1]
    return subprocess.CompletedProcess(args, ended, *texts)


@pytest.fixture
def cli(children: Children, tmp_path: Path) -> Cli:
    """Runs `enginebench ARGS` in this process, its children too, in a scratch folder."""
    return partial(run_here, tmp_path)
