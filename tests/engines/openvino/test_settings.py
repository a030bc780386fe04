"""Mean times of nodes out of counters that tell whole microseconds, averaged over all runs so far."""

from collections.abc import Sequence

from enginebench.engines.backends.openvino.settings import choose_calm_window, choose_longest, note_clock
from enginebench.engines.proof import Operator


def count(name: str, times_us: Sequence[int]) -> list[Operator | None]:
    """The counter of a node after each run; None where its average is below a microsecond: it "did not run"."""
    means = [sum(times_us[:n]) // n for n in range(1, len(times_us) + 1)]
    return [Operator("f32", 1000.0 * mean, name, "FullyConnected") if mean else None for mean in means]


def join(*columns: list[Operator | None]) -> list[list[Operator]]:
    """The nodes that ran, of each run."""
    return [[node for node in run if node is not None] for run in zip(*columns, strict=True)]


def test_a_node_below_a_microsecond_has_run() -> None:
    nodes, length = choose_calm_window(join(count("long", [40] + [6] * 20), count("short", [5] + [0] * 20)))
    assert length == 10
    times = {node.name: node.time_ns for node in nodes}
    assert list(times) == ["long", "short"]
    assert times["short"] == 0 and 4000 <= times["long"] <= 6000


def test_what_ran_is_known_where_every_node_is_too_short() -> None:
    runs = join(count("a", [5] + [0] * 20), count("b", [2] + [0] * 20))
    nodes, _ = choose_calm_window(runs)
    assert not any(node.time_ns for node in nodes)
    assert [(node.name, node.time_ns) for node in choose_longest(runs)] == [("a", 5000.0), ("b", 2000.0)]


def test_an_interruption_is_left_out() -> None:
    (node,), _ = choose_calm_window(join(count("a", [90] + [50] * 10 + [9000] + [50] * 9)))
    assert 46_000 <= node.time_ns <= 54_000


def test_a_single_run_is_what_it_is() -> None:
    nodes, length = choose_calm_window([[Operator("f32", 7000.0, "a", "Add")]])
    assert (nodes[0].time_ns, length) == (7000.0, 1)


def test_times_near_the_clock_are_told() -> None:
    short, long = (Operator("f32", us * 1000.0, "a", "Add") for us in (29, 31))
    assert note_clock([long]) == ()
    assert note_clock([short, long]) == ("1 layer under 30 us: times are cut to whole us, up to 3 us low",)
