"""Look up what features and packages bring, by name. The kernel imports nothing of a feature before it is used.

Each feature declares it in `features/NAME/__init__.py`: `FEATURE = Feature(...)`. Without its folder, what it brings
is not found, and everything else works. Another package declares it in its metadata, by entry points of the group
`enginebench.features`: `verb.NAME`, `hook.PROTOCOL`, `function.NAME`, `document.SCHEMA`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache, reduce, wraps
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

HOME = f"{__name__.partition('.')[0]}.features"
NONE: Mapping[Any, str] = MappingProxyType({})
Kind: TypeAlias = Literal["functions", "jobs", "engines", "documents"]
Hook = TypeVar("Hook")
GROUP = HOME  # of the entry points by which packages bring features
# What an entry point of the group can bring, and what its name may be behind the first dot.
BRINGS = {"verb": "[a-z0-9]+(-[a-z0-9]+)*", "hook": "[A-Za-z]+", "function": "[a-z][a-z0-9_]*", "document": ".+/[0-9]+"}


class Verb(NamedTuple):
    """The name and help of a verb, so that `--help` imports no verb."""

    name: str
    group: str
    sentence: str
    module: str = ""  # imported when the verb is called; its `command`. Here: inside the feature


class Feature(NamedTuple):
    """The names that a feature provides -> `module:name` in its folder, imported when it is used."""

    verbs: tuple[Verb, ...] = ()
    functions: Mapping[str, str] = NONE  # of the public interface
    jobs: Mapping[str, str] = NONE  # tag of a job of a child -> its class
    engines: Mapping[str, str] = NONE  # -> its Entry
    documents: Mapping[str, str] = NONE  # schema -> its record
    hooks: Mapping[type, str] = NONE  # protocol of `core/hooks.py` -> the function that is called there
    rank: int = 0  # features of a higher rank come later in lists and look-ups


class Separate(NamedTuple):
    """A package of ours that EngineBench does not carry: what it brings, and what installs it."""

    package: str
    verbs: tuple[str, ...]
    engines: tuple[str, ...]
    fix: str


# No package index has it yet, and a name that nobody has registered there could be anybody's.
SEPARATE = (
    Separate(
        package="enginebench-fpga",
        verbs=("fpga", "budget"),
        engines=("fpga-sim",),
        fix="pip install ./plugins/fpga (in a checkout of EngineBench)",
    ),
)


class Plugin(NamedTuple):
    """An entry point by which a package brings an engine, or a part of a feature. With a `fault` it is not used."""

    name: str
    package: str  # with its version
    place: str  # `module:name`
    summary: str = ""  # what the package says about itself
    fault: str | None = None

    def load(self) -> Any:
        module, _, path = self.place.partition(":")
        return reduce(getattr, filter(None, path.split(".")), import_module(module))


@cache
def list_features() -> dict[str, Feature]:
    """Every feature whose folder is there, by rank, then by name."""
    names = sorted(path.parent.name for path in Path(import_module(HOME).__path__[0]).glob("*/__init__.py"))
    features: dict[str, Feature] = {name: import_module(f"{HOME}.{name}").FEATURE for name in names}
    return dict(sorted(features.items(), key=lambda item: item[1].rank))


def list_verbs() -> list[Verb]:
    """Every verb of a feature, with the full name of its module."""
    verbs = [(name, verb) for name, feature in list_features().items() for verb in feature.verbs]
    return [verb._replace(module=f"{HOME}.{name}.{verb.module}") for name, verb in verbs]


def list_offered(kind: Kind) -> list[str]:
    return [name for feature in list_features().values() for name in getattr(feature, kind)]


def find_each(kind: Kind, name: str | None = None) -> Iterator[Any]:
    """Yield what each feature brings under this name, in the order of ranks."""
    for feature, brought in list_features().items():
        for key, target in getattr(brought, kind).items():
            if name in (None, key):
                yield _import_target(feature, target)


def _import_target(feature: str, target: str) -> Any:
    module, _, wanted = target.partition(":")
    return getattr(import_module(f"{HOME}.{feature}.{module}"), wanted)


def find(kind: Kind, name: str) -> Any:
    """Return what a feature, or else a package, brings under this name; None if none does.

    Jobs and engines of packages are not looked up here: a child that measures reads no metadata of packages.
    """
    brought = next(find_each(kind, name), None)
    if brought is None and (entry := {"functions": "function", "documents": "document"}.get(kind)):
        brought = next(map(load_plugin, find_plugins(f"{entry}.{name}")), None)
    return brought


def find_hooks(hook: type[Hook], feature: str | None = None) -> Iterator[Hook]:
    """Yield the function of each feature for a protocol of `core/hooks.py`, in the order of ranks; then of packages.

    Args:
        feature: only of this one.
    """
    for name, brought in list_features().items():
        if hook in brought.hooks and feature in (None, name):
            yield _import_target(name, brought.hooks[hook])
    for plugin in find_plugins(f"hook.{hook.__name__}") if feature is None else ():
        yield _guard(plugin, load_plugin(plugin))


def find_hook(hook: type[Hook]) -> Hook | None:
    """Return the function of the first feature or package that has one for this protocol; None if none has."""
    return next(find_hooks(hook), None)


def require_hook(hook: type[Hook]) -> Hook:
    """Return the function for a protocol, for an option or a function that is there only with a feature.

    Raises:
        MissingDependency: no feature has one.
    """
    function = find_hook(hook)
    if function is None:
        from enginebench.core.errors import MissingDependency  # to list features, it need not be imported

        raise MissingDependency(
            f"the feature of EngineBench that this needs ({hook.__name__})", "pip install --force-reinstall enginebench"
        )
    return function


def check_separate(kind: Literal["verb", "engine"], name: str) -> None:
    """Raise MissingDependency for a verb or an engine that a package of ours brings, for where it is not installed."""
    for separate in SEPARATE:
        if name in (separate.verbs if kind == "verb" else separate.engines):
            from enginebench.core.errors import MissingDependency

            raise MissingDependency(f"{separate.package}, the package with the {kind} {name},", separate.fix)


@cache
def read_points(group: str) -> tuple[Plugin, ...]:
    """Return every entry point of a group, by name, then by package; nothing is imported.

    Not by `importlib.metadata`, whose import and whose reading of every package took a quarter of the time of
    `--help`. It would find packages in zip files, too.
    """
    plugins = (plugin for folder in _list_metadata() for plugin in _read_points_of(folder, group))
    return tuple(sorted(plugins, key=lambda plugin: (plugin.name, plugin.package)))


def _list_metadata() -> list[Path]:
    """Return the metadata of each package that is installed: of two with one name, that which Python imports."""
    folders: dict[str, Path] = {}
    for place in sys.path:
        try:
            installed = [path for path in Path(place).iterdir() if path.suffix in (".dist-info", ".egg-info")]
        except OSError:  # no folder: a zip file, or nothing
            continue
        for folder in installed:
            package = folder.stem.partition("-")[0].replace(".", "_").lower()
            folders.setdefault(package, folder)
    return list(folders.values())


def _read_points_of(folder: Path, group: str) -> Iterator[Plugin]:
    """Yield the entry points of a group that a package's metadata list.

    Source: https://packaging.python.org/en/latest/specifications/entry-points, and core-metadata beside it.
    """
    points = _read_text(folder / "entry_points.txt")
    if f"[{group}]" not in points:
        return
    lines = [line.strip() for line in points.partition(f"[{group}]")[2].partition("\n[")[0].splitlines()]
    head = (_read_text(folder / "METADATA") or _read_text(folder / "PKG-INFO")).partition("\n\n")[0]
    fields = dict(re.findall(r"^(Name|Version|Summary): *(.*?)\s*$", head, re.MULTILINE))
    package = f"{fields.get('Name', folder.stem)} {fields.get('Version', '')}".rstrip()
    for line in lines:
        name, equals, place = line.partition("=")
        if equals and not line.startswith("#"):
            yield Plugin(name.strip(), package, place.partition("[")[0].strip(), fields.get("Summary", ""))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def list_rivals(plugin: Plugin, plugins: Collection[Plugin]) -> list[str]:
    """Return this package and the others that bring the same; none if it is the only one."""
    others = [other.package for other in plugins if other.name == plugin.name and other is not plugin]
    return [plugin.package, *others] if others else []


def list_brought(taken: Collection[str] = ()) -> list[Plugin]:
    """Return what packages bring of features, with the reason why one is not used; `taken`: `verb.NAME` of ours."""
    listed, points = [], read_points(GROUP)
    for plugin in points:
        kind, _, name = plugin.name.partition(".")
        fault = None
        if not re.fullmatch(BRINGS.get(kind, "(?!)"), name):
            fault = f"brings {plugin.name!r}; expected verb.NAME, hook.PROTOCOL, function.NAME or document.SCHEMA"
        elif plugin.name in taken:
            fault = f"brings {kind} {name}, which EngineBench has itself"
        elif kind == "hook" and not _is_hook(name):
            fault = f"brings hook {name}, which this version of EngineBench does not have; update one of the two"
        elif kind != "hook" and (rivals := list_rivals(plugin, points)):
            fault = f"is not the only package that brings {kind} {name}: {' and '.join(rivals)}. Uninstall all but one"
        listed.append(plugin._replace(fault=fault and f"{plugin.package} {fault}: it is not used"))
    return listed


def _is_hook(name: str) -> bool:
    hooks = import_module("enginebench.core.hooks")
    return getattr(vars(hooks).get(name), "__module__", "") == hooks.__name__


def find_plugins(name: str) -> list[Plugin]:
    """Return the entry points of packages that bring this and are used: `verb.NAME`, `hook.PROTOCOL`, ..."""
    return [plugin for plugin in list_brought() if plugin.name == name and plugin.fault is None]


def load_plugin(plugin: Plugin) -> Any:
    """Import what a package brings.

    Raises:
        DependencyError: it cannot be imported; names the package.
    """
    try:
        return plugin.load()
    except (Exception, SystemExit) as error:
        from enginebench.core.errors import DependencyError

        raise DependencyError(
            f"{plugin.package} cannot be used: {plugin.place}, its {plugin.name}, cannot be imported "
            f"({type(error).__name__}: {error}). Repair or uninstall the package"
        ) from error


def _guard(plugin: Plugin, function: Callable[..., Any]) -> Any:
    """Wrap a package's function so that what fails in it is reported with the package's name."""

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        from enginebench.core.errors import DependencyError, explaining

        cure = "Repair the package, or uninstall it to go on without it"
        failed = f"{plugin.package}: its {plugin.name} ({plugin.place}) failed"
        with explaining(DependencyError, failed, describe=lambda error: f"{type(error).__name__}: {error}", cure=cure):
            return function(*args, **named)

    return call
