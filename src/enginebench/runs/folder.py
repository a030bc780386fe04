"""A run's folder: `run.json`, `rows/`, the artifacts, and the paths between them.

The files hold only paths relative to the folder, so that it can be moved and reveals no home folder.
"""

import itertools
import os
import shutil
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, convert
from msgspec.structs import replace

from enginebench.core.commands import OPTIONS_FILE, format_command
from enginebench.core.errors import ArtifactError, EngineBenchError, ModelError, ParseError, UsageError
from enginebench.core.limits import TIMEOUT_S
from enginebench.core.names import PLAN_SUFFIXES, slug
from enginebench.core.operators import find_library
from enginebench.core.records import (
    Artifact,
    EngineSpec,
    Machine,
    MeasureSpec,
    ModelSource,
    Normalize,
    Precision,
    Recipe,
    Result,
    RunPart,
    Scope,
    Task,
)
from enginebench.core.store import encode, hash_file, is_bundle, read_record, read_result, refuse_pointer, write_atomic
from enginebench.core.text import stamp_utc
from enginebench.models.zoo import resolve_model
from enginebench.runs.traffic import TrafficPart
from enginebench.runs.trust import (
    allow_code,
    allow_engines,
    allow_model,
    find_allowed,
    require_named,
    trust_artifact,
    trust_engine,
)

RUN_SCHEMA = "enginebench.run-record/1"
TUNE_FILE, TUNE_PAGE = "tune.json", "tune.html"  # the document of a search, in its folder, and its page
REPEAT = "enginebench.toml"  # the options of the command, which --config of its verb takes
ARTIFACTS = "artefacts"  # the name on disk: stored runs have it, so its spelling stays
FORMATS = ("html", "md", "csv", "json", "png")  # of its reports
# The fields of a request that name a file, a folder or code -> their words that name none.
OUTSIDE: dict[str, tuple[str, ...]] = {
    "weights": ("default", "random"),
    "inputs": (),
    "data": ("digits", "fake", "sample-photos"),
    "targets": (),
}


class Named(Struct, frozen=True):
    id: str | None  # None before it was measured


class Searched(Struct, frozen=True):
    """The part of a search's document that is needed to read its folder."""

    winner: Named | None


class Wanted(Struct, frozen=True, kw_only=True):
    engine: str  # ENGINE, its options in the order of their names
    precision: str  # PRECISION
    batch: int
    scope: Scope


class RunRequest(Struct, frozen=True, kw_only=True):
    """The request of a run: everything that is needed to plan the same configurations again."""

    model: str
    engines: tuple[tuple[str, dict[str, str]], ...]
    precisions: tuple[tuple[Precision | None, Recipe | None], ...] = (("fp32", None),)
    batches: tuple[int, ...] = (1,)
    any_engine: bool = False  # no engine was named: combinations that can never run are not planned
    any_precision: bool = False  # no precision was named: on a CPU, BF16 only by engines that cast themselves
    any_batch: bool = False  # no batch was named: a graph that fixes its batch runs at that
    device: str = "cpu"
    threads: int = 1
    measure: MeasureSpec = MeasureSpec()
    weights: str = "default"
    input_size: int | None = None
    normalize: Normalize | None = None
    input_shapes: dict[str, tuple[int, ...]] | None = None
    buckets: tuple[dict[str, tuple[int, ...]], ...] = ()  # several shapes, each with configurations of its own
    traffic: tuple[TrafficPart, ...] = ()  # a mix of shapes that each configuration serves
    dynamic_axes: dict[str, tuple[int, ...]] = {}  # input name to axes that an export leaves open beside the batch
    inputs: str | None = None
    operator_libraries: tuple[str, ...] = ()
    baseline: str | None = None
    timeout_s: float = TIMEOUT_S
    quick: bool = False
    data: str | None = None  # for accuracy, comparisons and ranges; None: the data of a built-in model
    calibration_method: str = "minmax"
    metrics: tuple[str, ...] = ()  # those of the task if there are none; the first one decides
    targets: str | None = None  # the file of targets
    task: Task | None = None
    limits: dict[str, float] | None = None  # of the outputs; None: those of each precision
    max_metric_drop: float | None = None  # in the metric's own unit; None: a point of a share, a hundredth of others
    p99_limit_ms: float | None = None
    needs: dict[str, float] = {}  # that the recommended configuration meets, in bytes and seconds (`stats/needs.py`)
    for_calls: int | None = None  # calls of a process, whose whole time is compared; None: single calls
    load_p99_ms: float | None = None  # limit within which the capacity of the winners is measured
    wanted: tuple[Wanted, ...] = ()  # combinations that are wanted; all of them, in the scope of `measure`, if none

    @property
    def source(self) -> ModelSource:
        return replace(convert(self, ModelSource, from_attributes=True), seed=self.measure.seed)

    def list_requested(self) -> tuple[Precision | None, ...]:
        """The precisions that the user named; none where they are the default of the verb."""
        return () if self.any_precision else tuple(precision for precision, _ in self.precisions)


