"""`run`: the main job: every engine measured on a model, each checked for its outputs."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click

from enginebench import door
from enginebench import options as opts
from enginebench.core.commands import COMMAND
from enginebench.core.errors import EngineBenchError, UsageError
from enginebench.core.features import require_hook
from enginebench.core.hooks import BundlePlace, BundlePrinter
from enginebench.core.names import format_options
from enginebench.core.records import Result
from enginebench.engines.registry import read_engine, read_engines
from enginebench.models.zoo import OBJECT
from enginebench.options import Opt, PathLike, Unpack, verb
from enginebench.runs.folder import REPEAT, RunFolder, RunRecord, RunRequest, format_resume
from enginebench.runs.progress import Reporter
from enginebench.runs.request import name_default_engines, pass_on, use_trtexec
from enginebench.verbs import common
from enginebench.verbs.requests import make_measure, make_request

# What most people need first, in the order of --help.
FIRST = ("engines", "precisions", "batch", "device", "data", "inputs", "quick", "deliver", "config", "out")

# What reads NumPy is read where it works: --help can do without.
if TYPE_CHECKING:
    from enginebench.verbs.runs import Run


class RunOptions(opts.Modules, opts.Judging, opts.Timing, opts.Shared, total=False):
    engines: opts.Engines
    precisions: opts.Precisions
    batch: Annotated[
        int | str | Sequence[int] | None,
        Opt("Batch sizes, separated by commas. [that of --input-shape, else of the example inputs, else 1]"),
    ]
    quick: Annotated[
        bool,
        Opt(
            "One short trial per configuration, for a first impression: no verdicts.",
            False,
            more="At most 1 s, whatever `--processes` is",
        ),
    ]
    baseline: Annotated[
        str | None,
        Opt(
            "Engine that speed-ups refer to. [pytorch, else the first]",
            metavar="ENGINE",
            more="It is measured first in every round",
        ),
    ]
    data: opts.Data
    calibration_method: Annotated[
        Literal["minmax", "entropy", "percentile"], Opt("How the ranges of 8-bit graphs are calibrated.", "minmax")
    ]
    p99_limit_ms: Annotated[float | None, Opt("SLO: highest p99 of the recommended configuration.", gt=0, metavar="X")]
    need: opts.Need
    for_calls: Annotated[
        int | None,
        Opt(
            "Compare the time of a new process with N calls, not that of one call.",
            ge=1,
            metavar="N",
            more="From importing the engine to its last output ([what a process costs](life.md))",
        ),
    ]
    traffic: opts.Traffic
    load_p99_ms: Annotated[
        float | None,
        Opt(
            "Find the highest request rate at which the winners meet this p99.",
            gt=0,
            metavar="X",
            more="It is added to the table ([load](load.md))",
            feature="load",
        ),
    ]
    limit: opts.Limit
    strict_precision: Annotated[
        bool, Opt("Exit with code 4 if a configuration ran in another precision than requested.", False)
    ]
    input_size: opts.InputSize
    dynamic_axes: opts.Axes
    timeout: opts.Timeout
    extra: Annotated[
        Sequence[str],
        Opt(
            "Extra arguments for trtexec, each split as by a shell; the command line has them after --.",
            (),
            program=True,
            typed="-- {}",
            feature="trtexec",
        ),
    ]
    trtexec: Annotated[
        str | None,
        Opt(
            "The trtexec executable, as `trtexec:path=PATH` among the engines. [$TRTEXEC, PATH, the usual folders]",
            program=True,
            typed="--engines trtexec:path={}",
            feature="trtexec",
        ),
    ]
    env: opts.Env
    builds: opts.Builds
    resume: Annotated[
        bool,
        Opt(
            "Continue the run in --out.",
            False,
            more="It continues with the options given then, which may be left out, but not changed. What named code "
            "or a file outside the folder must be given again: `--data`, `--targets`, `--inputs`, `--weights`, "
            "`--metric`, `--ort-extension`, options of an ENGINE. Another MODEL, processor, GPU or version of a "
            "package is refused: the results would not be comparable",
        ),
    ]
    deliver: Annotated[
        PathLike | None,
        Opt("Also deploy the recommended configuration to this folder.", path="new folder", feature="deliver"),
    ]
    wait: opts.Wait
    out: Annotated[
        PathLike | None,
        Opt(
            "Folder of the run. [results/MODEL-TIME]",
            path="new folder",
            more="It must not hold results of another run, unless `--resume`",
        ),
    ]


@verb(RunOptions)
def run(model: opts.Model, **options: Unpack[RunOptions]) -> "Run":
    """Benchmark MODEL on several engines, verify that their outputs agree, and print the table.

    Example: enginebench run digits-cnn --engines pytorch,ort --quick

    MODEL is exported and every engine built. Every trial is a fresh process and the engines are interleaved, so that
    changes of the machine's speed affect all of them alike. Results are stored after each trial; continue a stopped run
    with --resume.

    Args:
        model: a name (see `list_models`), `timm:NAME`, the path of an .onnx file, `package.module:factory`, or a
            `torch.nn.Module`. A module is measured as a copy in eval mode; it stays as it is itself.

    Raises:
        UsageError: a value or a combination that cannot be.
        ModelError: the model cannot be found, built or exported, or something in a module cannot leave this process.
        BackendUnavailable: no row could run here.
        MeasurementError: the baseline, or every other row, is not ok. The rows are kept in the folder all the same.
        KeyboardInterrupt: what was measured is kept; a note on the exception says where.
    """
    from enginebench.runs.main_job import run_model
    from enginebench.verbs.runs import Run, note_folder

    root = common.choose_root(options["out"], common.name_model(model))
    with open_run_request(model, options, root) as (request, reporter), note_folder(root):
        resume, wait = options["resume"], options["wait"]
        record, results = run_model(request, root, reporter=reporter, resume=resume, wait=wait)
        done = Run(root, record, tuple(results)).check(strict_precision=options["strict_precision"])
    if options["deliver"] is not None:
        done.deliver(options["deliver"])
    return done


class RunPrinted(opts.Wide, opts.Trusting, total=False):
    """Options of printing, and code that a run to --resume names."""


@door.command(run, "MODEL", "[ARG]...", shown=RunPrinted, first=FIRST)
def command(model: str, arguments: tuple[str, ...], shown: RunPrinted, **options: Unpack[RunOptions]) -> None:
    from enginebench.report.run.sections import list_sections
    from enginebench.runs.classes import format_top_classes
    from enginebench.runs.main_job import run_model
    from enginebench.runs.reporting import plan_deployment
    from enginebench.verbs.runs import Run

    options["extra"] = (*options["extra"], *map(shlex.quote, arguments))
    root = common.choose_root(options["out"], model)
    with print_partial(root) as on_results, open_run_request(model, options, root) as (request, reporter):
        command_line, resume, wait = COMMAND.get(), options["resume"], options["wait"]
        record, results = run_model(
            request, root, reporter=reporter, resume=resume, wait=wait, command=command_line, on_results=on_results
        )
    done = Run(root, record, tuple(results))
    document = done.document
    deployment = plan_deployment(root, record, results)
    list_parts = partial(
        list_sections, folder=root, wide=shown["wide"], warnings=shown["warnings"], deployment=deployment
    )
    try:
        written = done.write_report(("html", "md", "csv", "png"))
    finally:  # also where the disk is full
        door.show(document, shown, door.tables(list_parts))
    if not shown["as_json"]:
        if lines := list(format_top_classes(RunFolder(root), record, document)):
            click.echo("\n".join(["", *lines]))
        options_file = [REPEAT] if (root / REPEAT).exists() else []  # a run of earlier versions has none
        names = ", ".join([*options_file, *(path.name for path in written.paths if path.suffix != ".png")])
        stored = f"\nStored in {root}: rows/*.json (raw samples), {names}"
        click.echo("\n".join([stored, *written.notes]), err=True)
    done.check(strict_precision=options["strict_precision"])
    if options["deliver"] is not None:
        require_hook(BundlePrinter)(root, options["deliver"])


@contextmanager
def open_run_request(model: opts.Model, options: RunOptions, root: Path) -> Iterator[tuple[RunRequest, Reporter]]:
    """Yield the request that the options make, and the reporter of progress; children can open a module meanwhile."""
    if options["deliver"] is not None:
        if options["scope"] == "pipelined":
            raise UsageError("--deliver: a bundle times one batch at a time. Give --scope io or compute")
        require_hook(BundlePlace)(Path(options["deliver"]))
    resume = options["resume"]
    if resume and options["out"] is None:
        raise UsageError("--resume needs --out DIR, the folder of the run to continue")
    common.remember_environments(options["env"])
    device = common.read_device(options["device"])
    default_engines = name_default_engines(device, options["scope"])
    chosen = read_engines(default_engines if options["engines"] is None else options["engines"])
    engines = chosen if resume else pass_on(chosen, options["extra"])
    if options["baseline"] is not None and read_engine(options["baseline"]) not in engines:
        listed = ",".join(format_options(*engine) for engine in engines)
        raise UsageError(f"--baseline {options['baseline']} is not among --engines {listed}")
    # A stored run names its own engines.
    use_trtexec(options["trtexec"], None if resume else [name for name, _ in chosen])
    any_engine = options["engines"] is None
    measure = make_measure(options, options["seed"], quick=options["quick"], builds=options["builds"])
    with common.begin(model, options) as (taken, reporter):
        precisions = common.name_precisions(options["precisions"], device, any_cpu=any_engine)
        request = make_request(
            taken.text,
            options,
            engines=engines,
            precisions=common.read_precisions(precisions),
            batches=common.parse_batches(options["batch"], options, taken),
            measure=measure,
            declared=RunOptions,
        )
        stored = RunFolder(root).read_record().request if resume else request
        if not resume:
            common.check_extra(request)
        elif stored.model != taken.text and OBJECT.fullmatch(taken.text):
            raise UsageError(
                f"{root} holds a run of {stored.model}, and this module is {taken.text}: another one, or one whose "
                "class a script or notebook defines, which is another one in each process. Start a new run in another "
                "folder; a run of package.module:factory can be continued anywhere"
            )
        common.refuse_changes(RunOptions, options, (request.measure, request), (stored.measure, stored))
        yield request, reporter


@contextmanager
def print_partial(root: Path) -> Iterator[Callable[[RunRecord, list[Result]], None]]:
    """Yield a function that takes results, and print the latest if the block ends in an error or an interrupt."""
    from rich.console import Console

    from enginebench.report.run.sections import list_sections
    from enginebench.report.terminal import print_sections
    from enginebench.runs.reporting import describe_stored, plan_deployment

    latest: list[tuple[RunRecord, list[Result]]] = []
    try:
        yield lambda record, results: latest.append((record, results))
    except (KeyboardInterrupt, EngineBenchError):
        record, results = latest[-1] if latest else (None, [])
        if record is not None and any(result.measurements for result in results):
            deployment = plan_deployment(root, record, results)
            parts = list_sections(describe_stored(record, results), folder=root, deployment=deployment)
            print_sections(parts, Console(highlight=False))
            command = format_resume("run", record.request, root)
            click.echo(f"\nThis run is not finished. To continue: {command}", err=True)
        raise
