"""`trtexec`: NVIDIA's own tool builds a plan, times it by its own clock, and shows its outputs and layers.

What it leaves is the folder that people know: `times.json`, `profile.json`, `layers.json`, `trtexec_stdout.log`.
Reading those files is `analyze`'s business; `workflow` hands the reader in (`core.protocols.ToolReader`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from enginebench.backends.plan_store import PlanRecord, PlanStore, describe_gpu, keep_plan
from enginebench.backends.request import Option, check_request, read_options
from enginebench.backends.tensorrt_settings import (
    BUILD_OPTIONS,
    SWITCH,
    BuildSettings,
    check_calib_cache,
    fix_shape,
    read_device,
    read_plugins,
    read_settings,
    read_shapes,
    split_argv,
)
from enginebench.backends.trtexec_command import RunSettings, compose_build, compose_measure
from enginebench.backends.trtexec_executable import FIX, find_trtexec, read_trtexec, require_trtexec
from enginebench.backends.trtexec_flags import NEWEST, Trtexec, parse_version
from enginebench.backends.trtexec_output import (
    UNVERIFIED,
    check_build,
    note_build,
    read_bindings,
    read_guessed_shapes,
    read_outputs,
)
from enginebench.backends.trtexec_process import Outcome, require_passed, run_trtexec
from enginebench.backends.trtexec_timing import TimingRequest, plan_timing
from enginebench.core.errors import ArtifactError, MeasurementError, UsageError
from enginebench.core.names import row_id
from enginebench.core.protocols import Composed
from enginebench.core.records import (
    Artifact,
    Availability,
    Caveat,
    EngineSpec,
    LayerProfile,
    Measurement,
    MeasureSpec,
    Precision,
    TensorSpec,
)

if TYPE_CHECKING:
    from enginebench.core.protocols import Array, Feeds, ModuleLoader, ToolReader

NAME = "trtexec"
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16", "int8", "fp8")
REPETITION_VARIABLE = "ENGINEBENCH_REPETITION"

LOG = "trtexec_stdout.log"
BUILD_LOG_SUFFIX = ".build.log"
PROCESS = "process-"
TIMES = "times.json"
PROFILE = "profile.json"
LAYERS = "layers.json"
OUTPUT = "output.json"

# Long enough for a few hundred profiled runs of a slow network, short beside the build before it.
PROFILE_S = 1.0
# Answers are compared over this many calls; each is a process that loads the plan anew.
ANSWER_CALLS = 4

OPTIONS = {
    **BUILD_OPTIONS,
    "path": Option(default="", meaning="the executable, if not $TRTEXEC or PATH"),
    "graph": Option(default="1", choices=SWITCH, meaning="launch as a CUDA graph"),
    "spin": Option(default="1", choices=SWITCH, meaning="wait for the GPU by spinning"),
    "streams": Option(default="1", meaning="queries in flight at once; above 1 latencies overlap"),
    "profile_index": Option(default="0", meaning="optimization profile to run"),
    "shapes": Option(default="", meaning="shapes to run with, NAME:1x3x224x224 (a plan alone)"),
    "implicit_batch": Option(default="", meaning="batch of a plan without explicit batch (8.6)"),
    "extra": Option(default="", meaning="further arguments for building, quoted as for a shell"),
    "run_extra": Option(default="", meaning="further arguments for timing, quoted as for a shell"),
}


class TrtexecBackend:
    """ONNX graphs and finished plans through trtexec.

    Args:
        cache_dir: folder inside the run's artefacts; plans lie in `plans` beside it, runs in `trtexec`.
    """

    name = NAME

    def __init__(self, cache_dir: Path | None = None) -> None:
        self._home = (cache_dir.parent if cache_dir else Path()).absolute()
        self._reader: ToolReader | None = None
        self._profiled: Artifact | None = None

    def take_reader(self, reader: ToolReader) -> None:
        """Takes what reads the files that trtexec leaves."""
        self._reader = reader

    def probe(self) -> Availability:
        """Available where an executable is found that prints its banner; a GPU is asked for only when it runs."""
        path = find_trtexec()
        if path is None:
            return Availability(
                engine=NAME, available=False, reason="no trtexec in $TRTEXEC, on PATH or in the usual folders", fix=FIX
            )
        tool = read_trtexec(path)
        return Availability(engine=NAME, available=True, version=tool.version_text, devices=("cuda:0",))

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        """A plan for this version, GPU and these settings: the stored one if there is one, else a new one.

        Raises:
            UsageError: the version has no option for what was asked for.
            ArtifactError: the plan cannot be built; names trtexec's first error and the log.
            BackendUnavailable: there is no GPU or driver.
        """
        check_request(artifact, spec, ("onnx", "plan"), PRECISIONS, (spec.device,))
        options = read_options(spec, OPTIONS)
        tool = read_trtexec(require_trtexec(options["path"] or None))
        if artifact.kind == "plan":
            return self._adopt(artifact, spec, tool, options)
        settings = read_settings(spec, options, artifact)
        if settings.calib_cache:
            check_calib_cache(Path(settings.calib_cache))
        store = PlanStore(out_dir / "plans")
        argv = compose_build(tool, "", "", replace(settings, timing_cache=None), extra=split_argv(options["extra"]))
        record = PlanRecord(
            onnx_sha256=artifact.sha256,
            tensorrt=tool.version_text,
            gpu=describe_gpu(settings.device),
            flags=tuple(argv[1:]),
            engine=NAME,
        )
        return keep_plan(
            store, record, artifact, spec, lambda plan: self._build(artifact, plan, tool, settings, options)
        )

    def compose_build(self, artifact: Artifact, plan: str, spec: EngineSpec, version: str | None) -> Composed:
        """The command that `build` would run, with the plan at `plan`.

        Raises:
            UsageError: the version has no option for what was asked for.
            MissingDependency: no version is given and no trtexec is installed.
        """
        options = read_options(spec, OPTIONS)
        tool = choose_tool(options, version)
        settings = read_settings(spec, options, artifact)
        layers = str(Path(plan).with_suffix(".layers.json"))
        argv = compose_build(tool, artifact.path, plan, settings, layers, split_argv(options["extra"]))
        return Composed(tuple(argv), tool.version_text, doubt_version(version))

    def compose_measure(
        self, artifact: Artifact, spec: EngineSpec, measure: MeasureSpec, version: str | None
    ) -> Composed:
        """The command that `measure` would run on the plan of `artifact`."""
        options = read_options(spec, OPTIONS)
        tool = choose_tool(options, version)
        settings = self._time_settings(artifact, spec, options, measure)
        argv = compose_measure(tool, artifact.path, settings)
        return Composed(tuple(argv), tool.version_text, doubt_version(version))

    def measure(self, artifact: Artifact, spec: EngineSpec, measure: MeasureSpec) -> Measurement:
        """The raw times of one run of trtexec.

        Raises:
            MeasurementError: trtexec failed, or left no times.
        """
        options = read_options(spec, OPTIONS)
        tool = read_trtexec(require_trtexec(options["path"] or None))
        timing, settings = plan_timing(measure), self._time_settings(artifact, spec, options, measure)
        repetition = os.environ.get(REPETITION_VARIABLE, "0")
        folder = self._row_folder(artifact, spec, measure) / f"{PROCESS}{repetition}"
        outcome = self._run(tool, artifact, settings, folder)
        require_passed(outcome, f"trtexec did not time {artifact.path}")
        if not (folder / TIMES).is_file():
            raise MeasurementError(f"trtexec passed and left no {TIMES} in {folder}. Its whole log: {outcome.log}")
        self._link_profile(artifact, folder)
        return self._read_times(folder, timing, settings, spec, measure)

    def find_logs(self, artifact: Artifact, spec: EngineSpec, measure: MeasureSpec) -> list[Path]:
        """The log of the build, if this run built the plan, then those of its processes.

        Where nothing came of a build, all builds' logs.
        """
        pattern = f"{Path(artifact.path).stem if artifact.kind == 'plan' else '*'}{BUILD_LOG_SUFFIX}"
        timed = self._row_folder(artifact, spec, measure).glob(f"{PROCESS}*/{LOG}")
        return [
            *sorted((self._home / "plans").glob(pattern)),
            *sorted(timed, key=lambda path: int(path.parent.name.removeprefix(PROCESS))),
        ]

    def answer(self, artifact: Artifact, spec: EngineSpec, feeds: Sequence[Feeds]) -> dict[str, Array]:
        """The outputs of the first few `feeds`, joined along the first axis.

        trtexec prints outputs with six digits, which bounds what a comparison with them can show.

        Raises:
            MeasurementError: trtexec failed.
        """
        import numpy as np

        options = read_options(spec, OPTIONS)
        tool = read_trtexec(require_trtexec(options["path"] or None))
        rows = [
            self._answer(artifact, spec, tool, options, feed, index) for index, feed in enumerate(feeds[:ANSWER_CALLS])
        ]
        return {name: np.concatenate([np.atleast_1d(row[name]) for row in rows]) for name in rows[0]}

    def prove_precision(self, artifact: Artifact, spec: EngineSpec) -> dict[str, float] | None:
        """Shares of time by precision: the plan's own layers joined with a profile; None where layers have no detail.

        Raises:
            MeasurementError: trtexec failed.
        """
        options = read_options(spec, OPTIONS)
        tool = read_trtexec(require_trtexec(options["path"] or None))
        settings = replace(
            self._run_settings(artifact, spec, options),
            warmup_ms=0,
            duration_s=PROFILE_S,
            profile=PROFILE,
            layers=LAYERS,
        )
        folder = self._folder(Path(artifact.path).stem, "profile")
        require_passed(self._run(tool, artifact, settings, folder), f"trtexec did not profile {artifact.path}")
        self._profiled = artifact
        return self._require_reader().read_precision(folder / LAYERS, folder / PROFILE)

    def profile_plan(self, artifact: Artifact, spec: EngineSpec) -> LayerProfile:
        """The plan's layers, from the run that also proved its precision.

        Raises:
            MeasurementError: trtexec failed.
        """
        if self._profiled != artifact:
            self.prove_precision(artifact, spec)
        folder = self._folder(Path(artifact.path).stem, "profile")
        return self._require_reader().read_layers(folder / LAYERS, folder / PROFILE)

    def _build(
        self, artifact: Artifact, plan: Path, tool: Trtexec, settings: BuildSettings, options: dict[str, str]
    ) -> tuple[Caveat, ...]:
        """Makes `plan`, its log and its layers beside it; gives what is doubtful about it."""
        layers = plan.with_suffix(".layers.json")
        extra = split_argv(options["extra"])
        argv = compose_build(tool, artifact.path, str(plan), settings, str(layers), extra)
        outcome = run_trtexec(argv, plan.with_suffix(BUILD_LOG_SUFFIX), plan.parent)
        check_build(outcome, plan, artifact)
        return tuple(note_build(tool, settings))

    def _adopt(self, artifact: Artifact, spec: EngineSpec, tool: Trtexec, options: dict[str, str]) -> Artifact:
        """A finished plan with the inputs and outputs that a short run of it names."""
        settings = replace(self._run_settings(artifact, spec, options), warmup_ms=0, duration_s=0, iterations=1)
        folder = self._folder(Path(artifact.path).stem, "adopt")
        outcome = self._run(tool, artifact, settings, folder)
        # trtexec takes 1 for an axis that it is told nothing about; which axes those are, only its log says.
        guessed = {name: s for name, s in read_guessed_shapes(outcome.text).items() if s[:1] == (1,)}
        batched = {name: (spec.batch, *shape[1:]) for name, shape in guessed.items()} if spec.batch > 1 else {}
        if batched:
            shapes = {**settings.shapes, **batched}
            outcome = self._run(tool, artifact, replace(settings, shapes=shapes), folder)
        require_passed(outcome, f"trtexec does not run {artifact.path}", ArtifactError)
        inputs, outputs = read_bindings(outcome.text)
        check_names(settings.shapes, inputs)
        inputs = tuple(replace(s, shape=("batch", *s.shape[1:])) if s.name in batched else s for s in inputs)
        return replace(
            artifact,
            inputs=artifact.inputs or inputs,
            outputs=artifact.outputs or outputs,
            made_by={**artifact.made_by, "tensorrt": tool.version_text},
            caveats=(*artifact.caveats, UNVERIFIED),
        )

    def _answer(
        self, artifact: Artifact, spec: EngineSpec, tool: Trtexec, options: dict[str, str], feed: Feeds, index: int
    ) -> dict[str, Array]:
        check_answerable(artifact, feed)
        folder = self._folder(Path(artifact.path).stem, f"answer-{index}")
        files = {name: f"input-{place}.bin" for place, name in enumerate(feed)}
        folder.mkdir(parents=True, exist_ok=True)
        for name, file in files.items():
            (folder / file).write_bytes(feed[name].tobytes())
        settings = replace(
            self._run_settings(artifact, spec, options),
            warmup_ms=0,
            duration_s=0,
            iterations=1,
            transfers=True,
            inputs=files,
            output=OUTPUT,
        )
        require_passed(self._run(tool, artifact, settings, folder), f"trtexec did not answer for {artifact.path}")
        return read_outputs(folder / OUTPUT, artifact.outputs)

    def _run_settings(self, artifact: Artifact, spec: EngineSpec, options: dict[str, str]) -> RunSettings:
        dynamic = {
            s.name: fix_shape(s.shape, spec.batch) for s in artifact.inputs if any(isinstance(a, str) for a in s.shape)
        }
        return RunSettings(
            cuda_graph=options["graph"] == "1",
            spin_wait=options["spin"] == "1",
            streams=_read_count(spec, options, "streams"),
            shapes={**dynamic, **read_shapes(options["shapes"])},
            profile_index=_read_count(spec, options, "profile_index", least=0),
            implicit_batch=_read_implicit_batch(spec, options),
            plugins=read_plugins(options),
            device=read_device(spec),
        )

    def _time_settings(
        self, artifact: Artifact, spec: EngineSpec, options: dict[str, str], measure: MeasureSpec
    ) -> RunSettings:
        timing = plan_timing(measure)
        if measure.cache == "cold":
            raise UsageError("trtexec cannot flush the GPU's cache between queries. Use --cache hot")
        return replace(
            self._run_settings(artifact, spec, options),
            transfers=measure.scope == "io",
            percentiles=measure.percentiles,
            warmup_ms=timing.warmup_ms,
            duration_s=timing.duration_s,
            iterations=timing.iterations,
            times=TIMES,
            extra=split_argv(options["run_extra"]),
        )

    def _run(self, tool: Trtexec, artifact: Artifact, settings: RunSettings, folder: Path) -> Outcome:
        folder.mkdir(parents=True, exist_ok=True)
        argv = compose_measure(tool, str(Path(artifact.path).absolute()), settings)
        return run_trtexec(argv, folder / LOG, folder)

    def _read_times(
        self, folder: Path, timing: TimingRequest, settings: RunSettings, spec: EngineSpec, measure: MeasureSpec
    ) -> Measurement:
        reader = self._require_reader()
        batch = settings.implicit_batch or spec.batch
        measured = reader.read_times(folder / TIMES, folder / LOG, batch=batch, drop=timing.drop, keep=timing.keep)
        return replace(
            measured,
            stop_rule="iterations" if measure.iters else "time_limit",
            caveats=(*measured.caveats, *check_switches(reader.read_switches(folder / LOG), settings)),
        )

    def _link_profile(self, artifact: Artifact, folder: Path) -> None:
        """Puts the plan's profile and layers beside the times: together they are the folder that people know."""
        for name in (PROFILE, LAYERS):
            source = self._folder(Path(artifact.path).stem, "profile") / name
            if source.is_file() and not (folder / name).exists():
                try:
                    os.link(source, folder / name)
                except OSError:  # not every file system has links
                    shutil.copyfile(source, folder / name)

    def _require_reader(self) -> ToolReader:
        if self._reader is None:
            raise MeasurementError("no reader for trtexec's files was handed in; open the engine through a run")
        return self._reader

    def _row_folder(self, artifact: Artifact, spec: EngineSpec, measure: MeasureSpec) -> Path:
        """Of a row's processes; two plans side by side under the same settings do not share it."""
        return self._folder(f"{row_id(spec, spec.precision, measure)}-{artifact.sha256[:8]}")

    def _folder(self, *parts: str) -> Path:
        return self._home.joinpath("trtexec", *parts)


