"""Read a sweep from its store: each group with its run and cells, the document of all, its results for `history`."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import EngineBenchError, ParseError, UsageError
from enginebench.core.names import format_engine, format_precision
from enginebench.core.records import Result
from enginebench.core.store import DECODE_ERRORS, find_cache, write_atomic
from enginebench.features.sweep.document import (
    Environment,
    FailedCell,
    Interference,
    SweepCell,
    SweepDocument,
    Tuned,
    price,
    take_row,
)
from enginebench.features.sweep.records import (
    EARLIER_SCHEMA,
    GROUPS,
    RECORD,
    SWEEP_RECORD_SCHEMA,
    Finished,
    SweepRecord,
    name_result_file,
)
from enginebench.features.sweep.spec import Group, format_model, list_groups, spell_cell, want
from enginebench.features.sweep.store import FolderStore, Store, open_store, read_document
from enginebench.runs.folder import RunRecord, Wanted, check_model
from enginebench.runs.plan import meets_precision
from enginebench.runs.progress import Reporter
from enginebench.runs.reporting import describe_stored
from enginebench.stats.compare import compare_apart

FINAL = ("ok", "failed", "skipped")
WRITTEN_ANEW = "sweep --resume rebuilds it from the group's results"


class Measured(Struct, frozen=True, kw_only=True):
    record: RunRecord
    results: tuple[Result, ...]


def read_group(store: Store, group: str) -> Measured | None:
    """The run of a group, as far as it has come; None if it has not begun."""
    record = read_document(store, f"{GROUPS}/{group}/run.json", RunRecord)
    if record is None:
        return None
    results = []
    for configuration_id in record.rows:
        name = f"{GROUPS}/{group}/rows/{configuration_id}.json"
        if (result := read_document(store, name, Result)) is not None:
            check_model(record, result, f"{store.url}/{name}")
            results.append(result)
    return Measured(record=record, results=tuple(results))


def read_finished(store: Store, group: Group) -> Finished | None:
    """The figures that were stored when the group ended; None if it has not."""
    name = f"{GROUPS}/{group.id}/done.json"
    try:
        done = read_document(store, name, Finished)
    except ParseError as error:
        raise ParseError(error.path, error.where, error.found, error.expected, WRITTEN_ANEW) from error
    for cell in done.cells if done else ():
        actual, expected = (
            f"{cell.model} on {cell.machine_kind}",
            f"{format_model(group.model)} on {group.machine.kind}",
        )
        if actual != expected:
            raise ParseError(f"{store.url}/{name}", "$.cells", actual, expected, WRITTEN_ANEW)
    return done


def has_finished(store: Store, group: Group, reporter: Reporter) -> bool:
    """Whether a group has finished. Damaged figures are computed again from its results."""
    try:
        return read_finished(store, group) is not None
    except ParseError as error:
        reporter.say(f"{error.path}: found {error.found}; it is rebuilt from the group's results")
        return False


def covers(wanted: Wanted, result: Result) -> bool:
    return (wanted.engine, wanted.batch, wanted.scope) == (
        format_engine(result.engine),
        result.engine.batch,
        result.measure.scope,
    ) and meets_precision(wanted.precision, result.requested_precision, result.engine.recipe)


def describe_group(group: Group, measured: Measured | None) -> tuple[tuple[SweepCell, ...], tuple[Environment, ...]]:
    """Describe (the cells of a group with their figures, the machine that measured them)."""
    if measured is None:
        return tuple(SweepCell(**spell_cell(cell)) for cell in group.cells), ()
    machine = measured.record.machine
    # A token of everything that makes results of two machines differ: processor, GPUs, versions.
    parts = [machine.cpu_model, *(gpu.name for gpu in machine.gpus), *(f"{k} {v}" for k, v in machine.versions.items())]
    identity = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:10]
    document = describe_stored(measured.record, measured.results)
    described = [
        (result, take_row(row, result, f"{GROUPS}/{group.id}", identity))
        for row, result in zip(document.rows, measured.results, strict=True)
    ]
    kernels = [row.reference_ms for _, row in described if row.reference_ms]
    environment = Environment(
        id=identity,
        machine_kind=group.machine.kind,
        cpu_model=machine.cpu_model,
        gpus=tuple(gpu.name for gpu in machine.gpus),
        versions=machine.versions,
        rows=sum(1 for _, row in described if row.status == "ok"),
        reference_ms=median(kernels) if kernels else None,
        price_per_hour=group.machine.price_per_hour,
    )
    chosen = [
        (cell, next((row for result, row in described if covers(want(cell), result)), None)) for cell in group.cells
    ]
    met = {id(row) for _, row in chosen if row}
    others = [
        SweepCell(
            model=format_model(group.model),
            machine_kind=group.machine.kind,
            engine=format_engine(result.engine),
            precision=format_precision(result.requested_precision, result.engine.recipe),
            batch=result.engine.batch,
            scope=result.measure.scope,
            row=row,
        )
        for result, row in described  # results that match no cell: a graph that is not in FP32 keeps its precision
        if id(row) not in met and not any(covers(wanted, result) for wanted in group.request.wanted)
    ]
    return (*(SweepCell(**spell_cell(cell), row=row) for cell, row in chosen), *others), (environment,)


# A group's first configuration measured again, alone on the machine.
ALONE = "-alone"
_ROWS = re.compile(r"groups/[^/]+/(rows/[^/]+\.json|run\.json)")


def holds_sweep(url: str) -> bool:
    """Whether a folder, or an address such as s3://BUCKET/PREFIX, holds the store of a sweep."""
    return "://" in url or (Path(url) / RECORD).is_file()


