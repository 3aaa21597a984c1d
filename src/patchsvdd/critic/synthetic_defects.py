"""Synthetic defects in images of good parts, to train the critic and choose settings without real defects.

A defect is a shape (``defect_shapes``) filled in one of several ways (``defect_fills``). Everything is drawn for a
whole batch at once, on the batch's device, from one generator, and never waits for the device, so a training step
can be captured as a CUDA graph. Only a window around each defect is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from patchsvdd.core.errors import ConfigError
from patchsvdd.core.roi import RoiCrop
from patchsvdd.critic.defect_fills import FILLS, Site
from patchsvdd.critic.defect_shapes import RandomStream, Window, draw_places, draw_shapes, place_weights

TRAINING_KINDS = ("blend", "paste", "stain", "paint", "smear", "pull", "bend", "missing", "scratch")
"""Kinds the critic is trained on: foreign pieces blended or pasted in, stains, flat paint, smears, displaced and bent
material, missing parts, scratches."""
SELECTION_KINDS = ("hole", "misplaced", "colour", "crack", "grime")
"""Kinds used to choose settings; the critic is not trained on any of them, which would bias the choice."""
KINDS = TRAINING_KINDS + SELECTION_KINDS
ONE_OR_TWO = (1.0, 0.5)
"""Every image gets a defect, and half of them a second one."""
VISIBLE = 0.05
"""Change of a pixel, in the range 0 … 1, at which the mask is 0.5."""
UNCHANGED = 0.1 * VISIBLE
"""Smaller changes count as none."""


@dataclass(frozen=True)
class Sizes:
    """Half-lengths of shapes: the smallest in pixels at 256 px, the largest as a share of the image's side."""

    smallest: float = 1.2
    largest: float = 1 / 6

    def window(self, size: tuple[int, int]) -> int:
        """Return the side in pixels of a window that fits the largest shape with its soft edge."""
        side = min(size)
        return min(side, math.ceil(2 * (self.largest * side + 8 * side / 256)))


@dataclass(frozen=True)
class DrawnDefects:
    """Images with synthetic defects."""

    images: Tensor
    """(N, 3, H, W) float in 0 … 255."""
    change: Tensor
    """(N, H, W) in 0 … 1: the largest change of a channel. All zero if nothing was drawn."""

    @property
    def masks(self) -> Tensor:
        """(N, H, W) float in 0 … 1: where the image has visibly changed, in the mean of 5 × 5 pixels."""
        return _visible(F.avg_pool2d(self.change[:, None], 5, 1, 2, count_include_pad=False)[:, 0])

    def labels(self) -> tuple[Tensor, Tensor]:
        """Return two maps (N, H, W) in 0 … 1: where the image has visibly changed, and where hardly visibly.

        Unlike in ``masks``, fine lines count if their contrast is high enough.
        """
        change = F.avg_pool2d(self.change[:, None], 3, 1, 1, count_include_pad=False)
        change = F.max_pool2d(change, 3, 1, 1)[:, 0]
        visible = _visible(change)
        return visible, (1 - visible) * (change > UNCHANGED)


def draw_defects(
    images: Tensor,
    sources: Tensor,
    generator: torch.Generator,
    kinds: Sequence[str] = KINDS,
    share: float = 1.0,
    sizes: Sizes | None = None,
    rounds: Sequence[float] = ONE_OR_TWO,
) -> DrawnDefects:
    """Draw defects into a share of the images (N, 3, H, W) in 0 … 255.

    ``rounds``: shares of the batch, counted from the first image, that each get one more defect.

    Foreign pieces come from ``sources`` (M, 3, H, W) in 0 … 255, good images of the same size. A kind listed
    twice is drawn twice as often; kinds are assigned in the order given.
    """
    unknown = [kind for kind in kinds if kind not in FILLS]
    if unknown or not kinds:
        raise ConfigError(f"kinds of defects are {', '.join(KINDS)}; got {', '.join(unknown) or 'none'}")
    counts = [round(part * len(images)) for part in rounds]
    if not any(counts):
        nowhere = images.new_zeros((len(images), *images.shape[2:]), dtype=torch.float32)
        return DrawnDefects(images.float(), nowhere)
    dice, sizes = RandomStream(generator, images.device), sizes or Sizes()
    before = images.float() / 255
    drawn = dice.uniform(len(images)) < share
    pictures = torch.cat([before[:count] for count in counts])  # all rounds are drawn at once, on the original images
    names = _names(len(pictures), kinds, dice)
    shown = torch.cat([drawn[:count] for count in counts])
    window, fill, cover = _draw(pictures, names, sources, shown, dice, sizes)
    after, start = before, 0
    for count in counts:
        run = slice(start, start + count)
        start = run.stop
        changed = window.part(run).blend(after[:count], fill[run], cover[run])
        after = changed if count == len(images) else torch.cat((changed, after[count:]))
    after = after.clamp(0, 1)
    return DrawnDefects(after * 255, (after - before).abs().amax(1))


