"""The chart bundle: made once, read from the cache after that, never half."""

from pathlib import Path

import pytest
import vl_convert

from enginebench.core.store import find_cache
from enginebench.report.charts import load_vega


def test_it_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def make(snippet: str) -> str:
        calls.append(snippet)
        return f"/* vega */ {snippet}"

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(vl_convert, "javascript_bundle", make)
    first = load_vega()
    assert load_vega() == first and len(calls) == 1
    (kept,) = find_cache().iterdir()
    kept.write_text(first[: len(first) // 2])
    assert load_vega() == first and len(calls) == 2


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda snippet: snippet)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    find_cache().write_text("in the way")
    assert "vegaEmbed" in load_vega()


def test_the_cache_is_where_the_user_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find_cache() == tmp_path / "enginebench"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_cache() == tmp_path / ".cache" / "enginebench"
