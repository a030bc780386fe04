"""The commands that deploy configurations of a run with `deliver`, and why it refuses others."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from enginebench.core.commands import OPTIONS, Choice, format_command
from enginebench.core.features import find_hook
from enginebench.core.hooks import FaultLocator
from enginebench.core.names import shorten_ids
from enginebench.report.run.remarks import name_measured_configurations
from enginebench.report.run.rows import Row, RunDocument, group_rows
from enginebench.report.table import Notes, Section, Table, list_texts, make_notes, make_table


class Delivery(Struct, frozen=True, kw_only=True):
    """The options with which `deliver` takes a configuration, or why it refuses."""

    refusal: str | None = None
    options: tuple[Choice, ...] = ()  # that allow the code which the configuration names


class Deployment(Struct, frozen=True, kw_only=True):
    """Everything needed to deliver from a run: its folder as the reader names it, a free folder for a bundle, each
    delivery."""

    folder: str
    out: str = "ship"
    deliveries: Mapping[str, Delivery]  # by the id of the configuration


def list_deploy(document: RunDocument, deployment: Deployment) -> Iterator[Notes]:
    """Yield the command for the recommended configuration; if that is refused, why, and the command for the best
    other."""
    wanted = next((row for row in document.rows if document.recommended and row.id == document.recommended.id), None)
    first = deployment.deliveries.get(wanted.id) if wanted else None
    if wanted is None or first is None:
        return
    chosen, names = wanted, name_measured_configurations(document.rows)
    if reason := _find_common_refusal(document, deployment):
        yield from make_notes([("Deploy it", f"no configuration can be delivered: {reason}")], "list")
        return
    if first.refusal:
        others = [row for row in _list_instead(document, wanted) if _is_deliverable(deployment, row)]
        reason = f"{names[wanted.id]} cannot be delivered: {first.refusal}"
        best = f"The best that can: {names[others[0].id]}" if others else "Nor can any other that may be taken"
        yield from make_notes([("Deploy it", f"{reason.rstrip('.')}. {best}")], "list")
        if not others:
            return
        chosen = others[0]
    name = shorten_ids(document.rows)[chosen.id]
    command = format_delivery_command(name, chosen, deployment, deployment.out)
    yield Notes(lines=(("Deploy it", command),), kind="command")


def list_locating(document: RunDocument, folder: Path | None, deployment: Deployment | None) -> Iterator[str]:
    """Yield the command that finds where the outputs of the first changed configuration leave the reference."""
    rows = [row for row in document.rows if folder is not None and get_row_file(folder, row).is_file()]
    wrong = next((row for row in rows if row.outputs == "changed"), None)
    if folder is None or wrong is None or find_hook(FaultLocator) is None:
        return
    ran = [row for row in rows if row.p50_ms is not None and row.outputs != "changed"]
    alike = [row for row in ran if row.setup.shapes == wrong.setup.shapes]
    # One that was not judged, such as a baseline whose outputs vary, shows more than `wrong` beside itself, which
    # still compares each node with the reference.
    base = min(alike, key=lambda row: row.outputs == "not_judged", default=wrong)
    allowed = [d.options for row in (base, wrong) if deployment and (d := deployment.deliveries.get(row.id))]
    options = dict.fromkeys(choice for choices in allowed for choice in choices if choice[0] in OPTIONS["drift"])
    files = [str(get_row_file(folder, row)) for row in (base, wrong)]
    yield format_command("drift", *files, options=[("--locate", None), *options])


def get_row_file(folder: Path, row: Row) -> Path:
    return folder / "rows" / f"{row.id}.json"


def _find_common_refusal(document: RunDocument, deployment: Deployment) -> str:
    """Return why no measured configuration can be delivered, if the reason is the same for all; else ""."""
    measured = [deployment.deliveries.get(row.id, Delivery()) for row in document.rows if row.p50_ms is not None]
    reasons = {delivery.refusal or "" for delivery in measured}
    return reasons.pop() if len(reasons) == 1 else ""


def _is_deliverable(deployment: Deployment, row: Row) -> bool:
    delivery = deployment.deliveries.get(row.id)
    return delivery is not None and delivery.refusal is None


def _list_instead(document: RunDocument, wanted: Row) -> list[Row]:
    """List the other configurations of the same batch and shape that may be used, fastest first."""
    limit_ms = document.p99_limit_ms
    group = next(group for group in group_rows(document.rows) if wanted in group)
    return [
        row
        for row in group
        if row is not wanted
        and row.p50_ms is not None
        and row.outputs != "changed"
        and row.validity != "implausible"  # its times are those of a part of the work
        and row.modelled == wanted.modelled
        and (limit_ms is None or (row.p99_ms is not None and row.p99_ms.value <= limit_ms))
    ]


def format_delivery_command(name: str, row: Row, deployment: Deployment, out: str) -> str:
    """Format the command that delivers `row`, which has this name among the others, to the folder `out`."""
    options = [("--row", name), *deployment.deliveries[row.id].options, ("--out", out)]
    return format_command("deliver", deployment.folder, options=options)


def list_deliveries(document: RunDocument, deployment: Deployment) -> Section:
    """List the command that delivers each configuration, or why there is none."""
    names, short = name_measured_configurations(document.rows), shorten_ids(document.rows)
    measured = [row for row in document.rows if row.p50_ms is not None and row.id in deployment.deliveries]
    if reason := _find_common_refusal(document, deployment):
        notes = make_notes([f"No configuration can be delivered: {reason}."])
        return Section(title="Deploy a configuration", name="delivery", parts=tuple(notes))
    lines = []
    for row in measured:
        refusal = deployment.deliveries[row.id].refusal
        command = format_delivery_command(short[row.id], row, deployment, short[row.id])
        lines.append((names[row.id], f"cannot be delivered: {refusal}" if refusal else command))
    text = "Each configuration can be a folder that runs without EngineBench."
    columns = list_texts(("configuration", "command, where this page was written"))
    table: Table = make_table(columns, lines, file="delivery", title="Commands")
    return Section(title="Deploy a configuration", name="delivery", parts=(*make_notes([text]), table))
