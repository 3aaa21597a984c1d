"""Synthetic photos of a flange, so that the examples run without any data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter


def flange(seed: int, *, scratched: bool = False) -> Image.Image:
    """A 96 × 96 photo of a flange with five holes; its angle, its position and the light depend on the seed."""
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(45, 51, 2)
    light = rng.integers(-10, 11)
    ground, steel = (int(shade + light) for shade in (62, 170))
    photo = Image.new("L", (96, 96), ground)
    draw = ImageDraw.Draw(photo)
    draw.circle((x, y), 36, fill=steel)
    draw.circle((x, y), 10, fill=ground)
    for angle in rng.uniform(0, 2 * np.pi) + np.arange(5) * 2 * np.pi / 5:
        draw.circle((x + 23 * np.cos(angle), y + 23 * np.sin(angle)), 6, fill=ground)
    if scratched:
        draw.line((x - 20, y - 26, x + 22, y - 12), fill=20, width=3)
    pixels = np.asarray(photo.filter(ImageFilter.GaussianBlur(0.8)), dtype=np.float32)
    mottle = rng.normal(0, 9, (24, 24)).repeat(4, axis=0).repeat(4, axis=1)  # no two castings look the same
    noise = rng.normal(0, 3, (96, 96, 3))
    return Image.fromarray(np.clip((pixels + mottle)[..., None] + noise, 0, 255).astype(np.uint8))


def write_flanges(folder: Path, count: int, *, first_seed: int = 0, scratched: bool = False) -> Path:
    """Write ``count`` images to ``folder`` as 000.png, 001.png, … and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        flange(first_seed + index, scratched=scratched).save(folder / f"{index:03d}.png")
    return folder