def read_sweep_record(store: Store) -> SweepRecord:
    record = read_document(store, RECORD, SweepRecord)
    if record is None:
        raise UsageError(f"{store.url} holds no sweep ({RECORD} is missing)")
    if record.schema not in (SWEEP_RECORD_SCHEMA, EARLIER_SCHEMA):
        actual, expected = repr(record.schema), repr(SWEEP_RECORD_SCHEMA)
        raise ParseError(f"{store.url}/{RECORD}", "$.schema", actual, expected, "Upgrade enginebench")
    return record


def read_sweep(store: Store, reasons: dict[str, str] | None = None) -> SweepDocument:
    """Read every cell of the sweep in a store; `reasons`: why the run that just ended left groups without results."""
    record = read_sweep_record(store)
    groups = list_groups(record.spec)
    cells: list[SweepCell] = []
    failed: list[FailedCell] = []
    machines: dict[tuple[str, str], Environment] = {}
    tuned: list[Tuned] = []
    unread: list[str] = []
    for group in groups:
        try:
            # The figures stored when the group ended; of a group in progress, those of its results so far.
            done = read_finished(store, group)
            group_cells, environments = (
                (done.cells, done.machines) if done else describe_group(group, read_group(store, group.id))
            )
        except EngineBenchError as error:
            unread.append(str(error))
            group_cells, environments = (), ()
        cells += group_cells
        failed += _list_failed(group, group_cells, (reasons or {}).get(group.id, ""))
        if group.tune_budget_s is not None:
            names = [name_result_file(group.id, batch) for batch in group.request.batches or (1,)]
            tuned += [search for name in names if (search := read_document(store, name, Tuned)) is not None]
        for new in environments:
            old = machines.setdefault((new.machine_kind, new.id), new)
            if old is not new:
                kernels = [k for k in (old.reference_ms, new.reference_ms) if k is not None]
                joined = replace(old, rows=old.rows + new.rows, reference_ms=min(kernels, default=None))
                machines[new.machine_kind, new.id] = joined
    document = SweepDocument(
        store=store.url,
        cells=tuple(cells),
        failed=tuple(failed),
        machines=tuple(machines.values()),
        interference=tuple(_list_interference(store, groups)) if record.shared else (),
        tuned=tuple(tuned),
        unread=tuple(unread),
        started_utc=record.started_utc,
    )
    prices = {m.kind: m.price_per_hour for m in record.spec.machine if m.price_per_hour is not None}
    return price(document, prices) if prices else document


def _list_failed(group: Group, cells: tuple[SweepCell, ...], reason: str) -> Iterator[FailedCell]:
    by_key = {(c.engine, c.precision, c.batch, c.scope): c.row for c in cells}
    for cell in group.cells:
        row = by_key.get((cell.engine, cell.precision, cell.batch, cell.scope))
        if row is not None and row.status == "ok":
            continue
        state = row.reason or ("not finished" if row.status == "partial" else row.status) if row else "not measured yet"
        yield FailedCell(**spell_cell(cell), reason=reason or state)


def _list_interference(store: Store, groups: tuple[Group, ...]) -> Iterator[Interference]:
    """Compare the first configuration of each group, measured on a shared machine, with itself alone on the machine."""
    for group in groups:
        alone = next(_list_rows(store, f"{group.id}{ALONE}"), None)
        # Found by id: a group's own order has its baseline first.
        shared = next((row for row in _list_rows(store, group.id) if alone and row.id == alone.id), None)
        if shared is None or alone is None:
            continue
        comparison = compare_apart(shared.measurements, alone.measurements)
        yield Interference(
            model=format_model(group.model),
            machine_kind=group.machine.kind,
            row=shared.id,
            ratio=comparison.ratio,
            verdict=comparison.verdict,
            reasons=comparison.reasons,
        )


def _list_rows(store: Store, group: str) -> Iterator[Result]:
    measured = read_group(store, group)
    return (row for row in (measured.results if measured else ()) if row.status == "ok")


def fetch_results_folder(url: str) -> Path:
    """Return a folder with the results of a store, for `history`: its own, or a current copy of an object store's."""
    if "://" not in url:
        return Path(url)
    store = open_store(url)
    if isinstance(store, FolderStore):
        return store.root
    folder = find_cache() / "stores" / hashlib.sha256(store.url.encode()).hexdigest()[:16]
    index, fetched = folder / "index.json", dict[str, str]()
    with suppress(OSError, *DECODE_ERRORS):
        fetched = msgspec.json.decode(index.read_bytes(), type=dict[str, str])
    now = {name: state for name, state in store.names(GROUPS) if _ROWS.fullmatch(name)}
    for name, state in now.items():
        if fetched.get(name) != state or not (folder / name).is_file():
            store.fetch(name, folder / name)
    for name in fetched.keys() - now.keys():
        if _ROWS.fullmatch(name) and ".." not in name:
            (folder / name).unlink(missing_ok=True)
    write_atomic(index, msgspec.json.encode(now))
    return folder
