"""What a person drew on a page, as JSON: shapes, strokes of a brush and of an eraser, in the order of drawing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patchsvdd.core.roi import Point
from patchsvdd.images.labels.run_lengths import counts_from_text, counts_of, counts_to_text, mask_from_counts
from patchsvdd.images.labels.shapes import (
    KIND,
    Box,
    Brush,
    Polygon,
    Shape,
    Size,
    checked_box,
    checked_kind,
    checked_number,
    checked_point,
    checked_ring,
    checked_size,
)

MOST_ENTRIES = 500
"""Shapes and strokes of a drawing."""
MOST_POINTS = 20_000
"""Points of all its polygons and strokes."""
WIDEST = 4000.0
"""Pixels of a stroke."""
MOST_PAINTED = 400_000_000
"""Pixels of the boxes around all that is rasterised, counted each time: this bounds the time of a drawing."""
MOST_BYTES = 1 << 20
"""Largest drawing as JSON."""


class _Budget:
    """The pixels that may still be rasterised."""

    def __init__(self, pixels: float) -> None:
        self._left = pixels

    def spend(self, pixels: float) -> None:
        """Take pixels away; raise ValueError if there are too few."""
        self._left -= pixels
        if self._left < 0:
            raise ValueError("the drawing covers too many pixels; draw fewer, smaller or narrower shapes")


def shapes_to_json(shapes: Iterable[Shape]) -> list[dict[str, Any]]:
    """Return shapes as JSON; ``shapes_from_json`` reads them."""
    return [_to_json(shape) for shape in shapes]


def shapes_from_json(entries: Sequence[Any], size: Size) -> tuple[Shape, ...]:
    """Return the shapes of a drawing on an image of (height, width); raise ValueError with what is wrong.

    Strokes become painted pixels, together with those of the same kind before them. An eraser removes pixels from all
    shapes before it; what it touches becomes painted pixels.
    """
    if len(entries) > MOST_ENTRIES:
        raise ValueError(f"the drawing has {len(entries):,} shapes; {MOST_ENTRIES} are allowed")
    points = sum(_points_in(entry) for entry in entries)
    if points > MOST_POINTS:
        raise ValueError(f"the drawing has {points:,} points; {MOST_POINTS:,} are allowed")
    shapes: list[Shape] = []
    budget = _Budget(MOST_PAINTED)
    for number, entry in enumerate(entries, start=1):
        try:
            if not isinstance(entry, dict):
                raise ValueError("it is not an object")
            if entry.get("type") not in ("stroke", "erase"):
                shapes.append(_from_json(entry, size, budget))
                continue
            line, width = _stroke(entry)
            if entry["type"] == "erase":
                shapes = [left for shape in shapes if (left := _erased(shape, line, width, size, budget)) is not None]
            else:
                _paint(shapes, line, width, checked_kind(entry.get("kind", KIND)), size, budget)
        except ValueError as error:
            raise ValueError(f"shape {number} of the drawing cannot be used: {error}") from None
    if len(json.dumps(shapes_to_json(shapes))) > MOST_BYTES:
        raise ValueError("the drawing has too many details; draw fewer or simpler shapes")
    return tuple(shapes)


def stroke_mask(line: Sequence[Point], width: float, size: Size) -> NDArray[np.bool_]:
    """Return (H, W): the pixels whose centres are at most half a width from a line of points."""
    mask = np.zeros(size, np.bool_)
    reach = width / 2
    for (x0, y0), (x1, y1) in _segments(line):
        left, top, right, bottom = _around(((x0, y0), (x1, y1)), reach, size)
        if top >= bottom or left >= right:
            continue
        y = np.arange(top, bottom, dtype=np.float32)[:, None] + np.float32(0.5 - y0)
        x = np.arange(left, right, dtype=np.float32)[None, :] + np.float32(0.5 - x0)
        dx, dy = x1 - x0, y1 - y0
        length = dx * dx + dy * dy
        along = np.clip((x * dx + y * dy) / length, 0, 1) if length > 0 else np.float32(0)
        mask[top:bottom, left:right] |= (x - along * dx) ** 2 + (y - along * dy) ** 2 <= reach * reach
    return mask


def _to_json(shape: Shape) -> dict[str, Any]:
    if isinstance(shape, Polygon):
        return {
            "type": "polygon",
            "kind": shape.kind,
            "rings": [[list(point) for point in ring] for ring in shape.rings],
        }
    if isinstance(shape, Box):
        return {"type": "box", "kind": shape.kind, "box": [shape.left, shape.top, shape.right, shape.bottom]}
    counts = counts_to_text(counts_of(shape.pixels.mask))
    place = {"left": shape.left, "top": shape.top, "size": list(shape.pixels.size)}
    return {"type": "brush", "kind": shape.kind, **place, "counts": counts}


def _from_json(entry: dict[str, Any], size: Size, budget: _Budget) -> Shape:
    kind = checked_kind(entry.get("kind", KIND))
    if entry.get("type") == "polygon":
        rings = entry.get("rings")
        if not isinstance(rings, list) or not rings:
            raise ValueError("it has no rings")
        shape: Shape = Polygon(tuple(checked_ring(ring, size) for ring in rings), kind)
    elif entry.get("type") == "box":
        box = entry.get("box")
        if not isinstance(box, list) or len(box) != 4:
            raise ValueError("its box is not left, top, right, bottom")
        left, top, right, bottom = box
        shape = checked_box(left, top, right, bottom, kind, size)
    elif entry.get("type") == "brush":
        return _brush(entry, kind, size, budget)
    else:
        raise ValueError("its type is not polygon, box, brush, stroke or erase")
    if not _cropped(shape, size, budget)[2].any():
        raise ValueError("it covers no pixel of the image; draw a larger one")
    return shape


def _brush(entry: dict[str, Any], kind: str, size: Size, budget: _Budget) -> Brush:
    own, counts, left, top = (entry.get(name) for name in ("size", "counts", "left", "top"))
    if not isinstance(own, list) or len(own) != 2 or not isinstance(counts, str) or len(counts) > MOST_BYTES:
        raise ValueError("a brush needs a size and counts as a text")
    height, width = checked_size(*own)
    x, y = checked_point((left, top))
    if x != round(x) or y != round(y) or x < 0 or y < 0 or x + width > size[1] or y + height > size[0]:
        raise ValueError(f"its brush reaches out of the image of {size[1]} x {size[0]} pixels")
    budget.spend(height * width)
    return Brush.of(mask_from_counts(counts_from_text(counts), (height, width)), kind, (round(x), round(y)))


def _stroke(entry: dict[str, Any]) -> tuple[list[Point], float]:
    """The points and the width of a stroke."""
    points, width = entry.get("points"), checked_number(entry.get("width"))
    if not isinstance(points, list) or not points:
        raise ValueError("its points are not a list")
    if not 0 < width <= WIDEST:
        raise ValueError(f"its width is {width:g} pixels; up to {WIDEST:,.0f} are allowed")
    return [checked_point(point) for point in points], width


def _paint(shapes: list[Shape], line: Sequence[Point], width: float, kind: str, size: Size, budget: _Budget) -> None:
    """Add a stroke to the painted pixels of the same kind."""
    left, top, mask = _stroke_in(line, width, _around(line, width / 2, size), budget)
    if not mask.any():
        raise ValueError("it covers no pixel of the image")
    for index, shape in enumerate(shapes):
        if isinstance(shape, Brush) and shape.kind == kind:
            shapes[index] = _united(shape, left, top, mask, budget)
            return
    shapes.append(Brush.of(mask, kind, (left, top)))


def _united(brush: Brush, left: int, top: int, mask: NDArray[np.bool_], budget: _Budget) -> Brush:
    """A brush with more pixels, of a mask whose corner is at (left, top)."""
    parts = [(brush.left, brush.top, brush.pixels.mask), (left, top, mask)]
    x0, y0 = min(part[0] for part in parts), min(part[1] for part in parts)
    x1 = max(part[0] + part[2].shape[1] for part in parts)
    y1 = max(part[1] + part[2].shape[0] for part in parts)
    budget.spend((x1 - x0) * (y1 - y0))
    whole = np.zeros((y1 - y0, x1 - x0), np.bool_)
    for x, y, part in parts:
        whole[y - y0 : y - y0 + part.shape[0], x - x0 : x - x0 + part.shape[1]] |= part
    return Brush.of(whole, brush.kind, (x0, y0))


def _erased(shape: Shape, line: Sequence[Point], width: float, size: Size, budget: _Budget) -> Shape | None:
    """What an eraser leaves of a shape; None if that is nothing."""
    left, top, right, bottom = _box(shape, size)
    x0, y0, x1, y1 = _around(line, width / 2, size)
    if x1 <= left or x0 >= right or y1 <= top or y0 >= bottom:
        return shape
    _, _, covered = _cropped(shape, size, budget)
    _, _, erased = _stroke_in(line, width, (left, top, right, bottom), budget)
    if not (covered & erased).any():
        return shape
    rest = covered & ~erased
    return Brush.of(rest, shape.kind, (left, top)) if rest.any() else None


def _cropped(shape: Shape, size: Size, budget: _Budget) -> tuple[int, int, NDArray[np.bool_]]:
    """The left, the top and the mask of the box around a shape."""
    left, top, right, bottom = _box(shape, size)
    budget.spend(max(0, right - left) * max(0, bottom - top))
    if isinstance(shape, Brush):
        return left, top, shape.pixels.mask
    rings = (shape.corners,) if isinstance(shape, Box) else shape.rings
    moved = Polygon(tuple(tuple((x - left, y - top) for x, y in ring) for ring in rings))
    return left, top, moved.mask((max(0, bottom - top), max(0, right - left)))


def _stroke_in(
    line: Sequence[Point], width: float, box: tuple[int, int, int, int], budget: _Budget
) -> tuple[int, int, NDArray[np.bool_]]:
    """The left, the top and the mask of a stroke in a box (left, top, right, bottom)."""
    left, top, right, bottom = box
    size = (max(0, bottom - top), max(0, right - left))
    moved = [(x - left, y - top) for x, y in line]
    for segment in _segments(moved):
        x0, y0, x1, y1 = _around(segment, width / 2, size)
        budget.spend(max(0, x1 - x0) * max(0, y1 - y0))
    return left, top, stroke_mask(moved, width, size)


def _box(shape: Shape, size: Size) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of the pixels around a shape, inside of the image."""
    if isinstance(shape, Brush):
        height, width = shape.pixels.size
        return shape.left, shape.top, shape.left + width, shape.top + height
    rings = (shape.corners,) if isinstance(shape, Box) else shape.rings
    return _around([point for ring in rings for point in ring], 0, size)


def _around(points: Sequence[Point], reach: float, size: Size) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of the pixels around points, inside of an image of (height, width)."""
    xs, ys = zip(*points, strict=True)
    left, right = _range(min(xs) - reach, max(xs) + reach, size[1])
    top, bottom = _range(min(ys) - reach, max(ys) + reach, size[0])
    return left, top, right, bottom


def _segments(line: Sequence[Point]) -> list[tuple[Point, Point]]:
    return list(pairwise(line)) or [(line[0], line[0])]


def _range(low: float, high: float, length: int) -> tuple[int, int]:
    return max(0, math.floor(low)), min(length, math.ceil(high) + 1)


def _points_in(entry: Any) -> int:
    """How many points an entry has."""
    if not isinstance(entry, dict):
        return 0
    lists = [entry.get("points"), *(entry["rings"] if isinstance(entry.get("rings"), list) else ())]
    return sum(len(one) for one in lists if isinstance(one, list))
