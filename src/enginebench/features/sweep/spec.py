"""What a sweep asks for: a TOML file, and the cells (one row each) and groups (measured together) that it comes to."""

import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from enginebench.core.aoti import is_package
from enginebench.core.errors import ParseError, UsageError
from enginebench.core.features import list_names
from enginebench.core.limits import MOST
from enginebench.core.names import format_options, parse_precision, slug
from enginebench.core.records import Cache, Scope, Task
from enginebench.core.store import DECODE_ERRORS
from enginebench.engines.registry import read_engine
from enginebench.runs.folder import RunRequest, Wanted
from enginebench.runs.request import Timing, parse_axes, parse_buckets, parse_device, read_normalize
from enginebench.stats.compare import MIN_REPETITIONS

# A specification is written by hand; a file beyond this is another one.
SPEC_LIMIT_BYTES = 1 << 20
# More rows than anybody can read, or measure in a year: a slip in an axis.
MOST_CELLS = 200_000
# What `make_request` reads by itself, and the fields that `run` has as options of timing.
SET_HERE = {"model", "engines", "precisions", "batches", "device", "threads", "baseline", "load_p99_ms", "normalize"}
SET_HERE |= {"dynamic_axes"}
TIMED = {name: name for name in ("warmup", "iters", "processes", "cache")} | {"time_limit": "time_limit_s"}
# The kind of a machine that nobody named.
HERE = "local"

Count = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0, le=1e9)]  # finite
NotNegative = Annotated[float, Meta(ge=0, le=1e9)]
Some = Meta(min_length=1)
Text = str | tuple[str, ...]
Numbers = int | tuple[int, ...]


class ModelEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model, and what is asked of it alone."""

    name: str
    weights: str = "default"
    input_size: int | None = None
    input_shape: tuple[str, ...] = ()
    input_dtype: Literal["uint8"] | None = None
    normalize: str | None = None
    dynamic_axes: tuple[str, ...] = ()
    ort_extension: tuple[str, ...] = ()
    inputs: str | None = None
    data: str | None = None
    metric: tuple[str, ...] = ()
    targets: str | None = None
    task: Task | None = None
    max_metric_drop: NotNegative | None = None
    p99_limit_ms: Positive | None = None
    load_p99_ms: Positive | None = None


class MachineEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of machine, and how Ray knows a node of it: by a resource of that name, unless labels are given."""

    kind: str
    device: str | None = None
    threads: Count | None = None
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


class SweepSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    engines: Annotated[tuple[str, ...], Some]
    model: Annotated[tuple[ModelEntry, ...], Some]
    machine: tuple[MachineEntry, ...] = ()
    precisions: Annotated[tuple[str, ...], Some] = ("fp32",)
    batches: Annotated[tuple[Count, ...], Some] = (1,)
    scopes: Annotated[tuple[Scope, ...], Some] = ("compute",)
    include: tuple[Selection, ...] = ()
    exclude: tuple[Selection, ...] = ()
    steps: tuple[Literal["measure", "load", "tune"], ...] = ("measure",)
    load_p99_ms: Positive | None = None
    baseline: str | None = None
    device: str = "cpu"
    threads: Count | None = None
    quick: bool = False
    processes: Count | None = None  # as `run` takes them: 6 to 10
    builds: Annotated[int, Meta(ge=2)] | None = None
    time_limit_s: Positive = 1.0
    warmup: int | None = None
    iters: int | None = None
    cache: Cache = "hot"
    seed: int = 0
    timeout_s: Positive = 900.0
    calibration_method: Literal["minmax", "entropy", "percentile"] = "minmax"
    tune_budget_s: Positive = 1200.0


class Cell(Struct, frozen=True, kw_only=True, order=True):
    model: str
    machine: str
    engine: str
    precision: str
    batch: int
    scope: Scope


class Group(Struct, frozen=True, kw_only=True):
    """One model on one kind of machine: its rows take turns on one machine. Threads of 0 are those of the machine."""

    id: str
    model: str
    machine: MachineEntry
    request: RunRequest
    cells: tuple[Cell, ...]
    tune_budget_s: float | None = None  # of a search over settings, after the rows; None: nobody asked for one


