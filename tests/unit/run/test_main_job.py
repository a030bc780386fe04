"""A run from the request to its rows: what is stored when, who is told, and how it is continued at any moment."""

from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from enginebench.core.errors import ChildFailed, ModelError, ParseError, UsageError
from enginebench.core.records import Gpu, MeasureSpec, Result
from enginebench.measure.machine import describe_machine
from enginebench.models.zoo import DATA_DIR
from enginebench.report.run.sections import list_sections
from enginebench.runs import main_job, progress
from enginebench.runs.campaign import Campaign
from enginebench.runs.child.jobs import MeasureJob, PrepareJob, QuantizeJob, SourceJob
from enginebench.runs.folder import RunFolder, RunRecord, RunRequest, begin_record, holds_run, read_results
from enginebench.runs.main_job import AheadOfExport, run_model
from enginebench.runs.progress import PartTimes
from enginebench.runs.reporting import describe_stored
from graphs import write_text
from in_process import Children
from interruptions import check_any_moment, still
from reporters import Silent

REQUEST = RunRequest(
    model="digits-mlp",
    engines=(("fake", {"seed": "1"}), ("fake", {"seed": "2"})),
    measure=MeasureSpec(warmup=1, iters=5, processes=2),
)


class Told:
    """What `on_results` was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[RunRecord, list[Result]]] = []

    def __call__(self, *given: Any) -> None:
        self.calls.append(given)


def run(folder: Path, request: RunRequest = REQUEST, **more: Any) -> tuple[RunRecord, list[Result]]:
    return run_model(request, folder, **{"reporter": Silent(), **more})


def test_a_run_is_its_record_and_its_configurations_and_all_of_it_is_stored(tmp_path: Path, children: Children) -> None:
    told = Told()
    record, results = run(tmp_path / "r", command=("enginebench", "run"), on_results=told)
    assert [type(job) for job in children.jobs] == [SourceJob, *[PrepareJob] * 2, *[MeasureJob] * 4]
    assert [r.status for r in results] == ["ok", "ok"] and record.command == ("enginebench", "run")
    assert record.rows == tuple(r.id for r in results)
    assert told.calls == [(record, results)], "once, with what is returned"
    assert read_results(tmp_path / "r") == (record, results)
    assert all(not Path(a.path).is_absolute() for a in record.sources), "the folder can be moved"


def test_the_time_of_a_run_is_that_of_its_parts(tmp_path: Path, children: Children, monkeypatch) -> None:
    """Those of an interrupted attempt count, too."""
    spent_s = {SourceJob: 10.0, PrepareJob: 20.0, MeasureJob: 3.0}
    now_s = [0.0]

    def spend(job: Any) -> None:
        now_s[0] += spent_s[type(job)]

    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    children.before = spend
    record, results = run(tmp_path / "r")
    assert record.parts_s == {"model": 10.0, "builds": 40.0, "trials": 12.0}
    (head, *_) = list_sections(describe_stored(replace(record, took_s=63.4), results))
    assert head.title.endswith(" · 2 trials each · 63 s (model 10, builds 40, trials 12)")
    stored = RunFolder(tmp_path / "r").read_result(results[1].id)
    assert stored is not None
    RunFolder(tmp_path / "r").write_result(replace(stored, status="partial", measurements=stored.measurements[:1]))
    again, _ = run(tmp_path / "r", resume=True)
    assert again.parts_s == {"model": 10.0, "builds": 40.0, "trials": 15.0}


def test_one_engine_without_its_environment_costs_its_own_configurations(tmp_path: Path, children: Children) -> None:
    _, results = run(tmp_path / "r", replace(REQUEST, engines=(*REQUEST.engines, ("ort", {"env": "nowhere"}))))
    assert [r.status for r in results] == ["ok", "ok", "skipped"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a bug")])
def test_what_was_measured_is_handed_on_however_the_run_ends(error, tmp_path, children) -> None:
    if isinstance(error, RuntimeError):  # not in a child, whose errors are its row's

        def stop(text: str) -> None:
            if "trial 2 of 2" in text:
                raise error

        reporter: Any = Silent()
        reporter.step = stop
    else:
        reporter = Silent()
        children.fail_in("2", 1, error)
    told = Told()
    with pytest.raises(type(error)):
        run(tmp_path / "r", reporter=reporter, on_results=told)
    ((record, results),) = told.calls
    assert [(r.status, len(r.measurements)) for r in results] == [("partial", 1), ("partial", 1)]
    assert read_results(tmp_path / "r") == (record, results)


@pytest.mark.parametrize(("device", "seed"), [("cpu", "1"), ("cuda:0", "2")])
def test_during_an_export_a_gpu_compiles_and_a_cpu_checks_outputs(device, seed, tmp_path, monkeypatch) -> None:
    """The export keeps a CPU busy, on which a compiler would take as long again; a GPU has nothing else to do."""
    begun, plan = list[str](), main_job.plan_configurations

    def plan_on_device(*given: Any) -> list[Any]:
        return [replace(one, engine=replace(one.engine, device=device)) for one in plan(*given)]

    monkeypatch.setattr(main_job, "plan_configurations", plan_on_device)
    monkeypatch.setattr(main_job, "builds_slowly", lambda engine: engine.options["seed"] == "2")
    monkeypatch.setattr(Campaign, "measure_unchecked", lambda self, one: None)
    monkeypatch.setattr(Campaign, "begin", lambda self, one: begun.append(one.engine.options["seed"]))
    folder, record = RunFolder(tmp_path / "r"), begin_record(REQUEST, describe_machine())
    folder.create(record)
    module = main_job.gather_sources(REQUEST, folder.artifacts, Silent()).artifacts[-1]
    with ExitStack() as children:
        early = AheadOfExport(folder, record, None, Silent(), Told(), children, PartTimes())
        early.take(module)
    assert begun == [seed]


def test_an_interrupted_export_leaves_a_figure_and_the_run_goes_on(tmp_path, children, monkeypatch) -> None:
    gather = main_job.gather_sources

    def stop(request: Any, place: Any, reporter: Any, limit: Any, on_module: Any) -> Any:
        on_module(gather(request, place, reporter).artifacts[-1])  # of what `fake` takes
        raise KeyboardInterrupt

    told, folder = Told(), tmp_path / "r"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as interrupt:
        patch.setattr(main_job, "gather_sources", stop)
        run(folder, on_results=told)
    assert interrupt.value.__notes__ == [f"kept in {folder}: 1 trial of 1 configuration"]
    ((record, results),) = told.calls
    assert [(r.status, len(r.measurements)) for r in results] == [("partial", 1)]
    assert read_results(folder) == (record, results)
    _, whole = run(folder, resume=True)
    assert [(r.status, [m.trial for m in r.measurements]) for r in whole] == [("ok", [0, 1])] * 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"cpu_model": "Another CPU"}, "processor was Another CPU, now "),
        ({"versions": {"numpy": "1.0"}}, "numpy was 1.0, now "),
        ({"gpus": (Gpu(index=0, name="NVIDIA H200", driver="580", memory_bytes=1),)}, "GPUs was NVIDIA H200, now none"),
    ],
)
def test_a_run_of_another_machine_or_version_is_not_continued(tmp_path, children, change, told) -> None:
    record, _ = run(tmp_path / "r")
    RunFolder(tmp_path / "r").write_record(replace(record, machine=replace(record.machine, **change)))
    with pytest.raises(UsageError) as refused:
        run(tmp_path / "r", resume=True)
    assert told in str(refused.value)


def test_a_run_of_another_model_is_not_continued(tmp_path: Path, children: Children) -> None:
    run(tmp_path / "r")
    with pytest.raises(UsageError, match="holds a run of digits-mlp, not of digits-cnn"):
        run(tmp_path / "r", replace(REQUEST, model="digits-cnn"), resume=True)
    graph = write_text(tmp_path / "mine.onnx", "(float[batch, 3] x) => (float[batch, 3] y) { y = Relu(x) }")
    request = replace(REQUEST, model=str(graph))
    run(tmp_path / "s", request)
    run(tmp_path / "s", request, resume=True)
    write_text(graph, "(float[batch, 3] x) => (float[batch, 3] y) { y = Abs(x) }")
    with pytest.raises(UsageError, match=r"^mine\.onnx was changed after the run in"):
        run(tmp_path / "s", request, resume=True)


def test_a_configuration_of_another_model_is_refused_though_its_name_fits(tmp_path: Path, children: Children) -> None:
    root = tmp_path / "r"
    run(root)
    row = RunFolder(root).read_record().rows[0]
    other = RunFolder(root).read_result(row)
    assert other is not None
    RunFolder(root).write_result(replace(other, model="other-model"))
    with pytest.raises(ParseError, match=r"found 'other-model'; expected 'digits-mlp"):
        read_results(root)
    with pytest.raises(ParseError, match="Delete it to measure this configuration again"):
        run(root, resume=True)


def test_a_precision_that_cannot_be_made_is_remembered(tmp_path: Path, children: Children) -> None:
    """Its rows are skipped with the reason, also when the run is continued, and nobody tries again."""

    def refuse(job: Any) -> None:
        if isinstance(job, QuantizeJob):
            raise ChildFailed("killed by SIGKILL", "")

    children.before = refuse
    both = replace(REQUEST, precisions=(("fp32", None), ("int8", None)))
    record, results = run(tmp_path / "r", both)
    assert record.problems == {"int8@cpu": "killed by SIGKILL"}
    assert [r.status for r in results] == ["ok", "ok", "skipped", "skipped"]
    assert {r.reason for r in results[2:]} == {"no graph in int8@cpu: killed by SIGKILL"}
    children.jobs.clear()
    again, same = run(tmp_path / "r", resume=True)
    assert children.jobs == [] and (replace(again, took_s=record.took_s, parts_s=record.parts_s), same) == (
        record,
        results,
    )


@pytest.mark.parametrize("error", [ModelError("no weights"), UsageError("--no-such-thing"), ChildFailed("killed")])
@pytest.mark.parametrize("kind", [SourceJob, PrepareJob, MeasureJob])
def test_a_run_that_measured_nothing_does_not_block_its_folder(tmp_path, children, kind, error) -> None:
    """The corrected command is a run of its own: nothing of the first is taken for it, and nothing else is touched."""
    root, inputs = tmp_path / "r", tmp_path / "inputs.npz"
    root.mkdir()
    (root / "notes.txt").write_text("the user's")
    np.savez(inputs, input=np.full((1, 64), 7, np.float32))

    def refuse(job: Any) -> None:
        if isinstance(job, kind):
            raise error

    children.before = refuse
    first = replace(REQUEST, inputs=str(inputs), engines=(("fake", {"seed": "1"}), ("fake", {"seed": "3"})))
    with suppress(ModelError, UsageError, ChildFailed):
        run(root, first)
    children.before = lambda job: None
    children.jobs.clear()
    record, results = run(root)
    assert [(r.status, len(r.measurements)) for r in results] == [("ok", 2)] * 2 and record.request == REQUEST
    assert {job.inputs for job in children.of(MeasureJob)} == {None}, "those were inputs of the other command"
    assert sorted(path.stem for path in (root / "rows").iterdir()) == sorted(record.rows)
    assert (root / "notes.txt").read_text() == "the user's"


@pytest.mark.parametrize("text", ["{", '{"schema": "another-program/7", "request": {}}'])
def test_a_file_that_is_no_record_of_ours_is_not_replaced(tmp_path: Path, children: Children, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(UsageError, match="holds a run already"):
        run(tmp_path)
    assert (tmp_path / "run.json").read_text() == text and children.jobs == []


def test_a_folder_that_holds_a_run_is_left_alone(tmp_path: Path, children: Children) -> None:
    run(tmp_path / "r")
    before = {p: p.read_bytes() for p in (tmp_path / "r").rglob("*.json")}
    children.jobs.clear()
    with pytest.raises(UsageError, match="holds a run already; continue it with --resume"):
        run(tmp_path / "r")
    assert {p: p.read_bytes() for p in (tmp_path / "r").rglob("*.json")} == before and children.jobs == []
    folder = RunFolder(tmp_path / "r")
    folder.write_record(replace(folder.read_record(), verb="bench"))
    for resume, why in ((False, "holds a run already; choose another --out"), (True, "results of bench, which run")):
        with pytest.raises(UsageError, match=why):  # nothing continues a bench
            run(tmp_path / "r", resume=resume)


def test_pictures_without_labels_are_compared_and_fed(tmp_path: Path, children: Children) -> None:
    text = "(float[batch, 3, 8, 8] x) => (float[batch, 3] y) { m = GlobalAveragePool(x) y = Flatten(m) }"
    graph = write_text(tmp_path / "mine.onnx", text)
    (tmp_path / "flat").mkdir()
    for i in range(40):
        pixels = np.random.default_rng(i).integers(0, 256, (20, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "flat" / f"{i}.png")
    request = replace(REQUEST, model=str(graph), data=str(tmp_path / "flat"))
    record, results = run(tmp_path / "r", request)
    assert [(r.status, r.scores) for r in results] == [("ok", ())] * 2
    assert [(r.drift.n, r.drift.n_requested, r.drift.passed) for r in results if r.drift] == [(40, 40, True)] * 2
    assert not {c.code for r in results for c in r.warnings} & {"random_inputs", "no_score"}
    assert "compared on 40 images" in str(record.notes) and "is not in a class folder" in str(record.notes)
    assert len(list((tmp_path / "r" / "artefacts" / "samples").iterdir())) == 32, "those that are timed"
    with pytest.raises(UsageError, match=r"digits-mlp.onnx takes input .*SIDE"):
        run(tmp_path / "q", replace(REQUEST, model=str(DATA_DIR / "digits-mlp.onnx"), data=str(tmp_path / "flat")))
    assert not children.of(PrepareJob)[len(results) :], "refused before anything is built"


__all__ = ["still"]

OPTIONS = {"latency_us": "20", "process_sd": "0.1", "build_sd": "0.1"}
UNDISTURBED = RunRequest(
    model=str(DATA_DIR / "digits-mlp.onnx"),
    engines=tuple(("fake", {"seed": seed, **OPTIONS}) for seed in "12"),
    measure=MeasureSpec(warmup=1, iters=5, processes=2),
)
# Rows that cannot be built, answer otherwise, or ran in another precision; several batches; graphs made by the run.
FAULTY = tuple(("fake", {**OPTIONS, **more}) for more in ({"fault": "raise", "at": "build"}, {}, {"bias": "0.1"}))
REQUESTS = {
    "plain": UNDISTURBED,
    "faulty": replace(UNDISTURBED, engines=(*FAULTY, ("fake", {**OPTIONS, "ran": "fp16", "bias": "0.001"}))),
    "batches": replace(UNDISTURBED, batches=(1, 2)),
    "int8": replace(UNDISTURBED, precisions=(("fp32", None), ("int8", None))),
}


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("request_of", REQUESTS)
def test_whatever_the_moment_the_document_is_that_of_an_undisturbed_run(tmp_path: Path, request_of: str) -> None:
    def run(root: Path) -> object:
        folder = root / "run"
        found = run_model(REQUESTS[request_of], folder, reporter=Silent(), resume=holds_run(folder))
        return replace(describe_stored(*found), took_s=None, parts_s={})

    check_any_moment(run, tmp_path)
