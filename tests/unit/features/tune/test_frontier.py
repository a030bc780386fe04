"""The greedy line: what saves most time for its noise is quantized, what loses time is not."""

import itertools
import math

import pytest

from enginebench.core.records import LayerTime
from enginebench.features.tune.frontier import Part, cut_line, fill_parts, find_home, sum_noise, time_groups

PARTS = (
    Part(name="slow", noise=0.001, saved_ns=-50.0),
    Part(name="noisy", noise=0.4, saved_ns=100.0),
    Part(name="cheap", noise=0.01, saved_ns=1.0),
    Part(name="good", noise=0.01, saved_ns=100.0),
    Part(name="unknown", noise=None, saved_ns=100.0),
)


def test_what_is_unknown_or_loses_time_stays_and_the_rest_fills_the_limit():
    assert [part.name for part in fill_parts(PARTS, 1.0)] == ["noisy", "cheap", "good"]
    assert [part.name for part in fill_parts(PARTS, 0.02)] == ["cheap", "good"]
    assert fill_parts(PARTS, 0.001) == []


def test_one_that_does_not_fit_is_passed_over_for_the_next():
    large = Part(name="large", noise=0.2, saved_ns=10000.0)
    assert [part.name for part in fill_parts((large, *PARTS), 0.215)] == ["large", "good"]
    assert [part.name for part in fill_parts((large, *PARTS), 0.1)] == ["cheap", "good"]


def test_without_times_the_noise_alone_decides():
    parts = [Part(name=part.name, noise=part.noise) for part in PARTS]
    assert [part.name for part in fill_parts(parts, 0.012)] == ["slow", "cheap"]


def test_cuts_lie_on_both_sides_of_the_limit_with_the_losers_and_without():
    cuts = cut_line(PARTS, 0.1, 8)
    excluded = [set(cut.excluded) for cut in cuts]
    assert {"slow", "unknown"} in [{"unknown", "slow"} & out for out in excluded]
    assert {"unknown", "noisy"} in excluded  # all that is quiet, whatever its time
    assert all("unknown" in out for out in excluded)
    assert [cut.noise for cut in cuts] == sorted((cut.noise for cut in cuts), reverse=True)
    for cut in cuts:
        assert cut.noise == pytest.approx(sum_noise([part for part in PARTS if part.name not in cut.excluded]))


def test_the_line_has_neither_end():
    fine = [Part(name=str(i), noise=1e-6, saved_ns=10.0) for i in range(10)]
    assert all(0 < len(cut.excluded) < 10 for cut in cut_line(fine, 1e-5, 4))
    assert cut_line(fine[:1], 1.0, 4) == [] == cut_line([], 1.0, 4)


def test_without_a_limit_the_noise_is_halved_again_and_again():
    parts = [Part(name=str(i), noise=2.0**-i, saved_ns=1.0) for i in range(12)]
    noises = [cut.noise for cut in cut_line(parts, math.inf, 5)]
    assert len(noises) == 4 and all(after < before for before, after in itertools.pairwise(noises))


def test_noise_that_was_not_measured_adds_nothing_to_the_sum():
    assert sum_noise(PARTS) == pytest.approx(0.421)


@pytest.mark.parametrize(
    ("layer", "group"),
    [
        ("conv_1", "g"),
        ("conv_1_token_12", "g"),
        ("t_nchwc", "g"),
        ("t_nchwc_token_3", "g"),
        ("t_QuantizeLinear", "g"),
        ("t_DequantizeLinear_token_3", "g"),
        ("conv_1/WithoutBiases", "g"),
        ("conv_12", None),
        ("ReorderInput_token_4", None),
    ],
)
def test_layers_are_joined_by_the_names_that_engines_give_them(layer, group):
    assert find_home(layer, {"conv_1": "g", "t": "g"}) == group


def test_time_of_groups_and_what_belongs_to_none():
    layers = [
        LayerTime(name=name, mean_ns=time) for name, time in (("a", 30.0), ("a_token_1", 10.0), ("reorder", 60.0))
    ]
    assert time_groups(layers, {"a": "g"}) == ({"g": 40.0}, 0.6)
    assert time_groups([], {}) == ({}, 0.0)
