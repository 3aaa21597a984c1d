"""What is marked on an image: polygons, boxes and painted pixels, and the mask that they cover.

Coordinates are (x, y) in pixels of the original image. Pixel (0, 0) reaches from 0 to 1, so that its centre is at 0.5.
A pixel is covered if its centre is inside, as in COCO's tools.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from patchsvdd.core.image_size import MAX_PIXELS
from patchsvdd.core.roi import PixelMask, Point

KIND = "defect"
"""Kind of a defect that has no other name."""
LONGEST_KIND = 100
"""Characters of the name of a kind."""
MOST_POINTS = 100_000
"""Points of a polygon."""
Size = tuple[int, int]
"""(height, width)."""


@dataclass(frozen=True)
class Polygon:
    """The pixels in any of several rings."""

    rings: tuple[tuple[Point, ...], ...]
    kind: str = KIND

    def mask(self, size: Size) -> NDArray[np.bool_]:
        """Return (H, W): the pixels it covers in an image of (height, width)."""
        covered = np.zeros(size, np.bool_)
        for ring in self.rings:
            _add_ring(covered, ring)
        return covered


@dataclass(frozen=True)
class Box:
    """An upright rectangle."""

    left: float
    top: float
    right: float
    bottom: float
    kind: str = KIND

    @property
    def corners(self) -> tuple[Point, ...]:
        """The four corners, clockwise from the top left."""
        left, top, right, bottom = self.left, self.top, self.right, self.bottom
        return (left, top), (right, top), (right, bottom), (left, bottom)

    def mask(self, size: Size) -> NDArray[np.bool_]:
        """Return (H, W): the pixels it covers in an image of (height, width)."""
        return Polygon((self.corners,)).mask(size)


@dataclass(frozen=True)
class Brush:
    """Painted pixels: those of ``pixels``, whose top left corner is at (left, top)."""

    left: int
    top: int
    pixels: PixelMask
    kind: str = KIND

    @classmethod
    def of(cls, mask: NDArray[np.bool_], kind: str = KIND, at: tuple[int, int] = (0, 0)) -> Brush:
        """Return the pixels set in a mask whose corner is at (left, top); raise ValueError if there are none."""
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        if not len(rows):
            raise ValueError("the mask is empty")
        top, left = int(rows[0]), int(columns[0])
        part = mask[top : int(rows[-1]) + 1, left : int(columns[-1]) + 1]
        return cls(at[0] + left, at[1] + top, PixelMask.of(part), kind)

    def mask(self, size: Size) -> NDArray[np.bool_]:
        """Return (H, W): the pixels it covers in an image of (height, width); those outside are left out."""
        covered = np.zeros(size, np.bool_)
        height, width = self.pixels.size
        top, left = max(0, self.top), max(0, self.left)
        bottom, right = min(size[0], self.top + height), min(size[1], self.left + width)
        if top < bottom and left < right:
            inner = self.pixels.mask[top - self.top : bottom - self.top, left - self.left : right - self.left]
            covered[top:bottom, left:right] = inner
        return covered


Shape: TypeAlias = Polygon | Box | Brush


@dataclass(frozen=True)
class LabelledImage:
    """What a person said about one image."""

    name: str
    """As in the file of labels, with forward slashes."""
    size: Size | None
    """(height, width) of the image; None if the file does not say."""
    shapes: tuple[Shape, ...] = ()
    is_defect: bool = False
    """Always true if there are shapes."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its defects, each once, in order of name."""
        return tuple(sorted({shape.kind for shape in self.shapes})) or ((KIND,) if self.is_defect else ())

    def mask(self, size: Size | None = None) -> NDArray[np.bool_]:
        """Return (H, W): the pixels of all shapes at the original size; ``size`` is that size if the file lacks it."""
        return mask_of(self.shapes, self.size or size or (0, 0))


def mask_of(shapes: Iterable[Shape], size: Size) -> NDArray[np.bool_]:
    """Return (H, W): the pixels that any of the shapes covers in an image of (height, width)."""
    covered = np.zeros(size, np.bool_)
    for shape in shapes:
        if isinstance(shape, Polygon):
            for ring in shape.rings:
                _add_ring(covered, ring)
        elif isinstance(shape, Box):
            _add_ring(covered, shape.corners)
        else:
            covered |= shape.mask(size)
    return covered


