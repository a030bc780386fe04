"""Several builds of one engine: how far they differ, and what keeping the best one gains and costs."""

from __future__ import annotations

from collections.abc import Sequence

from enginebench.analyze.versions.builds import BestBuild, BuildEffect
from enginebench.core.names import format_precision
from enginebench.core.records import Estimate
from enginebench.core.text import count_of
from enginebench.report.numbers import format_significant, format_small
from enginebench.report.run.answers import name_row
from enginebench.report.run.rows import Row

HEADINGS = (
    "engine",
    "precision",
    "builds",
    "different",
    "p50 (ms)",
    "between builds",
    "within one",
    "answers apart",
    "best gains",
    "extra builds (s)",
)


def list_builds(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """(engine, then the cells) of every row that was built several times."""
    return [
        (
            row.engine,
            format_precision(row.precision, row.recipe),
            str(effect.builds),
            _show_distinct(effect),
            _show_medians(effect),
            _show_share(effect.between),
            "-" if effect.within is None else f"{effect.within:.2%}",
            "-" if effect.max_abs_diff is None else format_small(effect.max_abs_diff),
            _show_share(effect.best.gain) if effect.best else "-",
            _show_cost(effect.best),
        )
        for row in rows
        if (effect := row.builds) is not None
    ]


def state_builds(rows: Sequence[Row]) -> list[str]:
    """What is to be known of the builds of each row, in sentences."""
    return [sentence for row in rows if row.builds for sentence in _state(name_row(row), row.builds)]


def _state(name: str, effect: BuildEffect) -> list[str]:
    if effect.distinct == 1:
        alike = f"{name}: all {count_of(effect.builds, 'builds')} are identical by their hash."
        return [alike]
    if effect.between is None or effect.within is None:
        return [f"{name}: {effect.builds} builds, of which too few have two processes; nothing is said of them."]
    seen = "differ" if effect.shown else "were not shown to differ"
    told = f"{name}: its {count_of(effect.builds, 'builds')} {seen}: {_show_share(effect.between)} from one to the next"
    told = f"{told}, beside {effect.within:.2%} between processes of one build."
    return [told, *([_state_best(effect.builds, effect.best)] if effect.best else [])]


def _state_best(count: int, best: BestBuild) -> str:
    more = "one build more costs" if count == 2 else f"the {count - 1} builds more cost"
    seconds = "" if best.cost_s is None else f"; {more} {format_significant(best.cost_s)} s"
    sure = (best.gain.low or 0.0) > 0
    after = f", which it saves within {best.pays_after:,} runs" if best.pays_after and seconds and sure else ""
    gain = "gains" if sure else "was not shown to gain:"
    return f"The best of {count} {gain} {_show_share(best.gain)} over a typical one{seconds}{after}."


def _show_distinct(effect: BuildEffect) -> str:
    return "-" if effect.distinct is None else str(effect.distinct)


def _show_medians(effect: BuildEffect) -> str:
    if not effect.medians_ms:
        return "-"
    low, high = (format_significant(end(effect.medians_ms), 4) for end in (min, max))
    return low if low == high else f"{low} to {high}"


def _show_share(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2%}"
    return f"{estimate.value:.2%} ({estimate.low:.2%} to {estimate.high:.2%})"


def _show_cost(best: BestBuild | None) -> str:
    return "-" if best is None or best.cost_s is None else format_significant(best.cost_s)
