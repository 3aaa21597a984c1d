"""Fuse two maps: patch distances (the memory) and a segmentation of synthetic defects (the critic).

Their units are unrelated, so both are expressed as rarity, which can be averaged: −log10 of the share of good pixels
with at least this value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

KNOTS_PER_DECADE = 8
PIXELS_BEYOND = 20
"""Minimum number of good pixels above the last knot; with fewer, the rarity of a value is unknown."""
SMALLEST = 1e-12
"""Added before taking logarithms; far below any distance or probability."""
LEAST, MOST = 1e-7, 1 - 1e-7
"""Probabilities are clipped to this range, because the log odds of 0 and 1 are infinite."""
SHARES = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)
"""Candidate weights of the memory."""


@dataclass(frozen=True)
class TailQuantiles:
    """Rarity of values among the pixels of good images, as a piecewise linear function."""

    values: tuple[float, ...]
    """Knots, increasing."""
    rarities: tuple[float, ...]
    """−log10 of the share of good pixels above each knot."""

    @classmethod
    def fit(cls, values: Tensor) -> TailQuantiles:
        """Fit to values of any shape, measured on good images that were not used for training."""
        ordered = values.flatten().sort().values.double()
        count = len(ordered)
        decades = max(1.0, math.log10(max(count, 10) / PIXELS_BEYOND))
        rarities = torch.linspace(0, decades, math.ceil(KNOTS_PER_DECADE * decades) + 1, dtype=torch.float64)[1:]
        ranks = (count * (1 - 10**-rarities)).long().clamp(0, count - 1)
        knots: dict[float, float] = {}
        for value, rarity in zip(ordered[ranks.to(ordered.device)].tolist(), rarities.tolist(), strict=True):
            knots[value] = rarity  # keeps the largest rarity of equal values
        if len(knots) == 1:  # all good pixels are equal: any larger value is rare
            value = next(iter(knots))
            knots[value + max(1e-6, abs(value) * 1e-6)] = decades + 1
        return cls(tuple(knots), tuple(knots.values()))

    def __call__(self, values: Tensor) -> Tensor:
        """Rarity of each value, 0 for common ones; extrapolated with the slope of the last decade."""
        knots, heights, slopes = knots_and_slopes(self, values.device)
        index = (torch.bucketize(values.contiguous(), knots) - 1).clamp_min(0)
        rarity = heights[index] + slopes[index] * (values - knots[index])
        return rarity.clamp_min(0)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {"values": list(self.values), "rarities": list(self.rarities)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TailQuantiles:
        """Restore what ``to_json`` wrote."""
        return cls(tuple(data["values"]), tuple(data["rarities"]))


@lru_cache(maxsize=16)
def knots_and_slopes(tail: TailQuantiles, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Knots, heights and the slope after each knot; cached, so that a GPU does not wait for the transfer."""
    knots, heights = torch.tensor(tail.values), torch.tensor(tail.rarities)
    slopes = (heights[1:] - heights[:-1]) / (knots[1:] - knots[:-1]).clamp_min(1e-9)
    decade = min(KNOTS_PER_DECADE, len(tail.values) - 1)
    last = (heights[-1] - heights[-1 - decade]) / (knots[-1] - knots[-1 - decade]).clamp_min(1e-9)
    return knots.to(device), heights.to(device), torch.cat((slopes, last[None])).to(device)


@dataclass(frozen=True)
class Fusion:
    """Weighted mean of two rarities."""

    memory: TailQuantiles
    critic: TailQuantiles
    share: float
    """Weight of the memory, from 0 (critic only) to 1 (memory only)."""

    @classmethod
    def fit(cls, product: Tensor, critic_maps: Tensor, share: float = 0.5) -> Fusion:
        """Fit to product maps and critic maps (N, H, W) of the same good images."""
        return cls(TailQuantiles.fit(memory_scale(product)), TailQuantiles.fit(critic_scale(critic_maps)), share)

    def with_share(self, share: float) -> Fusion:
        """The same fusion with another weight."""
        return Fusion(self.memory, self.critic, share)

    def __call__(self, product: Tensor | None, critic_maps: Tensor) -> Tensor:
        """Fuse product maps, which are not needed if they have no weight, and critic maps into maps of rarity."""
        if product is None:
            assert self.share == 0
            return self.critic(critic_scale(critic_maps))
        memory_rarity = self.memory(memory_scale(product)) if self.share > 0 else torch.zeros_like(product)
        critic_rarity = self.critic(critic_scale(critic_maps)) if self.share < 1 else torch.zeros_like(critic_maps)
        return self.share * memory_rarity + (1 - self.share) * critic_rarity

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {"memory": self.memory.to_json(), "critic": self.critic.to_json(), "share": self.share}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Fusion:
        """Restore what ``to_json`` wrote."""
        return cls(
            TailQuantiles.from_json(data["memory"]), TailQuantiles.from_json(data["critic"]), float(data["share"])
        )


def best_share(quality: Mapping[float, float]) -> float:
    """The weight of the memory with the highest quality on synthetic defects; of equally good ones the most even one.

    Of two equally even ones it is the lower.
    """
    return min(quality, key=lambda share: (-quality[share], abs(share - 0.5), share))


def memory_scale(product: Tensor) -> Tensor:
    """Logarithm of the distances, whose tail is nearly straight."""
    return (product + SMALLEST).log()


def critic_scale(critic_maps: Tensor) -> Tensor:
    """Log odds of the probabilities."""
    critic_maps = critic_maps.clamp(LEAST, MOST)
    return (critic_maps / (1 - critic_maps)).log()
