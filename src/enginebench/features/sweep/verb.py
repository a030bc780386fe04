"""`sweep`: a matrix over models and machines, measured group by group and kept in a store."""

import secrets
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import click
from msgspec.structs import replace

from enginebench import door
from enginebench.core.commands import COMMAND, format_command
from enginebench.core.errors import EngineBenchError, MeasurementError, UsageError
from enginebench.core.text import stamp_utc
from enginebench.features.sweep.store import FolderStore, Store, open_store, read_document, store_document
from enginebench.options import Opt, PathLike, Printed, Progress, Unpack, Wait, verb
from enginebench.runs.child.environments import PROBE_TIMEOUT_S
from enginebench.runs.child.isolate import run_child
from enginebench.runs.child.jobs import ProbeJob
from enginebench.runs.lock import lock_devices, lock_folder
from enginebench.runs.plan import list_devices
from enginebench.runs.progress import Reporter
from enginebench.verbs.common import open_progress

if TYPE_CHECKING:
    from enginebench.features.sweep.document import SweepDocument
    from enginebench.features.sweep.records import SweepPlan, SweepRecord
    from enginebench.features.sweep.schedule import Fleet
    from enginebench.features.sweep.spec import Group, SweepSpec


class SweepOptions(Progress, total=False):
    on: Annotated[
        str,
        Opt(
            "This machine, the Ray cluster that it belongs to, or the one at this address.",
            "local",
            metavar="local|auto|ray://HOST:PORT",
        ),
    ]
    kind: Annotated[str | None, Opt("With --on local: the kind of machine that this one is.", metavar="KIND")]
    share_machine: Annotated[bool, Opt("Measure on each GPU of a machine at once, and report what that costs.", False)]
    resume: Annotated[bool, Opt("Continue the sweep in --out.", False)]
    wait: Wait


class SweepPrinted(Printed, total=False):
    dry_run: Annotated[bool, Opt("Print the matrix and how long it takes at most; measure nothing.", False)]


Out: TypeAlias = Annotated[PathLike, Opt("A folder, or s3://BUCKET/PREFIX, that all machines see.", metavar="STORE")]


@verb(SweepOptions)
def sweep(spec: PathLike, out: Out, **options: Unpack[SweepOptions]) -> "SweepDocument":
    """Measure the models, engines and precisions of SPEC.toml on every kind of machine that it names.

    Example: enginebench sweep matrix.toml --on auto --out s3://bucket/august

    All configurations of a model on one kind of machine are interleaved on one machine; machines are never compared.
    The sweep can be stopped, or lose machines, at any time: --resume measures what is missing. Read it with `report
    STORE`.

    Args:
        spec: the TOML file.

    Raises:
        UsageError: the file asks for what cannot be, or the store holds another sweep.
        DependencyError: Ray, or what the store needs, is missing; or no cluster can be reached.
    """
    from enginebench.features.sweep.spec import read_spec

    requested = read_spec(Path(spec))
    with open_progress(options["progress"]) as reporter:
        return run_sweep(
            requested,
            str(out),
            on=options["on"],
            kind=options["kind"],
            share_machine=options["share_machine"],
            resume=options["resume"],
            wait=options["wait"],
            reporter=reporter,
            command=COMMAND.get(),
        )


@door.command(sweep, "SPEC.toml", shown=SweepPrinted)
def command(spec: str, out: str | None, shown: SweepPrinted, **options: Unpack[SweepOptions]) -> None:
    from enginebench.features.sweep.sections import list_plan, list_sweep
    from enginebench.features.sweep.spec import read_spec

    if shown["dry_run"]:
        requested = read_spec(Path(spec))
        if options["kind"] is not None or options["on"] != "local":
            choose_kind(requested, options["on"], options["kind"])
        door.show(plan_sweep(requested), shown, door.tables(list_plan))
        return
    if out is None:
        raise UsageError("--out STORE is missing: the folder, or the address, that keeps what is measured")
    document = sweep(spec, out, **options)
    door.show(document, shown, door.tables(list_sweep))
    if not shown["as_json"]:
        click.echo(f"\nStored in {out}. The page: {format_command('report', str(out))}", err=True)
    if not any(cell.row is not None and cell.row.status == "ok" for cell in document.cells):
        raise MeasurementError("no cell of the sweep has a result; the reasons are above")


def plan_sweep(spec: "SweepSpec") -> "SweepPlan":
    """The cells of a sweep, its processes, and at most how long they take on one machine of each kind."""
    from enginebench.features.sweep.records import KindPlan, SweepPlan
    from enginebench.features.sweep.spec import list_groups

    groups, began = list_groups(spec), time.monotonic()
    run_child(ProbeJob(engine="fake"), timeout_s=PROBE_TIMEOUT_S)
    start_s = time.monotonic() - began  # of a child that does next to nothing
    kinds = []
    for machine in spec.machine:
        own = [group for group in groups if group.machine.kind == machine.kind]
        rows = sum(len(group.cells) for group in own)
        counts = [len(group.cells) * group.request.measure.processes for group in own]
        timed = sum(count * g.request.measure.time_limit_s for count, g in zip(counts, own, strict=True))
        tuned = sum(len(g.request.batches or (1,)) * (g.tune_budget_s or 0.0) for g in own)
        # A configuration is built and checked in one more process.
        most_s, count = timed + (sum(counts) + rows) * start_s + tuned, len(own)
        plan = KindPlan(machine_kind=machine.kind, groups=count, rows=rows, processes=sum(counts), at_most_s=most_s)
        kinds.append(plan)
    return SweepPlan(cells=tuple(c for group in groups for c in group.cells), kinds=tuple(kinds), start_s=start_s)


