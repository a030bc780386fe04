"""Format the commands that EngineBench prints: a verb with options that it has, so that the command runs when typed."""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TypeAlias

# An option and its value; None of a flag.
Choice: TypeAlias = tuple[str, str | None]

# The command line of this program, which runs keep; empty in a program of Python.
COMMAND: ContextVar[tuple[str, ...]] = ContextVar("COMMAND", default=())
# The verb, or the function of that name, that is running: advice names options of its own.
VERB: ContextVar[str] = ContextVar("VERB", default="run")

# Writes that command line as a file of options; None where there is none, or its verb takes no such file.
OPTIONS_FILE: ContextVar[Callable[[], str] | None] = ContextVar("OPTIONS_FILE", default=None)

# What runs a command in an environment that it keeps in its cache, by the folder of that environment.
RUNNERS = {"archive-v0": ("uvx", "--from"), "pipx": ("pipx", "run", "--spec")}

# Verb -> the options that few need: in the file of --config, and in Python, but not on the command line.
IN_FILE: dict[str, frozenset[str]] = {
    "run": frozenset({"cache", "calibration_method", "input_size", "load_p99_ms", "seed", "warnings", "wide"})
}
_MODEL_INPUTS = ("--inputs", "--input-shape", "--weights", "--ort-extension")
_TRIALS = ("--warmup", "--time-limit", "--iters", "--processes")
# Verb -> the options that printed commands may name. A test checks every verb and option against the parser.
OPTIONS: dict[str, frozenset[str]] = {
    "accuracy": frozenset({"--data", "--targets", "--task", "--no-wait", "--allow-code", *_MODEL_INPUTS}),
    "baseline save": frozenset(),
    "bench": frozenset(
        {
            *("--against", "--batch", "--builds", "--engine", "--dry-run", "--scope", "--no-wait", "--allow-code"),
            *_TRIALS,
            *_MODEL_INPUTS,
        }
    ),
    "bisect": frozenset({"--batch", "--scope", *_TRIALS, *_MODEL_INPUTS}),
    "build": frozenset(
        {"--batch", "--engine", "--precision", "--weak-typing", "--calib", "--calib-cache", "--dry-run", "--no-wait"}
    ),
    "calibrate": frozenset({"--batch", "--data", "--keep-batches", "--out", *_MODEL_INPUTS}),
    "deliver": frozenset({"--row", "--out", "--allow-code", "--allow-native-code"}),
    "diff": frozenset({"--data", "--inputs", "--targets", "--task"}),
    "drift": frozenset({"--task", "--locate", "--no-wait", "--allow-code", *_MODEL_INPUTS}),
    "env list": frozenset(),
    "env make": frozenset(),
    "export": frozenset({"--batch", "--dynamic-axes", "--dynamic-batch", *_MODEL_INPUTS}),
    "infer": frozenset({"--no-wait", *_MODEL_INPUTS}),
    "load": frozenset(
        {
            *("--duration", "--qps", "--find-capacity", "--max-batch", "--no-wait", "--resume", "--out"),
            *("--allow-code", *_MODEL_INPUTS),
        }
    ),
    "parse": frozenset(),
    "profile": frozenset({"--batch", "--no-wait", *_MODEL_INPUTS}),
    "quantize": frozenset({"--to", "--calib", "--calib-cache", "--inputs", "--ort-extension"}),
    "report": frozenset({"--warnings"}),
    "roofline": frozenset({"--quick", "--no-wait"}),
    "run": frozenset(
        {
            *("--batch", "--builds", "--data", "--targets", "--metric", "--scope", "--task", "--no-wait", "--resume"),
            *("--out", "--allow-code", "--precisions"),
            *_TRIALS,
            *_MODEL_INPUTS,
        }
    ),
    "stages": frozenset({"--batch", "--time-limit", "--no-wait", *_MODEL_INPUTS}),
    "sweep": frozenset({"--resume", "--out", "--no-wait"}),
    "tune": frozenset(
        {
            *("--batch", "--data", "--targets", "--metric", "--processes", "--task", "--time-budget", "--no-wait"),
            *("--resume", "--out", "--allow-code"),
            *_MODEL_INPUTS,
        }
    ),
}
# Verbs that show the results of another: their advice is for that one, usually `run`.
READERS = frozenset({"baseline save", "deliver", "report"})
# Options that provide real inputs, the most usual first.
REAL_INPUTS: tuple[tuple[str, str], ...] = (("--inputs", "F.npz"), ("--data", "DIR"))
PACKAGES = "lib/python*/site-packages"
_HOME = re.compile(r"~/(.+)", re.DOTALL)


