"""The command `enginebench`: loads a verb when it is called and turns errors into messages and exit codes."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from importlib import import_module
from types import FrameType

import click

from enginebench import __version__
from enginebench.core.errors import ArtifactError, EngineBenchError, UsageError
from enginebench.core.text import clean_lines

INTERRUPTED = 130
# A full disk, a quota, or a device that fails under what is printed.
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

# What each verb does. The texts are here so that --help imports no verb; a test checks them.
SENTENCES = {
    "run": "Find the fastest engine for a model that still gives the same answers.",
    "deliver": "Write a row of a run as a folder that runs without EngineBench.",
    "tune": "Search the settings of every engine for the fastest with the same answers.",
    "bench": "Measure one engine; with --against, compare it with another.",
    "load": "Measure latency under arrivals, and the rate at which a limit breaks.",
    "build": "Build an engine file from an ONNX file.",
    "export": "Export a PyTorch model to ONNX and check it against PyTorch.",
    "calibrate": "Find the range of every tensor of a model over real inputs.",
    "quantize": "Convert an ONNX graph to another precision.",
    "drift": "Compare the answers that two engines give to the same inputs.",
    "accuracy": "Measure accuracy on labelled data, with intervals.",
    "profile": "Show where an engine spends its time, layer by layer.",
    "infer": "Run one engine on your own arrays.",
    "budget": "Bound the speed-up of an accelerator behind a link.",
    "fpga": "Simulate, synthesize or serve an INT8 network behind a UART.",
    "models": "List the built-in models.",
    "stages": "Time every stage from JPEG file to label.",
    "roofline": "Measure what this machine can do at best, for run and profile.",
    "doctor": "Show which engines can run here and how to get the others.",
    "env": "Make environments with other versions of a runtime, to compare them.",
    "bisect": "Find the first version of a package that is slower or answers otherwise.",
    "sweep": "Measure many models on many machines, here or on a Ray cluster.",
    "report": "Write a report on a stored run or on trtexec's files.",
    "diff": "Compare two stored runs, row by row; --gate is for CI.",
    "baseline": "Save runs under a name, to compare later runs with.",
    "history": "Show every run under a folder, as a table and as trends.",
    "parse": "Read the logs, times, profiles and layers of trtexec 8 to 11.",
}
# verb -> (its file, which is imported when it is called; what it does)
VERBS = {verb: (f"enginebench.cli.verbs.{verb}", sentence) for verb, sentence in SENTENCES.items()}


class LazyGroup(click.Group):
    """A group whose verbs are imported only when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, _ = VERBS[cmd_name]
        command: click.Command = import_module(module).command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuses empty texts, which a path would take for the current folder; behind `--` they are a tool's own."""
        own = args[: args.index("--")] if "--" in args else args
        for before, given in zip(["enginebench", *own], own, strict=False):
            if not given or re.fullmatch("--[a-z0-9-]+=", given):
                what = given.rstrip("=") or before
                raise UsageError(f"{what}: the text is empty. Is a variable of the shell unset? Else leave {what} out")
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="enginebench")
def group() -> None:
    """Find the fastest inference engine that still gives the same answers.

    Example: enginebench run digits-cnn

    A model is a built-in name (`enginebench models` lists them), timm:NAME, a path to an .onnx file, or
    package.module:factory.
    """


def main(args: list[str] | None = None) -> None:
    """Runs the command line and ends the process with the exit code of the contract."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` leaves it
            signal.signal(number, _interrupt)
    try:
        code = group.main(args=args, prog_name="enginebench", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = 2
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; all measurements so far are kept", err=True)
        code = INTERRUPTED
    except EngineBenchError as error:
        _show_error(error)
        code = error.exit_code
    except OSError as error:
        # The reader of a pipe has gone (`| head`): nobody is left to tell. Else what is printed does not fit anywhere.
        gone = isinstance(error, BrokenPipeError)
        if not gone and error.errno not in UNWRITABLE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not gone:
            click.echo(f"error: the output cannot be written: {error.strerror}", err=True)
        code = 0 if gone else ArtifactError.exit_code
    sys.exit(code if isinstance(code, int) else 0)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _show_error(error: EngineBenchError) -> None:
    """Prints the message and the last output of a child, if any, without control characters."""
    click.echo(f"error: {clean_lines(str(error))}", err=True)
    if tail := getattr(error, "stderr_tail", ""):
        click.echo("its last output:", err=True)
        for line in clean_lines(tail).splitlines()[-20:]:
            click.echo(f"  {line}", err=True)
