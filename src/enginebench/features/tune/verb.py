"""`tune`: the fastest settings of any engine with the same outputs, and whether they beat the defaults."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import click

from enginebench import door
from enginebench import options as opts
from enginebench.core.commands import COMMAND
from enginebench.core.errors import UsageError
from enginebench.core.features import require_hook
from enginebench.core.hooks import BundlePlace, BundlePrinter, BundleWriter
from enginebench.core.records import MeasureSpec
from enginebench.core.text import parse_seconds
from enginebench.engines.registry import read_engines
from enginebench.features.tune.records import SearchRequest, TuneDocument, read_search
from enginebench.features.tune.space import Goal
from enginebench.options import Opt, PathLike, Unpack, verb
from enginebench.runs.folder import format_resume
from enginebench.runs.plan import LEFT_OUT_ON_GPUS, check_engines_here
from enginebench.runs.request import name_default_engines
from enginebench.verbs import common
from enginebench.verbs.requests import CheckingOutputs, read_mix, split_engines
from enginebench.verbs.requests import make_request as make_run_request


def parse_budget(text: str) -> float:
    seconds = parse_seconds(text)
    if seconds is None or not 0 < seconds < math.inf:
        raise UsageError(f"--time-budget {text!r}: expected a time such as 20m, 90s or 1.5h")
    return seconds


class TuneOptions(opts.Modules, opts.Judging, opts.Shared, total=False):
    engines: opts.Engines
    precisions: opts.Precisions
    goal: Annotated[
        Goal,
        Opt(
            "One request at a time, as many as possible at once, or the highest rate within --p99-limit-ms.",
            "latency",
            feature="load",
        ),
    ]
    time_budget: Annotated[
        str | float | None,
        Opt("Time for the search: 20m, 90s, 1.5h. [20m; with --resume what is left]", metavar="TIME"),
    ]
    limit: opts.Limit
    data: opts.Data
    p99_limit_ms: Annotated[float | None, Opt("SLO of the goal capacity.", gt=0, metavar="X", feature="load")]
    need: opts.Need
    traffic: opts.Traffic
    batch: Annotated[
        int | None,
        Opt("Batch size of the goal latency. [that of --input-shape, else of the example inputs, else 1]", ge=1),
    ]
    processes: Annotated[
        int, Opt("Trials (fresh processes) of each finalist, at least; a verdict needs 6.", 10, ge=1, le=1000)
    ]
    input_size: opts.InputSize
    timeout: opts.Timeout
    env: opts.Env
    resume: Annotated[bool, Opt("Continue the search in --out.", False)]
    deliver: Annotated[
        PathLike | None, Opt("Also deploy the winner to this folder.", path="new folder", feature="deliver")
    ]
    wait: opts.Wait
    out: Annotated[PathLike | None, Opt("Folder. [results/tune-MODEL-TIME]", path="new folder")]


@verb(TuneOptions)
def tune(model: opts.Model, **options: Unpack[TuneOptions]) -> TuneDocument:
    """Search the settings of every engine for the fastest that keeps the outputs of MODEL.

    Example: enginebench tune digits-cnn --engines ort --time-budget 60s

    Settings are measured in fresh, interleaved processes and dropped once an interval shows that they cannot win;
    options given with an ENGINE are not searched. The winner is re-measured against the default settings of every
    engine, to avoid selection bias; the result may be that the defaults are best.

    Args:
        model: as `run` takes it.

    Raises:
        UsageError: a value or a combination that cannot be.
        DependencyError: no engine can run here.
        MeasurementError: no setting could race, or nothing was measured within the budget.
        KeyboardInterrupt: what was found is kept in `out`; continue it with `resume`.
    """
    root = common.choose_root(options["out"], f"tune-{common.name_model(model)}")
    document, _ = search(model, options, root, lambda document, request: None)
    if options["deliver"] is not None:
        require_hook(BundleWriter)(root, options["deliver"], progress=options["progress"])
    return document


@door.command(tune, "MODEL", shown=opts.Trusting)
def command(model: str, shown: opts.Trusting, **options: Unpack[TuneOptions]) -> None:
    from enginebench.features.tune.sections import list_tune

    root = common.choose_root(options["out"], f"tune-{model}")

    def show(document: TuneDocument, request: SearchRequest) -> None:
        door.show(document, shown, door.tables(list_tune))
        if not shown["as_json"]:
            click.echo(f"\nStored in {root}", err=True)
        if not document.finished:
            command = format_resume("tune", request.run, root)
            click.echo(f"This search is not finished. To continue: {command} --time-budget MORE", err=True)

    _, notes = search(model, options, root, show)
    for note in notes:
        click.echo(note, err=True)
    if options["deliver"] is not None:
        require_hook(BundlePrinter)(root, options["deliver"])


def search(
    model: opts.Model, options: TuneOptions, root: Path, show: Callable[[TuneDocument, SearchRequest], None]
) -> tuple[TuneDocument, Sequence[str]]:
    """Run the search that the options request; return its document, and notes on its page. `show` gets the document,
    finished or not."""
    from enginebench.features.tune.session import tune_model

    if options["deliver"] is not None:
        require_hook(BundlePlace)(Path(options["deliver"]))
    common.remember_environments(options["env"])
    budget = options["time_budget"]
    with common.begin(model, options) as (taken, reporter):
        precisions = common.name_precisions(options["precisions"], options["device"])
        if options["precisions"] is None and precisions != "fp32":
            reporter.say(LEFT_OUT_ON_GPUS)
        request = make_request(taken.text, options | {"precisions": precisions}, taken.batch)
        if options["resume"]:
            stored = read_search(root).request
            requested, begun = ((one.run.measure, one.run, one) for one in (request, stored))
            common.refuse_changes(TuneOptions, options, requested, begun)
        document, notes = tune_model(
            request,
            root,
            reporter=reporter,
            resume=options["resume"],
            budget_s=None if budget is None else parse_budget(str(budget)),
            wait=options["wait"],
            command=COMMAND.get(),
            on_partial=lambda document: show(document, request),
        )
    show(document, request)
    return document, notes


def make_request(model: str, options: TuneOptions, default_batch: int | None = None) -> SearchRequest:
    from enginebench.stats.compare import MIN_TRIALS

    goal, limits, processes = options["goal"], common.read_limits(options["limit"]), options["processes"]
    batch = options["batch"] or (None if options["input_shape"] else default_batch)
    if options["resume"] and options["out"] is None:
        raise UsageError("--resume needs --out DIR, the folder of the search to continue")
    if (goal == "capacity") != (options["p99_limit_ms"] is not None):
        raise UsageError("--goal capacity needs --p99-limit-ms X, and no other goal takes it")
    if processes < MIN_TRIALS:
        raise UsageError(f"--processes {processes}: the final gives a verdict, which needs {MIN_TRIALS}")
    if limits and "samples" in limits:
        raise UsageError("--limit samples=... is for drift: in a search 98% of the samples keep snr")
    if goal != "latency" and options["batch"] not in (None, 1):
        raise UsageError(f"--goal {goal} chooses how many requests are computed together: leave --batch out")
    if options["need"] and goal != "latency":
        raise UsageError(f"--need: what a process needs is measured for --goal latency, not for {goal}")
    batches = None if batch is None else (batch,)
    refused = {
        "--batch": options["batch"] is not None and "the mix has the batches",
        f"--goal {goal}": goal != "latency" and "it puts one shape under load",
    }
    traffic = read_mix(options["traffic"], options, refused)
    if traffic:
        batches = (1,)
    if goal != "latency":  # which choose the batch themselves, whatever the example inputs have
        batches = (1,)
    precisions = common.read_precisions(options["precisions"] or "fp32")
    device = common.read_device(options["device"])
    engines = read_engines(options["engines"] or name_default_engines(device))
    delivered = options["deliver"] is not None and not options["resume"]  # which continues with what was begun
    run = make_run_request(
        model,
        options,
        engines=split_engines(engines, traffic, device, delivered=delivered) if traffic else engines,
        precisions=tuple(dict.fromkeys((("fp32", None), *precisions))),  # FP32 is always the reference of the outputs
        batches=batches,
        measure=MeasureSpec(seed=options["seed"], processes=processes),
        declared=CheckingOutputs,
        traffic=traffic,
    )
    check_engines_here(run.engines, precisions, device)
    limit_ms, threads = options["p99_limit_ms"], options["threads"]
    implied = {"any_engine": not options["engines"], "fp32_only_judges": ("fp32", None) not in precisions}
    return SearchRequest(run=run, goal=goal, limits=limits, threads=threads, p99_limit_ms=limit_ms, **implied)
