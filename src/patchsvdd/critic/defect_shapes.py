"""Outlines of drawn defects: blots, boxes, scratches and cracks, from a few pixels to a third of the image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

CELL = 16
"""Side, at 256 px, of the cells that places are drawn from."""
EMPTY = 0.01
"""Weight of the emptiest cells as places of defects, where the busiest have 0.5 to 0.75."""
STOCK = 16384
"""Random numbers drawn at once."""
BARE = 0.05
"""Weight below which a cell shows no part."""
EXPOSED = 4.0
"""By how much more often a defect lies on a cell with nothing around it than on one amid others: tips and edges are
what gets hit."""
LINES = 0.3
"""Share of scratches among the shapes."""
SOLID = {"hole": 3.0, "missing": 3.0, "misplaced": 6.0, "bend": 3.0}
"""Kinds that concern a part of some size, no scratch: how many times the smallest shape they have at least."""
WAVES = 5
"""Waves that make an outline uneven."""
KNOTS = 17
"""Corners of a crack."""


class RandomStream:
    """Random numbers of one generator, on its device. Small requests are served from one larger draw."""

    def __init__(self, generator: torch.Generator, device: torch.device) -> None:
        self.generator, self.device = generator, device
        self._stock = torch.empty(0, device=device)

    def uniform(self, *shape: int) -> Tensor:
        """In 0 … 1."""
        wanted = math.prod(shape)
        if wanted > STOCK // 4:
            return torch.rand(shape, generator=self.generator, device=self.device)
        if len(self._stock) < wanted:
            self._stock = torch.rand(STOCK, generator=self.generator, device=self.device)
        numbers, self._stock = self._stock[:wanted], self._stock[wanted:]
        return numbers.view(shape)

    def signed(self, *shape: int) -> Tensor:
        """In −1 … 1."""
        return 2 * self.uniform(*shape) - 1

    def normal(self, *shape: int) -> Tensor:
        """Standard normal."""
        return torch.randn(shape, generator=self.generator, device=self.device)

    def integers(self, high: int, *shape: int) -> Tensor:
        """From 0 up to, not including, ``high``."""
        return torch.randint(0, high, shape, generator=self.generator, device=self.device)


@dataclass(frozen=True)
class Shapes:
    """One shape per image."""

    cover: Tensor
    """(N, w, w) in 0 … 1, over a window: 1 inside, falling to 0 over a soft edge."""
    depth: Tensor
    """(N, w, w) pixels from the outline, negative inside; exact near the outline only."""
    across: Tensor
    """(N, w, w) signed pixels from the middle line, square to the shape's length."""
    centre: Tensor
    """(N, 2) row and column."""
    half: Tensor
    """(N, 2) half-length and half-width in pixels."""
    angle: Tensor
    """(N,) of the length, in radians."""

    def part(self, run: slice) -> Shapes:
        """Those of some images."""
        return Shapes(
            self.cover[run], self.depth[run], self.across[run], self.centre[run], self.half[run], self.angle[run]
        )


