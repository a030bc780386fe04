"""The command `enginebench`: verbs loaded when they are called, errors turned into messages and exit codes."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from types import FrameType

import click

from enginebench import __version__
from enginebench.core.errors import EngineBenchError
from enginebench.core.text import clean_lines

INTERRUPTED = 130

# verb -> (module, what it does). The texts stand here so that --help imports no verb; a test holds them to the verbs.
VERBS = {
    "run": ("enginebench.cli.run", "Find the fastest engine for a model that still gives the same answers."),
    "bench": ("enginebench.cli.bench", "Measure one engine; with --against, compare it with another."),
    "build": ("enginebench.cli.build", "Build an engine file from an ONNX file."),
    "export": ("enginebench.cli.export", "Export a PyTorch model to ONNX, checked against PyTorch."),
    "calibrate": ("enginebench.cli.calibrate", "Find the ranges of a model's tensors over real inputs."),
    "quantize": ("enginebench.cli.quantize", "Write an ONNX graph in another precision."),
    "drift": ("enginebench.cli.drift", "Compare the answers of two engines to the same inputs."),
    "accuracy": ("enginebench.cli.accuracy", "Count right answers on labelled data, with intervals."),
    "profile": ("enginebench.cli.profile", "Show where the time of an engine goes, layer by layer."),
    "infer": ("enginebench.cli.infer", "Run one engine on your own arrays."),
    "budget": ("enginebench.cli.budget", "Say what an accelerator behind a link can bring at most."),
    "fpga": ("enginebench.cli.fpga", "Simulate, synthesize and serve an INT8 network behind a UART."),
    "models": ("enginebench.cli.models", "List the built-in models."),
    "stages": ("enginebench.cli.stages", "Time a model from JPEG file to label, stage by stage."),
    "doctor": ("enginebench.cli.doctor", "Show what can run here, and what adds the rest."),
    "report": ("enginebench.cli.report", "Write page, tables and pictures of a stored run, or of trtexec."),
    "diff": ("enginebench.cli.diff", "Compare two stored runs, row by row; --gate for CI."),
    "baseline": ("enginebench.cli.baseline", "Keep runs under a name, to compare later ones to."),
    "history": ("enginebench.cli.history", "Show all runs under a folder as a table and trends."),
    "parse": ("enginebench.cli.parse", "Read what trtexec 7 to 11 wrote: logs, times, profiles, layers."),
}


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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="enginebench")
def group() -> None:
    """Find the fastest inference engine that still gives the same answers.

    Start with: enginebench run MODEL. MODEL is a built-in name (see `enginebench models`), timm:NAME, a path to an
    .onnx file, or package.module:factory.
    """


def main(args: list[str] | None = None) -> None:
    """Runs the command line and ends the process with the exit code of the contract."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = group.main(args=args, prog_name="enginebench", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = 2
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; what was measured is kept", err=True)
        code = INTERRUPTED
    except EngineBenchError as error:
        _show_error(error)
        code = error.exit_code
    except BrokenPipeError:
        # The reader of a pipe has gone (`| head`): nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _show_error(error: EngineBenchError) -> None:
    """The message, and below it the last words of a child, if there were any; control characters removed."""
    click.echo(f"error: {clean_lines(str(error))}", err=True)
    if tail := getattr(error, "stderr_tail", ""):
        click.echo("its last output was:", err=True)
        for line in clean_lines(tail).splitlines()[-20:]:
            click.echo(f"  {line}", err=True)
