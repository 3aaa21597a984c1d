"""How far patches of good images usually are from those of other good images, to compare a distance with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class TypicalDistance:
    """Distances of one scale."""

    median: float
    """Half of the patches are nearer than this to a normal patch."""
    maximum: float | None
    """The farthest of any good image; None where it is not known."""

    @classmethod
    def from_image(cls, distances: Tensor) -> TypicalDistance:
        """What is usual in one image, from the distances of all its patches: most of any image is as it should be."""
        return cls(float(distances.flatten().median()), None)


class TypicalDistances:
    """Distances of good images, each against a memory made without it, gathered image by image."""

    def __init__(self) -> None:
        self._medians: dict[int, list[float]] = {}
        self._maxima: dict[int, float] = {}

    def add(self, distances: Mapping[int, Tensor]) -> None:
        """Count one image: patch size → distance of each of its patches."""
        for size, values in distances.items():
            self._medians.setdefault(size, []).append(float(values.flatten().median()))
            self._maxima[size] = max(self._maxima.get(size, 0.0), float(values.max()))

    @property
    def is_known(self) -> bool:
        """Whether any image was counted."""
        return bool(self._medians)

    def to_json(self) -> dict[str, Any]:
        """Patch size → what is usual, JSON-ready: of the images' medians the median."""
        return {
            str(size): {"middle": median(values), "most": self._maxima[size]} for size, values in self._medians.items()
        }


def typical_distances_from_json(data: Mapping[str, Any]) -> dict[int, TypicalDistance]:
    """Patch size → what ``UsualDistances.to_json`` wrote."""
    return {int(size): TypicalDistance(stored["middle"], stored["most"]) for size, stored in data.items()}
