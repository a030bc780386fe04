"""A run as sections: its head, a table for each batch and shape, what to do next; then all details."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from enginebench.core.commands import format_command, join_words
from enginebench.core.names import AS_BUILT, NOT_KNOWN, format_precision
from enginebench.core.records import Estimate, Machine
from enginebench.core.shapes import format_input_shapes
from enginebench.core.text import count_of
from enginebench.report.numbers import (
    format_digits,
    format_ms,
    format_ratio,
    format_significant,
    format_small,
    format_time,
)
from enginebench.report.run.columns import (
    SPEED_UP,
    format_shares,
    format_speedup,
    list_columns,
    make_time,
    mark_ties,
    take_end,
    take_span,
)
from enginebench.report.run.deploy import Deployment, list_deliveries, list_deploy, list_locating
from enginebench.report.run.head import format_head, format_name, name_configurations
from enginebench.report.run.life import list_life
from enginebench.report.run.remarks import count_warnings, list_remarks, list_warnings, name_measured_configurations
from enginebench.report.run.rows import Row, RowTimes, RunDocument, group_rows
from enginebench.report.run.series import label_rows
from enginebench.report.run.shown import shorten_document
from enginebench.report.run.traffic import list_mix
from enginebench.report.table import Chart, Column, Notes, Section, Table, list_texts, make_notes, make_table
from enginebench.stats.builds import BuildEffect
from enginebench.stats.validity import UNUSABLE

_SETTING = ("batch", "setup.bucket", "scope", "cache")
# Parts of a page that are charts, with what else stands in them, in their order.
TITLES = {
    "speedup": "Speed-up",
    "batches": "Latency against throughput",
    "builds": "Builds",
    "distributions": "Latency distributions",
    "drift": "Latency over time",
    "quality": "Speed against outputs",
    "life": "Break-even",
    "stages": "Stages",
    "layers": "Layers",
    "proof": "Precision verification",
}


def list_sections(
    document: RunDocument,
    *,
    folder: Path | None = None,
    wide: bool = False,
    warnings: bool = False,
    deployment: Deployment | None = None,
) -> list[Section]:
    """List what a terminal shows: the head, the tables, and the next commands.

    Args:
        deployment: what can be delivered; None if that was not determined, and then it is not mentioned.
    """
    document = shorten_document(document)
    head = Section(title=" · ".join([document.model, *list_facts(document)]), parts=(make_head(document),))
    listed = list_warnings(document)
    below = [Section(title="Warnings", parts=(listed,))] if warnings and listed.lines else []
    deploy = list(list_deploy(document, deployment)) if deployment else []
    below += [Section(parts=(note,)) for note in deploy if note.kind != "command"]
    commands = [line for note in deploy if note.kind == "command" for line in note.lines]
    commands += [("Locate it", command) for command in list_locating(document, folder, deployment)]
    commands += _list_commands(document, folder, warnings)
    below += [Section(parts=(Notes(lines=tuple(commands), kind="command"),))] if commands else []
    tables = [*list_tables(document, wide=wide), *list_mix(document), *list_life(document)]
    return [head, *tables, *list_others(document), *below]


def list_report(
    document: RunDocument,
    *,
    charts: Sequence[Chart] = (),
    command: Sequence[str] = (),
    started_utc: str = "",
    deployment: Deployment | None = None,
) -> list[Section]:
    """List everything that a page and a markdown file show: also the warnings, the charts, the machine.

    Args:
        deployment: what can be delivered; None if that was not determined.
    """
    facts = " · ".join(filter(None, [*list_facts(document), format_time(started_utc)]))
    top: list[Table | Notes] = [*make_notes([facts]), make_head(document)]
    top += list_deploy(document, deployment) if deployment else []
    names = name_measured_configurations(document.rows)
    columns = (
        Column("configuration", lambda row: names[row.id]),
        Column(SPEED_UP, format_speedup),
        Column("log axis, line at 1x", lambda row: "", span=take_span),
    )
    rows = [row for group in group_rows(document.rows) for row in group if row.speedup]
    ratios = make_table(columns, rows, title="Speed-up of each configuration", file="ratios", brief=True)
    top += [ratios] if len(rows) > 1 else []
    sections = [Section(title=document.model, parts=tuple(top))]
    tables = list_tables(document, wide=True)
    sections += [Section(title="Comparison", name="comparison", parts=tables[0].parts), *tables[1:]] if tables else []
    sections += [*list_mix(document), *list_others(document)]
    warnings = list_warnings(document)
    sections += [Section(title="Warnings", name="warnings", parts=(warnings,))] if warnings.lines else []
    sections += _list_chapters(document, charts)
    if deployment:
        sections.append(list_deliveries(document, deployment))
    machine = [part for part in (format_machine(document),) if part]
    again = [Notes(lines=(("To repeat it", join_words(command)),), kind="command")] if command else []
    if machine or again:
        sections.append(Section(title="Machine and how to repeat it", name="machine", parts=(*machine, *again)))
    return [section for section in sections if section.parts]


def make_head(document: RunDocument) -> Notes:
    return Notes(lines=tuple((line.label, text) for line in format_head(document) for text in line.lines), kind="head")


def list_facts(document: RunDocument) -> list[str]:
    """List what all configurations share: `batch 1`, `CPU: AMD EPYC, 2 threads`, `10 trials each`, `62 s`."""
    rows = [row for row in document.rows if row.n] or document.rows
    same = [name for name in _SETTING if not _varies(rows, name)]
    parts = [_name_setting(rows[0], same)] if rows else []
    served = (row.setup.shapes for row in rows if row.setup.shapes and not row.times.cells)
    timed = dict.fromkeys(format_input_shapes(shapes) for shapes in served)
    if timed and (normalize := document.spec.get("normalize")):
        timed = {f"{'; '.join(timed)}, {normalize.get('input') or ''}".removesuffix(", ") + " in bytes": None}
    parts += ["; ".join(timed)] if timed else []
    threads = {row.threads for row in rows}
    devices = {row.device for row in rows}
    if document.machine is None or len(devices) != 1:
        parts.append(", ".join(sorted({f"GPU: {row.setup.gpu}" if row.setup.gpu else row.device for row in rows})))
    else:
        parts.append(name_machine(document.machine, devices.pop(), threads.pop() if len(threads) == 1 else None))
    trials = sorted({row.processes for row in rows if row.n})
    if trials:
        count = str(trials[0]) if len(trials) == 1 else f"{trials[0]} to {trials[-1]}"
        parts.append(f"{count} trial{'s' if trials[-1] > 1 else ''} each")
    if document.took_s is not None:
        shares = ", ".join(f"{name} {format_significant(spent, 2)}" for name, spent in document.parts_s.items())
        parts.append(f"{format_significant(document.took_s, 2)} s" + (f" ({shares})" if shares else ""))
    return [part for part in parts if part]


def _varies(rows: Sequence[Row], name: str) -> bool:
    return len({attrgetter(name)(row) for row in rows}) > 1


def _name_setting(row: Row, names: Sequence[str]) -> str:
    """Format those of the named settings that are not the default: `batch 8, ids 1x128, io, cold cache`."""
    texts = {
        "batch": "" if row.times.cells else f"batch {row.batch}",
        "setup.bucket": f"mix of {count_of(len(row.times.cells), 'shapes')}" if row.times.cells else row.setup.bucket,
        "scope": "" if row.scope == "compute" else f"scope {row.scope}",
        "cache": "" if row.cache == "hot" else f"{row.cache} cache",
    }
    return ", ".join(texts[name] for name in names if texts[name])


def name_machine(machine: Machine, device: str = "cpu", threads: int | None = None) -> str:
    """Format `CPU: AMD EPYC, 2 threads` or `GPU: NVIDIA H200`."""
    if device != "cpu":
        return f"GPU: {', '.join(dict.fromkeys(gpu.name for gpu in machine.gpus)) or device}"
    return f"CPU: {machine.cpu_model}" + (f", {count_of(threads, 'threads')}" if threads else "")


def list_tables(document: RunDocument, *, wide: bool = False) -> list[Section]:
    """List a table for each batch and shape, fastest first, with what its ranks show."""
    groups = group_rows([row for row in document.rows if row.p50_ms])
    varied = [name for name in _SETTING if _varies([row for group in groups for row in group], name)]
    labels = label_rows(document)
    named = {headline.id for headline in document.headlines}

    def list_keys(row: Row) -> dict[str, str]:
        engine = row.engine.partition(":")[0]
        return {"engine": engine, "precision": str(row.precision), "batch": str(row.batch), "label": labels[row.id]}

    sections = []
    for rows in groups:
        setting = _name_setting(rows[0], varied)
        title = f"Configurations{f' of {setting}' if setting else ''}, fastest first"
        table = make_table(list_columns(rows), rows, wide=wide, title=title, keys=list_keys)
        lines = [*_rank(rows), *_list_gains(rows)]
        for row in rows:
            if row.id in named:  # what it costs beside its time
                start = [_format_start(row.times)] if row.times.start_s else []
                sizes = {"memory": row.costs.peak_memory_bytes, "model": row.costs.size_bytes}
                listed = [f"{name} {format_significant(size * 1e-6)} MB" for name, size in sizes.items() if size]
                lines += ["   ".join([*start, *listed])] if start or listed else []
        sections.append(Section(title=setting, parts=(table, *make_notes(lines))))
    return sections


def _format_start(times: RowTimes) -> str:
    """Format the time to the first output of a new process, with its parts where the import was timed, too."""
    start_s = times.start_s or 0.0
    if times.import_s is None:
        return f"first output in a new process {format_significant(start_s, 2)} s"
    parts = {"import": times.import_s, "load": times.load_s, "first run": times.first_run_s}
    listed = ", ".join(f"{name} {format_ms(part_s * 1e3, 2)}" for name, part_s in parts.items() if part_s is not None)
    return f"first output in a new process {format_significant(times.import_s + start_s, 2)} s ({listed})"


def _rank(rows: Sequence[Row]) -> list[str]:
    """Compare first and second, and explain the marks of ties."""
    texts = []
    if rows[0].comparison.verdict_to_next == "faster" and rows[0].comparison.ratio_to_next:
        texts.append(f"1st is {format_significant(rows[0].comparison.ratio_to_next.value)}x as fast as 2nd")
    if mark_ties(rows):
        texts.append("=: no significant difference between neighbours with the same letter")
    return texts


def _list_gains(rows: Sequence[Row]) -> list[str]:
    """Format the gains of fewer bits, if a configuration ran in 16: `bf16 against fp32: openvino 1.75 - 1.87x`."""
    by_id, gains = {row.id: row for row in rows}, dict[str, list[str]]()
    for row in reversed(rows):
        if (
            row.comparison.wider in by_id
            and row.comparison.ratio_to_wider
            and row.requested_precision in (None, row.precision)
        ):
            step = " against ".join(
                format_precision(one.precision, one.recipe) for one in (row, by_id[row.comparison.wider])
            )
            gains.setdefault(step, []).append(f"{row.engine} {format_ratio(row.comparison.ratio_to_wider)}")
    halved = any(row.precision in ("fp16", "bf16") for row in rows)
    return ["; ".join(f"{step}: {', '.join(texts)}" for step, texts in gains.items())] if gains and halved else []


def list_others(document: RunDocument) -> list[Section]:
    """List what was not run and why, and further remarks."""
    limit = document.spec.get("p99_limit_ms")
    texts = [*document.notes, *list_remarks(document), *format_largest(list_batches(document.rows), limit)]
    notes = make_notes([*_list_missing(document), *texts, *format_builds(document.rows)], "list")
    return [Section(parts=tuple(notes))] if notes else []


def _list_missing(document: RunDocument) -> Iterator[tuple[str, str]]:
    """Yield what failed or has no times: those of one reason in one line, those not run only with the cure."""
    names = name_configurations(document.rows)
    alike: dict[tuple[str, str], dict[str, list[str]]] = {}
    totals = Counter(row.engine for row in document.rows)
    for row in document.rows:
        if row.p50_ms is None or row.status == "failed":
            label, reason = row.status.capitalize(), row.reason or "no trial was finished; --resume continues"
            if row.status == "skipped":
                label, reason = "Not run", reason[reason.rfind("To ") :] if ". To " in reason else reason
            alike.setdefault((label, reason), {}).setdefault(row.engine, []).append(names[row.id])
    for (label, reason), by_engine in alike.items():
        groups = [
            [engine] if len(rows) == totals[engine] else dict.fromkeys(rows) for engine, rows in by_engine.items()
        ]
        named, link = ", ".join(name for names in groups for name in names), ". " if reason.startswith("To ") else ": "
        yield label, f"{named}{link}{reason}"


def _list_commands(document: RunDocument, folder: Path | None, printed: bool) -> Iterator[tuple[str, str]]:
    shown = str(folder or "DIR")
    count = 0 if printed else count_warnings(document)
    if count:
        yield f"Warnings ({count})", format_command("report", shown, options=[("--warnings", None)])
    page = Path(shown, "report.html")
    if folder is None or page.is_file():  # not before the end of a run, nor without what draws its charts
        yield "Page", str(page)


def _list_chapters(document: RunDocument, charts: Sequence[Chart]) -> Iterator[Section]:
    more: dict[str, Callable[[RunDocument], list[Table | Notes]]] = {
        "batches": lambda d: make_batches(d.rows),
        "builds": lambda d: make_builds(d.rows),
        "life": lambda d: [
            part for section in list_life(d) for part in section.parts if isinstance(part, Table | Notes)
        ],
        "proof": _list_proofs,
    }
    for name, title in TITLES.items():
        parts = [*(chart for chart in charts if chart.section == name), *(more[name](document) if name in more else [])]
        if parts:
            yield Section(title=title, name=name, parts=tuple(parts))


def _list_proofs(document: RunDocument) -> list[Table | Notes]:
    """List requested and actual precision of every configuration that ran."""
    names = name_measured_configurations(document.rows)
    shares = {row.id: format_shares(row) or "no record from the runtime" for row in document.rows if row.n}
    lines = [
        (names[row.id], row.requested_precision or AS_BUILT, row.precision or NOT_KNOWN, shares[row.id])
        for row in document.rows
        if row.n
    ]
    columns = list_texts(("configuration", "requested", "labelled", "fraction of time"))
    return [make_table(columns, lines, file="precision", title="Requested precision, and what ran")] if lines else []


def format_machine(document: RunDocument) -> Notes | None:
    if (machine := document.machine) is None:
        return None
    tools = {
        row.engine.partition(":")[0]: row.setup.engine_version for row in document.rows if row.setup.engine_version
    }
    versions = {n: v for n, v in tools.items() if v not in machine.versions.values()} | machine.versions
    facts = {
        "CPU": f"{machine.cpu_model}, {count_of(machine.cores_physical, 'cores')}, {len(machine.cpus_allowed)} usable",
        "flags": ", ".join(machine.cpu_flags),
        "memory": f"{machine.memory_bytes / 2**30:.1f} GiB",
        "GPU": ", ".join(f"{gpu.name} (driver {gpu.driver})" if gpu.driver else gpu.name for gpu in machine.gpus),
        "Jetson": ", ".join((machine.jetson or {}).values()),
        "system": f"{machine.os}, {machine.arch}" + (f", {machine.virtual}" if machine.virtual else ""),
        "governor": machine.governor or "",
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(versions.items())),
    }
    return Notes(lines=tuple((name, text) for name, text in facts.items() if text), kind="facts")


_COLUMNS = (
    Column("engine", lambda row: row.engine),
    Column("precision", lambda row: format_precision(row.precision, row.recipe)),
    Column("builds", lambda row: str(row.costs.builds.builds), align="right"),
    Column("different", lambda row: str(row.costs.builds.distinct or "-"), align="right"),
    Column("p50 ms", lambda row: _format_medians(row.costs.builds), align="right"),
    Column("between builds", lambda row: _as_percent(row.costs.builds.between), align="right"),
    Column(
        "within one",
        lambda row: "-" if row.costs.builds.within is None else f"{row.costs.builds.within:.2%}",
        align="right",
    ),
    Column(
        "outputs apart",
        lambda row: "-" if row.costs.builds.max_abs_diff is None else format_small(row.costs.builds.max_abs_diff),
        align="right",
    ),
    Column(
        "best gains",
        lambda row: _as_percent(row.costs.builds.best.gain) if row.costs.builds.best else "-",
        align="right",
    ),
    Column(
        "extra builds s",
        lambda row: format_digits(row.costs.builds.best and row.costs.builds.best.cost_s, "-"),
        align="right",
    ),
)


def make_builds(rows: Sequence[Row]) -> list[Table | Notes]:
    """Make the table of builds, for every configuration that was built several times."""
    built = [row for row in rows if row.costs.builds]
    return [make_table(_COLUMNS, built, file="builds", title="Builds of each engine")] if built else []


def format_builds(rows: Sequence[Row]) -> list[str]:
    """Describe the builds of each configuration in sentences."""
    return [
        sentence
        for row in rows
        if row.costs.builds
        for sentence in _describe_effect(format_name(row), row.costs.builds)
    ]


def _describe_effect(name: str, effect: BuildEffect) -> list[str]:
    if effect.distinct == 1:
        return [f"{name}: all {count_of(effect.builds, 'builds')} are identical by their hash."]
    if effect.between is None or effect.within is None:
        return [f"{name}: {effect.builds} builds, of which too few have two trials: inconclusive."]
    seen = "differ" if effect.shown else "do not differ significantly"
    sentence = (
        f"{name}: its {count_of(effect.builds, 'builds')} {seen}: {_as_percent(effect.between)} from one to the next"
    )
    sentence += f", beside {effect.within:.2%} between processes of one build."
    if (best := effect.best) is None:
        return [sentence]
    count, sure = effect.builds, (best.gain.low or 0.0) > 0
    more = "one build more costs" if count == 2 else f"the {count - 1} builds more cost"
    seconds = "" if best.cost_s is None else f"; {more} {format_significant(best.cost_s)} s"
    after = f", which it saves within {best.pays_after:,} runs" if best.pays_after and seconds and sure else ""
    gain = "gains" if sure else "did not gain significantly:"
    return [sentence, f"The best of {count} {gain} {_as_percent(best.gain)} over a typical one{seconds}{after}."]


def _format_medians(effect: BuildEffect) -> str:
    ends = [format_significant(end(effect.medians_ms), 4) for end in (min, max)] if effect.medians_ms else ["-"]
    return " to ".join(dict.fromkeys(ends))


def _as_percent(estimate: Estimate | None) -> str:
    if estimate is None or estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2%}" if estimate else "-"
    return f"{estimate.value:.2%} ({estimate.low:.2%} to {estimate.high:.2%})"


def list_batches(rows: Sequence[Row]) -> list[list[Row]]:
    """List configurations of scope `compute` with a hot cache that have more than one batch, each by its batches.

    A batch that failed (out of memory) stays in the list, without numbers.
    """
    # Rows that were relabelled FP32 are not the FP32 rows of their engine, though both are called so.
    members: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        if row.scope == "compute" and row.cache == "hot" and row.status != "skipped":
            key = row.engine, _name_precision(row), row.requested_precision or "", row.setup.bucket
            members.setdefault(key, []).append(row)
    return [sorted(batches, key=lambda row: row.batch) for batches in members.values() if len(batches) > 1]


def _name_precision(row: Row) -> str:
    return format_precision(row.precision, row.recipe, row.mix)


def find_largest(series: Sequence[Row], p99_limit_ms: float) -> Row | None:
    """Return the largest batch that meets the limit, of those with reliable times."""
    whole = [row for row in series if row.status == "ok" and row.validity not in UNUSABLE]
    return next((row for row in reversed(whole) if row.p99_ms and row.p99_ms.value <= p99_limit_ms), None)


def make_batches(rows: Sequence[Row]) -> list[Table | Notes]:
    """Make the table of latency against throughput, for engines that ran several batches."""
    series = list_batches(rows)
    rates = [next((row.throughput_per_s for row in one if row.throughput_per_s), None) for one in series]
    first = {id(row): rate for one, rate in zip(series, rates, strict=True) for row in one}

    def gain(row: Row) -> float | None:
        smallest = first[id(row)]
        return row.throughput_per_s / smallest if row.throughput_per_s and smallest else None

    def format_p50(row: Row) -> str:
        mark = "" if row.validity == "valid" else "~ "
        return mark + ("{}" if row.p50_ms else row.status)

    columns = (
        Column("engine", lambda row: row.engine),
        Column("precision", _name_precision),
        Column("batch", lambda row: str(row.batch), lambda row: row.batch, align="right"),
        Column("p50", format_p50, take_end("p50_ms"), align="decimal", is_time=True),
        make_time("p99", "p99_ms"),
        Column(
            "per second",
            lambda row: format_digits(row.throughput_per_s),
            lambda row: row.throughput_per_s,
            align="decimal",
        ),
        Column("times smallest", lambda row: format_digits(gain(row)), gain, align="right"),
    )
    lines = [row for one in series for row in one]
    title = "Latency against throughput by batch"
    return [make_table(columns, lines, file="batches", title=title)] if lines else []


def is_supported(row: Row) -> bool:
    """Whether there are enough samples for a p99, where there is one."""
    return row.p99_ms is None or row.p99_ms.supported


def format_largest(series: Sequence[Sequence[Row]], p99_limit_ms: float | None) -> list[str]:
    """Format a sentence for each engine: the largest batch whose p99 meets the limit. Empty without a limit."""
    if p99_limit_ms is None:
        return []
    limit, texts = f"p99 {p99_limit_ms:g} ms", []
    for rows in series:
        if largest := find_largest(rows, p99_limit_ms):
            limitations = [] if is_supported(largest) else ["too few samples for a p99"]
            if largest.validity != "valid":
                limitations.append("disturbed")
            if largest.modelled:
                limitations.append("modelled")
            remark = f" ({', '.join(limitations)})" if limitations else ""
            text = f"batch {largest.batch} is the largest within {limit}{remark}"
        else:
            statuses = [row.status for row in rows if row.p99_ms and row.p99_ms.value <= p99_limit_ms]
            kinds = dict.fromkeys("disturbed" if status == "ok" else "not finished" for status in statuses)
            few = f"only batches whose configurations are {' or '.join(kinds)} meet {limit}"
            text = few if kinds else f"no batch that was measured within {limit}"
        texts.append(f"{rows[0].engine} {_name_precision(rows[0])}: {text}.")
    return texts
