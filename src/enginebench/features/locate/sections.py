"""Sections of `drift --locate`: for each side a conclusion, the nodes, the cause, the reproduction, the ways around."""

from collections.abc import Iterable, Iterator, Sequence

from enginebench.core.text import count_nonfinite, count_of, list_some, shorten_words
from enginebench.report.drift import DriftDocument
from enginebench.report.located import FoundFault, Located, LocatedSide, NodeNoise, WayAround
from enginebench.report.numbers import format_ratio
from enginebench.report.table import Chart, Notes, Section, Table, list_texts, make_notes, make_table


def list_located(document: DriftDocument) -> Sequence[Section]:
    """The hook DriftSections."""
    located = document.located
    if located is None:
        return []
    # A configuration beside itself, where a run has no other to compare it with, has one section.
    sections = [make_section(side) for side in {side.text: side for side in located.sides}.values()]
    if located.between is not None:
        behind = (f"Behind it, {one.node} ({one.kind}) differs as well. {one.unlike}" for one in located.further)
        parts = [*write_notes([*explain_fault(located.between), *behind]), *list_ways(located.between)]
        sections.append(Section(title="Where the graphs differ, each as it is written", parts=tuple(parts)))
    if located.unpaired:
        why = f"The graphs were not held beside each other: {located.unpaired}"
        sections.append(Section(parts=tuple(write_notes([why]))))
    if located.noise:
        sections.append(make_noise_section(located))
    if located.interrupted:
        sections.append(
            Section(parts=tuple(write_notes(["The search was interrupted: this is what was known by then."])))
        )
    return sections


def write_notes(sentences: Iterable[str]) -> Sequence[Notes]:
    """The sentences as notes; names of a graph may be of any length."""
    return make_notes([shorten_words(sentence) for sentence in sentences])


def make_section(side: LocatedSide) -> Section:
    fault, title = side.fault, f"Where {side.text} leaves its graph"
    if side.state == "unknown":
        why = f"Not searched: {side.why}" if side.why else "Not searched to its end."
        return Section(title=title, parts=tuple(write_notes([why, *explain_limits(side)])))
    if fault is None:
        which = "No other node leaves" if side.drawn else "No node leaves"
        text = f"{which} the reference: its graph, computed as it is written, gives the same."
        sentences = [each for each in (text, side.overflowed, side.why) if each]
        return Section(title=title, parts=tuple(write_notes([*explain_limits(side), *sentences])))
    sentences = [*explain_limits(side), *explain_fault(fault), *map(explain_further, side.further), side.why]
    notes = write_notes([each for each in sentences if each])
    return Section(title=title, parts=(*notes, *list_ways(fault)))


def list_ways(fault: FoundFault) -> Iterator[Table | Notes]:
    """Yield the ways around with their times, and the commands that measure them."""
    if fault.ways:
        yield make_table(list_texts(["outputs right with", "time"]), [format_way(way) for way in fault.ways])
    commands = [("", way.command) for way in fault.ways if way.command]
    if commands:
        yield from write_notes(["To measure one as a configuration:"])
        yield Notes(lines=tuple(commands), kind="command")


def explain_limits(side: LocatedSide) -> Iterator[str]:
    """Yield sentences on what a search leaves out."""
    if side.drawn:
        where = list_some(side.drawn, 3)
        yield f"The graph draws random numbers at {where}: the engine was given those of the reference."
    if side.uncompared:
        yield f"Not compared, as they are no arrays of NumPy: {list_some(side.uncompared, 3)}."


def explain_further(fault: FoundFault) -> str:
    return (
        f"Behind it, fed with the reference's own tensors, {fault.node} ({fault.kind}) leaves it as well: "
        f"its output {fault.tensor}."
    )


def make_noise_section(located: Located) -> Section:
    """The nodes that add the most noise, and what keeping the worst in the longer precision would give."""
    rows = [
        (
            shorten_words(noise.node),
            noise.kind,
            format_ratio_db(noise.snr_in_db),
            format_ratio_db(noise.snr_out_db),
            format_part(noise),
        )
        for noise in located.noise
    ]
    columns = list_texts(["node", "kind"], ["dB in", "dB out", "part of the final noise"])
    parts: list[Table | Notes | Chart] = [make_table(columns, rows)]
    if located.excluded_snr_db is not None:
        kept = f"{count_of(len(located.excluded), 'nodes')} in the longer precision ({list_some(located.excluded, 3)})"
        text = f"With {kept} the outputs would have about {located.excluded_snr_db:.1f} dB, by the sum of the parts."
        parts = [*write_notes([text]), *parts]
    return Section(title="Noise that each node adds", parts=tuple(parts))


def format_ratio_db(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1f}"


def format_part(noise: NodeNoise) -> str:
    return "-" if noise.share is None else f"{noise.share:.1%}"


def explain_fault(fault: FoundFault) -> Iterator[str]:
    """Yield sentences on a fault."""
    ratio = f", SNR {fault.snr_db:.1f} dB" if fault.snr_db is not None else ""
    sizes = list[str]()
    if fault.tamed:
        sizes.append(f"{count_of(fault.tamed, 'values')} that are not finite in the reference are others")
    if fault.nonfinite:
        sizes.append(count_nonfinite(fault.nonfinite))
    if not sizes or fault.largest:  # those that are finite on both sides may be equal
        sizes.append(f"largest difference {fault.largest:.3g}{ratio}" if fault.largest is not None else "other values")
    size = "; ".join(sizes)
    yield f"The first node is {fault.node} ({fault.kind}): its output {fault.tensor} leaves the reference ({size})."
    if fault.within:
        yield f"It is inside of {', in '.join(fault.within)}."
    if fault.unlike:
        yield fault.unlike
    if len(fault.nodes) > 1:
        yield f"It takes {count_of(len(fault.nodes), 'nodes')} together: {list_some(fault.nodes)}."
    if fault.hidden_by:
        which = fault.hidden_by[0] if len(fault.hidden_by) == 1 else f"one of {list_some(fault.hidden_by, 3)}"
        yield f"It disappears when {which} is an output: a fusion of these nodes."
    if fault.untried:
        yield f"For {count_of(fault.untried, 'tensors')} between them there was no time to see whether they hide it."
    if fault.optimizations:
        yield f"The optimization is {' with '.join(fault.optimizations)}: without it the outputs are right."
    if fault.layer:
        yield f"The engine's own record: {fault.layer}."
    if fault.transformations:
        yield f"OpenVINO changes these nodes by {list_some(fault.transformations)}, in this order."
    if fault.overflowed:
        yield fault.overflowed
    if (made := fault.reproduction) is not None:
        folder = f", in {made.folder}" if made.folder else "; add --out DIR to keep it"
        shows = {True: " Its repro.py shows the fault.", False: " Its repro.py did NOT show the fault.", None: ""}
        smallest = f"The smallest graph that shows it has {count_of(made.nodes, 'nodes')}{folder}."
        yield f"{smallest}{shows[made.shown]}"
        if made.hurried:
            yield "There was no time to look for a smaller one."


def format_way(way: WayAround) -> tuple[str, str]:
    kept = "" if way.graph else "; add --out DIR to keep the graph"
    changed = f"{way.engine}, where {shorten_words(way.change)}{kept}" if way.change else way.engine
    if way.slowdown is None:
        return changed, "not measured"
    why = f" ({way.slowdown.method})" if way.slowdown.low is None and way.slowdown.n > 1 else ""
    return changed, format_ratio(way.slowdown) + why
