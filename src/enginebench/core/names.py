"""Parse and format the texts ENGINE and PRECISION, ids of configurations, and slugs for names of files."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from enginebench.core.errors import UsageError
from enginebench.core.recipes import FEW_BITS, makes
from enginebench.core.records import EngineSpec, MeasureSpec, Precision, Recipe, Result


def parse_engine(text: str) -> tuple[str, dict[str, str]]:
    """Return (name, options) of an ENGINE such as `pytorch-compile:mode=reduce-overhead`; the name is not checked."""
    name, _, rest = text.partition(":")
    options: dict[str, str] = {}
    for pair in filter(None, rest.split(",")):
        key, sep, value = pair.partition("=")
        if not sep or not key:
            raise UsageError(f"engine option {pair!r} of {name} is not key=value")
        if key in options:
            raise UsageError(f"engine option {key!r} of {name} is given twice")
        options[key] = value
    return name, options


def parse_engines(texts: str | Iterable[str]) -> list[tuple[str, dict[str, str]]]:
    """Return (name, options) of each ENGINE in several texts, or in one list with commas.

    Commas in a list also separate options: a piece `key=value` belongs to the engine before it.
    """
    parts: list[str] = []
    if isinstance(texts, str):
        for piece in filter(None, (text.strip() for text in texts.split(","))):
            is_option = "=" in piece and ":" not in piece.split("=", 1)[0]
            if is_option and parts:
                parts[-1] += "," + piece if ":" in parts[-1] else ":" + piece
            else:
                parts.append(piece)
    else:
        parts = list(texts)
    if not parts:
        raise UsageError("the list of engines is empty")
    engines = [parse_engine(part) for part in parts]
    for i, engine in enumerate(engines):
        if engine in engines[:i]:
            raise UsageError(f"engine {parts[i]} is given twice; `bench --against` compares an engine with itself")
    return engines


def parse_precision(text: str) -> tuple[Precision, Recipe | None]:
    """Return (precision, recipe) of a text such as `int8@cpu` or `fp16`."""
    precision, sep, recipe = text.partition("@")
    if precision not in get_args(Precision):
        raise UsageError(f"unknown precision {precision!r}; known: {', '.join(get_args(Precision))}")
    if not sep:
        return precision, None  # type: ignore[return-value]
    if precision not in FEW_BITS:
        raise UsageError(f"{precision} has no recipes; {text!r} does not exist")
    recipes = [name for name in get_args(Recipe) if makes(name, precision)]
    if recipe not in recipes:
        raise UsageError(f"unknown recipe {recipe!r} of {precision}; known: {', '.join(recipes)}")
    return precision, recipe  # type: ignore[return-value]


def format_engine(spec: EngineSpec) -> str:
    """The ENGINE text of a spec: `ort-cuda:prefer_nhwc=1`."""
    return format_options(spec.backend, spec.options)


def format_options(name: str, options: Mapping[str, str]) -> str:
    """The ENGINE text of a name and its options."""
    text = ",".join(f"{k}={v}" for k, v in sorted(options.items()))
    return f"{name}:{text}" if text else name


# The precision of a finished plan, where it is unknown: as the one that ran, and as the one requested.
NOT_KNOWN, AS_BUILT = "not known", "as built"


def require_precision(precision: Precision | None) -> Precision:
    """Return the precision, which only a finished plan from elsewhere may lack."""
    assert precision is not None
    return precision


def format_precision(precision: str | None, recipe: str | None, mix: str = "") -> str:
    """The PRECISION text: `int8@cpu`; of a graph with nodes left in FP32 by choice, `int8@cpu mix 1a2b3c4d`.

    None: a finished plan whose precision is unknown.
    """
    named = f"{precision}@{recipe}" if recipe else precision or AS_BUILT
    return f"{named} mix {mix}" if mix else named


def escape_precision(precision: str) -> str:
    """The PRECISION text as part of a file's name: without the blanks and colons that `format_precision` has."""
    return precision.replace(" ", "-").replace(":", "-")


def show_precision(engine: str, precision: str | None) -> str | None:
    """`int8+bf16` of an engine whose floats beside INT8 are in BF16."""
    return "int8+bf16" if precision == "int8" and "floats=bf16" in engine else precision


def show_engine(engine: str, precision: str | None, recipe: str | None, mix: str = "", *, brief: bool = False) -> str:
    """ENGINE and PRECISION as they are read: `ort int8 (cpu)`; `brief`: without the options of the engine."""
    precision, engine = show_precision(engine, precision), engine.partition(":")[0] if brief else engine
    return f"{engine} {format_precision(precision, None, mix)}" + (f" ({recipe})" if recipe else "")


def name_mix(excluded: Iterable[str]) -> str:
    """Return eight hex digits that identify a set of excluded nodes, in any order; "" for none."""
    names = sorted(set(excluded))
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:8] if names else ""


