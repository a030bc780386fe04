"""The command `enginebench`: makes click's commands of records of options; errors become messages and exit codes."""

from __future__ import annotations

import errno
import inspect
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import click
from click.core import ParameterSource

from enginebench import __version__
from enginebench.core.commands import COMMAND, IN_FILE, OPTIONS_FILE, VERB, join_words, list_starting_words
from enginebench.core.errors import (
    ArtifactError,
    DependencyError,
    EngineBenchError,
    MeasurementError,
    UsageError,
    explaining,
)
from enginebench.core.features import Plugin, Verb, check_separate, find_plugins, list_brought, list_verbs, load_plugin
from enginebench.core.text import (
    TIME,
    clean_lines,
    clean_text,
    escape_json,
    find_failure,
    list_or,
    open_standard,
    parse_seconds,
)

if TYPE_CHECKING:
    from msgspec import Struct
    from rich.console import Console

    from enginebench.options import Opt
    from enginebench.report.table import Section

D = TypeVar("D", bound="Struct")
INTERRUPTED = 130
# Characters of a word in a message: beyond what a path may have on Linux (PATH_MAX) it is cut to the shorter length.
LONGEST_WORD, LONGEST_NAME = 4096, 200
# A full disk, a quota, or a device that fails under what is printed.
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)
# No file descriptor, process or memory is left to this process, or to the system.
FULL = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
RAISE_LIMIT = "End other programs, or raise the limit of this shell (ulimit -n 1024, ulimit -u, ulimit -v)"

# Those of the kernel, then those of features; the groups of --help stand in the order in which they first appear.
VERBS = {
    verb.name: verb if verb.module else verb._replace(module=f"enginebench.verbs.{verb.name}")
    for verb in (
        Verb("run", "Find", "Find the fastest engine that still gives the same outputs."),
        Verb("bench", "Find", "Measure one engine; with --against, compare it with another."),
        Verb("models", "Find", "List the built-in models."),
        Verb("doctor", "Find", "Show which engines can run here and how to get the others."),
        Verb("export", "Deploy", "Export a PyTorch model to ONNX and check it against PyTorch."),
        Verb("calibrate", "Deploy", "Find the range of every tensor of a model over real inputs."),
        Verb("quantize", "Deploy", "Convert an ONNX graph to another precision."),
        Verb("build", "Deploy", "Build an engine file from an ONNX file."),
        Verb("infer", "Deploy", "Run one engine on your own arrays."),
        Verb("report", "Understand", "Write a report on a stored run or on trtexec's files."),
        Verb("drift", "Understand", "Compare the outputs of two engines for the same inputs."),
        Verb("accuracy", "Understand", "Measure accuracy on labelled data, with intervals."),
        Verb("profile", "Understand", "Show where an engine spends its time, layer by layer."),
        Verb("stages", "Understand", "Time every stage from JPEG file to label."),
        Verb("diff", "Guard (CI)", "Compare two stored runs; --gate is for CI."),
        Verb("baseline", "Guard (CI)", "Save runs under a name, to compare later runs with."),
        Verb("history", "Guard (CI)", "List every run under a folder, with trends."),
        *list_verbs(),
    )
}


def starting(verb: str | None) -> AbstractContextManager[None]:
    """Report a failed import of a verb as a damaged installation: EngineBench installs what verbs import."""
    cure = "A package that it needs is missing or damaged; install it again: pip install --force-reinstall enginebench"
    failed = f"{verb} cannot start"
    return explaining(DependencyError, failed, ImportError, describe=lambda e: f"{type(e).__name__}: {e}", cure=cure)


def list_other_verbs() -> dict[str, Plugin]:
    """Return the verbs of other packages by name; nothing of them is imported."""
    brought = list_brought({f"verb.{name}" for name in VERBS})
    used = [plugin for plugin in brought if plugin.fault is None]
    return {plugin.name.removeprefix("verb."): plugin for plugin in used if plugin.name.startswith("verb.")}


def format_package(plugin: Plugin) -> str:
    """Format what the package of a verb says about itself: to ask the verb would import it."""
    return f"{clean_text(plugin.summary)} ({plugin.package})" if plugin.summary else plugin.package


def load_command(plugin: Plugin) -> click.Command:
    """Import the verb of another package."""
    command = load_plugin(plugin)
    if not isinstance(command, click.Command):
        raise DependencyError(
            f"{plugin.package} cannot be used: {plugin.place}, its {plugin.name}, is of type "
            f"{type(command).__name__}; expected a click.Command. Repair or uninstall the package"
        )
    return command


