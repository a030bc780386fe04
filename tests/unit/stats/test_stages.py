"""Times of stages to shares, rates and bounds, by hand."""

import pytest

from enginebench.core.records import EngineSpec
from enginebench.stats.stages import STAGES, DeviceTimes, describe_stages

MS = 1_000_000
TIMES = {
    "decode": [4 * MS, 6 * MS], "preprocess": [3 * MS] * 2, "copy_in": [MS] * 2, "compute": [2 * MS] * 2,
    "copy_out": [MS // 2] * 2, "postprocess": [MS // 2] * 2,
}  # fmt: skip


def describe(**kwargs: object) -> object:
    engine = EngineSpec(backend="pytorch", options={"wait": "spin"}, device="cuda:0", precision="fp16", batch=4)
    fields = {
        "model": "m", "engine": engine, "stages_ns": TIMES, "device_ns": {}, "overlapped_per_s": 1000.0, "decoders": 8,
        "lanes": 2, "images": "generated", "image_bytes": [110, 90, 130],
    }  # fmt: skip
    return describe_stages(**(fields | kwargs))  # type: ignore[arg-type]


def test_shares_are_of_the_means_and_rates_of_their_sum() -> None:
    document = describe()
    assert [s.name for s in document.stages] == list(STAGES)
    assert sum(s.share for s in document.stages) == pytest.approx(1.0)
    decode = document.stages[0]
    assert (decode.p50_ms, decode.p99_ms, decode.mean_ms, decode.share) == (5.0, 6.0, 5.0, pytest.approx(5 / 12))
    assert (document.total_p50_ms, document.total_p99_ms) == (12.0, 13.0)
    assert document.serial_per_s == pytest.approx(4 / 0.012)
    assert document.overlap_gain == pytest.approx(1000.0 / (4 / 0.012))
    assert document.image_bytes == {"min": 90, "median": 110, "max": 130}
    assert (document.engine, document.precision, document.batches) == ("pytorch:wait=spin", "fp16", 2)
    assert document.device_times is None


def test_the_device_has_a_clock_of_its_own() -> None:
    found = describe(device_ns={"h2d": [MS, 3 * MS], "compute": [MS], "d2h": [5]})
    assert found.device_times == DeviceTimes(h2d_ms=2.0, compute_ms=1.0, d2h_ms=5e-6)


@pytest.mark.parametrize(("overlapped", "beaten"), [(2000.0, False), (2039.0, False), (2100.0, True)])
def test_a_pipeline_cannot_be_faster_than_its_slower_side(overlapped: float, beaten: bool) -> None:
    found = describe(overlapped_per_s=overlapped, stages_ns={name: times * 184 for name, times in TIMES.items()})
    assert [c.figures for c in found.caveats if c.code == "beats_bound"] == ([{"ratio": 1.05}] if beaten else [])