class RunRecord(Struct, frozen=True, kw_only=True):
    """`run.json`: the request, the machine, and the ids of the configurations in their order."""

    schema: str = RUN_SCHEMA
    request: RunRequest
    machine: Machine
    started_utc: str
    rows: tuple[str, ...]
    verb: Literal["run", "bench", "tune"] = "run"  # whose folder it is
    command: tuple[str, ...] = ()
    sources: tuple[Artifact, ...] = ()
    problems: dict[str, str] = {}  # PRECISION -> why no graph could be made in it
    notes: tuple[str, ...] = ()  # on what the defaults leave out, and why there is no accuracy
    took_s: float | None = None  # seconds, those before it was continued included
    parts_s: dict[RunPart, float] = {}  # of these: making the model and its graphs, building and checking, timing
    winner: str | None = None  # the id that a search recommends; from its own document, not from `run.json`


def begin_record(request: RunRequest, machine: Machine, **fields: Any) -> RunRecord:
    """Make the record of a run that begins now; written before anything is built, so that the run can be continued."""
    return RunRecord(request=request, machine=machine, started_utc=stamp_utc(), **{"rows": (), **fields})


def hide_home(text: str) -> str:
    home = str(Path.home())
    return "~" + text[len(home) :] if text == home or text.startswith(home + os.sep) else text


def hide_paths(request: RunRequest) -> RunRequest:
    return _map_paths(request, hide_home)


def _map_paths(request: RunRequest, change: Callable[[str], str]) -> RunRequest:
    paths = {name: getattr(request, name) for name in ("model", "inputs", "targets")}
    return replace(request, **{name: None if text is None else change(text) for name, text in paths.items()})


def list_outside(request: RunRequest) -> list[tuple[str, str]]:
    """List the (option, value) of a request that name something outside of its folder."""
    fields = ((field, getattr(request, field), words) for field, words in OUTSIDE.items())
    named = [(f"--{field}", value) for field, value, words in fields if value not in (None, *words)]
    named += [("--metric", name) for name in request.metrics if ":" in name]
    return [*named, *(("--ort-extension", name) for name in request.operator_libraries)]


def format_resume(verb: str, request: RunRequest, root: Path) -> str:
    """The command that continues a run of `verb` in `root`."""
    options = [*list_outside(request), ("--resume", None), ("--out", str(root))]
    return format_command(verb, request.model, options=options)


def trust_request(stored: RunRequest, requested: RunRequest, where: Path) -> RunRequest:
    """The stored request of a run to continue; raises UsageError if it names more outside than `requested`."""
    allow_request(requested)
    named = set(list_outside(requested))
    for option, name in list_outside(stored):
        allowed = name if (option, name) in named else None
        if option == "--ort-extension":
            allowed = find_allowed(name)
        require_named(name, allowed, "which the run was begun with", where, f"{option} ")
    for engine, options in stored.engines:
        trust_engine(engine, options, where, f"--engines {engine}:")
    return replace(stored, model=requested.model, operator_libraries=requested.operator_libraries)


