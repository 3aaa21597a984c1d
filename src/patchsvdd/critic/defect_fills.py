"""What drawn defects are filled with: one function per kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from patchsvdd.critic.defect_shapes import RandomStream, Shapes, Window, cell_places, draw_places


@dataclass(frozen=True)
class Fill:
    """The content of a shape, for every image of the batch."""

    picture: Tensor
    """(N, 3, H, W) in about 0 … 1."""
    opacity: Tensor
    """(N, 1, 1, 1) or (N, 1, H, W) in 0 … 1."""


class Site:
    """Where defects are drawn: windows of pictures, the shapes to fill, and where foreign pieces come from."""

    def __init__(
        self, pictures: Tensor, shapes: Shapes, window: Window, sources: Tensor, weights: Tensor, dice: RandomStream
    ) -> None:
        self.pictures, self.shapes, self.window, self.sources = pictures, shapes, window, sources
        self.weights, self.dice = weights, dice
        self.count = len(pictures)
        self.size = (int(pictures.shape[2]), int(pictures.shape[3]))

    def part(self, run: slice) -> Site:
        """The same for some images."""
        return Site(
            self.pictures[run], self.shapes.part(run), self.window.part(run), self.sources, self.weights[run], self.dice
        )

    @cached_property
    def images(self) -> Tensor:
        """(N, 3, w, w): what is in the windows."""
        return self.window.cut(self.pictures)

    @cached_property
    def row(self) -> Tensor:
        """(N, w, w) rows of the image."""
        return self.window.rows[:, :, None].expand(-1, -1, self.window.side)

    @cached_property
    def column(self) -> Tensor:
        """(N, w, w) columns of the image."""
        return self.window.columns[:, None, :].expand(-1, self.window.side, -1)

    def number(self, low: float, high: float) -> Tensor:
        """(N, 1, 1, 1) evenly between two numbers."""
        return low + (high - low) * self.dice.uniform(self.count, 1, 1, 1)

    def opacity(self, low: float = 0.5) -> Tensor:
        """(N, 1, 1, 1) between ``low`` and 1."""
        return self.number(low, 1)

    def colour(self) -> Tensor:
        """(N, 3, 1, 1): grey in half of the cases, else any colour."""
        any_colour = self.dice.uniform(self.count, 3, 1, 1)
        grey = self.number(0, 1)
        return torch.where(self.number(0, 1) < 0.5, grey.expand(-1, 3, -1, -1), 0.3 * grey + 0.7 * any_colour)

    def clouds(self, cells: int) -> Tensor:
        """(N, 1, w, w): smooth noise in about −1 … 1, ``cells`` waves across the window."""
        coarse = self.dice.signed(self.count, 1, cells, cells)
        return F.interpolate(coarse, (self.window.side, self.window.side), mode="bilinear", align_corners=False)

    def mean_inside(self, picture: Tensor) -> Tensor:
        """(N, 3, 1, 1): mean of a picture over the shape."""
        cover = self.shapes.cover[:, None]
        return (picture * cover).sum((2, 3), keepdim=True) / cover.sum((2, 3), keepdim=True).clamp_min(1e-3)

    @cached_property
    def background(self) -> Tensor:
        """(N, 1, w, w) in 0 … 1: how surely a pixel shows what lies around the part.

        That is known where the border of an image is even and something in the image is unlike it: of an object, not
        of a texture.
        """
        pictures = self.pictures
        border = torch.cat((pictures[:, :, 0], pictures[:, :, -1], pictures[:, :, :, 0], pictures[:, :, :, -1]), dim=2)
        tone = border.median(2).values[:, :, None, None]
        uneven = (border - tone[:, :, 0]).abs().amax(1).median(1).values
        contrast = (F.avg_pool2d(pictures, max(2, min(self.size) // 32)) - tone).abs().amax((1, 2, 3))
        known = ((0.05 - uneven) / 0.02).clamp(0, 1) * ((contrast - 0.15) / 0.1).clamp(0, 1)
        unlike = (F.avg_pool2d(self.images, 3, 1, 1, count_include_pad=False) - tone).abs().amax(1, keepdim=True)
        # Of a part as well, a few pixels may look like that: what is smaller than ``spot`` is none.
        spot = max(3, min(self.size) // 28) // 2 * 2 + 1
        unlike = -F.max_pool2d(-F.max_pool2d(unlike, spot, 1, spot // 2), spot, 1, spot // 2)
        return known[:, None, None, None] * ((0.2 - unlike) / 0.1).clamp(0, 1)

    def own(self, row: Tensor, column: Tensor) -> Tensor:
        """(N, 3, h, w): the pictures themselves at rows and columns (N, h, w)."""
        return read(self.pictures, row, column)

    def moved(self, place: Tensor, angle: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Rows and columns (N, w, w) to read at so that ``place`` (N, 2) lies on the shape, turned and resized."""
        row, column = self.window.offsets(self.shapes.centre)
        cos, sin = (angle.cos() / scale)[:, None, None], (angle.sin() / scale)[:, None, None]
        return row * cos - column * sin + place[:, :1, None], column * cos + row * sin + place[:, 1:, None]

    @cached_property
    def piece(self) -> Tensor:
        """(N, 3, w, w): a source moved, turned and resized so that some place of it lies on the shape.

        The place is near the shape's own in half of the cases (the same part of another specimen), else anywhere
        on a part; the source is the picture itself in three cases of ten.
        """
        near = self.shapes.centre + 0.06 * min(self.size) * self.dice.normal(self.count, 2)
        anywhere = draw_places(self.weights, self.size, self.dice)
        place = torch.where(self.dice.uniform(self.count, 1) < 0.5, near, anywhere)
        turned = self.dice.uniform(self.count) < 0.4
        angle = (0.15 + (math.pi - 0.15) * turned) * self.dice.signed(self.count)
        where = self.moved(place, angle, torch.exp(0.35 * self.dice.signed(self.count)))
        others = self.sources[self.dice.integers(len(self.sources), self.count)].float() / 255
        own = self.dice.uniform(self.count, 1, 1, 1) < 0.3
        return read(torch.where(own, self.pictures, others), *where)


