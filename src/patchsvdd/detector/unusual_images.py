"""The good images that are least like the others: perhaps some of them show a defect."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from patchsvdd.core.config import is_large
from patchsvdd.core.device import reproducible
from patchsvdd.core.progress import OnProgress
from patchsvdd.critic.feature_coreset import SampledFeatures
from patchsvdd.critic.network import TrainedCritic

SHOWN = 0.1
"""Share of the good images that is listed."""
FEWEST_SHOWN = 3
"""Images listed, at least."""
COMPARED = 10_000
"""Features of the other images, about, that those of an image are compared with."""
FAR = 3.5
"""Standard deviations, estimated from the median absolute deviation, from which an image stands out."""

Peak = tuple[float, tuple[float, float]]
"""A distance, and where it is: (down, across) as shares of height and width."""


@dataclass(frozen=True)
class UnusualImage:
    """A good image that is less like the others than most."""

    image: int
    """Its index among the good images of the model."""
    name: str
    ratio: float
    """Its distance to the other images or its odds of a defect, where they are highest, divided by those of a typical
    image."""
    stands_out: bool
    """Whether the ratio is extreme among those of the good images."""
    at: tuple[float, float]
    """Where it is least like the others: (down, across) as shares of the image's height and width."""

    @property
    def times(self) -> str:
        """The ratio in two digits."""
        return f"{self.ratio:.1f}" if self.ratio < 10 else f"{self.ratio:.0f}"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {**asdict(self), "ratio": round(self.ratio, 3), "at": [round(place, 4) for place in self.at]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> UnusualImage:
        """Restore an image from ``to_json``."""
        return cls(**{**data, "at": tuple(data["at"])})


def unusual_images(provenance: Mapping[str, Any]) -> list[UnusualImage]:
    """The images listed in a model's provenance, the least usual first; none in models of version 0.1."""
    return [UnusualImage.from_json(one) for one in provenance.get("unusual") or ()]


def unusual_in_words(images: Sequence[UnusualImage], total: int) -> str | None:
    """Which images stand out, in a sentence; None if none does."""
    standing_out = [one.name for one in images if one.stands_out]
    if not standing_out:
        return None
    named = ", ".join(standing_out[:5]) + (f" and {len(standing_out) - 5} more" if len(standing_out) > 5 else "")
    verb = "is" if len(standing_out) == 1 else "are"
    return f"{len(standing_out)} of {total} good images {verb} unlike the others: {named}. Check for defects"


def rank_by_features(
    critic: TrainedCritic, pixels: Tensor, trained: Sequence[int], seed: int, on_progress: OnProgress | None = None
) -> list[Peak] | None:
    """The mean of each image's largest distances to the others, and where the largest is; None for large images.

    Distances are those of the critic's features to the nearest feature of another image.

    The critic knows the images it was ``trained`` on a little better than the others. So distances are divided by the
    median of their group, and 1 is typical.
    """
    if is_large(int(pixels.shape[2]), int(pixels.shape[3])) or len(pixels) < 2:
        return None
    count = 2 * len(pixels)

    def after(before: int) -> OnProgress | None:
        return None if on_progress is None else lambda done, _: on_progress(before + done, count)

    with reproducible(), torch.inference_mode():
        sampled = SampledFeatures.draw(critic.features, pixels, seed, after(0), COMPARED)
        found = _peaks(sampled.distances_to_others(critic.features, pixels), after(len(pixels)))
    groups = [set(trained), set(range(len(pixels))) - set(trained)]
    median = {
        index: statistics.median(found[other][0] for other in group) for group in groups if group for index in group
    }
    return [(highest / median[index], at) for index, (highest, at) in enumerate(found)]


def list_unusual(ranked: Sequence[Peak], names: Sequence[str]) -> list[UnusualImage]:
    """The first tenth of the images, the least usual first, given the peak of each."""
    typical = statistics.median(highest for highest, _ in ranked) or 1.0
    ranked = [(highest / typical, at) for highest, at in ranked]
    logs = [math.log(max(ratio, 1e-6)) for ratio, _ in ranked]
    middle = statistics.median(logs)
    deviation = 1.4826 * statistics.median(abs(value - middle) for value in logs)
    count = min(len(ranked), max(FEWEST_SHOWN, math.ceil(SHOWN * len(ranked))))
    order = sorted(range(len(ranked)), key=lambda index: -ranked[index][0])[:count]
    return [
        UnusualImage(index, names[index], ratio, logs[index] > middle + FAR * max(deviation, 1e-3), at)
        for index in order
        for ratio, at in [ranked[index]]
    ]


def peak(one: Tensor) -> Peak:
    """The highest value of a map (h, w), and its place as shares of height and width."""
    height, width = int(one.shape[0]), int(one.shape[1])
    place = int(one.argmax())
    return float(one.max()), ((place // width + 0.5) / height, (place % width + 0.5) / width)


def _peaks(maps: Iterable[Tensor], on_progress: OnProgress | None) -> list[Peak]:
    found = []
    for each in maps:
        highest = each.flatten().topk(max(1, each.numel() // 100)).values
        found.append((float(highest.mean()), peak(each)[1]))
        if on_progress is not None:
            on_progress(len(found), 0)
    return found