def allow_request(request: RunRequest) -> None:
    allow_model(request.model)
    allow_code(*request.operator_libraries)
    allow_engines(request.engines)


def check_named_files(request: RunRequest) -> None:
    """Check that the model and the files that a request names exist, before anything is waited for or built."""
    path = Path(request.model)
    refuse_pointer(path)
    plan = path.suffix.lower() in PLAN_SUFFIXES
    if plan and not path.is_file():
        raise ModelError(f"model {request.model!r}: no such file. Check the path; `enginebench build` makes one")
    if (plan or (not is_bundle(path) and resolve_model(request.model).kind == "onnx")) and request.weights != "default":
        raise UsageError(f"--weights {request.weights}: {request.model} is a graph and brings its own; leave it out")
    for library in request.operator_libraries:
        find_library(library)
    check_outside(list_outside(request))


def check_outside(named: Iterable[tuple[str, str]]) -> None:
    """Check that each file or folder of these (option, value) exists."""
    for option, name in named:
        if option in ("--metric", "--ort-extension") or (option == "--inputs" and ":" in name):
            continue
        if not name or not Path(name).expanduser().exists():
            kinds = ("F.npz", "a folder of such files", "package.module:function") if option == "--inputs" else ()
            expected = ", ".join((*OUTSIDE[option[2:]], *(kinds or ("a path",))))
            raise UsageError(f"{option} {name or repr(name)}: no such file or folder; expected {expected}")
        for file in ((path := Path(name).expanduser()), *path.glob("*.np[yz]")):
            refuse_pointer(file)


def default_folder(model: str, now: datetime | None = None) -> Path:
    """`results/<slug of model>-<utc time>`, numbered if a run of the same second is already there."""
    stamp = (now or datetime.now(timezone.utc)).strftime("%Y%m%dT%H%M%SZ")
    name = Path(model).stem if model.endswith(".onnx") else model
    first = Path("results") / f"{slug(name)}-{stamp}"
    others = (first.with_name(f"{first.name}-{i}") for i in itertools.count(2))
    return first if not first.exists() else next(path for path in others if not path.exists())


def check_inside(root: Path, path: Path) -> None:
    """Check that `path` stays inside `root`, which may itself be a link: a stored folder is untrusted input."""
    if not path.is_relative_to(root) or ".." in path.relative_to(root).parts:
        raise ArtifactError(f"{path} leads out of the folder {root}; it is not read")
    here = root
    for part in path.relative_to(root).parts:
        here = here / part
        if here.is_symlink():
            raise ArtifactError(
                f"{here} is a symbolic link; links inside a run's folder are not followed. "
                "Replace it with a copy of the file"
            )
    if here.exists() and not here.is_file():
        raise ArtifactError(f"{here} is not a plain file; it is not read")


