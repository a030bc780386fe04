"""Validity: each doubt alone, with advice; thresholds at their edges."""

from typing import Any

import pytest
from msgspec.structs import replace

from enginebench.core.caveats import make_caveat
from enginebench.core.records import Block, Mark, Measurement
from enginebench.stats.validity import judge


def make(n: int = 100, *, marked: int = 0, mark: Mark = "foreign_cpu", **more: Any) -> Measurement:
    blocks = (Block(start=0, stop=marked, duration_ns=1, marks=(mark,)),) if marked else ()
    fields: dict[str, Any] = {"clock": "host", "warmup_settled": True, "reference_ns": [1000], "blocks": blocks} | more
    return Measurement(latency_ns=[1_000_000] * n, stop_rule="settled", **fields)


def codes(measurements: list[Measurement]) -> tuple[str, list[str]]:
    validity, caveats = judge(measurements)
    assert all(c.advice for c in caveats)
    return validity, [c.code for c in caveats]


def test_clean_row_has_no_doubts() -> None:
    assert codes([make()] * 10) == ("valid", [])


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        (1, ("valid", [])),
        (20, ("valid", ["x"])),
        (21, ("suspect", ["x"])),
        (50, ("suspect", ["x"])),
        (51, ("invalid", ["x"])),
        (100, ("invalid", ["x"])),
    ],
)
@pytest.mark.parametrize(
    ("mark", "code"), [("foreign_cpu", "foreign_cpu"), ("low_clock", "throttled"), ("cold_start", "not_settled")]
)
def test_marked_samples(marked: int, expected: tuple[str, list[str]], mark: Mark, code: str) -> None:
    validity, found = codes([make(marked=marked, mark=mark)] * 10)
    assert (validity, found) == (expected[0], [code for _ in expected[1]])


@pytest.mark.parametrize(
    ("processes", "n", "expected"),
    [
        (1, 368, ["single_process"]),
        (1, 367, ["single_process", "too_few_samples"]),
        (5, 100, ["too_few_samples"]),
        (6, 100, []),
        (6, 61, ["too_few_samples"]),
    ],
)
def test_counts(processes: int, n: int, expected: list[str]) -> None:
    assert codes([make(n)] * processes) == ("valid", expected)


@pytest.mark.parametrize(("overhead_ns", "expected"), [(50_000, []), (50_001, ["call_overhead"]), (None, [])])
def test_call_overhead_above_five_per_cent(overhead_ns: float | None, expected: list[str]) -> None:
    assert codes([make(call_overhead_ns=overhead_ns)] * 10)[1] == expected


@pytest.mark.parametrize(("unsettled", "validity"), [(1, "valid"), (2, "valid"), (3, "suspect")])
def test_warmup_that_did_not_settle(unsettled: int, validity: str) -> None:
    side = [make(warmup_settled=False)] * unsettled + [make()] * (10 - unsettled)
    assert codes(side) == (validity, ["not_settled"])


def test_speed_that_changed_between_processes() -> None:
    assert codes([make()] * 9 + [make(reference_ns=[1199])])[0] == "valid"
    assert codes([make()] * 9 + [make(reference_ns=[1201])]) == ("suspect", ["clock_drift"])
    modelled = [make(clock="modelled")] * 9 + [make(clock="modelled", reference_ns=[1201])]
    assert "clock_drift" not in codes(modelled)[1]
    clocks = [(Block(start=0, stop=1, duration_ns=1, sm_clock_mhz=mhz),) for mhz in (1980, 1500)]
    assert codes([make(blocks=clocks[0])] * 9 + [make(blocks=clocks[1])]) == ("suspect", ["clock_drift"])


def test_no_samples_are_invalid() -> None:
    assert codes([])[0] == "invalid"
    assert codes([make(0)]) == ("invalid", ["too_few_samples"])


def test_a_neighbour_that_takes_little_is_a_doubt_and_one_that_takes_much_spoils_the_row() -> None:
    def judged(cores: float) -> str:
        block = Block(start=0, stop=400, duration_ns=10**9, foreign_cpu_cores=cores, marks=("foreign_cpu",))
        each = [
            Measurement(clock="host", latency_ns=[2_500_000] * 400, blocks=(block,), stop_rule="settled", repetition=i)
            for i in range(10)
        ]
        return judge(each)[0]

    assert (judged(0.3), judged(0.6)) == ("suspect", "invalid")


def test_a_single_process_that_ran_out_of_time_says_so() -> None:
    block = Block(start=0, stop=400, duration_ns=10**9, foreign_cpu_cores=0.0)
    one = Measurement(clock="host", latency_ns=[2_500_000] * 400, blocks=(block,), stop_rule="time_limit")
    assert [c.code for c in judge([one])[1]] == ["single_process", "not_settled"]


@pytest.mark.parametrize(("enqueue_ns", "doubted"), [(790, False), (810, True)])
def test_a_gpu_that_waits_for_the_host_is_a_doubt(enqueue_ns: int, doubted: bool) -> None:
    n = 1000
    measured = Measurement(
        clock="host",
        latency_ns=[1100] * n,
        blocks=(Block(start=0, stop=n, duration_ns=10**8),),
        stop_rule="settled",
        device_ns=[1000] * n,
        enqueue_ns=[enqueue_ns] * n,
    )
    _, doubts = judge([measured])
    assert ("enqueue_bound" in {caveat.code for caveat in doubts}) is doubted


@pytest.mark.parametrize(
    ("odd_us", "processes", "on_gpu", "doubted"),
    [
        (1019, 10, True, False),
        (1021, 10, True, True),
        (980, 10, True, True),
        (1021, 5, True, False),
        (1021, 10, False, False),
    ],
)
def test_the_same_engine_twice_agrees_on_a_gpu(odd_us: int, processes: int, on_gpu: bool, doubted: bool) -> None:
    def measure(repetition: int) -> Measurement:
        latency_ns = [odd_us * 1000 if repetition % 2 else 1_000_000] * 100
        more = {"device_ns": latency_ns} if on_gpu else {}
        return replace(make(repetition=repetition, **more), latency_ns=latency_ns)

    validity, found = codes([measure(r) for r in range(processes)])
    assert (validity == "suspect") is doubted
    assert ("uneven_processes" in found) is doubted


@pytest.mark.parametrize(
    ("device_ns", "enqueue_ns", "drifts"),
    [(950_000, 10_000, False), (800_000, 10_000, True), (950_000, 900_000, True), (None, None, True)],
)
def test_the_speed_of_the_host_counts_where_the_host_is_timed(
    device_ns: int | None, enqueue_ns: int | None, drifts: bool
) -> None:
    def measure(reference_ns: int) -> Measurement:
        device = None if device_ns is None else [device_ns] * 100
        enqueue = None if enqueue_ns is None else [enqueue_ns] * 100
        return make(reference_ns=[reference_ns], device_ns=device, enqueue_ns=enqueue)

    found = codes([measure(1000)] * 5 + [measure(1300)] * 5)[1]
    assert ("clock_drift" in found) is drifts


@pytest.mark.parametrize(("hidden", "expected"), [(5, "valid"), (6, "invalid"), (10, "invalid")])
def test_times_of_a_part_of_the_work_are_invalid(hidden: int, expected: str) -> None:
    lazy = make(caveats=(make_caveat("work_outside_run", share=0.98),))
    assert judge([lazy] * hidden + [make()] * (10 - hidden))[0] == expected
