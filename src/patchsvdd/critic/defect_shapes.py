"""Shapes of synthetic defects: blots, boxes, scratches and cracks, from a few pixels to a third of the image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

CELL = 16
"""Side, at 256 px, of the cells that defect positions are drawn from."""
EMPTY = 0.01
"""Weight of the emptiest cells as defect positions; the busiest have 0.5 to 0.75."""
STOCK = 16384
"""Random numbers drawn at once."""
BARE = 0.05
"""Weight below which a cell is considered background."""
EXPOSED = 4.0
"""Relative extra weight of a cell surrounded by background over one amid others: tips and edges are
damaged more often."""
LINES = 0.3
"""Share of scratches among the shapes."""
SOLID = {"hole": 3.0, "missing": 3.0, "misplaced": 6.0, "bend": 3.0}
"""Kinds that are never scratches → their minimum size, in multiples of the smallest shape."""
WAVES = 5
"""Number of waves in an uneven outline."""
KNOTS = 17
"""Number of corners of a crack."""


class RandomStream:
    """Random numbers of one generator, on its device. Small requests are served from one larger draw."""

    def __init__(self, generator: torch.Generator, device: torch.device) -> None:
        self.generator, self.device = generator, device
        self._stock = torch.empty(0, device=device)

    def uniform(self, *shape: int) -> Tensor:
        """Draw from 0 … 1."""
        count = math.prod(shape)
        if count > STOCK // 4:
            return torch.rand(shape, generator=self.generator, device=self.device)
        if len(self._stock) < count:
            self._stock = torch.rand(STOCK, generator=self.generator, device=self.device)
        numbers, self._stock = self._stock[:count], self._stock[count:]
        return numbers.view(shape)

    def signed(self, *shape: int) -> Tensor:
        """Draw from −1 … 1."""
        return 2 * self.uniform(*shape) - 1

    def normal(self, *shape: int) -> Tensor:
        """Draw from the standard normal distribution."""
        return torch.randn(shape, generator=self.generator, device=self.device)

    def integers(self, high: int, *shape: int) -> Tensor:
        """Draw from 0 … ``high`` − 1."""
        return torch.randint(0, high, shape, generator=self.generator, device=self.device)


@dataclass(frozen=True)
class Shapes:
    """One shape per image."""

    cover: Tensor
    """(N, w, w) in 0 … 1, over a window: 1 inside, falling to 0 over a soft edge."""
    depth: Tensor
    """(N, w, w) pixels from the outline, negative inside; exact near the outline only."""
    across: Tensor
    """(N, w, w) signed pixels from the centre line, perpendicular to the shape's length."""
    centre: Tensor
    """(N, 2) row and column."""
    half: Tensor
    """(N, 2) half-length and half-width in pixels."""
    angle: Tensor
    """(N,) direction of the length, in radians."""

    def part(self, run: slice) -> Shapes:
        """Return the shapes of a slice of the images."""
        return Shapes(
            self.cover[run], self.depth[run], self.across[run], self.centre[run], self.half[run], self.angle[run]
        )


