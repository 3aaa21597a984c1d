"""Synthetic defects of many sizes and strengths, and good images under variation, to choose a threshold.

The kinds of defects differ from those the critic is trained on. Strengths reach from plain to barely visible, so that
the share of missed defects rises gradually with the threshold. Varied images differ from good ones in light, place,
focus and grain, as good images differ among themselves and a little beyond; defects are drawn into them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from patchsvdd.core.roi import RoiCrop
from patchsvdd.critic.synthetic_defects import covered, draw_visible, paint
from patchsvdd.critic.validation import ANOTHER_DAY, NOISE, SHIFT, Light, photograph, shift

SMALLEST = 12
"""Fewest pixels that a defect must cover to count."""
FAINTEST = 10.0
"""Smallest contrast of a defect, in grey levels: people hardly see fainter ones on a part."""
WEAKEST = 0.15
"""Smallest opacity; the largest is 1."""
FOCUS = 0.6
"""Largest standard deviation of the blur, in pixels at 256 px."""
ATTEMPTS = 6
MOVING = 0.3
"""Share of images that are nearer to the others when shifted, from which on a shift by a pixel is to be expected: about
that of places that differ by half a pixel."""
MEASURED = 16
"""Good images whose sharpness is measured."""
STEPS = 6
"""Strengths of blur and grain that are tried."""


@dataclass(frozen=True)
class GradedDefects:
    """Images with one synthetic defect each."""

    images: Tensor
    """(N, 3, H, W) uint8."""
    masks: Tensor
    """(N, H, W) bool: the extent of the defect."""
    sources: Tensor
    """(N,) index of the image that each was drawn into."""
    contrasts: Tensor
    """(N,) mean change of the pixels inside the mask, in grey levels."""

    @classmethod
    def draw(
        cls, images: Tensor, good: Tensor, generator: torch.Generator, frame: RoiCrop | None = None
    ) -> GradedDefects:
        """Draw a defect into each of the images (N, 3, H, W) in 0 … 255; some defects show parts of ``good`` ones.

        Images in which no visible defect could be placed are left out. The others are unchanged outside their masks.
        """
        before = images.float()

        def pixels_inside(masks: Tensor) -> Tensor:
            return (covered(masks, frame) > 0.5)[:, 2:-2, 2:-2].sum((1, 2))

        drawn, pixels = draw_visible(before, good, generator, pixels_inside, SMALLEST, ATTEMPTS, rounds=(1.0,))
        masks = covered(drawn.masks, frame) > 0.5
        change = drawn.images - before
        full = _contrast(change, masks)
        opacity = WEAKEST + (1 - WEAKEST) * torch.rand(len(before), generator=generator, device=good.device)
        opacity = torch.maximum(opacity, FAINTEST / full.clamp_min(FAINTEST))
        after = before + opacity[:, None, None, None] * change
        kept = (pixels >= SMALLEST) & (full >= FAINTEST)
        painted = paint(after[kept].round().clamp(0, 255).byte(), frame)
        return cls(painted, masks[kept], kept.nonzero()[:, 0], (opacity * full)[kept])


def vary(images: Tensor, good: Tensor, generator: torch.Generator) -> Tensor:
    """Return images (N, 3, H, W) in 0 … 255 as uint8, as they would look on another day.

    Light, focus and grain change by up to twice the deviation among the ``good`` images. Images are shifted by a
    pixel if good images are often nearer to each other when shifted.
    """
    images = images.float()
    shifted, _ = shift(images, images.new_zeros((len(images), *images.shape[2:])), generator)
    if _moving_share(good) >= MOVING:
        images = shifted
    focus, noise = _sharpness_limits(good[:: max(1, len(good) // MEASURED)].float())
    sigma = focus * torch.rand(len(images), generator=generator, device=images.device)
    return photograph(_blur(images, sigma), generator, Light.of(good), noise)


def _moving_share(good: Tensor) -> float:
    """Return the share of good images that are more like the mean of the others if shifted by a pixel.

    Parts in a fixed place never are. With parts that move, and with textures, most images are.
    """
    if len(good) < 2:
        return 0.0
    total, moving = good.float().sum(0), 0
    for image in good.float():
        others = (total - image) / (len(good) - 1)
        inner = image[:, SHIFT:-SHIFT, SHIFT:-SHIFT]
        steps = [(down, right) for down in range(2 * SHIFT + 1) for right in range(2 * SHIFT + 1)]
        errors = torch.stack(
            [
                (others[:, down : down + inner.shape[1], right : right + inner.shape[2]] - inner).square().mean()
                for down, right in steps
            ]
        )
        moving += steps[int(errors.argmin())] != (SHIFT, SHIFT)
    return moving / len(good)


def _sharpness_limits(good: Tensor) -> tuple[float, float]:
    """Return the largest blur in pixels, and the largest grain in grey levels.

    Both change sharpness. Images that are all equally sharp come from a camera with fixed focus and little noise: more
    blur or grain than they show would be another camera.
    """
    known = _sharpness(good)
    allowed = ANOTHER_DAY * float(known.std(correction=0) / known.mean().clamp_min(1e-6))
    most = FOCUS * min(good.shape[2:]) / 256
    grain = torch.randn(good.shape, generator=torch.Generator().manual_seed(0)).to(good.device)
    focus = noise = 0.0
    for step in range(1, STEPS + 1):
        share = step / STEPS
        blurred = _blur(good, torch.full((len(good),), most * share, device=good.device))
        if float(1 - (_sharpness(blurred) / known.clamp_min(1e-6)).mean()) <= allowed:
            focus = most * share
        if float((_sharpness(good + NOISE / 2 * share * grain) / known.clamp_min(1e-6)).mean() - 1) <= allowed:
            noise = NOISE * share
    return focus, noise


def _sharpness(images: Tensor) -> Tensor:
    """Return (N,): the mean difference between neighbouring pixels."""
    return images.diff(dim=2).abs().mean((1, 2, 3)) + images.diff(dim=3).abs().mean((1, 2, 3))


def _contrast(change: Tensor, masks: Tensor) -> Tensor:
    """Return (N,): the mean change inside the masks, in grey levels of the most changed channel."""
    strongest = change.abs().amax(1)
    return (strongest * masks).sum((1, 2)) / masks.sum((1, 2)).clamp_min(1)


def _blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Blur each image with a Gaussian of its own standard deviation; edges are replicated."""
    reach = 2
    offsets = torch.arange(-reach, reach + 1, device=images.device)
    weights = torch.exp(-0.5 * (offsets / sigma.clamp_min(1e-3)[:, None]) ** 2)
    weights = weights / weights.sum(1, keepdim=True)
    count, channels, height, width = images.shape
    wide = F.pad(images, (reach,) * 4, mode="replicate").reshape(1, count * channels, *_grown(height, width, reach))
    kernel = weights.repeat_interleave(channels, 0)
    rows = F.conv2d(wide, kernel[:, None, :, None], groups=count * channels)
    return F.conv2d(rows, kernel[:, None, None, :], groups=count * channels).view(images.shape)


def _grown(height: int, width: int, reach: int) -> tuple[int, int]:
    return height + 2 * reach, width + 2 * reach
