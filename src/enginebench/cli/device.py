"""The value of `--device`."""

from __future__ import annotations

import re

import click

_NAME = re.compile(r"cpu|cuda(?::(\d{1,3}))?")


def read_device(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """`cpu` or `cuda:N` (`cuda` is `cuda:0`), as an option's callback.

    Raises:
        click.BadParameter: it is neither; a typing error is told before anything is loaded.
    """
    found = _NAME.fullmatch(value.strip().lower())
    if found is None:
        raise click.BadParameter(f"{value!r} is neither cpu nor cuda:N, such as cuda:0", ctx, param)
    return "cpu" if found[0] == "cpu" else f"cuda:{int(found[1] or 0)}"


def read_gpu(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """As `read_device`, where only a GPU will do.

    Raises:
        click.BadParameter: it is the CPU, or neither.
    """
    device = read_device(ctx, param, value)
    if device == "cpu":
        raise click.BadParameter("plans are built on a GPU: give cuda:N, such as cuda:0", ctx, param)
    return device