@dataclass(frozen=True)
class Window:
    """A square of pixels of each image of a batch."""

    rows: Tensor
    """(N, w) rows of the image."""
    columns: Tensor
    """(N, w) columns of the image."""

    @classmethod
    def around(cls, centre: Tensor, side: int, size: tuple[int, int]) -> Window:
        """Windows of the given side around the centres (N, 2), moved into images of (height, width)."""
        pixel = torch.arange(side, device=centre.device)
        rows, columns = (
            (centre[:, axis] - side / 2).round().long().clamp(0, size[axis] - side)[:, None] + pixel for axis in (0, 1)
        )
        return cls(rows, columns)

    def part(self, run: slice) -> Window:
        """Those of some images."""
        return Window(self.rows[run], self.columns[run])

    @property
    def side(self) -> int:
        """Pixels on a side."""
        return int(self.rows.shape[1])

    def cut(self, pictures: Tensor) -> Tensor:
        """(N, C, w, w) of pictures (N, C, H, W)."""
        return pictures[self._places(pictures)].permute(0, 3, 1, 2)

    def blend(self, pictures: Tensor, fill: Tensor, cover: Tensor) -> Tensor:
        """Pictures (N, C, H, W) with fill (N, C, w, w) over what the windows show, where cover (N, 1, w, w) is 1."""
        below = self.cut(pictures)
        pictures = pictures.clone()
        pictures[self._places(pictures)] = (below + cover * (fill - below)).permute(0, 2, 3, 1)
        return pictures

    def _places(self, pictures: Tensor) -> tuple[Tensor, slice, Tensor, Tensor]:
        image = torch.arange(len(pictures), device=pictures.device)[:, None, None]
        return image, slice(None), self.rows[:, :, None], self.columns[:, None, :]

    def offsets(self, centre: Tensor) -> tuple[Tensor, Tensor]:
        """Rows and columns (N, w, w) of every pixel, counted from the centres (N, 2)."""
        row = (self.rows - centre[:, :1])[:, :, None].expand(-1, -1, self.side)
        column = (self.columns - centre[:, 1:])[:, None, :].expand(-1, self.side, -1)
        return row, column


