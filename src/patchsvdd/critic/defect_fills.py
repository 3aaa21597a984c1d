"""Fills of synthetic defects: one function per kind."""

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
    """The content of each image's shape."""

    picture: Tensor
    """(N, 3, w, w) in about 0 … 1."""
    opacity: Tensor
    """(N, 1, 1, 1) or (N, 1, w, w) in 0 … 1."""


class Site:
    """Inputs of the fills: images, a window on each, the shapes to fill, and the sources of foreign pieces."""

    def __init__(
        self, pictures: Tensor, shapes: Shapes, window: Window, sources: Tensor, weights: Tensor, dice: RandomStream
    ) -> None:
        self.pictures, self.shapes, self.window, self.sources = pictures, shapes, window, sources
        self.weights, self.dice = weights, dice
        self.count = len(pictures)
        self.size = (int(pictures.shape[2]), int(pictures.shape[3]))

    def part(self, run: slice) -> Site:
        """Return the site restricted to a slice of the images."""
        return Site(
            self.pictures[run], self.shapes.part(run), self.window.part(run), self.sources, self.weights[run], self.dice
        )

    @cached_property
    def images(self) -> Tensor:
        """(N, 3, w, w): the content of the windows."""
        return self.window.cut(self.pictures)

    @cached_property
    def row(self) -> Tensor:
        """(N, w, w): row of each window pixel in the image."""
        return self.window.rows[:, :, None].expand(-1, -1, self.window.side)

    @cached_property
    def column(self) -> Tensor:
        """(N, w, w): column of each window pixel in the image."""
        return self.window.columns[:, None, :].expand(-1, self.window.side, -1)

    def number(self, low: float, high: float) -> Tensor:
        """Draw (N, 1, 1, 1) uniformly between two numbers."""
        return low + (high - low) * self.dice.uniform(self.count, 1, 1, 1)

    def opacity(self, low: float = 0.5) -> Tensor:
        """Draw (N, 1, 1, 1) between ``low`` and 1."""
        return self.number(low, 1)

    def colour(self) -> Tensor:
        """Draw (N, 3, 1, 1): grey in half of the cases, otherwise any colour."""
        any_colour = self.dice.uniform(self.count, 3, 1, 1)
        grey = self.number(0, 1)
        return torch.where(self.number(0, 1) < 0.5, grey.expand(-1, 3, -1, -1), 0.3 * grey + 0.7 * any_colour)

    def clouds(self, cells: int) -> Tensor:
        """Draw smooth noise (N, 1, w, w) in about −1 … 1, with ``cells`` waves across the window."""
        coarse = self.dice.signed(self.count, 1, cells, cells)
        return F.interpolate(coarse, (self.window.side, self.window.side), mode="bilinear", align_corners=False)

    def mean_inside(self, picture: Tensor) -> Tensor:
        """Return (N, 3, 1, 1): the mean of window contents (N, 3, w, w) over the shape."""
        cover = self.shapes.cover[:, None]
        return (picture * cover).sum((2, 3), keepdim=True) / cover.sum((2, 3), keepdim=True).clamp_min(1e-3)

    @cached_property
    def background(self) -> Tensor:
        """(N, 1, w, w) in 0 … 1: confidence that a pixel shows background around the part.

        Background is only detected if the image border is uniform and something in the image differs from it: for
        objects, not for textures.
        """
        pictures = self.pictures
        border = torch.cat((pictures[:, :, 0], pictures[:, :, -1], pictures[:, :, :, 0], pictures[:, :, :, -1]), dim=2)
        tone = border.median(2).values[:, :, None, None]
        uneven = (border - tone[:, :, 0]).abs().amax(1).median(1).values
        contrast = (F.avg_pool2d(pictures, max(2, min(self.size) // 32)) - tone).abs().amax((1, 2, 3))
        known = ((0.05 - uneven) / 0.02).clamp(0, 1) * ((contrast - 0.15) / 0.1).clamp(0, 1)
        unlike = (F.avg_pool2d(self.images, 3, 1, 1, count_include_pad=False) - tone).abs().amax(1, keepdim=True)
        # A few pixels of a part may look like background too: areas smaller than ``spot`` are ignored.
        spot = max(3, min(self.size) // 28) // 2 * 2 + 1
        unlike = -F.max_pool2d(-F.max_pool2d(unlike, spot, 1, spot // 2), spot, 1, spot // 2)
        return known[:, None, None, None] * ((0.2 - unlike) / 0.1).clamp(0, 1)

    def own(self, row: Tensor, column: Tensor) -> Tensor:
        """Return (N, 3, h, w): the site's own images at rows and columns (N, h, w)."""
        return read(self.pictures, row, column)

    def moved(self, place: Tensor, angle: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows and columns (N, w, w) that map ``place`` (N, 2) onto the shape, rotated and scaled."""
        row, column = self.window.offsets(self.shapes.centre)
        cos, sin = (angle.cos() / scale)[:, None, None], (angle.sin() / scale)[:, None, None]
        return row * cos - column * sin + place[:, :1, None], column * cos + row * sin + place[:, 1:, None]

    @cached_property
    def piece(self) -> Tensor:
        """(N, 3, w, w): a source moved, rotated and scaled so that some place of it falls on the shape.

        In half of the cases the place is near the shape (the same part of another specimen), otherwise anywhere on a
        part; in three cases of ten the source is the image itself.
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


def read(images: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Sample images (N, 3, H, W) at rows and columns (N, h, w): bilinear, mirrored beyond the edge."""
    height, width = images.shape[2:]
    grid = torch.stack((column * (2 / width) + (1 / width - 1), row * (2 / height) + (1 / height - 1)), dim=-1)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


def blur(images: Tensor, reach: int) -> Tensor:
    """Return images without detail finer than about ``reach`` pixels: means over squares, upsampled again."""
    coarse = F.avg_pool2d(images, reach, ceil_mode=True, count_include_pad=False)
    return F.interpolate(coarse, images.shape[2:], mode="bilinear", align_corners=False)


# Kinds used to train the critic


def blend(site: Site) -> Fill:
    """A foreign piece with the brightness of its surroundings: detail of the source on the coarse tone of the target.

    It approximates Poisson blending; only the match of tones at the outline is less exact.
    """
    reach = max(2, min(site.size) // 24)
    difference = site.images - site.piece
    coarse = torch.where(site.number(0, 1) < 0.5, site.mean_inside(difference), blur(difference, reach))
    return Fill(site.piece + coarse, site.opacity(0.6))


def paste(site: Site) -> Fill:
    """An unblended foreign piece, a little brighter or darker."""
    gain, offset = torch.exp(site.number(-0.3, 0.3)), site.number(-0.12, 0.12)
    return Fill(site.piece * gain + offset, site.opacity())


def stain(site: Site) -> Fill:
    """A spill: the surface shows through, unevenly tinted."""
    tint = site.colour()
    return Fill(
        site.images * (0.35 + 0.65 * tint), (site.number(0.35, 1) * (0.75 + 0.25 * site.clouds(10))).clamp(0, 1)
    )


def paint(site: Site) -> Fill:
    """One nearly uniform colour."""
    return Fill(site.colour() + 0.03 * site.clouds(20), site.opacity())


def smear(site: Site) -> Fill:
    """The surface smeared in one direction."""
    angle = math.pi * site.dice.signed(site.count)
    reach = (0.01 + 0.05 * site.dice.uniform(site.count)) * min(site.size)
    down, right = (angle.sin() * reach)[:, None, None], (angle.cos() * reach)[:, None, None]
    steps = (0.25, 0.5, 0.75, 1.0)
    total = site.images
    for step in steps:
        total = total + site.own(site.row + step * down, site.column + step * right)
    return Fill(total / (1 + len(steps)), site.opacity(0.7))


def pull(site: Site) -> Fill:
    """Displaced material: bent threads, dents, a torn edge."""
    half = site.shapes.half.amin(1)[:, None, None]
    strength = torch.sigmoid(-site.shapes.depth / (0.5 * half).clamp_min(1.0))
    reach = (1.5 + 0.5 * half).clamp_max(0.06 * min(site.size)) * (0.5 + site.dice.uniform(site.count, 1, 1))
    angle = math.pi * site.dice.signed(site.count, 1, 1)
    moved = site.own(site.row + strength * reach * angle.sin(), site.column + strength * reach * angle.cos())
    shade = 1 + site.number(-0.25, 0.25)
    return Fill(moved * shade, site.opacity(0.9))


def bend(site: Site) -> Fill:
    """A part rotated most at its centre and not at all at the outline: bent tips, twisted wires."""
    inside = (-site.shapes.depth / site.shapes.half[:, 1, None, None].clamp_min(1.0)).clamp(0, 1)
    angle = 0.4 + 1.4 * site.dice.uniform(site.count, 1, 1)
    angle = torch.where(site.dice.uniform(site.count, 1, 1) < 0.5, angle, -angle) * inside * (2 - inside)
    row, column = site.window.offsets(site.shapes.centre)
    cos, sin, centre = angle.cos(), angle.sin(), site.shapes.centre
    turned = site.own(row * cos - column * sin + centre[:, :1, None], column * cos + row * sin + centre[:, 1:, None])
    return Fill(turned * (1 + site.number(-0.15, 0.15) * inside[:, None]), site.opacity(0.95))


def scratch(site: Site) -> Fill:
    """A fine mark, darker or lighter than the surface by little or much; in half of the cases with a flank of light."""
    contrast = 0.08 * torch.exp(math.log(6) * site.number(0, 1)) * site.number(-1, 1).sign()
    flank = torch.sigmoid(3 * site.shapes.across)[:, None] * (site.number(0, 1) < 0.5)
    return Fill(site.images + contrast * (1 - 1.6 * flank), site.opacity(0.8))


# Kinds used to choose settings


def hole(site: Site) -> Fill:
    """A cavity: dark, with its near wall in shadow and its far wall and rim lit."""
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
    """A missing part: shows its surroundings, or the emptiest place of the image."""
    flat = site.weights.flatten(1).argmin(1)
    shape = (int(site.weights.shape[1]), int(site.weights.shape[2]))
    middle = torch.full((site.count, 2), 0.5, device=flat.device)
    place = cell_places(flat, shape, site.size, middle)
    still, same = torch.zeros(site.count, device=flat.device), torch.ones(site.count, device=flat.device)
    empty = site.own(*site.moved(place, still, same))
    # The piece may extend beyond the empty cell; its tone may not.
    cell = site.own(place[:, :1, None], place[:, 1:, None])
    empty = torch.where((empty - cell).abs().amax(1, keepdim=True) < 0.08, empty, cell)
    # Near the background, match its brightness.
    around = site.background
    near = (50 * around.mean((2, 3), keepdim=True)).clamp_max(1)
    tone = (site.images * around).sum((2, 3), keepdim=True) / around.sum((2, 3), keepdim=True).clamp_min(1e-3)
    return Fill(empty + near * (tone - cell), site.opacity(0.95) * (1 - around))


def misplaced(site: Site) -> Fill:
    """The part is present, but rotated or shifted."""
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
    """The surface in a foreign colour, with its brightness unchanged."""
    grey = site.images.mean(1, keepdim=True)
    tint = site.dice.signed(site.count, 3, 1, 1)
    tint = tint - tint.mean(1, keepdim=True)
    tint = tint / tint.abs().amax(1, keepdim=True).clamp_min(0.1)
    turned = site.images.roll(1, dims=1)  # red becomes green, green blue
    other = torch.where(site.number(0, 1) < 0.3, turned, site.images * 0.4 + grey * 0.6 + tint * site.number(0.08, 0.3))
    return Fill(other, site.opacity(0.7) * (1 - site.background))


def crack(site: Site) -> Fill:
    """A jagged line that tapers to a hair: dark, one side a little lighter; pale where the surface is dark."""
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
    for fill in (blend, paste, stain, paint, smear, pull, bend, scratch, hole, missing, misplaced, colour, crack, grime)
}
"""Kind → its fill function."""
