"""Tiles of large images for the critic, with as much around each as one of its logits looks at."""

from __future__ import annotations

from dataclasses import dataclass

COARSEST = 32
"""Pixels of the input under one cell of the critic's deepest layer; tiles begin at multiples of it."""
STEP = 4
"""Pixels of the input under one logit."""
HALO = 7 * COARSEST
"""Pixels around a tile that its logits may depend on: 208 for cells that lie as in the whole image, rounded up."""


@dataclass(frozen=True)
class Tile:
    """A range of an axis, whose logits are wanted, and what must be seen for them."""

    first: int
    stop: int
    """Wanted, in pixels."""
    length: int
    """Of the whole axis."""

    @property
    def seen(self) -> slice:
        """Pixels to look at."""
        return slice(max(0, self.first - HALO), min(self.length, self.stop + HALO))

    @property
    def cells(self) -> slice:
        """Where the wanted logits belong, among those of the whole axis."""
        return slice(self.first // STEP, -(-self.stop // STEP))

    @property
    def within(self) -> slice:
        """Where they are, among those of what was seen."""
        start = self.seen.start // STEP
        return slice(self.cells.start - start, self.cells.stop - start)


def tiles(size: tuple[int, int], most_pixels: int) -> list[tuple[Tile, Tile]]:
    """(down, across) of tiles that cover an image of (height, width), each of about ``most_pixels`` with its halo.

    Few wide tiles have long halos above and below, many narrow ones to both sides: the cheapest are taken.
    """
    height, width = size
    found: list[tuple[Tile, Tile]] = []
    least = None
    for count in range(1, -(-width // HALO) + 1):
        net_width = _rounded_up(-(-width // count))
        seen_width = min(width, net_width + 2 * HALO)
        room = most_pixels // seen_width
        net_height = height if room >= height else max(COARSEST, (room - 2 * HALO) // COARSEST * COARSEST)
        these = [(down, across) for down in _cut(height, net_height) for across in _cut(width, net_width)]
        area = len(these) * seen_width * min(height, net_height + 2 * HALO)
        if least is None or area < least:
            found, least = these, area
    return found


def _cut(length: int, net: int) -> list[Tile]:
    return [Tile(first, min(first + net, length), length) for first in range(0, length, net)]


def _rounded_up(pixels: int) -> int:
    return -(-pixels // COARSEST) * COARSEST
