"""Surface: colour, height and gloss of the scene under the camera; Light: its illumination."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, sin, sqrt, tan

import numpy as np

from patchsvdd.apps.demo.drawing import Plane, blur, grid, halved

OVERSAMPLE = 2  # samples per pixel and axis; the camera averages 2 × 2 samples
SPECULAR_DOUBLINGS = 4  # the highlight falls off with the cosine to the power 2 · 2^4 = 32


@dataclass(frozen=True)
class Surface:
    """The scene under the camera, (n, n) samples with n = OVERSAMPLE × the size of the photograph."""

    albedo: Plane
    """(3, n, n) fraction of the light that is scattered back, 0 … 1, linear."""
    height: Plane
    """(n, n) above the table, in image widths."""
    gloss: Plane
    """(n, n) strength of the mirror-like highlight, 0 … 1."""
    sheen: Plane
    """(n, n) light that brushed grain reflects towards the camera, 0 … 1."""
    paintable: Plane
    """(n, n) 1 where a defect may be drawn, 0 outside the part."""

    @property
    def n(self) -> int:
        """Samples per side."""
        return len(self.height)


@dataclass(frozen=True)
class Light:
    """One lamp at the side and the ambient light."""

    azimuth: float
    """Radians; the lamp is in the direction (cos, sin) from the centre of the image."""
    elevation: float
    """Radians above the table."""
    key: float
    """Strength of the lamp on a flat surface."""
    ambient: float
    """Strength of the ambient light."""
    falloff: float
    """Relative increase of the lamp's strength from the centre of the image to its side."""
    softness: float
    """Blur of its shadows, in image widths."""

    @property
    def direction(self) -> tuple[float, float, float]:
        """Unit vector towards the lamp."""
        flat = cos(self.elevation)
        return flat * cos(self.azimuth), flat * sin(self.azimuth), sin(self.elevation)


def light_up(surface: Surface, light: Light) -> Plane:
    """Light (3, n, n) that leaves the surface towards the camera, linear; 1 is white paper."""
    n = surface.n
    slope_y, slope_x = (np.asarray(np.gradient(n * surface.height, axis=axis)) for axis in (0, 1))  # rise per run
    steepness = 1 / np.sqrt(slope_x**2 + slope_y**2 + 1)
    lit, mirrored = _facing(slope_x, slope_y, steepness, light)
    x, y = grid(n)
    toward = cos(light.azimuth) * x + sin(light.azimuth) * y
    small = halved(surface.height)  # shadows are soft, so half the resolution suffices
    key = light.key * (1 + 2 * light.falloff * toward) * _doubled(1 - 0.85 * _cast_shadow(small, light))
    scattered = light.ambient * _doubled(_openness(small)) + key * lit
    reflected = key * (surface.gloss * mirrored + surface.sheen)
    return surface.albedo * scattered + reflected


def _facing(slope_x: Plane, slope_y: Plane, steepness: Plane, light: Light) -> tuple[Plane, Plane]:
    """Diffuse factor of the surface's orientation to the lamp (1 if flat), and its mirror-like highlight."""
    lx, ly, lz = light.direction
    lit = np.maximum((lz - lx * slope_x - ly * slope_y) * steepness / lz, 0)
    # Blinn: the half-way vector between lamp and camera.
    facing = (lz + 1 - lx * slope_x - ly * slope_y) * steepness / sqrt(2 + 2 * lz)
    mirrored = np.maximum(facing, 0) ** 2
    for _ in range(SPECULAR_DOUBLINGS):
        mirrored = mirrored * mirrored
    return np.minimum(lit, 2), mirrored


def _cast_shadow(height: Plane, light: Light) -> Plane:
    """Fraction of the lamp's light (n, n) that higher points block, 0 … 1."""
    n = height.shape[0]
    rise = tan(light.elevation)
    longest = int(float(height.max() - height.min()) / rise * n) + 1  # samples
    padded = np.pad(height, longest, mode="edge")
    shadow = np.zeros_like(height)
    for distance in range(1, longest + 1):
        top = longest + round(distance * sin(light.azimuth))
        left = longest + round(distance * cos(light.azimuth))
        excess = padded[top : top + n, left : left + n] - height
        excess -= distance * rise / n
        np.maximum(shadow, excess, out=shadow)
    return blur(np.minimum(shadow * n, 1), light.softness * n)


def _openness(height: Plane) -> Plane:
    """Fraction of the ambient light that reaches each sample (n, n), less in corners and pits."""
    covered = np.maximum(blur(height, height.shape[0] / 80) - height, 0)
    return 1 / (1 + 35 * covered)


def _doubled(plane: Plane) -> Plane:
    """Every sample (n, n) repeated as 2 × 2 samples (2 n, 2 n)."""
    return plane.repeat(2, axis=0).repeat(2, axis=1)
