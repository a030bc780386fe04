"""`enginebench doctor`: which engines can run here, and how to get the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from enginebench.core.text import count_of

if TYPE_CHECKING:
    from rich.console import Console

    from enginebench.core.records import Availability, Machine
    from enginebench.workflow.verbs.doctor import DoctorDocument

MB = 1 << 20


@click.command("doctor")
@click.option("--env", "environment", metavar="NAME[=PATH]", help="Ask this environment in place of the current one.")
@click.option("--on", metavar="auto|ray://HOST:PORT", help="Ask every node of this Ray cluster.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout and nothing else.")
def command(environment: str | None, on: str | None, as_json: bool) -> None:
    """Show the machine, and for every engine its version or what is missing and how to get it.

    Example: enginebench doctor

    It also shows what each engine was verified on. It never fails: an engine that cannot be imported is part of the
    answer.
    """
    from rich.console import Console

    from enginebench.cli.progress import open_reporter
    from enginebench.core.errors import UsageError
    from enginebench.core.store import encode
    from enginebench.workflow.child.places import name_environments
    from enginebench.workflow.verbs.doctor import examine

    if on is not None:
        if environment is not None:
            raise UsageError("--env asks an environment of this machine, --on the nodes of a cluster; give one")
        _show_fleet(on, as_json)
        return
    if environment is not None and "=" in environment:
        name_environments((environment,))
        environment = environment.partition("=")[0]
    with open_reporter() as reporter:
        document = examine(lambda name: reporter.step(f"checking {name}"), environment)
    if as_json:
        click.echo(encode(document).decode())
        return
    _print_document(Console(highlight=False), document)


def _print_document(console: Console, document: DoctorDocument) -> None:
    _print_machine(console, document.machine)
    console.print()
    for engine in document.engines:
        _print_engine(console, engine)


def _show_fleet(address: str, as_json: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    from enginebench.core.store import encode
    from enginebench.core.text import clean_lines
    from enginebench.workflow.verbs.doctor import examine_fleet

    found = examine_fleet(address)
    if as_json:
        click.echo(encode(found).decode())
        return
    console = Console(highlight=False)
    for node in found.nodes:
        console.print(Text(clean_lines(f"node {node.node}"), style="bold"))
        if node.document is None:
            _print_pair(console, "no answer", node.reason)
        else:
            _print_document(console, node.document)
        console.print()


def _print_machine(console: Console, machine: Machine) -> None:
    from enginebench.core.caveats import format_caveat

    counts = count_of(machine.cores_physical, "cores"), count_of(machine.cores_logical, "threads")
    cores = f"{', '.join(counts)}, {len(machine.cpus_allowed)} allowed"
    quota = f", quota {machine.cpu_quota_cores:g}" if machine.cpu_quota_cores else ""
    _print_pair(console, "CPU", machine.cpu_model)
    _print_pair(console, "cores", f"{cores}{quota}; default: --threads {machine.default_threads}")
    _print_pair(console, "flags", " ".join(machine.cpu_flags) or "none that matters")
    _print_pair(console, "clock", _describe_clock(machine))
    _print_pair(console, "memory", f"{machine.memory_bytes // MB} MiB")
    _print_pair(
        console, "system", f"{machine.os}, {machine.arch}" + (f", {machine.virtual}" if machine.virtual else "")
    )
    for gpu in machine.gpus:
        _print_pair(console, f"GPU {gpu.index}", f"{gpu.name}, {gpu.memory_bytes // MB} MiB, driver {gpu.driver}")
    if not machine.gpus:
        _print_pair(console, "GPU", "none visible to NVML")
    for key, value in (machine.jetson or {}).items():
        _print_pair(console, f"Jetson {key}", value)
    _print_pair(console, "versions", ", ".join(f"{k} {v}" for k, v in machine.versions.items()))
    for caveat in machine.caveats:
        _print_pair(console, "doubt", format_caveat(caveat))


def _describe_clock(machine: Machine) -> str:
    now = f"{machine.cpu_mhz:.0f} MHz now" if machine.cpu_mhz else "frequency not shown"
    top = f", {machine.cpu_max_mhz:.0f} MHz at most" if machine.cpu_max_mhz else ""
    load = f", load {machine.load_1m:.2f}" if machine.load_1m is not None else ""
    return f"{now}{top}, governor {machine.governor or 'not shown'}{load}"


def _print_engine(console: Console, engine: Availability) -> None:
    _print_pair(console, engine.engine, describe_state(engine))
    for name, text in (
        ("from", engine.package),
        ("why", engine.reason),
        ("to add", engine.fix),
        ("verified on", engine.verified_on),
    ):
        if text:
            _print_pair(console, "", f"{name}: {text}")


def describe_state(engine: Availability) -> str:
    """`ready` with version and devices; `not ready`: installed, but this machine cannot run it; else `missing`."""
    if engine.available:
        return f"ready   {engine.version or ''} {' '.join(engine.devices)}".rstrip()
    return f"not ready   {engine.version}" if engine.version else "missing"


def _print_pair(console: Console, name: str, text: str) -> None:
    """Prints a name and its text, wrapped beside it."""
    from rich.table import Table
    from rich.text import Text

    from enginebench.core.text import clean_lines

    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=18)
    grid.add_column(ratio=1)
    grid.add_row(Text(clean_lines(name)), Text(clean_lines(text)))
    console.print(grid)
