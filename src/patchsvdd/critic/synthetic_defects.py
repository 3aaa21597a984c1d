"""Synthetic defects in images of good parts: they train the critic and choose settings if no real one is known.

A defect is a shape (``defect_shapes``) filled in one of several ways (``defect_fills``). Everything is drawn for a
whole batch at once, on the batch's device, from one generator, and never waits for the device: a step that draws
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

TRAINING_KINDS = ("blend", "paste", "stain", "paint", "smear", "pull", "bend", "missing")
"""Kinds the critic learns from: foreign pieces blended or pasted in, stains, flat paint, smears, displaced and bent
material, parts that are not there."""
SELECTION_KINDS = ("hole", "misplaced", "colour", "crack", "grime")
"""Kinds that settings are chosen by: none of them is trained on, or training would judge itself."""
KINDS = TRAINING_KINDS + SELECTION_KINDS
ONE_OR_TWO = (1.0, 0.5)
"""Every image gets a defect, and half of them a second one."""
VISIBLE = 0.05
"""Change of a pixel, of the range 0 … 1, at which half of an observer would call it changed."""


@dataclass(frozen=True)
class Sizes:
    """Half-lengths of shapes: the smallest in pixels at 256 px, the largest as a share of the image's side."""

    smallest: float = 1.2
    largest: float = 1 / 6

    def window(self, size: tuple[int, int]) -> int:
        """Side in pixels of a window that the largest shape with its soft edge fits into."""
        side = min(size)
        return min(side, math.ceil(2 * (self.largest * side + 8 * side / 256)))


@dataclass(frozen=True)
class DrawnDefects:
    """Images with synthetic defects."""

    images: Tensor
    """(N, 3, H, W) float in 0 … 255."""
    masks: Tensor
    """(N, H, W) float in 0 … 1: where the image has visibly changed. All zero where nothing was drawn."""


def draw_defects(
    images: Tensor,
    sources: Tensor,
    generator: torch.Generator,
    kinds: Sequence[str] = KINDS,
    share: float = 1.0,
    sizes: Sizes | None = None,
    rounds: Sequence[float] = ONE_OR_TWO,
) -> DrawnDefects:
    """Images (N, 3, H, W) in 0 … 255 with defects, at the given share of them.

    In each of the ``rounds`` that share of the images, from the first on, gets one more defect.

    Foreign pieces come from ``sources`` (M, 3, H, W) in 0 … 255, good images of the same size. A kind that is named
    twice is drawn twice as often; kinds follow each other in the order given.
    """
    unknown = [kind for kind in kinds if kind not in FILLS]
    if unknown or not kinds:
        raise ConfigError(f"kinds of defects are {', '.join(KINDS)}; got {', '.join(unknown) or 'none'}")
    counts = [round(part * len(images)) for part in rounds]
    if not any(counts):
        return DrawnDefects(images.float(), images.new_zeros((len(images), *images.shape[2:]), dtype=torch.float32))
    dice, sizes = RandomStream(generator, images.device), sizes or Sizes()
    before = images.float() / 255
    drawn = dice.uniform(len(images)) < share
    pictures = torch.cat([before[:count] for count in counts])  # all rounds are drawn at once, on what was there before
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
    return DrawnDefects(after * 255, visible_change(before, after))


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
    """Images (N, 3, H, W) in 0 … 255 with defects of SELECTION_KINDS, and the visibility (N,) of each.

    ``visibility`` rates masks (N, H, W). Of the ``attempts`` the first that is visible ``enough`` is taken, or the most
    visible one; where no attempt shows at all the image stays as it is.
    """
    after, best = images.float().clone(), torch.zeros(len(images), device=images.device)
    masks = torch.zeros((len(images), *images.shape[2:]), device=images.device)
    for _ in range(attempts):
        drawn = draw_defects(images, sources, generator, SELECTION_KINDS, sizes=sizes, rounds=rounds)
        visible = visibility(drawn.masks).float()
        better = (best < enough) & (visible > best)
        after[better], masks[better], best[better] = drawn.images[better], drawn.masks[better], visible[better]
    return DrawnDefects(after, masks), best


def paint(images: Tensor, frame: RoiCrop | None) -> Tensor:
    """Images (N, 3, H, W) in 0 … 255 painted over where they do not count."""
    if frame is None or frame.area is None:
        return images
    counts, fill = _paint_of(frame, images.device)
    return images.where(counts, fill.to(images.dtype))


def covered(masks: Tensor, frame: RoiCrop | None) -> Tensor:
    """Masks (N, H, W) that are 0 where images are painted over."""
    return masks if frame is None or frame.area is None else masks * _paint_of(frame, masks.device)[0]


@lru_cache(maxsize=4)
def _paint_of(frame: RoiCrop, device: torch.device) -> tuple[Tensor, Tensor]:
    """(H, W) bool: what counts; (3, 1, 1): the colour of the rest. Kept, so that a GPU need not wait for them."""
    assert frame.area is not None
    return torch.from_numpy(frame.area.mask).to(device), torch.tensor(frame.fill, device=device).view(3, 1, 1)


def _names(count: int, kinds: Sequence[str], dice: RandomStream) -> list[str]:
    """The kind of each image, equal ones side by side: those are drawn together, and nothing else for them.

    Images come in any order, so it does not matter that their kinds do not. Fewer images than kinds get a draw.
    """
    if count < len(kinds):
        return [kinds[index] for index in sorted(dice.integers(len(kinds), count).tolist())]
    return [kinds[index * len(kinds) // count] for index in range(count)]


def _draw(
    pictures: Tensor, names: Sequence[str], sources: Tensor, drawn: Tensor, dice: RandomStream, sizes: Sizes
) -> tuple[Window, Tensor, Tensor]:
    """Where the defects lie, what fills them (N, 3, w, w), and how much of it is seen (N, 1, w, w)."""
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


def visible_change(before: Tensor, after: Tensor) -> Tensor:
    """(N, H, W) in 0 … 1: where images in 0 … 1 differ visibly."""
    change = (after - before).abs().amax(1, keepdim=True)
    change = F.avg_pool2d(change, 5, 1, 2, count_include_pad=False)[:, 0]
    return ((change - 0.5 * VISIBLE) / VISIBLE).clamp(0, 1)
