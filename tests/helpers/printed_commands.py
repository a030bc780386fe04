"""Commands and options that a text names, read by the program's own parser."""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from unittest import mock

import click

from enginebench import config
from enginebench import options as opts
from enginebench.core.commands import READERS
from enginebench.door import VERBS, list_other_verbs, program

# Verbs of the packages in plugins/, too, where they are installed.
KNOWN = [*VERBS, *list_other_verbs()]
NAMED = re.compile(rf"(?<![\w/.@-])enginebench(?: +(?:{'|'.join(KNOWN)}))(?![\w-])[^`\n]*")
# A word of a command: an option, a placeholder, a path, a pair; not a word of the sentence around it.
WORD = re.compile(r"(--?[a-z0-9][a-z0-9-]*(=.*)?|[A-Z0-9_.|]+|.*[./:=@~'\"*].*|\d+)")
OPTION = re.compile(r"(?<![\w/.=-])--[a-zA-Z][a-zA-Z0-9-]+")
# A command of this program whose name is left out: `export --dynamic-batch`.
SHORT = re.compile(rf"`(?:{'|'.join(KNOWN)})(?![\w-])[^`]*`")
# Options of other programs that a message names, which have no capital letter as those of trtexec do.
OTHERS = {"--workspace", "--fp16", "--onnx", "--verbose", "--shapes", "--iterations", "--duration", "--separate"}
MISSPELT = "--nosuch"  # on purpose, in a test of its refusal


def find_command(words: list[str]) -> tuple[click.Command, int]:
    """The command that words after `enginebench` call, and how many of them name it."""
    command = program.get_command(click.Context(program), words[0])
    assert command is not None, words
    if isinstance(command, click.Group) and len(words) > 1 and words[1] in command.commands:
        return command.commands[words[1]], 2
    return command, 1


def cut_command(text: str) -> list[str]:
    """The words of the command that a text begins with, up to where the sentence goes on."""
    text = re.split(r"[;)\]},.:?\"]+(?=\s|$)|\s[|#(>&]|\s--\s", text.strip())[0]
    try:
        words = shlex.split(text)[1:]
    except ValueError:  # an apostrophe of the sentence
        words = text.split()[1:]
    command, start = find_command(words)
    takes = {name for o in command.params if isinstance(o, click.Option) and not o.is_flag for name in o.opts}
    kept = words[:start]
    for before, word in zip(words[start - 1 :], words[start:], strict=False):
        if before not in takes and not WORD.fullmatch(word) and not _is_model(word):
            break
        kept.append(word)
    return kept


def _is_model(word: str) -> bool:
    from enginebench.models.zoo import BUILTIN

    return word in BUILTIN


def read_nothing(path: Path, verb: str, declared: Iterable[opts.Opt], verbs: Iterable[str]) -> dict[str, object]:
    """What a file of options that is written later would give: all that the verb needs."""
    return {option.name: "VALUE" for option in declared if option.argument or option.required}


def parse(words: list[str]) -> None:
    """Parse a command; the parser's exceptions are those of the program. Nothing is run, and no code allowed by it."""
    command, start = find_command(words)
    if len(words) == start:  # only the verb is named
        return
    with mock.patch.object(opts, "_allow", lambda names: None), mock.patch.object(config, "read_options", read_nothing):
        command.make_context(" ".join(words[:start]), words[start:])


def find_refusal(text: str) -> str | None:
    """Why the program does not take the command that a text begins with; None: it does."""
    words = cut_command(text)
    try:
        parse(words)
    except click.exceptions.Exit:
        return None
    except (click.ClickException, opts.UsageError) as error:
        return f"enginebench {shlex.join(words)}: {error}"
    return None


def list_own(words: list[str]) -> set[str]:
    """The options of the command that the words call."""
    command, _ = find_command(words)
    commands = command.commands.values() if isinstance(command, click.Group) else [command]
    options = {name for one in commands for o in one.params for name in (*o.opts, *o.secondary_opts)}
    return options | {"--help"}


def list_foreign(text: str, own: set[str]) -> list[str]:
    """The options that a text names, outside of a whole command, and that are not among `own`."""
    named = OPTION.findall(SHORT.sub("", NAMED.sub("", text)))
    return [name for name in named if name not in own | OTHERS and name.lower() == name]


def list_printed_commands(lines: Iterable[str]) -> Iterator[str]:
    """The commands that printed lines name, but for click's usage lines and for that of the process with the lock."""
    for line in lines:
        if "Usage: " not in line and "--help'" not in line and "another run is measuring" not in line:
            yield from (match[0] for match in NAMED.finditer(line))


def find_faults(command: str, lines: Sequence[str]) -> list[str]:
    """What a command printed that fails when it is typed: commands, and options that its verb does not have."""
    refusals = map(find_refusal, list_printed_commands(lines))
    faults = [f"prints a command that fails: {refusal}" for refusal in refusals if refusal]
    called = re.search(r"enginebench +([^|;]*)", command)
    words = called[1].split() if called else []
    if not words or words[0] not in KNOWN or "--help" in words:
        return faults
    # What another verb measured is shown with the options of that one.
    own = list_own(words) | (list_own(["run"]) if words[0] in READERS else set()) | {MISSPELT}
    for line in lines:
        if "trtexec" not in line and "pip install" not in line:
            faults += [f"names an option that {words[0]} lacks: {name}: {line}" for name in list_foreign(line, own)]
    return faults