def choose_tool(options: dict[str, str], version: str | None) -> Trtexec:
    """The trtexec to compose for: of the version given, else the one that is installed.

    Raises:
        MissingDependency: no version is given and none is installed.
    """
    if version is not None:
        return Trtexec(version=parse_version(version), path=options["path"] or None)
    return read_trtexec(require_trtexec(options["path"] or None))


def doubt_version(version: str | None) -> tuple[str, ...]:
    """What to say of a version after the newest whose options are known; an installed tool tells its own."""
    if version is None or parse_version(version)[:2] <= NEWEST[:2]:
        return ()
    return (f"the options of TensorRT {version} are not known: this is the command of {NEWEST[0]}.{NEWEST[1]}",)


def create_backend(loader: ModuleLoader | None, cache_dir: Path | None) -> TrtexecBackend:
    """The backend; it needs no module loader."""
    return TrtexecBackend(cache_dir)


def check_switches(seen: dict[str, bool | int | None], settings: RunSettings) -> Iterator[Caveat]:
    """A doubt for each switch that the log shows otherwise than it was asked for."""
    asked = {
        "cuda_graph": settings.cuda_graph,
        "data_transfers": settings.transfers,
        "spin_wait": settings.spin_wait,
        "streams": settings.streams,
    }
    for name, value in asked.items():
        if seen.get(name) in (None, value):
            continue
        failed = name == "cuda_graph" and value
        yield Caveat(
            code="cuda_graph_failed" if failed else "log_disagrees",
            message=f"asked for {name.replace('_', ' ')} {_show(value)}; the log says {_show(seen[name])}",
            advice="the model holds operations that cannot be captured; time it with graph=0 on every side"
            if failed
            else "an argument of your own may overrule it",
        )


