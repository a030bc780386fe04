"""`enginebench budget`: what an accelerator behind a link can gain, before anybody builds it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from enginebench.cli.options import FiniteRange

if TYPE_CHECKING:
    from enginebench.fpga.budget import Budget

TIME = FiniteRange(0)
BYTES = click.IntRange(0)
FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("budget")
@click.option("--t-pre-ms", type=TIME, help="Time to preprocess one item.")
@click.option("--t-copy-in-ms", type=TIME, help="Time to copy one item in; or give --bytes-in and --link.")
@click.option("--t-compute-ms", type=TIME, help="Time to compute one item.")
@click.option("--t-copy-back-ms", type=TIME, help="Time to copy one answer back; or give --bytes-out and --link.")
@click.option("--t-post-ms", type=TIME, help="Time to postprocess one item.")
@click.option("--t-call-ms", type=TIME, default=0.0, show_default=True, help="Fixed time per call, whatever the batch.")
@click.option("--bytes-in", type=BYTES, help="Bytes of one item.")
@click.option("--bytes-out", type=BYTES, help="Bytes of one answer.")
@click.option(
    "--frame-bytes-in", type=BYTES, default=0, show_default=True, help="Extra bytes per call: header, checksum."
)
@click.option("--frame-bytes-out", type=BYTES, default=0, show_default=True, help="Extra bytes per answer.")
@click.option("--link", help="uart:115200, usb2, usb3, eth100, eth1g, pcie3x4, or BYTES_PER_S+LATENCY_US; +usb[:MS].")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Items per call.")
@click.option("--from", "source", type=FILE, help="Take terms from a stored row, or from the JSON of bench or stages.")
@click.option(
    "--baseline-ms",
    type=FiniteRange(0, min_open=True),
    help="Time per item of what the accelerator would replace.",
)
@click.option("--baseline-from", type=FILE, help="The same, from a stored result.")
@click.option("--picture", type=FILE, help="Draw the terms, and the speed-up by link rate: .html, .svg, .png or .json.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout and nothing else.")
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
    """Add up the five terms of a call to an accelerator, and show what bounds its speed.

    Example: enginebench budget --bytes-in 64 --bytes-out 1 --link uart:115200

    The answer has the share of each term, the speed-up, and the link rate and batch at which the accelerator breaks
    even. Give a term as a time, as bytes over a link, or from stored results; what you give by hand overrides what is
    stored, and a missing term is zero.
    """
    from enginebench.core.store import encode
    from enginebench.workflow.verbs.budget import BudgetTerms, work_out_budget

    budget = work_out_budget(
        BudgetTerms(
            t_pre_ms=t_pre_ms,
            t_copy_in_ms=t_copy_in_ms,
            t_compute_ms=t_compute_ms,
            t_copy_back_ms=t_copy_back_ms,
            t_post_ms=t_post_ms,
            t_call_ms=t_call_ms,
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            frame_bytes_in=frame_bytes_in,
            frame_bytes_out=frame_bytes_out,
            link=link,
            batch=batch,
            source=source,
            baseline_ms=baseline_ms,
            baseline_from=baseline_from,
        )
    )
    if picture:
        _save_picture(budget, picture)
    if as_json:
        click.echo(encode(budget).decode())
    else:
        print_budget(budget)


def _save_picture(budget: Budget, path: Path) -> None:
    from enginebench.report.budget_chart import save_budget_chart

    curve = [(point.bytes_per_s, point.speedup) for point in budget.curve if point.speedup is not None]
    save_budget_chart(path, budget.terms_ms, curve, budget.link_bytes_per_s, budget.break_even_bytes_per_s)
    click.echo(f"picture: {path}", err=True)


def print_budget(budget: Budget) -> None:
    """Prints the terms as a table, then what follows from them."""
    from rich.console import Console

    from enginebench.report.table import Section, list_texts, make_notes, make_table
    from enginebench.report.terminal import print_sections

    lines = [(name, f"{time:.6g}", f"{budget.shares[name]:.1%}") for name, time in budget.terms_ms.items()]
    table = make_table(list_texts(("term",), ("ms", "share")), [*lines, ("total", f"{budget.total_ms:.6g}", "")])
    print_sections([Section(parts=(table, *make_notes(describe_budget(budget))))], Console(highlight=False))


def describe_budget(budget: Budget) -> list[str]:
    """What follows from the terms, one sentence each."""
    lines = []
    if budget.throughput_serial_per_s and budget.throughput_pipelined_per_s:
        verb = "set" if budget.bottleneck == "copies" else "sets"
        lines.append(
            f"throughput: {budget.throughput_serial_per_s:.4g}/s with one call after another, "
            f"{budget.throughput_pipelined_per_s:.4g}/s pipelined ({budget.bottleneck} {verb} the pace)"
        )
    if budget.compute_gain_bound is not None:
        lines.append(f"if compute took no time: {budget.compute_gain_bound:.4g}x faster than now")
    if budget.speedup is not None:
        bound = f"; at most {budget.speedup_bound:.4g}x with compute at zero" if budget.speedup_bound else ""
        lines.append(f"speed-up over {budget.baseline_ms:g} ms per item: {budget.speedup:.4g}x{bound}")
    if budget.break_even_bytes_per_s is not None:
        here = f"the link carries {budget.link_bytes_per_s:.6g}"
        lines.append(f"breaks even at {budget.break_even_bytes_per_s:.6g} bytes/s; {here}")
    if budget.break_even_batch is not None:
        lines.append(f"breaks even from a batch of {budget.break_even_batch}")
    return lines + list(budget.notes)
