"""Layers of any engine: shares, groups, and what is left over."""

import pytest
from msgspec.structs import replace

from enginebench.core.caveats import make_caveat
from enginebench.core.records import EngineSpec, LayerProfile, LayerTime
from enginebench.report.layer_table import describe_times
from enginebench.stats.profile import describe_profile, explain_remainder

LAYERS = (
    LayerTime(name="head", mean_ns=1e6, median_ns=0.9e6, precision="fp32", kind="Gemm"),
    LayerTime(name="stem", mean_ns=6e6, median_ns=6e6, precision="int8", kind="Conv"),
    LayerTime(name="cast", mean_ns=1e6, precision="reorder", kind="Cast"),
    LayerTime(name="shape", mean_ns=0.0, precision=None),
)


def describe(end_to_end_ns: float = 10e6):  # type: ignore[no-untyped-def]
    return describe_profile(
        model="m",
        engine=EngineSpec(backend="ort", precision="int8", recipe="cpu", batch=4),
        profile=LayerProfile(layers=LAYERS, runs=5, profiler="a profiler", notes=("a note",)),
        end_to_end_ns=end_to_end_ns,
        clock="host",
    )


def test_layers_are_slowest_first_with_shares_of_their_sum() -> None:
    document = describe()
    assert [layer.name for layer in document.layers] == ["stem", "head", "cast", "shape"]
    assert [layer.share for layer in document.layers] == [0.75, 0.125, 0.125, 0.0]
    assert (document.layers[0].total_ms, document.layers[0].average_ms, document.layers[1].median_ms) == (30, 6, 0.9)
    assert (document.precision, document.batch, document.count) == ("int8@cpu", 4, 5)


def test_groups_hold_every_layer() -> None:
    document = describe()
    assert {name: group.layers for name, group in document.by_precision.items()} == {
        "int8": 1, "fp32": 1, "reorder": 1, "unknown": 1,
    }  # fmt: skip
    assert next(iter(document.by_type)) == "Conv" and document.by_type["unknown"].share == 0
    assert sum(group.share or 0 for group in document.by_type.values()) == pytest.approx(1)


def test_what_no_layer_explains_is_said_and_an_excess_is_not_hidden() -> None:
    assert (describe().remainder_ms, describe().notes) == (2, ("a note",))
    document = describe(end_to_end_ns=4e6)
    assert document.remainder_ms == -4 and "2.00 times" in document.notes[-1]
    assert explain_remainder(10.1, 10.0) == [] and explain_remainder(1.0, 0.0) != []


def test_what_no_layer_explains_of_a_row_that_the_host_holds_up_is_its_waiting() -> None:
    bound = replace(describe(), caveats=(make_caveat("enqueue_bound.share", share=0.99),))
    said, told = (" ".join(describe_times(document, 9)) for document in (describe(), bound))
    assert said.endswith("lie in no layer")
    assert told == f"{said}: the GPU waits for the host"


def test_layers_without_time_have_no_shares() -> None:
    profile = LayerProfile(layers=(LAYERS[3],), runs=1, profiler="p")
    document = describe_profile(
        model="m", engine=EngineSpec(backend="fake"), profile=profile, end_to_end_ns=1.0, clock="host"
    )
    assert document.layers[0].share is None and document.by_precision["unknown"].share is None
