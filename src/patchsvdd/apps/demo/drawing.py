"""Noise fields and anti-aliased shapes, used to draw the demo parts.

Lengths are in image widths; the origin is the centre of the image, x to the right, y down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Plane = NDArray[np.floating[Any]]  # float32 (n, n), or (3, n, n) for colours
Polygon = NDArray[np.float64]  # (corners, 2)
Colour = tuple[float, float, float]  # sRGB, 0 … 255

EDGE_SAMPLES = 2  # shapes are rasterised at this multiple of the final resolution

# Strokes of the characters used on the parts, on a grid 2 wide and 4 high.
GLYPHS: dict[str, tuple[tuple[tuple[float, float], ...], ...]] = {
    "A": (((0, 4), (1, 0), (2, 4)), ((0.5, 2.6), (1.5, 2.6))),
    "C": (((2, 0.4), (1.4, 0), (0.5, 0), (0, 0.8), (0, 3.2), (0.5, 4), (1.4, 4), (2, 3.6)),),
    "D": (((0, 0), (1.2, 0), (2, 1), (2, 3), (1.2, 4), (0, 4), (0, 0)),),
    "R": (((0, 4), (0, 0), (1.5, 0), (2, 0.6), (2, 1.5), (1.5, 2.1), (0, 2.1)), ((1, 2.1), (2, 4))),
    "U": (((0, 0), (0, 3.2), (0.6, 4), (1.4, 4), (2, 3.2), (2, 0)),),
    "-": (((0.4, 2.2), (1.6, 2.2)),),
    "0": (((0.6, 0), (1.4, 0), (2, 0.8), (2, 3.2), (1.4, 4), (0.6, 4), (0, 3.2), (0, 0.8), (0.6, 0)),),
    "1": (((0.4, 0.8), (1.1, 0), (1.1, 4)),),
    "2": (((0, 0.8), (0.6, 0), (1.5, 0), (2, 0.7), (2, 1.4), (0, 4), (2, 4)),),
    "3": (((0, 0.3), (0.6, 0), (1.5, 0), (2, 1), (1, 1.9), (2, 2.8), (1.5, 4), (0.6, 4), (0, 3.7)),),
    "7": (((0, 0), (2, 0), (0.8, 4)),),
}


@dataclass(frozen=True)
class Pose:
    """Position and rotation of the part under the camera."""

    shift: tuple[float, float]
    """Image widths."""
    angle: float
    """Radians."""

    def to_image(self, points: Polygon) -> Polygon:
        """Image coordinates (k, 2) of points of the part (k, 2)."""
        c, s = np.cos(self.angle), np.sin(self.angle)
        return np.asarray(points @ np.array([[c, s], [-s, c]]) + self.shift)

    def part_grid(self, n: int) -> tuple[Plane, Plane]:
        """Part coordinates x, y of the centre of every sample of an (n, n) plane."""
        x, y = grid(n)
        x, y = x - np.float32(self.shift[0]), y - np.float32(self.shift[1])
        c, s = np.float32(np.cos(self.angle)), np.float32(np.sin(self.angle))
        return c * x + s * y, c * y - s * x


def grid(n: int) -> tuple[Plane, Plane]:
    """Image coordinates x, y of the centre of every sample of an (n, n) plane, -0.5 … 0.5."""
    axis = ((np.arange(n) + 0.5) / n - 0.5).astype(np.float32)
    x, y = np.meshgrid(axis, axis)
    return x, y


def ramp(values: Plane, start: float, stop: float) -> Plane:
    """0 at ``start``, 1 at ``stop``, smooth in between and flat outside; ``stop`` may be the smaller one."""
    t: Plane = np.clip((values - start) / (stop - start), 0, 1)
    return t * t * (3 - 2 * t)


def cloud(rng: np.random.Generator, n: int, cells: int, rows: int | None = None) -> Plane:
    """Smooth noise (n, n), mean about 0 and standard deviation about 1, with ``cells`` bumps per image width."""
    values = rng.standard_normal((rows or cells, cells)).astype(np.float32)
    return np.asarray(Image.fromarray(values).resize((n, n), Image.Resampling.BICUBIC))


def grain(rng: np.random.Generator, n: int) -> Plane:
    """White noise (n, n) of standard deviation 1."""
    return rng.standard_normal((n, n), dtype=np.float32)


def blur(plane: Plane, sigma: float) -> Plane:
    """``plane`` (…, n, n) blurred with a Gaussian of ``sigma`` samples; edges are repeated."""
    radius = max(1, round(2.5 * sigma))
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    weights = (weights / weights.sum()).astype(np.float32)
    height, width = plane.shape[-2:]
    sides = [(0, 0)] * (plane.ndim - 2)
    padded = np.pad(plane, [*sides, (radius, radius), (0, 0)], mode="edge")
    rows = sum((w * padded[..., i : i + height, :] for i, w in enumerate(weights)), np.float32(0))
    padded = np.pad(rows, [*sides, (0, 0), (radius, radius)], mode="edge")
    return np.asarray(sum((w * padded[..., i : i + width] for i, w in enumerate(weights)), np.float32(0)))


def halved(plane: Plane) -> Plane:
    """``plane`` at half the resolution (…, n / 2, n / 2), as means of 2 × 2 samples."""
    rows = plane[..., ::2, :] + plane[..., 1::2, :]
    return (rows[..., ::2] + rows[..., 1::2]) * 0.25


def linear(colour: Colour) -> Plane:
    """Reflectance (3, 1, 1) 0 … 1 of an sRGB colour."""
    return (gains(colour) / 255) ** 2.2


def gains(rgb: Colour) -> Plane:
    """One number per channel as (3, 1, 1), to be multiplied with (n, n) or (3, n, n)."""
    return np.array(rgb, dtype=np.float32).reshape(3, 1, 1)


def mix(below: Plane, above: Plane, weight: Plane) -> Plane:
    """``below`` where ``weight`` is 0, ``above`` where it is 1."""
    return below + (above - below) * weight


def disc(x: float, y: float, radius: float, corners: int = 28) -> Polygon:
    """A regular polygon that approximates a circle."""
    turn = np.linspace(0, 2 * np.pi, corners, endpoint=False)
    return np.stack([x + radius * np.cos(turn), y + radius * np.sin(turn)], axis=1)


def box(x: float, y: float, width: float, height: float) -> Polygon:
    """A rectangle around (x, y)."""
    corners = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * (width / 2, height / 2)
    return np.asarray(corners + np.array([x, y]))


def stroke(points: Sequence[tuple[float, float]], width: float) -> list[Polygon]:
    """One bar per segment of a polyline, slightly longer than the segment so that corners close."""
    bars = []
    for a, b in pairwise(np.asarray(points, dtype=np.float64)):
        along = (b - a) / max(float(np.hypot(*(b - a))), 1e-9) * width / 2
        across = np.array([-along[1], along[0]])
        bars.append(np.stack([a - along - across, b + along - across, b + along + across, a - along + across]))
    return bars


@cache
def lettering(text: str, x: float, y: float, height: float, width: float) -> tuple[Polygon, ...]:
    """``text`` centred on (x, y), ``height`` high, in strokes of ``width``."""
    unit, advance = height / 4, 3.0
    left = x - unit * (advance * len(text) - 1) / 2
    bars: list[Polygon] = []
    for i, character in enumerate(text):
        for line in GLYPHS[character]:
            points = [(left + unit * (advance * i + u), y + unit * (v - 2)) for u, v in line]
            bars += stroke(points, width)
    return tuple(bars)


def coverage(polygons: Sequence[Polygon], pose: Pose, n: int) -> Plane:
    """Fraction of every sample of an (n, n) plane that the polygons cover, 0 … 1."""
    raster = Image.new("L", (n * EDGE_SAMPLES, n * EDGE_SAMPLES))
    draw = ImageDraw.Draw(raster)
    for points in raster_points(polygons, pose, n):
        draw.polygon(points, fill=255)
    return np.asarray(raster.reduce(EDGE_SAMPLES), dtype=np.float32) / np.float32(255)


def raster_points(polygons: Sequence[Polygon], pose: Pose, n: int) -> list[list[tuple[float, float]]]:
    """The corners of a part's polygons in the pixels of the raster of an (n, n) plane."""
    pixels = (pose.to_image(np.concatenate(polygons)) + 0.5) * (n * EDGE_SAMPLES) - 0.5
    corners = [(u, v) for u, v in pixels.tolist()]
    stops = accumulate((len(polygon) for polygon in polygons), initial=0)
    return [corners[start:stop] for start, stop in pairwise(stops)]
