"""`trtexec`: NVIDIA's own tool builds a plan, times it by its own clock, and shows its outputs and layers.

It leaves the usual folder: `times.json`, `profile.json`, `layers.json`, `trtexec_stdout.log`.
"""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from enginebench.core.engine_api import read_index
from enginebench.core.errors import ArtifactError, FeedError, MeasurementError, UsageError
from enginebench.core.names import configuration_id
from enginebench.core.protocols import Array, Feeds
from enginebench.core.records import (
    Artifact,
    Availability,
    EngineSpec,
    LayerProfile,
    Measurement,
    MeasureSpec,
    ResultWarning,
    ShapeRange,
    TensorSpec,
)
from enginebench.core.shapes import concrete_shape, find_plan_shapes
from enginebench.core.store import copy_file, write_atomic
from enginebench.engines.abilities import PROCESS, Change, Composed, Reader
from enginebench.engines.backends.tensorrt.plan_store import PlanBackend, PlanRecord, describe_gpu, ensure_plan
from enginebench.engines.backends.tensorrt.settings import (
    INVENTED_RANGES,
    BuildSettings,
    adapt_cache,
    check_calib_cache,
    find_newest_opset,
    fit_to_version,
    list_dla_warnings,
    read_plugins,
    read_settings,
    split_argv,
)
from enginebench.engines.request import check_request, read_options
from enginebench.engines.tensorrt_library import TIMING_CACHE_LOST, find_layers_on_gpu
from enginebench.features.trtexec import executable, process
from enginebench.features.trtexec.command import RunSettings, compose_build, compose_measure
from enginebench.features.trtexec.entries import TRTEXEC
from enginebench.features.trtexec.executable import Trtexec
from enginebench.features.trtexec.moving import adapt_build
from enginebench.features.trtexec.tool_files import ToolFiles

# trtexec's own; the queries of this time are not in the exported times.
WARMUP_MS = 200


class Timing(NamedTuple):
    """The times of a run of trtexec, which ends when both iterations and duration are reached."""

    warmup_ms: int
    duration_s: float
    iterations: int

    def apply(self, settings: RunSettings) -> RunSettings:
        """Return the settings with these times."""
        return replace(settings, warmup_ms=self.warmup_ms, duration_s=self.duration_s, iterations=self.iterations)


def plan_timing(measure: MeasureSpec) -> Timing:
    """Return the times in which trtexec takes the samples that `measure` requests.

    trtexec's warm-up is a time, its iterations a minimum, and both iterations and duration must be reached. Exact
    numbers need a run without its warm-up: as many queries as warm-up and samples together, the first ones dropped
    here. 11.1 takes one query more than requested, and the first may time transfers that are switched off: the first
    ones again, also behind trtexec's own warm-up, after which a slow start can leave more than the minimum.
    """
    own_ms = WARMUP_MS if measure.warmup_ms is None else measure.warmup_ms
    return Timing(
        warmup_ms=own_ms if measure.warmup is None else 0,
        duration_s=0 if measure.iters else measure.time_limit_s,
        iterations=(measure.warmup or 0) + (measure.iters or 1),
    )


NAME, OPTIONS = TRTEXEC.name, TRTEXEC.options
TRIAL_VARIABLE = "ENGINEBENCH_REPETITION"

LOG = "trtexec_stdout.log"
BUILD_LOG_SUFFIX = ".build.log"
ADOPT = "adopt"
TIMES = "times.json"
PROFILE = "profile.json"
LAYERS = "layers.json"
OUTPUT = "output.json"
# One query, for what is not timed.
ONCE = Timing(warmup_ms=0, duration_s=0, iterations=1)

# Source: TensorRT's release notes, 10.0 ("INT64 support").
FIRST_INT64 = (10, 0, 0)

# Long enough for a few hundred profiled runs of a slow network, short beside the build before it.
PROFILE_S = 1.0