def check_answerable(artifact: Artifact, feed: Feeds) -> None:
    """Returns if the arrays are those of the plan's inputs: trtexec passes over others, and makes up what is missing.

    Where logs tell no types, all that is known of one is its size.

    Raises:
        FeedError: a name, a shape or the size of an element differs.
    """
    import numpy as np

    from enginebench.core.feeds import check_feeds

    def take_type(spec: TensorSpec) -> TensorSpec:
        found = feed[spec.name].dtype if spec.name in feed else None
        same = found is not None and found.itemsize == np.dtype(spec.dtype).itemsize
        return replace(spec, dtype=found.name) if same and found is not None else spec

    if artifact.inputs:
        check_feeds(tuple(take_type(spec) for spec in artifact.inputs), feed)


def check_names(shapes: Mapping[str, tuple[int, ...]], inputs: tuple[TensorSpec, ...]) -> None:
    """Returns if every shape is of an input: trtexec passes over others.

    Raises:
        UsageError: one is not; names the inputs.
    """
    known = {s.name for s in inputs}
    if known and (others := sorted(shapes.keys() - known)):
        raise UsageError(
            f"a shape is given for {', '.join(others)}: no such input; there are {', '.join(sorted(known))}"
        )


def _show(value: bool | int | None) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _read_count(spec: EngineSpec, options: dict[str, str], key: str, least: int = 1) -> int:
    text = options[key]
    if not text.isdecimal() or int(text) < least:
        raise UsageError(f"option {key}={text!r} of engine {spec.backend} must be a whole number, {least} or more")
    return int(text)


def _read_implicit_batch(spec: EngineSpec, options: dict[str, str]) -> int | None:
    """The batch of a plan without a batch axis, which must be that of the row."""
    if not options["implicit_batch"]:
        return None
    batch = _read_count(spec, options, "implicit_batch")
    if batch != spec.batch:
        raise UsageError(f"implicit_batch={batch}, and the row's batch is {spec.batch}: give --batch {batch}")
    return batch