def read_spec(path: Path) -> SweepSpec:
    try:
        if path.stat().st_size > SPEC_LIMIT_BYTES:
            raise UsageError(f"{path} is larger than {SPEC_LIMIT_BYTES >> 20} MiB: that is not a sweep specification")
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}. Name the TOML file of the sweep") from error
    try:
        spec = msgspec.toml.decode(data, type=SweepSpec)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `")
        found = text.replace("Object contains unknown", "an unknown").replace("Object missing required", "no")
        expected = "a specification of a sweep"
        if text.startswith("Expected "):
            expected, _, found = text.removeprefix("Expected ").partition(", got ")
        where = where.rstrip("`")
        raise ParseError(path, where, found or _show_value(data, where), expected, "See docs/fleet.md") from error
    except DECODE_ERRORS as error:
        raise ParseError(path, "", str(error), "TOML") from error
    return anchor_paths(check_spec(spec), path.parent)


def _show_value(data: bytes, where: str) -> str:
    """The value at a path such as `$.batches[0]`; msgspec says `[...]` for a key of a table that may have any."""
    if "[...]" in where:
        return "another value"
    value: Any = tomllib.loads(data.decode())
    for key, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", where):
        value = value[int(index)] if index else value[key]
    return repr(value)[:80]


def check_spec(spec: SweepSpec) -> SweepSpec:
    """The specification with names spelt in the one way that rows have."""
    engines = tuple(spell_engine(text) for text in spec.engines)
    for text in spec.precisions:
        parse_precision(text)
    if spec.baseline is not None and spell_engine(spec.baseline) not in engines:
        raise UsageError(f"baseline {spec.baseline} is not among the engines of the sweep: {', '.join(spec.engines)}")
    for step in set(spec.steps) - {"measure", *list_names("functions")}:
        raise UsageError(f'steps has "{step}", and there is no such verb here')
    if "tune" in spec.steps and (processes := 1 if spec.quick else spec.processes or MOST) < MIN_REPETITIONS:
        raise UsageError(
            f'steps has "tune", whose final gives a verdict, which needs {MIN_REPETITIONS} trials each: '
            f"{'leave quick out' if spec.quick else f'raise processes, now {processes}'}"
        )
    if "tune" in spec.steps and set(spec.scopes) != {"compute"}:
        raise UsageError('steps has "tune", which searches in the scope compute alone: leave scopes out')
    if "load" in spec.steps and spec.load_p99_ms is None and all(m.load_p99_ms is None for m in spec.model):
        raise UsageError('steps has "load", which needs load_p99_ms: the limit that requests are to meet')
    machines = spec.machine or (MachineEntry(kind=HERE),)
    _check_once("model", [show_model(model.name) for model in spec.model])
    _check_once("machine", [machine.kind for machine in machines])
    for machine in machines:
        parse_device(machine.device or spec.device)
        if not slug(machine.kind) or machine.kind.startswith("-"):
            raise UsageError(f"machine kind {machine.kind!r}: expected letters and digits, such as h200")
    return replace(spec, engines=engines, machine=machines, batches=tuple(dict.fromkeys(spec.batches)))


def spell_engine(text: str) -> str:
    """The one spelling of an ENGINE: its options in the order of their names."""
    return format_options(*read_engine(text))


def show_model(name: str) -> str:
    """A model as tables name it: a file by its name alone."""
    return Path(name).name if Path(name).suffix in (".onnx", ".pt2") else name


def spell_cell(cell: Cell) -> dict[str, Any]:
    own = msgspec.structs.asdict(cell)
    return {"machine_kind": own.pop("machine"), **own, "model": show_model(cell.model)}


def _check_once(what: str, names: list[str]) -> None:
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{what} {twice[0]} is there twice in the sweep; leave one out")


def anchor_paths(spec: SweepSpec, folder: Path) -> SweepSpec:
    """The specification with the files that it names beside itself written in full."""

    def anchor(text: str | None) -> str | None:
        path = folder / text if text else folder
        return str(path.absolute()) if text and not Path(text).is_absolute() and path.exists() else text

    files = ("name", "data", "inputs", "targets")
    models = tuple(replace(model, **{name: anchor(getattr(model, name)) for name in files}) for model in spec.model)
    return replace(spec, model=models)


