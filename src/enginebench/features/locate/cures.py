"""Find the optimization of an engine that a fault comes from, and the settings with which it is gone."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from enginebench.core.records import EngineSpec
from enginebench.engines.registry import find_entry

# Tells whether an engine with other settings is right.
Right = Callable[[EngineSpec], bool]
LEVELS = ("extended", "basic", "none")


def with_options(engine: EngineSpec, options: Mapping[str, str]) -> EngineSpec:
    return replace(engine, options={**engine.options, **options})


def disable(engine: EngineSpec, names: Iterable[str]) -> EngineSpec:
    """The engine without these optimizers, beside those that it does without already."""
    already = [name for name in engine.options.get("disable", "").split("+") if name]
    return with_options(engine, {"disable": "+".join(dict.fromkeys([*already, *names]))})


def find_optimizers(
    engine: EngineSpec, is_right: Right, first: Sequence[str] = (), has_time: Callable[[], bool] = lambda: True
) -> tuple[str, ...]:
    """Find the fewest optimizers without which the engine is right; () if it takes no `disable`, or none help.

    Args:
        first: those that are tried before all others.
        has_time: without time left, more of them are named than it takes.
    """
    option = find_entry(engine.backend).list_options(engine.device).get("disable")
    if option is None or engine.options.get("opt") == "none":
        return ()
    for names in (first, option.names):
        if names and is_right(disable(engine, names)):
            return tuple(drop_names(names, lambda left: has_time() and is_right(disable(engine, left))))
    return ()


def drop_names(names: Sequence[str], holds: Callable[[Sequence[str]], bool]) -> list[str]:
    """Drop names, by halves and then one by one, while it holds for those that are left."""
    kept, size = list(names), len(names) // 2
    while size >= 1:
        start = 0
        while start < len(kept) and len(kept) > 1:
            left = kept[:start] + kept[start + size :]
            if left and holds(left):
                kept = left
            else:
                start += size
        size //= 2
    return kept


def find_level(engine: EngineSpec, is_right: Right) -> EngineSpec | None:
    """Find the highest level of the optimizer with which the engine is right; None if it has none."""
    option = find_entry(engine.backend).list_options(engine.device).get("opt")
    if option is None or tuple(option.choices[1:]) != LEVELS:
        return None
    at = option.choices.index(engine.options.get("opt", option.choices[0]))
    lower = (with_options(engine, {"opt": level}) for level in option.choices[at + 1 :])
    return next((spec for spec in lower if is_right(spec)), None)