class TrtexecBackend(PlanBackend):
    """Runs ONNX graphs and finished plans through trtexec.

    Args:
        cache_dir: folder inside the run's artifacts; plans are in `plans` beside it, runs in `trtexec`.
    """

    name = NAME

    def __init__(self, cache_dir: Path | None = None) -> None:
        super().__init__(cache_dir)
        self._home = (cache_dir.parent if cache_dir else Path()).absolute()
        self._files = ToolFiles()
        self._profiled: Artifact | None = None

    def probe(self) -> Availability:
        """Return whether an executable is found that prints its banner, and finds a GPU and TensorRT's libraries."""
        path = executable.find_trtexec()
        if path is None:
            missing = "no trtexec in $TRTEXEC, on PATH or in the usual folders"
            return Availability(engine=NAME, available=False, reason=missing, fix=executable.FIX)
        version = executable.read_trtexec(path).version_text
        devices, reason = process.list_gpus(str(path))
        return Availability(engine=NAME, available=reason is None, version=version, devices=devices, reason=reason)

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        """Build a plan for this version, GPU and these settings, or return the stored one."""
        check_request(artifact, spec, ("onnx", "plan"), TRTEXEC.precisions, (spec.device,))
        options, tool = _read(spec)
        if artifact.kind == "plan":
            return self._adopt(artifact, spec, tool, options)
        settings = fit_to_version(read_settings(spec, options, artifact), tool.version)
        if settings.calib_cache:
            check_calib_cache(Path(settings.calib_cache))
        flags = compose_build(tool, "", "", replace(settings, timing_cache=None), extra=_list_extra(options))[1:]
        sources = {"onnx_sha256": artifact.sha256, "tensorrt": tool.version_text, "gpu": describe_gpu(settings.device)}
        record = PlanRecord(**sources, flags=tuple(flags), engine=NAME)
        build = partial(self._build, artifact, tool, settings, options)
        return ensure_plan(out_dir / "plans", record, artifact, spec, build, settings.profiles)

    def compose_build(self, artifact: Artifact, plan: str, spec: EngineSpec, version: str | None) -> Composed:
        """Compose the command that `build` would run, with the plan at `plan`."""
        options = read_options(spec, OPTIONS)
        tool = choose_tool(options, version)
        settings = read_settings(spec, options, artifact)
        if version is None:  # the caches of another installation are not known here
            settings = fit_to_version(settings, tool.version)
        layers = str(Path(plan).with_suffix(".layers.json"))
        argv = compose_build(tool, artifact.path, plan, settings, layers, _list_extra(options))
        return Composed(
            tuple(argv), tool.version_text, (*list_version_warnings(version), *list_opset_warnings(artifact, tool))
        )

    def adapt_build(
        self, artifact: Artifact, plan: str, spec: EngineSpec, version: str
    ) -> tuple[EngineSpec, tuple[Change, ...]]:
        # trtexec itself takes no data; the command that makes the graph does.
        own = replace(spec, options={key: text for key, text in spec.options.items() if key != "calib_data"})
        return adapt_build(artifact, plan, spec, choose_tool(read_options(own, OPTIONS), version))

    def compose_measure(
        self, artifact: Artifact, spec: EngineSpec, measure: MeasureSpec, version: str | None
    ) -> Composed:
        options = read_options(spec, OPTIONS)
        tool = choose_tool(options, version)
        argv = compose_measure(tool, artifact.path, self._time_settings(artifact, spec, options, measure))
        return Composed(tuple(argv), tool.version_text, list_version_warnings(version))

    def measure(self, artifact: Artifact, spec: EngineSpec, measure: MeasureSpec) -> Measurement:
        options, tool = _read(spec)
        settings = self._time_settings(artifact, spec, options, measure)
        folder = self._configuration_folder(artifact, spec, measure) / f"{PROCESS}{os.environ.get(TRIAL_VARIABLE, '0')}"
        self._note(f"timing; log: {folder / LOG}")
        outcome = self._run(tool, artifact, settings, folder)
        process.require_success(outcome, f"trtexec did not time {artifact.path}")
        if not (folder / TIMES).is_file():
            raise MeasurementError(f"trtexec passed but wrote no {TIMES} in {folder}. Full log: {outcome.log}")
        # Copies the plan's profile and layers beside the times: together they are the folder that people know.
        for name in (PROFILE, LAYERS):
            source = self._plan_folder(artifact, "profile") / name
            if source.is_file() and not (folder / name).exists():
                copy_file(source, folder / name)
        batch, files = settings.implicit_batch or spec.batch, (folder / TIMES, folder / LOG)
        drop, keep = measure.warmup or 0, measure.iters
        measured = self._files.read_times(*files, settings, batch=batch, drop=drop, keep=keep)
        return replace(measured, stop_rule="iterations" if measure.iters else "time_limit")

    def find_logs(self, artifact: Artifact, spec: EngineSpec, measure: MeasureSpec) -> list[Path]:
        """Return the log of the build, if this run built the plan, then those of its processes.

        If a build failed, all builds' logs.
        """
        pattern = f"{Path(artifact.path).stem if artifact.kind == 'plan' else '*'}{BUILD_LOG_SUFFIX}"
        timed = self._configuration_folder(artifact, spec, measure).glob(f"{PROCESS}*/{LOG}")
        return [
            *sorted((self._home / "plans").glob(pattern)),
            *sorted(timed, key=lambda path: int(path.parent.name.removeprefix(PROCESS))),
        ]

    def compute_outputs(self, artifact: Artifact, spec: EngineSpec, feeds: Sequence[Feeds]) -> dict[str, Array]:
        """Compute the outputs of all `feeds`, joined along the first axis: each in a process that loads the plan anew.

        trtexec prints outputs with six digits, which limits what a comparison with them can show.
        """
        import numpy as np

        options, tool = _read(spec)
        rows = []
        for index, feed in enumerate(feeds):
            self._note(f"computing outputs, run {index + 1} of {len(feeds)}")
            rows.append(self._compute_sample(artifact, spec, tool, options, feed, index))
        return {name: np.concatenate([np.atleast_1d(row[name]) for row in rows]) for name in rows[0]}

    def describe_reader(self, spec: EngineSpec) -> Reader:
        """Return TensorRT with its version, and the newest operator set that this version reads."""
        version = _read(spec)[1].version_text
        return Reader(f"TensorRT {version}", find_newest_opset(version))

    def prove_precision(self, artifact: Artifact, spec: EngineSpec) -> dict[str, float] | None:
        """Return fractions of time by precision, from the plan's layers and a profile; None if the layers lack
        detail."""
        options, tool = _read(spec)
        settings = self._run_settings(artifact, spec, options)
        settings = replace(settings, warmup_ms=0, duration_s=PROFILE_S, profile=PROFILE, layers=LAYERS)
        folder = self._plan_folder(artifact, "profile")
        self._note(f"profiling; log: {folder / LOG}")
        process.require_success(self._run(tool, artifact, settings, folder), f"trtexec did not profile {artifact.path}")
        self._profiled = artifact
        return self._files.read_precision(folder / LAYERS, folder / PROFILE)

    def profile_plan(self, artifact: Artifact, spec: EngineSpec) -> LayerProfile:
        """Return the plan's layers, from the run that also proved its precision."""
        if self._profiled != artifact:
            self.prove_precision(artifact, spec)
        folder = self._plan_folder(artifact, "profile")
        return self._files.read_layers(folder / LAYERS, folder / PROFILE)

    def _build(
        self, artifact: Artifact, tool: Trtexec, settings: BuildSettings, options: dict[str, str], plan: Path
    ) -> tuple[ResultWarning, ...]:
        """Build `plan`, with its log and its layers beside it; return the warnings."""
        layers = str(plan.with_suffix(".layers.json"))
        settings = self._adapt_cache(settings, tool, plan)
        argv = compose_build(tool, artifact.path, str(plan), settings, layers, _list_extra(options))
        log = plan.with_suffix(BUILD_LOG_SUFFIX)
        self._note(f"building; log: {log}")
        outcome = process.run_trtexec(argv, log, plan.parent)
        process.check_build(outcome, plan, artifact)
        if TIMING_CACHE_LOST.search(outcome.text):
            self._note("TensorRT went on without the timing cache, which it cannot read")
        random = settings.weak_typing and settings.precision == "int8" and not settings.calib_cache
        on_gpu = find_layers_on_gpu(outcome.text)
        return ((INVENTED_RANGES,) if random else ()) + list_dla_warnings(settings, on_gpu)

    def _adapt_cache(self, settings: BuildSettings, tool: Trtexec, plan: Path) -> BuildSettings:
        """Point the settings to a calibration cache that this trtexec reads: a copy beside the plan, if necessary."""
        if settings.calib_cache is None:
            return settings
        data = Path(settings.calib_cache).read_bytes()
        adapted = adapt_cache(data, tool.version)
        if adapted == data:
            return settings
        copy = plan.with_suffix(".calib.cache")
        write_atomic(copy, adapted)
        self._note(f"the calibration cache is read as {adapted.split()[0].decode()}: {copy}")
        return replace(settings, calib_cache=str(copy))

    def _adopt(self, artifact: Artifact, spec: EngineSpec, tool: Trtexec, options: dict[str, str]) -> Artifact:
        """Add to a finished plan the inputs and outputs that a short run of it names."""
        if options["profile_index"] != OPTIONS["profile_index"].default:
            artifact = replace(artifact, allowed={})  # what was noted is of the first profile
        untyped = tool.version < FIRST_INT64  # only the layers show the types then
        settings = ONCE.apply(self._run_settings(artifact, spec, options))
        settings = replace(settings, layers=LAYERS if untyped else None)
        outcome, batched, allowed = self._find_shapes(artifact, spec, tool, settings)
        process.require_success(outcome, f"trtexec does not run {artifact.path}", ArtifactError)
        layers = self._plan_folder(artifact, ADOPT) / LAYERS
        types = self._files.read_types(layers) if untyped and layers.is_file() else {}
        inputs, outputs = process.read_bindings(outcome.text, types)
        names = {s.name for s in inputs}
        if names and (others := sorted(settings.shapes.keys() - names)):  # which trtexec ignores
            wanted = f"no such input; the inputs are {', '.join(sorted(names))}"
            raise UsageError(f"a shape is given for {', '.join(others)}: {wanted}")
        inputs = tuple(replace(s, shape=("batch", *s.shape[1:])) if s.name in batched else s for s in inputs)
        return replace(
            artifact,
            inputs=artifact.inputs or inputs,
            outputs=artifact.outputs or outputs,
            allowed=artifact.allowed or allowed,
            made_by={**artifact.made_by, "tensorrt": tool.version_text},
        )

    def _find_shapes(
        self, artifact: Artifact, spec: EngineSpec, tool: Trtexec, settings: RunSettings
    ) -> tuple[process.Outcome, set[str], dict[str, ShapeRange]]:
        """Return (a short run of a plan, its inputs that take several batches, the shapes that its profile allows).

        trtexec takes 1 for an axis without a given length, and only its log names those axes. If the profile has no 1
        and no other batch is requested, the log names the shapes that it has, for one input a run.
        """
        folder = self._plan_folder(artifact, ADOPT)
        outcome = self._run(tool, artifact, settings, folder)
        guessed = {name: s for name, s in process.read_guessed_shapes(outcome.text).items() if s[:1] == (1,)}
        batched = set(guessed) if spec.batch > 1 else set[str]()
        shapes = {**settings.shapes, **{name: (spec.batch, *guessed[name][1:]) for name in batched}}
        if batched:
            outcome = self._run(tool, artifact, replace(settings, shapes=shapes), folder)
        allowed: dict[str, ShapeRange] = {}
        names, index = guessed.keys() - batched, settings.profile_index
        while fresh := {n: r for n, r in process.read_allowed(outcome.text, index).items() if n in names}:
            names -= fresh.keys()
            allowed |= fresh
            shapes |= {name: shape_range.smallest for name, shape_range in fresh.items()}
            outcome = self._run(tool, artifact, replace(settings, shapes=shapes), folder)
        return outcome, batched | {n for n, r in allowed.items() if r.smallest[:1] != r.largest[:1]}, allowed

    def _compute_sample(
        self, artifact: Artifact, spec: EngineSpec, tool: Trtexec, options: dict[str, str], feed: Feeds, index: int
    ) -> dict[str, Array]:
        old = tool.version < FIRST_INT64
        if old:
            artifact, feed = narrow_integers(artifact, feed)
        check_inputs(artifact, feed, typed=not old)
        folder = self._plan_folder(artifact, f"answer-{index}")
        files = {name: f"input-{number}.bin" for number, name in enumerate(feed)}
        folder.mkdir(parents=True, exist_ok=True)
        for name, file in files.items():
            (folder / file).write_bytes(feed[name].tobytes())
        settings = self._run_settings(artifact, spec, options)
        shapes = {name: feed[name].shape if name in feed else shape for name, shape in settings.shapes.items()}
        settings = replace(ONCE.apply(settings), shapes=shapes, transfers=True, inputs=files, output=OUTPUT)
        outcome = self._run(tool, artifact, settings, folder)
        process.require_success(outcome, f"trtexec gave no outputs for {artifact.path}")
        return process.read_outputs(folder / OUTPUT, artifact.outputs)

    def _run_settings(self, artifact: Artifact, spec: EngineSpec, options: dict[str, str]) -> RunSettings:
        # An axis for which the profile leaves no choice is a number here, and still open in the plan.
        dynamic = {
            s.name: concrete_shape(s, spec.batch)
            for s in artifact.inputs
            if s.name in artifact.allowed or any(isinstance(a, str) for a in s.shape)
        }
        implicit = _read_count(spec, options, "implicit_batch") if options["implicit_batch"] else None
        if implicit not in (None, spec.batch):  # of a plan without a batch axis
            mismatch = f"implicit_batch={implicit}, and the configuration's batch is {spec.batch}"
            raise UsageError(f"{mismatch}: give --batch {implicit}")
        return RunSettings(
            cuda_graph=options["graph"] == "1",
            spin_wait=options["spin"] == "1",
            streams=_read_count(spec, options, "streams"),
            shapes={**dynamic, **find_plan_shapes(options)},
            profile_index=_read_count(spec, options, "profile_index", least=0),
            implicit_batch=implicit,
            plugins=read_plugins(options),
            device=read_index(spec),
            dla=int(options["dla"]) if options["dla"] else None,
        )

    def _time_settings(
        self, artifact: Artifact, spec: EngineSpec, options: dict[str, str], measure: MeasureSpec
    ) -> RunSettings:
        if measure.cache == "cold":
            raise UsageError("trtexec cannot flush the GPU's cache between queries. Use --cache hot")
        return replace(
            plan_timing(measure).apply(self._run_settings(artifact, spec, options)),
            transfers=measure.scope == "io",
            percentiles=measure.percentiles,
            times=TIMES,
            extra=split_argv(options["run_extra"]),
        )

    def _run(self, tool: Trtexec, artifact: Artifact, settings: RunSettings, folder: Path) -> process.Outcome:
        folder.mkdir(parents=True, exist_ok=True)
        argv = compose_measure(tool, str(Path(artifact.path).absolute()), settings)
        outcome = process.run_trtexec(argv, folder / LOG, folder)
        if outcome.passed or process.NOT_READY not in outcome.text:
            return outcome
        self._note("the GPU was not ready, as others work on it; once more")
        return process.run_trtexec(argv, folder / LOG, folder)

    def _configuration_folder(self, artifact: Artifact, spec: EngineSpec, measure: MeasureSpec) -> Path:
        """Return the folder of a configuration's processes; two plans side by side under the same settings do not share
        it."""
        return self._home / "trtexec" / f"{configuration_id(spec, spec.precision, measure)}-{artifact.sha256[:8]}"

    def _plan_folder(self, artifact: Artifact, part: str) -> Path:
        return self._home / "trtexec" / Path(artifact.path).stem / part


