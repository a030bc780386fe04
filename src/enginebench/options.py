"""One declaration of each option: checks, the command line, signatures and the pages derive from it.

The options of a verb are a `TypedDict`; each field is `Annotated[type, Opt(...)]`. Records are composed by inheritance.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import os
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypedDict, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as get_hints

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from enginebench.core.commands import VERB
from enginebench.core.errors import UsageError
from enginebench.core.features import list_features
from enginebench.core.limits import MARGIN, TIMEOUT_S
from enginebench.core.records import Cache, Scope, Task
from enginebench.core.store import check_writable
from enginebench.core.text import TIME
from enginebench.runs.request import name_default_engines

if sys.version_info >= (3, 11):
    from typing import Unpack as Unpack
else:
    from typing_extensions import Unpack as Unpack

F = TypeVar("F", bound=Callable[..., Any])

PathLike: TypeAlias = str | os.PathLike[str]
Texts: TypeAlias = str | Iterable[str]
Shapes: TypeAlias = str | Sequence[str] | Mapping[str, Sequence[int]]
if TYPE_CHECKING:
    from torch import nn

    # A name, a path, or a module with example inputs.
    Model: TypeAlias = str | os.PathLike[str] | nn.Module
    # ENGINE@TARGET, the file of a stored configuration, or an engine and a model.
    Side: TypeAlias = str | os.PathLike[str] | tuple[str, Model]
else:
    Model = Side = object

# The ends of options that name none: the largest whole number that arrays and records hold, and 31 years in seconds
# (nanoseconds of more do not fit into 64 bits either).
LARGEST_WHOLE, LARGEST_REAL = 2**63 - 1, 1e9


class Opt(Struct, frozen=True):
    """The declaration of an option; brackets at the end of its help hold its default in words."""

    help: str
    default: Any = None
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    more: str = ""  # for the pages alone
    names: str = ""  # on the command line, as click takes them; by default made of the field's name
    metavar: str | None = None
    multiple: bool = False
    path: Literal["file", "folder", "any", "new file", "new folder", "new any"] | None = None  # new: it is written
    then: Callable[[Any], Any] | None = None  # the command line calls it with the value, and passes it to no function
    program: bool = False  # for Python callers alone
    argument: bool = False  # of the command line, without a flag
    typed: str = ""  # how it is typed, where it names code, a program or a library: no file of options gives it
    required: bool = False  # on the command line
    choices: tuple[str, ...] = ()  # of each, where there may be several
    feature: str = ""  # without it there is no such option
    name: str = ""
    kind: Any = None
    rank: int = -1

    @property
    def hint(self) -> Any:
        """The type as Python callers see it."""
        return self.kind | None if self.default is None else self.kind

    def check(self, value: Any) -> Any:
        """The value, if it is of the option's type and within its limits, else UsageError; a path becomes a text."""
        if (self.path or "").startswith("new") and value is not None:
            path = Path(value)
            check_writable(path)
            if self.path == "new folder" and path.exists() and not path.is_dir():  # also a pipe or a device
                raise UsageError(f"{self.name}={str(value)!r} is not a folder. Choose another path")
        if value is None or (self.kind not in (bool, int, float, str) and get_origin(self.kind) is not Literal):
            return os.fspath(value) if isinstance(value, os.PathLike) else value
        limits: Any = {"ge": self.ge, "gt": self.gt, "le": self.highest, "lt": self.lt}
        refusal = f"{self.name}={value!r}: expected {self.expect()}"
        try:
            checked = msgspec.convert(value, Annotated[self.kind, Meta(**limits)])
        except msgspec.ValidationError:
            raise UsageError(refusal) from None
        if isinstance(checked, float) and not math.isfinite(checked):
            raise UsageError(refusal)
        return checked

    @property
    def highest(self) -> float | None:
        """The largest value allowed; a number without an upper limit of its own has the usual one."""
        if self.le is not None or self.lt is not None:
            return self.le
        return {int: LARGEST_WHOLE, float: LARGEST_REAL}.get(self.kind)

    def expect(self) -> str:
        """Describe the values that the option takes."""
        if get_origin(self.kind) is Literal:
            return f"one of {', '.join(get_args(self.kind))}"
        kind = {bool: "True or False", int: "a whole number", float: "a finite number", str: "a text"}[self.kind]
        ends = {"at least": self.ge, "more than": self.gt, "at most": self.highest, "less than": self.lt}
        limits = " and ".join(f"{words} {round(end)}" for words, end in ends.items() if end is not None)
        return ", ".join(filter(None, (kind, limits)))


