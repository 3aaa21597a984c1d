"""What a person draws on a page becomes shapes."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchsvdd.images.labels.drawing import MOST_POINTS, shapes_from_json, shapes_to_json, stroke_mask
from patchsvdd.images.labels.shapes import Box, Brush, LabelledImage, Polygon, mask_of
from support.random_labels import labelled_images

SIZE = (40, 60)
BOX = {"type": "box", "kind": "dent", "box": [10, 10, 30, 20]}


@given(labelled_images())
def test_shapes_are_read_as_they_were_written(image: LabelledImage) -> None:
    assert image.size is not None
    shapes = tuple(shape for shape in image.shapes if shape.mask(image.size or (1, 1)).any())
    assert shapes_from_json(json.loads(json.dumps(shapes_to_json(shapes))), image.size) == shapes


@given(
    st.lists(st.tuples(st.floats(-5, 30), st.floats(-5, 30)), min_size=1, max_size=5),
    st.floats(0.5, 12),
)
def test_a_stroke_covers_what_is_near_its_line(line: list[tuple[float, float]], width: float) -> None:
    mask = stroke_mask(line, width, (25, 25))
    ends = [*pairwise(line)] or [(line[0], line[0])]
    for y, x in np.ndindex(25, 25):
        centre = np.array([x + 0.5, y + 0.5])
        nearest = np.inf
        for start, end in ends:
            way = np.subtract(end, start)
            along = np.clip((centre - start) @ way / max(way @ way, 1e-12), 0, 1)
            nearest = min(nearest, float(np.hypot(*(centre - start - along * way))))
        if abs(nearest - width / 2) > 1e-3:
            assert mask[y, x] == (nearest < width / 2)


def test_strokes_of_a_kind_are_one_shape_and_an_eraser_removes() -> None:
    strokes = [{"type": "stroke", "kind": kind, "width": 4, "points": [[5, 5], [20, 5]]} for kind in ("a", "b", "a")]
    strokes[2]["points"] = [[5, 30], [20, 30]]
    shapes = shapes_from_json(strokes, SIZE)
    assert [shape.kind for shape in shapes] == ["a", "b"]
    eraser = {"type": "erase", "width": 6, "points": [[5, 30], [20, 30]]}
    erased = shapes_from_json([*strokes, eraser], SIZE)
    assert (erased[0].mask(SIZE) == erased[1].mask(SIZE)).all()
    everything = {"type": "erase", "width": 200, "points": [[30, 20]]}
    assert shapes_from_json([*strokes, everything], SIZE) == ()


def test_an_eraser_leaves_what_it_does_not_touch_as_it_was() -> None:
    polygon = {"type": "polygon", "kind": "a", "rings": [[[40, 2], [50, 2], [45, 9]]]}
    eraser = {"type": "erase", "width": 4, "points": [[10, 12], [30, 12]]}
    first, second = shapes_from_json([polygon, BOX, eraser], SIZE)
    assert isinstance(first, Polygon)
    assert isinstance(second, Brush)
    expected = Box(10, 10, 30, 20).mask(SIZE) & ~stroke_mask([(10, 12), (30, 12)], 4, SIZE)
    assert (second.mask(SIZE) == expected).all()
    assert (mask_of((first, second), SIZE) == (first.mask(SIZE) | expected)).all()


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([3], "shape 1 of the drawing cannot be used: it is not an object"),
        ([BOX, {"type": "circle"}], "shape 2 .* type is not polygon"),
        ([{"type": "box", "box": [1, 2, 3]}], "not left, top, right, bottom"),
        ([{"type": "box", "box": [70, 2, 80, 5]}], "outside of the image of 60 x 40"),
        ([{"type": "box", "box": [1.6, 1.6, 2.4, 2.4]}], "covers no pixel"),
        ([{"type": "polygon"}], "no rings"),
        ([{"type": "polygon", "rings": [[[1, 2], [3, 4]]]}], "3 to"),
        ([{**BOX, "kind": 5}], "not a text"),
        ([{"type": "stroke", "width": 0, "points": [[1, 1]]}], "its width is 0 pixels"),
        ([{"type": "stroke", "width": 5, "points": []}], "points are not a list"),
        ([{"type": "stroke", "width": 5, "points": [[500, 500]]}], "covers no pixel"),
        ([{"type": "stroke", "width": 5, "points": [[1, "x"]]}], "not a number"),
        ([{"type": "brush", "size": [2, 2], "left": 59, "top": 0, "counts": "04"}], "reaches out"),
        ([{"type": "brush", "size": [2, 2], "left": 0.5, "top": 0, "counts": "04"}], "reaches out"),
        ([{"type": "brush", "size": [2, 2], "left": 0, "top": 0, "counts": "09"}], "its counts cover 9"),
        ([{"type": "brush"}], "a brush needs"),
        ([BOX] * 501, "501 shapes"),
        ([{"type": "stroke", "width": 1, "points": [[1, 1]] * (MOST_POINTS + 1)}], "20,001 points"),
    ],
)
def test_what_cannot_be_used_is_named(entries: list[Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        shapes_from_json(entries, SIZE)


def test_the_time_of_a_drawing_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    size = (8000, 8000)
    monkeypatch.setattr("patchsvdd.images.labels.drawing.MOST_PAINTED", 1_000_000)
    whole = {"type": "box", "kind": "a", "box": [0, 0, 600, 800]}
    stroke = {"type": "stroke", "kind": "a", "width": 400, "points": [[300, 300], [400, 300]]}
    assert len(shapes_from_json([whole, whole], size)) == 2
    for entries in ([whole] * 3, [stroke] * 5, [whole, {**stroke, "type": "erase"}, whole]):
        with pytest.raises(ValueError, match="too many pixels"):
            shapes_from_json(entries, size)
    dots = [{"type": "box", "kind": "a", "box": [9 * index, 0, 9 * index + 5, 5]} for index in range(250)]
    eraser = {"type": "erase", "width": 3, "points": [[2, 7990]]}
    assert len(shapes_from_json([*dots, *[eraser] * 250], size)) == 250
