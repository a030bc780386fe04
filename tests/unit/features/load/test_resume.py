"""A load that is interrupted at any moment and goes on, over `fake` in simulated time: the document is the same."""

import csv
import html
import math
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import enginebench
from enginebench.core.errors import MeasurementError, UsageError
from enginebench.core.names import parse_engine
from enginebench.core.records import MeasureSpec
from enginebench.core.store import encode
from enginebench.core.warnings import make_warning
from enginebench.features.load import rates, verb, winners
from enginebench.features.load.document import LoadDocument, LoadSettings
from enginebench.features.load.probe import Interrupted, Plan
from enginebench.features.load.rates import Prober
from enginebench.features.load.verb import LoadOptions, load_target, read_load
from enginebench.models.zoo import DATA_DIR
from enginebench.options import fill
from enginebench.stats.queueing import LoadPoint, Stamps, describe_point
from enginebench.verbs.requests import make_request
from in_process import Children
from reporters import Silent
from samples import make_machine
from simulated_load import simulate

ENGINES = ("fake", "fake:latency_us=9")
USUAL: dict[str, Any] = {"percentile": 90.0, "duration_s": 0.2}
CAPACITY = {"find_capacity": True, "limit_ms": 20.0, "rounds": 2}
ASKED: dict[str, dict[str, Any]] = {
    "rate": {"qps": 100.0},
    "offline": {"scenario": "offline"},
    "capacity": CAPACITY,
    "short": {**CAPACITY, "time_budget_s": 6.0},
}


class Killed(BaseException):
    """What SIGKILL does: nobody has time for anything."""