class RunFolder:
    """The files of one run. The constructor reads and creates nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.artifacts = root / ARTIFACTS
        self.rows = root / "rows"

    @cached_property
    def _whole(self) -> Path:
        return self.root.absolute()

    @cached_property
    def _resolved(self) -> Path:
        """The folder with all links followed: asked for once, since a run may have thousands of configurations."""
        return self.root.resolve()

    def configuration_path(self, configuration_id: str) -> Path:
        return self.rows / f"{configuration_id}.json"

    def outputs_path(self, configuration_id: str) -> Path:
        return self.artifacts / "outputs" / f"{configuration_id}.npz"

    def find_outputs(self, configuration_id: str) -> Path:
        """The file of a stored result's outputs, checked for reading; raises ArtifactError if a link leads to it."""
        check_inside(self.root, path := self.outputs_path(configuration_id))
        return path

    def labelled_path(self, configuration_id: str) -> Path:
        """The file of what the metrics need of a configuration's outputs for the labelled samples."""
        return self.artifacts / "outputs" / f"{configuration_id}.labelled.npz"

    def further_path(self, configuration_id: str) -> Path:
        """The file of a configuration's outputs for the made-up and example inputs beside the usual ones."""
        return self.artifacts / "outputs" / f"{configuration_id}.further.npz"

    def recheck_path(self, configuration_id: str) -> Path:
        """The file of the outputs that are computed again after each trial."""
        return self.artifacts / "outputs" / f"{configuration_id}.recheck.npz"

    def build_path(self, configuration_id: str, build: int) -> Path:
        """The folder of one of several builds, 0 the first; builds share no file."""
        return self.artifacts / "builds" / configuration_id / str(build + 1)

    def check_free(self) -> None:
        """Check that a run can begin here: the folder holds none, or one that measured nothing."""
        advice = ""
        try:
            if held := holds_run(self.root):
                advice = "" if self.read_record().verb == "bench" else "continue it with --resume or "
                held = any(read_result(path).measurements for path in self.rows.glob("*.json"))
        except EngineBenchError:  # damaged, or of another program
            held = True
        if held:
            raise UsageError(f"{self.root} holds a run already; {advice}choose another --out")

    def create(self, record: RunRecord) -> None:
        """Create the folder and its `run.json`, in place of those of a run that measured nothing."""
        self.check_free()
        if holds_run(self.root):
            for path in self.rows.glob("*.json"):  # not measured, and not of this run
                path.unlink()
        self.drop_compiled()
        self.write_record(record)
        if (format_file := OPTIONS_FILE.get()) is not None:
            write_atomic(self.root / REPEAT, format_file().encode())
        else:
            (self.root / REPEAT).unlink(missing_ok=True)

    def write_record(self, record: RunRecord) -> None:
        command = tuple(map(hide_home, record.command))
        stored = replace(record, request=hide_paths(record.request), command=command)
        write_atomic(self.root / "run.json", encode(stored, indent=2))

    def read_record(self) -> RunRecord:
        path = self.root / "run.json"
        check_inside(self.root, path)
        if self.root.is_dir() and not path.exists():
            raise ParseError(self.root, "", "no run.json", "the folder of a run, as `run --out` writes it")
        record = read_record(path, RunRecord, RUN_SCHEMA)
        shown = _map_paths(record.request, lambda text: str(Path(text).expanduser()) if text.startswith("~") else text)
        return replace(record, request=shown)

    def write_result(self, result: Result) -> None:
        stored = self.change_paths(result, self.relative)
        write_atomic(self.configuration_path(result.id), encode(stored))

    def read_result(self, configuration_id: str) -> Result | None:
        """The stored result, with usable paths of its artifacts; None if it was never begun."""
        if Path(configuration_id).name != configuration_id or "\0" in configuration_id:
            expected = "the id of a configuration, which is a plain file name"
            raise ParseError(self.root / "run.json", "$.rows", repr(configuration_id), expected)
        path = self.configuration_path(configuration_id)
        check_inside(self.root, path)
        if not path.exists():
            return None
        result = read_result(path)
        if result.id != configuration_id:
            raise ParseError(path, "$.id", repr(result.id), repr(configuration_id), "Was the file renamed?")
        return self.change_paths(result, self.absolute)

    def drop_compiled(self) -> None:
        """Remove the caches of compilers: the next process would run the code in them. A link raises ArtifactError."""
        for folder, names, files in os.walk(self.root / ARTIFACTS):
            for name in (".", *names, *files):
                if (path := Path(folder, name)).is_symlink():
                    check_inside(self.root, path)
            if "cache" in names:
                shutil.rmtree(Path(folder, "cache"))
                names.remove("cache")

    @staticmethod
    def change_paths(result: Result, change: Callable[[Artifact], Artifact]) -> Result:
        artifacts = tuple(map(change, result.artifacts))
        builds = tuple(replace(build, artifact=change(build.artifact)) for build in result.builds)
        return replace(result, artifacts=artifacts, builds=builds)

    def relative(self, artifact: Artifact) -> Artifact:
        """The artifact as stored: paths inside the folder are relative to it, others are file names alone."""
        path = Path(artifact.path)
        if artifact.operator_libraries:
            artifact = replace(artifact, operator_libraries=tuple(map(hide_home, artifact.operator_libraries)))
        if not artifact.path or not path.is_absolute():
            return artifact
        inside = path.is_relative_to(self.root.absolute())
        return replace(artifact, path=str(path.relative_to(self.root.absolute()) if inside else path.name))

    def absolute(self, artifact: Artifact) -> Artifact:
        if not artifact.path:
            return artifact
        path = self._whole / artifact.path
        if not path.resolve().is_relative_to(self._resolved):
            raise ArtifactError(f"{self.root}: the stored path {artifact.path!r} leads out of the folder")
        return replace(artifact, path=str(path))

    def open(self, artifact: Artifact) -> Artifact:
        """The stored artifact, checked for opening: inside the folder, hashes unchanged, all code allowed."""
        opened = self.absolute(artifact)
        path = Path(opened.path)
        for recorded in opened.files if opened.path else ():
            file = path.parent / recorded.path
            check_inside(self.root.absolute(), file)
            if not path.is_file() or not file.is_file():
                raise ArtifactError(f"{file} is gone; the run cannot be continued. Start a new one")
            if hash_file(file) != recorded.sha256:
                raise ArtifactError(f"{file} was changed after the run began (SHA-256 differs). Start a new run")
        return trust_artifact(opened, self.root)