def run_sweep(
    spec: "SweepSpec",
    out: str,
    *,
    on: str = "local",
    kind: str | None = None,
    share_machine: bool = False,
    resume: bool = False,
    wait: bool = True,
    reporter: Reporter,
    command: tuple[str, ...] = (),
) -> "SweepDocument":
    """Measure every cell that the store `out` does not have yet, and return all of them. See `sweep`."""
    from enginebench.features.sweep.ray_fleet import RayFleet
    from enginebench.features.sweep.reading import read_sweep
    from enginebench.features.sweep.schedule import LocalFleet
    from enginebench.features.sweep.spec import list_groups

    store = open_store(out)
    kind = choose_kind(spec, on, kind)
    if share_machine and on == "local":
        raise UsageError("--share-machine divides a machine among the tasks of Ray; local runs one at a time")
    if share_machine and "tune" in spec.steps:
        raise UsageError('--share-machine and steps with "tune": a search needs the machine to itself; leave one out')
    if on == "local" and not resume:  # other machines have modules and files of their own
        check_any_group([group for group in list_groups(spec) if group.machine.kind == kind])
    if not wait and on == "local":  # before graphs are made; a device that is taken later costs its groups alone
        devices = {device for group in list_groups(spec) for device in list_devices(group.request)}
        with lock_devices(devices, wait=False):
            pass
    folder = lock_folder(store.root, reporter.say) if isinstance(store, FolderStore) else nullcontext()
    with folder:
        record = resume_sweep(store, spec, resume=resume, shared=share_machine, command=command)
        with RayFleet(on, shared=share_machine) if on != "local" else nullcontext(LocalFleet(reporter, kind)) as fleet:
            reasons = measure_groups(store, record, fleet, reporter, wait=wait)
    return read_sweep(store, reasons)


def check_any_group(groups: "Sequence[Group]") -> None:
    """Check that the files and modules of one group at least are as they should be.

    The others are left out by the sweep, each with its reason in its cells.
    """
    from enginebench.runs.targets.ahead import check_ahead

    faults: list[EngineBenchError] = []
    for group in groups:
        try:
            check_ahead([group.request])
        except EngineBenchError as error:
            faults.append(error)
    if faults and len(faults) == len(groups):
        raise faults[0]


def measure_groups(
    store: Store, record: "SweepRecord", fleet: "Fleet", reporter: Reporter, *, wait: bool = True
) -> dict[str, str]:
    """Measure what is missing; return {id of a group: why it was not measured}."""
    from enginebench.features.sweep.reading import ALONE
    from enginebench.features.sweep.schedule import Schedule
    from enginebench.features.sweep.spec import list_groups

    groups = list_groups(record.spec)
    schedule = Schedule(store, record.salt, fleet, reporter, shared=record.shared, wait=wait)
    schedule.run(groups)
    if record.shared:
        reporter.say("the first configuration of each group once more, with the machine to itself")
        first = [replace(group, id=f"{group.id}{ALONE}", cells=group.cells[:1], tune_budget_s=None) for group in groups]
        first = [replace(one, request=replace(one.request, wanted=one.request.wanted[:1])) for one in first]
        Schedule(store, record.salt, fleet, reporter, wait=wait).run(first)
    return schedule.refused


def choose_kind(spec: "SweepSpec", on: str, kind: str | None) -> str | None:
    kinds = [machine.kind for machine in spec.machine]
    if on != "local":
        if kind is not None:
            raise UsageError("--kind names this machine, for --on local; nodes of Ray report theirs")
        if on != "auto" and not on.startswith("ray://"):
            raise UsageError(f"--on {on}: expected local, auto or ray://HOST:PORT")
        return None
    if kind is not None and kind not in kinds:
        raise UsageError(f"--kind {kind} is not in the sweep; it has {', '.join(kinds)}")
    if kind is None and len(kinds) > 1:
        raise UsageError(f"the sweep has machines of {', '.join(kinds)}; name this one with --kind")
    return kind or kinds[0]


def resume_sweep(
    store: Store, spec: "SweepSpec", *, resume: bool, shared: bool = False, command: tuple[str, ...] = ()
) -> "SweepRecord":
    from enginebench.features.sweep.reading import read_sweep_record
    from enginebench.features.sweep.records import EARLIER_SCHEMA, RECORD, SweepRecord
    from enginebench.features.sweep.spec import list_groups

    if read_document(store, RECORD, SweepRecord) is None:
        salt, now = secrets.token_hex(16), stamp_utc()
        record = SweepRecord(spec=spec, salt=salt, started_utc=now, command=command, shared=shared)
        store_document(store, RECORD, record)
        return record
    stored = read_sweep_record(store)
    if not resume:
        raise UsageError(f"{store.url} holds a sweep already; continue it with --resume or choose another --out")
    if stored.schema == EARLIER_SCHEMA:
        raise UsageError(
            f"{store.url} was begun by an earlier version, whose files lie otherwise; `report` and `history` read it. "
            "Choose another --out"
        )
    if list_groups(spec) != list_groups(stored.spec):
        changed = [f for f in spec.__struct_fields__ if getattr(spec, f) != getattr(stored.spec, f)]
        raise UsageError(f"{store.url} holds a sweep with other options ({', '.join(changed)}); choose another --out")
    if stored.shared != shared:
        raise UsageError(f"{store.url} was begun {'with' if stored.shared else 'without'} --share-machine; continue so")
    return stored