create_backend = TrtexecBackend


def _read(spec: EngineSpec) -> tuple[dict[str, str], Trtexec]:
    options = read_options(spec, OPTIONS)
    return options, choose_tool(options, None)


def _list_extra(options: dict[str, str]) -> tuple[str, ...]:
    """List extra arguments of a build: those of the timing too, as in the one command in which trtexec does both."""
    return tuple(dict.fromkeys((*split_argv(options["extra"]), *split_argv(options["run_extra"]))))


def choose_tool(options: dict[str, str], version: str | None) -> Trtexec:
    """Return the trtexec to compose for: of the given version, else the one that is installed."""
    if version is not None:
        return Trtexec(version=executable.parse_version(version), path=options["path"] or None)
    return executable.read_trtexec(executable.require_trtexec(options["path"] or None))


def list_version_warnings(version: str | None) -> tuple[str, ...]:
    """Warn of a version newer than those whose options are known; an installed tool lists its own."""
    newest = executable.NEWEST[:2]
    if version is None or executable.parse_version(version)[:2] <= newest:
        return ()
    return (f"the options of TensorRT {version} are not known: this is the command of {newest[0]}.{newest[1]}",)


def list_opset_warnings(artifact: Artifact, tool: Trtexec) -> tuple[str, ...]:
    """Warn of a command for a graph that this version reads as another one."""
    newest = find_newest_opset(tool.version_text)
    if (artifact.opset or 0) <= newest:
        return ()
    return (
        f"{artifact.path} is of opset {artifact.opset}, and TensorRT {tool.version_text} reads up to {newest}: "
        "enginebench build lowers it first; this command would fail, or build another network",
    )


