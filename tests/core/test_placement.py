from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchsvdd.core.placement import Placement, place

SIDES = st.integers(16, 2000)
SIZES = st.tuples(SIDES, SIDES)


@given(SIZES, SIZES)
def test_stretched_images_cover_the_canvas(original: tuple[int, int], canvas: tuple[int, int]) -> None:
    assert place(original, canvas, "stretch") == Placement(canvas, canvas)


@given(SIZES, SIZES, st.none() | st.floats(0.05, 4))
def test_letterboxed_images_keep_their_aspect_ratio(
    original: tuple[int, int], canvas: tuple[int, int], factor: float | None
) -> None:
    placed = place(original, canvas, "letterbox", factor)
    largest = min(canvas[0] / original[0], canvas[1] / original[1])
    used = largest if factor is None else min(factor, largest)
    for side, whole, length in zip(placed.content, canvas, original, strict=True):
        assert 1 <= side <= whole
        assert abs(side - length * used) <= 1.5
    if factor is None:
        assert any(side == whole for side, whole in zip(placed.content, canvas, strict=True))


@pytest.mark.parametrize(
    ("original", "content"),
    [
        ((448, 336), (341, 256)),
        ((224, 168), (341, 256)),
        ((336, 448), (192, 256)),  # turned by 90°
        ((449, 336), (341, 256)),  # a pixel is not worth a mirrored line
    ],
)
def test_images_are_resized_to_fit(original: tuple[int, int], content: tuple[int, int]) -> None:
    assert place(original, (341, 256), "letterbox").content == content


def test_a_common_factor_holds_unless_the_image_would_not_fit() -> None:
    assert place((200, 300), (320, 512), "letterbox", 0.5).content == (100, 150)
    assert place((640, 2048), (320, 512), "letterbox", 0.5).content == (160, 512)