def list_cells(spec: SweepSpec) -> tuple[Cell, ...]:
    """Every cell once: the matrix less what is excluded, then what is included."""
    models, machines = [m.name for m in spec.model], [m.kind for m in spec.machine]
    axes: dict[str, list[Any]] = {"model": models, "machine": machines, "engine": list(spec.engines)}
    axes |= {"precision": list(spec.precisions), "batch": list(spec.batches), "scope": list(spec.scopes)}
    cells = dict.fromkeys(_cross(axes))
    for selection in spec.exclude:
        met = [cell for cell in cells if _meets(cell, selection)]
        if not met:
            raise UsageError(f"exclude {_tell(selection)} meets no cell of the matrix; is a name misspelt?")
        for cell in met:
            del cells[cell]
    for selection in spec.include:
        added = {**axes, **{name: _list(value) for name, value in _given(selection).items()}}
        added["engine"] = [spell_engine(text) for text in added["engine"]]
        added["model"] = [_find_model(text, models) for text in added["model"]]
        for kind in added["machine"]:
            if kind not in machines:
                raise UsageError(f"include {_tell(selection)}: no machine of the kind {kind!r} is in the sweep")
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


def _given(selection: Selection) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(selection).items() if value is not None}


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


def _meets(cell: Cell, selection: Selection) -> bool:
    """Whether a cell agrees in every field; an engine's name stands for all its options, a file's for its path."""
    for name, value in _given(selection).items():
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


def _tell(selection: Selection) -> str:
    return ", ".join(f"{name}={value}" for name, value in _given(selection).items()) or "{}"


def list_groups(spec: SweepSpec) -> tuple[Group, ...]:
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in list_cells(spec):
        found.setdefault((cell.model, cell.machine), []).append(cell)
    entries = {model.name: model for model in spec.model}
    kinds = {machine.kind: machine for machine in spec.machine}
    return tuple(
        Group(
            id=name_group(model, kind),
            model=model,
            machine=kinds[kind],
            request=make_request(spec, entries[model], kinds[kind], cells),
            cells=tuple(cells),
            tune_budget_s=spec.tune_budget_s if "tune" in spec.steps else None,
        )
        for (model, kind), cells in found.items()
    )


def name_group(model: str, kind: str) -> str:
    """The folder of a group: two models of one file name never share it."""
    path = Path(model)
    name = slug(path.stem if path.is_absolute() else model)
    return f"{name}-{slug(model)[-8:]}-{slug(kind)}" if path.is_absolute() else f"{name}-{slug(kind)}"


def want(cell: Cell) -> Wanted:
    return Wanted(engine=cell.engine, precision=cell.precision, batch=cell.batch, scope=cell.scope)


def make_request(spec: SweepSpec, model: ModelEntry, machine: MachineEntry, cells: Iterable[Cell]) -> RunRequest:
    wanted = tuple(map(want, cells))
    buckets = parse_buckets(model.input_shape)
    if is_package(Path(model.name)):
        raise UsageError(
            f"model {model.name} is a package, compiled for one machine; name the model that it was made of"
        )
    if len(buckets) > 1:
        raise UsageError(f"model {model.name}: input_shape gives several shapes of one input; a sweep takes one")
    limit = spec.load_p99_ms if model.load_p99_ms is None else model.load_p99_ms
    timing = Timing(scope=wanted[0].scope, **{name: getattr(spec, own) for name, own in TIMED.items()})
    request = RunRequest(
        model=model.name,
        engines=tuple(map(read_engine, dict.fromkeys(w.engine for w in wanted))),
        precisions=tuple(map(parse_precision, dict.fromkeys(w.precision for w in wanted))),
        batches=tuple(dict.fromkeys(w.batch for w in wanted)),
        wanted=wanted,
        device=parse_device(machine.device or spec.device),
        threads=machine.threads or spec.threads or 0,
        measure=timing.make_measure(spec.seed, quick=spec.quick, builds=spec.builds),
        normalize=read_normalize(model.input_dtype, model.normalize),
        dynamic_axes=parse_axes(model.dynamic_axes),
        operator_libraries=model.ort_extension,
        input_shapes=buckets[0] if buckets else None,
        baseline=spell_engine(spec.baseline) if spec.baseline else None,
        metrics=model.metric,
        load_p99_ms=limit if "load" in spec.steps else None,
    )
    # Whatever else a request has under the same name.
    for entry in (spec, model):
        same = set(entry.__struct_fields__).intersection(RunRequest.__struct_fields__).difference(SET_HERE)
        request = replace(request, **{name: getattr(entry, name) for name in same})
    return request