def quote_word(word: str) -> str:
    """The word as a shell reads it; `~/` in front stays the home folder, as stored commands have it.

    What cannot be printed, such as the end of a line, stands as bytes in the quotes of bash and zsh.
    """
    if not word.isprintable():
        return f"$'{''.join(map(_escape, word))}'"
    if match := _HOME.fullmatch(word):
        return f"~/{shlex.quote(match[1])}"
    return shlex.quote(word)


def _escape(character: str) -> str:
    """A character as it stands between $' and '."""
    if character.isprintable():
        return f"\\{character}" if character in "\\'" else character
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


def tell_from_option(path: str) -> str:
    """The path with `./` in front where it begins as an option does."""
    return f"./{path}" if path.startswith("-") else path


def join_words(words: Iterable[str]) -> str:
    """A command line of these words, quoted where a shell needs it."""
    return " ".join(map(quote_word, words))


def format_choices(verb: str, options: Sequence[Choice]) -> str:
    """Options with their values, as they are typed; ValueError if the verb lacks one."""
    unknown = [name for name, _ in options if name not in OPTIONS[verb]]
    if unknown:
        raise ValueError(f"{verb} has no {', '.join(unknown)}, or core/commands.py does not list it")
    return join_words(word for name, value in options for word in ((name,) if value is None else (name, value)))


def format_command(verb: str, *arguments: str, options: Sequence[Choice] = ()) -> str:
    """A command of EngineBench that can be pasted into a shell.

    Args:
        verb: as in `OPTIONS`; of a verb with verbs of its own both words.
        arguments: of the verb, in their order. One that begins with a dash is a path.
        options: that the verb has; ValueError otherwise.
    """
    shown, start = format_choices(verb, options), join_words(list_starting_words(sys.prefix))
    return " ".join(filter(None, (f"{start} {verb}", join_words(map(tell_from_option, arguments)), shown)))


@cache
def list_starting_words(prefix: str, missing: tuple[str, ...] = ()) -> Sequence[str]:
    """List the words that start EngineBench: its name, or what a runner needs that made the environment for it alone.

    Args:
        prefix: of the environment, `sys.prefix`.
        missing: extras that it lacks.
    """
    runner = RUNNERS.get(Path(prefix).parent.name)
    if runner is None:
        return ("enginebench",)
    extras = ",".join(dict.fromkeys((*_list_extras(prefix), *missing)))
    origin = _read_origin(prefix)
    package = "enginebench" + (f"[{extras}]" if extras else "") + (f" @ {origin}" if origin else "")
    return (*runner, package, "enginebench")


def _list_extras(prefix: str) -> Sequence[str]:
    """List the extras whose packages an environment has."""
    from importlib.metadata import distributions  # needed in the environment of a runner alone

    places = [str(path) for path in Path(prefix).glob(PACKAGES)]
    # A folder that is left of a package has no name.
    packages = {_name(one.name): one for one in distributions(path=places) if one.name}
    needed: dict[str, set[str]] = {}
    for requirement in (packages["enginebench"].requires or ()) if "enginebench" in packages else ():
        name = _name(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])
        if (extra := re.search(r"""extra == ['"]([\w-]+)""", requirement)) and name != "enginebench":
            needed.setdefault(extra[1], set()).add(name)
    return [extra for extra, names in needed.items() if names <= packages.keys()]


def _name(package: str) -> str:
    """The name of a package as an index compares it."""
    return re.sub(r"[-_.]+", "-", package).lower()


def _read_origin(prefix: str) -> str:
    """Return the URL of the wheel or folder that this was installed from; "" where it came from an index by its name.

    Source: https://packaging.python.org/en/latest/specifications/direct-url
    """
    for path in Path(prefix).glob(f"{PACKAGES}/enginebench-*.dist-info/direct_url.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads(path.read_bytes())["url"])
    return ""


def advise_dynamic_batch() -> str:
    """The command that exports a model with an open batch, between backticks."""
    return f"`{format_command('export', 'MODEL', options=[('--dynamic-batch', None)])}`"


def list_own_options(options: Sequence[str]) -> list[str]:
    """Return the options that the running verb has; for a verb that shows results of another, those of `run`."""
    verb = VERB.get()
    own = OPTIONS.get("run" if verb in READERS else verb, frozenset())
    return [option for option in options if option in own]


def advise_inputs(verb: str | None = None) -> str:
    """Format advice such as `give --inputs F.npz, or --data DIR`, from options of the verb (default: the running)."""
    verb = verb or VERB.get()
    choices = [format_choices(verb, [choice]) for choice in REAL_INPUTS if choice[0] in OPTIONS.get(verb, ())]
    return f"give {', or '.join(choices)}" if choices else "use real inputs"


def name_flag(option: str, argument: str) -> str:
    """The option of the command line, or its name in Python where it is not there, as in a program of Python."""
    typed = COMMAND.get() and argument not in IN_FILE.get(VERB.get(), ())
    return option if typed else argument
