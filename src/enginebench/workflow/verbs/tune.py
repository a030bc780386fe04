"""`tune`: the fastest settings of any engine that still gives the same answers, and whether they beat the defaults."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from enginebench.analyze.compare import MIN_REPETITIONS
from enginebench.core.errors import UsageError
from enginebench.core.records import MeasureSpec, Precision, Recipe, Task
from enginebench.report.tune.document import TuneDocument
from enginebench.workflow.progress import Reporter
from enginebench.workflow.request import Shared
from enginebench.workflow.search.records import SearchRequest
from enginebench.workflow.search.space import Goal
from enginebench.workflow.verbs.deliver import NO_WINNER, DeliverDocument, deliver_row

UNITS_OF_TIME = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([smh]?)")


def parse_budget(text: str) -> float:
    """Seconds of `20m`, `90s`, `1.5h` or `90`.

    Raises:
        UsageError: it is no such text, or no time at all.
    """
    found = _TIME.fullmatch(text.strip())
    seconds = float(found[1]) * UNITS_OF_TIME[found[2]] if found else 0.0
    if not 0 < seconds < math.inf:
        raise UsageError(f"--time-budget {text!r}: expected a time such as 20m, 90s or 1.5h")
    return seconds


def make_request(
    shared: Shared,
    model: str,
    engines: Sequence[tuple[str, dict[str, str]]],
    precisions: Sequence[tuple[Precision, Recipe | None]],
    *,
    goal: Goal,
    limits: dict[str, float] | None,
    data: str | None,
    p99_limit_ms: float | None,
    batch: int | None,
    processes: int,
    input_size: int | None,
    timeout_s: float,
    metrics: tuple[str, ...],
    targets: str | None,
    task: Task | None,
    max_drop: float | None,
    resume: bool,
) -> SearchRequest:
    """The request for a search.

    Args:
        resume: a search is to be continued, and nobody says where.

    Raises:
        UsageError: something is missing, or would be ignored.
    """
    if resume:
        raise UsageError("--resume needs --out DIR, the folder of the search to continue")
    if (goal == "capacity") != (p99_limit_ms is not None):
        raise UsageError("--goal capacity needs --p99-limit-ms X, and no other goal takes it")
    if processes < MIN_REPETITIONS:
        raise UsageError(f"--processes {processes}: the final gives a verdict, which needs {MIN_REPETITIONS}")
    if limits and "samples" in limits:
        raise UsageError("--limit samples=... is for drift: in a search 98% of the samples keep snr")
    if goal != "latency" and batch not in (None, 1):
        raise UsageError(f"--goal {goal} chooses how many requests are computed together: leave --batch out")
    measure = MeasureSpec(seed=shared.seed, processes=processes)
    batches = None if batch is None else (batch,)
    run = shared.make_request(
        model, engines=engines, precisions=precisions, batches=batches, measure=measure, input_size=input_size
    )
    if len(run.batches) > 1 or run.buckets:
        raise UsageError("a search is about one batch and one set of shapes: give one --input-shape")
    run = replace(
        run, timeout_s=timeout_s, data=data, metrics=metrics, targets=targets, task=task, max_metric_drop=max_drop
    )
    return SearchRequest(run=run, goal=goal, limits=limits, threads=shared.threads, p99_limit_ms=p99_limit_ms)


def deliver_winner(root: Path, document: TuneDocument, out: Path, *, reporter: Reporter) -> DeliverDocument:
    """Writes the winner as a bundle.

    Raises:
        UsageError: there is no winner, or its row cannot be delivered.
        ArtifactError: the bundle does not answer like its row.
    """
    if document.winner is None or document.winner.id is None:
        raise UsageError(NO_WINNER)
    return deliver_row(root, out, row=document.winner.id, reporter=reporter)