class LazyGroup(click.Group):
    """A group whose verbs are imported only when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*VERBS, *list_other_verbs()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return next(map(load_command, find_plugins(f"verb.{cmd_name}")), None)
        with starting(cmd_name):
            command: click.Command = import_module(VERBS[cmd_name].module).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a verb as click does; an unknown one is refused with verbs of similar spelling."""
        name = args[0] if args else "-"
        names = [*VERBS] if name in VERBS or name.startswith("-") else self.list_commands(ctx)
        if name not in names and not name.startswith("-"):
            check_separate("verb", name)
            from difflib import get_close_matches  # needed only for a mistyped name

            near = get_close_matches(name, names, n=len(names))
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {list_or(near)}?" if near else ""))
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse empty texts, which a path would take for the current folder; behind `--` they are a tool's own."""
        own = args[: args.index("--")] if "--" in args else args
        for before, arguments in zip(["enginebench", *own], own, strict=False):
            if any(0xD800 <= ord(character) <= 0xDFFF for character in arguments):
                raise UsageError(format_unencodable(arguments))
            if not arguments or re.fullmatch("--[a-z0-9-]+=", arguments):
                what = arguments.rstrip("=") or (before if before.startswith("-") else f"the argument after {before}")
                raise UsageError(f"{what}: the text is empty. Is a shell variable unset? Otherwise leave it out")
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, VERBS))
        for group in dict.fromkeys(verb.group for verb in VERBS.values()):
            with formatter.section(group):
                formatter.write_dl([(f"{v.name:{width}}", v.sentence) for v in VERBS.values() if v.group == group])
        packages: dict[str, list[str]] = {}
        for name, plugin in list_other_verbs().items():
            packages.setdefault(format_package(plugin), []).append(name)
        if packages:
            with formatter.section("Of other packages"):
                formatter.write_dl([(f"{', '.join(names):{width}}", text) for text, names in packages.items()])


# Of trtexec: others of its options have capitals in their names, and ours have none.
_OF_TRTEXEC = re.compile("[A-Z]|fp16|fp8|bf16|int8|best|shapes|onnx")
_BEHIND = "Give trtexec's options after --, as in -- --sparsity=enable. Of our own are --precision, --opt-shapes, --out"


@click.group(
    "enginebench", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="enginebench")
def program() -> None:
    """Find the fastest inference engine that still gives the same outputs.

    Example: enginebench run digits-cnn

    A model is a built-in name (`enginebench models` lists them), timm:NAME, hf:NAME, an .onnx or .pt2 file, or
    package.module:factory.
    """


