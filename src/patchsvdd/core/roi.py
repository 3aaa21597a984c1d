"""Regions of interest: which part of every image counts.

A model trained with a region never sees anything else: images are cropped to the box around the region, and pixels in
the box but outside the region are filled with one colour. Pixels outside cannot change a model or a score.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from patchsvdd.core.errors import ConfigError

Point = tuple[float, float]
"""(x, y) in pixels."""
Polygon = Sequence[Point]
SLACK = 0.01
"""Largest relative difference between the aspect ratio of an image and of the image a region was drawn for."""
Values = TypeVar("Values", np.uint8, np.float32, np.bool_)


@dataclass(frozen=True)
class PixelMask:
    """The pixels that count in images of one size; hashable."""

    size: tuple[int, int]
    """(height, width)."""
    bits: bytes
    """One bit per pixel, row by row."""

    @classmethod
    def of(cls, mask: NDArray[np.bool_]) -> PixelMask:
        """Return the pixels that are set in a mask (H, W)."""
        return cls((mask.shape[0], mask.shape[1]), np.packbits(mask).tobytes())

    @cached_property
    def mask(self) -> NDArray[np.bool_]:
        """(H, W)."""
        height, width = self.size
        bits = np.unpackbits(np.frombuffer(self.bits, np.uint8), count=height * width)
        return bits.astype(np.bool_).reshape(height, width)

    def within(self, box: tuple[int, int, int, int]) -> PixelMask:
        """Return the part inside a box (top, left, bottom, right)."""
        top, left, bottom, right = box
        return PixelMask.of(self.mask[top:bottom, left:right])

    def __and__(self, other: PixelMask) -> PixelMask:
        return PixelMask.of(self.mask & other.mask)

    def touching(self, rows: Sequence[int], columns: Sequence[int], side: int) -> NDArray[np.bool_]:
        """Return (rows, columns): which squares of ``side`` pixels, by first row and column, hold pixels that count.

        Pixels beyond the last square belong to it.
        """
        sums = np.zeros((self.size[0] + 1, self.size[1] + 1), np.int32)
        self.mask.cumsum(0, dtype=np.int32).cumsum(1, out=sums[1:, 1:])
        tops, lefts = np.array(rows), np.array(columns)
        bottoms, rights = tops + side, lefts + side
        bottoms[-1], rights[-1] = self.size
        inside = sums[np.ix_(bottoms, rights)] - sums[np.ix_(tops, rights)]
        inside += sums[np.ix_(tops, lefts)] - sums[np.ix_(bottoms, lefts)]
        found: NDArray[np.bool_] = inside > 0
        return found


@dataclass(frozen=True)
class RoiCrop:
    """The part of a resized image that a model with a region sees."""

    full: tuple[int, int]
    """(height, width) of the whole image."""
    box: tuple[int, int, int, int]
    """(top, left, bottom, right) of the crop."""
    area: PixelMask | None
    """The pixels that count in the box; None for all."""
    fill: tuple[int, int, int]
    """Colour of the other pixels in the box."""

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the box."""
        top, left, bottom, right = self.box
        return bottom - top, right - left

    def with_roi(self, roi: Roi) -> PixelMask:
        """Return the pixels that count both in the box and in another region."""
        return _with_roi(self, roi)

    def cut(self, pixels: NDArray[Any]) -> NDArray[Any]:
        """Return the box of an image (H, W, 3), filled with ``fill`` where pixels do not count."""
        top, left, bottom, right = self.box
        seen = np.ascontiguousarray(pixels[top:bottom, left:right])
        if self.area is None:
            return seen
        return np.where(self.area.mask[..., None], seen, np.array(self.fill, seen.dtype))

    def spread(self, values: NDArray[Values]) -> NDArray[Values]:
        """Return a map (h, w) of the box as a map of the whole image (H, W), 0 outside."""
        top, left, bottom, right = self.box
        whole = np.zeros(self.full, values.dtype)
        whole[top:bottom, left:right] = values
        return whole