class Stored(Struct, frozen=True, kw_only=True):
    """A stored result, and the artifacts from the first source to the one that its engine opens."""

    result: Result
    chain: tuple[Artifact, ...]
    graph: Artifact | None = None  # the ONNX graph that the last one was made of, where it is no graph itself

    @property
    def spec(self) -> EngineSpec:
        """The engine as requested: a result may be relabelled with the precision that ran; its graph is the same."""
        return replace(self.result.engine, precision=self.result.requested_precision)


def holds_run(root: Path) -> bool:
    return (root / "run.json").exists()


def read_results(root: Path, *, condensed: bool = False) -> tuple[RunRecord, list[Result]]:
    """Read a stored run: its record (of a search, with its winner), and every result that was begun, in order.

    `condensed`: the samples of only one result are in memory at a time; of the others what rankings and tables need.
    """
    from enginebench.stats.condensed import condense_result  # reads NumPy, which --help can do without

    folder = RunFolder(root)
    record = folder.read_record()
    if record.verb == "tune":
        path = root / TUNE_FILE
        check_inside(root, path)
        winner = read_record(path, Searched).winner if path.exists() else None
        record = replace(record, winner=winner.id if winner else None)
    results: list[Result] = []
    for result in filter(None, map(folder.read_result, record.rows)):
        check_model(record, result, folder.configuration_path(result.id))
        results.append(condense_result(result) if condensed else result)
    return record, results


def check_model(record: RunRecord, result: Result, path: Path | str) -> None:
    """Check that a result is of the run's model: results of two models may have the same id, and have no ratio."""
    wanted = record.sources[0].model if record.sources else result.model
    if record.verb != "bench" and result.model != wanted:
        advice = "Was the file taken from another run?"
        raise ParseError(path, "$.model", repr(result.model), repr(wanted), advice)


def read_configurations(path: Path) -> list[Result]:
    """Read the results of a run's folder, or the one in a file, condensed: a comparison needs no samples of a trial."""
    from enginebench.stats.condensed import condense_result  # reads NumPy, which --help can do without

    if path.is_dir():
        return read_results(path, condensed=True)[1]
    return [condense_result(read_result(path))]
