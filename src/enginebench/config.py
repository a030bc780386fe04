"""Files of options in TOML: the one of --config, and the parts of it that the specification of a sweep shares."""

from __future__ import annotations

import json
import os
import re
import sys
import types
from collections import abc
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Struct

from enginebench.core.commands import quote_word
from enginebench.core.errors import ParseError, UsageError
from enginebench.core.store import DECODE_ERRORS, JsonObject, check_regular, explain_access
from enginebench.core.text import clean_text
from enginebench.options import Opt
from enginebench.runs.folder import OUTSIDE, REPEAT, hide_home
from enginebench.runs.trust import find_code_file, find_outside_option

if sys.version_info >= (3, 11):
    import tomllib as tomllib
else:
    import tomli as tomllib

T = TypeVar("T")

# A file of options is written by hand; one beyond this is something else.
LIMIT_BYTES = 1 << 20
# A dot parts a key, and the parser's memory grows with the square of its parts: a line of 100,000 takes all there is.
MOST_DOTS = 100


def read_toml(path: Path, what: str) -> JsonObject:
    """Read a TOML file; `what` it is stands in the message about another file."""
    with explain_access(f"cannot read {path}", f"Name the TOML file of {what}", UsageError):
        with check_regular(path).open("rb") as file:  # what a shell opened, as <(COMMAND), tells no size
            data = file.read(LIMIT_BYTES + 1)
    if len(data) > LIMIT_BYTES:
        raise UsageError(f"{path} is larger than {LIMIT_BYTES >> 20} MiB: that is no file of {what}")
    try:
        text = data.decode()
        for number, line in enumerate(text.split("\n"), start=1):
            if (dots := line.count(".")) > MOST_DOTS:
                raise ParseError(path, f"line {number}", f"{dots} dots", f"TOML with at most {MOST_DOTS} dots a line")
        document: JsonObject = tomllib.loads(text)
        return document
    except (ValueError, MemoryError, *DECODE_ERRORS) as error:
        raise ParseError(path, "", str(error) or type(error).__name__, "TOML") from error


def as_toml(kind: Any) -> Any:
    """The type of an option as TOML has it: a path is a text, and what can be gone through an array."""
    origin, inner = get_origin(kind), tuple(map(as_toml, get_args(kind)))
    if kind is object:  # MODEL or SIDE, which Python callers may give as objects
        return str
    if origin is None or origin is os.PathLike:
        return str if origin else kind
    if origin in (types.UnionType, Union):
        return Union[inner]  # noqa: UP007
    items = (*inner, ...)
    return dict[inner] if origin is abc.Mapping else tuple[items]  # type: ignore[valid-type,misc]


