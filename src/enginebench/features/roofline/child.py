"""The child's part of `roofline`: one device, one number of threads, every ceiling of it."""

from contextlib import suppress
from typing import Any

from enginebench.core.errors import MissingDependency, UsageError
from enginebench.core.records import Precision
from enginebench.features.roofline.ceilings import join_best, observe
from enginebench.features.roofline.jobs import CeilingsAnswer, CeilingsJob
from enginebench.measure.machine import describe_machine
from enginebench.runs.child.jobs import NoteCall


def perform_ceilings(job: CeilingsJob, note: NoteCall) -> CeilingsAnswer:
    note(f"peaks of {job.device}" + (f", {job.threads} threads" if job.device == "cpu" else ""))
    return _observe_cpu(job) if job.device == "cpu" else _observe_gpu(job)


def _observe_cpu(job: CeilingsJob) -> CeilingsAnswer:
    from enginebench.measure.pin import pin_process

    pinned = pin_process(job.threads)
    import torch

    from enginebench.features.roofline.trials_cpu import list_precisions, list_trials
    from enginebench.measure.caches import read_caches

    torch.set_num_threads(job.threads)
    possible = list_precisions(describe_machine().cpu_flags)
    precisions = _choose(job.precisions, possible, "no instructions of this CPU multiply in")
    caches = read_caches(pinned[0] if pinned else 0)
    with torch.inference_mode():
        trials = [*list_trials(precisions, caches, job.threads)]
        with suppress(MissingDependency):  # ONNX Runtime and OpenVINO: a ceiling is the best that any library reaches
            from enginebench.features.roofline import trials_graph

            trials += trials_graph.list_trials(precisions, job.threads)
        found = observe(trials, device="cpu", threads=job.threads, budget_s=job.budget_s, repetitions=job.repetitions)
    notes = () if caches else ("the system does not list the caches of this CPU: only memory was measured",)
    return CeilingsAnswer(
        ceilings=join_best(found),
        notes=(*notes, *_note_missing(job.precisions, precisions, "no instructions of this CPU multiply in")),
    )


def _observe_gpu(job: CeilingsJob) -> CeilingsAnswer:
    import torch

    from enginebench.core.errors import BackendUnavailable
    from enginebench.features.roofline.trials_gpu import PRECISIONS, list_host_trials, list_trials, make_timer

    if not torch.cuda.is_available():
        raise BackendUnavailable(f"PyTorch {torch.__version__} sees no GPU, so that {job.device} has no roofline")
    timer = make_timer(job.device)
    wanted = _choose(job.precisions, PRECISIONS, "a GPU's peaks are not known in")
    with torch.inference_mode():
        how: dict[str, Any] = {"device": job.device, "threads": None, "budget_s": job.budget_s}
        how["repetitions"] = job.repetitions
        found = observe(list_trials(wanted, quick=job.quick), timer=timer, **how)
        found += observe(list_host_trials(), **how)
    return CeilingsAnswer(
        ceilings=join_best(found),
        notes=_note_missing(
            wanted,
            [one.precision for one in found if one.precision],
            "neither this GPU nor this build of PyTorch multiplies in",
        ),
    )


def _choose(asked: tuple[Precision, ...], possible: tuple[Precision, ...], why: str) -> tuple[Precision, ...]:
    chosen = tuple(precision for precision in asked or possible if precision in possible)
    if not chosen:
        raise UsageError(f"--precisions {','.join(asked)}: {why} it. Possible: {', '.join(possible)}")
    return chosen


def _note_missing(
    asked: tuple[Precision, ...], seen: tuple[Precision, ...] | list[Precision], why: str
) -> tuple[str, ...]:
    missing = [precision for precision in asked if precision not in seen]
    return (f"{why} {', '.join(missing)}",) if missing else ()
