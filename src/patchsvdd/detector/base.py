"""What all detectors have in common: they inspect images, and they are saved."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from patchsvdd.core.config import Config
from patchsvdd.core.device import describe_device
from patchsvdd.core.errors import ImageError
from patchsvdd.detector.gpu_pipeline import pipelined
from patchsvdd.images.image_set import ImageBatch, ImageLike, LoadedImage, load_image
from patchsvdd.images.loading import load_batches
from patchsvdd.images.thumbnails import Thumbnails
from patchsvdd.scoring.anomaly_map import AnomalyMaps
from patchsvdd.scoring.calibration import Calibration
from patchsvdd.scoring.inspection import Inspection


class Detector(ABC):
    """A trained detector of one method."""

    config: Config
    device: torch.device
    calibration: Calibration | None
    provenance: dict[str, Any]
    pictures: Thumbnails | None
    identity: str | None
    """Short hash of the stored model; None until it is saved."""

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) of the images the detector was trained on, after cropping and resizing."""
        height, width = self.provenance["data"]["image_size"]
        return int(height), int(width)

    @property
    def min_area(self) -> int:
        """Smallest connected region above the threshold that counts, in pixels of the original image; 0 for any."""
        return self.config.min_area

    @property
    def threshold(self) -> float:
        """Scores above this value are anomalous; infinite without calibration."""
        return self.calibration.threshold if self.calibration is not None else float("inf")

    @property
    def processor(self) -> str:
        """What computes, in words."""
        return describe_device(self.device)

    @property
    def localizes(self) -> bool:
        """Whether the map shows where an image is abnormal."""
        return True

    @abstractmethod
    def anomaly_maps(self, pixels: Tensor) -> AnomalyMaps:
        """Return maps and scores of pixels (N, 3, H, W) in 0 … 255."""

    @abstractmethod
    def _to_inspections(self, batch: Sequence[LoadedImage], maps: AnomalyMaps) -> list[Inspection]: ...

    @abstractmethod
    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model folder; an interrupted save leaves a previous model intact."""

    def inspect(self, image: ImageLike) -> Inspection:
        """Inspect one image: a file, a PIL image, an array (H, W, C) or a tensor (C, H, W)."""
        return self.inspect_loaded([load_image(image, self.config)])[0]

    def inspect_loaded(self, batch: Sequence[LoadedImage]) -> list[Inspection]:
        """Inspect images of one size, already decoded and resized by the configuration."""
        return self._to_inspections(batch, self.anomaly_maps(_stacked(batch)))

    def inspect_many(
        self,
        images: ImageBatch,
        *,
        batch_size: int | None = None,
        on_error: Callable[[ImageError], None] | None = None,
        readers: int | None = None,
    ) -> Iterator[Inspection]:
        """Inspect many images and yield the inspections in order; at most a few batches are in memory at a time.

        An unusable image raises ImageError, or is passed to ``on_error`` and left out. ``readers`` is the number of
        threads that read and decode images: by default one per core, at most 4.
        """
        batch_size = batch_size or (64 if self.device.type == "cuda" else 1)
        waiting: deque[list[LoadedImage]] = deque()  # in the pipeline

        def pixels() -> Iterator[Tensor]:
            for batch in load_batches(images, self.config, batch_size, on_error, readers):
                waiting.append(batch)
                yield _stacked(batch)

        for maps in self.map_batches(pixels()):
            yield from self._to_inspections(waiting.popleft(), maps)

    def map_batches(self, batches: Iterable[Tensor]) -> Iterator[AnomalyMaps]:
        """Yield maps and scores of batches of pixels (N, 3, H, W) in 0 … 255, all in host memory.

        On a GPU, uploads and downloads overlap with computation.
        """
        return pipelined(self.anomaly_maps, batches, self.device)


def _stacked(batch: Sequence[LoadedImage]) -> Tensor:
    """Return the pixels (N, 3, H, W) of images of one size; those of a single image are not copied."""
    return torch.stack([loaded.tensor for loaded in batch]) if len(batch) > 1 else batch[0].tensor[None]
