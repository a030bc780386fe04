"""A store as people read it: the document of all its cells, and a copy of its rows for `history`."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from enginebench.core.errors import EngineBenchError, ParseError, UsageError
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
)
from enginebench.features.sweep.parts import describe_group, read_finished, read_group
from enginebench.features.sweep.records import EARLIER_SCHEMA, GROUPS, RECORD, SWEEP_RECORD_SCHEMA, SweepRecord
from enginebench.features.sweep.spec import Group, list_groups, show_model, spell_cell
from enginebench.features.sweep.store import FolderStore, Store, open_store, read_document
from enginebench.features.sweep.tuning import name_answer
from enginebench.stats.compare import compare_apart

# A group's first row measured again, with the machine to itself.
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
        raise ParseError(
            f"{store.url}/{RECORD}", "$.schema", repr(record.schema), repr(SWEEP_RECORD_SCHEMA), "Upgrade enginebench"
        )
    return record


def read_sweep(store: Store, reasons: dict[str, str] | None = None) -> SweepDocument:
    """Every cell of the sweep in a store.

    Args:
        reasons: id of a group -> why it has no rows, from the run that has just ended.
    """
    record = read_sweep_record(store)
    groups = list_groups(record.spec)
    cells: list[SweepCell] = []
    failed: list[FailedCell] = []
    machines: dict[tuple[str, str], Environment] = {}
    unread: list[str] = []
    for group in groups:
        try:
            found, environments = _read_group(store, group)
        except EngineBenchError as error:
            unread.append(str(error))
            found, environments = (), ()
        cells += found
        failed += _list_failed(group, found, (reasons or {}).get(group.id, ""))
        for environment in environments:
            _join(machines, environment)
    document = SweepDocument(
        store=store.url,
        cells=tuple(cells),
        failed=tuple(failed),
        machines=tuple(machines.values()),
        interference=tuple(_list_interference(store, groups)) if record.shared else (),
        tuned=tuple(_list_tuned(store, groups)),
        unread=tuple(unread),
        started_utc=record.started_utc,
    )
    prices = {m.kind: m.price_per_hour for m in record.spec.machine if m.price_per_hour is not None}
    return price(document, prices) if prices else document


def _read_group(store: Store, group: Group) -> tuple[tuple[SweepCell, ...], tuple[Environment, ...]]:
    """The figures that were stored when the group ended; of one that has not, those of its rows as they are."""
    done = read_finished(store, group)
    if done is not None:
        return done.cells, done.machines
    return describe_group(group, read_group(store, group.id))


def _list_failed(group: Group, cells: tuple[SweepCell, ...], reason: str) -> Iterator[FailedCell]:
    by_key = {(c.engine, c.precision, c.batch, c.scope): c.row for c in cells}
    for cell in group.cells:
        row = by_key.get((cell.engine, cell.precision, cell.batch, cell.scope))
        if row is not None and row.status == "ok":
            continue
        told = row.reason or ("not finished" if row.status == "partial" else row.status) if row else "not measured yet"
        yield FailedCell(**spell_cell(cell), reason=reason or told)


def _join(machines: dict[tuple[str, str], Environment], new: Environment) -> None:
    key = (new.machine_kind, new.id)
    old = machines.get(key)
    if old is None:
        machines[key] = new
        return
    kernels = [k for k in (old.reference_ms, new.reference_ms) if k is not None]
    machines[key] = replace(old, rows=old.rows + new.rows, reference_ms=min(kernels, default=None))


def _list_interference(store: Store, groups: tuple[Group, ...]) -> Iterator[Interference]:
    """What company cost the row of each group that was measured in company, and once more alone."""
    for group in groups:
        alone = next(_list_rows(store, f"{group.id}{ALONE}"), None)
        # The row of the same id: a group's own order has its baseline first, whatever was asked for first.
        shared = next((row for row in _list_rows(store, group.id) if alone and row.id == alone.id), None)
        if shared is None or alone is None:
            continue
        found = compare_apart(shared.measurements, alone.measurements)
        yield Interference(
            model=show_model(group.model),
            machine_kind=group.machine.kind,
            row=shared.id,
            ratio=found.ratio,
            verdict=found.verdict,
            reasons=found.reasons,
        )


def _list_rows(store: Store, group: str) -> Iterator[Result]:
    measured = read_group(store, group)
    return (row for row in (measured.results if measured else ()) if row.status == "ok")


def _list_tuned(store: Store, groups: tuple[Group, ...]) -> Iterator[Tuned]:
    for group in groups:
        if group.tune_budget_s is not None:
            for batch in group.request.batches or (1,):
                found = read_document(store, name_answer(group.id, batch), Tuned)
                yield from [found] if found else []


def find_rows_folder(url: str) -> Path:
    """A folder with the rows of a store, for `history`: its own, or an up-to-date copy of an object store's."""
    if "://" not in url:
        return Path(url)
    store = open_store(url)
    if isinstance(store, FolderStore):
        return store.root
    folder = find_cache() / "stores" / hashlib.sha256(store.url.encode()).hexdigest()[:16]
    index = folder / "index.json"
    known = _read_index(index)
    now = {name: state for name, state in store.names(GROUPS) if _ROWS.fullmatch(name)}
    for name, state in now.items():
        if known.get(name) != state or not (folder / name).is_file():
            store.fetch(name, folder / name)
    for name in known.keys() - now.keys():
        if _ROWS.fullmatch(name) and ".." not in name:
            (folder / name).unlink(missing_ok=True)
    write_atomic(index, msgspec.json.encode(now))
    return folder


def _read_index(path: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (OSError, *DECODE_ERRORS):
        return {}