def check_inputs(artifact: Artifact, feed: Feeds, typed: bool = True) -> None:
    """Check that the arrays match the plan's inputs: trtexec ignores others and invents missing ones."""
    import numpy as np

    from enginebench.core.feeds import check_feeds

    def take_type(spec: TensorSpec) -> TensorSpec:
        dtype = feed[spec.name].dtype if spec.name in feed else None
        same = dtype is not None and dtype.itemsize == np.dtype(spec.dtype).itemsize
        return replace(spec, dtype=dtype.name) if same and dtype is not None else spec

    if artifact.inputs:
        check_feeds(artifact.inputs if typed else tuple(map(take_type, artifact.inputs)), feed)


def narrow_integers(artifact: Artifact, feed: Feeds) -> tuple[Artifact, Feeds]:
    """Convert both for a plan from before TensorRT 10, whose parser makes INT32 of INT64 inputs."""
    import numpy as np

    narrow = {name: array.astype(np.int32) if array.dtype == np.int64 else array for name, array in feed.items()}
    for name, array in feed.items():
        if not np.array_equal(narrow[name], array, equal_nan=array.dtype.kind == "f"):
            raise FeedError(
                f"input {name!r} holds {np.abs(array).max()}, which is more than INT32 holds, and TensorRT before 10 "
                "has no INT64 inputs"
            )
    inputs = tuple(replace(spec, dtype="int32") if spec.dtype == "int64" else spec for spec in artifact.inputs)
    return replace(artifact, inputs=inputs), narrow


def _read_count(spec: EngineSpec, options: dict[str, str], key: str, least: int = 1) -> int:
    text = options[key]
    if not text.isdecimal() or int(text) < least:
        raise UsageError(f"option {key}={text!r} of engine {spec.backend} must be a whole number, {least} or more")
    return int(text)
