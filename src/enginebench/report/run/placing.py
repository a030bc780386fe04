"""Where the names of points stand in a picture, so that no name is printed over another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

from enginebench.report.charts import LETTER, LINE_BREAK
from enginebench.report.run.series import Point

# Pixels: of a line of a name; between a point and its name; from the middle of a point to where a name may begin.
LINE = 12
_ASIDE, _BELOW, _DOT = 8, 4, 5
# Places further from the point than this many lines are nobody's.
_FURTHEST = 24


class Box(Struct, frozen=True):
    """A part of the picture, pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def touches(self, other: Box) -> bool:
        """Whether both cover a place."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


def place_names(points: Sequence[Point], width: float, height: float) -> list[Point]:
    """The points with `align`, `dx`, `dy`: their names stand beside them, each where it covers no other and no point.

    Names stand towards the middle of the picture: to the left of points in its right half, below those in its upper.

    Args:
        points: with `row`, `per_s` (on a logarithmic axis), `quality`, and `low` and `high` or None around it.
        width: of the picture between its axes, pixels.
        height: the same, pixels.
    """
    across = _scale([math.log(p["per_s"]) for p in points], width)
    bounds = [value for p in points for value in (p["quality"], p["low"], p["high"]) if value is not None]
    up = _scale(bounds, height)
    middles = [(across(math.log(p["per_s"])), height - up(p["quality"])) for p in points]
    taken = [Box(x - _DOT, y - _DOT, x + _DOT, y + _DOT) for x, y in middles]
    placed = []
    for point, (x, y) in zip(points, middles, strict=True):
        lines = point["row"].split(LINE_BREAK)
        wide, high = LETTER * max(map(len, lines)), LINE * len(lines)
        left, down = x > width / 2, y <= height / 2
        start = x - _ASIDE - wide if left else x + _ASIDE
        steps = range(0, _FURTHEST * LINE, LINE)
        offsets = [_BELOW + step if down else -_BELOW - step - high for step in steps]
        boxes = [Box(start, y + offset, start + wide, y + offset + high) for offset in offsets]
        free = next((i for i, box in enumerate(boxes) if not any(map(box.touches, taken))), 0)
        taken.append(boxes[free])
        place = {"align": "right" if left else "left", "dx": -_ASIDE if left else _ASIDE, "dy": offsets[free]}
        placed.append({**point, **place})
    return placed


def _scale(values: Sequence[float], length: float) -> Callable[[float], float]:
    """Value -> pixels from the lower end of an axis that reaches from the least to the largest value."""
    low, span = min(values), max(values) - min(values)
    return lambda value: length * (value - low) / span if span else length / 2