@dataclass(frozen=True)
class Window:
    """A square window on each image of a batch."""

    rows: Tensor
    """(N, w) rows of the image."""
    columns: Tensor
    """(N, w) columns of the image."""

    @classmethod
    def around(cls, centre: Tensor, side: int, size: tuple[int, int]) -> Window:
        """Return windows around the centres (N, 2), shifted to fit into images of (height, width)."""
        pixel = torch.arange(side, device=centre.device)
        rows, columns = (
            (centre[:, axis] - side / 2).round().long().clamp(0, size[axis] - side)[:, None] + pixel for axis in (0, 1)
        )
        return cls(rows, columns)

    def part(self, run: slice) -> Window:
        """Return the windows of a slice of the images."""
        return Window(self.rows[run], self.columns[run])

    @property
    def side(self) -> int:
        """Side in pixels."""
        return int(self.rows.shape[1])

    def cut(self, images: Tensor) -> Tensor:
        """Return (N, C, w, w) of images (N, C, H, W)."""
        return images[self._places(images)].permute(0, 3, 1, 2)

    def blend(self, images: Tensor, fill: Tensor, cover: Tensor) -> Tensor:
        """Return images (N, C, H, W) with fill (N, C, w, w) blended in by cover (N, 1, w, w) in 0 … 1."""
        below = self.cut(images)
        images = images.clone()
        images[self._places(images)] = (below + cover * (fill - below)).permute(0, 2, 3, 1)
        return images

    def _places(self, images: Tensor) -> tuple[Tensor, slice, Tensor, Tensor]:
        image = torch.arange(len(images), device=images.device)[:, None, None]
        return image, slice(None), self.rows[:, :, None], self.columns[:, None, :]

    def offsets(self, centre: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row and column offsets (N, w, w) of every pixel from the centres (N, 2)."""
        row = (self.rows - centre[:, :1])[:, :, None].expand(-1, -1, self.side)
        column = (self.columns - centre[:, 1:])[:, None, :].expand(-1, self.side, -1)
        return row, column


def offsets(centre: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the row and column offsets (N, H, W) of every pixel of whole images from the centres (N, 2)."""
    row = torch.arange(size[0], device=centre.device)[None, :, None] - centre[:, :1, None]
    column = torch.arange(size[1], device=centre.device)[None, None, :] - centre[:, 1:, None]
    return row.expand(-1, -1, size[1]), column.expand(-1, size[0], -1)


def draw_shapes(
    centre: Tensor,
    window: Window,
    dice: RandomStream,
    smallest: float,
    longest: float,
    unit: float,
    kinds: Sequence[str],
) -> Shapes:
    """Draw shapes around the centres (N, 2) that suit the kind of each defect: cracks, parts, or anything.

    Half-lengths are between ``smallest`` and ``longest`` pixels; ``unit`` is the size of one pixel at 256 px.
    """
    count, device = len(centre), centre.device
    angle = math.pi * dice.signed(count)
    row, col = window.offsets(centre)
    cos, sin = _column(angle.cos()), _column(angle.sin())
    along, across = col * cos + row * sin, row * cos - col * sin
    solid = _each([kind in SOLID for kind in kinds], device)
    scratches = _each([kind == "scratch" for kind in kinds], device)
    cracks = _each([kind == "crack" for kind in kinds], device) if "crack" in kinds else None
    if "scratch" in kinds:  # half of them are jagged
        jagged = scratches & (dice.uniform(count) < 0.5)
        cracks = jagged if cracks is None else cracks | jagged
    holes = _each([kind == "hole" for kind in kinds], device) if "hole" in kinds else None
    lines = (dice.uniform(count) < LINES) & ~solid | scratches
    if cracks is not None:
        lines = lines | cracks
    least = smallest * _each([SOLID.get(kind, 1.0) for kind in kinds], device)
    half, depth = _blots(along, across, least, longest, dice, holes)
    line_half, line_depth, middle = _lines(along, across, longest, unit, dice, cracks)
    half = torch.where(lines[:, None], line_half, half)
    depth = torch.where(_column(lines), line_depth, depth)
    middle = torch.where(_column(lines), middle, across)
    edge = (0.35 + 1.2 * dice.uniform(count).square()) * unit
    soft = _column(torch.where(lines, (0.35 + 0.3 * dice.uniform(count)) * unit, edge))
    # Cut off the sigmoid's tail, so that the image is unchanged away from its defect.
    cover = torch.sigmoid(-2 * depth / soft) * (depth < 4 * soft)
    return Shapes(cover, depth, middle, centre, half, angle)


def _each(values: Sequence[float], device: torch.device) -> Tensor:
    """Return values as (N,), created on the device because a captured step may not copy to it."""
    runs = [torch.full((len(list(group)),), value, device=device) for value, group in groupby(values)]
    return torch.cat(runs)


def _blots(
    along: Tensor, across: Tensor, smallest: Tensor, longest: float, dice: RandomStream, holes: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Draw half-sizes (N, 2) and depth (N, w, w) of blots and boxes: superellipses with a wavy radius."""
    count = len(along)
    size, slimness, corners = dice.uniform(count), dice.uniform(count), dice.uniform(count)
    if holes is not None:  # smaller, rounder, never boxes
        size, slimness = size * (1 - 0.3 * holes.float()), slimness * (1 - 0.6 * holes.float())
        corners = corners + holes
    # Lengths are uniform in the logarithm: as many small ones as large ones.
    length = smallest * (longest / smallest) ** size
    width = (length * torch.exp(-math.log(3) * slimness)).clamp_min(0.7)
    u, v = along / _column(length), across / _column(width)
    box = _column((corners < 0.3).float())
    u2, v2 = u.square(), v.square()
    u8, v8 = u2.square().square(), v2.square().square()
    radius = torch.where(box > 0, (u8 + v8 + 1e-12).sqrt().sqrt().sqrt(), (u2 + v2 + 1e-12).sqrt())
    turn = torch.atan2(v, u)
    wave = torch.arange(2, 2 + WAVES, device=along.device)
    height = 0.45 * dice.uniform(count, 1) * dice.signed(count, WAVES) / wave  # how uneven this outline is
    phase = math.pi * dice.signed(count, WAVES)
    waves = torch.cos(wave[:, None, None] * turn[:, None] + phase[:, :, None, None])  # (N, WAVES, w, w)
    uneven = (height[:, :, None, None] * waves).sum(1)
    depth = (radius * (1 + uneven) - 1) * _column(width)
    return torch.stack((length, width), dim=1), depth


def _lines(
    along: Tensor, across: Tensor, longest: float, unit: float, dice: RandomStream, cracks: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw half-sizes (N, 2), depth and offset from the centre line (N, w, w) of bent scratches or jagged cracks."""
    count = len(along)
    length = (4 + 32 * dice.uniform(count)) * unit * (longest / (43 * unit)) ** 0.5
    width = ((0.5 + 1.6 * dice.uniform(count).square()) * unit).clamp_min(0.7)
    course = _column(dice.signed(count) * 0.6 / length) * along.square()
    middle = across - course
    taper = (1 - (along / _column(length)).square()).clamp_min(0).sqrt()
    depth = torch.maximum(middle.abs() - _column(width) * taper, along.abs() - _column(length))
    if cracks is not None:
        length = torch.where(cracks, (1.4 * length).clamp_max(longest), length)
        crack_depth, crack_middle = _cracks(along, across, length, width, unit, dice)
        depth = torch.where(_column(cracks), crack_depth, depth)
        middle = torch.where(_column(cracks), crack_middle, middle)
    return torch.stack((length, width), dim=1), depth, middle


def _cracks(
    along: Tensor, across: Tensor, length: Tensor, width: Tensor, unit: float, dice: RandomStream
) -> tuple[Tensor, Tensor]:
    """Draw depth and offset from the centre line (N, w, w) of cracks: jagged, forked, with hair-thin ends."""
    count, reach = len(along), _column(length)
    at = along / reach  # −1 … 1 from end to end
    turns = dice.signed(count, KNOTS)
    walk = 3.5 / KNOTS * (turns * turns.abs()).cumsum(1)
    knots = (walk - walk.mean(1, keepdim=True)).clamp(-0.5, 0.5) * length[:, None]
    course, slope = _polyline(knots, at)
    other, _ = _polyline(knots.flip(1), at)
    middle = (across - course) * (1 + (slope / reach).square()).rsqrt()
    widest = _column(0.8 * dice.signed(count))
    depth = middle.abs() - _tapered(_column(width), (at - widest).abs() / (1 + widest.abs()), unit)
    # The fork leaves the main course to one side and follows the course of the crack read from its other end.
    start, part = _column(0.5 * dice.signed(count)), _column(0.25 + 0.5 * dice.uniform(count))
    way = (at - start).clamp_min(0)
    side = _column((dice.uniform(count) < 0.5).float() * 2 - 1) * _column(0.4 + 0.5 * dice.uniform(count))
    fork = across - course - way * (side * reach + other - course)
    fork_depth = fork.abs() - _tapered(0.7 * _column(width), way / part, unit)
    no_fork = _column((dice.uniform(count) < 0.5).float()) + (at < start)
    depth = torch.minimum(depth, fork_depth + 1e3 * no_fork)
    return torch.maximum(depth, (at.abs() - 1) * reach), middle


def _polyline(knots: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Return height and slope (N, w, w), at ``at`` in −1 … 1, of polylines through evenly spaced knots (N, K)."""
    pieces = knots.shape[1] - 1
    place = (at.clamp(-1, 1) + 1) * (pieces / 2)
    piece = place.long().clamp_max(pieces - 1)
    low, high = (knots.gather(1, (piece + step).flatten(1)).view_as(at) for step in (0, 1))
    return low + (high - low) * (place - piece), (high - low) * (pieces / 2)


def _tapered(width: Tensor, way: Tensor, unit: float) -> Tensor:
    """Return the half-width (N, w, w) of a line that tapers from full at ``way`` 0 to nothing at 1."""
    return (width + unit) * (1 - way).clamp_min(0).sqrt() - unit


def _column(values: Tensor) -> Tensor:
    """Return (N,) as (N, 1, 1)."""
    return values[:, None, None]


def place_weights(images: Tensor) -> Tensor:
    """Return the weight (N, h, w) of each cell as a defect position: parts rather than empty background.

    A cell shows a part, or the edge of one, if it varies, or if its tone differs from the image border's, however
    smooth it is. Empty background keeps a small weight: dirt on it is not a defect of the part.
    """
    height, width = images.shape[2:]
    cell = max(4, round(CELL * min(height, width) / 256))
    tone = F.avg_pool2d(images, cell, ceil_mode=True)  # (N, 3, h, w)
    variance = F.avg_pool2d(images.square(), cell, ceil_mode=True) - tone.square()
    busy = variance.clamp_min(0).mean(1).sqrt()
    border = torch.cat((tone[:, :, 0], tone[:, :, -1], tone[:, :, :, 0], tone[:, :, :, -1]), dim=2).median(2).values
    unlike = (tone - border[:, :, None, None]).abs().amax(1)

    def against_highest(values: Tensor) -> Tensor:
        return values / values.amax((1, 2), keepdim=True).clamp_min(1e-3)

    # Squared: grain and shading of the background are a tenth of the variation on a part, over a large area.
    parts = 2 * against_highest(busy).clamp_max(0.5).square() + 0.25 * against_highest(unlike).square()
    empty = (parts < BARE).float()[:, None]
    exposed = F.avg_pool2d(empty, 3, 1, 1, count_include_pad=True)[:, 0]
    return parts * (1 + EXPOSED * exposed) + EMPTY


def draw_places(weights: Tensor, size: tuple[int, int], dice: RandomStream) -> Tensor:
    """Draw pixels (N, 2) (row, column) by the weights (N, h, w) of cells."""
    count, rows, columns = weights.shape
    noise = -torch.log(-torch.log(dice.uniform(count, rows * columns).clamp(1e-9, 1 - 1e-7)))
    cell = (weights.flatten(1).log() + noise).argmax(1)  # the Gumbel trick: a weighted draw without a device sync
    return cell_places(cell, (rows, columns), size, dice.uniform(count, 2))


def cell_places(cell: Tensor, shape: tuple[int, int], size: tuple[int, int], inside: Tensor) -> Tensor:
    """Return pixels (N, 2) (row, column) at positions ``inside`` (N, 2) of cells (N,) on a grid of ``shape``."""
    rows, columns = shape
    down = (cell // columns + inside[:, 0]) * (size[0] / rows)
    across = (cell % columns + inside[:, 1]) * (size[1] / columns)
    return torch.stack((down, across), dim=1)
