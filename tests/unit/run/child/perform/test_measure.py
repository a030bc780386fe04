"""What a watch on a GPU adds to a measurement, with a watch that the test plays."""

from dataclasses import dataclass
from typing import Any

import pytest

from enginebench.core.errors import UsageError
from enginebench.core.records import Artifact, EngineSpec, Measurement, MeasureSpec
from enginebench.measure.nvml import HIDDEN_PROCESSES, NO_TELEMETRY
from enginebench.runs.child.jobs import MeasureJob
from enginebench.runs.child.perform.measure import check_cache
from enginebench.runs.child.watching import add_telemetry

JOB = MeasureJob(
    model="toy",
    artifact=Artifact(kind="onnx", model="toy", path="toy.onnx", sha256="0" * 64, files=(), inputs=(), outputs=()),
    engine=EngineSpec(backend="fake", device="cuda:1"),
    measure=MeasureSpec(),
    out_dir="",
    repetition=0,
    order=0,
)


@dataclass
class FakeWatch:
    hides_processes: bool

    def energy_per_image(self, images: int) -> tuple[float, float]:
        return 1000 / images, 1.0

    def peak_memory_bytes(self) -> int:
        return 7


def add(gpu: Any) -> Measurement:
    measured = Measurement(clock="host", latency_ns=[1_000] * 10, blocks=(), stop_rule="settled")
    return add_telemetry(measured, JOB.engine, JOB.measure, gpu)


@pytest.mark.parametrize(("hidden", "caveats"), [(False, ()), (True, (HIDDEN_PROCESSES,))])
def test_a_row_says_that_nobody_could_see_others(hidden: bool, caveats: tuple[object, ...]) -> None:
    measured = add(FakeWatch(hides_processes=hidden))
    assert (measured.peak_device_memory_bytes, measured.energy_mj) == (7, 100.0)
    assert measured.caveats == caveats


def test_an_engine_that_times_itself_has_no_cold_rows() -> None:
    check_cache(JOB.engine, MeasureSpec())
    with pytest.raises(UsageError, match="fake times itself and cannot empty a cache"):
        check_cache(JOB.engine, MeasureSpec(cache="cold"))


def test_a_row_without_a_watch_says_so() -> None:
    assert add(None).caveats == (NO_TELEMETRY,)
