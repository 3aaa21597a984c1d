"""Random pairs of patches for the two losses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from patchsvdd.core.roi import PixelMask

DIRECTIONS = ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1))
"""(dy, dx) of the eight neighbours of a 3 × 3 grid; a position label is an index into this."""


@dataclass(frozen=True)
class PatchPairs:
    """Positions of pairs of patches of one size."""

    image: Tensor
    """(B,) index of the image."""
    first: Tensor
    """(B, 2) top-left corner (y, x) of the first patch."""
    second: Tensor
    """(B, 2) top-left corner of the second."""
    label: Tensor
    """(B,) index into DIRECTIONS for position pairs; zero for jitter pairs."""


class PatchOrigins:
    """Allowed patch corners under a region of interest: a patch needs at least one pixel that counts."""

    TRIES = 16
    """Redraws before a crop without such a pixel is accepted."""

    def __init__(self, area: PixelMask, device: torch.device) -> None:
        self._area, self._device = area, device
        self._corners: dict[int, Tensor] = {}

    def corners(self, patch_size: int) -> Tensor:
        """Return (H − K + 1, W − K + 1) bool: whether a patch with this corner holds a pixel that counts."""
        if patch_size not in self._corners:
            rows, columns = (list(range(length - patch_size + 1)) for length in self._area.size)
            touching = self._area.touching(rows, columns, patch_size)
            self._corners[patch_size] = torch.from_numpy(touching).to(self._device)
        return self._corners[patch_size]


class PairSampler:
    """Draws position and jitter pairs on the device, without a Python loop over patches."""

    def __init__(
        self,
        image_count: int,
        image_size: tuple[int, int],
        generator: torch.Generator,
        places: PatchOrigins | None = None,
    ) -> None:
        self.places = places
        self.image_count = image_count
        self.generator = generator
        self.device = generator.device
        self._size = torch.tensor(image_size, device=self.device)
        self._directions = torch.tensor(DIRECTIONS, device=self.device)

    def position_pairs(self, count: int, patch_size: int) -> PatchPairs:
        """Draw pairs in one of eight directions, 3K/4 … K − 1 pixels apart, clipped into the image (for L_SSL)."""
        image, first = self._uniform(count, patch_size)
        label = self._integers(8, (count,))
        distance = 3 * patch_size // 4 + self._integers(patch_size // 4, (count, 2))
        second = first + self._directions[label] * distance
        return PatchPairs(image, first, self._clip(second, patch_size), label)

    def jitter_pairs(self, count: int, patch_size: int) -> PatchPairs:
        """Draw pairs at most K/32 pixels apart on each axis, never identical before clipping (for L_SVDD')."""
        image, first = self._uniform(count, patch_size)
        reach = patch_size // 32
        side = 2 * reach + 1
        # One number per non-zero shift: skipping the centre of the side × side square excludes (0, 0).
        index = self._integers(side * side - 1, (count,))
        index = index + (index >= side * side // 2).long()
        shift = torch.stack((index // side, index % side), dim=1) - reach
        label = torch.zeros_like(index)
        return PatchPairs(image, first, self._clip(first + shift, patch_size), label)

    def _uniform(self, count: int, patch_size: int) -> tuple[Tensor, Tensor]:
        image = self._integers(self.image_count, (count,))
        room = self._size - patch_size + 1
        if self.places is not None:
            allowed = self.places.corners(patch_size).nonzero()
            return image, allowed[self._integers(len(allowed), (count,))]
        unit = torch.rand((count, 2), generator=self.generator, device=self.device)
        return image, torch.minimum((unit * room).long(), room - 1)

    def _integers(self, high: int, shape: tuple[int, ...]) -> Tensor:
        return torch.randint(0, high, shape, generator=self.generator, device=self.device)

    def _clip(self, corner: Tensor, patch_size: int) -> Tensor:
        return torch.minimum(corner.clamp_min(0), self._size - patch_size)


def cut_patches(images: Tensor, image: Tensor, corner: Tensor, patch_size: int) -> Tensor:
    """Return patches (B, C, K, K) of images (N, C, H, W) at corners (B, 2), gathered on the device."""
    windows = images.unfold(2, patch_size, 1).unfold(3, patch_size, 1)  # a view: (N, C, H-K+1, W-K+1, K, K)
    return windows[image, :, corner[:, 0], corner[:, 1]]


def perturb_colour(patches: Tensor, shift: float, noise: float, generator: torch.Generator) -> Tensor:
    """Return patches (B, C, K, K) with a random shift per channel and noise per pixel: hides colour from L_SSL."""
    batch, channels = patches.shape[:2]
    shifts = torch.randn((batch, channels, 1, 1), generator=generator, device=patches.device)
    grain = torch.randn(patches.shape, generator=generator, device=patches.device)
    return patches + shift * shifts + noise * grain
