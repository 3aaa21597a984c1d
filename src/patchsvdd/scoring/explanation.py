"""Why an image was judged as it was: for each region, the most similar normal patches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from patchsvdd.images.thumbnails import Thumbnails
from patchsvdd.scoring.explanation_image import Panel, compare
from patchsvdd.scoring.regions import Region
from patchsvdd.scoring.typical_distances import TypicalDistance

Box = tuple[int, int, int, int]
"""(left, top, right, bottom); right and bottom are exclusive."""
MAX_ROWS = 5
"""Maximum number of regions in one image."""
NEGLIGIBLE = 0.05
"""A part that contributes less than this share of a peak is described as irrelevant."""


@dataclass(frozen=True)
class NormalPatch:
    """A patch of a good image."""

    image: str
    """Name of the training image."""
    index: int
    """Its index in the memory."""
    box: Box
    """In pixels of the image at working resolution."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {"image": self.image, "index": self.index, "box": list(self.box)}


@dataclass(frozen=True)
class ScaleReason:
    """For one scale and point: the patch farthest from normal, and the normal patch it was compared with."""

    patch_size: int
    box: Box
    """The patch, in pixels of the original image."""
    working_box: Box
    """The patch at working resolution."""
    nearest: NormalPatch
    """The nearest normal patch in the memory."""
    distance: float
    """Distance between both embeddings (Eq. 8)."""
    measured: float
    """The value that enters the map: the distance, divided by the normal patch's local scale if the model has one."""
    typical: TypicalDistance
    """Typical values of ``measured``."""
    share: float
    """This scale's share of the product at this point, 0 … 1; the shares of all scales sum to 1.

    The logarithm of the product is a sum over scales. Each contributes log(map ÷ typical value), or 0 if its map is
    below the typical value. If all are below, the shares are equal.
    """

    @property
    def times_usual(self) -> float:
        """``measured`` as a multiple of its typical value; infinite if good images do not differ at all."""
        if self.typical.median > 0:
            return self.measured / self.typical.median
        return math.inf if self.measured > 0 else 1.0

    def in_words(self) -> str:
        """One sentence."""
        left, top = self.box[:2]
        resized = "" if self.box == self.working_box else " as the model sees it"
        location = f"at ({self.nearest.box[0]}, {self.nearest.box[1]}) of {self.nearest.image}{resized}"
        patch = f"The {self.patch_size}-px patch at ({left}, {top})"
        if self.distance == 0:
            return f"{patch} equals its nearest normal patch, {location}."
        times = self.times_usual
        if math.isinf(times):
            return f"{patch} differs from its nearest normal patch, {location}; in good images no patch differs at all."
        if self.typical.maximum is None:
            reference, farthest = "as the patches of this image usually are", ""
        else:
            reference = "as patches of good images usually are"
            farthest = f" (the farthest of those: {_times(self.typical.maximum / self.typical.median)})"
        return f"{patch} is {_times(times)} as far from its nearest normal patch, {location}, {reference}{farthest}."

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        times = self.times_usual
        return {
            "patch_size": self.patch_size,
            "box": list(self.box),
            "working_box": list(self.working_box),
            "nearest": self.nearest.to_json(),
            "distance": self.distance,
            "measured": self.measured,
            "usual": self.typical.median,
            "most": self.typical.maximum,
            "times_usual": times if math.isfinite(times) else None,
            "share": self.share,
        }


@dataclass(frozen=True)
class Reason:
    """Why the map has its value at the highest point of one region."""

    region: Region | None
    """None for the highest point of an image without regions."""
    peak: float
    """The map's value at that point."""
    peak_at: tuple[int, int]
    """(x, y) in pixels of the original image."""
    scales: tuple[ScaleReason, ...]
    parts: dict[str, float]
    """Contributions of "memory" and "critic" to the peak, which they add up to; empty without a critic."""

    def in_words(self) -> str:
        """A few sentences."""
        sentences = [scale.in_words() for scale in self.scales]
        if len(self.scales) > 1:
            shares = ", ".join(f"{scale.patch_size} px {scale.share:.0%}" for scale in self.scales)
            sentences.append(f"Shares of the scales: {shares}.")
        return " ".join(sentences + self._parts_in_words())

    def _parts_in_words(self) -> list[str]:
        if not self.parts or self.peak <= 0:
            return []
        memory, critic = self.parts["memory"], self.parts["critic"]
        if memory < NEGLIGIBLE * self.peak:
            return ["The memory finds nothing unusual here: the map's value comes from the critic."]
        if critic < NEGLIGIBLE * self.peak:
            return ["The critic finds nothing unusual here: the map's value comes from the memory."]
        return [f"The map's value {self.peak:.2f} is {memory:.2f} from the memory plus {critic:.2f} from the critic."]

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {
            "region": self.region.to_json() if self.region is not None else None,
            "peak": self.peak,
            "peak_at": list(self.peak_at),
            "scales": [scale.to_json() for scale in self.scales],
            "parts": self.parts,
            "in_words": self.in_words(),
        }


@dataclass(frozen=True)
class Explanation:
    """Why one image was judged as it was.

    ```python
    explanation = detector.inspect("new.png").explain()
    print(explanation.in_words())
    explanation.picture().save("why.png")
    ```
    """

    name: str
    reasons: tuple[Reason, ...]
    """One per region, highest score first; for an image without regions, the highest point of its map."""
    image: NDArray[np.uint8] = field(repr=False)
    """(H, W, 3): the image as the detector saw it."""
    pictures: Thumbnails | None = field(repr=False)
    """Thumbnails of the good images; None for a model of an earlier version, which has none."""

    def in_words(self) -> str:
        """The explanation as text, one paragraph per region."""
        return "\n\n".join(reason.in_words() for reason in self.reasons)

    def picture(self, number: int | None = None) -> Image.Image:
        """Draw, per scale, the patch and its nearest normal patch side by side, each in its surroundings.

        One row per region, at most the first five; ``number`` selects one region.
        """
        indices = range(len(self.reasons))[:MAX_ROWS] if number is None else [number]
        return compare([self._panels(self.reasons[index], f"{index + 1}:  ") for index in indices])

    def _panels(self, reason: Reason, label: str) -> list[Panel]:
        label = label if len(self.reasons) > 1 else ""
        return [panel for scale in reason.scales for panel in self._pair(scale, label)]

    def _pair(self, scale: ScaleReason, label: str) -> tuple[Panel, Panel]:
        nearest, pictures = scale.nearest, self.pictures
        thumbnail = pictures[nearest.index] if pictures is not None and nearest.index < len(pictures) else None
        return (
            Panel(self.image, scale.working_box, f"{label}{scale.patch_size}-px patch here", is_normal=False),
            Panel(thumbnail, nearest.box, f"{label}nearest normal, {nearest.image}", is_normal=True),
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary without the pixel data."""
        return {"image": self.name, "reasons": [reason.to_json() for reason in self.reasons]}


def _times(ratio: float) -> str:
    return f"{ratio:.1f} times" if ratio < 100 else f"{ratio:.0f} times"
