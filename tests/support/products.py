"""Images of two products, and of none of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.parts import TINY, draw_part

Picture = NDArray[np.uint8]
SETTINGS: dict[str, Any] = {**TINY, "image_size": 64, "preset": "encoder", "device": "cpu"}


def disc(seed: int, *, defect: bool = False) -> Picture:
    """A disc on stripes, at another place for each seed; ``defect`` adds a dark square near a corner."""
    down, right = np.random.default_rng(seed).integers(-14, 15, 2)
    picture = np.roll(draw_part(seed, (128, 128)), (int(down), int(right)), (0, 1))
    if defect:
        picture[10:25, 10:25] = (10, 0, 120)
    return picture


def stripes(seed: int) -> Picture:
    """The disc's colours swapped, turned by a right angle, with another texture."""
    picture = np.rot90(disc(seed))[:, :, ::-1].astype(np.float64)
    picture += 60 * np.sin(np.arange(128) * 0.9)[:, None, None]
    return np.ascontiguousarray(np.clip(picture, 0, 255).astype(np.uint8))


def noise(seed: int) -> Picture:
    """No known product."""
    return np.random.default_rng(seed).integers(0, 256, (128, 128, 3), dtype=np.uint8)


DRAWN: dict[str, Callable[[int], Picture]] = {"disc": disc, "stripes": stripes}
