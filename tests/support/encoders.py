"""Encoders for tests."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from patchsvdd.encoder.networks import PatchEncoder
from patchsvdd.encoder.patch_grid import PatchGrid
from patchsvdd.training.pair_sampler import cut_patches

Encoder = TypeVar("Encoder", bound=PatchEncoder)


def lively(encoder: Encoder) -> Encoder:
    """The encoder with weights and biases that all matter, as after training (fresh embeddings hardly differ)."""
    generator = torch.Generator().manual_seed(7)
    for module in encoder.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, a=0.1, generator=generator)
            assert module.bias is not None
            nn.init.normal_(module.bias, 0.0, 0.3, generator=generator)
    return encoder.eval().requires_grad_(False)


def patch_by_patch(encoder: PatchEncoder, image: Tensor, grid: PatchGrid) -> Tensor:
    """(D, rows, columns): every patch of the grid cut out of an image (3, H, W) and encoded by itself."""
    corners = torch.tensor([(row, column) for row in grid.rows for column in grid.columns])
    size = grid.scale.patch_size
    patches = cut_patches(image[None], torch.zeros(len(corners), dtype=torch.long), corners, size)
    return encoder.encode({size: patches})[size].T.reshape(-1, *grid.shape)
