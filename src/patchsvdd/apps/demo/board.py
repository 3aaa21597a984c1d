"""Board: a small green circuit board with components at fixed positions, on an antistatic mat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image, ImageDraw

from patchsvdd.apps.demo.board_components import COMPONENTS, GOLD, Component, Stamp, body, footprint
from patchsvdd.apps.demo.camera_setup import Station
from patchsvdd.apps.demo.drawing import (
    EDGE_SAMPLES,
    Colour,
    Plane,
    Polygon,
    Pose,
    box,
    cloud,
    coverage,
    disc,
    gains,
    grain,
    lettering,
    linear,
    mix,
    raster_points,
    stroke,
)
from patchsvdd.apps.demo.surface import OVERSAMPLE, Surface

WIDTH, HEIGHT, THICKNESS = 0.90, 0.86, 0.018
TALLEST = 0.06  # height of the byte 255 in the height raster
CORNERS = ((-0.40, -0.38), (0.40, -0.38), (-0.40, 0.38), (0.40, 0.38))
SOLDER_MASK: Colour = (16, 84, 50)
TRACE: Colour = (30, 106, 62)
SILKSCREEN: Colour = (214, 218, 208)
DRILLED: Colour = (20, 22, 24)

TRACES: tuple[tuple[tuple[float, float], ...], ...] = (
    ((-0.33, -0.24), (-0.24, -0.24), (-0.18, -0.18), (-0.18, -0.10)),
    ((-0.33, -0.17), (-0.27, -0.17), (-0.22, -0.12), (-0.19, -0.12)),
    ((-0.20, -0.32), (-0.20, -0.26), (-0.11, -0.17)),
    ((-0.08, -0.32), (-0.08, -0.17)),
    ((0.04, -0.32), (0.04, -0.24), (-0.02, -0.18), (-0.02, -0.16)),
    ((0.16, -0.32), (0.16, -0.27), (0.02, -0.13), (0.02, -0.10)),
    ((0.07, -0.06), (0.15, -0.06), (0.20, -0.09)),
    ((0.07, 0.00), (0.17, 0.00), (0.22, 0.05), (0.22, 0.12)),
    ((-0.10, 0.10), (-0.10, 0.16), (-0.14, 0.20)),
    ((-0.02, 0.10), (-0.02, 0.36)),
    ((0.03, 0.10), (0.09, 0.16), (0.09, 0.24)),
    ((0.34, 0.14), (0.39, 0.09), (0.39, -0.20)),
    ((-0.20, 0.02), (-0.25, 0.02), (-0.28, 0.05)),
    ((-0.30, 0.28), (-0.22, 0.28), (-0.17, 0.33), (-0.17, 0.40)),
    ((0.20, 0.28), (0.15, 0.33), (0.15, 0.40)),
)
VIAS = ((-0.22, -0.12), (0.12, -0.22), (0.15, -0.06), (0.17, 0.03), (-0.02, 0.16), (0.39, 0.04), (-0.21, 0.13),
        (-0.25, -0.06), (0.09, 0.13), (-0.05, 0.35), (0.34, 0.34))  # fmt: skip


@dataclass(frozen=True)
class Board:
    """The random parameters of one board."""

    station: Station
    texture_seed: int
    tint: Colour
    """Gain of red, green and blue of the solder mask."""
    ink: float
    """Brightness of the silkscreen."""
    components: tuple[Component, ...]
    """With their positions and colours on this board."""
    missing: frozenset[str] = frozenset()
    """Names of missing components; their footprints are still drawn."""

    @classmethod
    def drawn(cls, station: Station, rng: np.random.Generator) -> Board:
        """A board with random parameters."""
        return cls(
            station=station,
            texture_seed=int(rng.integers(2**32)),
            tint=(rng.uniform(0.98, 1.02), rng.uniform(0.99, 1.01), rng.uniform(0.98, 1.02)),
            ink=rng.uniform(0.96, 1.02),
            components=tuple(component.placed(rng) for component in COMPONENTS),
        )

    def surface(self, size: int) -> Surface:
        """The board on its mat, for a photograph of ``size`` pixels."""
        rng = np.random.default_rng(self.texture_seed)
        n, pose = size * OVERSAMPLE, self.station.pose
        resist, stamped, height, gloss = _raster(list(self._stamps()), pose, n)
        edge = coverage([box(0, 0, WIDTH, HEIGHT)], pose, n)

        mat = linear((84, 90, 100)) * (1 + 0.02 * cloud(rng, n, 4) + 0.06 * grain(rng, n))
        laminate = 1 + 0.035 * cloud(rng, n, 6) + 0.03 * cloud(rng, n, 90)
        colour = stamped * (1 + (gains(self.tint) * laminate - 1) * resist)
        return Surface(
            albedo=mix(mat, colour, edge),
            height=edge * (THICKNESS + height),
            gloss=edge * gloss,
            sheen=np.zeros_like(edge),
            paintable=edge,
        )

    def _stamps(self) -> Iterable[Stamp]:
        """Everything on the board, lowest first."""
        yield Stamp(box(0, 0, WIDTH + 0.02, HEIGHT + 0.02), SOLDER_MASK, 0, 0.25, resist=True)
        yield from _copper()
        ink = tuple(min(255.0, self.ink * channel) for channel in SILKSCREEN)
        for polygon in _silkscreen():
            yield Stamp(polygon, (ink[0], ink[1], ink[2]), 0.001, 0.1)
        for component in self.components:
            if component.name not in self.missing:
                yield from body(component)


@cache
def _copper() -> tuple[Stamp, ...]:
    """The traces under the solder mask and the visible gold."""
    traces = [Stamp(bar, TRACE, 0.0012, 0.25, resist=True) for trace in TRACES for bar in stroke(trace, 0.011)]
    rings = [(x, y, 0.012) for x, y in VIAS] + [(x, y, 0.035) for x, y in CORNERS]
    gold = [disc(x, y, radius) for x, y, radius in rings]
    gold += [box(-0.216 + 0.048 * i, 0.405, 0.028, 0.05) for i in range(10)]
    gold += [pad for component in COMPONENTS for pad in footprint(component)]
    holes = [Stamp(disc(x, y, 0.55 * radius, 16), DRILLED, 0, 0) for x, y, radius in rings]
    return (*traces, *(Stamp(polygon, GOLD, 0.0012, 0.5) for polygon in gold), *holes)


@cache
def _silkscreen() -> tuple[Polygon, ...]:
    """The print on the board: names, and a frame around the larger components."""
    lines: list[Polygon] = []
    for component in COMPONENTS:
        x, y, (w, h) = component.x, component.y, component.outline
        if component.framed:
            corners = [(x - w, y - h), (x + w, y - h), (x + w, y + h), (x - w, y + h), (x - w, y - h)]
            lines += stroke(corners, 0.005)
        lx, ly = component.label
        lines += lettering(component.name, x + lx, y + ly, 0.03, 0.006)
    return tuple(lines)


def _raster(stamps: Sequence[Stamp], pose: Pose, n: int) -> tuple[Plane, Plane, Plane, Plane]:
    """Fraction of bare solder mask (n, n), albedo (3, n, n), height (n, n) and gloss (n, n) of the stamps."""
    side = n * EDGE_SAMPLES
    colour, relief = Image.new("RGB", (side, side)), Image.new("RGB", (side, side))
    colour_draw, relief_draw = ImageDraw.Draw(colour), ImageDraw.Draw(relief)
    corners = raster_points([stamp.polygon for stamp in stamps], pose, n)
    for stamp, points in zip(stamps, corners, strict=True):
        red, green, blue = stamp.colour
        colour_draw.polygon(points, fill=(int(red), int(green), int(blue)))
        lift, shine = int(stamp.height / TALLEST * 255), int(stamp.gloss * 255)
        relief_draw.polygon(points, fill=(lift, shine, 255 * stamp.resist))
    albedo = _planes(colour) ** np.float32(2.2)
    height, gloss, resist = _planes(relief)
    return resist, albedo, height * TALLEST, gloss


def _planes(raster: Image.Image) -> Plane:
    """The channels (3, n, n) of a raster, 0 … 1."""
    samples = np.moveaxis(np.asarray(raster.reduce(EDGE_SAMPLES)), -1, 0)
    return np.ascontiguousarray(samples, dtype=np.float32) / np.float32(255)
