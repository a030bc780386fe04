"""Convert the arguments of verbs: models and sides to texts, options to lists, paths and numbers, progress."""

import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict as to_fields
from msgspec.structs import replace

from enginebench.core.entry import find_kind
from enginebench.core.errors import UsageError
from enginebench.core.names import parse_precision
from enginebench.core.recipes import BF16
from enginebench.core.records import Artifact, EngineSpec, MeasureSpec, Precision, Recipe, Result
from enginebench.core.text import clean_lines
from enginebench.engines.abilities import Composing
from enginebench.engines.registry import find_device, find_entry, find_installed, open_backend
from enginebench.measure.machine import describe_machine
from enginebench.models.objects import format_no_model
from enginebench.options import Model, PathLike, Shared, Side, Texts, list_all_options
from enginebench.report.progress import COLUMNS, LiveReporter, PlainReporter
from enginebench.runs import request
from enginebench.runs.child.environments import name_environments
from enginebench.runs.folder import RunRequest, default_folder
from enginebench.runs.progress import Reporter, Silent

if TYPE_CHECKING:
    from rich.console import RenderableType


def read_metrics(metric: str | Iterable[str]) -> tuple[str, ...]:
    return (metric,) if isinstance(metric, str) else tuple(metric)


class TakenModel(Struct, frozen=True, kw_only=True):
    """A model as text, as the verbs take it. `batch` is that of a module's example inputs."""

    text: str
    name: str
    batch: int | None = None


@contextmanager
def take_model(model: Model, example_inputs: object = None) -> Iterator[TakenModel]:
    """Yield the model as text; children of this process can open a module while the block runs."""
    if isinstance(model, str | os.PathLike):
        if example_inputs is not None:
            raise UsageError(
                f"example_inputs are for a module; {os.fspath(model)} brings its own, or takes input_shape"
            )
        yield TakenModel(text=os.fspath(model), name=os.fspath(model))
        return
    # Without it there is no module either, and what is asked for is no reason to install it.
    if sys.modules.get("torch") is None:
        raise UsageError(format_no_model(model))
    from enginebench.models.torch.object_source import offer_module

    with offer_module(model, example_inputs) as offered:
        yield TakenModel(text=offered.text, name=type(model).__name__, batch=offered.batch)


@contextmanager
def begin(model: Model, options: Any) -> Iterator[tuple[TakenModel, Reporter]]:
    """Yield the model as text, and the reporter of progress that the options of a verb choose."""
    with take_model(model, options["example_inputs"]) as taken, open_progress(options["progress"]) as reporter:
        yield taken, reporter


@contextmanager
def take_side(side: Side, example_inputs: object = None) -> Iterator[str]:
    """Yield the side as text: ENGINE@TARGET, or the file of a stored result."""
    if not isinstance(side, tuple):
        yield os.fspath(side)
        return
    engine, model = side
    with take_model(model, None if isinstance(model, str | os.PathLike) else example_inputs) as taken:
        yield f"{engine}@{taken.text}"


def split_texts(texts: str | Iterable[str]) -> list[str]:
    """Return `a,b` or ["a", "b"] as a list."""
    return [text.strip() for text in (texts.split(",") if isinstance(texts, str) else texts)]


def to_path(path: PathLike | None) -> Path | None:
    return None if path is None else Path(path)


