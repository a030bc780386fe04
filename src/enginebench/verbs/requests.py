"""From the options of a verb to its request, in one step: read, completed and checked once, and never changed."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from enginebench import options as opts
from enginebench.core.commands import name_flag
from enginebench.core.entry import find_kind
from enginebench.core.errors import UsageError
from enginebench.core.limits import MARGIN, MOST, TIMEOUT_S
from enginebench.core.names import format_options, parse_engine
from enginebench.core.records import EngineSpec, MeasureSpec, ModelSource, Precision, Recipe
from enginebench.core.shapes import BATCH_AXIS, LARGEST, PAD
from enginebench.engines.registry import check_options, check_overlap, choose_graph_engine, find_device, find_entry
from enginebench.models.zoo import require_packages
from enginebench.runs.bundles import Bundle
from enginebench.runs.child.environments import strip_environment
from enginebench.runs.folder import OUTSIDE, RunRequest, Wanted, check_outside
from enginebench.runs.request import (
    PERCENTILES,
    choose_batches,
    choose_drop,
    read_buckets,
    read_normalize,
    validate_request,
)
from enginebench.runs.traffic import TrafficPart, read_traffic
from enginebench.runs.trust import allow_code
from enginebench.verbs.common import list_libraries, read_axes, read_device, read_limits, read_metrics, to_text

if TYPE_CHECKING:
    from enginebench.runs.targets.sides import SideRequest
    from enginebench.verbs.run import RunOptions


SEVERAL_SHAPES = "--input-shape gives several shapes of one input; only run measures each"


class Opening(opts.Shared, total=False):
    """The options of verbs that open a model and run engines on it."""

    input_size: opts.InputSize


class CheckingOutputs(Opening, opts.Judging, total=False):
    """The options of verbs that also check outputs and score them."""

    data: opts.Data
    timeout: opts.Timeout
    need: opts.Need


def make_request(
    model: str,
    options: Opening,
    *,
    engines: Iterable[tuple[str, dict[str, str]]],
    precisions: Iterable[tuple[Precision | None, Recipe | None]],
    batches: tuple[int, ...] | None,
    measure: MeasureSpec,
    declared: type = Opening,
    bundle: Bundle | None = None,
    traffic: tuple[TrafficPart, ...] = (),
    wanted: tuple[Wanted, ...] = (),
    dry: bool = False,
) -> RunRequest:
    """Return the request of `model`: one configuration for each engine, precision and batch.

    Args:
        batches: None: not named.
        declared: the class of the verb's options, as far as they make a request.
        bundle: the bundle that `model` is. It brings its engine with all settings, which the user cannot name.
        traffic: a mix, whose engines are named as they are measured; that of `run` is read here, with its engines.
        wanted: the only combinations that are wanted. They are checked where they run: a store may name options that
            another version has.
        dry: nothing runs, so that files need not exist and no code is allowed.
    """
    from enginebench.stats.needs import read_needs  # reads NumPy, which --help can do without

    chosen, measures_several = fill_run_options(options, declared), "engines" in opts.list_all_options(declared)
    device, threads = read_device(chosen["device"]), chosen["threads"]
    if bundle is not None:
        spec = bundle.engine
        engines, precisions = [(spec.backend, spec.options)], [(spec.precision, spec.recipe)]
        batches, device, threads = (spec.batch,), spec.device, spec.threads
        measure = replace(measure, scope=bundle.scope, seed=bundle.check_seed)
    named = tuple(engines)
    check_engines(() if wanted else named, device, measure)
    buckets = read_each_shape(chosen, several=measures_several)
    if measures_several and chosen["traffic"] is not None:
        traffic, batches = read_run_mix(chosen), (1,)
        named = tuple(split_engines(named, traffic, device))
    request = RunRequest(
        model=model,
        engines=named,
        precisions=tuple(precisions),
        batches=(batches or ()) if wanted else list_batches(batches, buckets),
        any_engine=measures_several and not wanted and chosen["engines"] is None,
        any_precision=measures_several and not wanted and chosen["precisions"] is None,
        any_batch=batches is None and not buckets,
        device=device,
        threads=(threads or 0) if wanted else count_threads(threads),
        measure=measure,
        weights=os.fspath(chosen["weights"]),
        input_size=chosen["input_size"],
        normalize=read_normalize(chosen["input_dtype"], chosen["normalize"]),
        input_shapes=buckets[0] if buckets else None,
        buckets=buckets if len(buckets) > 1 else (),
        traffic=traffic,
        dynamic_axes=read_axes(chosen["dynamic_axes"]),
        inputs=to_text(chosen["inputs"]),
        operator_libraries=list_libraries(chosen["ort_extension"]),
        baseline=name_baseline(chosen["baseline"], traffic, device),
        timeout_s=chosen["timeout"] if "timeout" in opts.list_all_options(declared) else TIMEOUT_S,
        quick=chosen["quick"],
        data=to_text(chosen["data"]),
        calibration_method=chosen["calibration_method"],
        metrics=read_metrics(chosen["metric"]),
        targets=to_text(chosen["targets"]),
        task=chosen["task"],
        limits=read_limits(chosen["limit"]),
        max_metric_drop=read_drop(chosen),
        p99_limit_ms=chosen["p99_limit_ms"],
        needs=read_needs(chosen["need"]),
        for_calls=chosen["for_calls"],
        load_p99_ms=chosen["load_p99_ms"],
        wanted=wanted,
    )
    if not dry:
        validate_request(request)
    return request


def fill_run_options(options: Opening, declared: type) -> "RunOptions":
    """Return all options of `run`: those that the verb declares, too, as they are, the others with their defaults."""
    from enginebench.verbs.run import RunOptions

    own: Mapping[str, object] = options
    shared = {name: own[name] for name in opts.list_all_options(declared) if name in own}
    return cast(RunOptions, opts.fill(RunOptions, shared))


def name_baseline(engine: str | None, traffic: Sequence[TrafficPart], device: str) -> str | None:
    """Return the baseline; of a mix as the engine is listed there, the one that serves all shapes."""
    if engine is None or not traffic:
        return engine
    return format_options(*next(split_engines([parse_engine(engine)], traffic, device)))


def read_run_mix(options: "RunOptions") -> tuple[TrafficPart, ...]:
    """Read the mix of a `run`, and check the options that do not go with it."""
    refused = {
        "--batch": options["batch"] is not None and "the mix has the batches",
        "--scope pipelined": options["scope"] == "pipelined" and "it keeps batches of one shape in flight",
        f"{name_flag('--cache', 'cache')} cold": options["cache"] == "cold" and "a mix is served from hot caches",
        "--builds": options["builds"] is not None and "it compares builds of one shape",
        "--load-p99-ms": options["load_p99_ms"] is not None and "it loads one shape",
    }
    return read_mix(options["traffic"], options, refused)


def read_mix(
    requested: str | os.PathLike[str] | Mapping[str, float] | None,
    options: opts.Shared,
    refused: Mapping[str, str | bool],  # {option that does not go with a mix: why, or False where it was not given}
) -> tuple[TrafficPart, ...]:
    """Read --traffic; refuse these options, and those about shapes and inputs that no verb takes beside it."""
    traffic = read_traffic(requested)
    lengths = any(part.shape or part.axes.keys() != {BATCH_AXIS} for part in traffic)
    of_every_verb = {
        "--input-shape": bool(options["input_shape"]) and "the mix has the shapes",
        "--inputs": lengths and options["inputs"] is not None and "the inputs have lengths of their own",
    }
    for option, why in {**of_every_verb, **refused}.items() if traffic else ():
        if why:
            raise UsageError(f"{option} does not go with --traffic: {why}. Leave one of them out")
    return traffic


def split_engines(
    engines: Iterable[tuple[str, dict[str, str]]],
    traffic: Sequence[TrafficPart],
    device: str,
    *,
    delivered: bool = False,
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each engine once with what serves all shapes of a mix, and once with one for each shape, unless named.

    For a mix of one shape these are the same: each engine is yielded as it is.

    Args:
        delivered: the fastest is to become a bundle, which has one engine for all shapes.
    """
    if all((part.shape, part.axes) == (traffic[0].shape, traffic[0].axes) for part in traffic):
        yield from engines
        return
    for name, options in engines:
        choices = find_entry(name).describe_on(find_device(name, device)).for_shapes
        apart = next((choice for choice in choices[1:] if choice.items() <= options.items()), None)
        if delivered and apart and options.get(PAD) != LARGEST:
            raise UsageError(
                f"--deliver: {format_options(name, options)} has an engine for each shape of --traffic, and a bundle "
                f"has one for all. Name {format_options(name, {**options, **choices[0]})}, or leave --deliver out"
            )
        for choice in (choices[:1] if delivered else choices) or ({},):
            if not choice or choice.keys().isdisjoint(options):
                yield name, {**options, **choice}
            else:
                yield name, options
                break


