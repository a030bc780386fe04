"""`bisect`: find the first version of a package with which an engine is slower, or its outputs differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast

from msgspec.structs import replace

from enginebench import door
from enginebench import options as opts
from enginebench.core.errors import EngineBenchError, MeasurementError, UsageError
from enginebench.core.limits import REGRESSION_MARGIN
from enginebench.engines.registry import ENTRIES, read_engine
from enginebench.features.versions.env import cut_range, install_environment, list_index_versions
from enginebench.options import Opt, PathLike, Unpack, fill, verb
from enginebench.report.numbers import format_ratio, format_verdict
from enginebench.report.table import Section, list_texts, make_notes, make_table
from enginebench.runs.child.environments import OPTION, list_named_environments
from enginebench.runs.progress import Reporter
from enginebench.verbs import common
from enginebench.verbs.bench import BenchOptions, BenchRequest, bench_sides, open_bench_request, validate_bench

if TYPE_CHECKING:
    from enginebench.features.versions.document import BisectDocument
    from enginebench.stats.diff import DiffRow

# The outcome of a version, by its verdict, or by whether the outputs agree; none if it cannot be compared.
OUTCOMES = {
    "faster": "good",
    "equivalent": "good",
    "slower": "bad",
    "not_shown": "not_shown",
    True: "good",
    False: "bad",
}


class BisectOptions(opts.Modules, opts.Timing, opts.Shared, total=False):
    engine: Annotated[str | None, Opt("ENGINE[:key=value,...] that is measured. [the one that the package is for]")]
    margin: Annotated[float | str, Opt("How much slower is bad: 5% or 0.05.", REGRESSION_MARGIN, metavar="M")]
    drift: Annotated[bool, Opt("Bad means other outputs, not longer times.", False)]
    precision: opts.Precision
    batch: opts.Batch
    timeout: opts.Timeout
    wait: opts.Wait
    out: Annotated[PathLike | None, Opt("Folder of the measurements. [results/bisect-...]", path="new folder")]


Package: TypeAlias = Annotated[
    str, Opt("The package whose versions are installed and tried.", metavar="NAME", required=True, typed="--package {}")
]
Good: TypeAlias = Annotated[str, Opt("A version that is good; 1.24 is the newest 1.24.", metavar="V", required=True)]
Bad: TypeAlias = Annotated[str, Opt("A later version that is bad.", metavar="V", required=True)]


@verb(BisectOptions)
def bisect(
    model: opts.Model, package: Package, good: Good, bad: Bad, **options: Unpack[BisectOptions]
) -> BisectDocument:
    """Find the first version of a package with which an engine is slower on MODEL, or its outputs differ.

    Example: enginebench bisect resnet18 --package torch --good 2.11 --bad 2.13

    Each version is measured interleaved with the good one, in an environment that stays: `enginebench env list`.

    Args:
        model: as `run` takes it.

    Raises:
        UsageError: a version does not exist, or they are not in this order.
        BackendUnavailable: the package index cannot be reached, or a version cannot be installed.
        MeasurementError: two versions cannot be compared.
    """
    from enginebench.features.versions.document import BisectDocument
    from enginebench.runs.targets.ahead import check_ahead

    engine_text = options["engine"] or next((n for n, e in ENTRIES.items() if package.lower() in e.distributions), None)
    if engine_text is None:
        raise UsageError(f"no engine needs the package {package}; name the engine with --engine")
    engine, margin = read_engine(engine_text), common.read_share(options["margin"])
    root = common.choose_root(options["out"], f"bisect-{Path(common.name_model(model)).stem}-{package}")
    bench_options = cast(BenchOptions, fill(BenchOptions, {**options, "margin": margin, "against": engine_text}))
    with open_bench_request(model, engine_text, bench_options) as (request, reporter):
        check_ahead([request.own])
        versions = cut_range(list_index_versions(package), package, good, bad)
        comparison = VersionComparison(package, engine, versions, request, root, margin, reporter, options)
        worse = comparison.try_version(versions[-1]) == "bad"
        low, high = narrow_range(versions, comparison.try_version) if worse else (0, len(versions) - 1)
    undecided = tuple(versions[low + 1 : high + 1]) if worse and high > low + 1 else ()
    first = versions[high] if worse and not undecided else None
    return BisectDocument(
        package=package,
        engine=engine[0],
        by="drift" if options["drift"] else "time",
        good=versions[0],
        bad=versions[-1],
        first_bad=first,
        last_good=versions[low] if worse else None,
        undecided=undecided,
        changed=comparison.changed[first or versions[-1]],
        tried=tuple(comparison.tried),
    )


class VersionComparison:
    """Compares versions of a package with the good one, the first of `versions`; the last one is the bad one."""

    def __init__(
        self,
        package: str,
        engine: tuple[str, dict[str, str]],
        versions: Sequence[str],
        request: BenchRequest,
        root: Path,
        margin: float,
        reporter: Reporter,
        options: BisectOptions,
    ) -> None:
        self._package, self._engine, self._versions, self._request = package, engine, versions, request
        self._root, self._margin, self._reporter, self._options = root, margin, reporter, options
        self.tried: list[DiffRow] = []
        self.changed: dict[str, tuple[str, ...]] = {}  # version -> what changed with it

    def try_version(self, version: str) -> str | None:
        """Return the outcome of a version, tried with more and more processes until there is one."""
        outcome = None
        for factor in (1, 2, 4):
            row = self._compare(version, self._request.own.measure.processes * factor)
            self.tried.append(row)
            outcome = OUTCOMES.get(row.outputs_agree if self._options["drift"] else row.verdict)
            if outcome is None and version == self._versions[-1]:
                raise MeasurementError(f"{self._package} {version} cannot be compared: {'; '.join(row.reasons)}")
            if outcome != "not_shown":
                break
        return outcome

    def _compare(self, version: str, processes: int) -> DiffRow:
        """Measure a version beside the good one; what fails is a reason, but for the bad version."""
        from enginebench.features.versions.upgrade import describe_change, describe_upgrade
        from enginebench.stats.diff import DiffRow, diff_results, find_losses

        pair = (self._versions[0], version)
        try:
            install_versions(self._package, pair, self._reporter)
            old, new = bench_sides(
                self._request_pair(pair, processes),
                self._root / f"{version}-{processes}",
                reporter=self._reporter,
                wait=self._options["wait"],
            )
            (row,) = diff_results([old], [new], self._margin, neighbours=True, same_inputs=True).rows
            change = describe_upgrade(describe_change(new.model, old, new))
            self.changed[version] = (*find_losses(old, new), *change)
        except EngineBenchError as error:
            if version == self._versions[-1] or isinstance(error, UsageError):
                raise
            row = DiffRow(id=version, verdict="not_comparable", ratio=None, reasons=(str(error),))
        return replace(row, id=version)

    def _request_pair(self, versions: tuple[str, str], processes: int) -> BenchRequest:
        """Return the request that measures two versions, each in its environment; the second is the candidate."""
        (name, settings), own, other = self._engine, self._request.own, self._request.other
        assert other is not None  # `bisect` asks for it
        base, candidate = ((name, {**settings, OPTION: f"{self._package}-{version}"}) for version in versions)
        measure = replace(own.measure, processes=processes, settle=None)
        request = BenchRequest(
            own=replace(own, engines=(candidate,), measure=measure),
            other=replace(other, engines=(base,), measure=measure),
        )
        validate_bench(request)
        return request


def install_versions(package: str, versions: Iterable[str], reporter: Reporter) -> None:
    """Install an environment for each of these versions that has none yet."""
    for version in versions:
        if f"{package}-{version}" not in list_named_environments():
            install_environment(f"{package}-{version}", [f"{package}=={version}"], reporter=reporter)


def narrow_range(versions: Sequence[str], try_version: Callable[[str], str | None]) -> tuple[int, int]:
    """Return the indexes of the last good and the first bad version; those between them have no outcome.

    The first version is good, and the last one is bad. The one nearest to the middle is tried next.
    """
    low, high, seen = 0, len(versions) - 1, set[int]()
    while left := set(range(low + 1, high)) - seen:
        middle = min(left, key=lambda i: (abs(2 * i - low - high), i))
        seen.add(middle)
        outcome = try_version(versions[middle])
        if outcome == "good":
            low = middle
        elif outcome == "bad":
            high = middle
    return low, high


@door.command(bisect, "MODEL", shown=opts.Native)
def command(model: str, shown: opts.Printed, **options: Any) -> None:
    door.show(bisect(model, **options), shown, door.tables(list_bisect))


def list_bisect(document: BisectDocument) -> list[Section]:
    what = "significantly slower" if document.by == "time" else "different in its outputs"
    left = [f"{row.id}: {'; '.join(row.reasons)}." for row in document.tried if row.verdict == "not_comparable"]
    unsure = document.by == "time" and document.tried[-1].verdict == "not_shown"
    open_end = ", but not shown to be as fast either" if unsure else ""
    text = f"{document.package} {document.bad} is not {what}{open_end}."
    if document.first_bad:
        text = f"{document.package} {document.first_bad} is the first that is {what}; {document.last_good} is not."
    elif document.undecided:
        more = "" if left else " Raise --processes to decide."
        text = f"One of {', '.join(document.undecided)} is the first that is {what}.{more}"
    notes = make_notes([text, *left, *(f"The record differs: {line}." for line in document.changed)])
    ratios = [(str(row.ratio.n), format_ratio(row.ratio)) if row.ratio else ("-", "-") for row in document.tried]
    outputs = {True: "same", False: "changed", None: "-"}
    verdicts = [(row.id, format_verdict(row.verdict), outputs[row.outputs_agree]) for row in document.tried]
    columns = list_texts(("version", f"against {document.good}", "outputs"), ("trials", "ratio"))
    return [Section(parts=(*notes, make_table(columns, [a + b for a, b in zip(verdicts, ratios, strict=True)])))]
