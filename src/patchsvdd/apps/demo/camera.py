"""Camera: a lit surface → a photograph with sensor noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patchsvdd.apps.demo.drawing import Plane, blur, gains, grid, halved


@dataclass(frozen=True)
class Camera:
    """A fixed industrial camera; exposure and white balance drift a little from shot to shot."""

    exposure: float
    """At 1, white paper is 0.9 of the brightest value."""
    white_balance: tuple[float, float, float]
    """Gain of red, green, blue."""
    vignette: float
    """Fraction of the light lost in the corners."""
    lens_blur: float
    """Radius in pixels of the photograph."""
    noise: float
    """Standard deviation of the sensor noise at mid grey, in grey levels of 255."""
    noise_seed: int

    def expose(self, radiance: Plane) -> Plane:
        """Photograph (3, size, size), 0 … 255, before noise and rounding."""
        pixels = blur(halved(radiance), self.lens_blur)
        x, y = grid(pixels.shape[-1])
        gain = self.exposure * (1 - self.vignette * 2 * (x * x + y * y))
        pixels = np.maximum(pixels * gain * gains(self.white_balance), 0)
        squared = pixels * pixels
        shoulder = pixels / np.sqrt(np.sqrt(1 + squared * squared))  # highlights roll off instead of clipping
        return np.asarray(255 * shoulder ** (1 / 2.2), dtype=np.float32)

    def sensor_noise(self, photograph: Plane) -> Plane:
        """Noise (3, size, size) of this shot, stronger in bright areas and slightly blurred."""
        rng = np.random.default_rng(self.noise_seed)
        luminance = rng.standard_normal(photograph.shape[1:], dtype=np.float32)
        colour = rng.standard_normal(photograph.shape, dtype=np.float32)
        noise = blur(0.98 * luminance + 0.85 * colour, 0.45)
        return np.asarray(self.noise * (0.8 + photograph / 300) * noise)


def develop(photograph: Plane, noise: Plane) -> NDArray[np.uint8]:
    """The final 8-bit image (size, size, 3): photograph plus noise."""
    pixels = np.clip(np.round(photograph + noise), 0, 255).astype(np.uint8)
    return np.ascontiguousarray(np.moveaxis(pixels, 0, -1))
