"""The specification of a sweep: a TOML file, its cells (one configuration each) and groups (measured together)."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from enginebench.config import (
    OptionTable,
    anchor_path,
    convert_table,
    list_set_fields,
    make_table,
    override,
    read_toml,
    takes_path,
)
from enginebench.core.aoti import is_package
from enginebench.core.errors import UsageError
from enginebench.core.features import list_offered
from enginebench.core.limits import MOST
from enginebench.core.names import format_options, parse_precision, slug
from enginebench.core.records import EngineSpec, Scope
from enginebench.engines.registry import check_options, read_engine
from enginebench.options import fill, list_all_options
from enginebench.runs.child.environments import strip_environment
from enginebench.runs.folder import OUTSIDE, RunRequest, Wanted
from enginebench.runs.request import parse_device, read_buckets
from enginebench.stats.compare import MIN_TRIALS
from enginebench.verbs.requests import make_measure, make_request
from enginebench.verbs.run import RunOptions

# More configurations than can be read, or measured in a year: a mistake in an axis.
MOST_CELLS = 200_000
# Options of `run` that a sweep does not have: its matrix has lists of these,
LEFT_OUT = {"engines", "precisions", "batch", "scope"}
# its store is the folder, it always waits, and its cells say what failed; these are of one machine, or of an ENGINE.
LEFT_OUT |= {"out", "resume", "deliver", "wait", "strict_precision", "env", "trtexec", "extra"}
# Its batches are an axis of the sweep, and its engines each become two.
LEFT_OUT |= {"traffic"}
OPTIONS = {name: o for name, o in list_all_options(RunOptions).items() if name not in LEFT_OUT and not o.program}
# Those that a machine may have of its own: all others change what is measured, and machines share a model's graphs.
OF_MACHINE = {"baseline", "builds", "cache", "device", "iters", "load_p99_ms", "p99_limit_ms", "processes", "quick"}
OF_MACHINE |= {"threads", "time_limit", "timeout", "warmup"}
# How earlier versions spelt some.
EARLIER = {"time_limit_s": "time_limit", "timeout_s": "timeout"}
# The kind of an unnamed machine.
HERE = "local"

Some = Meta(min_length=1)
Text = str | tuple[str, ...]
Numbers = int | tuple[int, ...]


if TYPE_CHECKING:
    Options = OptionTable
else:
    Options = make_table("run, each None where it is not given", OPTIONS, EARLIER)


class ModelEntry(Options, frozen=True, kw_only=True):
    """One model, with options for it alone."""

    name: str


class MachineEntry(Options, frozen=True, kw_only=True):
    """One kind of machine, and how Ray knows a node of it: by a resource of that name, unless labels are given."""

    kind: str
    resources: dict[str, float] = {}
    labels: dict[str, str] = {}
    price_per_hour: float | None = None


class Selection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cells of the matrix: those that agree with every field that is given."""

    model: Text | None = None
    machine: Text | None = None
    engine: Text | None = None
    precision: Text | None = None
    batch: Numbers | None = None
    scope: Text | None = None


class SweepSpec(Options, frozen=True, kw_only=True):
    """The specification; an option of the machine overrides that of the model, which overrides that for all."""

    engines: Annotated[tuple[str, ...], Some]
    model: Annotated[tuple[ModelEntry, ...], Some]
    machine: tuple[MachineEntry, ...] = ()
    precisions: Annotated[tuple[str, ...], Some] = ("fp32",)
    batches: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Some] = (1,)
    scopes: Annotated[tuple[Scope, ...], Some] = ("compute",)
    include: tuple[Selection, ...] = ()
    exclude: tuple[Selection, ...] = ()
    steps: tuple[Literal["measure", "load", "tune"], ...] = ("measure",)
    tune_budget_s: Annotated[float, Meta(gt=0, le=1e9)] = 1200.0  # finite


class Cell(Struct, frozen=True, kw_only=True, order=True):
    model: str
    machine: str
    engine: str
    precision: str
    batch: int
    scope: Scope


class Group(Struct, frozen=True, kw_only=True):
    """One model on one kind of machine; its configurations are interleaved there. Threads 0: the machine's own."""

    id: str
    model: str
    machine: MachineEntry
    request: RunRequest
    cells: tuple[Cell, ...]
    tune_budget_s: float | None = None  # of a search over settings, after the configurations; None: no search


def read_spec(path: Path) -> SweepSpec:
    kinds: tuple[type[Struct], ...] = (SweepSpec, ModelEntry, MachineEntry, Selection)
    names = dict.fromkeys(name for kind in kinds for name in kind.__struct_fields__)
    spec = convert_table(path, read_toml(path, "a sweep"), SweepSpec, page="docs/fleet.md", names=names)
    with _name(path):
        return anchor_paths(check_spec(spec), path.parent)


