"""Every verb that waits for a device can be asked not to: what calls the lock is found in the sources."""

import ast
from pathlib import Path

import click
import pytest

from enginebench.core.errors import DeviceBusy
from enginebench.door import VERBS, program
from enginebench.features.sweep import verb as sweeping
from enginebench.features.sweep.spec import read_spec
from enginebench.models.zoo import DATA_DIR
from enginebench.runs.lock import lock_device
from processes import ROOT
from reporters import Silent

SOURCES = ROOT / "src" / "enginebench"
# What takes the lock of a device, or hands on what does.
LOCKING = {"lock_device", "lock_devices", "run_model", "bench_sides", "tune_model", "measure_peaks", "run_sweep"}
# The file with such a call -> the verbs that come by it.
VERBS_OF = {
    "features/load/verb.py": ("load",),
    "features/roofline/verb.py": ("roofline",),
    "features/sweep/group.py": ("sweep",),
    "features/sweep/verb.py": ("sweep",),
    "features/tune/session.py": ("tune", "sweep"),
    "features/tune/verb.py": ("tune",),
    "features/versions/bisect.py": ("bisect",),
    "runs/lock.py": (),
    "runs/main_job.py": ("run", "sweep"),
    "verbs/accuracy.py": ("accuracy",),
    "verbs/bench.py": ("bench", "bisect"),
    "verbs/build.py": ("build",),
    "verbs/drift.py": ("drift",),
    "verbs/infer.py": ("infer",),
    "verbs/profile.py": ("profile",),
    "verbs/run.py": ("run",),
    "verbs/stages.py": ("stages",),
}


def _calls_lock(path: Path) -> bool:
    calls = (node.func for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call))
    return any(isinstance(called, ast.Name) and called.id in LOCKING for called in calls)


def test_every_file_that_locks_a_device_is_known_with_its_verbs() -> None:
    found = {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py") if _calls_lock(path)}
    assert found == set(VERBS_OF)


@pytest.mark.parametrize("verb", sorted({verb for verbs in VERBS_OF.values() for verb in verbs}))
def test_every_verb_that_waits_can_fail_instead(verb: str) -> None:
    assert verb in VERBS
    command = program.get_command(click.Context(program), verb)
    assert command is not None
    assert "--no-wait" in {name for parameter in command.params for name in parameter.secondary_opts}


def test_a_sweep_that_may_not_wait_ends_before_it_stores_anything(tmp_path: Path) -> None:
    (tmp_path / "one.onnx").write_bytes((DATA_DIR / "digits-mlp.onnx").read_bytes())
    (tmp_path / "s.toml").write_text('engines = ["fake"]\nprocesses = 1\niters = 3\n[[model]]\nname = "one.onnx"\n')
    spec, store = read_spec(tmp_path / "s.toml"), tmp_path / "store"
    with lock_device("cpu"), pytest.raises(DeviceBusy):
        sweeping.run_sweep(spec, str(store), wait=False, reporter=Silent())
    assert not store.exists()
