"""Which engines a mix of requests is measured with."""

import pytest

from enginebench.runs.traffic import read_traffic
from enginebench.verbs.requests import split_engines


@pytest.mark.parametrize(
    ("traffic", "options", "measured"),
    [
        ("batch=1:0.7,batch=8:0.3", {}, [{"sessions": "one"}, {"sessions": "each"}]),
        ("batch=1:0.7,batch=8:0.3", {"sessions": "each"}, [{"sessions": "each"}]),
        ("batch=4:1", {}, [{}]),
        ("batch=4:0.5,batch=4:0.5", {}, [{}]),
        ("batch=4:1", {"sessions": "each"}, [{"sessions": "each"}]),
    ],
)
def test_one_engine_for_all_shapes_and_one_for_each_are_two_where_there_are_several(
    traffic: str, options: dict[str, str], measured: list[dict[str, str]]
) -> None:
    engines = split_engines([("ort", options)], read_traffic(traffic), "cpu")
    assert [chosen for _, chosen in engines] == measured