@contextmanager
def _name(where: object) -> Iterator[None]:
    """Name the file, or the key in it, in the message about a wrong value."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


def check_spec(spec: SweepSpec) -> SweepSpec:
    """Check the specification, and spell the names in it as in results."""
    with _name("engines"):
        engines = tuple(spell_engine(text) for text in spec.engines)
    for name, own in map(read_engine, (*engines, *(text for one in spec.include for text in _list(one.engine or ())))):
        check_options(strip_environment(EngineSpec(backend=name, options=own, device="cpu", precision="fp32", batch=1)))
    with _name("precisions"):
        [parse_precision(text) for text in spec.precisions]
    for step in set(spec.steps) - {"measure", *list_offered("functions")}:
        raise UsageError(f'steps has "{step}", and there is no such verb here')
    if "tune" in spec.steps and set(spec.scopes) != {"compute"}:
        raise UsageError('steps has "tune", which searches in the scope compute alone: leave scopes out')
    machines = spec.machine or (MachineEntry(kind=HERE),)
    _check_once("model", [format_model(model.name) for model in spec.model])
    _check_once("machine", [machine.kind for machine in machines])
    for machine in machines:
        if not slug(machine.kind) or machine.kind.startswith("-"):
            raise UsageError(f"machine kind {machine.kind!r}: expected letters and digits, such as h200")
        if wrong := sorted(machine.list_options().keys() - OF_MACHINE):
            raise UsageError(
                f"machine {machine.kind}: {', '.join(wrong)} would change what is measured, which is the same on all "
                "machines. Put it in [[model]] or at the top"
            )
    groups = [merge_run_options(spec, *entries) for entries in product(spec.model, machines)]
    if "load" in spec.steps and all(options["load_p99_ms"] is None for options in groups):
        raise UsageError('steps has "load", which needs load_p99_ms: the limit that requests are to meet')
    for options in groups:
        with _name("device"):
            parse_device(options["device"])
        base, quick = options["baseline"], options["quick"]
        if base is not None and spell_engine(base) not in engines:
            raise UsageError(f"baseline {base} is not among the engines of the sweep: {', '.join(spec.engines)}")
        processes = 1 if quick else options["processes"] or MOST
        if "tune" in spec.steps and processes < MIN_TRIALS:
            raise UsageError(
                f'steps has "tune", whose final gives a verdict, which needs {MIN_TRIALS} trials each: '
                f"{'leave quick out' if quick else f'raise processes, now {processes}'}"
            )
    return replace(spec, engines=engines, machine=machines, batches=tuple(dict.fromkeys(spec.batches)))


def merge_run_options(*entries: Options) -> RunOptions:
    """All options of `run`; the last entry that gives one decides."""
    merged: dict[str, object] = {}
    for entry in entries:
        merged = override(merged, entry.list_options())
    return cast(RunOptions, fill(RunOptions, merged))


def spell_engine(text: str) -> str:
    """The one spelling of an ENGINE: its options in the order of their names."""
    return format_options(*read_engine(text))


def format_model(name: str) -> str:
    """A model as tables name it: a file by its name alone."""
    return Path(name).name if Path(name).suffix in (".onnx", ".pt2") else name


def spell_cell(cell: Cell) -> dict[str, Any]:
    own = msgspec.structs.asdict(cell)
    return {"machine_kind": own.pop("machine"), **own, "model": format_model(cell.model)}


def _check_once(kind: str, names: list[str]) -> None:
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{kind} {twice[0]} is there twice in the sweep; leave one out")


def anchor_paths(spec: SweepSpec, folder: Path) -> SweepSpec:
    """The specification with the files that it names beside itself written in full."""

    def change(entry: Any, *more: str) -> Any:
        files = (name for name, option in OPTIONS.items() if takes_path(option))
        anchored = {n: anchor_path(getattr(entry, n), folder, OUTSIDE.get(n, ())) for n in (*files, *more)}
        return replace(entry, **anchored)

    return change(replace(spec, model=tuple(change(model, "name") for model in spec.model)))  # type: ignore[no-any-return]


def list_cells(spec: SweepSpec) -> tuple[Cell, ...]:
    """Every cell once: the matrix less what is excluded, then what is included."""
    models, machines = [m.name for m in spec.model], [m.kind for m in spec.machine]
    axes: dict[str, list[Any]] = {"model": models, "machine": machines, "engine": list(spec.engines)}
    axes |= {"precision": list(spec.precisions), "batch": list(spec.batches), "scope": list(spec.scopes)}
    cells = dict.fromkeys(_cross(axes))
    for selection in spec.exclude:
        met = [cell for cell in cells if _meets(cell, selection)]
        if not met:
            raise UsageError(f"exclude {_format_selection(selection)} meets no cell of the matrix; is a name misspelt?")
        for cell in met:
            del cells[cell]
    for selection in spec.include:
        added = {**axes, **{name: _list(value) for name, value in list_set_fields(selection).items()}}
        added["engine"] = [spell_engine(text) for text in added["engine"]]
        added["model"] = [_find_model(text, models) for text in added["model"]]
        for kind in added["machine"]:
            if kind not in machines:
                text = _format_selection(selection)
                raise UsageError(f"include {text}: no machine of the kind {kind!r} is in the sweep")
        cells |= dict.fromkeys(_cross(added))
    if not cells:
        raise UsageError("every cell of the sweep is excluded")
    return tuple(cells)


def _cross(axes: Mapping[str, list[Any]]) -> list[Cell]:
    """In the order in which a group is planned: for each batch and precision all engines."""
    if (count := math.prod(map(len, axes.values()))) > MOST_CELLS:
        raise UsageError(f"the sweep comes to {count} rows; {MOST_CELLS} is the most. Part it")
    names = ("model", "machine", "scope", "batch", "precision", "engine")
    return [Cell(**dict(zip(names, values, strict=True))) for values in product(*(axes[name] for name in names))]


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


def _meets(cell: Cell, selection: Selection) -> bool:
    """Return whether a cell agrees in every field; an engine's name matches all its options, a file's all its paths."""
    for name, value in list_set_fields(selection).items():
        own, wanted = getattr(cell, name), _list(value)
        short = {"engine": cell.engine.partition(":")[0], "model": Path(cell.model).name}.get(name, own)
        if {own, short}.isdisjoint(map(spell_engine, wanted) if name == "engine" else wanted):
            return False
    return True


def _find_model(text: str, models: list[str]) -> str:
    for model in models:
        if text in (model, Path(model).name):
            return model
    raise UsageError(f"include: no model {text!r} is in the sweep; add it under [[model]]")


def _format_selection(selection: Selection) -> str:
    return ", ".join(f"{name}={value}" for name, value in list_set_fields(selection).items()) or "{}"


def list_groups(spec: SweepSpec) -> tuple[Group, ...]:
    cells_by_group: dict[tuple[str, str], list[Cell]] = {}
    for cell in list_cells(spec):
        cells_by_group.setdefault((cell.model, cell.machine), []).append(cell)
    entries = {(model.name, machine.kind): (model, machine) for model, machine in product(spec.model, spec.machine)}
    return tuple(
        Group(
            id=name_group(*key),
            model=key[0],
            machine=entries[key][1],
            request=make_group_request(spec, *entries[key], cells),
            cells=tuple(cells),
            tune_budget_s=spec.tune_budget_s if "tune" in spec.steps else None,
        )
        for key, cells in cells_by_group.items()
    )


def name_group(model: str, kind: str) -> str:
    """The folder of a group: two models of one file name never share it."""
    path = Path(model)
    name = slug(path.stem if path.is_absolute() else model)
    return f"{name}-{slug(model)[-8:]}-{slug(kind)}" if path.is_absolute() else f"{name}-{slug(kind)}"


def want(cell: Cell) -> Wanted:
    return Wanted(engine=cell.engine, precision=cell.precision, batch=cell.batch, scope=cell.scope)


def make_group_request(spec: SweepSpec, model: ModelEntry, machine: MachineEntry, cells: Iterable[Cell]) -> RunRequest:
    if is_package(Path(model.name)):
        raise UsageError(
            f"model {model.name} is a package, compiled for one machine; name the model that it was made of"
        )
    options, wanted = merge_run_options(spec, model, machine), tuple(map(want, cells))
    if len(read_buckets(options["input_shape"])) > 1:
        raise UsageError(f"model {model.name}: input_shape gives several shapes of one input; a sweep takes one")
    options["scope"] = wanted[0].scope
    options["baseline"] = spell_engine(options["baseline"]) if options["baseline"] else None
    options["load_p99_ms"] = options["load_p99_ms"] if "load" in spec.steps else None
    return make_request(
        model.name,
        options,
        engines=map(read_engine, dict.fromkeys(w.engine for w in wanted)),
        precisions=map(parse_precision, dict.fromkeys(w.precision for w in wanted)),
        batches=tuple(dict.fromkeys(w.batch for w in wanted)),
        measure=make_measure(options, options["seed"], quick=options["quick"], builds=options["builds"]),
        declared=RunOptions,
        wanted=wanted,
        dry=True,
    )