def draw_visible(
    images: Tensor,
    sources: Tensor,
    generator: torch.Generator,
    visibility: Callable[[Tensor], Tensor],
    enough: float,
    attempts: int,
    sizes: Sizes | None = None,
    rounds: Sequence[float] = ONE_OR_TWO,
) -> tuple[DrawnDefects, Tensor]:
    """Return images (N, 3, H, W) in 0 … 255 with defects of SELECTION_KINDS, and the visibility (N,) of each.

    ``visibility`` rates masks (N, H, W). The first of the ``attempts`` whose visibility is ``enough`` is used, or the
    most visible one; if none is visible at all, the image is unchanged.
    """
    after, best = images.float().clone(), torch.zeros(len(images), device=images.device)
    change = torch.zeros((len(images), *images.shape[2:]), device=images.device)
    for _ in range(attempts):
        drawn = draw_defects(images, sources, generator, SELECTION_KINDS, sizes=sizes, rounds=rounds)
        visible = visibility(drawn.masks).float()
        better = (best < enough) & (visible > best)
        after[better], change[better], best[better] = drawn.images[better], drawn.change[better], visible[better]
    return DrawnDefects(after, change), best


def paint(images: Tensor, frame: RoiCrop | None) -> Tensor:
    """Fill the pixels of images (N, 3, H, W) in 0 … 255 that the region of interest excludes."""
    if frame is None or frame.area is None:
        return images
    counts, fill = _paint_of(frame, images.device)
    return images.where(counts, fill.to(images.dtype))


def covered(masks: Tensor, frame: RoiCrop | None) -> Tensor:
    """Return masks (N, H, W) set to 0 outside the region of interest."""
    return masks if frame is None or frame.area is None else masks * _paint_of(frame, masks.device)[0]


@lru_cache(maxsize=4)
def _paint_of(frame: RoiCrop, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the pixels that count (H, W) and the fill colour (3, 1, 1); cached, so that a GPU need not wait."""
    assert frame.area is not None
    return torch.from_numpy(frame.area.mask).to(device), torch.tensor(frame.fill, device=device).view(3, 1, 1)


def _names(count: int, kinds: Sequence[str], dice: RandomStream) -> list[str]:
    """Return the kind of each image, sorted so that images of one kind are computed together.

    Images are in random order, so their kinds need not be. With fewer images than kinds, the kinds are drawn.
    """
    if count < len(kinds):
        return [kinds[index] for index in sorted(dice.integers(len(kinds), count).tolist())]
    return [kinds[index * len(kinds) // count] for index in range(count)]


def _draw(
    pictures: Tensor, names: Sequence[str], sources: Tensor, drawn: Tensor, dice: RandomStream, sizes: Sizes
) -> tuple[Window, Tensor, Tensor]:
    """Return the windows of the defects, their fills (N, 3, w, w) and their opacities (N, 1, w, w)."""
    size = (int(pictures.shape[2]), int(pictures.shape[3]))
    unit = min(size) / 256
    weights = place_weights(pictures)
    centre = draw_places(weights, size, dice)
    window = Window.around(centre, sizes.window(size), size)
    shapes = draw_shapes(centre, window, dice, sizes.smallest * unit, sizes.largest * min(size), unit, names)
    site = Site(pictures, shapes, window, sources, weights, dice)
    fills, opacities, start = [], [], 0
    for name, group in groupby(names):
        run = slice(start, start + len(list(group)))
        start = run.stop
        fill = FILLS[name](site.part(run))
        fills.append(fill.picture)
        opacities.append(fill.opacity.expand(-1, -1, window.side, window.side))
    cover = shapes.cover[:, None] * torch.cat(opacities) * drawn[:, None, None, None]
    return window, torch.cat(fills), cover


def _visible(change: Tensor) -> Tensor:
    """Return 0 … 1 for changes in 0 … 1: whether they are visible."""
    return ((change - 0.5 * VISIBLE) / VISIBLE).clamp(0, 1)
