"""The memory of a process by phases, against memory that is taken on purpose in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from enginebench.core.records import MemoryPhases
from enginebench.measure import memory

SCRIPT = """
import json, mmap
from msgspec.structs import asdict
from enginebench.measure.memory import MemoryWatch

def take(megabytes):
    block = mmap.mmap(-1, megabytes << 20)  # given back to the system when it is closed, unlike the heap's
    block.write(b"1" * (megabytes << 20))
    return block

watch = MemoryWatch()
watch.end("before")
take(1).close()
watch.end("import")
take(200).close()
watch.end("load")
kept = take(50)
watch.end("first_run")
watch.end("steady")
print(json.dumps({**asdict(watch.describe()), "peak": watch.peak_bytes}))
"""
MB = 1 << 20


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_each_phase_has_its_own_peak() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    before = found["import_bytes"] - MB
    # Writing a block holds it twice: the bytes that are written, and where they go.
    assert found["load_bytes"] - before == pytest.approx(400 * MB, rel=0.05)
    assert found["first_run_bytes"] - before == pytest.approx(100 * MB, rel=0.05)
    assert found["steady_bytes"] - before == pytest.approx(50 * MB, rel=0.05)
    assert found["peak"] == found["load_bytes"]
    assert 50 * MB < found["proportional_bytes"] <= found["steady_bytes"]


def test_a_peak_that_cannot_be_set_back_is_not_that_of_a_later_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "reset_peak_memory", lambda: False)
    watch = memory.MemoryWatch()
    for phase in ("before", "import", "load"):
        watch.end(phase)
    phases = watch.describe()
    assert phases.before_bytes == watch.peak_bytes and phases.import_bytes is phases.load_bytes is None


def test_a_system_that_reports_nothing_has_no_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "peak_memory_bytes", lambda: None)
    monkeypatch.setattr(memory, "read_proportional_memory", lambda: None)
    watch = memory.MemoryWatch()
    watch.end("before")
    assert watch.describe() == MemoryPhases() and watch.peak_bytes is None
