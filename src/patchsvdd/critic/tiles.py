"""Tiles of large images for the critic, each with a halo that covers the receptive field of its logits."""

from __future__ import annotations

from dataclasses import dataclass

COARSEST = 32
"""Input pixels per cell of the critic's deepest layer; tiles begin at multiples of it."""
STEP = 4
"""Input pixels per logit."""
HALO = 7 * COARSEST
"""Pixels around a tile that its logits may depend on: 208 for cells aligned with the whole image, rounded up."""


@dataclass(frozen=True)
class Tile:
    """A range of one axis whose logits are computed, and the pixels they depend on."""

    first: int
    stop: int
    """End of the range, in pixels."""
    length: int
    """Length of the whole axis."""

    @property
    def seen(self) -> slice:
        """The range including its halo, in pixels."""
        return slice(max(0, self.first - HALO), min(self.length, self.stop + HALO))

    @property
    def cells(self) -> slice:
        """Indices of the tile's logits on the whole axis."""
        return slice(self.first // STEP, -(-self.stop // STEP))

    @property
    def within(self) -> slice:
        """Indices of the tile's logits among those computed from ``seen``."""
        start = self.seen.start // STEP
        return slice(self.cells.start - start, self.cells.stop - start)


def tiles(size: tuple[int, int], most_pixels: int) -> list[tuple[Tile, Tile]]:
    """Return tiles (down, across) that cover an image of (height, width), each about ``most_pixels`` with its halo.

    Wide tiles have long halos above and below, narrow ones at both sides: the cheapest tiling is chosen.
    """
    height, width = size
    best: list[tuple[Tile, Tile]] = []
    least = None
    for count in range(1, -(-width // HALO) + 1):
        net_width = _rounded_up(-(-width // count))
        seen_width = min(width, net_width + 2 * HALO)
        room = most_pixels // seen_width
        net_height = height if room >= height else max(COARSEST, (room - 2 * HALO) // COARSEST * COARSEST)
        candidate = [(down, across) for down in _cut(height, net_height) for across in _cut(width, net_width)]
        area = len(candidate) * seen_width * min(height, net_height + 2 * HALO)
        if least is None or area < least:
            best, least = candidate, area
    return best


def _cut(length: int, net: int) -> list[Tile]:
    return [Tile(first, min(first + net, length), length) for first in range(0, length, net)]


def _rounded_up(pixels: int) -> int:
    return -(-pixels // COARSEST) * COARSEST
