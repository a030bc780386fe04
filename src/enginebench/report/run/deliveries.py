"""How each row of a run is taken away, on its page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from enginebench.report.html import Html, element
from enginebench.report.page_frame import wrap_table
from enginebench.report.run.answers import name_row
from enginebench.report.run.rows import RunDocument


def format_deliveries(document: RunDocument, refusals: Mapping[str, str | None]) -> list[Html]:
    """The command that writes each row as a bundle, to be run in the run's folder; or why there is none."""
    known = [row for row in document.rows if row.id in refusals]
    if not known:
        return []
    head = [element("th", text, scope="col") for text in ("row", "in the folder of this run")]
    lines = []
    for row in known:
        reason = refusals[row.id]
        command = shlex.join(("enginebench", "deliver", ".", "--row", row.id, "--out", f"../{row.id}"))
        how = reason if reason is not None else element("code", command)
        lines.append(element("tr", element("th", name_row(row), scope="row"), element("td", how)))
    text = (
        "Each row can be a folder that runs without EngineBench: the model, a program with the row's settings, the "
        "measured versions, and the row's outputs to compare with."
    )
    table = element("table", element("thead", element("tr", *head)), element("tbody", *lines))
    return [element("p", text), wrap_table(table, "Commands that deliver each row")]
