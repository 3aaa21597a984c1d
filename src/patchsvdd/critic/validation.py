"""Validation without labels: held-out good images, half of them with synthetic defects.

Every image gets a slightly different light, shift and grain, so that a detector that reacts to a darker image scores
worse. The kinds of synthetic defects differ from those used in training.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from patchsvdd.core.roi import RoiCrop
from patchsvdd.critic.synthetic_defects import covered, draw_visible, paint
from patchsvdd.scoring.ranking import rank_tensors

LOW_RATE = 0.05
"""False-positive rate of pixels up to which ``low_rate_auroc`` integrates the ROC curve."""
BRIGHTNESS, CONTRAST, COLOUR = 0.08 * 255, 0.08, 0.02 * 255
"""Largest change of light, in grey levels and as a share; of each colour channel, in grey levels."""
ANOTHER_DAY = 2.0
"""Light changes by up to this many standard deviations of the good images, but never more than the above: under
steady light a detector may rely on it."""
SHIFT = 1
"""Largest shift in pixels, on each axis."""
NOISE = 1.5
"""Largest standard deviation of the grain, in grey levels."""
SMALLEST = 12
"""Fewest pixels that a synthetic defect must cover to count."""
ATTEMPTS = 4


@dataclass(frozen=True)
class ValidationResult:
    """Metrics of a detector on synthetic defects, all in 0 … 1."""

    detection_auroc: float
    segmentation_auroc: float
    low_rate_auroc: float
    """Mean height of the pixels' ROC curve left of LOW_RATE: distinguishes detectors whose AUROC is near 1."""
    average_precision: float
    """Average precision of pixels."""
    detection_average_precision: float

    @property
    def criterion(self) -> float:
        """The selection criterion: the mean of detection and segmentation AUROC."""
        return (self.detection_auroc + self.segmentation_auroc) / 2

    def to_json(self) -> dict[str, float]:
        """Return a JSON-ready dictionary."""
        return {**asdict(self), "criterion": self.criterion}


