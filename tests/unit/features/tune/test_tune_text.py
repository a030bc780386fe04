"""What `tune` says, as text and as a page, from documents made by hand."""

import html
import math
import shlex
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from enginebench.core.records import Bound, EngineSpec, Estimate, LayerTime, Measurement, MeasureSpec, Result
from enginebench.core.store import encode
from enginebench.core.warnings import format_warning, make_warning
from enginebench.features.tune.proposals import Tried, Walk, read_gains
from enginebench.features.tune.records import Candidate, Dropped, Finalist, TuneDocument, TuneRef
from enginebench.features.tune.sections import draw_frontier, format_outcome, list_tune, list_tune_page
from enginebench.features.tune.session import find_frontier, find_locating, format_headroom
from enginebench.report.charts import render_png
from enginebench.report.page import format_page
from reports import draw
from samples import make_machine
from stored_run import make_results, write_run
from tracks import ARMS, DISTURBED


def estimate(value: float, spread: float = 0.02) -> Estimate:
    return Estimate(value=value, low=value * (1 - spread), high=value * (1 + spread), level=0.95, n=10, method="")


def refer(name: str) -> TuneRef:
    return TuneRef(id=name, candidate=name, engine=name, precision="fp32", batch=1, threads=2)


def make_row(name: str, ratio: float | None = None, **more: Any) -> Finalist:
    values = {"candidate": name, "id": name, "default": name != "new", "cost": estimate(3.0), "verdict": None}
    values |= {"ratio": estimate(ratio), "verdict": "faster"} if ratio else {"ratio": None}
    return Finalist(**values | more)


