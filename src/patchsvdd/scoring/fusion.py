"""One map from two: how far patches are from normal ones (the memory), and what looks tampered with (the critic).

Their units have nothing in common, so both are expressed as rarity: decades of how seldom a pixel of a good image
has such a value. Rarities can be averaged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from patchsvdd.scoring.ranking import MARGIN

KNOTS_PER_DECADE = 8
PIXELS_BEYOND = 20
"""Good pixels that must lie above the last knot: fewer say nothing about how rare a value is."""
SMALLEST = 1e-12
"""Added before logarithms are taken; far below any distance or probability."""
LEAST, MOST = 1e-7, 1 - 1e-7
"""Probabilities beyond these are taken for these: log odds of 0 and 1 are infinite."""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the memory among which a fusion is chosen."""
LENIENCE = 1.5
"""How many times as much as the best share of memory and critic a more even one may miss and still be taken."""


@dataclass(frozen=True)
class TailQuantiles:
    """How rare values are among the pixels of good images, as a line through knots."""

    values: tuple[float, ...]
    """Increasing."""
    rarities: tuple[float, ...]
    """−log10 of the share of good pixels above each value."""

    @classmethod
    def fit(cls, values: Tensor) -> TailQuantiles:
        """The tail of values of any shape, measured on good images that nothing has learned from."""
        ordered = values.flatten().sort().values.double()
        count = len(ordered)
        decades = max(1.0, math.log10(max(count, 10) / PIXELS_BEYOND))
        rarities = torch.linspace(0, decades, math.ceil(KNOTS_PER_DECADE * decades) + 1, dtype=torch.float64)[1:]
        ranks = (count * (1 - 10**-rarities)).long().clamp(0, count - 1)
        knots: dict[float, float] = {}
        for value, rarity in zip(ordered[ranks.to(ordered.device)].tolist(), rarities.tolist(), strict=True):
            knots[value] = rarity  # of equal values the rarest counts
        if len(knots) == 1:  # all good pixels alike: whatever is larger is rare
            value = next(iter(knots))
            knots[value + max(1e-6, abs(value) * 1e-6)] = decades + 1
        return cls(tuple(knots), tuple(knots.values()))

    def __call__(self, values: Tensor) -> Tensor:
        """Rarity of each value, 0 for common ones; beyond the last knot it goes on rising as over the last decade."""
        knots, heights, slopes = knots_and_slopes(self, values.device)
        index = (torch.bucketize(values.contiguous(), knots) - 1).clamp_min(0)
        rarity = heights[index] + slopes[index] * (values - knots[index])
        return rarity.clamp_min(0)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {"values": list(self.values), "rarities": list(self.rarities)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TailQuantiles:
        """The tail that ``to_json`` wrote."""
        return cls(tuple(data["values"]), tuple(data["rarities"]))


@lru_cache(maxsize=16)
def knots_and_slopes(tail: TailQuantiles, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Knots, heights and the slope after each knot; kept, so that a GPU need not wait for them."""
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
    """Of the memory, from 0 (the critic alone) to 1 (the memory alone)."""

    @classmethod
    def fit(cls, product: Tensor, critic_maps: Tensor, share: float = 0.5) -> Fusion:
        """From product maps and critic maps (N, H, W) of the same good images."""
        return cls(TailQuantiles.fit(memory_scale(product)), TailQuantiles.fit(critic_scale(critic_maps)), share)

    def with_share(self, share: float) -> Fusion:
        """The same with another weight."""
        return Fusion(self.memory, self.critic, share)

    def __call__(self, product: Tensor, critic_maps: Tensor) -> Tensor:
        """Maps (N, H, W) in decades of rarity from product maps and critic maps."""
        memory_rarity = self.memory(memory_scale(product)) if self.share > 0 else torch.zeros_like(product)
        critic_rarity = self.critic(critic_scale(critic_maps)) if self.share < 1 else torch.zeros_like(critic_maps)
        return self.share * memory_rarity + (1 - self.share) * critic_rarity

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {"memory": self.memory.to_json(), "critic": self.critic.to_json(), "share": self.share}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Fusion:
        """The fusion that ``to_json`` wrote."""
        return cls(
            TailQuantiles.from_json(data["memory"]), TailQuantiles.from_json(data["critic"]), float(data["share"])
        )


def best_share(quality: Mapping[float, float]) -> float:
    """The share of the memory to use, from how well drawn defects were found with each (1 is perfect).

    Drawn defects flatter the critic, which learned from drawn ones. So the best share is not used as such: of all that
    miss little more than the best one misses, the most even is chosen; of two that are equally even, the lower.
    """
    allowed = LENIENCE * (1 - max(quality.values())) + MARGIN
    good_enough = [share for share, found in quality.items() if 1 - found <= allowed]
    return min(good_enough, key=lambda share: (abs(share - 0.5), share))


def memory_scale(product: Tensor) -> Tensor:
    """Distances as their logarithm, in which tails are nearly straight."""
    return (product + SMALLEST).log()


def critic_scale(critic_maps: Tensor) -> Tensor:
    """Probabilities as log odds."""
    critic_maps = critic_maps.clamp(LEAST, MOST)
    return (critic_maps / (1 - critic_maps)).log()