def main(args: list[str] | None = None) -> None:
    """Run the command line and end the process with the exit code of the contract."""
    open_standard()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` leaves it
            signal.signal(number, _interrupt)
    try:
        code = program.main(args=args, prog_name="enginebench", standalone_mode=False)
        if failure := find_failure():
            raise failure
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        if isinstance(error, click.NoSuchOption) and _OF_TRTEXEC.search(error.option_name):
            click.echo(_BEHIND, err=True)
        code = 2
    except (KeyboardInterrupt, click.Abort) as error:
        # By what was interrupted, if it has stored anything. Click raises its own error from that of the interrupt.
        kept: list[str] = getattr(error.__cause__ or error, "__notes__", [])
        click.echo("; ".join(["interrupted", *kept]), err=True)
        code = INTERRUPTED
    except EngineBenchError as error:
        # Prints the message and the last output of a child, if any, without control characters.
        click.echo(f"error: {shorten_names(clean_lines(str(error)))}", err=True)
        if tail := getattr(error, "stderr_tail", ""):
            click.echo("its last output:", err=True)
            for line in clean_lines(tail).splitlines()[-20:]:
                click.echo(f"  {line}", err=True)
        words = sys.argv[1:] if args is None else args
        if again := format_with_extras(str(error), sys.prefix, words):
            click.echo(f"This environment is temporary: pip adds nothing to it. Instead: {again}", err=True)
        code = error.exit_code
    except UnicodeEncodeError as error:
        click.echo(f"error: {format_unencodable(error.object)}", err=True)
        code = ArtifactError.exit_code
    except OSError as error:
        # If the reader of a pipe has gone (`| head`), there is nobody to report to. Else a disk may be full.
        code = 0
        if error.errno in FULL:
            click.echo(f"error: the system's limit is reached: {error.strerror}. {RAISE_LIMIT}", err=True)
            code = MeasurementError.exit_code
        elif error.errno in UNWRITABLE:
            click.echo(f"error: the output cannot be written: {error.strerror}", err=True)
            code = ArtifactError.exit_code
        elif error.filename is not None:  # a path that no part of the verb has explained: too long, a loop of links
            click.echo(f"error: {format_inaccessible(error)}", err=True)
            code = ArtifactError.exit_code
        elif not isinstance(error, BrokenPipeError):
            raise
    except RuntimeError as error:
        if not str(error).startswith("Symlink loop"):  # as pathlib says it before Python 3.13
            raise
        click.echo(f"error: cannot access a path: {clean_text(str(error))}. Check the link", err=True)
        code = ArtifactError.exit_code
    sys.exit(code if isinstance(code, int) else 0)


def format_with_extras(message: str, prefix: str, arguments: Sequence[str]) -> str | None:
    """Format the command again with the extras that a message names, if a runner made the environment for it alone."""
    missing = dict.fromkeys(re.findall(r"enginebench\[([\w,-]+)\]", message))
    words = list_starting_words(prefix, tuple(missing))
    return join_words([*words, *arguments]) if missing and len(words) > 1 else None


def format_inaccessible(error: OSError) -> str:
    """Format the system's error for a path."""
    path_text = error.filename
    name = clean_text(os.fsdecode(path_text) if isinstance(path_text, str | bytes) else str(path_text))
    return f"cannot access {shorten_names(name)}: {error.strerror}. Check the path"


def shorten_names(text: str) -> str:
    """Cut words that are longer than any name of a file can be: a terminal need not show a million characters."""
    return re.sub(
        rf"\S{{{LONGEST_WORD},}}", lambda match: f"{match[0][:LONGEST_NAME]}... ({len(match[0])} characters)", text
    )


def format_unencodable(text: str) -> str:
    """Format the error for a text with bytes of another encoding, such as the name of a file."""
    return (
        f"{text!a} is no text in this system's encoding ({sys.getfilesystemencoding()}), so it cannot be stored or "
        "printed. Rename the file or folder, or set LC_ALL to the encoding of its name, such as C.UTF-8"
    )


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class FiniteRange(click.FloatRange):
    """A range of floats without nan, which passes every comparison of a range, and without infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, if it is one and lies in the range."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class SecondsRange(FiniteRange):
    """A range of seconds, also in other units: 200ms, 90s, 20m, 1.5h."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds, if the text is a time and lies in the range."""
        seconds = parse_seconds(value) if isinstance(value, str) else value
        try:
            return super().convert(float(value) if seconds is None else seconds, param, ctx)
        except ValueError:
            self.fail(f"{value!r} is no time; expected seconds, or a time such as 200ms, 90s or 20m", param, ctx)


def choose_type(option: Opt) -> Any:
    """Return the click type that parses the text of an option."""
    low: Any = option.ge if option.gt is None else option.gt
    high: Any = option.le if option.lt is None else option.lt
    if get_origin(option.kind) is Literal:
        return click.Choice(get_args(option.kind))
    if option.choices:
        return click.Choice(option.choices)
    if option.kind is int:
        return click.IntRange(low, high)
    if option.kind is float:
        kind = SecondsRange if option.metavar == TIME else FiniteRange
        return kind(low, high, min_open=option.gt is not None, max_open=option.lt is not None)
    if option.path is not None:
        return click.Path(dir_okay="file" not in option.path, file_okay="folder" not in option.path)
    return click.STRING


def make_click(option: Opt) -> click.Option:
    """The option of the command line."""
    flag, then = option.kind is bool, option.then

    def allow(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if then is not None and value:
            then(value)
            context.meta.setdefault(ALLOWED, {})[option.name] = value

    return click.Option(
        [option.name, option.names or f"--{option.name.replace('_', '-')}"],
        **({"required": True} if option.required else {"default": option.default}),
        help=option.help,
        metavar=option.metavar,
        multiple=option.multiple,
        is_flag=flag,
        type=None if flag else choose_type(option),
        show_default=not flag and option.default not in (None, (), ""),
        callback=None if then is None else allow,
        expose_value=then is None,
    )


def make_argument(argument: inspect.Parameter, metavar: str) -> click.Argument:
    """The argument of the command line: one text, or any number where it takes a tuple; `[NAME]` may be left out."""
    several = str(argument.annotation).startswith("tuple")
    required = not metavar.startswith("[") and (metavar.endswith("...") or not several)
    return click.Argument([argument.name], metavar=metavar, required=required, nargs=-1 if several else 1)


def describe_argument(argument: inspect.Parameter, metavar: str) -> Opt:
    """Describe an argument as an option, whose name in a file is that of the help: MODEL is `model`."""
    from enginebench.options import Opt

    key = re.sub("[^A-Z].*", "", metavar.lstrip("[")).lower()
    several = str(argument.annotation).startswith("tuple")  # those of another program
    return Opt("", name=argument.name, names=key, kind=object, argument=True, typed="-- {}" if several else "")


# Where click's context holds the options of the file of --config.
FROM_FILE = "enginebench.config"
# What the user allowed, by the name of the option: no function takes it, and the file that repeats a command says it.
ALLOWED = "enginebench.allowed"


def load_options(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Read the file of --config. Click takes from it what is required; `take_options` all that was not typed."""
    if path is None:
        return
    from enginebench.config import read_options

    command = context.command
    assert isinstance(command, GroupedCommand)
    options = read_options(Path(path), command.name or "", command.in_file, [*VERBS, *list_other_verbs()])
    required = {one.name for one in command.params if one.required}
    context.meta[FROM_FILE] = options
    context.default_map = {name: value for name, value in options.items() if name in required}


def take_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a command with those of its file of options, where none was typed."""
    from enginebench.config import override

    context = click.get_current_context()
    source = ParameterSource.COMMANDLINE
    typed = {name: value for name, value in values.items() if context.get_parameter_source(name) is source}
    return {**values, **override(context.meta[FROM_FILE], typed)}


def repeat_options(verb: str, options: Sequence[Opt], values: Mapping[str, object]) -> str:
    """The file of options that repeats a command with these values, without those that it has by default."""
    from enginebench.config import format_options_file

    pairs = [(option, values.get(option.name, option.default)) for option in options]
    return format_options_file(verb, [(option, value) for option, value in pairs if value not in (option.default, ())])


def make_config(option: Opt) -> click.Option:
    """The option --config, which is read before all others."""
    made = make_click(option)
    made.is_eager, made.expose_value, made.callback = True, False, load_options
    return made


# A command with more options than this shows them in groups.
MANY_OPTIONS = 20


class GroupedCommand(click.Command):
    """A command whose --help shows the options that most people need first, the others in named groups."""

    first: Sequence[str] = ()
    groups: Mapping[str, str] = {}
    declared: Mapping[str, Opt] = {}
    in_file: Sequence[Opt] = ()  # what a file of options may give, arguments among them

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        if len(options) <= MANY_OPTIONS:
            super().format_options(ctx, formatter)
            return
        index = {name: i for i, name in enumerate(self.first)}
        options.sort(key=lambda option: index.get(option.name or "", len(index)))
        sections: dict[str, list[tuple[str, str]]] = {"Most used": [], "Of this command": []}
        for option in options:
            name = "help" if "--help" in option.opts else option.name or ""
            title = "Most used" if name in index else self.groups.get(name, "Of this command")
            if record := option.get_help_record(ctx):
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def command(
    function: Callable[..., Any] | None,
    *metavars: str,
    shown: type | None = None,
    name: str = "",
    first: Sequence[str] = (),
) -> Callable[[Callable[..., None]], click.Command]:
    """The command of a verb, with the arguments of `body`, the options of `function`, and those of `shown`.

    Args:
        function: what `options.verb` made; it lends its docstring to the help. None: Python callers have no such verb.
        metavars: names of the arguments in the help; `[NAME]` may be left out.
        shown: record of what the command line alone has.
        first: names of the options that most people need, in the order of --help.
    """
    from enginebench.options import (
        Configured,
        Printed,
        Shared,
        list_all_options,
        list_options,
        name_groups,
        sort_options,
    )

    def make(body: Callable[..., None]) -> click.Command:
        own: dict[str, Opt] = vars(function).get("options", {}) if function else {}
        absent: dict[str, Any] = vars(function).get("absent", {}) if function else {}
        printed = list_options(shown or Printed)
        usual = {option.name: option.default for option in list_all_options(shown or Printed).values()}
        declared_options, takes = own | printed, inspect.signature(body).parameters
        arguments = [make_argument(argument, text) for argument, text in zip(takes.values(), metavars, strict=False)]
        configured = list_options(Configured) if own.keys() >= list_options(Shared).keys() else {}
        verb_name = name or getattr(function, "__name__", "")
        declared = [option for option in sort_options(declared_options | configured).values() if not option.program]
        file_only = [option for option in declared if option.name in IN_FILE.get(verb_name, ())]
        described = [describe_argument(a, text) for a, text in zip(takes.values(), metavars, strict=False)]
        in_file = [*described, *(option for option in declared_options.values() if option.typed or not option.program)]

        def call(**values: Any) -> None:
            values = {option.name: option.default for option in file_only} | values
            if FROM_FILE in click.get_current_context().meta:
                values = take_options(values)
            values = {
                key: declared_options[key].check(value) if key in declared_options else value
                for key, value in values.items()
            }
            COMMAND.set(("enginebench", *sys.argv[1:]))
            allowed: dict[str, object] = click.get_current_context().meta.get(ALLOWED, {})
            format_file = partial(repeat_options, verb_name, in_file, values | allowed)
            kept = usual | {key: values[key] for key in printed if key in values}
            values = {key: value for key, value in values.items() if key not in printed}
            hidden = {o.name: True if o.name == "progress" else o.default for o in own.values() if o.program}
            before = VERB.set(made.name or VERB.get())
            file_before = OPTIONS_FILE.set(format_file if configured else None)
            try:
                with starting(made.name):
                    body(**values, **hidden, **absent, shown=kept)
            finally:
                VERB.reset(before)
                OPTIONS_FILE.reset(file_before)

        text = re.split(r"\n(?:Args|Raises):\n", inspect.getdoc(body) or inspect.getdoc(function) or "")[0].strip()
        typed = [option for option in declared if option not in file_only]
        params = [*arguments, *(make_config(o) if o.name in configured else make_click(o) for o in typed)]
        made = GroupedCommand(verb_name, params=params, callback=call, help=text)
        made.first, made.groups = first, name_groups([*(option.name for option in typed), "help"])
        made.declared, made.in_file = {option.name: option for option in declared}, in_file
        if file_only:
            names = ", ".join(option.name for option in file_only)
            made.epilog = f"Few need these, which stand in the file of --config alone: {names}."
        return made

    return make


def group(name: str, *commands: click.Command, help: str) -> click.Group:
    """The command of a verb that has several."""
    return click.Group(name, {command.name or "": command for command in commands}, help=help)


def print_json(document: Struct) -> None:
    """Print a record as JSON, with escapes where standard output has another encoding."""
    from enginebench.core.store import encode

    click.echo(escape_json(encode(document).decode()))


def show(document: D, shown: Mapping[str, Any], draw: Callable[[D, Console], None]) -> None:
    """Print the JSON document, or the tables."""
    from rich.console import Console

    if shown["as_json"]:
        print_json(document)
    else:
        draw(document, Console(highlight=False))


def tables(list_sections: Callable[[D], Sequence[Section]]) -> Callable[[D, Console], None]:
    """Make a function that draws the sections which a function lists for a document."""

    def draw(document: D, console: Console) -> None:
        from enginebench.report.terminal import print_sections

        print_sections(list_sections(document), console)

    return draw


def write(document: Struct, out: str | None, write_all: Callable[[Path], list[Path]]) -> Path | None:
    """Write one JSON file, or all files into a folder; the paths go to stderr. The folder, if it was one."""
    from enginebench.core.store import write_document

    if out is None:
        click.echo("Nothing written; --out DIR writes all files, --out F.json the document.", err=True)
        return None
    written = Path(out)
    single = written.suffix.lower() == ".json" and not written.is_dir()
    for path in [write_document(document, written)] if single else write_all(written):
        click.echo(str(path), err=True)
    return None if single else written


def draw(make: Callable[[], dict[str, Any]], path: Path) -> None:
    """Write a chart as a picture; without the extra `report`, say how to get it."""
    from enginebench.core.errors import MissingDependency
    from enginebench.core.store import write_atomic
    from enginebench.report.charts import render_png

    try:
        write_atomic(path, render_png(make()))
        click.echo(str(path), err=True)
    except MissingDependency as error:
        click.echo(f"{path.name} was not drawn: {error}", err=True)
