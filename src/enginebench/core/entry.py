"""The description of an engine and of its options: an `Entry`, available before the engine is imported."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from enginebench.core.records import ArtifactKind, Axes, Precision, Recipe

DeviceKind = Literal["cpu", "cuda"]
Family = Literal["convolutions", "transformers", "recurrent"]  # what a model is made of


def find_kind(device: str) -> DeviceKind:
    """The kind of a device such as `cuda:0`."""
    return "cuda" if device.startswith("cuda") else "cpu"


class Option(Struct, frozen=True, kw_only=True):
    """One `key=value` that an engine takes. Without `choices` it is a number where the default is one, else free text.

    `search`: values that `tune` may try, beside the default; none where another value changes what is computed, where
    it is needed to run at all, or where it says nothing about speed.
    """

    default: str
    meaning: str
    choices: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    signed: bool = False  # a number below zero will do
    only_in: tuple[Precision, ...] = ()  # it has an effect in these precisions alone; (): in all
    recipes: tuple[Recipe, ...] = ()  # it has an effect on graphs of these recipes alone; (): on all
    outside: bool = False  # it names a program, a library or a file, or lets code run: see `runs/trust.py`
    timing_only: bool = False  # no output depends on it
    dear: tuple[str, ...] = ()  # values that take minutes to build: `tune` tries them last
    under_load: bool = False  # it has an effect only with several streams or joined requests
    names: tuple[str, ...] = ()  # it takes some of these, joined by `+`


def choice(values: str, meaning: str, *, search: str = "", **others: Any) -> Option:
    """An option with some values, `run|always|never`, the default first; `others`: further fields."""
    choices, tried = values.split("|"), search.split("|") if search else ()
    return Option(default=choices[0], choices=tuple(choices), search=tuple(tried), meaning=meaning, **others)


def switch(meaning: str, *, on: bool = False, tried: bool = False, outside: bool = False) -> Option:
    """An option that is 0 or 1; `tried`: `tune` tries the one that is not the default."""
    default, other = ("1", "0") if on else ("0", "1")
    search = (other,) if tried else ()
    return Option(default=default, choices=("0", "1"), search=search, meaning=meaning, outside=outside)


class Builder(Struct, frozen=True, kw_only=True):
    """The artifact that an engine builds before it runs, and the needs of the build."""

    tunes: bool = False  # it times kernels and keeps what was fastest: nothing may run beside it
    beside_itself: bool = False  # except another build of it: its choices were measured to be the same then
    # With these options ({}: with any) what it builds stays for the processes that time it: a plan, compiled code, a
    # graph of its own. None: it builds nothing, or anew in each process.
    kept_with: Mapping[str, str] | None = None
    crashes: bool = False  # it can end its process: it never runs in the one that loads an engine
    qdq_rules: bool = False  # it refuses some Q/DQ nodes, or ends its process at them: they are looked at before


class Int8Choice(Struct, frozen=True, kw_only=True):
    """The recipe that `int8` is for a kind of graph, on a CPU that has these instructions."""

    graph: Literal["attention", "gates"]
    instructions: frozenset[str] = frozenset()  # as the machine's record names them; none: any CPU
    recipe: Recipe


class OtherRecipes(Struct, frozen=True, kw_only=True):
    """The recipes of eight bits that an engine takes beside its usual one, each where it was faster."""

    by_graph: tuple[Int8Choice, ...] = ()  # in place of it; the first that fits
    next: Mapping[Recipe, Recipe] = {}  # recipe -> what `run` measures beside it if little of the time was in INT8
    beside_bf16: Mapping[str, str] = {}  # options with which the rest of a graph is in BF16; {}: there are none
    searched: tuple[Recipe, ...] = ()  # that `tune` may try, too


class OnDevice(Struct, frozen=True, kw_only=True):
    """The properties of an engine on one kind of device."""

    options: Mapping[str, Option] = {}  # where they are others than `Entry.options`
    precisions: tuple[Precision, ...] = ()  # where they are others than `Entry.precisions`
    overlaps: bool = False  # its copies and its computation can: scope `pipelined`
    any_batch: bool = False  # another batch costs next to nothing; else it compiles, captures or allocates for each
    # Options with which several of it run in one process: they wait without the interpreter.
    beside_itself: Mapping[str, str] = {}
    # Options with which one of it serves every shape of a mix, then those with one for each shape; (): it is loaded for
    # each shape.
    for_shapes: tuple[Mapping[str, str], ...] = ()
    # The options with which `run` takes it where no engine is named; None: `run` leaves it out then.
    default: Mapping[str, str] | None = None
    # What the field sets, by kind of model; `tune` tries it before any single setting.
    known_good: Mapping[Family, Mapping[str, str]] = {}


class Entry(Struct, frozen=True, kw_only=True):
    """One engine: its name, the module that makes it, what it takes and needs. This is the only such list.

    The module has a function `create_backend`, which gives a `core.protocols.Backend`. It may name parameters among
    `loader` (rebuilds the module of a `torch` artifact) and `cache_dir` (a folder that the next process finds again),
    and is handed those that it names.
    """

    name: str
    module: str
    takes: ArtifactKind
    also_takes: tuple[ArtifactKind, ...] = ()  # what else it can start from
    reopens: tuple[ArtifactKind, ...] = ()  # what it makes and can start from again
    options: Mapping[str, Option] = {}
    refuses: Mapping[str, str] = {}  # options of related engines that have no effect on it, each with the reason
    precisions: tuple[Precision, ...] = ()  # those that it runs; (): only its backend knows
    lacks: Mapping[Precision, str] = {}  # others, each with the reason why it never runs them
    device: str | None = None  # the device that it runs on, if that is not the CPU
    recipe: Recipe = "tensorrt"  # what `int8` means where no recipe is named: what its kernels were made for
    other_recipes: OtherRecipes = OtherRecipes()
    # By kind of device: `tune` may choose the number of its threads. Elsewhere threads do not compute what is timed.
    chooses_threads: tuple[DeviceKind, ...] = ()
    builder: Builder = Builder()
    on: Mapping[DeviceKind, OnDevice] = {}  # what holds on one kind of device alone
    # "fixed": it is made for the shapes that it is loaded with, and made anew for others. None: unknown.
    axes: Axes | None = None
    distributions: tuple[str, ...] = ()  # any one of them is enough
    modules: tuple[str, ...] = ()  # import names, where many distributions bring them
    stand_ins: tuple[str, ...] = ()  # import names that do in place of the first of these
    find_program: Callable[[], Path | None] | None = None  # finds the program that it runs, where it is no package
    extra: str | None = None  # of EngineBench, that adds it
    packages: tuple[str, ...] = ()  # what the extra adds, for an install without it
    command: str | None = None  # what adds it, where that is no extra alone
    verified_on: str | None = None

    def describe_on(self, device: str) -> OnDevice:
        """Return the engine's properties on `device`."""
        return self.on.get(find_kind(device), OnDevice())

    def list_options(self, device: str) -> Mapping[str, Option]:
        """Its options on `device`."""
        return self.describe_on(device).options or self.options

    @property
    def fix(self) -> str | None:
        """The command that adds what the engine needs."""
        if self.command or not self.extra:
            return self.command
        return f'pip install "enginebench[{self.extra}]" (or: pip install {" ".join(self.packages)})'

    @property
    def accepts(self) -> tuple[ArtifactKind, ...]:
        """Every kind of artifact that it can start from, the usual one first."""
        return (self.takes, *self.also_takes)


# What users run without EngineBench: speed-ups refer to it, unless another baseline is named.
# The engine that runs a module as its user does.
EAGER = "pytorch"
# ENGINE with the settings that it has out of the box: on a GPU it may compute in TF32.
AS_IT_IS = f"{EAGER}:defaults=1"
# What a user runs today, the first that was measured: a module by PyTorch as it is (on a GPU that allows TF32), a graph
# by ONNX Runtime. None: in any precision.
RunsToday = tuple[tuple[str, Precision | None], ...]
TODAY: RunsToday = ((AS_IT_IS, None), (EAGER, "tf32"), (EAGER, "fp32"), (EAGER, None))
TODAY_OF_GRAPH: RunsToday = (("ort-cuda", "fp32"), ("ort-cuda", None), ("ort", "fp32"), ("ort", None))