@dataclass(frozen=True)
class Roi:
    """A region of interest, drawn for images of one size; it fits other sizes of the same aspect ratio too."""

    size: tuple[int, int]
    """(height, width) of the images it was drawn for."""
    packed: str
    """One bit per pixel, deflated, in base 64."""
    fill: tuple[int, int, int] = (128, 128, 128)
    """Colour that replaces pixels that do not count."""

    @classmethod
    def of(cls, mask: NDArray[np.bool_], fill: tuple[int, int, int] = (128, 128, 128)) -> Roi:
        """Return the region of the pixels set in a mask (H, W). Raise ConfigError if there are none."""
        if not mask.any():
            raise ConfigError("the region of interest is empty: it covers no pixel of the image; draw a larger one")
        area = PixelMask.of(mask)
        return cls(area.size, base64.b64encode(zlib.compress(area.bits, 9)).decode("ascii"), fill)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Roi:
        """Return the region that ``dataclasses.asdict`` wrote."""
        try:
            height, width = (int(length) for length in data["size"])
            red, green, blue = (int(value) for value in data["fill"])
            roi = cls((height, width), str(data["packed"]), (red, green, blue))
            if roi.area.mask.shape == roi.size and roi.area.mask.any():
                return roi
        except (KeyError, TypeError, ValueError, binascii.Error, zlib.error):
            pass
        raise ConfigError("the stored region of interest cannot be read; train the model again")

    @cached_property
    def area(self) -> PixelMask:
        """The pixels that count at the size the region was drawn for."""
        return PixelMask(self.size, zlib.decompress(base64.b64decode(self.packed)))

    @property
    def share(self) -> float:
        """Share of the image, 0 … 1."""
        return float(self.area.mask.mean())

    def fits(self, size: tuple[int, int]) -> bool:
        """Return whether images of (height, width) have the region's aspect ratio."""
        return abs(size[0] * self.size[1] / (size[1] * self.size[0]) - 1) <= SLACK

    def at(self, size: tuple[int, int]) -> PixelMask:
        """Return the region in an image of (height, width): pixels that it covers at least half."""
        return _resized(self, size)

    def frame(self, full: tuple[int, int], least: int) -> RoiCrop:
        """Return the crop of an image of (height, width): the box of the region, at least ``least`` pixels a side."""
        return _frame(self, full, least)


def roi_in_words(roi: Roi | None) -> str | None:
    """Describe the region, such as "12% of 640x480 images"; None for no region."""
    return None if roi is None else f"{roi.share:.0%} of {roi.size[1]}x{roi.size[0]} images"


def polygon_mask(polygons: Sequence[Polygon], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return (H, W): the pixels in any of the polygons; two points are opposite corners of a box."""
    image = Image.new("1", (size[1], size[0]))
    pen = ImageDraw.Draw(image)
    for polygon in polygons:
        points = list(polygon)
        if len(points) == 2:
            (x0, y0), (x1, y1) = points
            points = [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]
        pen.polygon(points, fill=1, outline=1)
    return np.asarray(image)


@lru_cache(maxsize=16)
def _resized(roi: Roi, size: tuple[int, int]) -> PixelMask:
    if size == roi.size:
        return roi.area
    image = Image.fromarray(roi.area.mask.astype(np.uint8) * 255)
    shares = np.asarray(image.resize((size[1], size[0]), Image.Resampling.BOX))
    mask = shares >= 128
    # A region finer than a pixel must not vanish.
    return PixelMask.of(mask if mask.any() else shares == shares.max())


@lru_cache(maxsize=16)
def _frame(roi: Roi, full: tuple[int, int], least: int) -> RoiCrop:
    area = roi.at(full)
    sides = [_side(np.flatnonzero(area.mask.any(1 - axis)), full[axis], least) for axis in range(2)]
    box = (sides[0][0], sides[1][0], sides[0][1], sides[1][1])
    seen = area.within(box)
    return RoiCrop(full, box, None if seen.mask.all() else seen, roi.fill)


@lru_cache(maxsize=16)
def _with_roi(frame: RoiCrop, roi: Roi) -> PixelMask:
    area = roi.at(frame.full).within(frame.box)
    return area if frame.area is None else area & frame.area


def _side(inside: NDArray[np.intp], length: int, least: int) -> tuple[int, int]:
    """Return start and stop of one side of the box: all of ``inside``, and at least ``least`` pixels."""
    first, stop = int(inside[0]), int(inside[-1]) + 1
    span = max(stop - first, min(least, length))
    first = min(max(0, first - (span - (stop - first)) // 2), length - span)
    return first, first + span
