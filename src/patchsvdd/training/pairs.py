"""Sources of embedded pairs for a training step: cut patches (the paper) or dense feature maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from patchsvdd.core.config import Config
from patchsvdd.encoder.networks import SLOPE, HierarchicalEncoder, Merge, PatchEncoder
from patchsvdd.training.fused_encoder import CHANNELS, SmallStack, compile_together, stack_runs_on
from patchsvdd.training.light_augmentation import add_illumination_gradient, change_light
from patchsvdd.training.pair_sampler import (
    DIRECTIONS,
    PairSampler,
    PatchOrigins,
    PatchPairs,
    cut_patches,
    perturb_colour,
)
from patchsvdd.training.process_group import ProcessGroup


@dataclass(frozen=True)
class PositionPairs:
    """Embeddings (B, D) of first and second patches, and the direction label (B,) of the second."""

    first: Tensor
    second: Tensor
    label: Tensor


@dataclass(frozen=True)
class EmbeddedPairs:
    """Embeddings (B, D) of one scale's pairs in one step."""

    jitter_first: Tensor
    jitter_second: Tensor
    position: PositionPairs | None
    """None if the objective has no L_SSL."""


class PairSource(Protocol):
    """Draws and embeds the pairs of one training step."""

    def compile(self) -> None:
        """Compile all kernels, which the first step would otherwise compile one by one."""
        ...

    def draw(self) -> dict[int, EmbeddedPairs]:
        """Return patch size → pairs, with gradients to the encoder."""
        ...


def places_of(images: Tensor, config: Config) -> PatchOrigins | None:
    """Return the allowed patch corners of images (N, 3, H, W); None if all are allowed."""
    area = config.area((int(images.shape[2]), int(images.shape[3])))
    return None if area is None else PatchOrigins(area, images.device)


def pair_source(
    encoder: PatchEncoder,
    images: Tensor,
    config: Config,
    generator: torch.Generator,
    with_kernels: bool = False,
    group: ProcessGroup | None = None,
) -> PairSource:
    """Return the source for ``config.sampling`` over normalised images (N, 3, H, W).

    ``with_kernels`` runs the encoder in Triton kernels if they support it. A ``group`` runs the plain encoder, which
    is the same on all devices.
    """
    if config.sampling == "patches":
        return CutPairs(encoder, images, config, generator, group)
    plain = group is None and config.learns_positions and places_of(images, config) is None
    if images.is_cuda and isinstance(encoder, HierarchicalEncoder) and plain:
        return GatheredPairs(encoder, images, config, generator, with_kernels)
    return DensePairs(encoder, images, config, generator, group)


class CutPairs:
    """The paper's procedure: every patch is cut out and encoded separately."""

    def __init__(
        self,
        encoder: PatchEncoder,
        images: Tensor,
        config: Config,
        generator: torch.Generator,
        group: ProcessGroup | None = None,
    ) -> None:
        self.encoder, self.images, self.config, self.generator = encoder, images, config, generator
        self._group = group
        size = (int(images.shape[2]), int(images.shape[3]))
        self.sampler = PairSampler(len(images), size, generator, places_of(images, config))

    def compile(self) -> None:
        """Do nothing: the plain encoder has no kernels to compile."""

    def draw(self) -> dict[int, EmbeddedPairs]:
        """Return pairs of all scales from one encoder pass."""
        labels: dict[int, Tensor] = {}
        patches: dict[int, Tensor] = {}
        for size in self.encoder.patch_sizes:
            parts = []
            if self.config.learns_positions:
                position = self.sampler.position_pairs(self.config.batch_size, size)
                labels[size] = position.label
                cut = self._cut(position, size)
                parts.append(perturb_colour(cut, self.config.rgb_shift, self.config.noise, self.generator))
            parts.append(self._cut(self.sampler.jitter_pairs(self.config.batch_size, size), size))
            patches[size] = torch.cat(parts)  # (4B or 2B, 3, K, K)
            if self.config.photometric > 0:
                patches[size] = change_light(patches[size], self.config.photometric, self.generator)
            if self.config.lamp > 0:
                patches[size] = add_illumination_gradient(patches[size], self.config.lamp, self.generator)
        blocks = 4 if self.config.learns_positions else 2
        if self._group is not None:
            patches = {size: self._group.share(whole, blocks) for size, whole in patches.items()}
        return {
            size: _split(_whole(e, blocks, self._group), labels.get(size))
            for size, e in self.encoder.encode(patches).items()
        }

    def _cut(self, pairs: PatchPairs, size: int) -> Tensor:
        """(2B, 3, K, K): all first patches, then all second ones."""
        image = torch.cat((pairs.image, pairs.image))
        return cut_patches(self.images, image, torch.cat((pairs.first, pairs.second)), size)