def read_hints(hints: Mapping[str, Any]) -> dict[str, Opt]:
    """Read the options from type hints: {name: option}, the types without None."""
    declared = {}
    for name, hint in hints.items():
        for opt in (mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Opt)):
            kinds = [kind for kind in get_args(hint.__origin__) if kind is not types.NoneType]
            plain = get_origin(hint.__origin__) in (types.UnionType, Union) and len(kinds) == 1
            declared[name] = replace(opt, name=name, kind=kinds[0] if plain else hint.__origin__)
    return declared


@functools.cache
def list_all_options(record: type) -> dict[str, Opt]:
    """The options of a record by name, those of absent features, too."""
    return read_hints(get_hints(record, include_extras=True))


@functools.cache
def list_options(record: type) -> dict[str, Opt]:
    """The options of a record by name: its own first, then those that it inherits."""
    groups = [
        group.__annotations__ for group in (Judging, Timing, Trusting, Native, Shared, Configured, Printed, Progress)
    ]
    index = {id(hint): i for i, hint in enumerate(hint for group in groups for hint in group.values())}
    ranks = {name: index.get(id(hint), -1) for name, hint in record.__annotations__.items()}
    options = {n: o for n, o in list_all_options(record).items() if o.feature in {"", *list_features()}}
    return sort_options({name: replace(option, rank=ranks[name]) for name, option in options.items()})


def name_groups(names: Iterable[str]) -> dict[str, str]:
    """Return {option: its group in --help}, without options that belong to no group."""
    groups: dict[str, tuple[type, tuple[str, ...]]] = {
        "Outputs and accuracy": (Judging, ("limit", "strict_precision", "calibration_method")),
        "Trials and timing": (
            Timing,
            (
                "baseline",
                "builds",
                "timeout",
                "p99_limit_ms",
                "need",
                "for_calls",
                "load_p99_ms",
                "time_budget",
                "wait",
                "resume",
            ),
        ),
        "Code that may run": (Trusting, ()),
        "Device, model and inputs": (Shared, ("input_size", "dynamic_axes", "env", "trtexec", "extra")),
        "Printing": (Printed, ("config", "wide", "warnings", "help")),
    }
    # The later group wins: Trusting inherits what Printed has.
    title_of = {name: title for title, (record, more) in groups.items() for name in (*list_all_options(record), *more)}
    return {name: title_of[name] for name in names if name in title_of}


def sort_options(options: Mapping[str, Opt]) -> dict[str, Opt]:
    """Sort the options of a verb: its own first, then those that it shares with others."""
    return dict(sorted(options.items(), key=lambda item: item[1].rank))


def verb(record: type) -> Callable[[F], F]:
    """A function `f(..., **options: Unpack[record])` whose options are checked, completed, and shown by `help()`."""

    def make(function: F) -> F:
        signature, options = inspect.signature(function), list_options(record)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        hints = types.SimpleNamespace(__annotations__={p.name: p.annotation for p in own})
        first = read_hints(get_hints(hints, function.__globals__, include_extras=True))
        absent = {n: o.default for n, o in list_all_options(record).items() if n not in options}

        @functools.wraps(function)
        def checked(*args: Any, **keywords: Any) -> Any:
            bound = signature.bind(*args, **keywords)
            bound.apply_defaults()
            for name, value in bound.arguments["options"].items():
                if name in options or (name in absent and value == absent[name]):
                    continue
                near = "".join(f"; did you mean {text}?" for text in difflib.get_close_matches(name, options, 1))
                raise TypeError(f"{function.__name__}() has no argument {name!r}{near}")
            for name, value in (bound.arguments | bound.arguments["options"]).items():
                if isinstance(value, str) and not value:  # a path would be the current folder
                    raise UsageError(f"{name}: the text is empty; expected a text, or None")
            bound.arguments |= {name: option.check(bound.arguments[name]) for name, option in first.items()}
            bound.arguments["options"] = fill(record, bound.arguments["options"])
            before = VERB.set(function.__name__)
            try:
                return function(*bound.args, **bound.kwargs)
            finally:
                VERB.reset(before)

        shown = [
            inspect.Parameter(o.name, inspect.Parameter.KEYWORD_ONLY, default=o.default, annotation=o.hint)
            for o in options.values()
        ]
        checked.__dict__["__signature__"] = signature.replace(parameters=[*own, *shown])
        checked.__dict__["options"] = first | options
        checked.__dict__["absent"] = absent
        before, raises, after = inspect.cleandoc(function.__doc__ or "").partition("Raises:\n")
        lines = [f"    {name}: {option.help}" for name, option in (first | options).items()]
        checked.__doc__ = "\n".join(
            [before.rstrip(), *([] if "\nArgs:\n" in before else ["", "Args:"]), *lines, "", raises + after]
        )
        return checked  # type: ignore[return-value]

    return make


