"""`enginebench budget`: what an accelerator behind a link can bring, before anybody builds it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from enginebench.fpga.budget import Budget, BudgetSpec, Transfer

TIME = click.FloatRange(0)
BYTES = click.IntRange(0)
FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("budget")
@click.option("--t-pre-ms", type=TIME, help="Preprocessing of one item.")
@click.option("--t-copy-in-ms", type=TIME, help="Copy of one item to the accelerator; or --bytes-in with --link.")
@click.option("--t-compute-ms", type=TIME, help="Computation of one item.")
@click.option("--t-copy-back-ms", type=TIME, help="Copy of one answer back; or --bytes-out with --link.")
@click.option("--t-post-ms", type=TIME, help="Postprocessing of one item.")
@click.option("--t-call-ms", type=TIME, default=0.0, show_default=True, help="Paid once a call, whatever the batch.")
@click.option("--bytes-in", type=BYTES, help="Bytes of one item on its way in.")
@click.option("--bytes-out", type=BYTES, help="Bytes of one answer on its way back.")
@click.option("--frame-bytes-in", type=BYTES, default=0, show_default=True, help="Once a call: header, checksum.")
@click.option("--frame-bytes-out", type=BYTES, default=0, show_default=True, help="Once an answer.")
@click.option("--link", help="uart:115200, usb2, usb3, eth100, eth1g, pcie3x4, or BYTES_PER_S+LATENCY_US; +usb[:MS].")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Items of one call.")
@click.option("--from", "source", type=FILE, help="Take terms from a stored row, or a document of bench or stages.")
@click.option("--baseline-ms", type=click.FloatRange(0, min_open=True), help="One item on what it would replace.")
@click.option("--baseline-from", type=FILE, help="The same from a stored result.")
@click.option("--picture", type=FILE, help="Stacked terms, and speed-up against link rate: .html, .svg, .png or .json.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")
def command(
    t_pre_ms: float | None,
    t_copy_in_ms: float | None,
    t_compute_ms: float | None,
    t_copy_back_ms: float | None,
    t_post_ms: float | None,
    t_call_ms: float,
    bytes_in: int | None,
    bytes_out: int | None,
    frame_bytes_in: int,
    frame_bytes_out: int,
    link: str | None,
    batch: int,
    source: Path | None,
    baseline_ms: float | None,
    baseline_from: Path | None,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Add up the five terms of a call and say what bounds it: shares, speed-up, break-even link rate and batch.

    Each term is given by hand, or as bytes over a link, or taken from stored results; what is given by hand counts
    before what is stored, and what is not given is zero.
    """
    from enginebench.core.errors import UsageError
    from enginebench.core.store import encode
    from enginebench.fpga.budget import compute_budget
    from enginebench.workflow.budget import read_terms, read_total

    if baseline_ms is not None and baseline_from is not None:
        raise UsageError("--baseline-ms and --baseline-from both give the baseline; keep one")
    given = {
        "pre": t_pre_ms,
        "copy_in": t_copy_in_ms,
        "compute": t_compute_ms,
        "copy_back": t_copy_back_ms,
        "post": t_post_ms,
    }
    sizes = {"copy_in": (bytes_in, frame_bytes_in), "copy_back": (bytes_out, frame_bytes_out)}
    spec = make_spec(
        given,
        make_transfers(sizes, link, given),
        stored=read_terms(source) if source else {},
        call_ms=t_call_ms,
        batch=batch,
        baseline_ms=read_total(baseline_from) if baseline_from else baseline_ms,
    )
    budget = compute_budget(spec)
    if picture:
        _save_picture(budget, picture)
    if as_json:
        click.echo(encode(budget).decode())
    else:
        print_budget(budget)