def read(pictures: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Pictures (N, 3, H, W) at rows and columns (N, h, w): interpolated between pixels, mirrored beyond the edge."""
    height, width = pictures.shape[2:]
    grid = torch.stack((column * (2 / width) + (1 / width - 1), row * (2 / height) + (1 / height - 1)), dim=-1)
    return F.grid_sample(pictures, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


def blur(pictures: Tensor, reach: int) -> Tensor:
    """Pictures with nothing finer than about ``reach`` pixels: means over squares, stretched to size again."""
    coarse = F.avg_pool2d(pictures, reach, ceil_mode=True, count_include_pad=False)
    return F.interpolate(coarse, pictures.shape[2:], mode="bilinear", align_corners=False)


# Kinds that train the critic


def blend(site: Site) -> Fill:
    """A foreign piece with the brightness of its surroundings: detail of the source on the coarse tone of the target.

    It is what solving Poisson's equation in the shape would give, up to how exactly tones meet at the outline.
    """
    reach = max(2, min(site.size) // 24)
    difference = site.images - site.piece
    coarse = torch.where(site.number(0, 1) < 0.5, site.mean_inside(difference), blur(difference, reach))
    return Fill(site.piece + coarse, site.opacity(0.6))


def paste(site: Site) -> Fill:
    """A foreign piece as it is, a little brighter or darker."""
    gain, offset = torch.exp(site.number(-0.3, 0.3)), site.number(-0.12, 0.12)
    return Fill(site.piece * gain + offset, site.opacity())


def stain(site: Site) -> Fill:
    """Something spilt: the surface shows through, tinted, unevenly."""
    tint = site.colour()
    return Fill(
        site.images * (0.35 + 0.65 * tint), (site.number(0.35, 1) * (0.75 + 0.25 * site.clouds(10))).clamp(0, 1)
    )


def paint(site: Site) -> Fill:
    """One colour, nearly even."""
    return Fill(site.colour() + 0.03 * site.clouds(20), site.opacity())


def smear(site: Site) -> Fill:
    """The surface drawn out in one direction."""
    angle = math.pi * site.dice.signed(site.count)
    reach = (0.01 + 0.05 * site.dice.uniform(site.count)) * min(site.size)
    down, right = (angle.sin() * reach)[:, None, None], (angle.cos() * reach)[:, None, None]
    steps = (0.25, 0.5, 0.75, 1.0)
    total = site.images
    for step in steps:
        total = total + site.own(site.row + step * down, site.column + step * right)
    return Fill(total / (1 + len(steps)), site.opacity(0.7))


def pull(site: Site) -> Fill:
    """Material pushed aside: bent threads, dents, a torn edge."""
    half = site.shapes.half.amin(1)[:, None, None]
    strength = torch.sigmoid(-site.shapes.depth / (0.5 * half).clamp_min(1.0))
    reach = (1.5 + 0.5 * half).clamp_max(0.06 * min(site.size)) * (0.5 + site.dice.uniform(site.count, 1, 1))
    angle = math.pi * site.dice.signed(site.count, 1, 1)
    moved = site.own(site.row + strength * reach * angle.sin(), site.column + strength * reach * angle.cos())
    shade = 1 + site.number(-0.25, 0.25)
    return Fill(moved * shade, site.opacity(0.9))


def bend(site: Site) -> Fill:
    """A part turned about itself, most in its middle and not at all at the outline: bent tips, twisted wires."""
    inside = (-site.shapes.depth / site.shapes.half[:, 1, None, None].clamp_min(1.0)).clamp(0, 1)
    angle = 0.4 + 1.4 * site.dice.uniform(site.count, 1, 1)
    angle = torch.where(site.dice.uniform(site.count, 1, 1) < 0.5, angle, -angle) * inside * (2 - inside)
    row, column = site.window.offsets(site.shapes.centre)
    cos, sin, centre = angle.cos(), angle.sin(), site.shapes.centre
    turned = site.own(row * cos - column * sin + centre[:, :1, None], column * cos + row * sin + centre[:, 1:, None])
    return Fill(turned * (1 + site.number(-0.15, 0.15) * inside[:, None]), site.opacity(0.95))


# Kinds that settings are chosen by


def hole(site: Site) -> Fill:
    """A cavity: dark, its near wall in the shade, its far wall and its rim in the light."""
    angle = math.pi * site.dice.signed(site.count, 1, 1)
    row, column = site.window.offsets(site.shapes.centre)
    toward = ((row * angle.sin() + column * angle.cos()) / site.shapes.half[:, :1, None]).clamp(-1, 1)[:, None]
    surface = site.mean_inside(site.images)
    depth, half = site.shapes.depth[:, None], site.shapes.half[:, 1, None, None, None]
    wall, rim = torch.exp(depth.clamp_max(0) / (0.3 * half).clamp_min(0.5)), torch.exp(-depth.abs())
    dark = surface * site.number(0.05, 0.3) + 0.1 * (site.images - surface)
    lit = (0.45 * wall + 0.3 * rim) * toward.clamp_min(0) * (surface + 0.15) + 0.1 * wall * toward.clamp_max(0)
    return Fill(dark + lit, site.opacity(0.9) * (1 - site.background))


def missing(site: Site) -> Fill:
    """A part is not there: one sees what is around it, or the emptiest place of the image."""
    flat = site.weights.flatten(1).argmin(1)
    shape = (int(site.weights.shape[1]), int(site.weights.shape[2]))
    middle = torch.full((site.count, 2), 0.5, device=flat.device)
    place = cell_places(flat, shape, site.size, middle)
    still, same = torch.zeros(site.count, device=flat.device), torch.ones(site.count, device=flat.device)
    empty = site.own(*site.moved(place, still, same))
    # The piece may reach beyond the empty cell; its tone may not.
    cell = site.own(place[:, :1, None], place[:, 1:, None])
    empty = torch.where((empty - cell).abs().amax(1, keepdim=True) < 0.08, empty, cell)
    # Where the background is near, the emptiness is as bright as it is there.
    around = site.background
    near = (50 * around.mean((2, 3), keepdim=True)).clamp_max(1)
    tone = (site.images * around).sum((2, 3), keepdim=True) / around.sum((2, 3), keepdim=True).clamp_min(1e-3)
    return Fill(empty + near * (tone - cell), site.opacity(0.95) * (1 - around))


def misplaced(site: Site) -> Fill:
    """The part is there, but turned or shifted."""
    side = min(site.size)
    turned = site.dice.uniform(site.count) < 0.5
    angle = turned * (0.5 + 2.2 * site.dice.uniform(site.count))
    angle = torch.where(site.dice.uniform(site.count) < 0.5, angle, -angle)
    way = math.pi * site.dice.signed(site.count)
    shift = ~turned * (0.02 + 0.08 * site.dice.uniform(site.count)) * side
    place = site.shapes.centre + shift[:, None] * torch.stack((way.sin(), way.cos()), dim=1)
    same = torch.ones(site.count, device=way.device)
    return Fill(site.own(*site.moved(place, angle, same)), site.opacity(0.95))


def colour(site: Site) -> Fill:
    """The surface in a foreign colour, as bright as before."""
    grey = site.images.mean(1, keepdim=True)
    tint = site.dice.signed(site.count, 3, 1, 1)
    tint = tint - tint.mean(1, keepdim=True)
    tint = tint / tint.abs().amax(1, keepdim=True).clamp_min(0.1)
    turned = site.images.roll(1, dims=1)  # red looks green, green blue
    other = torch.where(site.number(0, 1) < 0.3, turned, site.images * 0.4 + grey * 0.6 + tint * site.number(0.08, 0.3))
    return Fill(other, site.opacity(0.7) * (1 - site.background))


def crack(site: Site) -> Fill:
    """A jagged line that runs out into a hair: dark, one side a little lighter; pale where the surface is dark."""
    lit = torch.sigmoid(site.shapes.across * 2)[:, None]
    dark = site.images * (site.number(0.05, 0.4) + site.number(0, 0.3) * lit)
    pale = site.images + site.number(0.15, 0.4) * (0.7 + 0.3 * lit)
    surface = site.mean_inside(site.images).mean(1, keepdim=True)
    return Fill(torch.where(surface < 0.2, pale, dark), site.opacity(0.85) * (1 - site.background))


def grime(site: Site) -> Fill:
    """Dirt: grains and clumps of an earthy tone or of dust, thick in the middle and thin towards the outline."""
    specks = site.dice.normal(site.count, 1, site.window.side, site.window.side)
    grain = torch.where(site.number(0, 1) < 0.5, specks, 1.5 * blur(specks, 2))
    light = torch.where(site.number(0, 1) < 0.3, site.number(0.5, 0.8), site.number(0.03, 0.3))
    warmth = site.number(0, 0.25)
    earth = torch.cat((light * (1 + 0.4 * warmth), light, light * (1 - warmth)), dim=1)
    half = site.shapes.half[:, 1, None, None, None]
    thick = 0.25 + (-site.shapes.depth[:, None] / half).clamp(0, 1)
    cover = thick * (site.number(0.3, 1.1) + 0.4 * site.clouds(14)) + 0.3 * grain * site.number(0.5, 1)
    return Fill(earth + 0.15 * site.images + 0.05 * grain, cover.clamp(0, 1))


FILLS: dict[str, Callable[[Site], Fill]] = {
    fill.__name__: fill
    for fill in (blend, paste, stain, paint, smear, pull, bend, hole, missing, misplaced, colour, crack, grime)
}
"""Kind → what fills it."""
