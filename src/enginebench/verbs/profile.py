"""`profile`: where one engine spends its time, layer by layer, in one vocabulary for every engine.

Timing and profiling run in one child process, timing first, since a profiler slows the engine down.
"""

import shlex
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import click
from msgspec.structs import replace

from enginebench import door
from enginebench import options as opts
from enginebench.core.errors import ChildFailed
from enginebench.core.features import find_hook
from enginebench.core.hooks import LayerLimits
from enginebench.core.names import parse_precision
from enginebench.core.records import LayerProfile, MeasureSpec
from enginebench.engines.registry import find_entry, read_engine
from enginebench.options import Opt, Unpack, verb
from enginebench.runs.child.environments import PROBE_TIMEOUT_S
from enginebench.runs.child.isolate import run_child
from enginebench.runs.child.other_jobs import ProbeLayersJob, ProfileJob
from enginebench.runs.folder import ARTIFACTS
from enginebench.runs.lock import lock_devices
from enginebench.runs.plan import list_devices
from enginebench.runs.progress import report_steps
from enginebench.runs.request import pass_on
from enginebench.runs.targets.scratch import open_scratch
from enginebench.stats.effective import check_precision
from enginebench.stats.engine_profile import EngineProfileDocument, LimitedLayers, describe_profile
from enginebench.verbs.common import begin, check_extra, parse_batches
from enginebench.verbs.requests import make_request, name_engine

# Time for the runs without the profiler: enough for a median to compare the layers with, not for a verdict.
TIMED_S = 1.0


class ProfileOptions(opts.Modules, opts.Shared, total=False):
    engine: opts.GraphEngine
    precision: opts.Precision
    batch: opts.Batch
    input_size: opts.InputSize
    extra: opts.Extra
    wait: opts.Wait


class ProfilePrinted(opts.Native, total=False):
    topk: opts.TopK
    out: Annotated[str | None, Opt("Folder for the JSON, the CSV and the chart.", path="new folder")]


@verb(ProfileOptions)
def profile(target: opts.Model, **options: Unpack[ProfileOptions]) -> EngineProfileDocument:
    """Profile one engine on TARGET: the time of each layer, and the time outside layers.

    Example: enginebench profile digits-cnn --engine ort

    The engine is timed first and then profiled by its own runtime. Profiling may slow it down: rely on
    the percentages; times are those under the profiler.

    Args:
        target: a model as `run` takes it, or an engine file.

    Raises:
        DependencyError: the engine cannot be had here, or cannot time its layers.
        ModelError: the model cannot be found, built or exported.
        DeviceBusy: another run holds the device, and `wait` is false.
    """
    return make_both(target, options)[0]


@door.command(profile, "TARGET", "[ARG]...", shown=ProfilePrinted)
def command(target: str, arguments: tuple[str, ...], shown: ProfilePrinted, **options: Unpack[ProfileOptions]) -> None:
    options["extra"] = (*options["extra"], *map(shlex.quote, arguments))
    from enginebench.report.charts import draw_layers
    from enginebench.report.layer_table import list_engine_profile, write_engine_profile

    (document, layers), topk = make_both(target, options), shown["topk"]
    door.show(document, shown, door.tables(lambda document: list_engine_profile(document, topk)))
    if shown["out"] is not None:
        out = Path(shown["out"])
        for path in write_engine_profile(document, out):
            click.echo(str(path), err=True)
        title = f"Layers of {document.engine} {document.precision}"
        door.draw(lambda: draw_layers(layers.layers, title, topk), out / "per_layer_time.png")


def make_both(target: opts.Model, options: ProfileOptions) -> tuple[EngineProfileDocument, LayerProfile]:
    from enginebench.models.samples import find_samples
    from enginebench.runs.targets.ahead import check_ahead
    from enginebench.runs.targets.sources import plan_one

    with begin(target, options) as (taken, reporter):
        engine = read_engine(name_engine(options["engine"], options["device"]))
        request = make_request(
            taken.text,
            options,
            engines=pass_on([engine], options["extra"]),
            precisions=[parse_precision(options["precision"])],
            batches=parse_batches(options["batch"], options, taken),
            measure=MeasureSpec(seed=options["seed"], time_limit_s=TIMED_S, processes=1),
        )
        check_extra(request)
        with suppress(ChildFailed):  # an engine that cannot be imported is refused with the reason when it is planned
            probe = ProbeLayersJob(engine=find_entry(request.engines[0][0]).name)
            run_child(probe, timeout_s=PROBE_TIMEOUT_S)
        check_ahead([request])
        devices, wait = list_devices(request), options["wait"]
        with open_scratch() as scratch, lock_devices(devices, wait=wait, on_wait=reporter.say):
            artifacts = scratch / ARTIFACTS
            row, source = plan_one(request, artifacts, reporter)
            out, inputs = str(artifacts.absolute()), find_samples(artifacts)
            job = ProfileJob(
                model=row.model, artifact=source, engine=row.engine, measure=row.measure, out_dir=out, inputs=inputs
            )
            response = run_child(job, timeout_s=request.timeout_s, on_note=report_steps(reporter, request.model))
            limited = LimitedLayers(layers=response.profile.layers)
            if (limit := find_hook(LayerLimits)) is not None:
                limited = limit(request, artifacts, (row.engine, source, response.shapes), limited.layers, reporter)
    profile = replace(response.profile, layers=limited.layers)
    ran, warnings = check_precision(row.engine.precision, response.effective_precision, row.engine.device)
    document = describe_profile(
        model=row.model,
        engine=replace(row.engine, precision=ran),
        profile=profile,
        end_to_end_ns=response.end_to_end_ns,
        clock=response.clock,
        effective_precision=response.effective_precision,
        engine_version=response.engine_version,
        warnings=tuple(dict.fromkeys((*source.warnings, *response.warnings, *warnings))),
        bound=limited.bound,
        notes=limited.notes,
    )
    return document, profile
