"""`enginebench doctor`: what can run here, and what adds the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from enginebench.core.records import Availability, Machine

MB = 1 << 20


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")
def command(as_json: bool) -> None:
    """Show the machine and every engine: its version, what it was verified on, or what is missing and what adds it.

    Never fails: an engine that cannot be imported is part of the answer.
    """
    from rich.console import Console

    from enginebench.cli.progress import open_reporter
    from enginebench.core.store import encode
    from enginebench.workflow.doctor import examine

    with open_reporter() as reporter:
        document = examine(lambda name: reporter.step(f"asking {name}"))
    if as_json:
        click.echo(encode(document).decode())
        return
    console = Console(highlight=False)
    _print_machine(console, document.machine)
    console.print()
    for engine in document.engines:
        _print_engine(console, engine)


def _print_machine(console: Console, machine: Machine) -> None:
    cores = f"{machine.cores_physical} cores, {machine.cores_logical} threads, {len(machine.cpus_allowed)} allowed"
    quota = f", quota {machine.cpu_quota_cores:g}" if machine.cpu_quota_cores else ""
    _print_pair(console, "CPU", machine.cpu_model)
    _print_pair(console, "cores", f"{cores}{quota}; default: --threads {machine.default_threads}")
    _print_pair(console, "flags", " ".join(machine.cpu_flags) or "none that matter")
    _print_pair(console, "clock", _describe_clock(machine))
    _print_pair(console, "memory", f"{machine.memory_bytes // MB} MiB")
    _print_pair(
        console, "system", f"{machine.os}, {machine.arch}" + (f", {machine.virtual}" if machine.virtual else "")
    )
    for gpu in machine.gpus:
        _print_pair(console, f"GPU {gpu.index}", f"{gpu.name}, {gpu.memory_bytes // MB} MiB, driver {gpu.driver}")
    if not machine.gpus:
        _print_pair(console, "GPU", "none that NVML shows")
    for key, value in (machine.jetson or {}).items():
        _print_pair(console, f"Jetson {key}", value)
    _print_pair(console, "versions", ", ".join(f"{k} {v}" for k, v in machine.versions.items()))
    for caveat in machine.caveats:
        _print_pair(console, "doubt", f"{caveat.message}. {caveat.advice}")


def _describe_clock(machine: Machine) -> str:
    now = f"{machine.cpu_mhz:.0f} MHz now" if machine.cpu_mhz else "frequency not shown"
    top = f", {machine.cpu_max_mhz:.0f} MHz at most" if machine.cpu_max_mhz else ""
    load = f", load {machine.load_1m:.2f}" if machine.load_1m is not None else ""
    return f"{now}{top}, governor {machine.governor or 'not shown'}{load}"


def _print_engine(console: Console, engine: Availability) -> None:
    state = f"ready   {engine.version or ''} {' '.join(engine.devices)}" if engine.available else "missing"
    _print_pair(console, engine.engine, state.rstrip())
    for name, text in (("why", engine.reason), ("to add", engine.fix), ("verified on", engine.verified_on)):
        if text:
            _print_pair(console, "", f"{name}: {text}")


def _print_pair(console: Console, name: str, text: str) -> None:
    """One name and its text, wrapped beside it."""
    from rich.table import Table
    from rich.text import Text

    from enginebench.core.text import clean_lines

    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=18)
    grid.add_column(ratio=1)
    grid.add_row(Text(clean_lines(name)), Text(clean_lines(text)))
    console.print(grid)
