"""Look up what features bring, by name. The kernel imports nothing of a feature before it is used.

Each feature says in `features/NAME/__init__.py` what it has: `FEATURE = Feature(...)`. Where its folder is gone, what
it brought is not found, and nothing else changes.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

HOME = f"{__name__.partition('.')[0]}.features"
NONE: Mapping[Any, str] = MappingProxyType({})
Kind: TypeAlias = Literal["functions", "jobs", "engines", "documents"]
Hook = TypeVar("Hook")


class Verb(NamedTuple):
    """The name and help of a verb, so that `--help` imports no verb."""

    name: str
    group: str
    sentence: str
    module: str = ""  # imported when the verb is called; its `command`. Here: inside the feature


class Feature(NamedTuple):
    """What a feature brings: a name -> `module:name` in its folder, which is imported when it is used."""

    verbs: tuple[Verb, ...] = ()
    functions: Mapping[str, str] = NONE  # of the public interface
    jobs: Mapping[str, str] = NONE  # tag of a job of a child -> its class
    engines: Mapping[str, str] = NONE  # -> its Entry
    documents: Mapping[str, str] = NONE  # schema -> its record
    hooks: Mapping[type, str] = NONE  # protocol of `core/hooks.py` -> the function that is called there
    rank: int = 0  # features of a higher rank come later in lists and look-ups


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
    """Return what a feature brings under this name; None if no feature does."""
    return next(find_each(kind, name), None)


def find_hooks(hook: type[Hook], feature: str | None = None) -> Iterator[Hook]:
    """Yield the function of each feature (or of this one) for a protocol of `core/hooks.py`, in the order of ranks."""
    for name, brought in list_features().items():
        if hook in brought.hooks and feature in (None, name):
            yield _import_target(name, brought.hooks[hook])


def find_hook(hook: type[Hook]) -> Hook | None:
    """Return the function of the first feature that has one for this protocol; None if no feature does."""
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
