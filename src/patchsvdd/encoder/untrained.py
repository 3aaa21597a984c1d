"""Untrained embeddings of larger patches, beside the trained ones of the smallest.

# Differs from the paper, which trains all scales. Random features see differences that training ignores, and a defect
# has to be unusual for both. Embeddings of larger patches are those of small patches in a shrunk image, which costs a
# fraction of a pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchsvdd.core.config import Config
from patchsvdd.core.scales import SMALLEST_PATCH
from patchsvdd.core.streams import side_by_side
from patchsvdd.encoder.networks import Features, HierarchicalEncoder, PatchEncoder, SmallEncoder, pick
from patchsvdd.encoder.patch_grid import PatchGrid


class ShrunkEncoder(PatchEncoder):
    """Embeds patches as the 32-px patches that they become when the image is shrunk."""

    trainable = False

    def __init__(self, patch_size: int, embedding_dim: int) -> None:
        super().__init__()
        self.patch_sizes = (patch_size,)
        self.shrink = patch_size // SMALLEST_PATCH
        self.alignment = HierarchicalEncoder.alignment * self.shrink
        self.small = SmallEncoder(embedding_dim)

    def stack(self) -> tuple[nn.Sequential, nn.Conv2d]:
        """The layers of the small encoder."""
        return self.small.body, self.small.head

    def encode(self, patches: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Embeddings (B, D) of patches (B, 3, K, K)."""
        return {size: self.features(patch).flatten(1) for size, patch in patches.items()}

    def features(self, images: Tensor, step: int = 1) -> Tensor:
        """Embeddings (N, D, h, w) at every ``alignment · step``-th pixel."""
        embeddings: Tensor = self.small(F.avg_pool2d(images, self.shrink), step)
        return embeddings

    def every_position(self, images: Tensor) -> dict[int, Tensor]:
        """Embeddings (N, D, h, w) at every aligned position of images (N, 3, H, W)."""
        return {self.patch_sizes[0]: self.features(images)}


class MixedEncoder(PatchEncoder):
    """One encoder for the smallest patches, and an untrained one for each larger size."""

    def __init__(self, small: SmallEncoder, sizes: Sequence[int], embedding_dim: int) -> None:
        """``small`` embeds the smallest of the patch ``sizes``; the others are newly initialised."""
        super().__init__()
        self.patch_sizes = tuple(sizes)
        self.smallest = HierarchicalEncoder(1, embedding_dim)
        self.smallest.small = small
        self.larger = nn.ModuleList(ShrunkEncoder(size, embedding_dim) for size in sizes[1:])
        self.alignment = max(part.alignment for part in self.parts)

    @property
    def parts(self) -> tuple[PatchEncoder, ...]:
        """The encoders of all sizes, smallest first."""
        return (self.smallest, *(part for part in self.larger if isinstance(part, ShrunkEncoder)))

    def encode(self, patches: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Embeddings (B, D) of patches (B, 3, K, K)."""
        parts = dict(zip(self.patch_sizes, self.parts, strict=True))
        return {size: parts[size].encode({size: patch})[size] for size, patch in patches.items()}

    def dense(
        self, images: Tensor, grids: Sequence[PatchGrid], features: Sequence[Features] | None = None
    ) -> list[Tensor]:
        """Embeddings (N, D, rows, columns) on each grid, from one pass of each encoder."""

        def embed(grid: PatchGrid) -> Tensor:
            number = self.patch_sizes.index(grid.scale.patch_size)
            part, engine = self.parts[number], None if features is None else features[number : number + 1]
            step = part.feature_step(grids)
            return pick(part.native(images, step, engine), grid, part.alignment * step)

        return side_by_side(images.device, [partial(embed, grid) for grid in grids])

    def every_position(self, images: Tensor) -> dict[int, Tensor]:
        """Embeddings (N, D, h, w) of images (N, 3, H, W) for each patch size, at every position of its encoder."""
        maps: dict[int, Tensor] = {}
        for part in self.parts:
            maps |= part.every_position(images)
        return maps


def inspection_encoder(encoder: PatchEncoder, config: Config) -> PatchEncoder:
    """The encoder that inspects, given the one that was trained: the same one, or that with untrained larger patches.

    The untrained weights depend only on the seed.
    """
    wanted = config.larger_patches == "untrained" and len(config.scales) > 1
    if not wanted or not isinstance(encoder, HierarchicalEncoder):
        return encoder
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        mixed = MixedEncoder(encoder.small, encoder.patch_sizes, config.embedding_dim)
    mixed.trainable = encoder.trainable
    device = next(encoder.parameters()).device
    return mixed.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
