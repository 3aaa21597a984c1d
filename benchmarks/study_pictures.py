"""The images of a study of settings, decoded once and read by every worker, and the metrics of their maps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from patchsvdd.core.config import Config
from patchsvdd.evaluation.metrics import PRO_LIMIT, region_weights
from patchsvdd.images.image_set import load_image_set, load_mask
from patchsvdd.images.loading import load_good_images
from patchsvdd.images.mvtec_layout import find_test_images
from patchsvdd.scoring.anomaly_map import image_score
from patchsvdd.scoring.ranking import rank_tensors


@dataclass(frozen=True)
class Pictures:
    """A category at the size of the settings, on some device."""

    train: Tensor
    """(N, 3, H, W) uint8."""
    test: Tensor
    """(T, 3, H, W) uint8."""
    labels: Tensor
    """(T,) bool: defective."""
    masks: Tensor
    """(T, H, W) bool."""
    known: Tensor
    """(T,) bool: whether the mask is known; a defective image may have none."""
    weights: Tensor
    """(defect pixels,) float64: 1 / size of the region."""

    @classmethod
    def load(cls, folder: Path, config: Config, image_count: int | None, test_count: int | None) -> Pictures:
        good = load_good_images(folder, config)
        images = find_test_images(folder).images
        images = tuple(images[index] for index in some(len(images), test_count))
        test = load_image_set([(str(image.file), image.file) for image in images], config)
        if test.skipped:
            raise test.skipped[0]
        nothing = np.zeros(good.size, dtype=bool)
        masks = [load_mask(image.mask, good.size, config.resize) if image.mask else nothing for image in images]
        weights = np.concatenate([np.zeros(0), *(region_weights(mask)[0] for mask in masks if mask.any())])
        return cls(
            good.pixels[some(len(good), image_count)],
            test.pixels,
            torch.tensor([not image.is_good for image in images]),
            torch.from_numpy(np.stack(masks)),
            torch.tensor([image.is_good or image.mask is not None for image in images]),
            torch.from_numpy(weights),
        )

    def to(self, device: torch.device) -> Pictures:
        return Pictures(*(value.to(device) for value in vars(self).values()))


def some(total: int, count: int | None) -> list[int]:
    """Indices of ``count`` of ``total``, evenly spaced; all for None."""
    return [round(place) for place in np.linspace(0, total - 1, min(total, count or total)).tolist()]


class Album:
    """Decoded images in a scratch folder, written once and read by every worker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: dict[tuple[str, str], Pictures] = {}

    def fill(self, data: Path, category: str, config: Config, counts: tuple[int | None, int | None]) -> None:
        path = self._path(category, config.resize)
        if not path.exists():
            torch.save(vars(Pictures.load(data / category, config, *counts)), path)

    def pictures(self, category: str, config: Config, device: torch.device) -> Pictures:
        key = (category, config.resize)
        if key not in self._seen:
            self._seen[key] = Pictures(**torch.load(self._path(*key), weights_only=True)).to(device)
        return self._seen[key]

    def _path(self, category: str, resize: str) -> Path:
        return self.folder / f"{category}-{resize}.pt"


def test_metrics(pictures: Pictures, maps: Tensor) -> dict[str, float | None]:
    """Metrics for which the category has labels: detection needs good and defective images, segmentation masks."""
    labels, known = pictures.labels, pictures.known
    detection, segmentation, aupro = None, None, None
    if bool(labels.any()) and not bool(labels.all()):
        detection = rank_tensors(labels, image_score(maps)).area()
    if len(pictures.weights) > 0:
        masks, marked = pictures.masks[known], maps[known]
        segmentation = rank_tensors(masks, marked).area()
        aupro = rank_tensors(masks, marked, pictures.weights).area(PRO_LIMIT)
    return {"detection_auroc": detection, "segmentation_auroc": segmentation, "aupro": aupro}
