"""The result for one image."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from patchsvdd.core.errors import ModelError
from patchsvdd.scoring.regions import Region

if TYPE_CHECKING:  # requires PyTorch, which the runtime does not have
    from patchsvdd.scoring.explanation import Explanation


@dataclass(frozen=True)
class Inspection:
    """Score, verdict, anomaly map and regions of one image.

    ```python
    inspection = detector.inspect("new.png")
    if inspection.is_anomalous:
        for region in inspection.regions:
            print(region.box, region.score)
    ```
    """

    name: str
    """Path of the image, or e.g. "image 3" for an item of a batch of arrays."""
    score: float
    """Maximum of the anomaly map (Eq. 10), ignoring regions smaller than ``map_area`` pixels."""
    threshold: float
    """Scores above it are anomalous; infinite if the detector is not calibrated."""
    anomaly_map: NDArray[np.float32] = field(repr=False)
    """(H, W) at working resolution: product of the scales' maps (Eq. 9), or its fusion with the critic's map."""
    scale_maps: Mapping[int, NDArray[np.float32]] = field(repr=False)
    """Patch size → (H, W) map of that scale; computed on every access for a large image."""
    image: NDArray[np.uint8] = field(repr=False)
    """(H, W, 3): the image as the detector saw it."""
    image_size: tuple[int, int]
    """(height, width) of the original image."""
    regions: tuple[Region, ...]
    """Connected regions above the threshold, bounded at ``outline``, highest score first, in original pixels."""
    p_value: float | None = None
    """Probability that a good image has a score at least this high; None if the detector is not calibrated."""
    outline: float | None = None
    """Value of the map that bounds regions; None for the threshold.

    Below the threshold: regions extend down to it. Above: regions that exceed it consist of the pixels above it.
    """
    outline_share: float = 0.0
    """Share of a region's peak below which its pixels are left out."""
    min_area: int = 0
    """Smallest region that counts, in pixels of an image of the training images' original size; 0 for any."""
    map_area: int = 0
    """The same in pixels of the map."""
    part_maps: Mapping[str, NDArray[np.float32]] = field(repr=False, default_factory=dict)
    """The maps that were fused: "memory" and "critic" → (H, W); empty without a critic, lazy like ``scale_maps``."""
    inside: NDArray[np.bool_] | None = field(repr=False, default=None)
    """(H, W): the inspected pixels, or None for all; the maps are 0 elsewhere."""
    explainer: Callable[[Inspection], Explanation] | None = field(repr=False, compare=False, default=None)
    """Callback that ``explain`` uses; it refers to the detector that made this inspection."""

    def __post_init__(self) -> None:
        if self.anomaly_map.shape != self.image.shape[:2]:
            raise ValueError(f"map {self.anomaly_map.shape} and image {self.image.shape[:2]} differ in size")

    @property
    def is_anomalous(self) -> bool:
        """Whether the score exceeds the threshold."""
        return self.score > self.threshold

    @property
    def verdict(self) -> str:
        """ "anomalous" or "good"."""
        return "anomalous" if self.is_anomalous else "good"

    def explain(self) -> Explanation:
        """Explain the verdict: for each region, the nearest normal patches. Takes about as long as the inspection.

        For an image without regions, the highest point of its map is explained.
        """
        if self.explainer is None:
            raise ModelError(
                f"{self.name}: this inspection was not made by a detector, or was copied or stored, so there is "
                f"nothing to compare with; inspect the image again: detector.inspect(image).explain()"
            )
        return self.explainer(self)

    def __getstate__(self) -> dict[str, Any]:
        """State for copying and pickling: everything except the detector, which is large."""
        return {**self.__dict__, "explainer": None}

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary without the pixel data."""
        return {
            "image": self.name,
            "score": self.score,
            "threshold": self.threshold if np.isfinite(self.threshold) else None,
            "p_value": self.p_value,
            "verdict": self.verdict,
            "is_anomalous": self.is_anomalous,
            "min_area": self.min_area,
            "image_size": list(self.image_size),
            "regions": [region.to_json() for region in self.regions],
        }
