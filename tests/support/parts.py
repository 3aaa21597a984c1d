"""Tiny seeded images of parts, and settings under which a training takes a second or less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from patchsvdd.core.config import Config, CriticSettings
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.fitting import DetectorParts
from patchsvdd.encoder.networks import PatchEncoder
from patchsvdd.images.normalization import Normalization
from patchsvdd.memory.bank import Memory
from patchsvdd.scoring.calibration import Calibration
from patchsvdd.scoring.map_builder import MapBuilder

ROOT = Path(__file__).parents[2]

TINY: dict[str, Any] = {"image_size": 64, "steps": 2, "batch_size": 1, "pairs_per_crop": 16, "stop": "end"}
"""Settings under which training takes a second or less, and is not undone for being so short."""
TINY_CRITIC: dict[str, Any] = {"critic": CriticSettings(width=2, steps=2, batch_size=2), "fusion_share": 0.5}
"""The same for presets with a critic."""


def assemble(
    config: Config,
    encoder: PatchEncoder,
    normalization: Normalization,
    memory: Memory,
    calibration: Calibration | None = None,
) -> PatchSVDD:
    """A detector of finished parts, on the CPU."""
    learned = DetectorParts(encoder, normalization, MapBuilder(memory), calibration=calibration)
    return PatchSVDD(config, learned, torch.device("cpu"))


def draw_part(seed: int, size: tuple[int, int] = (64, 64), defect: bool = False) -> NDArray[np.uint8]:
    """A good part (H, W, 3): a disc on a striped ground, each a little different; ``defect`` adds a dark spot."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: size[0], : size[1]].astype(np.float64)
    centre_y, centre_x = size[0] / 2 + rng.uniform(-2, 2), size[1] / 2 + rng.uniform(-2, 2)
    disc = np.hypot(y - centre_y, x - centre_x) < min(size) * 0.3
    picture = np.stack([90 + 40 * np.sin(x / 3), 110 + 0.5 * y, 100 + 30 * np.cos((x + y) / 5)], axis=-1)
    picture[disc] = (190, 180, 60)
    picture += rng.normal(0, 3, picture.shape)
    if defect:
        picture[size[0] // 2 - 5 : size[0] // 2 + 5, size[1] // 2 - 5 : size[1] // 2 + 5] = (10, 0, 120)
    pixels: NDArray[np.uint8] = np.clip(picture, 0, 255).astype(np.uint8)
    return pixels


def save_picture(path: Path, pixels: NDArray[np.uint8]) -> Path:
    """Write pixels to a file, in folders made for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path
