"""The step `tune` of a sweep, with children in this process: its answers in the store, and what a failure costs."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from enginebench.core.errors import EngineBenchError, UsageError
from enginebench.core.records import Estimate
from enginebench.core.store import read_record
from enginebench.features.sweep.document import SweepDocument, Tuned
from enginebench.features.sweep.reporting import format_sweep_page
from enginebench.features.sweep.sections import format_tuned
from enginebench.features.sweep.spec import SweepSpec, read_spec
from enginebench.features.sweep.verb import plan_sweep, run_sweep
from enginebench.features.tune import session
from enginebench.features.tune.records import TuneDocument
from enginebench.models.zoo import DATA_DIR
from enginebench.runs.child.jobs import MeasureJob
from enginebench.runs.reporting import Written
from in_process import Children
from reporters import Silent

SPEC = """
engines = ["fake:latency_us=300"]
processes = 6
iters = 5
warmup = 1
threads = 2
steps = ["measure", "tune"]
tune_budget_s = 600
[[model]]
name = "one.onnx"
"""


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reports of the final take longer to draw than all else together."""
    monkeypatch.setattr(session, "write_reports", lambda *_, **__: Written(paths=()))


def read(folder: Path, text: str = SPEC) -> SweepSpec:
    (folder / "one.onnx").write_bytes((DATA_DIR / "digits-mlp.onnx").read_bytes())
    (folder / "sweep.toml").write_text(text)
    return read_spec(folder / "sweep.toml")


def sweep(spec: SweepSpec, store: Path, *, resume: bool = False) -> SweepDocument:
    return run_sweep(spec, str(store), reporter=Silent(), resume=resume)


def test_a_group_is_tuned_where_it_was_measured_and_once(tmp_path: Path, children: Children) -> None:
    # One trick of the fake engine would take this process along.
    spec, store = read(tmp_path, SPEC.replace("300", "300,trick=none")), tmp_path / "store"
    document = sweep(spec, store)
    assert [cell.row.status for cell in document.cells if cell.row] == ["ok"]
    (tuned,) = document.tuned
    assert (tuned.model, tuned.machine_kind, tuned.batch, tuned.reason) == ("one.onnx", "local", 1, "")
    search = read_record(store / Path(tuned.page).with_name("tune.json"), TuneDocument)
    assert search.finished and search.winner is not None and search.winner.candidate == tuned.winner
    assert (tuned.beaten, tuned.ratio, tuned.processes) == (search.beaten, search.ratio, search.processes)
    assert (store / tuned.page).read_bytes().startswith(b"<!doctype html>")
    assert format_tuned(tuned) in format_sweep_page(document).replace("&#39;", "'")
    for done in store.glob("groups/*/done.json"):
        done.unlink()
    count = len(children.of(MeasureJob))
    assert sweep(spec, store, resume=True).tuned == (tuned,)
    assert len(children.of(MeasureJob)) == count, "neither rows nor searches are measured again"


@pytest.mark.usefixtures("children")
def test_a_search_that_fails_costs_itself(tmp_path: Path) -> None:
    text = SPEC.replace("= 600", "= 1e-6").replace("300", "300,trick=none")
    document = sweep(read(tmp_path, text), tmp_path / "store")
    assert not document.failed and [cell.row.status for cell in document.cells if cell.row] == ["ok"]
    (tuned,) = document.tuned
    assert tuned.reason and not tuned.winner and "no response: " in format_tuned(tuned)


def test_the_time_of_searches_is_planned(tmp_path: Path) -> None:
    without = plan_sweep(read(tmp_path, SPEC.replace(', "tune"', ""))).kinds[0].at_most_s
    two = plan_sweep(read(tmp_path, "batches = [1, 2]\n" + SPEC)).kinds[0].at_most_s
    assert two > 2 * 600 > without


def test_what_was_not_beaten_is_said_as_such() -> None:
    found = Tuned(model="m", machine_kind="box", batch=4, winner="ort", default="ort", challenger="x", finished=True)
    assert format_tuned(found) == "tuned on box: m, batch 4: the best default, ort, was not beaten"
    ratio = Estimate(value=1.3, low=1.2, high=1.4, level=0.95, n=5, method="t")
    cut = replace(found, finished=False, ratio=ratio, verdict="not_shown")
    assert "x was 1.30x (1.20 to 1.40) as fast when it was re-measured: inconclusive. Raise" in format_tuned(cut)
    assert format_tuned(replace(found, finished=False)).endswith("x led the race. Raise tune_budget_s")
    beaten = format_tuned(replace(cut, finished=True, beaten=True, winner="x"))
    assert beaten == "tuned on box: m, batch 4: x is 1.30x (1.20 to 1.40) as fast as the best default, ort"
    assert msgspec.json.decode(msgspec.json.encode(found), type=Tuned) == found


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("processes = 6", "processes = 5", "raise processes, now 5"),
        ("processes = 6", "quick = true", "leave quick out"),
        ("= 600", "= 0", "tune_budget_s: found 0; expected `float` > 0"),
        ("= 600", "= inf", "tune_budget_s: found inf; expected `float` <= 1"),
        ("threads = 2", 'scopes = ["compute", "io"]', "leave scopes out"),
    ],
)
def test_what_cannot_be_tuned_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in SPEC
    with pytest.raises(EngineBenchError, match=said):
        read(tmp_path, SPEC.replace(old, new))


def test_a_search_does_not_share_its_machine(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a search needs the machine to itself"):
        run_sweep(read(tmp_path), str(tmp_path / "s"), on="auto", share_machine=True, reporter=Silent())
