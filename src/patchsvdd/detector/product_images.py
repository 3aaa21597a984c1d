"""The good images of a product, and how far an image is from them.

Products are compared in common units, which tell them apart, and in units of each product's own variation: what never
varies among its good images, such as their colour, shows that an image is something else.

An image is described by colour, contrast and edges in CELLS x CELLS cells. Nothing of this is trained, so the pictures
that a model stores of its good images are to this description what new images are.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from patchsvdd.core.config import Config
from patchsvdd.core.errors import ModelError
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.images.thumbnails import Thumbnails

SIDE, CELLS, SCALES = 192, 6, 3
"""Images are resized to SIDE x SIDE pixels. Edges are measured at SCALES scales, each half as fine as the last."""
COMPARED = 48
"""Good images of a product that an image is compared with, at most a third of them."""
COLOURS, EDGES = 3, 4 * SCALES
"""Numbers of a cell: its colours, its contrast, and its edges."""
LEAST_VARIATION = (0.01, 0.004, 0.004, 0.1, *([0.1] * EDGES))
"""Lowest standard deviations: of brightness and two differences of colours, and of the logs of contrast and edges."""
TYPICAL_OF = 16
"""Images of a product from which its typical distances are learned."""


@dataclass(frozen=True)
class ProductImages:
    """The pictures of good images that the model of a product stores."""

    config: Config
    """How the model crops and resizes images."""
    pictures: Thumbnails = field(repr=False)
    digests: frozenset[str] = field(repr=False)
    """Of the images that the pictures show."""
    identity: str
    """Of the model."""

    @classmethod
    def of(cls, product: str, model: PatchSVDD) -> ProductImages:
        """Return those of a model; raise ModelError if it stores no pictures or is not saved."""
        if model.identity is None:
            raise ModelError(f"the model of '{product}' is not saved; save it first: model.save(folder)")
        if model.pictures is None or len(model.pictures) < 2:
            raise ModelError(
                f"the model of '{product}' stores no pictures of its good images, by which products are recognised; "
                f"train it again"
            )
        digests = frozenset(model.provenance.get("data", {}).get("digests", ()))
        return cls(model.config, model.pictures, digests, model.identity)

    @cached_property
    def compared(self) -> Tensor:
        """(K, cells, D): descriptions of the good images that others are compared with."""
        return self._described(self._order[: self._count])

    @cached_property
    def others(self) -> Tensor:
        """(N, cells, D): descriptions of the other good images, which show how far good images are."""
        return self._described(self._order[self._count :])

    @property
    def _order(self) -> list[int]:
        order: list[int] = torch.randperm(len(self.pictures), generator=torch.Generator().manual_seed(0)).tolist()
        return order

    @property
    def _count(self) -> int:
        return max(1, min(COMPARED, len(self.pictures) // 3))

    def _described(self, numbers: Sequence[int]) -> Tensor:
        return torch.stack([describe(self.pictures[number]) for number in numbers])


def describe_new(pixels: Tensor) -> Tensor:
    """Return (CELLS², D) of a new image (3, H, W) in 0 … 255, which is compressed first, as pictures are."""
    return describe(Thumbnails.from_images([pixels])[0])


def describe(pixels: NDArray[np.uint8]) -> Tensor:
    """Return (CELLS², D) of an image (H, W, 3): mean colour, contrast and edges of each cell."""
    image = torch.from_numpy(pixels.astype(np.float32) / 255).permute(2, 0, 1)[None]
    image = F.interpolate(image, (SIDE, SIDE), mode="area")
    grey = image.mean(1, keepdim=True)
    means = F.adaptive_avg_pool2d(torch.cat((image, grey * grey), 1), CELLS)
    deviation = (means[:, 3:] - means[:, :3].mean(1, keepdim=True).square()).clamp_min(0).sqrt()
    parts = [means[:, :3], (deviation + 0.01).log()]
    for _ in range(SCALES):
        across, down = grey.diff(dim=3)[:, :, :-1], grey.diff(dim=2)[..., :-1]
        edges = torch.cat((across, down, (across + down) / 2**0.5, (across - down) / 2**0.5), 1).abs()
        parts.append((F.adaptive_avg_pool2d(edges, CELLS) + 0.003).log())
        grey = F.avg_pool2d(grey, 2)
    return torch.cat(parts, 1)[0].flatten(1).T.double()


def unit_of(described: Sequence[Tensor]) -> Tensor:
    """Return (D,) standard deviations over all cells of the images (K, cells, D) of all products."""
    return torch.cat([images.flatten(0, 1) for images in described]).std(0).clamp_min(1e-6)


class ProductDistance:
    """How far an image is from a product."""

    def __init__(self, compared: Tensor, unit: Tensor) -> None:
        """``compared``: (K, cells, D), good images of the product. ``unit``: (D,), the same for all products."""
        self._compared, self._unit = compared, unit
        self._variation = ProductVariation(compared)
        self._share = self._typical_ratio()

    def __call__(self, image: Tensor) -> float:
        """Return the larger one of ``distance`` and that by the product's variation, in multiples of typical ones."""
        return max(distance(image, self._compared, self._unit), self._share * self._variation.distance(image))

    def _typical_ratio(self) -> float:
        """Typical ``distance`` of a good image from the others, divided by that by their variation."""
        count = len(self._compared)
        if count < 2:
            return 0.0  # the variation is not known
        pairs = []
        for index in range(min(count, TYPICAL_OF)):
            others = self._compared[torch.arange(count) != index]
            image = self._compared[index]
            pairs.append((distance(image, others, self._unit), ProductVariation(others).distance(image)))
        plain, own = (statistics.median(values) for values in zip(*pairs, strict=True))
        return float(plain / max(own, 1e-6))


class ProductVariation:
    """How the cells of a product's good images vary."""

    def __init__(self, compared: Tensor) -> None:
        """``compared``: (K, cells, D), good images of the product."""
        cells = _opponent(compared).flatten(0, 1)
        self._mean = cells.mean(0)
        offset = cells - self._mean
        least = torch.tensor(LEAST_VARIATION, dtype=cells.dtype)
        covariance = offset.T @ offset / len(cells) + least.square().diag()
        self._units = torch.linalg.cholesky(torch.linalg.inv(covariance))
        self._cells = offset @ self._units

    def distance(self, image: Tensor) -> float:
        """Return how far cells (cells, D) are from the most similar ones of all good images; half are further.

        In standard deviations of the product's cells. A defect that covers less than half of the image matters little.
        """
        cells = (_opponent(image) - self._mean) @ self._units
        return float(torch.cdist(cells, self._cells).amin(1).median())


def _opponent(described: Tensor) -> Tensor:
    """Return descriptions (…, D) with brightness and two differences of colours instead of three colours."""
    red, green, blue = described[..., :COLOURS].unbind(-1)
    colours = torch.stack(((red + green + blue) / 3, red - green, (red + green) / 2 - blue), -1)
    return torch.cat((colours, described[..., COLOURS:]), -1)


def distance(image: Tensor, compared: Tensor, unit: Tensor) -> float:
    """Return the distance of an image (cells, D) from the most similar one of ``compared`` (K, cells, D).

    Two images are as far apart as the cells of each are from the most similar cell of the other, on average.
    """
    count, cells, _ = compared.shape
    apart = torch.cdist(image / unit, (compared / unit).flatten(0, 1)).view(len(image), count, cells)
    return float((apart.amin(2).mean(0) + apart.amin(0).mean(1)).amin())
