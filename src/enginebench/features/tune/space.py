"""The space of a search: for each engine and precision its knobs, each with its possible values."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.entry import DeviceKind, find_kind
from enginebench.core.names import format_options, format_precision, require_precision, show_precision
from enginebench.core.recipes import FEW_BITS, RECIPES, choose_module_recipe
from enginebench.core.records import Artifact, EngineSpec, Precision, Recipe
from enginebench.core.shapes import LARGEST, PAD, explain_no_padding, pad_cells
from enginebench.engines.registry import find_device, find_entry, takes
from enginebench.engines.verified import PADDING
from enginebench.runs.folder import RunRequest
from enginebench.runs.plan import choose_graph_recipe, find_obstacle, find_open_source
from enginebench.runs.traffic import list_open_inputs, settle_traffic

Goal = Literal["latency", "throughput", "capacity"]

# Knobs beside the options of an engine.
THREADS, STREAMS, BATCH, WAIT, RECIPE = "threads", "streams", "max_batch", "max_wait_ms", "recipe"
KNOBS = (THREADS, STREAMS, BATCH, WAIT, RECIPE)
# Requests that may be computed together; beyond, the next doubling gains little. A GPU takes more of them, and its
# streams cost no cores.
BATCHES: dict[DeviceKind, tuple[int, ...]] = {"cpu": (1, 2, 4, 8, 16, 32), "cuda": (1, 2, 4, 8, 16, 32, 64, 128)}
GPU_STREAMS = (1, 2, 3, 4)
# Of the limit on latency, what a request may wait for others to fill its batch.
WAITS = (0.0, 0.1, 0.25)
# Of lengths: a kernel computes eight values or more at a time, and beyond these little but the largest is left.
MULTIPLES = (8, 16, 32, 64, 128, 256)
METHODS = ("minmax", "entropy", "percentile")


class Setting(Struct, frozen=True, kw_only=True):
    engine: str
    options: dict[str, str] = {}
    precision: Precision = "fp32"
    recipe: Recipe | None = None
    method: str = ""  # how the ranges were taken; "": as the request has it, or there are none
    threads: int = 1
    streams: int = 1
    max_batch: int = 1
    max_wait_ms: float = 0.0
    graph: str = ""  # the name of a graph that was made for this search; "": the model in this precision

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def name(self) -> str:
        """The name for people: two different settings never share it."""
        engine = format_options(self.engine, self.options)
        parts = [engine, format_precision(show_precision(engine, self.precision), self.recipe)]
        parts += filter(None, (self.method, self.graph))
        parts.append(f"{self.threads} thread{'s' if self.threads > 1 else ''}")
        parts += [f"{self.streams} streams"] if self.streams > 1 else []
        parts += [f"batch {self.max_batch}"] if self.max_batch > 1 else []
        parts += [f"wait {self.max_wait_ms:g} ms"] if self.max_wait_ms else []
        return " ".join(parts)


class Arm(Struct, frozen=True, kw_only=True):
    """An engine in a precision: its knobs, each with its values, the default first. Fixed options are separate."""

    engine: str
    fixed: dict[str, str]
    precision: Precision
    knobs: dict[str, tuple[str, ...]]
    tunes: bool = False  # its engine compiles for long, alone
    timing_only: frozenset[str] = frozenset()  # knobs on which no output depends
    dear: frozenset[tuple[str, str]] = frozenset()  # values that take minutes to build
    only: dict[str, tuple[Recipe, ...]] = {}  # knobs that do something to graphs of these recipes alone

    def find_core(self, chosen: Mapping[str, str]) -> tuple[str, ...]:
        """Return the values on which outputs depend: settings that share them have the same outputs."""
        return self.default.name, *(value for name, value in chosen.items() if name not in self.timing_only)

    @property
    def default(self) -> Setting:
        """The setting that `run` would measure."""
        return self.set({})

    def set(self, chosen: Mapping[str, str]) -> Setting:
        """Make the setting with these values; every other knob stays at its default, and an option unnamed."""
        values = {name: chosen.get(name, values[0]) for name, values in self.knobs.items()}
        recipe, _, method = values.get(RECIPE, "").partition("/")
        changed = {name: value for name, value in values.items() if name not in KNOBS and value != self.knobs[name][0]}
        options = {name: value for name, value in changed.items() if recipe in self.only.get(name, (recipe,))}
        max_batch = int(values.get(BATCH, "1"))
        return Setting(
            engine=self.engine,
            options={**self.fixed, **options},
            precision=self.precision,
            recipe=recipe or None,  # type: ignore[arg-type]
            method=method,
            threads=max(1, int(values[THREADS]) // int(values.get(STREAMS, "1"))),
            streams=int(values.get(STREAMS, "1")),
            max_batch=max_batch,
            max_wait_ms=float(values.get(WAIT, "0")) if max_batch > 1 else 0.0,  # a single request waits for no other
        )

    def read(self, setting: Setting) -> dict[str, str] | None:
        """Return the values that make this setting; None if it does not belong to this arm."""
        recipe = f"{setting.recipe}/{setting.method}" if setting.method else setting.recipe or ""
        own = {
            THREADS: self.knobs[THREADS][0] if STREAMS in self.knobs else str(setting.threads),
            STREAMS: str(setting.streams),
            BATCH: str(setting.max_batch),
            WAIT: f"{setting.max_wait_ms:g}",
            RECIPE: recipe,
        }
        chosen = {name: own.get(name, setting.options.get(name, values[0])) for name, values in self.knobs.items()}
        valid = all(value in self.knobs[name] for name, value in chosen.items())
        return chosen if valid and self.set(chosen) == setting else None


def list_arms(
    request: RunRequest,
    goal: Goal,
    *,
    threads: tuple[int, ...],  # of all streams together, the default first
    streams: tuple[int, ...],
    limit_ms: float | None = None,  # of which waiting for a batch may take a part
    one_fp32: bool = False,  # FP32 is only the reference of the outputs: the first engine's will do
    sources: Sequence[Artifact] = (),
) -> tuple[list[Arm], dict[str, str]]:
    """List every engine in every precision of a request, with the knobs beside the options that the user fixed.

    The second result names each `ENGINE PRECISION` that never runs a model with such sources, with the reason.

    Engines that compile for long come last: if the budget ends before them, the others have run. With the goal
    `latency` one request is computed at a time, so that streams and batches are no knobs.
    """
    arms, never = [], dict[str, str]()
    for (requested, recipe), (engine, fixed) in itertools.product(request.precisions, request.engines):
        precision, entry = require_precision(requested), find_entry(engine)
        device = find_device(engine, request.device)
        kind = find_kind(device)
        own = choose_module_recipe(engine, precision, device) if takes(engine) == "torch" else None
        spec = EngineSpec(backend=engine, device=device, precision=precision, recipe=recipe)
        if why := find_obstacle(spec, sources):
            never[f"{engine} {precision}"] = why
            continue
        options = entry.list_options(kind)
        free = goal == "latency" and kind in entry.chooses_threads
        knobs: dict[str, tuple[str, ...]] = {THREADS: tuple(map(str, threads if free else threads[:1]))}
        if precision in FEW_BITS:
            # `recipe` or `recipe/method`, the default first; one that the user named stays, its ranges do not.
            first = recipe or own or choose_graph_recipe(engine, precision, sources)
            others = [one for one in (entry.recipe, *entry.other_recipes.searched) if one != first]
            others = others if (recipe or own) is None and precision == "int8" else []
            methods = [method for method in METHODS if method != request.calibration_method]
            ranges = [f"{first}/{method}" for method in methods if RECIPES[first].needs == "ranges"]
            knobs[RECIPE] = (first, *others, *ranges)
        if goal != "latency":
            counts = streams if kind == "cpu" else GPU_STREAMS
            knobs |= {STREAMS: tuple(map(str, counts)), BATCH: tuple(map(str, BATCHES[kind]))}
        if limit_ms is not None:
            knobs[WAIT] = tuple(f"{share * limit_ms:g}" for share in WAITS)
        if options.get(PAD) is PADDING and PAD not in fixed and request.traffic and sources:
            paddings = list_paddings(request, find_open_source(sources))
            knobs = {PAD: ("", *paddings), **knobs} if paddings else knobs  # first, so that it is tried early
        made = {value.partition("/")[0] for value in knobs.get(RECIPE, ())}
        for name, option in options.items():
            idle = (goal == "latency" and option.under_load) or precision not in (option.only_in or (precision,))
            idle |= bool(option.recipes) and made.isdisjoint(option.recipes)
            if option.search and name not in fixed and not idle:
                knobs[name] = (option.default, *option.search)
        quiet = frozenset(name for name, option in options.items() if option.timing_only)
        dear = frozenset((name, value) for name, option in options.items() for value in option.dear)
        arm = Arm(engine=engine, fixed=fixed, precision=precision, knobs=knobs, tunes=entry.builder.tunes)
        only = {name: option.recipes for name, option in options.items() if option.recipes}
        arms.append(replace(arm, timing_only=quiet, dear=dear, only=only))
    arms.sort(key=lambda arm: arm.tunes)
    references = [arm for arm in arms if one_fp32 and arm.precision == "fp32"][:1]
    references = [replace(arm, knobs={name: tried[:1] for name, tried in arm.knobs.items()}) for arm in references]
    return [*references, *(arm for arm in arms if not one_fp32 or arm.precision != "fp32")], never


def list_paddings(request: RunRequest, source: Artifact) -> tuple[str, ...]:
    """List the values of `pad` that a search tries: the least multiples that leave half and a quarter of the shapes of
    the mix, and the largest shape for all; none where outputs could not be cut back.
    """
    cells = settle_traffic(request.traffic, list_open_inputs(source))

    def make(pad: str) -> EngineSpec:
        return EngineSpec(backend="", options={PAD: pad}, traffic=cells)

    def count(multiple: int) -> int:
        return len({(cell.batch, repr(cell.shapes)) for cell in pad_cells(make(str(multiple)), source.inputs)})

    if explain_no_padding(make(LARGEST), source.inputs, source.outputs):
        return ()
    counts = {multiple: count(multiple) for multiple in MULTIPLES}
    halves = [[m for m, left in counts.items() if 1 < left <= len(cells) / part] for part in (2, 4)]
    return (*dict.fromkeys(str(multiples[0]) for multiples in halves if multiples), LARGEST)


def list_thread_counts(default: int, most: int, requested: int | None) -> tuple[int, ...]:
    """List the numbers of threads that a search tries, the default first: halves of it, and one for each CPU."""
    if requested is not None:
        return (requested,)
    halves = [default >> i for i in range(1, default.bit_length())]
    return tuple(dict.fromkeys([default, *halves, max(default, most)]))


def list_stream_counts(cores: int) -> tuple[int, ...]:
    """List the numbers of streams that a search tries: 1, 2, 4 and so on, up to one for each core."""
    return tuple(1 << i for i in range(cores.bit_length()) if 1 << i <= cores)
