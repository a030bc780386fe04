"""Names of points: beside their own, over no other."""

from __future__ import annotations

import numpy as np
import pytest

from enginebench.report.run.placing import LINE, Box, place_names
from enginebench.report.run.series import Point

WIDTH, HEIGHT = 520, 300


def make(row: str, per_s: float, quality: float, **more: float) -> Point:
    return {"row": row, "per_s": per_s, "quality": quality, "low": None, "high": None} | more


def cover(point: Point, x: float, y: float) -> Box:
    lines = point["row"].split("  ")
    wide = 5.6 * max(map(len, lines))
    left = x + point["dx"] - (wide if point["align"] == "right" else 0)
    return Box(left, y + point["dy"], left + wide, y + point["dy"] + LINE * len(lines))


def test_a_name_stands_towards_the_middle() -> None:
    slow, fast = place_names([make("a", 10, 0.1), make("b", 1000, 0.9)], WIDTH, HEIGHT)
    assert (slow["align"], slow["dx"]) == ("left", 8) and slow["dy"] < 0
    assert (fast["align"], fast["dx"]) == ("right", -8) and fast["dy"] > 0


@pytest.mark.parametrize("n", [2, 5, 12])
def test_no_name_covers_another(n: int) -> None:
    rng = np.random.default_rng(0)
    speeds = 1000 * np.exp(0.05 * rng.standard_normal(n))
    rows = [make(f"engine {i}  option={i}", float(speed), 1.0) for i, speed in enumerate(speeds)]
    rows += [make("slow", 100, 0.5)]
    placed = place_names(rows, WIDTH, HEIGHT)
    logs = np.log([p["per_s"] for p in rows])
    xs = WIDTH * (logs - logs.min()) / (logs.max() - logs.min())
    ys = [HEIGHT * (1 - (p["quality"] - 0.5) / 0.5) for p in rows]
    boxes = [cover(p, x, y) for p, x, y in zip(placed, xs, ys, strict=True)]
    assert not [(i, j) for i, a in enumerate(boxes) for j, b in enumerate(boxes) if i < j and a.touches(b)]


def test_rows_of_one_place_and_one_row_alone() -> None:
    one, two = place_names([make("a", 10, 1.0), make("b", 10, 1.0)], WIDTH, HEIGHT)
    assert abs(one["dy"] - two["dy"]) >= LINE
    (alone,) = place_names([make("a", 10, 1.0, low=0.9, high=1.1)], WIDTH, HEIGHT)
    assert alone["align"] == "left"
