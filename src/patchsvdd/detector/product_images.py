"""How far an image is from the good images of a product."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from patchsvdd.core.device import reproducible
from patchsvdd.core.errors import ConfigError
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.encoder.patch_grid import PatchGrid, trim
from patchsvdd.encoder.untrained import MixedEncoder
from patchsvdd.memory.bank import ScaleMemory

COMPARED = 48
"""Good images of a product that an image is compared with, at most a third of them."""
PATCHES, COMPARED_PATCHES = 128, 64
"""Patches of an image, and of a good image, that are compared at most."""


@dataclass(frozen=True)
class ProductImages:
    """The good images in a model's memory that images are compared with."""

    product: str
    model: PatchSVDD = field(repr=False)
    size: int
    """Patch size in pixels: the largest one."""
    patches: Tensor = field(repr=False)
    """(K, S, D) float64: embeddings of S patches of each of K good images."""
    others: tuple[int, ...]
    """Indices of the other images in the memory that nothing was trained on."""

    @classmethod
    def of(cls, product: str, model: PatchSVDD) -> ProductImages:
        """Choose good images of a product from its model; raise ConfigError if its memory is a coreset."""
        if not model.config.memory_size.is_whole:
            raise ConfigError(
                f"the memory of '{product}' is a coreset, which lacks most patches of its images; choosing a product "
                f"requires a model with `memory=100%`"
            )
        size = max(model.memory.scales)
        memory = model.memory.scales[size]
        numbers = sorted({int(number) for number in memory.origins[:, 0].tolist()})
        order = [numbers[place] for place in _some(len(numbers), len(numbers)).tolist()]
        held_out = set(order) if _is_untrained(model, size) else set(model.provenance["data"]["held_out"])
        order.sort(key=lambda number: number in held_out)  # images that were trained on come first
        compared = order[: max(1, min(COMPARED, len(numbers) // 3))]
        images = [_of_image(memory, number) for number in compared]
        fewest = min(COMPARED_PATCHES, *map(len, images))
        patches = torch.stack([image[_some(len(image), fewest)] for image in images])
        return cls(
            product, model, size, patches.double(), tuple(one for one in order if one in held_out - set(compared))
        )

    def distance(self, pixels: Tensor) -> float:
        """The distance of an image from the product, given its pixels (3, H, W) in 0 … 255."""
        embedder = self.model.embedder
        with torch.inference_mode(), reproducible():
            images = embedder.normalization(pixels[None].to(self.model.device))
            grids: list[PatchGrid] = [
                grid
                for grid in embedder.grids((images.shape[2], images.shape[3]))
                if grid.scale.patch_size == self.size
            ]
            if grids[0].kept is not None:
                grids, down, across = trim(grids)
                images = images[:, :, down, across].contiguous()
            return self._of(embedder.encoder.embed(images, grids)[0][0])

    def of_others_in_memory(self) -> list[float]:
        """The distance of each of the other images in the memory."""
        if not self.others:
            raise ConfigError(
                f"the encoder of '{self.product}' was trained on all its images; give good images of the product that "
                f"it has not seen as `images`"
            )
        memory = self.model.memory.scales[self.size]
        with torch.inference_mode(), reproducible():
            return [self._of(_of_image(memory, number)) for number in self.others]

    def _of(self, image: Tensor) -> float:
        own = image[_some(len(image), PATCHES)].double()
        count, patches, _ = self.patches.shape
        apart = torch.cdist(own, self.patches.flatten(0, 1)).view(len(own), count, patches)
        return float((apart.amin(2).mean(0) + apart.amin(0).mean(1)).amin())


def _of_image(memory: ScaleMemory, number: int) -> Tensor:
    """The embeddings (P, D) of an image in a whole memory."""
    return memory.embeddings[(memory.origins[:, 0] == number).to(memory.embeddings.device)]


def _some(count: int, most: int) -> Tensor:
    """At most this many of ``count`` indices, always the same ones, in random order."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:most]


def _is_untrained(model: PatchSVDD, size: int) -> bool:
    """Whether the embeddings of patches of this size come from an encoder that was not trained."""
    encoder = model.encoder
    return not encoder.trainable or (isinstance(encoder, MixedEncoder) and size != min(encoder.patch_sizes))
