"""Near-duplicate good images: copies, re-saved copies, frames of a burst.

A copy in the memory makes the original look far too normal, and a threshold set from such scores is far too low. So
each group of copies counts once. A copy is distinguished from a similar part by a gap: it is less than half as far away
as the nearest other image, and it explains nearly all of the image's content.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from patchsvdd.core.progress import OnProgress

SIDE = 128
"""Side of the thumbnails that are compared, in pixels."""
PATCH = 16
"""Side of the compared patches."""
MAX_SHIFT = 4
"""A patch may be shifted by up to this many pixels on each axis in the other image."""
GAP_RATIO = 0.5
"""The farthest copy is at most this fraction of the distance to the nearest image that is not a copy."""
MAX_DIFFERENCE = 0.015
"""A copy differs from the image by less than this share of the image's variance, summed over patches."""
IDENTICAL = 1e-4
"""An image that differs by less than this is always a copy: the pixels differ only by rounding."""
MANY_IMAGES = 500
"""From this many images on, only a quarter of the patches is compared."""


def find_duplicates(images: Sequence[Tensor] | Tensor, on_progress: OnProgress | None = None) -> list[int]:
    """For each image (3, H, W), the first index of its group of copies (or copies of copies), or its own index."""
    return duplicates_among(torch.stack([thumbnail(image) for image in images]), on_progress)


def duplicates_among(thumbnails: Tensor, on_progress: OnProgress | None = None) -> list[int]:
    """``find_duplicates`` for images given as ``thumbnail`` (N, SIDE, SIDE)."""
    distances, variance = _differences(thumbnails, on_progress)
    return _group_representatives(_copy_pairs(distances / variance[:, None].clamp_min(1)), len(thumbnails))


def thumbnail(image: Tensor) -> Tensor:
    """Convert an image (3, H, W) to a grey (SIDE, SIDE) thumbnail, smoothed to tolerate shifts of half a pixel."""
    grey = image.float().mean(0)[None, None]
    grey = F.interpolate(grey, (2 * SIDE, 2 * SIDE), mode="area") if min(grey.shape[2:]) > 2 * SIDE else grey
    grey = F.interpolate(grey, (SIDE, SIDE), mode="bilinear", antialias=True, align_corners=False)
    weights = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0]) / 16
    grey = F.conv2d(F.pad(grey, (2,) * 4, mode="reflect"), weights.view(1, 1, 5, 1))
    return F.conv2d(grey, weights.view(1, 1, 1, 5))[0, 0].cpu()


def _copy_pairs(unexplained: Tensor) -> Iterator[tuple[int, int]]:
    """Pairs (image, copy), from the share of each image that each other one does not explain (N, N)."""
    count = len(unexplained)
    unexplained.fill_diagonal_(torch.inf)
    ordered, neighbours = unexplained.sort(1)
    max_copies = max(0, count // 2 - 1)  # if half of the images are alike, the part looks like that
    gap = ordered[:, :max_copies] < GAP_RATIO * ordered[:, 1 : max_copies + 1]
    is_copy = gap & (ordered[:, :max_copies] < MAX_DIFFERENCE)
    ranks = torch.arange(1, max_copies + 1)
    counts = (is_copy * ranks).amax(1) if max_copies else torch.zeros(count, dtype=torch.long)
    counts = counts.maximum((ordered < IDENTICAL).sum(1))
    for index, number in enumerate(counts.tolist()):
        yield from ((index, int(other)) for other in neighbours[index, :number])


def _group_representatives(pairs: Iterator[tuple[int, int]], count: int) -> list[int]:
    """For each of 0 … count − 1, the smallest index that the pairs connect it with."""
    first = list(range(count))

    def root(index: int) -> int:
        while first[index] != index:
            index = first[index]
        return index

    for image, copy in pairs:
        low, high = sorted((root(image), root(copy)))
        first[high] = low
    return [root(index) for index in range(count)]


def _differences(thumbnails: Tensor, on_progress: OnProgress | None) -> tuple[Tensor, Tensor]:
    """Squared patch distances (N, N) between thumbnails, each patch to the nearest one nearby, and variances (N,)."""
    count = len(thumbnails)
    step = PATCH if count < MANY_IMAGES else 2 * PATCH
    corners = [(top, left) for top in range(0, SIDE - PATCH + 1, step) for left in range(0, SIDE - PATCH + 1, step)]
    padded = F.pad(thumbnails[:, None], (MAX_SHIFT,) * 4, mode="reflect")
    distances, variance = torch.zeros(count, count), torch.zeros(count)
    for done, (top, left) in enumerate(corners, start=1):
        patches = thumbnails[:, top : top + PATCH, left : left + PATCH].flatten(1)
        patches = patches - patches.mean(1, keepdim=True)  # ignore brightness
        near = padded[:, :, top : top + PATCH + 2 * MAX_SHIFT, left : left + PATCH + 2 * MAX_SHIFT]
        length = patches.square().sum(1)
        variance += length
        for first in range(0, count, 64):
            others = F.unfold(near[first : first + 64], PATCH).transpose(1, 2)
            others = others - others.mean(2, keepdim=True)
            lengths = others.square().sum(2)
            products = (patches @ others.flatten(0, 1).T).view(count, *lengths.shape)
            distances[:, first : first + 64] += (length[:, None] + (lengths - 2 * products).amin(2)).clamp_min(0)
        if on_progress is not None:
            on_progress(done, len(corners))
    return distances, variance
