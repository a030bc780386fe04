"""What a search reports of padding: the time of padded shapes over that of the exact ones."""

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from enginebench.core.records import Artifact, Result, TensorSpec, TrafficCell
from enginebench.features.tune import session
from enginebench.features.tune.proposals import Tried
from enginebench.features.tune.session import describe_padding
from enginebench.features.tune.space import Setting
from samples import make_result

CELLS = tuple(TrafficCell(weight=0.5, shapes={"ids": (1, n)}) for n in (10, 30))
IDS = TensorSpec(name="ids", dtype="int64", shape=("batch", "length"), sizes=(0, 16))
GRAPH = Artifact(
    kind="onnx", precision="fp32", model="m", path="m.onnx", inputs=(IDS,), outputs=(), sha256="", files=()
)


def make_search(**medians_ms: float | None) -> Any:
    """A search that tried these settings, by their padding; None: its outputs were wrong."""
    tried, results = list[Tried](), dict[str, Result]()
    for pad, median_ms in medians_ms.items():
        setting = Setting(engine="ort", options={} if pad == "exact" else {"pad": pad.removeprefix("pad")})
        result = make_result("ort", median_ms=median_ms or 1.0, sd=0.01, seed=len(tried), identity=pad)
        engine = replace(result.engine, options=setting.options, traffic=CELLS)
        results[setting.name] = replace(result, engine=engine, artifacts=(GRAPH,))
        tried.append(Tried(setting=setting, cost=None if median_ms is None else median_ms))
    return SimpleNamespace(tried=tried, track=SimpleNamespace(find_result=lambda s: results.get(s.name)))


def test_padding_is_held_against_the_same_setting_without_it() -> None:
    (line,) = describe_padding(make_search(exact=10.0, largest=15.0))
    assert line.startswith("Padding: ort:pad=largest fp32 1 thread takes 1.")
    assert line.endswith("for 1.50x the input values in 1 of 2 shapes.")


def test_after_one_trial_or_with_no_ratio_to_believe_the_price_is_about_that_of_the_race(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "compare_configurations", lambda *_: SimpleNamespace(ratio=None))
    (line,) = describe_padding(make_search(exact=10.0, largest=15.0))
    assert "takes about 1.5x the time of the exact shapes" in line


def test_the_price_has_the_memory_where_it_is_known() -> None:
    search = make_search(exact=10.0, largest=15.0)
    find, peaks = search.track.find_result, {"": 80_000_000, "largest": 90_000_000}

    def measure(setting: Setting) -> Result:
        result = find(setting)
        peak = peaks[setting.options.get("pad", "")]
        return replace(result, measurements=tuple(replace(m, peak_memory_bytes=peak) for m in result.measurements))

    search.track.find_result = measure
    (line,) = describe_padding(search)
    assert "the time of the exact shapes and 90 MB of memory instead of 80 MB, for 1.50x" in line


def test_the_fastest_are_described_and_the_others_counted() -> None:
    pads = {f"pad{n}": 10.0 + n for n in (6, 5, 4, 3, 2, 1)}
    lines = list(describe_padding(make_search(exact=10.0, **pads)))
    assert len(lines) == 5 and lines[-1] == "2 more with padding took longer."
    assert "pad=1 " in lines[0]


@pytest.mark.parametrize("search", [make_search(largest=15.0), make_search(exact=10.0, largest=None)])
def test_without_both_times_nothing_is_said(search: Any) -> None:
    assert list(describe_padding(search)) == []
