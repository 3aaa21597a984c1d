"""Typical distances between patches of good images, as a reference for other distances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class TypicalDistance:
    """Typical distances of one scale."""

    median: float
    """Half of the patches are nearer than this to a normal patch."""
    maximum: float | None
    """The largest distance in any good image; None if not known."""

    @classmethod
    def from_image(cls, distances: Tensor) -> TypicalDistance:
        """Typical distance within one image, from the distances of all its patches, most of which are normal."""
        return cls(float(distances.flatten().median()), None)


class TypicalDistances:
    """Collects distances of good images, each compared with a memory that excludes it."""

    def __init__(self) -> None:
        self._medians: dict[int, list[float]] = {}
        self._maxima: dict[int, float] = {}

    def add(self, distances: Mapping[int, Tensor]) -> None:
        """Add one image: patch size → distance of each of its patches."""
        for size, values in distances.items():
            self._medians.setdefault(size, []).append(float(values.flatten().median()))
            self._maxima[size] = max(self._maxima.get(size, 0.0), float(values.max()))

    @property
    def is_known(self) -> bool:
        """Whether any image was added."""
        return bool(self._medians)

    def to_json(self) -> dict[str, Any]:
        """Patch size → median of the images' medians, and maximum; JSON-ready."""
        return {str(k): {"middle": median(medians), "most": self._maxima[k]} for k, medians in self._medians.items()}


def typical_distances_from_json(data: Mapping[str, Any]) -> dict[int, TypicalDistance]:
    """Restore what ``TypicalDistances.to_json`` wrote, by patch size."""
    return {int(size): TypicalDistance(stored["middle"], stored["most"]) for size, stored in data.items()}
