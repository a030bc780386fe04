"""Engines from other packages: entry points of the group `enginebench.engines`, each named as its engine.

Names are known from the packages' metadata; a package's own code is imported only when its engine is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from enginebench.core.entry import Entry
from enginebench.core.errors import BackendUnavailable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "enginebench.engines"
# Names of engines become parts of file names, and ENGINE gives `:`, `,`, `=` and `@` a meaning.
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class Plugin(NamedTuple):
    """An engine that a package names. With a `fault` it is not used."""

    name: str
    package: str  # with its version
    point: EntryPoint
    fault: str | None = None


def list_plugins(taken: Collection[str]) -> list[Plugin]:
    """Every engine that a package names, by name.

    Args:
        taken: names of engines that no package may bring.
    """
    found = _read_points()
    return [plugin._replace(fault=_find_fault(plugin, found, taken)) for plugin in found]


def _find_fault(plugin: Plugin, found: Collection[Plugin], taken: Collection[str]) -> str | None:
    rivals = [other.package for other in found if other.name == plugin.name and other is not plugin]
    if plugin.name in taken:
        return f"{plugin.package} brings an engine {plugin.name}, which EngineBench has itself: it is not used"
    if rivals:
        return (
            f"{' and '.join([plugin.package, *rivals])} each bring an engine {plugin.name}: none is used. "
            "Uninstall all but one"
        )
    if not NAME.fullmatch(plugin.name):
        return (
            f"{plugin.package} brings an engine {plugin.name!r}: it is not used. Expected a name of lower-case "
            "letters, digits and hyphens"
        )
    return None


@cache
def _read_points() -> tuple[Plugin, ...]:
    from importlib.metadata import entry_points  # most commands have no use for it, and would pay for its import

    found = [Plugin(name=p.name, package=_name_package(p), point=p) for p in entry_points(group=GROUP)]
    return tuple(sorted(found, key=lambda plugin: (plugin.name, plugin.package)))


def _name_package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else f"the package of {point.value}"


def load_entry(plugin: Plugin) -> Entry:
    """The entry that a package has for its engine.

    Raises:
        BackendUnavailable: the plug-in has a fault, cannot be imported, or has something else there.
    """
    if plugin.fault:
        raise BackendUnavailable(f"engine {plugin.name}: {plugin.fault}")
    where = f"engine {plugin.name} of {plugin.package}: its entry point {plugin.point.value}"
    try:
        entry = plugin.point.load()
    except (Exception, SystemExit) as error:
        raise BackendUnavailable(f"{where} cannot be imported ({type(error).__name__}: {error})") from error
    if not isinstance(entry, Entry):
        raise BackendUnavailable(f"{where} is of type {type(entry).__name__}; expected an enginebench.core.entry.Entry")
    if entry.name != plugin.name:
        raise BackendUnavailable(f"{where} is the entry of an engine {entry.name!r}; expected {plugin.name!r}")
    try:
        return msgspec.convert(msgspec.structs.asdict(entry), Entry)  # a struct takes any value until it is asked
    except msgspec.ValidationError as error:
        raise BackendUnavailable(f"{where} is an Entry with a field of a wrong type: {error}") from error