def make_transfers(
    sizes: dict[str, tuple[int | None, int]], link: str | None, given: dict[str, float | None]
) -> dict[str, Transfer]:
    """The copies that are given in bytes.

    Raises:
        UsageError: bytes without a link, a link without bytes, or a copy given twice.
    """
    from enginebench.core.errors import UsageError
    from enginebench.fpga.budget import Transfer
    from enginebench.fpga.links import parse_link

    asked = {name: size for name, size in sizes.items() if size[0] is not None or size[1]}
    if asked and link is None:
        raise UsageError("bytes are given, but no link that carries them; add --link, for example uart:115200")
    if link is None:
        return {}
    carrier = parse_link(link)
    if not asked:
        raise UsageError(f"--link {link} carries nothing; add --bytes-in or --bytes-out")
    for name in asked:
        if given[name] is not None:
            raise UsageError(f"{name} is given as a time and as bytes over a link; keep one")
    return {
        name: Transfer(link=carrier, item_bytes=item or 0, frame_bytes=frame) for name, (item, frame) in asked.items()
    }


def make_spec(
    given: dict[str, float | None],
    transfers: dict[str, Transfer],
    *,
    stored: dict[str, float],
    call_ms: float,
    batch: int,
    baseline_ms: float | None,
) -> BudgetSpec:
    """The spec: by hand before bytes over a link before stored before zero.

    Raises:
        UsageError: not one term is given.
    """
    from enginebench.core.errors import UsageError
    from enginebench.fpga.budget import BudgetSpec

    times = {name: stored.get(name, 0.0) if time is None else time for name, time in given.items()}
    if not transfers and not stored and not call_ms and all(time is None for time in given.values()):
        raise UsageError("no term is given; start with --t-compute-ms, --bytes-in with --link, or --from result.json")
    return BudgetSpec(
        pre_ms=times["pre"],
        copy_in=transfers.get("copy_in", times["copy_in"]),
        compute_ms=times["compute"],
        copy_back=transfers.get("copy_back", times["copy_back"]),
        post_ms=times["post"],
        call_ms=call_ms,
        batch=batch,
        baseline_ms=baseline_ms,
    )


def _save_picture(budget: Budget, path: Path) -> None:
    from enginebench.report.budget_chart import save_budget_chart

    curve = [(point.bytes_per_s, point.speedup) for point in budget.curve if point.speedup is not None]
    save_budget_chart(path, budget.terms_ms, curve, budget.link_bytes_per_s, budget.break_even_bytes_per_s)
    click.echo(f"picture: {path}", err=True)


def print_budget(budget: Budget) -> None:
    """Prints the terms as a table, and what follows from them."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from enginebench.core.text import clean_text

    table = Table(box=None, pad_edge=False)
    table.add_column("term")
    table.add_column("ms", justify="right")
    table.add_column("share", justify="right")
    for name, time in budget.terms_ms.items():
        table.add_row(name, f"{time:.6g}", f"{budget.shares[name]:.1%}")
    table.add_row("total", f"{budget.total_ms:.6g}", "")
    console = Console(highlight=False)
    console.print(table)
    for line in describe_budget(budget):
        console.print(Text(clean_text(line)), soft_wrap=True)


def describe_budget(budget: Budget) -> list[str]:
    """What follows from the terms, a sentence each."""
    lines = []
    if budget.throughput_serial_per_s and budget.throughput_pipelined_per_s:
        lines.append(
            f"throughput: {budget.throughput_serial_per_s:.4g}/s one call after the other, "
            f"{budget.throughput_pipelined_per_s:.4g}/s pipelined ({budget.bottleneck} sets the pace)"
        )
    if budget.compute_gain_bound is not None:
        lines.append(f"if compute took no time: {budget.compute_gain_bound:.4g}x faster than now")
    if budget.speedup is not None:
        bound = f"; at most {budget.speedup_bound:.4g}x with compute at zero" if budget.speedup_bound else ""
        lines.append(f"speed-up over {budget.baseline_ms:g} ms an item: {budget.speedup:.4g}x{bound}")
    if budget.break_even_bytes_per_s is not None:
        here = f"the link carries {budget.link_bytes_per_s:.6g}"
        lines.append(f"breaks even at {budget.break_even_bytes_per_s:.6g} bytes/s; {here}")
    if budget.break_even_batch is not None:
        lines.append(f"breaks even from a batch of {budget.break_even_batch}")
    return lines + list(budget.notes)
