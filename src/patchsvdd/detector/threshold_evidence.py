"""Evidence for a threshold: good images under variation and synthetic defects, each scored as a new image."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from patchsvdd.core.progress import OnProgress
from patchsvdd.core.roi import RoiCrop
from patchsvdd.critic.graded_defects import GradedDefects, vary
from patchsvdd.critic.synthetic_defects import paint
from patchsvdd.scoring.anomaly_map import image_score
from patchsvdd.scoring.calibration import Calibration
from patchsvdd.scoring.trade_off import Evidence

VARIED_SHARE = 0.375
"""Varied good images per synthetic defect."""
FEWEST_DEFECTS = 24
"""Synthetic defects to draw at least, however large the images are."""
MOST_SCORED = 2**28
"""Pixels to score, at most, unless that leaves fewer than FEWEST_DEFECTS."""
MOST_IMAGES = 48
"""Good images to draw from, at most: more say little more."""
MOST_PIXELS = 2**24
"""Pixels to draw from at a time, at most."""
LEVELS = 96
"""Candidate levels of outlines."""
SHARES = (0.0, 0.15, 0.25, 0.35, 0.45, 0.55)
"""Candidate shares of a region's peak below which its pixels are left out."""
AROUND = (0.25, 16.0)
"""Range of the candidate levels, in multiples of the median score of good images."""

Score = Callable[[Tensor, int], Tensor]
"""Return the map (1, H, W) of pixels (3, H, W) that show the calibration image at a place, as if it were new."""


@dataclass(frozen=True)
class Outlines:
    """How well the pixels above each level, and above each share of the peak, match the synthetic defects."""

    levels: Tensor
    """(L,) increasing."""
    inside: Tensor
    """(N, S, L) pixels of each defect above each share and level."""
    outside: Tensor
    """(N, S, L) other pixels of its image above them."""
    pixels: Tensor
    """(N,) pixels of each defect."""

    def best(self, found: Tensor) -> tuple[float, float] | None:
        """The level and the share with the highest mean F1 of the defects that are ``found`` (N,) bool.

        None if there are none. Every defect counts the same, or large ones would decide alone.
        """
        if not bool(found.any()):
            return None
        inside, outside = self.inside[found].double(), self.outside[found].double()
        f1 = (2 * inside / (inside + outside + self.pixels[found, None, None]).clamp_min(1)).mean(0)
        share, level = divmod(int(f1.argmax()), len(self.levels))
        return float(self.levels[level]), SHARES[share]


@dataclass(frozen=True)
class GatheredEvidence:
    """The evidence, and what is needed to choose outlines once the threshold is known."""

    evidence: Evidence
    outlines: Outlines

    def outlined(self, calibration: Calibration) -> Calibration:
        """The calibration with outlines that fit the synthetic defects it finds best; as it is if it finds none."""
        best = self.outlines.best(torch.tensor(self.evidence.defects) > calibration.threshold)
        return calibration if best is None else replace(calibration, region_level=best[0], region_share=best[1])


def gather_evidence(
    good: Tensor,
    score: Score,
    median: float,
    *,
    defects: int,
    seed: int,
    min_area: int,
    frame: RoiCrop | None,
    pixel: float,
    on_progress: OnProgress | None = None,
) -> GatheredEvidence:
    """Draw varied images and synthetic defects from the calibration images (N, 3, H, W), and score them.

    ``median`` is the median score of the calibration images, ``defects`` the number of synthetic defects to draw at
    least (fewer if the images are large), ``pixel`` the size of a pixel of the map in pixels of the original image.
    """
    generator = torch.Generator(good.device).manual_seed(seed)
    pixels = good.shape[2] * good.shape[3]
    wanted, defects = counts(defects, pixels)
    count = max(1, min(len(good), images_for_evidence(pixels), wanted))
    places = [place * len(good) // count for place in range(count)]
    chosen = good[places]
    rounds = -(-wanted // len(chosen))
    each = -(-defects // (rounds * len(chosen)))
    total = rounds * len(chosen) * (1 + each)
    first, last = (math.log10(max(median, 1e-12) * times) for times in AROUND)
    levels = torch.logspace(first, last, LEVELS)
    varied: list[float] = []
    scores: list[float] = []
    sizes: list[float] = []
    contrasts: list[float] = []
    inside: list[Tensor] = []
    outside: list[Tensor] = []
    for image, place, drawn in _draw(chosen, rounds, each, generator, frame):
        varied.append(float(image_score(score(image, places[place]), min_area)[0]))
        for defective, mask, contrast in drawn:
            image_map = score(defective, places[place])
            scores.append(float(image_score(image_map, min_area)[0]))
            sizes.append(2 * math.sqrt(int(mask.sum()) / math.pi) * pixel)
            contrasts.append(contrast)
            peak = float(image_map[0].max())
            cuts = torch.stack([levels.clamp_min(share * peak) for share in SHARES])
            for part, above in ((mask, inside), (~mask, outside)):
                above.append(_above(image_map[0][part].cpu(), cuts))
        if on_progress is not None:
            on_progress(len(varied) * (1 + each), total)
    empty = torch.zeros((0, len(SHARES), LEVELS), dtype=torch.int64)
    outlines = Outlines(
        levels,
        torch.stack(inside) if inside else empty,
        torch.stack(outside) if outside else empty,
        torch.tensor([round(math.pi * (size / pixel / 2) ** 2) for size in sizes]),
    )
    return GatheredEvidence(Evidence(tuple(varied), tuple(scores), tuple(sizes), tuple(contrasts)), outlines)


def counts(defects: int, pixels: int) -> tuple[int, int]:
    """Varied images and synthetic defects to draw at least, of images of this many pixels."""
    fitting = round(MOST_SCORED / pixels / (1 + VARIED_SHARE))
    defects = min(defects, max(FEWEST_DEFECTS, fitting))
    return math.ceil(VARIED_SHARE * defects), defects


def images_for_evidence(pixels: int) -> int:
    """How many good images of this many pixels to draw from, at most."""
    return max(1, min(MOST_IMAGES, MOST_PIXELS // pixels))


Drawn = list[tuple[Tensor, Tensor, float]]
"""Images (3, H, W) with a defect, their masks (H, W) and contrasts."""


def _draw(
    chosen: Tensor, rounds: int, each: int, generator: torch.Generator, frame: RoiCrop | None
) -> Iterator[tuple[Tensor, int, Drawn]]:
    """Yield varied good images, their place in ``chosen``, and the same with defects; a round at a time."""
    for _ in range(rounds):
        images = paint(vary(chosen, chosen, generator), frame)
        drawn: list[Drawn] = [[] for _ in images]
        for _ in range(each):
            new = GradedDefects.draw(images, chosen, generator, frame)
            for defective, mask, place, contrast in zip(
                new.images, new.masks, new.sources.tolist(), new.contrasts.tolist(), strict=True
            ):
                drawn[place].append((defective, mask, contrast))
        yield from zip(images, range(len(images)), drawn, strict=True)


def _above(values: Tensor, levels: Tensor) -> Tensor:
    """Return how many of the values (P,) exceed each level, in the levels' shape."""
    return len(values) - torch.searchsorted(values.float().sort().values, levels, right=True)