@dataclass(frozen=True)
class ValidationSet:
    """Held-out good images, and the same images with synthetic defects."""

    images: Tensor
    """(N, 3, H, W) uint8."""
    masks: Tensor
    """(N, H, W) bool: where a defect is visible."""

    @property
    def labels(self) -> Tensor:
        """(N,) bool: whether the image is defective."""
        return self.masks.flatten(1).any(1)

    @property
    def has_defects(self) -> bool:
        """Whether any defect could be placed; without one, nothing can be judged."""
        return bool(self.masks.any())

    @classmethod
    def draw(cls, held_out: Tensor, seed: int = 0, at_least: int = 48, frame: RoiCrop | None = None) -> ValidationSet:
        """Draw ``at_least`` this many images from held-out ones (N, 3, H, W) in 0 … 255, half of them defective.

        On the images' device; the same images and seed give the same set there. Pixels outside ``frame`` stay filled.
        """
        generator = torch.Generator(held_out.device).manual_seed(seed)
        times = max(1, -(-at_least // (2 * len(held_out))))
        good = held_out.float().repeat(times, 1, 1, 1)
        defective, masks = _defective(good, held_out, generator, frame)
        images = torch.cat((good, defective))
        masks = torch.cat((torch.zeros_like(masks), masks))
        images, masks = shift(images, masks, generator)
        photographs = photograph(images, generator, Light.of(held_out))
        return cls(paint(photographs, frame), covered(masks, frame))

    def score(self, maps: Tensor, scores: Tensor) -> ValidationResult:
        """Rate anomaly maps (N, H, W) and scores (N,) of the images by how well they find the synthetic defects."""
        detection = rank_tensors(self.labels, scores)
        segmentation = rank_tensors(self.masks, maps)
        return ValidationResult(
            detection_auroc=detection.area(),
            segmentation_auroc=segmentation.area(),
            low_rate_auroc=segmentation.area(LOW_RATE),
            average_precision=segmentation.average_precision(),
            detection_average_precision=detection.average_precision(),
        )


def hold_out(image_count: int, share: float = 0.2, at_least: int = 8, seed: int = 0) -> tuple[list[int], list[int]]:
    """Return indices of the images to train on and of those held out: a share, ``at_least`` this many, at most half."""
    if image_count < 2:
        raise ValueError(f"holding out images requires at least 2; got {image_count}")
    count = min(max(round(share * image_count), at_least), image_count // 2)
    order = torch.randperm(image_count, generator=torch.Generator().manual_seed(seed)).tolist()
    return sorted(order[count:]), sorted(order[:count])


@dataclass(frozen=True)
class Light:
    """Largest change of brightness in grey levels, of contrast as a share, and of each colour channel."""

    brightness: Tensor
    contrast: Tensor
    colour: Tensor

    @classmethod
    def of(cls, good: Tensor) -> Light:
        """Return ANOTHER_DAY times the deviation among good images (N, 3, H, W), within the limits."""
        means = torch.stack([image.float().mean((1, 2)) for image in good])  # (N, 3)
        contrasts = torch.stack([image.float().std() for image in good])
        level = means.mean(1)
        return cls(
            (ANOTHER_DAY * level.std(correction=0)).clamp_max(BRIGHTNESS),
            (ANOTHER_DAY * contrasts.std(correction=0) / contrasts.mean().clamp_min(1)).clamp_max(CONTRAST),
            (ANOTHER_DAY * (means - level[:, None]).std(0, correction=0)).clamp_max(COLOUR)[:, None, None],
        )


def photograph(images: Tensor, generator: torch.Generator, light: Light, noise: float = NOISE) -> Tensor:
    """Return images (N, 3, H, W) in 0 … 255 as uint8, with light and grain as on another day."""

    def uniform(*shape: int) -> Tensor:
        return 2 * torch.rand(shape, generator=generator, device=images.device) - 1

    count = len(images)
    middle = images.mean((1, 2, 3), keepdim=True)
    lit = middle + (images - middle) * (1 + light.contrast * uniform(count, 1, 1, 1))
    lit = lit + light.brightness * uniform(count, 1, 1, 1) + light.colour * uniform(count, 3, 1, 1)
    grain = torch.randn(images.shape, generator=generator, device=images.device)
    return (lit + noise * uniform(count, 1, 1, 1).abs() * grain).round().clamp(0, 255).byte()


def shift(images: Tensor, masks: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return images (N, 3, H, W) and masks (N, H, W) shifted by up to SHIFT pixels; image edges are repeated."""
    count, height, width = masks.shape
    down, right = torch.randint(0, 2 * SHIFT + 1, (2, count, 1, 1), generator=generator, device=images.device)
    rows = down + torch.arange(height, device=images.device)[:, None]
    columns = right + torch.arange(width, device=images.device)
    index = torch.arange(count, device=images.device)[:, None, None]
    wide = F.pad(images, (SHIFT,) * 4, mode="replicate").permute(0, 2, 3, 1)
    wide_masks = F.pad(masks, (SHIFT,) * 4)
    return wide[index, rows, columns].permute(0, 3, 1, 2), wide_masks[index, rows, columns]


def _defective(
    good: Tensor, sources: Tensor, generator: torch.Generator, frame: RoiCrop | None
) -> tuple[Tensor, Tensor]:
    """Return good images (N, 3, H, W), each with a synthetic defect, and the masks (N, H, W) bool.

    If no defect is visible the image stays good. Foreign pieces come from held-out images too: a detector would know
    those of a training image.
    """

    def pixels_inside(masks: Tensor) -> Tensor:
        # A shift may push a defect at the very edge out of the image.
        return (covered(masks, frame) > 0.5)[:, SHIFT:-SHIFT, SHIFT:-SHIFT].sum((1, 2))

    drawn, pixels = draw_visible(good, sources, generator, pixels_inside, SMALLEST, ATTEMPTS)
    visible = (pixels >= SMALLEST)[:, None, None]
    return drawn.images.where(visible[:, None], good), (covered(drawn.masks, frame) > 0.5) & visible
