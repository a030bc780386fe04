"""The break-even: what a process costs by its number of calls, and which figures are not sure."""

from types import SimpleNamespace
from typing import Any

import pytest

from enginebench.report.run import life
from enginebench.stats.life import LifeCosts

FAST_START = LifeCosts(id="a", build_s=0.0, start_s=2.0, call_s=0.5, call_low_s=0.4, call_high_s=0.6)
NOTE = "?: the intervals of the times of a call do not show it."


def test_a_line_has_the_start_and_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "list_costs", lambda rows: [FAST_START])
    document: Any = SimpleNamespace(for_calls=10, rows=())
    seconds = {point["calls"]: point["seconds"] for point in life.follow_lives(document, {"a": "engine a"})}
    assert (seconds[1], seconds[10]) == (2.5, 7.0)


@pytest.mark.parametrize(("high_s", "noted"), [(0.3, False), (0.5, True)], ids=["apart", "overlapping"])
def test_a_lead_that_the_intervals_do_not_show_has_a_note(
    monkeypatch: pytest.MonkeyPatch, high_s: float, noted: bool
) -> None:
    fast_calls = LifeCosts(id="b", build_s=0.0, start_s=9.0, call_s=0.25, call_low_s=0.2, call_high_s=high_s)
    monkeypatch.setattr(life, "list_costs", lambda rows: [FAST_START, fast_calls])
    times = SimpleNamespace(cold_start_s=None)
    rows: Any = [SimpleNamespace(id=name, times=times, p50_ms=1.0) for name in "ab"]
    parts = life._make_break_even(rows, {"a": "engine a", "b": "engine b"})
    assert (NOTE in str(parts)) is noted
