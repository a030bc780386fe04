"""The picture of a search: speed over quality, with a line along those that no candidate beats in both."""

from enginebench.core.text import clean_text
from enginebench.features.tune.document import TuneDocument
from enginebench.report.charts import GREY, Row, Spec, finish, import_altair, read_rows
from enginebench.report.run.charts import PALETTE

NAME, TITLE = "frontier", "Speed over quality"
DESCRIPTION = "The speed of every setting that was measured over the quality of its outputs, with the Pareto front."
KINDS = {"default": "circle", "mixed precision": "diamond", "other setting": "triangle-up"}
HEIGHT = 320


def draw_frontier(document: TuneDocument) -> Spec:
    """Every candidate that raced and whose answers have a figure."""
    alt = import_altair()
    base = read_rows(list_points(document))
    quality = alt.X("quality:Q", title=document.quality_of, scale=alt.Scale(zero=False))
    speed = alt.Y("speed:Q", title="speed over the leader's", scale=alt.Scale(zero=False))
    kinds = list(KINDS)
    dots = base.mark_point(filled=True, size=80, opacity=1).encode(
        x=quality,
        y=speed,
        color=alt.Color("kind:N", scale=alt.Scale(domain=kinds, range=list(PALETTE[: len(kinds)])), title=None),
        shape=alt.Shape("kind:N", scale=alt.Scale(domain=kinds, range=list(KINDS.values())), title=None),
        tooltip=["candidate:N", alt.Tooltip("speed:Q", format=".3f"), alt.Tooltip("quality:Q", format=".4f")],
    )
    line = (
        base.transform_filter("datum.front")
        .mark_line(interpolate="step-before", color=GREY, strokeDash=[4, 3])
        .encode(x=quality, y=speed)
    )
    return finish(line + dots, TITLE, f"{document.model}; speeds are those of the race", HEIGHT)


def list_points(document: TuneDocument) -> list[Row]:
    """What the picture shows, one entry a candidate."""
    front = {point.candidate for point in document.frontier}
    return [
        {
            "candidate": clean_text(one.candidate),
            "speed": one.speed,
            "quality": one.quality,
            "front": one.candidate in front,
            "kind": "default" if one.default else "mixed precision" if one.graph else "other setting",
        }
        for one in document.candidates
        if one.speed is not None and one.quality is not None
    ]