DROPS = tuple(
    Dropped(candidate=f"c{i}", generation=1 + i // 5, round=i % 3, reason=f"reason {i}", leader="new")
    for i in range(12)
)
BEATEN = TuneDocument(
    model="m",
    machine=make_machine(),
    goal="latency",
    unit="ms",
    winner=refer("new"),
    default=refer("a"),
    challenger=refer("new"),
    beaten=True,
    verdict="faster",
    ratio=estimate(1.25),
    dropped=DROPS,
    frontier=(),
    final=(make_row("new"), make_row("a", 1.25), make_row("b", 2.0)),
    candidates=(Candidate(candidate="new", id="new", default=False, speed=1.0, processes=6, quality=0.99),),
    quality_of="centred cosine",
    generations=3,
    processes=120,
    budget_s=1200,
    spent_s=1100,
    finished=True,
)
KEPT = replace(
    BEATEN,
    beaten=False,
    winner=refer("a"),
    verdict="not_shown",
    ratio=estimate(1.01),
    final=(make_row("new"), make_row("a", 1.01, verdict="not_shown"), make_row("b", cost=None, reason="it died")),
)
BROKEN = replace(BEATEN, beaten=False, default=None, final=(), verdict=None, ratio=None, finished=False)


def show(document: TuneDocument) -> str:
    return draw(list_tune(document), 80)


def format_tune_page(document: TuneDocument) -> str:
    return format_page("t", list_tune_page(document))


def flatten(text: str) -> str:
    return " ".join(text.split())


OWN = tuple(replace(KEPT.candidates[0], default=True, candidate=name) for name in ("new", "b"))


@pytest.mark.parametrize(
    ("document", "answer"),
    [
        (BEATEN, "new is 1.25x (1.23 to 1.27) as fast as the best default, a."),
        (KEPT, "The default was not beaten: take a. The winner of the race, new, was 1.01x"),
        (replace(KEPT, candidates=OWN[:1]), "No other setting was measured: take a."),
        (replace(KEPT, candidates=OWN), "The fastest default: take a."),
        (BROKEN, "Take new so far: it leads the race. It was not re-measured."),
        (replace(BROKEN, candidates=OWN[:1]), "Take new, a default, so far: it leads the race. It was not re-measured"),
        (replace(BROKEN, winner=None), "No setting was measured."),
    ],
)
def test_the_answer_comes_first(document: TuneDocument, answer: str) -> None:
    assert " ".join(format_outcome(document)).startswith(answer)


def test_a_final_that_others_disturbed_is_reported_with_its_reasons() -> None:
    rows = (make_row("new", validity="invalid", warnings=(DISTURBED, DISTURBED)), make_row("a", 1.25))
    candidates = tuple(replace(one, validity="suspect") for one in BEATEN.candidates)
    quota = make_warning("environment.setting", setting="CPU quota", value="1.5 cores", effect="it stops", cure="none")
    document = replace(BEATEN, final=rows, validity="invalid", candidates=candidates, warnings=(quota,))
    for said in (flatten(show(document)), html.unescape(format_tune_page(document))):
        assert said.count(format_warning(DISTURBED)) == 1
        assert "the race was disturbed for 1 setting" in said and format_warning(quota) in said
        assert "~ 3.00" in said
    assert "Warnings" not in format_tune_page(BEATEN) and "disturbed" not in show(BEATEN)


@pytest.mark.parametrize("document", [BEATEN, KEPT, BROKEN])
def test_it_fits_into_80_columns_and_the_page_has_everyone_who_was_dropped(document: TuneDocument) -> None:
    assert max(map(len, show(document).splitlines())) <= 80
    page = format_tune_page(document)
    assert all(dropped.reason in page and dropped.candidate in page for dropped in document.dropped)
    assert "before it raced" in page and "m tuned · goal: latency" in page


def test_the_answer_says_what_is_left_of_the_hardware_and_where_the_time_goes() -> None:
    layers = tuple(
        LayerTime(name=name, mean_ns=ns)
        for name, ns in (("fc", 1e5), ("b.0.conv1", 1e5), ("b.1.conv2", 2e5), ("add", 1e3))
    )
    timed = Measurement(latency_ns=[1_000_000], device_ns=[800_000], clock="host", blocks=(), stop_rule="iters")
    row = Result(
        id="r",
        model="m",
        engine=EngineSpec(backend="x"),
        measure=MeasureSpec(),
        requested_precision="fp16",
        status="ok",
        measurements=(timed,),
        layers=layers,
        effective_precision={"reorder": 0.1},
    )
    bound = Bound(bound_ms=0.25, bound_by="bandwidth")
    far, parts = format_headroom(row, bound, "")
    assert far == (
        "It reaches 25% of the model's roofline, 0.250 ms (bandwidth): no setting can be more than 4.0x as fast; "
        "more search, or another kernel, may pay."
    )
    assert parts == "Its time goes to: launch and wait 20%, copies 10%, b.*.conv* (2 layers) 75%, fc 25%."
    assert "can gain little" in next(format_headroom(row, replace(bound, bound_ms=0.8), ""))
    assert next(format_headroom(row, None, "no roofline is stored")).endswith("not known: no roofline is stored.")


def test_what_gained_before_is_proposed_first_and_what_cannot_be_read_has_no_say(tmp_path: Path) -> None:
    other: dict[str, list[tuple[str, float, bool]]] = {
        "m": [("x fp32 2 threads", 0.5, True), ("x:mode=good fp32 2 threads", 1.0, False)],
        "n": [("y int8@cpu 2 threads", 0.5, True), ("y:floats=bf16 int8+bf16@cpu 2 threads", 1.0, False)],
        "cut": [],
    }
    for name, rows in other.items():
        (tmp_path / name).mkdir()
        found = [make_candidate(c, v, 1.0, default=d) for c, v, d in rows]
        text = encode(replace(BEATEN, candidates=tuple(found))) if rows else b"{"
        (tmp_path / name / "tune.json").write_bytes(text)
    row = make_results()[0]
    slow, fast = (replace(row.measurements[0], latency_ns=[ns]) for ns in (2000, 1000))
    named = EngineSpec(backend="ort", options={"opt": "none"})
    plain = replace(row, id="plain", engine=replace(named, options={}), measurements=(slow,))
    write_run(tmp_path / "run", [plain, replace(plain, id="named", engine=named, measurements=(fast,))])
    gains = read_gains(tmp_path / "mine")
    twice = pytest.approx(math.log(2))
    assert gains == {("x", "mode", "good"): twice, ("y", "floats", "bf16"): twice, ("ort", "opt", "none"): twice}
    known = [Tried(setting=arm.default, cost=1.0 + i) for i, arm in enumerate(ARMS)]
    assert Walk(ARMS, gains).propose(1, known)[0].name == "x:mode=good fp32 2 threads"
    assert Walk(ARMS).propose(1, known)[0].name == "x fp32 1 thread"


def make_candidate(name: str, speed: float | None, quality: float | None, **more: Any) -> Candidate:
    fields = {"candidate": name, "id": name, "default": False, "speed": speed, "processes": 3, "quality": quality}
    return Candidate(**fields | more)


CANDIDATES = (
    make_candidate("fp32", 0.8, 1.0, default=True),
    make_candidate("int8", 1.2, 0.7, default=True),
    make_candidate("mix <b>", 1.0, 0.96, graph="mix"),
    make_candidate("worse", 0.7, 0.9),
    make_candidate("failed", None, None),
)
PICTURED = replace(BEATEN, candidates=CANDIDATES, frontier=find_frontier(CANDIDATES))


def test_the_picture_is_drawn_and_stands_on_the_page_and_without_the_library_the_table_alone() -> None:
    page = format_tune_page(PICTURED)
    assert 'data-chart="frontier"' not in page and "mix &lt;b&gt;" in page
    pytest.importorskip("altair")
    spec = draw_frontier(PICTURED)
    assert "centred cosine" in str(spec) and render_png(spec)[:4] == b"\x89PNG"
    page = format_page("t", list_tune_page(PICTURED, spec), bundle="/* vegaEmbed */")
    assert 'data-chart="frontier"' in page and "mix <b>" not in page.replace(r"mix \u003cb>", "")


def test_the_frontier_is_what_nobody_beats_in_both() -> None:
    assert [point.candidate for point in PICTURED.frontier] == ["int8", "mix <b>", "fp32"]
    rounds_otherwise = make_candidate("x", 0.3, 1.00000001)
    assert find_frontier([*CANDIDATES, rounds_otherwise]) == PICTURED.frontier


def test_the_command_that_locates_changed_outputs_is_printed_and_parses(tmp_path: Path) -> None:
    """Of files that are there, in a folder whose name has a space; of outputs that keep to the limits there is none."""
    root = tmp_path / "the run"
    reference, changed = make_results()[:2]
    assert changed.drift is not None
    broken = replace(changed.drift, reference=reference.id, passed=False)
    broken = replace(broken, outputs=tuple(replace(output, nonfinite=3) for output in broken.outputs))
    results = [reference, replace(changed, drift=broken)]
    assert find_locating(root, results) == ""
    (root / "rows").mkdir(parents=True)
    paths = [str(root / "rows" / f"{one.id}.json") for one in results]
    for path in paths:
        Path(path).write_text("{}")
    command = find_locating(root, results)
    assert shlex.split(command)[1:] == ["drift", *paths, "--locate"]
    assert find_locating(root, results[:1]) == ""
    assert command in draw(list_tune(replace(BEATEN, locating=command)))
    assert "--locate" not in draw(list_tune(BEATEN))
