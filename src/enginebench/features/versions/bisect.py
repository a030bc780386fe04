"""`bisect`: the first version of a package with which an engine is slower, or its outputs differ."""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, Unpack, cast

from msgspec import Struct
from msgspec.structs import replace

from enginebench import door
from enginebench import options as opts
from enginebench.core.errors import EngineBenchError, MeasurementError, UsageError
from enginebench.core.limits import REGRESSION_MARGIN
from enginebench.engines.registry import ENTRIES, read_engine
from enginebench.features.versions.env import cut_range, install_environment, list_index_versions
from enginebench.features.versions.upgrade import describe_change, describe_upgrade
from enginebench.options import Opt, PathLike, fill, verb
from enginebench.report.numbers import format_ratio, format_verdict
from enginebench.report.table import Section, list_texts, make_notes, make_table
from enginebench.runs.child.places import OPTION, list_named_environments
from enginebench.stats.diff import DiffRow, diff_results, find_losses
from enginebench.verbs import given
from enginebench.verbs.bench import BenchOptions, bench_sides, open_bench_request

# What a verdict, or whether outputs agree, says of a version; nothing where two cannot be compared.
JUDGED = {"faster": "good", "equivalent": "good", "slower": "bad", "not_shown": "not_shown", True: "good", False: "bad"}


class BisectDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `bisect`. `first_bad` is None where nothing is bad, or where `undecided` names several."""

    schema: str = "enginebench.bisect/2"
    package: str
    engine: str
    by: Literal["time", "drift"]
    good: str
    bad: str
    first_bad: str | None = None
    last_good: str | None = None
    undecided: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()  # what the engines' own records show otherwise in the first bad version
    tried: tuple[DiffRow, ...]  # against the good version; `id` is the version, a ratio below 1 slower


class BisectOptions(opts.Modules, opts.Timing, opts.Shared, total=False):
    engine: Annotated[str | None, Opt("ENGINE[:key=value,...] that is measured. [the one that the package is for]")]
    margin: Annotated[float | str, Opt("How much slower is bad: 5% or 0.05.", REGRESSION_MARGIN, metavar="M")]
    drift: Annotated[bool, Opt("Bad means other outputs, not longer times.", False)]
    precision: opts.Precision
    batch: opts.Batch
    timeout: opts.Timeout
    wait: opts.Wait
    out: Annotated[PathLike | None, Opt("Folder of the measurements. [results/bisect-...]", path="new folder")]


Package: TypeAlias = Annotated[str, Opt("The package whose versions are tried.", metavar="NAME", required=True)]
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
    named = options["engine"] or next((n for n, e in ENTRIES.items() if package.lower() in e.distributions), None)
    if named is None:
        raise UsageError(f"no engine needs the package {package}; name the engine with --engine")
    (name, own), margin, tried = read_engine(named), given.read_share(options["margin"]), list[DiffRow]()
    root = given.choose_root(options["out"], f"bisect-{Path(given.name_model(model)).stem}-{package}")
    asked = cast(BenchOptions, fill(BenchOptions, {**options, "margin": margin, "against": named}))
    with open_bench_request(model, named, asked) as (request, side, reporter):
        assert side is not None
        versions, changed = cut_range(list_index_versions(package), package, good, bad), dict[str, tuple[str, ...]]()

        def judge(version: str) -> str | None:
            base, cand = ((name, {**own, OPTION: f"{package}-{v}"}) for v in (versions[0], version))
            for n in (request.measure.processes * more for more in (1, 2, 4)):
                now = replace(request, engines=(cand,), measure=replace(request.measure, processes=n, settle=None))
                try:
                    for v in (v for v in (versions[0], version) if f"{package}-{v}" not in list_named_environments()):
                        install_environment(f"{package}-{v}", [f"{package}=={v}"], reporter=reporter)
                    old, new = bench_sides(
                        now,
                        replace(side, engine=base),
                        root / f"{version}-{n}",
                        reporter=reporter,
                        wait=options["wait"],
                    )
                    (row,) = diff_results([old], [new], margin, neighbours=True, same_inputs=True).rows
                    changed[version] = (*find_losses(old, new), *describe_upgrade(describe_change(new.model, old, new)))
                except EngineBenchError as error:
                    if version == versions[-1] or isinstance(error, UsageError):
                        raise
                    row = DiffRow(id=version, verdict="not_comparable", ratio=None, reasons=(str(error),))
                tried.append(replace(row, id=version))
                found = JUDGED.get(row.outputs_agree if options["drift"] else row.verdict)
                if found is None and version == versions[-1]:
                    raise MeasurementError(f"{package} {version} cannot be compared: {'; '.join(row.reasons)}")
                if found != "not_shown":
                    break
            return found

        low, high, seen = 0, len(versions) - 1, set[int]()
        worse = judge(versions[high]) == "bad"
        while worse and (left := set(range(low + 1, high)) - seen):
            seen.add(middle := min(left, key=lambda i: (abs(2 * i - low - high), i)))
            found = judge(versions[middle])
            low, high = middle if found == "good" else low, middle if found == "bad" else high
    undecided = tuple(versions[low + 1 : high + 1]) if worse and high > low + 1 else ()
    first = versions[high] if worse and not undecided else None
    return BisectDocument(
        package=package,
        engine=name,
        by="drift" if options["drift"] else "time",
        good=versions[0],
        bad=versions[-1],
        first_bad=first,
        last_good=versions[low] if worse else None,
        undecided=undecided,
        changed=changed[first or versions[-1]],
        tried=tuple(tried),
    )


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
    said = {True: "same", False: "changed", None: "-"}
    told = [(row.id, format_verdict(row.verdict), said[row.outputs_agree]) for row in document.tried]
    columns = list_texts(("version", f"against {document.good}", "outputs"), ("trials", "ratio"))
    return [Section(parts=(*notes, make_table(columns, [a + b for a, b in zip(told, ratios, strict=True)])))]