def offsets(centre: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Rows and columns (N, H, W) of every pixel of whole images, counted from the centres (N, 2)."""
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
    """Shapes around the centres (N, 2) that suit the kind of each defect: cracks, parts, or anything.

    Half-lengths lie between ``smallest`` and ``longest`` pixels; ``unit`` is what one pixel at 256 px is here.
    """
    count, device = len(centre), centre.device
    angle = math.pi * dice.signed(count)
    row, col = window.offsets(centre)
    cos, sin = _column(angle.cos()), _column(angle.sin())
    along, across = col * cos + row * sin, row * cos - col * sin
    solid = _each([kind in SOLID for kind in kinds], device)
    cracks = _each([kind == "crack" for kind in kinds], device) if "crack" in kinds else None
    holes = _each([kind == "hole" for kind in kinds], device) if "hole" in kinds else None
    lines = (dice.uniform(count) < LINES) & ~solid
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
    # The sigmoid's tail ends, so that a picture is unchanged away from its defect.
    cover = torch.sigmoid(-2 * depth / soft) * (depth < 4 * soft)
    return Shapes(cover, depth, middle, centre, half, angle)


def _each(values: Sequence[float], device: torch.device) -> Tensor:
    """(N,) of known values, numbers or bools; made on the device, because a captured step may not copy to it."""
    runs = [torch.full((len(list(group)),), value, device=device) for value, group in groupby(values)]
    return torch.cat(runs)


def _blots(
    along: Tensor, across: Tensor, smallest: Tensor, longest: float, dice: RandomStream, holes: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Half-sizes (N, 2) and depth (N, H, W) of blots and boxes: superellipses whose radius waves with the direction."""
    count = len(along)
    size, slimness, corners = dice.uniform(count), dice.uniform(count), dice.uniform(count)
    if holes is not None:  # smaller, roundish, and no boxes
        size, slimness = size * (1 - 0.3 * holes.float()), slimness * (1 - 0.6 * holes.float())
        corners = corners + holes
    # Lengths are drawn evenly in the logarithm: as many small ones as large ones.
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
    """Half-sizes (N, 2), depth and distance from the middle (N, w, w) of lines: bent scratches, or jagged cracks."""
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
    """Depth and distance from the middle (N, w, w) of cracks: they wander in jags, fork, and end as thin as a hair."""
    count, reach = len(along), _column(length)
    at = along / reach  # −1 … 1 from end to end
    turns = dice.signed(count, KNOTS)
    walk = 3.5 / KNOTS * (turns * turns.abs()).cumsum(1)
    knots = (walk - walk.mean(1, keepdim=True)).clamp(-0.5, 0.5) * length[:, None]
    course, slope = _polyline(knots, at)
    other, _ = _polyline(knots.flip(1), at)
    middle = (across - course) * (1 + (slope / reach).square()).rsqrt()
    widest = _column(0.8 * dice.signed(count))
    depth = middle.abs() - _thinning(_column(width), (at - widest).abs() / (1 + widest.abs()), unit)
    # The fork leaves the main course at some place, to one side, on the course of the crack read from its other end.
    start, part = _column(0.5 * dice.signed(count)), _column(0.25 + 0.5 * dice.uniform(count))
    way = (at - start).clamp_min(0)
    side = _column((dice.uniform(count) < 0.5).float() * 2 - 1) * _column(0.4 + 0.5 * dice.uniform(count))
    fork = across - course - way * (side * reach + other - course)
    fork_depth = fork.abs() - _thinning(0.7 * _column(width), way / part, unit)
    alone = _column((dice.uniform(count) < 0.5).float()) + (at < start)
    depth = torch.minimum(depth, fork_depth + 1e3 * alone)
    return torch.maximum(depth, (at.abs() - 1) * reach), middle


def _polyline(knots: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Height and slope (N, w, w), at places ``at`` in −1 … 1, of lines through evenly spaced knots (N, K)."""
    pieces = knots.shape[1] - 1
    place = (at.clamp(-1, 1) + 1) * (pieces / 2)
    piece = place.long().clamp_max(pieces - 1)
    low, high = (knots.gather(1, (piece + step).flatten(1)).view_as(at) for step in (0, 1))
    return low + (high - low) * (place - piece), (high - low) * (pieces / 2)


def _thinning(width: Tensor, way: Tensor, unit: float) -> Tensor:
    """(N, w, w) half-width of a line that has all of it where ``way`` is 0, and fades out where it is 1."""
    return (width + unit) * (1 - way).clamp_min(0).sqrt() - unit


def _column(values: Tensor) -> Tensor:
    """(N,) as (N, 1, 1)."""
    return values[:, None, None]


def place_weights(images: Tensor) -> Tensor:
    """(N, h, w) weight of each cell as the place of a defect: parts rather than empty background.

    Where an image varies there is a part, or the edge of one; where its tone is not that of the image's border there
    is one too, however smooth. Empty ground keeps a little weight: dirt on it is no defect of the part.
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

    # Squared: the grain and the shading of an empty ground are a tenth of what a part shows, and there is much ground.
    parts = 2 * against_highest(busy).clamp_max(0.5).square() + 0.25 * against_highest(unlike).square()
    empty = (parts < BARE).float()[:, None]
    exposed = F.avg_pool2d(empty, 3, 1, 1, count_include_pad=True)[:, 0]
    return parts * (1 + EXPOSED * exposed) + EMPTY


def draw_places(weights: Tensor, size: tuple[int, int], dice: RandomStream) -> Tensor:
    """(N, 2) pixels (row, column), drawn by the weights (N, h, w) of cells."""
    count, rows, columns = weights.shape
    noise = -torch.log(-torch.log(dice.uniform(count, rows * columns).clamp(1e-9, 1 - 1e-7)))
    cell = (weights.flatten(1).log() + noise).argmax(1)  # the Gumbel trick: a draw by weight without waiting
    return cell_places(cell, (rows, columns), size, dice.uniform(count, 2))


def cell_places(cell: Tensor, shape: tuple[int, int], size: tuple[int, int], inside: Tensor) -> Tensor:
    """(N, 2) pixels (row, column) of places ``inside`` (N, 2) of cells (N,), of which there are rows × columns."""
    rows, columns = shape
    down = (cell // columns + inside[:, 0]) * (size[0] / rows)
    across = (cell % columns + inside[:, 1]) * (size[1] / columns)
    return torch.stack((down, across), dim=1)