def read_axes(axes_by_input: str | Sequence[str] | Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Return {input: axes} from such a mapping, or from texts as on the command line."""
    if not isinstance(axes_by_input, Mapping):
        return request.parse_axes((axes_by_input,) if isinstance(axes_by_input, str) else axes_by_input)
    for name, axes in axes_by_input.items():
        if not all(isinstance(axis, int) and axis >= 0 for axis in axes):
            raise UsageError(f"dynamic_axes {name}: {axes!r}; expected whole numbers, axes counted from 0")
    return {name: tuple(axes) for name, axes in axes_by_input.items()}


def list_libraries(paths: PathLike | Iterable[PathLike]) -> tuple[str, ...]:
    return tuple(os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths))


def read_device(text: str) -> str:
    try:
        return request.parse_device(text)
    except UsageError as error:
        raise UsageError(f"--device {error}") from error


def check_cpu(device: str, why: str) -> None:
    if read_device(device) != "cpu":
        raise UsageError(f"--device {device}: {why}; leave out --device")


def to_text(path: PathLike | None) -> str | None:
    return None if path is None else os.fspath(path)


def parse_batches(
    batch: int | str | Iterable[int] | None, options: Shared, taken: TakenModel
) -> tuple[int, ...] | None:
    """Return the requested batches (numbers, or `1,8`), else that of the example inputs; None without either."""
    if batch is None:
        return None if taken.batch is None or options["input_shape"] else (taken.batch,)
    return read_numbers("batch", batch)


def read_numbers(name: str, requested: int | str | Iterable[int]) -> tuple[int, ...]:
    """Return distinct positive numbers from one, several, or a text such as `1,8`."""
    if isinstance(requested, str):
        pieces: list[object] = [*requested.split(",")]
    else:
        pieces = [*requested] if isinstance(requested, Iterable) else [requested]
    numbers = [int(text) for text in map(str, pieces) if text.strip().isdecimal()]
    if len(numbers) < len(pieces) or not pieces or min(numbers) < 1 or len(set(numbers)) != len(numbers):
        raise UsageError(f"--{name} {requested!r}: expected distinct positive numbers, separated by commas")
    return tuple(numbers)


def read_limits(requested: Mapping[str, float] | Texts | None) -> dict[str, float] | None:
    """Return the limits from {"cosine": 0.99} or `cosine=0.99,top1=0.98`; None if there are none."""
    from enginebench.stats.drift import LIMITS  # reads NumPy, which --help can do without

    if isinstance(requested, Mapping):
        requested = [f"{name}={value}" for name, value in requested.items()]
    text_list = requested if isinstance(requested, str) else ",".join(requested or ())
    limits: dict[str, float] = {}
    for piece in split_texts(text_list) if text_list else ():
        name, sep, text = piece.partition("=")
        lead = f"--limit {piece!r}: "
        if name not in LIMITS or not sep or name in limits:
            raise UsageError(f"{lead}expected NAME=VALUE, each NAME once and one of {', '.join(LIMITS)}")
        try:
            value, most = float(text), LIMITS[name][1]
        except ValueError as error:
            raise UsageError(f"{lead}{text!r} is not a number") from error
        end = ""
        if most and name != "snr" and value > 1:
            end = f"; {name} is at most 1, so that no outputs can meet it"
        elif not most and value < 0:
            end = f"; {name} is at least 0, so that no outputs can meet it"
        if end or math.isnan(value) or (name == "samples" and value <= 0):
            kind = "a fraction above 0, at most 1" if name == "samples" else "a number"
            raise UsageError(f"{lead}give {kind}{end}")
        limits[name] = value
    if "samples" in limits and "snr" not in limits:
        raise UsageError("--limit samples=...: the fraction of samples within the limit of snr; give snr=... as well")
    return limits or None


def read_share(fraction: float | str) -> float:
    """Return a fraction between 0 and 1, also from `5%`."""
    text = str(fraction)
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise UsageError(f"--margin {text!r} is not a fraction between 0 and 1; expected 5% or 0.05")
    return share


# Options that a request has under another name.
_KEPT_AS = {"batch": "batches", "metric": "metrics", "timeout": "timeout_s", "time_limit": "time_limit_s"}
_KEPT_AS |= {"limit": "limits", "input_dtype": "normalize", "max_top1_drop": "max_metric_drop"}
_KEPT_AS |= {"input_shape": "input_shapes", "ort_extension": "operator_libraries"}


def refuse_changes(record: type, options: Any, requested: Sequence[Struct], stored: Sequence[Struct]) -> None:
    """Check that no option differs from those of the stored run: the change would have no effect on --resume."""
    now, then = ({n: v for one in records for n, v in to_fields(one).items()} for records in (requested, stored))
    named = {n: _KEPT_AS.get(n, n) for n, option in list_all_options(record).items() if options[n] != option.default}
    if changed := [f"--{n.replace('_', '-')}" for n, kept in named.items() if kept in now and now[kept] != then[kept]]:
        what = "--resume continues with the options that it was begun with, and these are others"
        raise UsageError(f"{', '.join(changed)}: {what}. Leave them out, or begin anew in another folder")


def name_precisions(requested: Texts | None, device: str | None, any_cpu: bool = False) -> Texts:
    """Return the requested precisions, else the defaults; with `any_cpu` and a CPU that has BF16, that as well."""
    if requested is not None or find_kind(device or "cpu") == "cpu":
        unasked = any_cpu and not BF16.isdisjoint(describe_machine().cpu_flags)
        return requested or ("fp32,bf16" if unasked else "fp32")
    return "fp32,fp16,bf16"


def read_precisions(texts: str | Iterable[str]) -> list[tuple[Precision, Recipe | None]]:
    return [parse_precision(text) for text in split_texts(texts)]


def remember_environments(environments: Mapping[str, PathLike] | Sequence[str]) -> None:
    texts = (
        (f"{name}={os.fspath(path)}" for name, path in environments.items())
        if isinstance(environments, Mapping)
        else environments
    )
    name_environments(texts)


def name_model(model: Model) -> str:
    """Return the name from which the folder of a run is named."""
    return os.fspath(model) if isinstance(model, str | os.PathLike) else type(model).__name__


def choose_root(out: PathLike | None, name: str) -> Path:
    """Return the folder for the results: `out`, else a new one."""
    return default_folder(name) if out is None else Path(out)


def list_specs(request: RunRequest) -> list[EngineSpec]:
    """Return the engines of a request, each in the first precision and batch."""
    (precision, recipe), batch = request.precisions[0], request.batches[0]
    specs = [
        EngineSpec(backend=n, options=options, device=find_device(n, request.device)) for n, options in request.engines
    ]
    return [replace(spec, precision=precision, recipe=recipe, batch=batch) for spec in specs]


def check_extra(request: RunRequest) -> None:
    """Check the arguments that a request passes on to trtexec, before anything is built."""
    for spec in list_specs(request):
        if "run_extra" in spec.options:
            check_command(spec, request.measure)


def check_command(engine: EngineSpec, measure: MeasureSpec) -> None:
    """Check that a tool accepts the command that will time a configuration; tools that are missing are not checked."""
    if find_entry(engine.backend).find_program is not None and find_installed(engine.backend).available:
        open_composing(engine).compose_measure(name_plan(Path("any.plan")), engine, measure, None)


def name_plan(path: Path) -> Artifact:
    """Return the artifact of a finished plan, of which only the path is given."""
    return Artifact(kind="plan", model=path.name, path=str(path), sha256="", files=(), inputs=(), outputs=())


def open_composing(spec: EngineSpec) -> Composing:
    backend: object = open_backend(spec.backend) if find_entry(spec.backend).find_program else None
    if not isinstance(backend, Composing):
        raise UsageError(f"a dry run prints a tool's command line, as trtexec's; engine {spec.backend} has none")
    return backend


class NotebookReporter:
    """A bar in the output of a notebook's cell, drawn anew when something happens: no thread, no widgets."""

    def __init__(self, display: Any) -> None:
        from rich.progress import Progress

        self._progress = Progress(*COLUMNS, auto_refresh=False)
        self._task = self._progress.add_task("starting", total=1)
        self._shown = display(self._progress, display_id=True)

    def begin(self, total: int) -> None:
        self._update(total=total, completed=0)

    def say(self, text: str) -> None:
        self.step(text)

    def step(self, text: str) -> None:
        self._update(description=clean_lines(text)[:70])

    def advance(self) -> None:
        self._update(advance=1)

    def show(self, results: Sequence[Result]) -> None:
        """A cell shows the bar alone; the table comes with the result."""

    def _update(self, **change: Any) -> None:
        self._progress.update(self._task, **change)
        self._shown.update(self._progress)


@contextmanager
def open_progress(progress: bool | None) -> Iterator[Reporter]:
    """Yield a reporter. `progress` None: a bar in a notebook, nothing elsewhere; True: stderr outside of notebooks."""
    display = find_display() if progress is not False else None
    if display is not None:
        yield NotebookReporter(display)
    elif progress:
        from rich.console import Console

        console = Console(stderr=True)
        with LiveReporter(console, draw_results) if console.is_terminal else PlainReporter() as reporter:
            yield reporter
    else:
        yield Silent()


def draw_results(results: Sequence[Result]) -> "RenderableType | None":
    """Return the tables of a run in progress, as in its report; None if nothing has a time yet."""
    from enginebench.report.run.rows import describe_run
    from enginebench.report.run.sections import list_tables
    from enginebench.report.terminal import draw_sections

    if not any(result.measurements for result in results):
        return None
    document = describe_run(model=results[0].model, machine=None, spec={}, results=results)
    return draw_sections([replace(section, parts=section.parts[:1]) for section in list_tables(document)])


def find_display() -> Any:
    """Return IPython's `display` in a notebook; else None. IPython is not imported for that."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    # The shell of Jupyter's kernel, or one derived from it, as Colab's; a terminal has another one.
    if not any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__):
        return None
    from IPython.display import display

    return display
