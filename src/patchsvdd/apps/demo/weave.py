"""Weave: a plain-woven linen over a dark table, with threads of uneven thickness and colour."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi

import numpy as np
from numpy.typing import NDArray

from patchsvdd.apps.demo.camera_setup import Station
from patchsvdd.apps.demo.drawing import Colour, Plane, cloud, gains, grain, linear
from patchsvdd.apps.demo.surface import OVERSAMPLE, Surface

THREADS = 22  # from side to side
SPARE = 4  # threads beyond the image, on each side
NO_YARN = -1.6  # height of the table, in threads
WARP: Colour = (188, 178, 158)
WEFT: Colour = (172, 160, 140)
TABLE: Colour = (58, 55, 52)


@dataclass(frozen=True)
class Stretch:
    """A stretch of one thread."""

    weft: bool
    """A thread from left to right, otherwise from top to bottom."""
    thread: int
    """0 … THREADS - 1."""
    start: float
    """Start along the thread, in threads."""
    stop: float

    def covers(self, across: Plane, along: Plane) -> NDArray[np.bool_]:
        """Whether each point (n, n), in threads, belongs to the stretch."""
        frayed = along + 0.2 * np.sin(17 * across) + 0.1 * np.sin(41 * across)
        return np.asarray((np.floor(across) == self.thread) & (frayed > self.start) & (frayed < self.stop))


@dataclass(frozen=True)
class Weave:
    """The random parameters of one piece of cloth."""

    station: Station
    texture_seed: int
    tint: Colour
    """Gain of red, green and blue of the yarn."""
    waviness: float
    """Amplitude of the waviness, in threads."""
    gaps: tuple[Stretch, ...] = ()
    """Missing stretches of threads."""

    @classmethod
    def drawn(cls, station: Station, rng: np.random.Generator) -> Weave:
        """A piece of cloth with random parameters."""
        tone = rng.uniform(0.98, 1.02)
        return cls(
            station=station,
            texture_seed=int(rng.integers(2**32)),
            tint=(tone * rng.uniform(0.995, 1.005), tone, tone * rng.uniform(0.99, 1.01)),
            waviness=rng.uniform(0.06, 0.10),
        )

    def surface(self, size: int) -> Surface:
        """The cloth on its table, for a photograph of ``size`` pixels."""
        rng = np.random.default_rng(self.texture_seed)
        n = size * OVERSAMPLE
        x, y = self.station.pose.part_grid(n)
        u = (x + 0.5) * THREADS + self.waviness * cloud(rng, n, 6)
        v = (y + 0.5) * THREADS + self.waviness * cloud(rng, n, 6)
        warp = self._threads(rng, u, v, weft=False)
        weft = self._threads(rng, v, u, weft=True)

        on_warp = warp.height >= weft.height
        top = np.where(on_warp, warp.height, weft.height)
        yarn = top > NO_YARN  # elsewhere the table is visible
        colour = np.where(on_warp, linear(WARP), linear(WEFT)) * np.where(on_warp, warp.shade, weft.shade)
        fuzz = 1 + 0.05 * grain(rng, n) + 0.04 * cloud(rng, n, 5)
        return Surface(
            albedo=np.where(yarn, colour * gains(self.tint) * fuzz, linear(TABLE)),
            height=0.30 / THREADS * np.maximum(top, NO_YARN),
            gloss=np.full_like(top, 0.04),
            sheen=np.zeros_like(top),
            paintable=np.ones_like(top),
        )

    def _threads(self, rng: np.random.Generator, across: Plane, along: Plane, *, weft: bool) -> _Threads:
        """All threads of one direction; ``across`` is the coordinate across the threads, ``along`` along them."""
        count = THREADS + 2 * SPARE
        number = np.floor(across)
        index = np.clip(number + SPARE, 0, count - 1).astype(np.int32)
        thickness = (0.86 + 0.03 * rng.standard_normal(count)).clip(0.7, 0.98).astype(np.float32)
        shade = (1 + 0.04 * rng.standard_normal(count)).astype(np.float32)
        slub = cloud(rng, 64, 14, rows=64)  # slow changes of thickness along each thread, one row per thread
        column = np.clip((along + SPARE) * (64 / count), 0, 63).astype(np.int32)
        width = thickness[index] * (1 + 0.05 * slub[index, column])

        off = (across - number - 0.5) * 2 / width  # -1 … 1 inside the thread
        inside = 1 - off * off
        over = np.cos(pi * (along - 0.5 - number)) * (-1 if weft else 1)  # 1 on top, -1 below
        height = 0.9 * np.sqrt(np.maximum(inside, 0)) + 0.5 * over - 0.9
        height = np.where(inside > 0, height, np.float32(NO_YARN))
        for gap in self.gaps:
            if gap.weft == weft:
                height[gap.covers(across, along)] = NO_YARN
        twist = np.sin(2 * pi * (1.1 * off + 2.2 * along + 0.37 * number))
        return _Threads(height, shade[index] * (1 + 0.10 * twist))


@dataclass(frozen=True)
class _Threads:
    """Height (n, n), in threads, and brightness (n, n) of the threads of one direction."""

    height: Plane
    shade: Plane
