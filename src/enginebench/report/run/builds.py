"""Several builds of one engine: how far they differ, and what keeping the best one gains and costs."""

from collections.abc import Sequence

from enginebench.core.names import format_precision
from enginebench.core.records import Estimate
from enginebench.core.text import count_of
from enginebench.report.numbers import format_significant, format_small, show_figure
from enginebench.report.run.head import show_name
from enginebench.report.run.rows import Row
from enginebench.report.table import Column, Notes, Table, make_table
from enginebench.stats.builds import BestBuild, BuildEffect

_COLUMNS = (
    Column("engine", lambda row: row.engine),
    Column("precision", lambda row: format_precision(row.precision, row.recipe)),
    Column("builds", lambda row: str(row.builds.builds), align="right"),
    Column("different", lambda row: "-" if row.builds.distinct is None else str(row.builds.distinct), align="right"),
    Column("p50 ms", lambda row: _show_medians(row.builds), align="right"),
    Column("between builds", lambda row: _show_share(row.builds.between), align="right"),
    Column("within one", lambda row: "-" if row.builds.within is None else f"{row.builds.within:.2%}", align="right"),
    Column(
        "outputs apart",
        lambda row: "-" if row.builds.max_abs_diff is None else format_small(row.builds.max_abs_diff),
        align="right",
    ),
    Column("best gains", lambda row: _show_share(row.builds.best.gain) if row.builds.best else "-", align="right"),
    Column("extra builds s", lambda row: show_figure(row.builds.best and row.builds.best.cost_s, "-"), align="right"),
)


def make_builds(rows: Sequence[Row]) -> list[Table | Notes]:
    """What several builds of an engine show, of every row that was built several times."""
    built = [row for row in rows if row.builds]
    return [make_table(_COLUMNS, built, file="builds", title="Builds of each engine")] if built else []


def state_builds(rows: Sequence[Row]) -> list[str]:
    """What is to be known of the builds of each row, in sentences."""
    return [sentence for row in rows if row.builds for sentence in _state(show_name(row), row.builds)]


def _state(name: str, effect: BuildEffect) -> list[str]:
    if effect.distinct == 1:
        return [f"{name}: all {count_of(effect.builds, 'builds')} are identical by their hash."]
    if effect.between is None or effect.within is None:
        return [f"{name}: {effect.builds} builds, of which too few have two trials: inconclusive."]
    seen = "differ" if effect.shown else "do not differ significantly"
    told = f"{name}: its {count_of(effect.builds, 'builds')} {seen}: {_show_share(effect.between)} from one to the next"
    told = f"{told}, beside {effect.within:.2%} between processes of one build."
    return [told, *([_state_best(effect.builds, effect.best)] if effect.best else [])]


def _state_best(count: int, best: BestBuild) -> str:
    more = "one build more costs" if count == 2 else f"the {count - 1} builds more cost"
    seconds = "" if best.cost_s is None else f"; {more} {format_significant(best.cost_s)} s"
    sure = (best.gain.low or 0.0) > 0
    after = f", which it saves within {best.pays_after:,} runs" if best.pays_after and seconds and sure else ""
    gain = "gains" if sure else "did not gain significantly:"
    return f"The best of {count} {gain} {_show_share(best.gain)} over a typical one{seconds}{after}."


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
