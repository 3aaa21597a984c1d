"""Patch encoders with one interface: the paper's hierarchical encoder, its ablation, and two baselines.

All convolutions are valid, so the embedding of a patch depends only on the patch. One pass over a whole image therefore
gives the embeddings of all its patches (``dense``), equal to encoding each patch separately (``encode``, for training).

Most arithmetic of a dense pass is in ``features``, a plain stack of convolutions that other ``engines`` can compute.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchsvdd.core.config import Config
from patchsvdd.core.scales import SMALLEST_PATCH, Scale
from patchsvdd.encoder.patch_grid import PatchGrid

SLOPE = 0.1
"""Negative slope of every LeakyReLU."""
STRIP_BYTES = {"cpu": 256 * 2**20, "cuda": 8 * 2**30}
"""Larger images are encoded in strips, whose layers need about this much memory."""

Features = Callable[[Tensor], Tensor]
"""Normalised images (N, 3, h, w) → a map (N, C, ⌈positions / step⌉, …) at every ``step``-th aligned position."""


class PatchEncoder(nn.Module):
    """Embeds patches of one or more sizes."""

    patch_sizes: tuple[int, ...]
    alignment: int
    """Pixels between neighbouring positions of the dense feature map."""
    trainable: bool = True
    shrink: int = 1
    """``features`` are those of the image shrunk by this factor."""

    @property
    def parts(self) -> tuple[PatchEncoder, ...]:
        """The encoders that compute features, each for some of the patch sizes."""
        return (self,)

    def stack(self) -> tuple[nn.Sequential, nn.Conv2d] | None:
        """The hidden layers and the last layer of ``features``; None if they are not a stack of convolutions."""
        return None

    @abstractmethod
    def encode(self, patches: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Embeddings (B, D) of patches (B, 3, K, K) for each patch size K, in one pass."""

    def dense(
        self, images: Tensor, grids: Sequence[PatchGrid], features: Sequence[Features] | None = None
    ) -> list[Tensor]:
        """Embeddings (N, D, rows, columns) of images (N, 3, H, W) on each grid, from one pass.

        ``features`` replace those of each of the ``parts`` at its ``feature_step(grids)``.
        """
        step = self.feature_step(grids)
        native = self.native(images, step, features)
        return [pick(native, grid, self.alignment * step) for grid in grids]

    def embed(
        self, images: Tensor, grids: Sequence[PatchGrid], features: Sequence[Features] | None = None
    ) -> list[Tensor]:
        """Embeddings (N, patches, D) of the patches that count on each grid; see ``dense``."""
        maps = self.dense(images, grids, features)
        return [grid.pick(rows_of(one)) for grid, one in zip(grids, maps, strict=True)]

    def features(self, images: Tensor, step: int = 1) -> Tensor:
        """Map (N, C, h, w) at every ``step``-th aligned position of normalised images: most of a dense pass."""
        raise NotImplementedError(f"{type(self).__name__} computes nothing worth another engine")

    @property
    def field(self) -> int:
        """Receptive field of one position of ``features``, in pixels."""
        return self.patch_sizes[0]

    def feature_step(self, grids: Sequence[PatchGrid]) -> int:
        """Largest step of ``features``, in aligned positions, that covers every patch of the grids.

        Patches of all sizes count: parts of an image start at any of them.
        """
        places = chain.from_iterable((*grid.whole.rows, *grid.whole.columns) for grid in grids)
        return max(1, math.gcd(self.field, *places) // self.alignment)

    def native(self, images: Tensor, step: int, features: Sequence[Features] | None) -> Tensor:
        """``features`` of whole images (N, 3, H, W), in strips if they are large."""

        def own(strip: Tensor) -> Tensor:
            return self.features(strip, step)

        return in_strips(features[0] if features else own, images, self.alignment * step, self.field)

    @abstractmethod
    def every_position(self, images: Tensor) -> dict[int, Tensor]:
        """Embeddings (N, D, h, w) at every aligned position of images (N, 3, H, W), for each patch size."""


def rows_of(feature_map: Tensor) -> Tensor:
    """(N, rows · columns, D) of a feature map (N, D, rows, columns), in reading order."""
    return feature_map.flatten(2).transpose(1, 2).contiguous()


class HierarchicalEncoder(PatchEncoder):
    """f_big(p) = g_big(f_small(p)) (Eq. 7), for any number of doublings of the smallest patch."""

    alignment = 2

    def __init__(self, levels: int, embedding_dim: int) -> None:
        super().__init__()
        self.patch_sizes = tuple(SMALLEST_PATCH * 2**level for level in range(levels))
        self.small = SmallEncoder(embedding_dim)
        self.merges = nn.ModuleList(Merge(embedding_dim) for _ in range(levels - 1))

    def encode(self, patches: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Embeddings (B, D) of patches (B, 3, K, K); one pass of the small encoder over all sub-patches."""
        parts = {size: _sub_patches(patch) for size, patch in patches.items()}  # (B · m · m, 3, 32, 32)
        encoded = self.small(torch.cat(list(parts.values()))).flatten(1)  # (sum of B · m · m, D)
        embeddings = {}
        for size, part in zip(parts, encoded.split([len(part) for part in parts.values()]), strict=True):
            m = size // SMALLEST_PATCH
            grid = part.view(-1, m, m, part.shape[1]).permute(0, 3, 1, 2)  # (B, D, m, m)
            for merge in self.merges[: self.patch_sizes.index(size)]:
                grid = merge(grid)  # halves m
            embeddings[size] = grid.flatten(1)
        return embeddings

    def dense(
        self, images: Tensor, grids: Sequence[PatchGrid], features: Sequence[Features] | None = None
    ) -> list[Tensor]:
        """Embeddings (N, D, rows, columns) on each grid, from one pass of the small encoder."""
        step = self.feature_step(grids)
        native = self.native(images, step, features)  # (N, D, h, w), every 2 · step pixels
        spacing = self.alignment * step
        return [
            self._at(self.patch_sizes.index(grid.scale.patch_size), native, spacing, *_places(grid, spacing, native))
            for grid in grids
        ]

    def stack(self) -> tuple[nn.Sequential, nn.Conv2d]:
        """The layers of the small encoder."""
        return self.small.body, self.small.head

    def features(self, images: Tensor, step: int = 1) -> Tensor:
        """Embeddings (N, D, h, w) of 32-px patches at every ``2 · step``-th pixel."""
        embeddings: Tensor = self.small(images, step)
        return embeddings

    def every_position(self, images: Tensor) -> dict[int, Tensor]:
        """Embeddings (N, D, h, w) at every second pixel of images (N, 3, H, W), for each patch size."""
        maps = {self.patch_sizes[0]: self.small(images)}
        for child, size, merge in zip(self.patch_sizes, self.patch_sizes[1:], self.merges, strict=False):
            maps[size] = merge(maps[child], spacing=child // self.alignment)
        return maps

    def _at(self, level: int, native: Tensor, spacing: int, rows: Tensor, columns: Tensor) -> Tensor:
        """Embeddings (N, D, len(rows), len(columns)) of one level, from a map with a position per ``spacing``."""
        if level == 0:
            return _select(native, rows, columns)
        # The four sub-patches of a patch at r are at r and r + K_child on each axis. Placed side by side
        # (r0, r0 + K, r1, r1 + K, …), they go through the same 2 × 2 merge as those of a single patch.
        child = self.patch_sizes[level - 1] // spacing
        both_rows = torch.stack((rows, rows + child), dim=1).flatten()
        both_columns = torch.stack((columns, columns + child), dim=1).flatten()
        merged: Tensor = self.merges[level - 1](self._at(level - 1, native, spacing, both_rows, both_columns))
        return merged


class SmallEncoder(nn.Module):
    """f_small: eight valid 3 × 3 convolutions that map a 32 × 32 patch to one embedding."""

    def __init__(self, embedding_dim: int) -> None:
        super().__init__()
        widths = (3, 32, 64, 128, 128, 64, 32, 32)
        layers: list[nn.Module] = []
        for index, (before, after) in enumerate(pairwise(widths)):
            layers.append(nn.Conv2d(before, after, kernel_size=3, stride=2 if index == 0 else 1))
            layers.append(nn.LeakyReLU(SLOPE, inplace=True))
        self.body = nn.Sequential(*layers)
        self.head = nn.Conv2d(widths[-1], embedding_dim, kernel_size=3)

    def forward(self, images: Tensor, step: int = 1) -> Tensor:
        """(N, 3, H, W) → (N, D, (H − 32) / 2 + 1, (W − 32) / 2 + 1) in −1 … 1, or every ``step``-th position of it."""
        hidden = self.body(images.contiguous(memory_format=torch.channels_last))
        return _embed(self.head, hidden, step)


class Merge(nn.Module):
    """g_big: embeddings of 2 × 2 sub-patches → embedding of the patch they form."""

    def __init__(self, embedding_dim: int, hidden: int = 128) -> None:
        super().__init__()
        self.gather = nn.Conv2d(embedding_dim, hidden, kernel_size=2)
        self.mix = nn.Conv2d(hidden, embedding_dim, kernel_size=1)
        self.activation = nn.LeakyReLU(SLOPE, inplace=True)

    def forward(self, embeddings: Tensor, spacing: int | None = None) -> Tensor:
        """Embeddings (N, D, h, w) in −1 … 1 of patches, from those of their sub-patches.

        Without ``spacing``, the sub-patches of a patch are adjacent: (N, D, 2h, 2w). With it, the input is a dense map
        (N, D, h + spacing, w + spacing) in which the sub-patches of a patch are ``spacing`` positions apart.
        """
        stride, dilation = (2, 1) if spacing is None else (1, spacing)
        with torch.autocast(embeddings.device.type, enabled=False):
            gathered = F.conv2d(embeddings.float(), self.gather.weight, self.gather.bias, stride, dilation=dilation)
            merged: Tensor = self.mix(self.activation(gathered)).tanh()
        return merged


class FlatEncoder(PatchEncoder):
    """The non-hierarchical ablation (Table A2): four valid 5 × 5 convolutions for K = 64."""

    patch_sizes = (64,)
    alignment = 8

    def __init__(self, embedding_dim: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 64, kernel_size=5, stride=2),
            nn.LeakyReLU(SLOPE, inplace=True),
            nn.Conv2d(64, 64, kernel_size=5, stride=2),
            nn.LeakyReLU(SLOPE, inplace=True),
            nn.Conv2d(64, 128, kernel_size=5, stride=2),
            nn.LeakyReLU(SLOPE, inplace=True),
        )
        self.head = nn.Conv2d(128, embedding_dim, kernel_size=5)

    def encode(self, patches: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Embeddings (B, D) of patches (B, 3, 64, 64)."""
        return {size: self.features(patch)[:, :, 0, 0] for size, patch in patches.items()}

    def stack(self) -> tuple[nn.Sequential, nn.Conv2d]:
        """All layers."""
        return self.layers, self.head

    def features(self, images: Tensor, step: int = 1) -> Tensor:
        """Embeddings (N, D, h, w) at every ``8 · step``-th pixel."""
        hidden = self.layers(images.contiguous(memory_format=torch.channels_last))
        return _embed(self.head, hidden, step)

    def every_position(self, images: Tensor) -> dict[int, Tensor]:
        """Embeddings (N, D, h, w) at every eighth pixel of images (N, 3, H, W)."""
        return {self.patch_sizes[0]: self.features(images)}


class RawPixels(PatchEncoder):
    """f(p) = p: the patch itself, for the nearest-neighbour baseline of Table 3."""

    alignment = 2
    trainable = False

    def __init__(self, patch_sizes: Sequence[int]) -> None:
        super().__init__()
        self.patch_sizes = tuple(patch_sizes)

    def encode(self, patches: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Patches (B, 3, K, K) → (B, 3 · K · K)."""
        return {size: patch.flatten(1) for size, patch in patches.items()}

    def dense(
        self, images: Tensor, grids: Sequence[PatchGrid], features: Sequence[Features] | None = None
    ) -> list[Tensor]:
        """Pixels (N, 3 · K · K, rows, columns) of the patches on each grid."""
        del features  # not used
        embeddings = []
        for grid in grids:
            size = grid.scale.patch_size
            strips = images.unfold(2, size, 1)[:, :, grid.rows]  # (N, 3, rows, W, K)
            patches = strips.unfold(3, size, 1)[:, :, :, grid.columns]  # (N, 3, rows, columns, K, K)
            embeddings.append(patches.permute(0, 1, 4, 5, 2, 3).flatten(1, 3))
        return embeddings

    def every_position(self, images: Tensor) -> dict[int, Tensor]:
        """Pixels (N, 3 · K · K, h, w) of the patches at every second pixel."""
        size = (int(images.shape[2]), int(images.shape[3]))
        grids = [PatchGrid(size, Scale(k, self.alignment), self.alignment) for k in self.patch_sizes]
        return dict(zip(self.patch_sizes, self.dense(images, grids), strict=True))


class PositionClassifier(nn.Module):
    """C_φ: classifies which of the eight neighbours the second patch is, from the difference of two embeddings."""

    def __init__(self, embedding_dim: int, frozen_output: bool, hidden: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(embedding_dim, hidden),
            nn.LeakyReLU(SLOPE),
            nn.Linear(hidden, hidden),
            nn.LeakyReLU(SLOPE),
        )
        self.output = nn.Linear(hidden, 8)
        if frozen_output:
            # The authors' code normalises each column of this weight inside torch.no_grad(), so the weight keeps its
            # random initial value and only the bias is trained. The paper's results depend on this.
            weight = self.output.weight
            with torch.no_grad():
                weight /= weight.norm(dim=0, keepdim=True)
            weight.requires_grad_(False)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Logits (B, 8) for embeddings (B, D) of first and second patches."""
        logits: Tensor = self.output(self.layers(first - second))
        return logits


def build_encoder(config: Config) -> PatchEncoder:
    """A newly initialised encoder for ``config``; its weights depend only on the seed."""
    encoder: PatchEncoder
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if config.encoder == "raw":
            return RawPixels([scale.patch_size for scale in config.scales])
        if config.encoder == "flat":
            encoder = FlatEncoder(config.embedding_dim)
        else:
            encoder = HierarchicalEncoder(len(config.scales), config.embedding_dim)
    encoder.trainable = config.encoder != "random"
    # torch's stub of Module.to lacks the memory_format overload
    return encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def grids_for(encoder: PatchEncoder, config: Config, image_size: tuple[int, int]) -> list[PatchGrid]:
    """One grid per scale for images of (height, width)."""
    area = config.area(image_size)
    alignments = {size: part.alignment for part in encoder.parts for size in part.patch_sizes}
    return [PatchGrid(image_size, scale, alignments[scale.patch_size], area=area) for scale in config.scales]


def in_strips(features: Features, images: Tensor, spacing: int, field: int) -> Tensor:
    """``features`` of images (N, 3, H, W), computed in strips of equal height if the images are large.

    ``spacing``: pixels between positions of the map; ``field``: receptive field of one position, in pixels.
    """
    widest = 2 * 128 * 4 // 4  # bytes of the widest layer's input and output, at half resolution, per pixel
    height, width = images.shape[2:]
    positions = (height - field) // spacing + 1
    fitting = max(field, STRIP_BYTES[images.device.type] // (widest * width * len(images)))  # pixels
    per_strip = max(1, (fitting - field) // spacing + 1)
    if per_strip >= positions:
        return features(images)
    rows = field + (per_strip - 1) * spacing
    whole: Tensor | None = None
    for start in range(0, positions, per_strip):
        first = min(start, positions - per_strip)  # the last strip ends with the image
        strip = features(images[:, :, first * spacing : first * spacing + rows])
        if whole is None:
            whole = strip.new_empty((*strip.shape[:2], positions, strip.shape[3]))
        whole[:, :, first : first + per_strip] = strip
    assert whole is not None
    return whole


def _embed(head: nn.Conv2d, hidden: Tensor, step: int) -> Tensor:
    """tanh of the last convolution at every ``step``-th position, in full precision for near-equal embeddings."""
    with torch.autocast(hidden.device.type, enabled=False):
        return F.conv2d(hidden.float(), head.weight, head.bias, stride=step).tanh()


def pick(native: Tensor, grid: PatchGrid, spacing: int) -> Tensor:
    """Select the patches of a grid (N, D, rows, columns) from a map with one position per ``spacing`` pixels."""
    return _select(native, *_places(grid, spacing, native))


def _select(native: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Select (N, D, len(rows), len(columns)) from a map (N, D, h, w); the map itself if everything is selected."""
    if (len(rows), len(columns)) == native.shape[2:]:  # positions are distinct and in order
        return native
    return native[:, :, rows[:, None], columns]


def _places(grid: PatchGrid, spacing: int, native: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns of a grid in a map with one position per ``spacing`` pixels, on the map's device."""
    # Cached, because CUDA graphs need fixed tensors; the bands of a large image are too many to cache.
    find = _kept_places if grid.band is None else _find_places
    return find(grid, spacing, native.device)


def _find_places(grid: PatchGrid, spacing: int, device: torch.device) -> tuple[Tensor, Tensor]:
    rows = torch.tensor(grid.rows, device=device) // spacing
    columns = torch.tensor(grid.columns, device=device) // spacing
    return rows, columns


_kept_places = lru_cache(maxsize=64)(_find_places)


def _sub_patches(patches: Tensor) -> Tensor:
    """(B, 3, K, K) → (B · m · m, 3, 32, 32) with m = K / 32, sub-patches in row-major order."""
    m = patches.shape[2] // SMALLEST_PATCH
    split = patches.reshape(len(patches), 3, m, SMALLEST_PATCH, m, SMALLEST_PATCH)
    return split.permute(0, 2, 4, 1, 3, 5).flatten(0, 2)