class OptionTable(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A table of options, each None where the file does not give it; they are checked as Python callers' are."""

    declared: ClassVar[Mapping[str, Opt]] = {}
    earlier: ClassVar[Mapping[str, str]] = {}  # how earlier versions spelt some

    def __post_init__(self) -> None:
        names = list_set_fields(self).keys()
        for old, new in self.earlier.items():
            if {old, new} <= names:
                raise ValueError(f"Expected one of {new} and {old}, got both")
        for name, value in self.list_options().items():
            try:
                self.declared[name].check(value)
            except UsageError as error:  # msgspec adds where in the file it is
                raise ValueError(f"Expected {self.declared[name].expect()}, got {name}={value!r:.80}") from error

    def list_options(self) -> dict[str, object]:
        """Return the options that the table sets, by name."""
        values = {self.earlier.get(name, name): value for name, value in list_set_fields(self).items()}
        return {name: value for name, value in values.items() if name in self.declared}


def list_set_fields(entry: Struct) -> dict[str, object]:
    return {name: value for name, value in msgspec.structs.asdict(entry).items() if value is not None}


def make_table(name: str, declared: Mapping[str, Opt], earlier: Mapping[str, str] | None = None) -> type[OptionTable]:
    """Make the type of a table with these options: `{key in the file: option}`."""
    # What `Opt.check` checks may come as anything.
    kinds = {n: Any if get_origin(o.kind) in (None, Literal) else as_toml(o.kind) | None for n, o in declared.items()}
    kinds |= {old: kinds[new] for old, new in (earlier or {}).items()}
    fields = [(key, kind, None) for key, kind in kinds.items()]
    space = {"declared": declared, "earlier": earlier or {}, "__doc__": f"Options of {name}."}
    made = msgspec.defstruct("Options", fields, bases=(OptionTable,), namespace=space, frozen=True, kw_only=True)
    assert issubclass(made, OptionTable)
    return made


def convert_table(path: Path, table: JsonObject, kind: type[T], *, key: str = "", page: str, names: Iterable[str]) -> T:
    """Convert what a TOML file holds below `key`.

    Args:
        page: of the documentation, which lists what may stand there.
        names: all keys that may stand there, of which the nearest to an unknown one is named.
    """
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$")
        raise _explain(path, table, text, (key and f".{key}") + where.rstrip("`"), page, [*names]) from error
    except RecursionError as error:
        raise ParseError(path, f"$.{key}" if key else "", "tables in tables", "options", f"See {page}") from error


def _explain(path: Path, value: Any, text: str, where: str, page: str, names: list[str]) -> ParseError:
    """The error at a place such as `.batches[0]`, with the wrong value, which msgspec does not always report."""
    json_path = where and f"${where}"
    if match := re.fullmatch(r"Expected (.*?)(?:, got (.*))?", text):
        for key, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", "" if match[2] else where):
            value = value[int(index)] if index else value[key]
        return ParseError(path, json_path, match[2] or repr(value)[:80], match[1].replace(" | null", ""), f"See {page}")
    unknown = re.fullmatch("Object contains unknown field `(.*)`", text)
    advice = "".join(f"Did you mean {name}? " for name in get_close_matches(unknown[1], names, 1)) if unknown else ""
    fault = text.replace("Object contains unknown", "an unknown").replace("Object missing required", "no")
    return ParseError(path, json_path, fault, "keys that belong there", f"{advice}See {page}")


def anchor_path(value: Any, folder: Path, words: Iterable[str] = ()) -> Any:
    """Return a path, or several, in full if it lies in the folder of the file that names it; `words` are no paths."""
    if isinstance(value, tuple):
        return tuple(anchor_path(one, folder, words) for one in value)
    if not isinstance(value, str) or not value or value in words:
        return value
    engine, at, target = value.rpartition("@")  # of a SIDE
    for before, path in (("", value), (engine + at, target)):
        anchored = folder / (Path(path).expanduser() if path.startswith("~/") else path)
        if anchored.exists():
            return before + str(anchored.absolute())
    return value


def takes_path(option: Opt) -> bool:
    """Whether an option names what is read, which may lie beside the file: what is written lies where the user is."""
    written = (option.path or "").startswith("new")
    return not written and (option.kind is object or "PathLike" in str(option.kind))


# Two spellings of one limit: the last one that is given decides.
DROPS = {"max_metric_drop", "max_top1_drop"}


def override(values: Mapping[str, object], own: Mapping[str, object]) -> dict[str, object]:
    """Return the options with those that go before them."""
    replaced = DROPS if DROPS & own.keys() else set[str]()
    return {name: value for name, value in values.items() if name not in replaced} | {**own}


def name_key(option: Opt) -> str:
    """The name of an option in a file: that of the command line, with underscores."""
    return (option.names or option.name).split("/")[0].removeprefix("--").replace("-", "_")


def read_options(path: Path, verb: str, declared: Iterable[Opt], verbs: Iterable[str]) -> dict[str, object]:
    """Read the options that a file gives a verb: {name of the option: its value, as Python callers give it}.

    Args:
        declared: what the verb takes, its arguments among them.
        verbs: the names that tables may have.

    Raises:
        UsageError: also where an option names code, a program or a library: that has to be typed.
    """
    try:
        tables = read_toml(path, "options")
        for name, table in tables.items():
            check_table(path, name, table, verb, [*verbs])
        if verb not in tables:
            listed = ", ".join(f"[{name}]" for name in tables) or "nothing"
            raise UsageError(f"{path} has no table [{verb}]; it has {listed}. Options of {verb} stand below [{verb}]")
        options = {name_key(option): option for option in declared}
        for key, value in tables[verb].items():
            if "" in list_texts(value):
                raise UsageError(f"{path}, $.{verb}.{key}: the text is empty; leave it out")
            if key in options:
                check_typed(f"{path}, $.{verb}.{key}", options[key], value)
        kind = make_table(verb, {key: option for key, option in options.items() if not option.typed})
        table = convert_table(path, tables[verb], kind, key=verb, page="docs/cli.md", names=options)
    except ParseError as error:
        raise UsageError(str(error)) from error
    return {options[key].name: anchor_option(options[key], v, path.parent) for key, v in list_set_fields(table).items()}


def check_table(path: Path, name: str, table: object, verb: str, verbs: list[str]) -> None:
    """Check that a file holds a table named as a verb."""
    if name in verbs and isinstance(table, dict):
        return
    if name not in verbs and isinstance(table, dict):
        near = "".join(f"; did you mean [{text}]?" for text in get_close_matches(name, verbs, 1))
        raise UsageError(f"{path}, $.{name}: no verb is named {name!r}{near or '. Each table is named as its verb'}")
    raise UsageError(f"{path}, $.{name}: found {table!r:.80}; expected a table. Options of {verb} stand below [{verb}]")


def list_texts(value: object) -> Iterator[str]:
    """List all texts in a value of a TOML file."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, abc.Mapping | abc.Iterable):
        for one in value.values() if isinstance(value, abc.Mapping) else value:
            yield from list_texts(one)


def check_typed(where: str, option: Opt, value: object) -> None:
    """Refuse what names code, a program or a library: only what the user types may."""
    texts = [*list_texts(value)]
    engine = next((text for text in texts if find_outside_option(text)), None)
    if option.typed or engine:
        what = f"its {find_outside_option(engine)}= names" if engine else "it names"
        raise UsageError(
            f"{where}: {what} code, a program or a library, which a file of options cannot do. If you trust it, "
            f"take it out of the file and type {format_typed(option, value)}"
        )


def format_typed(option: Opt, value: object) -> str:
    """Format what is typed to give an option this value."""
    if isinstance(value, abc.Mapping):
        value = [f"{key}={own}" for key, own in value.items()]
    words = [quote_word(hide_home(text)) for text in list_texts(value)]  # a stored file names no user
    flag = "" if option.argument else f"--{option.name.replace('_', '-')} "
    form = option.typed or f"{flag}{{}}"
    if option.multiple:
        return " ".join(map(form.format, words))
    return form.format((" " if option.typed else ",").join(words))


def anchor_option(option: Opt, value: object, folder: Path) -> object:
    return anchor_path(value, folder, OUTSIDE.get(option.name, ())) if takes_path(option) else value


def repeats(option: Opt) -> bool:
    """Whether the file that repeats a run holds an option: not where it is written, nor that it is continued."""
    return not (option.path or "").startswith("new") and option.name != "resume"


def names_code(option: Opt, value: object) -> bool:
    """Whether an option has this value from what the user typed alone."""
    texts = [*list_texts(value)]
    if option.argument and any(":" in text or find_code_file(Path(text)) for text in texts):
        return True
    if option.kind is object:  # a SIDE: ENGINE[:key=value]@TARGET, ENGINE, or a file
        sides = [text.rpartition("@") for text in texts]
        if any((at and ":" in target) or find_code_file(Path(target)) for _, at, target in sides):
            return True
    if option.name in ("metric", "inputs") and any(":" in text for text in texts):
        return True
    return bool(option.typed) or any(map(find_outside_option, texts))


def format_options_file(verb: str, values: Iterable[tuple[Opt, object]]) -> str:
    """The TOML file that repeats a command of `verb` with these options; what names code is left out, and said."""
    kept = [(option, value) for option, value in values if repeats(option)]
    typed = [(option, value) for option, value in kept if names_code(option, value)]
    lines = [f"# enginebench {verb} --config {REPEAT}"]
    if typed:
        typed.sort(key=lambda pair: (pair[0].typed or "").startswith("-- "))  # what follows is not ours: last
        words = " ".join(format_typed(option, value) for option, value in typed)
        lines += [clean_text(f"# A stored file names no code: type what is left out, {words}")]
    lines += ["", f"[{verb}]"]
    lines += [f"{name_key(option)} = {format_value(value)}" for option, value in kept if (option, value) not in typed]
    return "\n".join([*lines, ""])


def format_value(value: object) -> str:
    """Format a value as TOML has it."""
    if isinstance(value, abc.Mapping):
        return f"{{{', '.join(f'{format_value(str(key))} = {format_value(own)}' for key, own in value.items())}}}"
    if isinstance(value, str | os.PathLike):
        # Escapes of JSON are those of TOML, which wants one more and has no halves of characters.
        return json.dumps(hide_home(os.fspath(value)), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, abc.Iterable):
        return f"[{', '.join(map(format_value, value))}]"
    return json.dumps(value)
