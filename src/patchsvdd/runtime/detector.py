"""Inspect images with an exported detector, with the same results as the model it was exported from."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from patchsvdd.core.errors import ConfigError, ImageError
from patchsvdd.images.decoding import check_size, decode, place_pixels, to_uint8
from patchsvdd.runtime.contract import UNRESIZED, About
from patchsvdd.runtime.sessions import Outputs, open_session
from patchsvdd.scoring.calibration import Calibration
from patchsvdd.scoring.inspection import Inspection
from patchsvdd.scoring.regions import find_regions

if TYPE_CHECKING:
    from PIL import Image

    from patchsvdd.core.config import Resize

Source: TypeAlias = "str | os.PathLike[str] | Image.Image | NDArray[Any]"
"""A file, a PIL image, or an array (H, W[, C])."""
FEW = 5
"""With fewer images, opening a large file faster outweighs that each image takes longer."""


class Detector:
    """An exported detector (.onnx or .openvino file). The checksum of the file is verified.

    ```python
    for inspection in Detector("part.onnx").inspect_many(["a.png", "b.png"]):
        print(inspection.name, inspection.verdict, inspection.score)
    ```

    With ``few=True`` a large ONNX file is opened faster and inspects more slowly, which pays off for a few images.
    """

    def __init__(self, path: str | os.PathLike[str], *, threads: int | None = None, few: bool = False) -> None:
        self._session = open_session(Path(path), threads, few)
        self.about = About.from_metadata(self._session.metadata, os.fspath(path))

    @property
    def identity(self) -> str:
        """Identity of the model that the file was exported from."""
        return self.about.identity

    @property
    def min_area(self) -> int:
        """0: a model that ignores small regions cannot be exported."""
        return 0

    @property
    def calibration(self) -> Calibration | None:
        """What the threshold is based on; None if the model is not calibrated."""
        return self.about.calibration

    @property
    def processor(self) -> str:
        """What computes, in words."""
        return f"{platform.machine()} CPU, {self._session.software}"

    @property
    def threshold(self) -> float:
        """Default threshold: scores above it are anomalous. Infinite if the model is not calibrated."""
        return self.about.threshold

    def inspect(self, image: Source, *, threshold: float | None = None) -> Inspection:
        """Return score, verdict, map and regions of one image; ``threshold`` overrides the one in the file."""
        return next(self.inspect_many([image], threshold=threshold))

    def inspect_many(
        self,
        images: Iterable[Source],
        *,
        threshold: float | None = None,
        batch_size: int = 1,
        on_error: Callable[[ImageError], None] | None = None,
    ) -> Iterator[Inspection]:
        """Yield inspections in order. An unusable image raises ImageError, or goes to ``on_error`` and is left out."""
        batch: list[tuple[str, NDArray[np.uint8], tuple[int, int]]] = []
        for index, image in enumerate(images):
            is_file = isinstance(image, str | os.PathLike)
            name = os.fspath(cast(str, image)) if is_file else f"image {index}"
            try:
                batch.append((name, *self.pixels(image, name)))
            except ImageError as error:
                if on_error is None:
                    raise
                on_error(error)
            if len(batch) == batch_size:
                yield from self._inspect(batch, threshold)
                batch = []
        if batch:
            yield from self._inspect(batch, threshold)

    def pixels(self, image: Source, name: str = "image") -> tuple[NDArray[np.uint8], tuple[int, int]]:
        """(H, W, 3) pixels as the file requires them, rounded to uint8, and (height, width) before resizing."""
        decoded = decode(image, name)
        original = check_size(decoded, name)
        if self.about.resize != UNRESIZED:
            decoded = place_pixels(decoded, self.about.placement(original), cast("Resize", self.about.resize))
        elif original != self.about.image_size:
            height, width = self.about.image_size
            raise ImageError(
                name,
                f"is {original[1]}x{original[0]} pixels and this export requires {width}x{height} without resizing; "
                f"use images of that size",
            )
        return to_uint8(decoded), original

    def run(self, images: NDArray[np.uint8], threshold: float | None = None) -> Outputs:
        """Map (N, H, W), score (N,) and verdict (N,) of pixels (N, H, W, 3) uint8 of the file's image size."""
        limit = self.threshold if threshold is None else threshold
        if math.isnan(limit):
            raise ConfigError("`threshold` must be a number; got nan, which no score exceeds")
        return self._session.run(images, limit)

    def _inspect(
        self, batch: list[tuple[str, NDArray[np.uint8], tuple[int, int]]], threshold: float | None
    ) -> Iterator[Inspection]:
        limit = self.threshold if threshold is None else threshold
        maps, scores, _ = self.run(np.stack([pixels for _, pixels, _ in batch]), limit)
        calibration = self.about.calibration
        outline, share = (None, 0.0) if calibration is None else (calibration.outline, calibration.region_share)
        for (name, pixels, original), whole, score in zip(batch, maps, scores, strict=True):
            placement = self.about.placement(original)
            height, width = placement.content
            anomaly_map = whole[:height, :width]
            score = float(score if placement.is_whole else anomaly_map.max())
            yield Inspection(
                name=name,
                score=score,
                threshold=limit,
                anomaly_map=anomaly_map,
                scale_maps={},
                image=pixels[:height, :width],
                image_size=original,
                regions=find_regions(anomaly_map, limit, original, outline, share=share),
                outline=outline,
                outline_share=share,
                p_value=calibration.p_value(score) if calibration is not None else None,
            )
