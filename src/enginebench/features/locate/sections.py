"""Sections of `drift --locate`: for each side a conclusion, the nodes, the cause, the reproduction, the ways around."""

from collections.abc import Iterator, Sequence

from enginebench.core.text import count_of, list_some
from enginebench.report.drift import DriftDocument
from enginebench.report.located import FoundFault, LocatedSide, WayAround
from enginebench.report.numbers import format_ratio
from enginebench.report.table import Chart, Notes, Section, Table, list_texts, make_notes, make_table


def list_located(document: DriftDocument) -> Sequence[Section]:
    """The hook DriftSections."""
    located = document.located
    if located is None:
        return []
    sections = [make_section(side) for side in located.sides]
    if located.interrupted:
        sections.append(
            Section(parts=tuple(make_notes(["The search was interrupted: this is what was known by then."])))
        )
    return sections


def make_section(side: LocatedSide) -> Section:
    fault = side.fault
    if fault is None:
        texts = {
            "keeps": "No node leaves the reference: its graph, computed as it is written, gives the same.",
            "unknown": f"Not searched: {side.why}.",
        }
        return Section(title=f"Where {side.text} leaves its graph", parts=tuple(make_notes([texts[side.state]])))
    parts: list[Table | Notes | Chart] = [*make_notes(list(explain_fault(fault)))]
    if fault.ways:
        parts.append(make_table(list_texts(["outputs right with", "time"]), [format_way(way) for way in fault.ways]))
        commands = [("", way.command) for way in fault.ways if way.command]
        parts += [*make_notes(["To measure one as a configuration:"]), Notes(lines=tuple(commands), kind="command")]
    return Section(title=f"Where {side.text} leaves its graph", parts=tuple(parts))


def explain_fault(fault: FoundFault) -> Iterator[str]:
    """Yield sentences on a fault."""
    ratio = f", {fault.snr_db:.1f} dB above the noise" if fault.snr_db is not None else ""
    size = f"largest difference {fault.largest:.3g}{ratio}" if fault.largest is not None else "other values"
    if fault.nonfinite:
        size = f"{count_of(fault.nonfinite, 'values')} are not finite; {size}"
    yield f"The first node is {fault.node} ({fault.kind}): its output {fault.tensor} leaves the reference ({size})."
    if len(fault.nodes) > 1:
        yield f"It takes {count_of(len(fault.nodes), 'nodes')} together: {list_some(fault.nodes)}."
    if fault.hidden_by:
        which = fault.hidden_by[0] if len(fault.hidden_by) == 1 else f"one of {list_some(fault.hidden_by, 3)}"
        yield f"It disappears when {which} is an output: a fusion of these nodes."
    if fault.optimizations:
        yield f"The optimization is {' with '.join(fault.optimizations)}: without it the outputs are right."
    if fault.layer:
        yield f"The engine's own record: {fault.layer}."
    if fault.overflowed:
        yield fault.overflowed
    if (made := fault.reproduction) is not None:
        place = f", in {made.folder}" if made.folder else "; add --out DIR to keep it"
        shows = {True: " Its repro.py shows the fault.", False: " Its repro.py did NOT show the fault.", None: ""}
        yield f"The smallest graph that shows it has {count_of(made.nodes, 'nodes')}{place}.{shows[made.shown]}"


def format_way(way: WayAround) -> tuple[str, str]:
    return way.engine, format_ratio(way.slowdown) if way.slowdown is not None else "not measured"