def slug(text: str) -> str:
    """`text` as a file name: lower-case ASCII letters, digits, dots and hyphens.

    Where characters were lost, eight hex digits of the text's SHA-256 keep different texts apart.
    """
    safe = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:80]
    if safe == text:
        return safe
    data = text.encode("utf-8", "surrogatepass")  # a name of a file may be no UTF-8
    return f"{safe}-{hashlib.sha256(data).hexdigest()[:8]}".lstrip("-")


def configuration_id(engine: EngineSpec, requested_precision: Precision | None, measure: MeasureSpec) -> str:
    """Return the id of a configuration; no two share one.

    Engine with its options, precision with recipe, batch, scope, threads, cache; the shapes where a run has several,
    and the device where it is not the CPU.
    """
    return "-".join(_list_parts(engine, requested_precision, measure))


def _list_parts(engine: EngineSpec, requested_precision: Precision | None, measure: MeasureSpec) -> list[str]:
    name = slug(format_engine(engine)) if engine.options else engine.backend
    precision = format_precision(requested_precision, engine.recipe, engine.mix)
    parts = [name, escape_precision(precision).replace("@", ".")]
    parts += [f"b{engine.batch}", measure.scope, f"t{engine.threads}", measure.cache]
    if engine.traffic:
        parts.append(f"mix{len(engine.traffic)}-{hashlib.sha256(repr(engine.traffic).encode()).hexdigest()[:8]}")
    elif engine.shapes:
        parts.append(slug("_".join(f"{name}-{'x'.join(map(str, shape))}" for name, shape in engine.shapes.items())))
    if engine.device != "cpu":
        parts.append(engine.device.replace(":", ""))
    return parts


def find_configurations(text: str, results: Iterable[Result]) -> list[str]:
    """Return the ids that a shortened one matches: `ort-fp32`, `ort-int8@cpu-b8`. A whole id matches itself.

    What may be left out: the precision, its recipe, every setting behind it, and the options of an engine. The
    precision is the requested one, or where that matches none, the one that ran.
    """
    by_id = {result.id: result for result in results}
    if text in by_id:
        return [text]
    wanted = escape_precision(text).replace("@", ".")
    for loose in (False, True):
        for ran in (False, True):
            fits = [one for one, result in by_id.items() if _fits(wanted, result, loose=loose, ran=ran)]
            if fits:
                return fits
    return []


def _fits(text: str, result: Result, *, loose: bool, ran: bool) -> bool:
    wanted = result.engine.precision if ran else result.requested_precision
    name, precision, *settings = _list_parts(result.engine, wanted, result.measure)
    number, _, recipe = precision.partition(".")
    pattern = re.escape(result.engine.backend if loose else name)
    pattern += f"(-{re.escape(number)}" + (rf"(\.{re.escape(recipe)})?" if recipe else "") + ")?"
    return re.fullmatch(pattern + "".join(f"(-{re.escape(part)})?" for part in settings), text) is not None


def shorten_ids(configurations: Sequence[Any]) -> dict[str, str]:
    """Return {id: the shortest id that matches it alone}, without the settings that all configurations share.

    It names the precision that ran, unless another configuration has that id by its requested precision.
    """
    varied = [name for name in _SETTINGS if len({getattr(configuration, name) for configuration in configurations}) > 1]
    short = {configuration.id: configuration.id for configuration in configurations}
    for with_options in (True, False):
        by_requested, by_run = dict[str, str](), dict[str, str]()
        for one in configurations:
            by_requested[one.id] = _join_parts(one, one.requested_precision, varied, with_options)
            by_run[one.id] = _join_parts(one, one.precision, varied, with_options)
        count_requested, count_ran = Counter(by_requested.values()), Counter(by_run.values())
        for configuration in configurations:
            if by_run[configuration.id] not in count_requested and count_ran[by_run[configuration.id]] == 1:
                short[configuration.id] = by_run[configuration.id]
            elif count_requested[by_requested[configuration.id]] == 1:
                short[configuration.id] = by_requested[configuration.id]
    return short


# The parts of an id behind the precision, with the letter in front of each.
_SETTINGS = {"batch": "b", "scope": "", "threads": "t", "cache": ""}


def _join_parts(configuration: Any, precision: str | None, settings: Sequence[str], with_options: bool) -> str:
    name = configuration.engine.partition(":")[0]
    if with_options and ":" in configuration.engine:
        name = slug(configuration.engine)
    named = escape_precision(format_precision(precision, configuration.recipe, configuration.mix))
    return "-".join([name, named, *(f"{_SETTINGS[key]}{getattr(configuration, key)}" for key in settings)])


# Finished TensorRT engines, by the names that people give them.
PLAN_SUFFIXES = (".plan", ".engine", ".trt")