def check_engines(engines: Iterable[tuple[str, dict[str, str]]], device: str, measure: MeasureSpec) -> None:
    """Check the options of engines, and that they can be measured so."""
    if measure.scope == "pipelined" and measure.cache == "cold":
        option = name_flag("--cache", "cache")
        raise UsageError(f"{option} cold needs a gap between batches, and --scope pipelined leaves none. Use hot")
    for name, options in engines:
        engine_device = find_device(name, device)
        if measure.scope == "pipelined":
            check_overlap(name, engine_device)
        spec = EngineSpec(backend=name, options=options, device=engine_device, precision="fp32", batch=1)
        check_options(strip_environment(spec))


def read_drop(checking: opts.Judging) -> float | None:
    """Return the largest allowed drop of the deciding metric."""
    metrics = read_metrics(checking["metric"])
    return choose_drop(checking["max_metric_drop"], checking["max_top1_drop"], metrics)


def list_batches(requested: tuple[int, ...] | None, buckets: Sequence[dict[str, tuple[int, ...]]]) -> tuple[int, ...]:
    """Return the batches of all shapes, each once."""
    return tuple(dict.fromkeys(batch for shapes in buckets or (None,) for batch in choose_batches(requested, shapes)))


def make_measure(
    options: opts.Timing,
    seed: int,
    *,
    percentiles: tuple[float, ...] = PERCENTILES,
    quick: bool = False,
    builds: int | None = None,
    margin: float | None = MARGIN,
) -> MeasureSpec:
    """Make the MeasureSpec of the options; `quick` is one process of at most one second.

    Without --processes ten at most: fewer once no verdict at `margin`, if there is one, can change. With several
    builds each has the same number of processes, two at least, since one shows no difference between builds.
    """
    if quick and builds:
        raise UsageError("--quick times one process, and --builds needs two of each build; leave one of them out")
    warmup = options["warmup"]
    calls = re.fullmatch(r"(\d{1,9})(ms)?", str(warmup))
    if calls is None and warmup is not None:
        expected = "expected 0 or more calls, or milliseconds for trtexec, as in 200ms"
        raise UsageError(f"--warmup {warmup}: {expected}")
    count = builds or 1
    most = options["processes"] or MOST
    processes = count * max(2, -(-most // count)) if builds else most
    exact = quick or builds or options["processes"]
    return MeasureSpec(
        **({"warmup_ms" if calls[2] else "warmup": int(calls[1])} if calls else {}),
        iters=options["iters"],
        time_limit_s=options["time_limit"],
        processes=1 if quick else processes,
        settle=None if exact else margin,
        builds=count,
        scope=options["scope"],
        cache=options["cache"],
        seed=seed,
        percentiles=percentiles,
    )


def make_source(model: str, options: opts.Shared, input_size: int | None = None) -> ModelSource:
    """Return what is opened for `model`, checked: its weights, shapes and inputs."""
    weights, inputs, libraries = os.fspath(options["weights"]), to_text(options["inputs"]), options["ort_extension"]
    require_packages(model)
    allow_code(*list_libraries(libraries))
    named = (("weights", weights), ("inputs", inputs))
    check_outside((f"--{name}", text) for name, text in named if text and text not in OUTSIDE[name])
    return ModelSource(
        model=model,
        weights=weights,
        seed=options["seed"],
        input_size=input_size,
        normalize=read_normalize(options["input_dtype"], options["normalize"]),
        input_shapes=read_shapes(options),
        inputs=inputs,
        operator_libraries=list_libraries(libraries),
    )


def make_side_request(
    options: opts.Shared, input_size: int | None = None, profile_index: int | None = None
) -> "SideRequest":
    """Return what the sides of a comparison have in common."""
    from enginebench.runs.targets.sides import SideRequest

    return SideRequest(
        device=read_device(options["device"]),
        threads=count_threads(options["threads"]),
        source=make_source("", options, input_size),
        profile_index=profile_index,
    )


def read_shapes(options: opts.Shared) -> dict[str, tuple[int, ...]] | None:
    """Return {input name: shape}; None if there is none."""
    return next(iter(read_each_shape(options, several=False)), None)


def read_each_shape(options: opts.Shared, *, several: bool) -> tuple[dict[str, tuple[int, ...]], ...]:
    """Return a {input name: shape} for each shape of --input-shape, of which only `run` measures several."""
    buckets = read_buckets(options["input_shape"])
    if len(buckets) > 1 and not several:
        raise UsageError(SEVERAL_SHAPES)
    return buckets


def count_threads(threads: int | None) -> int:
    from enginebench.measure.pin import default_threads

    return threads or default_threads()


def name_engine(engine: str | None, device: str) -> str:
    """Return the named engine, else ONNX Runtime's for the device, which runs any model that has a graph."""
    return engine or choose_graph_engine(find_kind(read_device(device)))