def fill(record: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return every option of a record, checked: its argument, else its default."""
    return {
        name: option.check(arguments.get(name, option.default)) for name, option in list_all_options(record).items()
    }


TaskOption: TypeAlias = Annotated[
    Task | None, Opt("What the model is for: decides how its outputs are read and compared, and the metric.")
]
InputSize: TypeAlias = Annotated[int | None, Opt("Height and width of the model's images. [the model's own]", ge=1)]
Wait: TypeAlias = Annotated[
    bool,
    Opt(
        "If another run holds the device: wait for it (the default) or fail.",
        True,
        names="--wait/--no-wait",
        more="Failing ends with exit code 6",
    ),
]
Timeout: TypeAlias = Annotated[float, Opt("Seconds that one process may take.", TIMEOUT_S, ge=1, metavar=TIME)]
Batch: TypeAlias = Annotated[
    int | None, Opt("Batch size. [that of --input-shape, else of the example inputs, else 1]", ge=1)
]
Axes: TypeAlias = Annotated[
    str | Sequence[str] | Mapping[str, Sequence[int]],
    Opt(
        "Axis of an input that the export makes dynamic, beside the batch. Repeat it, or separate several by commas.",
        (),
        metavar="NAME:AXIS",
        multiple=True,
        more="In Python also {input: axes}",
    ),
]
Libraries: TypeAlias = Annotated[
    PathLike | Sequence[PathLike],
    Opt(
        "Library of custom operators for ONNX Runtime, or onnxruntime_extensions. Repeat it for several.",
        (),
        metavar="LIB",
        multiple=True,
        more="Other engines refuse such operators",
        typed="--ort-extension {}",
    ),
]
Threads: TypeAlias = Annotated[
    int | None, Opt("Threads per engine. [physical cores; tune searches them]", ge=1, le=4096)
]
Trtexec: TypeAlias = Annotated[
    str | None,
    Opt(
        "The trtexec executable. [$TRTEXEC, PATH, the usual folders]",
        metavar="PATH",
        feature="trtexec",
        typed="--trtexec {}",
    ),
]
Env: TypeAlias = Annotated[
    Mapping[str, PathLike] | Sequence[str],
    Opt(
        "An environment for ENGINE:env=NAME: a virtual environment or a Python executable. Repeat it for several.",
        (),
        metavar="NAME=PATH",
        multiple=True,
        more="In Python {name: path}; see [two versions](versions.md)",
        typed="--env {}",
    ),
]
Builds: TypeAlias = Annotated[
    int | None,
    Opt(
        "Build each engine K times from scratch; --processes counts the trials of all builds together.",
        ge=2,
        le=1000,
        metavar="K",
        more="The build is then the unit of a comparison ([rebuilds](versions.md#what-a-rebuild-changes))",
    ),
]
Precisions: TypeAlias = Annotated[
    Texts | None,
    Opt(
        "fp32, tf32, fp16, bf16, int8, fp8, int4; several separated by commas. [fp32, to which `run` with the default "
        "engines adds OpenVINO's bf16 where the CPU multiplies in it; on a GPU fp32,fp16,bf16]"
    ),
]
Data: TypeAlias = Annotated[
    PathLike | None,
    Opt(
        "Data for accuracy, comparisons and 8-bit calibration. [that of a built-in model]",
        metavar="DIR|digits|sample-photos",
        more="Also prepared arrays. Images need no labels: without class folders, outputs are compared on up to 256 "
        "of them, and there is no accuracy ([inputs](inputs.md))",
    ),
]
Engines: TypeAlias = Annotated[
    Texts | None,
    Opt(
        f"ENGINE[:key=value,...], separated by commas. [{name_default_engines('cpu')}; on a GPU "
        f"{name_default_engines('cuda')}]",
        more="An engine that cannot run here is skipped, with the reason",
    ),
]
GraphEngine: TypeAlias = Annotated[str | None, Opt("ENGINE[:key=value,...] [ort; on a GPU ort-cuda]")]
Extra: TypeAlias = Annotated[
    Sequence[str],
    Opt(
        "Extra arguments for trtexec, split as by a shell; can be repeated, or give them after --.",
        (),
        metavar="ARG",
        multiple=True,
        feature="trtexec",
        typed="--extra {}",
    ),
]
TopK: TypeAlias = Annotated[int, Opt("Number of layers to show and draw.", 30, ge=1)]
Limit: TypeAlias = Annotated[
    Mapping[str, float] | Texts | None,
    Opt(
        "Limits for outputs: cosine=0.99,top1=0.98, as in drift. [those of each precision]",
        metavar="NAME=VALUE",
        multiple=True,
    ),
]
Need: TypeAlias = Annotated[
    Mapping[str, str | float] | Texts | None,
    Opt(
        "Limits on memory, first-output, size or build of what is recommended: memory=512MB,build=60s.",
        metavar="NAME=LIMIT",
        multiple=True,
        more="See [what a process costs](life.md)",
    ),
]
Traffic: TypeAlias = Annotated[
    Mapping[str, float] | PathLike | None,
    Opt(
        "Serve a mix of shapes with one process: batch=1:0.7,batch=8:0.3, or a file with a length or shape a line.",
        metavar="MIX",
        more="See [traffic as it is](life.md#traffic-as-it-is)",
    ),
]
Margin: TypeAlias = Annotated[
    float,
    Opt(
        "Relative difference that matters.",
        MARGIN,
        gt=0,
        le=1,
        more="Also the largest change of the reference kernel between two runs",
    ),
]
Store: TypeAlias = Annotated[
    PathLike | None, Opt("Folder of baselines. [$ENGINEBENCH_BASELINES, else results/baselines]", path="folder")
]
Top1Drop: TypeAlias = Annotated[
    float | None, Opt("The same for top-1, in percentage points: 1 is --max-metric-drop 0.01.", ge=0, metavar="POINTS")
]
CalibCache: TypeAlias = Annotated[
    PathLike | None, Opt("Ranges as TensorRT's text cache; with --calib written there, unless it exists.", path="file")
]
InputDtype: TypeAlias = Annotated[
    Literal["uint8"] | None,
    Opt(
        "uint8: the model takes images as bytes and normalizes them itself. [the model's own]",
        more="See [images as bytes](inputs.md#images-as-bytes)",
    ),
]
Normalize: TypeAlias = Annotated[
    str | None,
    Opt(
        "With --input-dtype: by channel, for pixels scaled to 0 to 1. [known for built-in and timm models]",
        metavar="[NAME:]MEAN/STD",
        more="As in `0.485,0.456,0.406/0.229,0.224,0.225`; NAME is the image among several inputs",
    ),
]
Precision: TypeAlias = Annotated[str, Opt("fp32, tf32, fp16, bf16, int8, fp8 or int4.", "fp32")]


class Printed(TypedDict, total=False):
    """Options of the command line that choose what is printed."""

    as_json: Annotated[bool, Opt("Print one JSON document on stdout and nothing else.", False, names="--json")]


def _allow(names: Sequence[str]) -> None:
    from enginebench.runs.trust import allow_code

    allow_code(*names)


class Native(Printed, total=False):
    """Printing and permission for native code, for verbs that open MODEL; Python callers have `allow_code`."""

    allow_native_code: Annotated[
        bool,
        Opt(
            "Run packages of AOTInductor that are given or stored; they are native code.",
            False,
            then=lambda _: _allow(["native-code"]),
            typed="--allow-native-code",
        ),
    ]


class Trusting(Native, total=False):
    """Printing and permission to run code, for verbs that open stored files."""

    allow_code: Annotated[
        Sequence[str],
        Opt(
            "Code that a stored file names and that may run: module:factory, a .pt2 file, a library, key=value.",
            (),
            metavar="NAME",
            multiple=True,
            then=_allow,
            typed="--allow-code {}",
            more="`key=value` is an option of its ENGINE; repeat it for several ([what runs code](what-runs-code.md))",
        ),
    ]


class Configured(TypedDict, total=False):
    """The option of the command line that all verbs have which have those of `Shared`."""

    config: Annotated[
        PathLike | None,
        Opt(
            "TOML file with these options, in a table named as the verb; what is typed goes before it.",
            path="file",
            metavar="FILE",
            more="See [a file of options](#a-file-of-options)",
        ),
    ]


class Wide(Printed, total=False):
    """Options for how much of a run is printed."""

    wide: Annotated[bool, Opt("Print all columns: also p99.9, throughput, memory, start, roofline.", False)]
    warnings: Annotated[bool, Opt("Print every warning, not just their number.", False)]


class Progress(TypedDict, total=False):
    progress: Annotated[
        bool | None,
        Opt("None: a bar in a notebook, silence elsewhere. True: also on stderr. False: never.", program=True),
    ]


class Shared(Progress, total=False):
    """Options that all verbs which run engines share."""

    device: Annotated[
        str,
        Opt(
            "cpu or cuda:N",
            "cpu",
            more="Engines for GPUs run on `cuda:0` unless another is named; `load` shares requests out to several, "
            "`cuda:0,cuda:1`",
        ),
    ]
    threads: Threads
    seed: Annotated[int, Opt("Seed for generated inputs and random weights.", 0, ge=0, le=2**32 - 1)]
    input_shape: Annotated[
        Shapes,
        Opt(
            "Shape of an input, also NAME:1,3,224,224. Repeat it, or separate several by commas.",
            (),
            metavar="NAME:1x3x224x224",
            multiple=True,
            more="An ONNX graph stays dynamic and gets these lengths, a plan is run with them; the first axis is "
            "the batch, and with `--batch` it may be 1. `run` takes several shapes of one input, "
            "`ids:1x16,1x128,1x512`, and measures each. In Python also {input: shape}",
        ),
    ]
    inputs: Annotated[
        PathLike | None,
        Opt(
            "Your own inputs: arrays by input name, one or many entries. [made up]",
            metavar="F.npz|DIR|package.module:function",
            more="See [inputs](inputs.md)",
        ),
    ]
    input_dtype: InputDtype
    normalize: Normalize
    ort_extension: Libraries
    weights: Annotated[
        PathLike,
        Opt(
            "default, random, or a state-dict file.",
            "default",
            more="`default`: trained or pretrained ones, else seeded random ones with a warning",
        ),
    ]


class Timing(TypedDict, total=False):
    """Options for how a configuration is measured."""

    warmup: Annotated[
        int | str | None,
        Opt("Exact number of warm-up calls (queries); for trtexec also a time. [until settled]", metavar="N|200ms"),
    ]
    # A trial's response may have 512 MB; a million calls with the times of a GPU are 20 MB of it.
    iters: Annotated[int | None, Opt("Exact number of timed calls. [until settled]", ge=1, le=20_000_000)]
    time_limit: Annotated[float, Opt("Seconds of timed calls in each process.", 1.0, gt=0, metavar=TIME)]
    processes: Annotated[
        int | None,
        Opt(
            "Exact number of trials (fresh processes) per configuration; a verdict needs 6. [6 to 10, as needed]",
            ge=1,
            le=1000,
            more="See [trials that end early](how-we-measure.md#trials-that-end-early)",
        ),
    ]
    scope: Annotated[Scope, Opt("Times computing; io: also copies in and out; pipelined: both overlapped.", "compute")]
    cache: Annotated[Cache, Opt("cold flushes a GPU's L2 cache before every call.", "hot")]


class Judging(TypedDict, total=False):
    """Options for the metrics of outputs on labelled samples."""

    metric: Annotated[
        Texts,
        Opt(
            "top1, top5, f1, miou, map, wer, cer, mae, cosine, or your own f(outputs, targets). The first one given "
            "decides. [that of --task]",
            (),
            metavar="NAME|package.module:function",
            multiple=True,
            more="See [metrics](metrics.md)",
        ),
    ]
    targets: Annotated[
        PathLike | None,
        Opt("Targets (labels), one for each sample: an .npz, .npy, .json, .csv or .txt file.", metavar="F"),
    ]
    task: TaskOption
    max_metric_drop: Annotated[
        float | None,
        Opt(
            "Allowed loss of the metric, in its own unit. [0.01 of a fraction, 1% of anything else]", ge=0, metavar="X"
        ),
    ]
    max_top1_drop: Top1Drop


class Modules(TypedDict, total=False):
    example_inputs: Annotated[
        object,
        Opt("Of a module: a tensor as `forward` takes it, a tuple of them, or {parameter: tensor}.", program=True),
    ]