def bounds(mask: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) of the pixels set in a mask (H, W); zeros if there are none."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return 0, 0, 0, 0
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def checked_size(height: object, width: object) -> Size:
    """Return the size of an image; raise ValueError if it is impossible."""
    sides = (height, width)
    if not all(isinstance(side, int | float) and not isinstance(side, bool) and side == side for side in sides):
        raise ValueError(f"its size {width} x {height} is not a pair of numbers")
    tall, wide = (float(side) for side in sides)  # type: ignore[arg-type]
    if not (1 <= tall <= MAX_PIXELS and 1 <= wide <= MAX_PIXELS and tall * wide <= MAX_PIXELS):
        raise ValueError(f"its size {width} x {height} is not possible")
    return round(tall), round(wide)


def checked_kind(kind: object) -> str:
    """Return the name of a kind on one line; raise ValueError if it cannot be used."""
    if not isinstance(kind, str):
        raise ValueError("the name of its kind is not a text")
    name = " ".join("".join(letter if letter.isprintable() else " " for letter in kind).split())
    if len(name) > LONGEST_KIND:
        raise ValueError(f"the name of its kind has {len(name)} characters; {LONGEST_KIND} are allowed")
    return name or KIND


def checked_ring(points: object, size: Size | None) -> tuple[Point, ...]:
    """Return the points of a polygon; raise ValueError if they are no area of an image of ``size``."""
    if not isinstance(points, Sequence) or isinstance(points, str):
        raise ValueError("its points are not a list")
    if not 3 <= len(points) <= MOST_POINTS:
        raise ValueError(f"a polygon needs 3 to {MOST_POINTS:,} points; it has {len(points):,}")
    ring = tuple(checked_point(point) for point in points)
    xs, ys = zip(*ring, strict=True)
    _check_inside(min(xs), min(ys), max(xs), max(ys), size)
    return ring


def checked_box(left: object, top: object, right: object, bottom: object, kind: str, size: Size | None) -> Box:
    """Return a box, whichever corner comes first; raise ValueError if it is not in an image of ``size``."""
    (x0, y0), (x1, y1) = checked_point((left, top)), checked_point((right, bottom))
    box = Box(min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1), kind)
    if box.left == box.right or box.top == box.bottom:
        raise ValueError("its box has no area")
    _check_inside(box.left, box.top, box.right, box.bottom, size)
    return box


def checked_point(point: object) -> Point:
    """Return (x, y); raise ValueError if these are not two finite numbers."""
    if not isinstance(point, Sequence) or isinstance(point, str) or len(point) != 2:
        raise ValueError("a point is not a pair of numbers")
    x, y = (checked_number(value) for value in point)
    return x, y


def checked_number(value: object) -> float:
    """Return a number; raise ValueError if it is not a finite one of a size that images have."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"a coordinate is not a number ({str(value)[:40]})")
    if not math.isfinite(value) or abs(value) > MAX_PIXELS:
        raise ValueError(f"a coordinate is not possible ({value:g})")
    return float(value)


def _check_inside(left: float, top: float, right: float, bottom: float, size: Size | None) -> None:
    if size is not None and (left >= size[1] or top >= size[0] or right <= 0 or bottom <= 0):
        raise ValueError(f"it is outside of the image of {size[1]} x {size[0]} pixels")


def _add_ring(covered: NDArray[np.bool_], ring: Sequence[Point]) -> None:
    """Set the pixels whose centres are inside a ring (even-odd rule)."""
    xs, ys = zip(*ring, strict=True)
    top, bottom = (min(max(math.ceil(edge - 0.5), 0), covered.shape[0]) for edge in (min(ys), max(ys)))
    left, right = (min(max(math.ceil(edge - 0.5), 0), covered.shape[1]) for edge in (min(xs), max(xs)))
    if top >= bottom or left >= right:
        return
    # An edge flips every pixel of a row from the column on where it crosses the line of the pixels' centres.
    flips = np.zeros((bottom - top, right - left + 1), np.bool_)
    for (x0, y0), (x1, y1) in zip(ring, [*ring[1:], ring[0]], strict=True):
        if y0 > y1:
            x0, y0, x1, y1 = x1, y1, x0, y0
        first, stop = (min(max(math.ceil(y - 0.5), top), bottom) for y in (y0, y1))
        if first < stop:
            rows = np.arange(first, stop)
            crossings = x0 + (rows + 0.5 - y0) * ((x1 - x0) / (y1 - y0))
            columns = np.clip(np.ceil(crossings - 0.5), left, right).astype(np.intp)
            flips[rows - top, columns - left] ^= True
    covered[top:bottom, left:right] |= np.logical_xor.accumulate(flips[:, :-1], axis=1)
