"""Hypothesis strategies for labels of images."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from patchsvdd.images.labels.shapes import Box, Brush, LabelledImage, Polygon, Shape

SIZES = st.tuples(st.integers(1, 40), st.integers(1, 40))
KINDS = st.sampled_from(["defect", "scratch", "Kratzer ü", "a b"])


def masks(size: tuple[int, int]) -> st.SearchStrategy[NDArray[np.bool_]]:
    """Masks (H, W)."""
    return npst.arrays(np.bool_, size)


@st.composite
def shapes(draw: st.DrawFn, size: tuple[int, int]) -> Shape:
    """A shape that lies at least partly in an image of (height, width)."""
    height, width = size
    kind = draw(KINDS)
    inside = st.tuples(
        st.floats(0, width - 0.01).map(lambda value: round(value, 2)),
        st.floats(0, height - 0.01).map(lambda value: round(value, 2)),
    )
    form = draw(st.sampled_from(["polygon", "box", "brush"]))
    if form == "box":
        left, top = draw(inside)
        return Box(left, top, left + draw(st.integers(1, width)), top + draw(st.integers(1, height)), kind)
    if form == "brush":
        mask = draw(masks(size).filter(lambda one: bool(one.any())))
        return Brush.of(mask, kind)
    rings = draw(st.lists(st.lists(inside, min_size=3, max_size=7, unique=True), min_size=1, max_size=2))
    rings = [[*ring[:-1], (min(ring[-1][0] + 0.5, width), ring[-1][1] + 0.25)] for ring in rings]
    return Polygon(tuple(tuple(ring) for ring in rings), kind)


@st.composite
def labelled_images(draw: st.DrawFn) -> LabelledImage:
    """An image with up to four shapes, good or defective."""
    size = draw(SIZES)
    found = tuple(draw(st.lists(shapes(size), max_size=4)))
    return LabelledImage("part/000.png", size, found, bool(found) or draw(st.booleans()))
