"""Previews of a running training: heat maps of synthetic defects in good images."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from patchsvdd.core.config import Config
from patchsvdd.core.files import atomic_write
from patchsvdd.critic.synthetic_defects import Sizes, draw_visible
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.leave_one_out import map_images
from patchsvdd.encoder.networks import PatchEncoder, grids_for
from patchsvdd.images.image_set import ImageSet
from patchsvdd.images.normalization import Normalization
from patchsvdd.memory.bank import build_memory
from patchsvdd.report.overlay import heat_layer
from patchsvdd.scoring.map_builder import MapBuilder

SAMPLES = 3
"""Number of images that get a synthetic defect."""
KNOWN = 6
"""Number of other images that they are compared with."""
SIDE = 256
"""Longest side of a preview in pixels."""
SMALLEST = 20.0
"""Half-length of a synthetic defect, in pixels at 256 px: it must be visible at a glance."""
VISIBLE = 0.01
"""Share of an image that a synthetic defect should change."""
ATTEMPTS = 6
LARGEST = 512
"""Longest side of images that are previewed during training; larger ones would slow it down."""


class Previews:
    """Draws heat maps of the same few images with each given encoder, into a folder."""

    def __init__(self, images: ImageSet, config: Config, folder: Path, device: torch.device) -> None:
        self._config = dataclasses.replace(config, critic=None)
        self._folder, self._device = folder, device
        count = min(SAMPLES, max(1, len(images) // 3))
        chosen = spread(len(images), count)
        others = [index for index in range(len(images)) if index not in chosen]
        self._known = images.subset([others[place] for place in spread(len(others), min(KNOWN, len(others)))])
        self._good = images.pixels[chosen].float()
        generator, known = torch.Generator().manual_seed(config.seed), self._known.pixels.float()
        drawn, _ = draw_visible(
            self._good, known, generator, lambda masks: masks.mean((1, 2)), VISIBLE, ATTEMPTS, Sizes(SMALLEST), (1.0,)
        )
        self._samples = drawn.images.round()
        self._normalization = Normalization.fit(images.pixels, config).to(device)
        folder.mkdir(exist_ok=True)
        for number, image in enumerate(self._samples, start=1):
            self._save(f"picture-{number}.jpg", picture_of(image))

    @property
    def while_training(self) -> bool:
        """Whether the images are small enough for previews during training."""
        return max(self._good.shape[2:]) <= LARGEST

    def of_encoder(self, encoder: PatchEncoder, step: int) -> None:
        """Draw heat maps with an unfinished encoder; hot is above the mean maximum of the images without defects."""
        with torch.inference_mode():
            grids = grids_for(encoder, self._config, self._known.size)
            known = self._normalization(self._known.pixels.to(self._device))
            map_builder = MapBuilder(build_memory(encoder, known, self._known.names, grids))

            def maps_of(images: Tensor) -> NDArray[np.float32]:
                on_device = (image.to(self._device) for image in images)
                maps: NDArray[np.float32] = (
                    map_images(on_device, encoder, self._normalization, grids, map_builder).cpu().numpy()
                )
                return maps

            threshold = float(np.mean([heat.max() for heat in maps_of(self._good)]))
            self._draw(f"step-{step:07}", list(maps_of(self._samples)), threshold)

    def of_detector(self, detector: PatchSVDD) -> None:
        """Draw heat maps with the finished detector, which was trained on the images without defects."""
        maps = [detector.inspect(picture_of(image)).anomaly_map for image in self._samples]
        self._draw("final", maps, detector.threshold)

    def _draw(self, name: str, maps: Sequence[NDArray[np.float32]], threshold: float) -> None:
        for number, (image, heat) in enumerate(zip(self._samples, maps, strict=True), start=1):
            ground = picture_of(image).convert("L").convert("RGBA")
            layer = heat_layer(heat, threshold).resize(ground.size, Image.Resampling.BILINEAR)
            self._save(f"{name}-{number}.jpg", Image.alpha_composite(ground, layer).convert("RGB"))

    def _save(self, name: str, picture: Image.Image) -> None:
        picture.thumbnail((SIDE, SIDE))
        with atomic_write(self._folder / name, sync=False) as file:
            picture.save(file, "JPEG", quality=88)


def spread(count: int, samples: int) -> list[int]:
    """``samples`` evenly spaced numbers below ``count``."""
    return [(2 * index + 1) * count // (2 * samples) for index in range(samples)]


def picture_of(image: Tensor) -> Image.Image:
    """Convert an image (3, H, W) in 0 … 255 to Pillow."""
    return Image.fromarray(image.round().clamp(0, 255).byte().permute(1, 2, 0).contiguous().cpu().numpy())
