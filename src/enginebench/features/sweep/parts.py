"""What a store has of a group: its run, and its cells."""

import hashlib
from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from enginebench.core.errors import ParseError
from enginebench.core.names import format_engine, format_precision
from enginebench.core.records import Machine, Result
from enginebench.features.sweep.document import Environment, SweepCell, SweepRow, take_row
from enginebench.features.sweep.records import GROUPS, Finished
from enginebench.features.sweep.spec import Cell, Group, show_model, spell_cell
from enginebench.features.sweep.store import Store, read_document
from enginebench.runs.folder import RunRecord, Wanted, check_model
from enginebench.runs.plan import meets_precision
from enginebench.runs.progress import Reporter
from enginebench.runs.reporting import describe_stored

FINAL = ("ok", "failed", "skipped")
WRITTEN_ANEW = "sweep --resume rebuilds it from the group's results"


def identify_environment(machine: Machine) -> str:
    """A token of what makes rows of two machines differ: processor, GPUs, versions."""
    parts = [machine.cpu_model, *(gpu.name for gpu in machine.gpus), *(f"{k} {v}" for k, v in machine.versions.items())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:10]


class Measured(Struct, frozen=True, kw_only=True):
    record: RunRecord
    results: tuple[Result, ...]


def read_group(store: Store, group: str) -> Measured | None:
    """The run of a group, as far as it has come; None if it has not begun."""
    record = read_document(store, f"{GROUPS}/{group}/run.json", RunRecord)
    if record is None:
        return None
    rows = []
    for row_id in record.rows:
        place = f"{GROUPS}/{group}/rows/{row_id}.json"
        if (row := read_document(store, place, Result)) is not None:
            check_model(record, row, f"{store.url}/{place}")
            rows.append(row)
    return Measured(record=record, results=tuple(rows))


def read_finished(store: Store, group: Group) -> Finished | None:
    """The figures that were stored when the group ended; None if it has not."""
    name = f"{GROUPS}/{group.id}/done.json"
    try:
        done = read_document(store, name, Finished)
    except ParseError as error:
        raise ParseError(error.path, error.where, error.found, error.expected, WRITTEN_ANEW) from error
    for cell in done.cells if done else ():
        found, expected = f"{cell.model} on {cell.machine_kind}", f"{show_model(group.model)} on {group.machine.kind}"
        if found != expected:
            raise ParseError(f"{store.url}/{name}", "$.cells", found, expected, WRITTEN_ANEW)
    return done


def has_finished(store: Store, group: Group, reporter: Reporter) -> bool:
    """Whether nothing is left to do for a group. Figures that cannot be read are computed anew from its rows."""
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
    """(the group's cells with what was found of them, the machine that this comes from)."""
    if measured is None:
        return tuple(SweepCell(**spell_cell(cell)) for cell in group.cells), ()
    machine = measured.record.machine
    identity = identify_environment(machine)
    document = describe_stored(measured.record, measured.results)
    found = [
        (result, take_row(row, result, f"{GROUPS}/{group.id}", identity))
        for row, result in zip(document.rows, measured.results, strict=True)
    ]
    kernels = [row.reference_ms for _, row in found if row.reference_ms]
    environment = Environment(
        id=identity,
        machine_kind=group.machine.kind,
        cpu_model=machine.cpu_model,
        gpus=tuple(gpu.name for gpu in machine.gpus),
        versions=machine.versions,
        rows=sum(1 for _, row in found if row.status == "ok"),
        reference_ms=median(kernels) if kernels else None,
        price_per_hour=group.machine.price_per_hour,
    )
    chosen = [(cell, _choose(cell, found)) for cell in group.cells]
    met = {id(row) for _, row in chosen if row}
    others = [
        _describe_cell(group, result, row)
        for result, row in found
        if id(row) not in met and not any(covers(wanted, result) for wanted in group.request.wanted)
    ]
    return (*(SweepCell(**spell_cell(cell), row=row) for cell, row in chosen), *others), (environment,)


def _choose(cell: Cell, found: Sequence[tuple[Result, SweepRow]]) -> SweepRow | None:
    wanted = Wanted(engine=cell.engine, precision=cell.precision, batch=cell.batch, scope=cell.scope)
    return next((row for result, row in found if covers(wanted, result)), None)


def _describe_cell(group: Group, result: Result, row: SweepRow) -> SweepCell:
    """The cell of a row that nobody asked for as it came: a graph that is not in FP32 keeps its own precision."""
    return SweepCell(
        model=show_model(group.model),
        machine_kind=group.machine.kind,
        engine=format_engine(result.engine),
        precision=format_precision(result.requested_precision, result.engine.recipe),
        batch=result.engine.batch,
        scope=result.measure.scope,
        row=row,
    )
