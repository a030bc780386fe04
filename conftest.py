"""What all tests share, and what lets them run side by side: each worker has its CPUs and its folders."""

import gc
import os
import shlex
import shutil
import signal
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import hypothesis
import pytest

# Tests share cores. OpenMP's threads wait by spinning, which on a shared core keeps the one that has the work from it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Those of OpenBLAS, which NumPy starts when it is imported, spin for 2^26 cycles; this is the least that it takes.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
# Of matrices as small as those of a report, two threads take twice the CPU and no less time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# isort: split
from enginebench.core.features import find_plugins, list_features
from enginebench.models.zoo import DATA_DIR
from processes import Cli, run_cli
from shared import make_once

# A shell that starts this session in the background has it ignore Ctrl-C, and every process that a test interrupts
# would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Likewise under nohup: a hang-up that is ignored interrupts nothing.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# What PyTorch compiles, it compiles once for all tests. It reads this when it is imported, and quotes no path.
COMPILER = str(Path(__file__).parent / "tests" / "fakes" / "compiler" / "g++")
if "CXX" not in os.environ and shutil.which("g++") and shlex.quote(COMPILER) == COMPILER:
    os.environ["CXX"] = COMPILER

# No test is judged by how long it took.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

# A worker holds millions of objects that stay: PyTorch, and thousands of tests. Looking for garbage among them took a
# sixth of the collection; children do the same (`runs/child/__main__.py: GC_THRESHOLD`).
gc.set_threshold(100_000, 50, 50)

# The peaks of whoever runs the tests are not theirs to judge rows by.
os.environ["ENGINEBENCH_CEILINGS"] = f"{tempfile.gettempdir()}/enginebench-no-ceilings-{os.getpid()}"  # none is there


def share_cpus() -> None:
    """Leaves this worker of pytest-xdist its share of the CPUs: else all would pin what they time to the same ones.

    Some tests ask an engine for two threads, so a share of one is none.
    """
    index = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if hasattr(os, "sched_setaffinity"):
        share = sorted(os.sched_getaffinity(0))[index::count]
        if len(share) > 1:
            os.sched_setaffinity(0, share)


share_cpus()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what is marked `feature(NAME)` where neither a feature nor a package brings it.

    With PART: where a parameter has it, too.

    What is marked `long` stands where a worker's share begins (worksteal deals equal parts, in order): at the end of
    one it would keep a single worker busy while the others wait.
    """
    for item in items:
        given = repr(vars(item)["callspec"].params) if "callspec" in vars(item) else ""
        for mark in item.iter_markers("feature"):
            name, *parts = mark.args
            if (
                name not in list_features()
                and not find_plugins(f"verb.{name}")
                and (not parts or any(part in given for part in parts))
            ):
                item.add_marker(pytest.mark.skip(reason=f"the feature {name} is not there"))
    long = [item for item in items if item.get_closest_marker("long")]
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    for number, item in enumerate(long):
        items.remove(item)
        items.insert(number % workers * (len(items) // workers) + workers, item)


@pytest.fixture(scope="session", autouse=True)
def own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder for temporary files, where the locks of devices lie: runs wait for nobody outside of this worker."""
    folder = str(tmp_path_factory.mktemp("tmp"))
    compiled = make_once(tmp_path_factory, "compiled", lambda folder: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setenv("ENGINEBENCH_COMPILED", str(compiled))
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture
def tiny_onnx(tmp_path: Path) -> Path:
    """A small graph, alone in a folder whose name has a space and is not ASCII."""
    folder = tmp_path / "mödel ünd Co"
    folder.mkdir()
    path = folder / "tiny.onnx"
    path.write_bytes((DATA_DIR / "digits-mlp.onnx").read_bytes())
    return path


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Runs `enginebench ARGS` as a process of its own in a scratch folder."""
    return partial(run_cli, tmp_path)
