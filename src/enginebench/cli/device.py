"""The value of `--device`."""

from __future__ import annotations

import click

from enginebench.core.errors import UsageError
from enginebench.workflow.request import parse_device


def read_device(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """`cpu` or `cuda:N` (`cuda` is `cuda:0`), as an option's callback.

    Raises:
        click.BadParameter: it is neither; a typing error is reported before anything is loaded.
    """
    try:
        return parse_device(value)
    except UsageError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def read_gpu(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Like `read_device`, but only a GPU will do.

    Raises:
        click.BadParameter: it is the CPU, or neither.
    """
    device = read_device(ctx, param, value)
    if device == "cpu":
        raise click.BadParameter("plans are built on a GPU; give cuda:N, for example cuda:0", ctx, param)
    return device
