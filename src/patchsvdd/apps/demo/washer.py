"""Washer: a turned steel flange with six bolt holes and a stamped mark, on a dark rubber mat."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi, sin

import numpy as np

from patchsvdd.apps.demo.camera_setup import Station
from patchsvdd.apps.demo.drawing import Plane, blur, cloud, coverage, gains, grain, lettering, linear, mix, ramp
from patchsvdd.apps.demo.surface import OVERSAMPLE, Surface

OUTER, BORE, HUB = 0.405, 0.135, 0.195  # radii
BOLT_CIRCLE, BOLT_HOLE, BOLTS = 0.298, 0.034, 6
THICKNESS, CHAMFER, HUB_STEP = 0.034, 0.010, 0.012
STAMP = "A2-70"


@dataclass(frozen=True)
class Washer:
    """The random parameters of one flange."""

    station: Station
    texture_seed: int
    steel: float
    """Reflectance of the metal."""
    warmth: float
    """-1 bluish … 1 yellowish."""
    roughness: float
    """Width of the highlight on the turning marks."""
    tarnish: float
    """Strength of the cloudiness of the metal."""
    undrilled: tuple[int, ...] = ()
    """Bolt holes that are missing, 0 … 5."""
    chip: tuple[float, float, float] | None = None
    """A piece broken off the rim: angle, width and depth."""

    @classmethod
    def drawn(cls, station: Station, rng: np.random.Generator) -> Washer:
        """A flange with random parameters."""
        return cls(
            station=station,
            texture_seed=int(rng.integers(2**32)),
            steel=rng.uniform(0.173, 0.179),
            warmth=rng.uniform(-0.3, 0.3),
            roughness=rng.uniform(0.31, 0.32),
            tarnish=rng.uniform(0.034, 0.038),
        )

    def surface(self, size: int) -> Surface:
        """The flange on its mat, for a photograph of ``size`` pixels."""
        rng = np.random.default_rng(self.texture_seed)
        n = size * OVERSAMPLE
        x, y = self.station.pose.part_grid(n)
        radius = np.maximum(np.sqrt(x * x + y * y), 1e-6)
        outside = self._outside(x, y, radius)
        metal: Plane = np.clip(0.5 - outside * n, 0, 1)
        stamp = coverage(lettering(STAMP, 0, -BOLT_CIRCLE, 0.042, 0.0065), self.station.pose, n)
        turning = _turning(rng, radius)

        mat = linear((44, 45, 48)) * (1 + 0.04 * cloud(rng, n, 5) + 0.10 * grain(rng, n))
        tint = gains((1 + 0.035 * self.warmth, 1, 1 - 0.05 * self.warmth))
        tone = self.steel * (1 + 0.07 * turning + self.tarnish * cloud(rng, n, 7)) * (1 - 0.35 * stamp)
        return Surface(
            albedo=mix(mat, tone * tint, metal),
            height=metal * self._profile(outside, radius, turning) - 0.0035 * blur(stamp, 0.8),
            gloss=0.30 * metal * (1 - 0.5 * stamp),
            sheen=metal * (1 - 0.45 * stamp) * self._sheen(x / radius, y / radius, turning),
            paintable=np.clip(-outside * n - 2, 0, 1),
        )

    def _outside(self, x: Plane, y: Plane, radius: Plane) -> Plane:
        """Distance (n, n) to the metal, negative inside."""
        outside: Plane = np.maximum(radius - OUTER, BORE - radius)
        for i in range(BOLTS):
            if i not in self.undrilled:
                turn = 2 * pi * i / BOLTS
                distance = np.sqrt((x - BOLT_CIRCLE * cos(turn)) ** 2 + (y - BOLT_CIRCLE * sin(turn)) ** 2)
                outside = np.maximum(outside, BOLT_HOLE - distance)
        if self.chip is not None:
            outside = np.maximum(outside, self._chipped(x, y, radius, self.chip))
        return outside

    def _chipped(self, x: Plane, y: Plane, radius: Plane, chip: tuple[float, float, float]) -> Plane:
        """Distance (n, n) to the metal inside the ragged edge of a broken-off piece."""
        turn, width, depth = chip
        along = (y * cos(turn) - x * sin(turn)) / width  # -1 … 1 across the chip
        facing = x * cos(turn) + y * sin(turn) > 0
        ragged = 0.2 * depth * cloud(np.random.default_rng(self.texture_seed + 1), len(x), 40)
        bite = radius - OUTER + depth * (1 - along * along) + ragged
        return np.where(facing & (np.abs(along) < 1.3), bite, np.float32(-1))

    def _profile(self, outside: Plane, radius: Plane, turning: Plane) -> Plane:
        """Height (n, n) of the metal: chamfered edges, a raised hub, a turned groove."""
        edge = np.clip(1 + outside / CHAMFER, 0, 1)
        groove = np.exp(-(((radius - 0.372) / 0.0045) ** 2))
        hub = ramp(radius, HUB + 0.005, HUB - 0.005)
        turned = HUB_STEP * hub - 0.0025 * groove + 0.00016 * turning
        return np.asarray(THICKNESS + turned - CHAMFER * edge * edge)

    def _sheen(self, out_x: Plane, out_y: Plane, turning: Plane) -> Plane:
        """The bow-tie highlight (n, n) of turning marks under a lamp; ``out`` points away from the axis."""
        bow = self.station.light.azimuth - self.station.pose.angle
        along = out_x * cos(bow) + out_y * sin(bow)
        across = out_y * cos(bow) - out_x * sin(bow) + 0.10 * turning * along
        second = across * cos(1.15) + along * sin(1.15)
        lamp = (1 + 0.25 * along) * np.exp(-((across / self.roughness) ** 2))
        window = np.exp(-((second / (0.7 * self.roughness)) ** 2))  # reflection of a window
        return np.asarray((0.46 * lamp + 0.12 * window) * (1 + 0.05 * turning))


def _turning(rng: np.random.Generator, radius: Plane) -> Plane:
    """The turning marks (n, n): noise that depends only on the radius."""
    largest, steps = 0.75, 1500
    radii = np.arange(steps) / steps
    marks = np.zeros(steps)
    for rings, weight in ((40, 0.5), (110, 0.7), (260, 0.9)):
        marks += weight * np.interp(radii, np.linspace(0, 1, rings + 1), rng.standard_normal(rings + 1))
    return marks.astype(np.float32)[(radius * (steps / largest)).astype(np.int32)]