def _whole(embeddings: Tensor, blocks: int, group: ProcessGroup | None) -> Tensor:
    """Return the embeddings of all processes in the group, given this process's share."""
    return embeddings if group is None else group.gather(embeddings, blocks)


def _split(embeddings: Tensor, label: Tensor | None) -> EmbeddedPairs:
    """Split embeddings laid out as position pairs (if there is a label), then jitter pairs."""
    if label is None:
        jitter_first, jitter_second = embeddings.chunk(2)
        return EmbeddedPairs(jitter_first, jitter_second, None)
    first, second, jitter_first, jitter_second = embeddings.chunk(4)
    return EmbeddedPairs(jitter_first, jitter_second, PositionPairs(first, second, label))


class DensePairs:
    """Pairs read off feature maps of whole crops.

    # Differs from the paper: one dense pass over two differently lit views of a crop yields thousands of
    # embeddings, so a pair costs a small fraction of two cut patches. The first patch of a pair comes from one
    # view and the second from the other; positions move in steps of the encoder's alignment; pairs stay inside
    # the crop, so clipping makes no label wrong. Pairs of L_SSL and of L_SVDD' are read from the same views, so
    # both have the colour noise that the paper applies only to those of L_SSL.
    """

    def __init__(
        self,
        encoder: PatchEncoder,
        images: Tensor,
        config: Config,
        generator: torch.Generator,
        group: ProcessGroup | None = None,
    ) -> None:
        self.encoder, self.images, self.config, self.generator = encoder, images, config, generator
        self._group = group
        self.crop = min(config.crop_size, int(images.shape[2]), int(images.shape[3]))
        self._directions = torch.tensor(DIRECTIONS, device=images.device)
        self._count = config.batch_size * config.pairs_per_crop
        self._places_that_count = places_of(images, config)
        self._corner = torch.zeros((config.batch_size, 2), dtype=torch.int64, device=images.device)
        """(B, 2) top-left corners of this step's crops."""

    def compile(self) -> None:
        """Do nothing: the plain encoder has no kernels to compile."""

    def draw(self) -> dict[int, EmbeddedPairs]:
        """Return pairs of all scales from one dense pass over two views of each crop."""
        views = self._views()
        maps = self.encoder.every_position(
            views if self._group is None else self._group.share(views, 2)
        )  # K → (2B, D, h, w)
        return {size: self._pairs(size, feature_map) for size, feature_map in maps.items()}

    def _views(self) -> Tensor:
        """Return (2B, 3, crop, crop): all crops under one illumination, then all under another."""
        count = self.config.batch_size
        image = self._integers(len(self.images), (count,))
        room = [length - self.crop + 1 for length in self.images.shape[2:]]
        corner = torch.stack([self._integers(r, (count,)) for r in room], dim=1)
        if self._places_that_count is not None:
            counts = self._places_that_count.corners(self.crop)
            for _ in range(PatchOrigins.TRIES):
                redrawn = torch.stack([self._integers(r, (count,)) for r in room], dim=1)
                corner = corner.where(counts[corner[:, 0], corner[:, 1]][:, None], redrawn)
        self._corner = corner
        crops = cut_patches(self.images, image, corner, self.crop)
        views = change_light(torch.cat((crops, crops)), self.config.photometric, self.generator)
        if self.config.lamp > 0:
            views = add_illumination_gradient(views, self.config.lamp, self.generator)
        return perturb_colour(views, self.config.rgb_shift, self.config.noise, self.generator)

    def _pairs(self, size: int, feature_map: Tensor) -> EmbeddedPairs:
        view_a, view_b = feature_map.chunk(2)
        position = self._position_pairs(size, view_a, view_b) if self.config.learns_positions else None
        reach = max(1, size // (32 * self.encoder.alignment))
        side = 2 * reach + 1
        index = self._integers(side * side - 1, (self._count,))
        index = index + (index >= side * side // 2).long()  # never the centre
        jitter = torch.stack((index // side, index % side), dim=1) - reach
        return EmbeddedPairs(*self._read(size, view_a, view_b, jitter), position=position)

    def _position_pairs(self, size: int, view_a: Tensor, view_b: Tensor) -> PositionPairs:
        step = self.encoder.alignment
        label = self._integers(8, (self._count,))
        near, spare = 3 * size // (4 * step), size // (4 * step)
        offset = self._directions[label] * (near + self._integers(spare, (self._count, 2)))
        return PositionPairs(*self._read(size, view_a, view_b, offset), label=label)

    def _read(self, size: int, view_a: Tensor, view_b: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
        """Return embeddings (B · P, D) at random positions of view A, and at those + offset of view B."""
        side = view_a.shape[2]
        low = (-offset).clamp_min(0)
        room = (side - offset.abs()).clamp_min(1)  # a crop too small for the offset falls back to clipping
        image = torch.arange(self.config.batch_size, device=offset.device).repeat_interleave(self.config.pairs_per_crop)

        def draw() -> Tensor:
            unit = torch.rand(offset.shape, generator=self.generator, device=offset.device)
            return torch.minimum(low + (unit * room).long(), torch.full_like(low, side - 1))

        first = draw()
        if self._places_that_count is not None:
            counts = self._places_that_count.corners(size)
            for _ in range(PatchOrigins.TRIES):
                y, x = (self._corner[image] + self.encoder.alignment * first).T
                # In a crop of odd size the last position reaches one pixel beyond it.
                there = counts[y.clamp_max(len(counts) - 1), x.clamp_max(counts.shape[1] - 1)]
                first = first.where(there[:, None], draw())
        second = (first + offset).clamp(0, side - 1)
        if self._group is None:
            return _embeddings_at(view_a, image, first), _embeddings_at(view_b, image, second)
        image, first, second = (self._group.share(whole) for whole in (image % len(view_a), first, second))
        own = torch.cat((_embeddings_at(view_a, image, first), _embeddings_at(view_b, image, second)))
        gathered_first, gathered_second = _whole(own, 2, self._group).chunk(2)
        return gathered_first, gathered_second

    def _integers(self, high: int, shape: tuple[int, ...]) -> Tensor:
        return torch.randint(0, high, shape, generator=self.generator, device=self.images.device)


class GatheredPairs(DensePairs):
    """``DensePairs`` of the hierarchical encoder in few, large operations, for a GPU.

    At the larger scales only the embeddings used by a pair are computed: their sub-patches are gathered from the
    small encoder's map in one operation. Positions have the same distribution as in ``DensePairs``.
    """

    def __init__(
        self,
        encoder: HierarchicalEncoder,
        images: Tensor,
        config: Config,
        generator: torch.Generator,
        with_kernels: bool = False,
    ) -> None:
        super().__init__(encoder, images, config, generator)
        self._small, self._sizes = encoder.small, encoder.patch_sizes
        self._merges = [merge for merge in encoder.merges if isinstance(merge, Merge)]
        shape = (2 * config.batch_size, self.crop, self.crop)
        use = with_kernels and stack_runs_on(encoder, images.device, shape)
        self._stack = SmallStack(encoder.small, shape) if use else None
        step, device = encoder.alignment, images.device
        self._side = (self.crop - self._sizes[0]) // step + 1  # of the small encoder's map

        def by_scale(values: list[int]) -> Tensor:
            return torch.tensor(values, device=device)[:, None]  # (scales, 1)

        self._sides = by_scale([(self.crop - size) // step + 1 for size in self._sizes])
        self._near = by_scale([3 * size // (4 * step) for size in self._sizes])
        self._spare = by_scale([size // (4 * step) for size in self._sizes])
        self._reach = by_scale([max(1, size // (32 * step)) for size in self._sizes])
        self._ways = self._directions.T.contiguous()  # (2, 8)
        image = torch.arange(config.batch_size, device=device).repeat_interleave(config.pairs_per_crop)
        views = torch.stack((image, image + config.batch_size))  # of first and second patches
        self._start = (views * self._side**2)[:, None, None]  # (2, 1, 1, pairs): each view's first row of the map
        self._inside = [self._sub_patches(size // step, device) for size in self._sizes]

    def _sub_patches(self, reach: int, device: torch.device) -> Tensor:
        """Return (4^level,) row offsets in the map of a patch's sub-patches; the four of one merge are adjacent."""
        child = self._sizes[0] // self.encoder.alignment
        if reach == child:
            return torch.zeros(1, dtype=torch.int64, device=device)
        half = reach // 2
        corners = torch.tensor([0, half, half * self._side, half * (self._side + 1)], device=device)
        return (corners[:, None] + self._sub_patches(half, device)).flatten()

    def compile(self) -> None:
        """Compile the small encoder's kernels if they are used."""
        if self._stack is not None:
            compile_together(self._stack.launches(), self.images.device)

    def draw(self) -> dict[int, EmbeddedPairs]:
        """Return pairs of all scales from one dense pass over two views of each crop."""
        rows = self._map(self._views())  # (2B · h · w, D)
        labels, places = self._places()
        indices = [
            (place.flatten()[:, None] + inside).flatten() for place, inside in zip(places, self._inside, strict=True)
        ]
        gathered = torch.split(
            rows[torch.cat(indices)], [len(index) for index in indices]
        )  # the gradient sorts its indices: a fixed order
        pairs = {}
        with torch.autocast(rows.device.type, enabled=False):
            for level, (size, part) in enumerate(zip(self._sizes, gathered, strict=True)):
                embeddings = part
                for merge in self._merges[:level]:
                    embeddings = merge_rows(merge, embeddings.view(-1, 4 * embeddings.shape[1]))
                first, jitter_first, second, jitter_second = embeddings.chunk(4)
                pairs[size] = EmbeddedPairs(jitter_first, jitter_second, PositionPairs(first, second, labels[level]))
        return pairs

    def _map(self, views: Tensor) -> Tensor:
        """Return the small encoder's embeddings (2B · h · w, D) of views (2B, 3, crop, crop)."""
        if self._stack is None:
            embeddings: Tensor = self._small(views)
            return embeddings.permute(0, 2, 3, 1).flatten(0, 2)
        maps = views.new_zeros((*views.shape[:1], *views.shape[2:], CHANNELS), dtype=self._stack.dtype)
        maps[..., :3] = views.permute(0, 2, 3, 1)
        return self._stack(maps)

    def _places(self) -> tuple[Tensor, Tensor]:
        """Draw labels (scales, P) and map rows (scales, 4, P): first of position and jitter pairs, then second."""
        count, device = self._count, self.images.device
        unit = torch.rand((8, len(self._sizes), count), generator=self.generator, device=device)
        label = (unit[0] * 8).long()
        far = self._ways[:, label] * (self._near + (unit[1:3] * self._spare).long())  # (2, scales, P)
        side = 2 * self._reach + 1
        index = torch.minimum((unit[3] * (side * side - 1)).long(), side * side - 2)
        index = index + (index >= side * side // 2).long()  # never the centre
        near = torch.stack((index // side, index % side)) - self._reach
        offset = torch.stack((far, near), dim=1)  # (2, kinds, scales, P)
        low = (-offset).clamp_min(0)
        room = (self._sides - offset.abs()).clamp_min(1)  # a crop too small for the offset falls back to clipping
        last = self._sides - 1
        first = torch.minimum(low + (unit[4:].view(2, 2, -1, count) * room).long(), last)
        second = torch.minimum((first + offset).clamp_min(0), last)
        y, x = torch.stack((first, second), dim=1)  # (2: first and second, kinds, scales, P)
        places = self._start + y * self._side + x
        return label, places.flatten(0, 1).transpose(0, 1)


def merge_rows(merge: Merge, four: Tensor) -> Tensor:
    """Apply ``Merge`` to concatenated sub-patch embeddings (B, 4 · D), as plain matrix products."""
    gather = merge.gather.weight.permute(0, 2, 3, 1).flatten(1)  # a view where the weight is channels last
    gathered = F.leaky_relu(F.linear(four, gather, merge.gather.bias), SLOPE)
    return F.linear(gathered, merge.mix.weight.flatten(1), merge.mix.bias).tanh()


def _embeddings_at(feature_map: Tensor, image: Tensor, place: Tensor) -> Tensor:
    """Return embeddings (B, D) of maps (N, D, h, w) at positions (B, 2) of the given images (B,).

    Gradients of pairs that share a position must be summed in a fixed order, or identical runs would differ: on CUDA
    indexing does (it sorts), on several CPU threads only ``embedding`` does.
    """
    if feature_map.is_cuda:
        return feature_map[image, :, place[:, 0], place[:, 1]]
    height, width = feature_map.shape[2:]
    rows = feature_map.permute(0, 2, 3, 1).flatten(0, 2)  # (N · h · w, D)
    return F.embedding((image * height + place[:, 0]) * width + place[:, 1], rows)
