"""`diff`: two stored runs by configuration, two environments, or the engines of both on the same samples now."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from msgspec.structs import replace

from enginebench import door
from enginebench.core.errors import GateFailed, UsageError
from enginebench.core.features import require_hook
from enginebench.core.hooks import EnvironmentDiff
from enginebench.core.records import Result
from enginebench.core.store import explain_writing, write_atomic
from enginebench.options import Margin, Opt, PathLike, Printed, Progress, Store, TaskOption, Top1Drop, Unpack, verb
from enginebench.report.markdown import format_sections
from enginebench.runs.folder import RunFolder, read_configurations
from enginebench.runs.request import choose_drop
from enginebench.verbs.accuracy import accuracy, check_labelled
from enginebench.verbs.common import to_path, to_text
from enginebench.verbs.runs import Run

if TYPE_CHECKING:
    from enginebench.stats.diff import DiffDocument

Stored: TypeAlias = Run | str | os.PathLike[str]


class DiffOptions(Progress, total=False):
    between: Annotated[
        str | None,
        Opt(
            "Compare two environments that each RUN measured, interleaved; NEW is the current one if left out.",
            metavar="OLD[,NEW]",
            feature="versions",
            more="Compared are time, outputs, accuracy, memory, build, size and layers of each configuration",
        ),
    ]
    margin: Margin
    gate: Annotated[
        bool,
        Opt(
            "Exit with code 4 if a configuration is slower, less accurate, or cannot be compared.",
            False,
            more="It is also less accurate if it no longer agrees with the reference of its run, or ran in another "
            "precision",
        ),
    ]
    allow_not_comparable: Annotated[
        bool, Opt("With --gate, pass what cannot be compared, but nothing that failed.", False)
    ]
    metric: Annotated[
        str | None,
        Opt(
            "Metric that both runs stored, or, with one of the next four, that is computed now. [the first one]",
            metavar="NAME|package.module:function",
        ),
    ]
    targets: Annotated[
        PathLike | None,
        Opt(
            "Targets (labels), one for each sample: an .npz, .npy, .json, .csv or .txt file.",
            metavar="F",
            more="See [targets](metrics.md#the-file-of-targets)",
        ),
    ]
    inputs: Annotated[
        PathLike | None,
        Opt(
            "Samples that both sides are given now, with --targets. [those of CAND]",
            metavar="F.npz|DIR|package.module:function",
        ),
    ]
    data: Annotated[
        PathLike | None, Opt("Or a folder with one folder per class, or digits.", metavar="DIR|F.npz|digits")
    ]
    task: TaskOption
    max_metric_drop: Annotated[
        float | None,
        Opt(
            "With --gate, allowed loss of the metric, in its own unit. [0.01 of a fraction, 1% of anything else]",
            ge=0,
            metavar="X",
        ),
    ]
    max_top1_drop: Top1Drop
    store: Store


class DiffPrinted(Printed, total=False):
    junit: Annotated[PathLike | None, Opt("Write the verdicts as JUnit XML.", metavar="F", path="new file")]
    summary: Annotated[
        PathLike | None,
        Opt("Append the table as markdown, for example to $GITHUB_STEP_SUMMARY.", metavar="F", path="new file"),
    ]


@verb(DiffOptions)
def diff(base: Stored | Sequence[Stored], cand: Stored | None = None, **options: Unpack[DiffOptions]) -> "DiffDocument":
    """Compare each configuration of CAND with BASE: faster, slower, equivalent, inconclusive or not comparable.

    Example: enginebench diff results/before results/after --gate

    Example: enginebench diff results/resnet18 results/bert --between old --gate

    BASE and CAND are folders of runs, files of stored results, or names of saved baselines. Runs made at different
    times can be compared only if the machine was in the same state: the fixed reference kernel, timed in every trial,
    must have taken as long. Two results of one run are interleaved and need no such check. For a gate in CI, prefer
    `enginebench bench TARGET --against SIDE`, which measures both sides now.

    With --between it is an upgrade report: each RUN measured the same configurations in two environments (run
    --engines ort:env=old,ort). It lists time, outputs, memory, build and size before and after, and the layers that
    changed.

    With --targets the engines of both runs are scored now on the same samples by --metric, instead of the stored
    scores.

    --gate fails on a configuration that is slower, lost accuracy (or no longer agrees with its reference), ran in
    another precision than before, or cannot be compared.

    Args:
        base: also a `Run`; with `between` one run, or several.
        cand: the same; nothing with `between`.

    Raises:
        UsageError: two sides are not what was given, a run has no results of an environment, or a metric fails.
        ArtifactError: a side is none of these, or damaged.
        GateFailed: under `gate`.
    """
    from enginebench.runs.baselines import are_neighbours, find_side, read_side
    from enginebench.stats.diff import DiffDocument, diff_results

    bases = [base] if isinstance(base, Run | str | os.PathLike) else list(base)
    sides = [os.fspath(side.folder if isinstance(side, Run) else side) for side in (*bases, cand) if side is not None]
    store, between = to_path(options["store"]), options["between"]
    scores_again = any((options["targets"], options["data"], options["inputs"], options["task"]))
    drop = choose_drop(options["max_metric_drop"], options["max_top1_drop"], _name_metric(options))
    if between is None and len(sides) != 2:
        raise UsageError(f"expected BASE and CAND, found {len(sides)}; several runs need --between")
    if scores_again and between is not None:
        raise UsageError("--between compares what the runs stored; leave out --targets, --inputs, --data and --task")
    compare: Callable[..., DiffDocument]
    if between is not None:
        compare = partial(require_hook(EnvironmentDiff), [Path(side) for side in sides], between)
    elif scores_again:
        compare = partial(diff_results, *score_again(find_side(sides[0], store), find_side(sides[1], store), options))
    else:
        neighbours = are_neighbours(sides[0], sides[1], store)
        compare = partial(diff_results, read_side(sides[0], store), read_side(sides[1], store), neighbours=neighbours)
    lenient, metric = options["allow_not_comparable"], options["metric"]
    document = compare(options["margin"], allow_not_comparable=lenient, metric=metric, max_metric_drop=drop)
    return require_gate(document) if options["gate"] else document


@door.command(diff, "BASE", "CAND", shown=DiffPrinted)
def command(base: str, cand: tuple[str, ...], shown: DiffPrinted, **options: Unpack[DiffOptions]) -> None:
    from enginebench.report.run.diff import list_diff

    gate, options["gate"] = options["gate"], False
    document = diff((base, *cand), **options)
    door.show(document, shown, door.tables(partial(list_diff, gate=gate)))
    write_verdict(document, shown, gate=gate)
    if gate:
        require_gate(document)


def require_gate(document: "DiffDocument") -> "DiffDocument":
    if document.gate_failed:
        failed = [f"{row.id}: {', '.join(row.failures)}" for row in document.rows if row.failures]
        raise GateFailed(f"the gate failed. {'; '.join(failed) or 'There are no configurations to compare'}")
    return document


def write_verdict(document: "DiffDocument", shown: DiffPrinted, *, gate: bool) -> None:
    """Write JUnit XML and append the markdown to the summary, as CI servers expect."""
    from enginebench.report.run.diff import format_junit, list_diff

    if shown["junit"] is not None:
        write_atomic(Path(shown["junit"]), format_junit(document).encode())
    if shown["summary"] is not None:
        summary = Path(shown["summary"])
        with explain_writing(summary):
            summary.parent.mkdir(parents=True, exist_ok=True)
            with summary.open("a", encoding="utf-8") as file:
                file.write(format_sections(list_diff(document, gate=gate), level=3))


def _name_metric(options: DiffOptions) -> tuple[str, ...]:
    return (options["metric"],) if options["metric"] else ()


def score_again(base: Path, cand: Path, options: DiffOptions) -> tuple[Sequence[Result], Sequence[Result]]:
    """Return the configurations of both sides, scored by the outputs that their engines give now.

    A side is a run's folder, or the file of a stored result. Without inputs and data those are used that the candidate
    was measured on. Only scores change: times and drift stay as stored. A configuration that did not run, or that the
    other side lacks, has no score.
    """
    from enginebench.stats.diff import pair_results

    data, targets = to_text(options["data"]), to_text(options["targets"])
    inputs = options["inputs"] if data is not None or options["inputs"] is not None else _find_inputs(cand)
    check_labelled(data, targets)
    stored = read_configurations(base), read_configurations(cand)
    scored = [{result.id: replace(result, scores=()) for result in side} for side in stored]
    for before, now in pair_results(*stored):
        if before is None or now is None or before.status != "ok" or now.status != "ok":
            continue
        document = accuracy(
            _find_file(cand, now),
            data,
            ref=_find_file(base, before),
            inputs=inputs,
            metric=_name_metric(options),
            targets=targets,
            task=options["task"],
            progress=options["progress"],
            gate=False,
        )
        scored[0][before.id] = replace(before, scores=document.reference_scores)
        scored[1][now.id] = replace(now, scores=document.scores)
    return tuple(scored[0].values()), tuple(scored[1].values())


def _find_file(side: Path, result: Result) -> Path:
    return RunFolder(side).configuration_path(result.id) if side.is_dir() else side


def _find_inputs(side: Path) -> str:
    from enginebench.models.samples import find_samples

    folder = RunFolder(side if side.is_dir() else side.parent.parent)
    if (samples := find_samples(folder.artifacts)) is None:
        raise UsageError(
            f"{side} was measured on inputs that were made up; name labelled samples with --inputs and --targets, or "
            "with --data"
        )
    return samples
