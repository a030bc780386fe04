"""A run as sections: its answer, a table for each batch and shape, what to do next; then all that is known of it."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from enginebench.core.names import AS_BUILT, NOT_KNOWN, shorten_ids
from enginebench.core.records import Machine
from enginebench.core.shapes import show_shapes
from enginebench.core.text import count_of
from enginebench.report.numbers import format_significant
from enginebench.report.run.batches import describe_limit, list_batches, make_batches
from enginebench.report.run.builds import make_builds, state_builds
from enginebench.report.run.columns import format_shares, format_speedup, list_columns, take_span
from enginebench.report.run.head import format_head, name_rows
from enginebench.report.run.remarks import count_warnings, list_remarks, list_warnings, name_settings
from enginebench.report.run.rows import Row, RunDocument, group_rows
from enginebench.report.run.series import label_rows
from enginebench.report.table import Chart, Column, Notes, Section, Table, list_texts, make_notes, make_table

_PLACES = ("1st", "2nd", "3rd")
_SETTING = ("batch", "bucket", "scope", "cache")
# Parts of a page that are charts, with what else stands in them, in their order.
TITLES = {
    "speedup": "Speed-up", "batches": "Latency against throughput", "builds": "Builds",
    "distributions": "Latency distributions", "drift": "Latency over time", "quality": "Speed against outputs",
    "stages": "Stages", "layers": "Layers", "proof": "Precision verification",
}  # fmt: skip


def list_sections(
    document: RunDocument, *, folder: Path | None = None, wide: bool = False, warnings: bool = False
) -> list[Section]:
    """What a terminal shows: the answer, the tables, and the next two commands."""
    head = Section(title=" · ".join([document.model, *list_facts(document)]), parts=(format_answer(document),))
    found = [Section(title="Warnings", parts=(list_warnings(document),))] if warnings else []
    commands = tuple(_list_commands(document, folder, warnings))
    found += [Section(parts=(Notes(lines=commands, kind="command"),))] if commands else []
    return [head, *list_tables(document, wide=wide), *list_others(document), *found]


def list_report(
    document: RunDocument,
    *,
    charts: Sequence[Chart] = (),
    command: Sequence[str] = (),
    started_utc: str = "",
    refusals: Mapping[str, str | None] | None = None,
) -> list[Section]:
    """All that a page and a markdown file show: also the warnings, the charts, the machine.

    Args:
        command: words of the command that made the run.
        refusals: id of each row -> why it cannot be delivered, or None; nothing for a report that does not say.
    """
    started = f"{started_utc[:16].replace('T', ' ')} UTC"
    facts = " · ".join([*list_facts(document), *([started] if started_utc else [])])
    top: list[Table | Notes] = [*make_notes([facts]), format_answer(document)]
    deploy = tuple(line for line in _list_commands(document, Path(), True) if line[0] == "Deploy it")
    top += [Notes(lines=deploy, kind="command")] if deploy else []
    sections = [Section(title=document.model, parts=(*top, *_draw_ratios(document)))]
    tables = list_tables(document, wide=True)
    sections += [Section(title="Comparison", name="comparison", parts=tables[0].parts), *tables[1:]] if tables else []
    sections += list_others(document)
    warnings = list_warnings(document)
    sections += [Section(title="Warnings", name="warnings", parts=(warnings,))] if warnings.lines else []
    sections += _list_chapters(document, charts)
    if refusals:
        sections.append(
            Section(title="Deploy a configuration", name="delivery", parts=_list_deliveries(document, refusals))
        )
    machine = [part for part in (describe_machine(document),) if part]
    again = [Notes(lines=(("To repeat it", shlex.join(command)),), kind="command")] if command else []
    if machine or again:
        sections.append(Section(title="Machine and how to repeat it", name="machine", parts=(*machine, *again)))
    return [section for section in sections if section.parts]


def format_answer(document: RunDocument) -> Notes:
    """FASTEST, OUTPUTS and TRUST."""
    return Notes(lines=tuple((line.label, text) for line in format_head(document) for text in line.lines), kind="head")


def list_facts(document: RunDocument) -> list[str]:
    """What all configurations have in common: `batch 1`, `CPU: AMD EPYC, 2 threads`, `10 trials each`, `62 s`."""
    rows = [row for row in document.rows if row.n] or document.rows
    same = [name for name in _SETTING if not _varies(rows, name)]
    parts = [_name_setting(rows[0], same)] if rows else []
    timed = dict.fromkeys(show_shapes(row.shapes) for row in rows if row.shapes)
    parts += ["; ".join(timed) + " in bytes" * bool(document.spec.get("normalize"))] if timed else []
    threads = {row.threads for row in rows}
    devices = {row.device for row in rows}
    if document.machine is None or len(devices) != 1:
        parts.append(", ".join(sorted({f"GPU: {row.gpu}" if row.gpu else row.device for row in rows})))
    else:
        parts.append(name_machine(document.machine, devices.pop(), threads.pop() if len(threads) == 1 else None))
    trials = sorted({row.processes for row in rows if row.n})
    if trials:
        count = str(trials[0]) if len(trials) == 1 else f"{trials[0]} to {trials[-1]}"
        parts.append(f"{count} trial{'s' if trials[-1] > 1 else ''} each")
    if document.took_s is not None:
        parts.append(f"{format_significant(document.took_s, 2)} s")
    return [part for part in parts if part]


def _varies(rows: Sequence[Row], name: str) -> bool:
    return len({getattr(row, name) for row in rows}) > 1


def _name_setting(row: Row, names: Sequence[str]) -> str:
    """`batch 8, ids 1x128, io, cold cache`, of the named settings those that are not the usual ones."""
    texts = {
        "batch": f"batch {row.batch}",
        "bucket": row.bucket,
        "scope": "" if row.scope == "compute" else f"scope {row.scope}",
        "cache": "" if row.cache == "hot" else f"{row.cache} cache",
    }
    return ", ".join(texts[name] for name in names if texts[name])


def name_machine(machine: Machine, device: str = "cpu", threads: int | None = None) -> str:
    """`CPU: AMD EPYC, 2 threads`, `GPU: NVIDIA H200`."""
    if device != "cpu":
        return f"GPU: {', '.join(dict.fromkeys(gpu.name for gpu in machine.gpus)) or device}"
    return f"CPU: {machine.cpu_model}" + (f", {count_of(threads, 'threads')}" if threads else "")


def list_tables(document: RunDocument, *, wide: bool = False) -> list[Section]:
    """A table for each batch and shape, fastest first, with what its places show."""
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
        lines = [*_rank(rows), *(text for row in rows if row.id in named for text in _list_costs(row))]
        sections.append(Section(title=setting, parts=(table, *make_notes(lines))))
    return sections


def _draw_ratios(document: RunDocument) -> list[Table]:
    """The ratio of each configuration with its interval, on one axis."""
    names = name_settings(document.rows)
    columns = (
        Column("configuration", lambda row: names[row.id]),
        Column("speed-up", format_speedup),
        Column("log axis, line at 1x", lambda row: "", span=take_span),
    )
    rows = [row for group in group_rows(document.rows) for row in group if row.speedup]
    table = make_table(columns, rows, title="Speed-up of each configuration", file="ratios", brief=True)
    return [table] if len(rows) > 1 else []


def _rank(rows: Sequence[Row]) -> list[str]:
    """First against second, and who else cannot be told apart."""
    names = [*_PLACES, *(f"{place}th" for place in range(4, len(rows) + 1))]
    first, next_to = rows[0], {"equivalent": "equal within the margin", "not_shown": "no significant difference"}
    texts = []
    if first.verdict_to_next == "faster" and first.ratio_to_next:
        texts.append(f"1st beats 2nd: yes, {format_significant(first.ratio_to_next.value)}x")
    for verdict, how in next_to.items():
        alike = [f"{names[i]} and {names[i + 1]}" for i, row in enumerate(rows) if row.verdict_to_next == verdict]
        texts += [f"{', '.join(alike)}: {how}"] if alike else []
    return texts


def _list_costs(row: Row) -> list[str]:
    """What the named configuration costs beside its time."""
    known = [f"first output in a new process {format_significant(row.start_s, 2)} s"] if row.start_s else []
    sizes = {"memory": row.peak_memory_bytes, "model": row.size_bytes}
    known += [f"{name} {format_significant(size * 1e-6)} MB" for name, size in sizes.items() if size]
    return ["   ".join(known)] if known else []


def list_others(document: RunDocument) -> list[Section]:
    """What was not run and why, and what else the rows show."""
    limit = document.spec.get("p99_limit_ms")
    texts = [*list_remarks(document), *describe_limit(list_batches(document.rows), limit)]
    lines = [*_list_missing(document), *(("", text) for text in (*texts, *state_builds(document.rows)))]
    return [Section(parts=(Notes(lines=tuple(lines), kind="list"),))] if lines else []


def _list_missing(document: RunDocument) -> Iterator[tuple[str, str]]:
    """Configurations without times: those of one reason in one line, what was not run only with what cures it."""
    names = name_rows(document.rows)
    alike: dict[tuple[str, str], dict[str, list[str]]] = {}
    asked = Counter(row.engine for row in document.rows)
    for row in document.rows:
        if row.p50_ms is None:
            label, reason = row.status.capitalize(), row.reason or "no reason recorded"
            if row.status == "skipped":
                label, reason = "Not run", reason[reason.rfind("To ") :] if ". To " in reason else reason
            alike.setdefault((label, reason), {}).setdefault(row.engine, []).append(names[row.id])
    for (label, reason), found in alike.items():
        told = [[engine] if len(rows) == asked[engine] else dict.fromkeys(rows) for engine, rows in found.items()]
        named, link = ", ".join(name for names in told for name in names), ". " if reason.startswith("To ") else ": "
        yield label, f"{named}{link}{reason}"


def _list_commands(document: RunDocument, folder: Path | None, printed: bool) -> Iterator[tuple[str, str]]:
    place = str(folder or "DIR")
    if document.recommended is not None:
        short = shorten_ids(document.rows)[document.recommended.id]
        yield "Deploy it", shlex.join(["enginebench", "deliver", place, "--row", short, "--out", "ship"])
    count = 0 if printed else count_warnings(document)
    if count:
        yield f"Warnings ({count})", shlex.join(["enginebench", "report", place, "--warnings"])
    page = Path(place, "report.html")
    if folder is None or page.is_file():  # not before the end of a run, nor without what draws its charts
        yield "Page", str(page)


def _list_chapters(document: RunDocument, charts: Sequence[Chart]) -> Iterator[Section]:
    more: dict[str, Callable[[RunDocument], list[Table | Notes]]] = {
        "batches": lambda d: make_batches(d.rows), "builds": lambda d: make_builds(d.rows), "proof": _list_proofs
    }  # fmt: skip
    for name, title in TITLES.items():
        parts = [*(chart for chart in charts if chart.section == name), *(more[name](document) if name in more else [])]
        if parts:
            yield Section(title=title, name=name, parts=tuple(parts))


def _list_proofs(document: RunDocument) -> list[Table | Notes]:
    """Asked for and ran in, of every row that ran."""
    names = name_settings(document.rows)
    shares = {row.id: format_shares(row) or "no record from the runtime" for row in document.rows if row.n}
    lines = [
        (names[row.id], row.requested_precision or AS_BUILT, row.precision or NOT_KNOWN, shares[row.id])
        for row in document.rows
        if row.n
    ]
    columns = list_texts(("configuration", "asked for", "called", "fraction of time"))
    return [make_table(columns, lines, file="precision", title="Requested precision, and what ran")] if lines else []


def _list_deliveries(document: RunDocument, refusals: Mapping[str, str | None]) -> tuple[Table | Notes, ...]:
    """The command that deploys each row, to be run in the run's folder; or why there is none."""
    names, short = name_settings(document.rows), shorten_ids(document.rows)
    lines = []
    for row in document.rows:
        if row.id in refusals and row.p50_ms:
            own = short[row.id]
            command = shlex.join(("enginebench", "deliver", ".", "--row", own, "--out", f"../{own}"))
            lines.append((names[row.id], refusals[row.id] or command))
    text = "Each configuration can be a folder that runs without EngineBench."
    columns = list_texts(("configuration", "in the folder of this run"))
    return (*make_notes([text]), make_table(columns, lines, file="delivery", title="Commands"))


def describe_machine(document: RunDocument) -> Notes | None:
    """The machine, in facts."""
    if (machine := document.machine) is None:
        return None
    tools = {row.engine.partition(":")[0]: row.engine_version for row in document.rows if row.engine_version}
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
