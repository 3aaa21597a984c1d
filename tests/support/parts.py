"""Tiny seeded images of parts, a writer for categories in MVTec layout, and settings for short trainings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from patchsvdd.core.config import Config
from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.fitting import DetectorParts
from patchsvdd.encoder.networks import PatchEncoder
from patchsvdd.images.normalization import Normalization
from patchsvdd.memory.bank import Memory
from patchsvdd.scoring.calibration import Calibration
from patchsvdd.scoring.map_builder import MapBuilder

ROOT = Path(__file__).parents[2]

NO_ESTIMATE: dict[str, Any] = {"aim": "few-alarms", "synthetic_defects": 0}
"""A threshold by rank, and no synthetic defects: their estimate takes longer than a tiny training."""
TINY: dict[str, Any] = {"image_size": 64, "steps": 2, "batch_size": 1, "pairs_per_crop": 16, "stop": "end"}
TINY |= NO_ESTIMATE
"""Settings for a training of at most a second that keeps its encoder although it is so short."""
TINY_CRITIC: dict[str, Any] = {"critic": CriticSettings(width=2, steps=2, batch_size=2), "fusion_share": 0.5}
"""The same for presets with a critic."""


def assemble(
    config: Config,
    encoder: PatchEncoder,
    normalization: Normalization,
    memory: Memory,
    calibration: Calibration | None = None,
) -> PatchSVDD:
    """A detector built from finished parts, on the CPU."""
    learned = DetectorParts(encoder, normalization, MapBuilder(memory), calibration=calibration)
    return PatchSVDD(config, learned, torch.device("cpu"))


def draw_part(seed: int, size: tuple[int, int] = (64, 64), defect: bool = False) -> NDArray[np.uint8]:
    """An image (H, W, 3) of a disc on stripes that differs a little for each seed; ``defect`` adds a dark square."""
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
    """Write an image file and create its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def square_mask(rows: slice = slice(27, 37), columns: slice = slice(27, 37)) -> NDArray[np.uint8]:
    """A mask (64, 64) with one white rectangle; by default the dark square of ``draw_part``."""
    mask = np.zeros((64, 64), np.uint8)
    mask[rows, columns] = 255
    return mask


Pictures = Sequence[NDArray[np.uint8]]


def save_category(
    folder: Path,
    train: Pictures,
    good: Pictures,
    defects: Mapping[str, Sequence[tuple[Any, Any]]],
    *,
    masks: bool = True,
) -> Path:
    """Write a category in MVTec layout with files 000.png, 001.png, …, and return ``folder``.

    ``defects`` holds pairs of image and mask for each kind of defect.
    """
    for index, picture in enumerate(train):
        save_picture(folder / "train" / "good" / f"{index:03}.png", picture)
    for index, picture in enumerate(good):
        save_picture(folder / "test" / "good" / f"{index:03}.png", picture)
    for kind, pairs in defects.items():
        for index, (picture, mask) in enumerate(pairs):
            save_picture(folder / "test" / kind / f"{index:03}.png", picture)
            if masks:
                save_picture(folder / "ground_truth" / kind / f"{index:03}_mask.png", mask)
    return folder