class World:
    """Probes in simulated time. `stops` are the moments at which one ends otherwise: number of the probe -> how."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.stops: dict[int, str] = {}
        self.lost: tuple[str, int] | None = None  # part of a name, probes that it still has
        self.asked = self.begun = self.measured = 0

    def probe(self, plan: Plan, offsets: Any, samples: Any) -> LoadPoint:
        how = self.stops.get(self.begun, "")
        self.begun += 1
        if how == "killed before":
            raise Killed
        if self.lost and self.lost[0] in plan.row:
            self.asked += 1
            if self.asked > self.lost[1]:
                raise MeasurementError("no memory left")
        service_ns = 3_000_000 if "latency-us" in plan.row else 2_000_000
        board, busy_ns = simulate(offsets, lambda requests: service_ns)
        self.now_s += 0.5 + math.ceil(8 * float(board.done.max()) / 1e9) / 8  # seconds that add up exactly
        stamps = Stamps(board.scheduled, board.released, board.started, board.computed, board.done, board.status)
        if how in ("interrupted", "half"):
            stamps.released[len(offsets) // 2 :] = 0
            cut = make_warning("cut_short", came=1, planned=2, reason="interrupted")
            whole = describe_point(stamps, qps=plan.qps, limit=plan.limit, row=plan.row, warnings=(cut,))
            raise Interrupted(whole) if how == "half" else KeyboardInterrupt
        if how == "killed":
            raise Killed
        self.measured += 1
        return describe_point(stamps, qps=plan.qps, limit=plan.limit, busy_ns=busy_ns, row=plan.row)


HOWS = ("killed before", "killed", "interrupted", "half")


@pytest.fixture
def world(children: Children, monkeypatch: pytest.MonkeyPatch) -> World:
    """Engines are built in this process, probes are simulated, the machine is one."""
    world = World()
    monkeypatch.setattr(verb, "describe_machine", make_machine)
    ask = lambda plan, *given: world.probe(plan, *given)  # noqa: E731
    for module in (rates, winners):
        monkeypatch.setattr(module, "Prober", partial(Prober, probe=ask, clock=lambda: world.now_s))
    return world


def load(folder: Path, **given: Any) -> LoadDocument:
    resume = given.pop("resume", False)
    engines = [parse_engine(text) for text in ENGINES]
    model = given.pop("model", str(DATA_DIR / "digits-mlp.onnx"))
    how: Any = {"batches": (1,), "measure": MeasureSpec(seed=0, processes=1)}
    options: Any = fill(LoadOptions, {"threads": 1})
    request = make_request(model, options, engines=engines, precisions=[("fp32", None)], **how)
    return load_target(request, LoadSettings(**{**USUAL, **given}), folder, reporter=Silent(), resume=resume)


def go_through(world: World, folder: Path, stops: list[tuple[int, str]], **asked: Any) -> LoadDocument:
    """The document: each session but the last ends at one of `stops`, counted in its own probes, if it gets there."""
    world.measured = 0
    for number, how in stops:
        world.begun, world.stops = 0, {number: how}
        with suppress(KeyboardInterrupt, Killed):
            return load(folder, resume=(folder / "load.json").exists(), **asked)
    world.begun, world.stops = 0, {}
    return load(folder, resume=(folder / "load.json").exists(), **asked)


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_interrupted_at_any_moment_it_comes_to_the_same_document(asked: dict[str, Any], world: World) -> None:
    with TemporaryDirectory() as folder:
        whole = go_through(world, Path(folder), [], **asked)
        count = world.measured

    @settings(max_examples=12)
    @given(st.lists(st.tuples(st.integers(0, count), st.sampled_from(HOWS)), min_size=1, max_size=3))
    def check(stops: list[tuple[int, str]]) -> None:
        with TemporaryDirectory() as folder:
            found = replace(go_through(world, Path(folder), stops, **asked), started_utc=whole.started_utc)
            assert found == whole
            assert world.measured == count, "nothing is measured twice"

    check()


def test_more_rounds_go_on_where_the_last_ones_ended(tmp_path: Path, world: World) -> None:
    first = load(tmp_path, **{**CAPACITY, "rounds": 1})
    count = world.measured
    more = load(tmp_path, resume=True, **CAPACITY)
    assert world.measured > count and more.points[: len(first.points)] == first.points
    assert [len(row.rounds) for row in more.rows] == [2, 2]
    slow, fast = sorted(row.capacity.passes_qps or 0.0 for row in more.rows if row.capacity is not None)
    assert more.capacity is not None and 0 < slow < fast
    (verdict,) = more.verdicts
    assert (verdict.verdict, verdict.trials_needed) == ("not_shown", 6) and verdict.ratio is not None


def test_a_configuration_that_was_lost_is_tried_again_and_the_others_keep_their_points(
    tmp_path: Path, world: World
) -> None:
    """In the first session the second engine cannot be opened any more from its fourth probe on."""
    world.lost = ("latency-us", 3)
    first = load(tmp_path, **CAPACITY)
    assert first.rows[1].reason == "no memory left" and first.rows[0].reason is None
    world.lost = None
    world.stops = {world.begun + 1: "killed"}
    with pytest.raises(Killed):
        load(tmp_path, resume=True, **CAPACITY)
    kept = [point for point in read_load(tmp_path).points if point.row == first.rows[0].id]
    assert kept == [point for point in first.points if point.row == first.rows[0].id]
    again = load(tmp_path, resume=True, **CAPACITY)
    assert again.rows[1].reason is None and again.rows[0] == first.rows[0] and again.finished


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"limit_ms": 25.0}, "limit_ms was 20.0, not 25.0"),
        ({"model": str(DATA_DIR / "digits-cnn.onnx")}, "model was digits-mlp.onnx, not digits-cnn.onnx"),
        ({"resume": False}, "holds a load already; continue it with --resume or choose another --out"),
    ],
)
def test_another_load_is_not_continued(tmp_path: Path, world: World, changes: dict[str, Any], message: str) -> None:
    load(tmp_path, **CAPACITY)
    with pytest.raises(UsageError, match=message):
        load(tmp_path, **{"resume": True, **CAPACITY, **changes})
    with pytest.raises(UsageError, match=r"holds no load to continue: there is no load\.json"):
        load(tmp_path / "other", resume=True, **CAPACITY)


def test_an_engine_file_that_is_another_is_measured_anew(tmp_path: Path, world: World) -> None:
    first = load(tmp_path, **ASKED["rate"])
    rows = tuple(replace(row, artifact="0" * 64) for row in first.rows[:1]) + first.rows[1:]
    (tmp_path / "load.json").write_bytes(encode(replace(first, rows=rows)))
    count = world.measured
    assert load(tmp_path, resume=True, **ASKED["rate"]) == first
    assert world.measured == count + 1


@pytest.mark.usefixtures("world")
def test_a_run_adds_the_capacity_of_the_configurations_that_won(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which row wins hangs on the machine, so here it is said."""
    won = lambda _, results: SimpleNamespace(fastest=SimpleNamespace(id=results[-1].id), recommended=None)  # noqa: E731
    monkeypatch.setattr(winners, "describe_stored", won)
    graph = str(DATA_DIR / "digits-mlp.onnx")
    done = enginebench.run(graph, engines=[*ENGINES], quick=True, threads=1, load_p99_ms=300, out=tmp_path / "r")
    slow, fast = done.rows
    assert slow.capacity is None
    assert fast.capacity is not None and fast.capacity.limit_ms == 300 and fast.capacity.passes_qps
    done.write_report(["html", "csv"])
    assert "p99 <= 300 ms" in html.unescape((tmp_path / "r" / "report.html").read_text())
    with (tmp_path / "r" / "table.csv").open(newline="", encoding="utf-8") as file:
        (line,) = [row for row in csv.DictReader(file) if row["passes_qps"]]
    assert float(line["passes_qps"]) == fast.capacity.passes_qps
