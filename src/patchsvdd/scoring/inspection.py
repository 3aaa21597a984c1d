"""What the detector says of one image."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from patchsvdd.core.errors import ModelError
from patchsvdd.scoring.regions import Region

if TYPE_CHECKING:  # a runner without PyTorch has no use for it
    from patchsvdd.scoring.explanation import Explanation


@dataclass(frozen=True)
class Inspection:
    """Score, verdict and anomaly map of one image."""

    name: str
    """File of the image, or "image 3" for the third of a batch of arrays."""
    score: float
    """Maximum of the anomaly map (Eq. 10), as far as ``map_area`` pixels that lie together reach it."""
    threshold: float
    """Scores above it are anomalous; infinite when the detector is not calibrated."""
    anomaly_map: NDArray[np.float32] = field(repr=False)
    """(H, W), at the size the detector works at: product of the scales' maps (Eq. 9), or its fusion with the critic."""
    scale_maps: Mapping[int, NDArray[np.float32]] = field(repr=False)
    """Patch size → (H, W) map of that scale alone; of a large image made each time it is asked for."""
    image: NDArray[np.uint8] = field(repr=False)
    """(H, W, 3): the image as the detector saw it."""
    image_size: tuple[int, int]
    """(height, width) of the original image."""
    regions: tuple[Region, ...]
    """Connected parts of the map above the threshold, as far as the outline reaches, highest score first, in pixels of
    the original image."""
    p_value: float | None = None
    """How probable a score as high is for a good image; None when the detector is not calibrated."""
    outline: float | None = None
    """Regions reach down to this value of the map; None for the threshold itself."""
    min_area: int = 0
    """Pixels of an original image, as those learned from, that must lie together above the threshold; 0 for any."""
    map_area: int = 0
    """The same in pixels of the map."""
    part_maps: Mapping[str, NDArray[np.float32]] = field(repr=False, default_factory=dict)
    """ "memory" and "critic" → (H, W), where the map is a fusion of both; of a large image as ``scale_maps``."""
    inside: NDArray[np.bool_] | None = field(repr=False, default=None)
    """(H, W): what counts, where that is not all of the image; the maps are 0 elsewhere."""
    explainer: Callable[[Inspection], Explanation] | None = field(repr=False, compare=False, default=None)
    """What ``explain`` asks: the parts of the detector that made this inspection."""

    def __post_init__(self) -> None:
        if self.anomaly_map.shape != self.image.shape[:2]:
            raise ValueError(f"map {self.anomaly_map.shape} and image {self.image.shape[:2]} differ in size")

    @property
    def is_anomalous(self) -> bool:
        """Whether the score lies above the threshold."""
        return self.score > self.threshold

    @property
    def verdict(self) -> str:
        """ "anomalous" or "good"."""
        return "anomalous" if self.is_anomalous else "good"

    def explain(self) -> Explanation:
        """Why the image was judged so: for each region the nearest normal patches; takes about as long as inspecting.

        An image without regions has the highest point of its map explained.
        """
        if self.explainer is None:
            raise ModelError(
                f"{self.name}: this inspection was not made by a detector, or has been stored since, and nothing is "
                f"left to compare with; inspect the image again: detector.inspect(image).explain()"
            )
        return self.explainer(self)

    def __getstate__(self) -> dict[str, Any]:
        """What is copied or sent to another process: all but the detector, which is large."""
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
