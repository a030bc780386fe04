"""`run` and `bench` as functions: what they return, what they leave, and how they end."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import enginebench
from enginebench import Bench, GateFailed, MeasurementError, MissingDependency, Run, UsageError
from enginebench.runs.child.jobs import Job, MeasureJob
from enginebench.verbs import common
from in_process import Children, children  # noqa: F401 - a fixture
from stored_run import EVIL, make_results, make_results_with_warnings, write_run

pytestmark = pytest.mark.usefixtures("children")
FAST = {"processes": 2, "iters": 20, "threads": 1, "warmup": 1}
TWO = ["fake:latency_us=50", "fake:latency_us=20"]


@pytest.fixture
def measured(tiny_onnx: Path, tmp_path: Path) -> Run:
    return enginebench.run(tiny_onnx, engines=TWO, out=tmp_path / "r", **FAST)


def test_a_run_has_configurations_an_answer_and_a_folder(measured: Run, tmp_path: Path) -> None:
    assert measured.folder == tmp_path / "r"
    assert [row.engine for row in measured.rows] == ["fake:latency_us=50", "fake:latency_us=20"]
    assert all(row.processes == 2 and row.n == 40 for row in measured.rows)
    assert measured.fastest is not None and measured.fastest == measured.document.fastest
    assert measured.recommended == measured.document.recommended
    assert measured.answer.startswith("USE       fake:latency_us=20 fp32")
    assert len(measured.results) == 2 and len(measured.results[0].measurements) == 2
    again = enginebench.read(measured.folder)
    assert isinstance(again, Run)
    assert again.document == measured.document


def test_the_run_shows_itself_as_text(measured: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as the kernel of a notebook does
    text = repr(measured)
    assert text.startswith("tiny.onnx · batch 1 · 1x64 · CPU: ")
    assert "\x1b" not in text
    commands = ("  Deploy it ", "  Warnings ", "  Page ")  # are never broken
    assert all(len(line) <= 100 or line.startswith(commands) for line in text.splitlines())
    assert " ".join(measured.answer.split())[:40] in " ".join(text.split())
    assert f"enginebench report {measured.folder} --warnings" in " ".join(text.split())


def test_nothing_is_printed_unless_it_is_asked_for(tiny_onnx, tmp_path, capfd) -> None:
    enginebench.run(tiny_onnx, engines="fake", out=tmp_path / "silent", **FAST)
    assert capfd.readouterr() == ("", "")
    enginebench.run(tiny_onnx, engines="fake", out=tmp_path / "told", progress=True, **FAST)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "trial 2 of 2" in shown.err


def test_the_columns_of_a_frame_are_those_of_the_table(measured: Run) -> None:
    pandas = pytest.importorskip("pandas")
    frame = measured.to_pandas()
    measured.write_report("csv")
    table = pandas.read_csv(measured.folder / "table.csv", index_col="id")
    assert list(frame.columns) == list(table.columns)
    assert list(frame.index) == [row.id for row in measured.rows]
    # Before its version 3 pandas may read the last digit otherwise.
    assert frame["p50_ms"].tolist() == pytest.approx(table["p50_ms"].tolist(), rel=1e-12)


def test_without_pandas_the_command_that_adds_it_is_named(measured: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependency, match=r"pandas, which .* is not installed\. To add it: pip install pandas"):
        measured.to_pandas()


def test_text_of_others_is_no_markup_in_a_notebook(tmp_path: Path) -> None:
    write_run(tmp_path / "evil", make_results(evil=True))
    run = enginebench.read(tmp_path / "evil")
    html = run._repr_html_()
    assert EVIL not in html
    assert set(re.findall(r"<(\w+)", html)) <= {"div", "b", "br", "table", "thead", "tbody", "tr", "th", "td"}
    assert "&lt;script&gt;" in html
    assert not re.search(r"https?://|src=|url\(", re.sub(r"&\w+;[^<]*", "", html))


def test_warnings_stand_beside_the_figures_in_a_notebook(tmp_path: Path) -> None:
    write_run(tmp_path / "r", [*make_results_with_warnings(), *make_results()[4:]])
    run = enginebench.read(tmp_path / "r")
    html = run._repr_html_()
    marked = [row for row in run.rows if row.p50_ms and row.validity != "valid"]
    assert marked
    assert html.count(">~ ") == len(marked)
    assert "<div><b>USE</b> " in html
    assert "the child died with signal 11" in html
    assert "no CUDA device" in html


def test_a_run_without_a_result_is_an_error_that_says_where_the_configurations_are(
    tiny_onnx: Path, tmp_path: Path
) -> None:
    with pytest.raises(MeasurementError, match="at least one other configuration must be ok") as caught:
        enginebench.run(tiny_onnx, engines=["fake:fault=raise,at=run", "fake"], out=tmp_path / "r", **FAST)
    (note,) = caught.value.__notes__
    assert f"enginebench.read({str(tmp_path / 'r')!r})" in note
    kept = enginebench.read(tmp_path / "r")
    assert [row.status for row in kept.rows] == ["failed", "ok"]


def test_an_interrupt_keeps_what_was_measured_and_the_run_goes_on(
    tiny_onnx: Path,
    tmp_path: Path,
    children: Children,  # noqa: F811
) -> None:
    def interrupt(job: Job) -> None:
        if isinstance(job, MeasureJob) and job.trial == 1:
            raise KeyboardInterrupt

    children.before = interrupt
    arguments = {"engines": ["fake", "fake:seed=2"], "out": tmp_path / "r", **FAST}
    with pytest.raises(KeyboardInterrupt) as caught:
        enginebench.run(tiny_onnx, **arguments)
    assert "resume=True" in " ".join(caught.value.__notes__)
    kept = enginebench.read(tmp_path / "r")
    assert [row.processes for row in kept.rows] == [1, 1]
    children.before = lambda job: None
    for changed in ({"engines": "ort"}, {"iters": 50}, {"max_top1_drop": 2.0}):
        option = next(iter(changed)).replace("_", "-")
        with pytest.raises(
            UsageError, match=f"^--{option}: --resume continues with the options that it was begun with"
        ):
            enginebench.run(tiny_onnx, resume=True, **arguments | changed)
    whole = enginebench.run(tiny_onnx, resume=True, **arguments)
    assert [row.processes for row in whole.rows] == [2, 2]
    assert whole.results[0].measurements[0] == kept.results[0].measurements[0]


def test_another_module_does_not_continue_a_run(measured: Run) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(UsageError, match=r"holds a run of .*tiny\.onnx, and this module is Linear@\w+: another"):
        enginebench.run(
            torch.nn.Linear(2, 2), example_inputs=torch.zeros(1, 2), engines="fake", out=measured.folder, resume=True
        )


def test_bench_is_one_configuration(tiny_onnx: Path, tmp_path: Path) -> None:
    made = enginebench.bench(tiny_onnx, "fake", out=tmp_path / "b", percentile=[99.9], **FAST)
    assert (made.row.engine, made.row.n, made.against, made.comparison, made.answer) == ("fake", 40, None, None, "")
    assert "p99.9: " in repr(made)
    assert "<table>" in made._repr_html_()
    again = enginebench.read(tmp_path / "b")
    assert isinstance(again, Bench)
    assert again.document == made.document


def test_bench_compares_two_sides(tiny_onnx: Path, tmp_path: Path) -> None:
    options = {**FAST, "processes": 6}
    made = enginebench.bench(
        tiny_onnx, "fake:latency_us=400", against="fake:latency_us=100", out=tmp_path / "b", **options
    )
    assert made.comparison is not None and made.comparison.verdict == "slower"
    assert made.answer.startswith("Verdict: slower")
    assert made.answer in " ".join(repr(made).split())
    assert list(made.to_pandas().index) == [made.against.id, made.row.id]  # type: ignore[union-attr]
    with pytest.raises(GateFailed, match="Verdict: slower"):
        made.check(gate=True)
    assert enginebench.read(tmp_path / "b").comparison == made.comparison  # type: ignore[union-attr]


class Shown:
    """What a notebook shows, and each thing that took its place."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, shown: object, display_id: bool) -> "Shown":
        assert display_id
        self.update(shown)
        return self

    def update(self, shown: object) -> None:
        bundle = shown._repr_mimebundle_(include=(), exclude=())  # type: ignore[attr-defined]
        self.seen.append(bundle["text/plain"])
        assert "text/html" in bundle


def test_a_notebook_sees_a_bar(tiny_onnx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown()
    monkeypatch.setattr(common, "find_display", lambda: shown)
    enginebench.run(tiny_onnx, engines="fake", out=tmp_path / "r", **FAST)
    assert any("trial 2 of 2" in text for text in shown.seen)
    assert "3/3" in shown.seen[-1]


def test_the_kernel_of_a_notebook_is_distinguished_from_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = type("ZMQInteractiveShell", (), {})
    kinds = {"kernel": kernel, "derived": type("Shell", (kernel,), {}), "terminal": type("TerminalShell", (), {})}
    found = {}
    for name, kind in kinds.items():
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=kind))
        monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=name))
        found[name] = common.find_display()
    assert found == {"kernel": "kernel", "derived": "derived", "terminal": None}


@pytest.mark.feature("deliver")
def test_a_place_that_is_taken_is_known_before_anything_is_measured(tiny_onnx: Path, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").touch()
    with pytest.raises(UsageError, match="b"):
        enginebench.run(tiny_onnx, engines="fake", out=tmp_path / "r", deliver=tmp_path / "b", **FAST)
    assert not (tmp_path / "r").exists()
