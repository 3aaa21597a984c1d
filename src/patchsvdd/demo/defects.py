"""The kinds of defect of each category: a good part → the surface it has with a defect in it.

Scratches, stains and holes are painted on the surface. Missing parts and wrong colours are mostly drawn by
changing the part and drawing it again, so that light, pose and material stay what they were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import cos, dist, pi, sin
from typing import Any

import numpy as np

from patchsvdd.demo.board import Board
from patchsvdd.demo.drawing import Colour, Plane, Pose, blur, cloud, coverage, gains, grid, linear, mix, ramp, stroke
from patchsvdd.demo.surface import OVERSAMPLE, Surface
from patchsvdd.demo.washer import BOLTS, Washer
from patchsvdd.demo.weave import THREADS, Dye, Stretch, Weave

Rng = np.random.Generator
# The part, its clean surface, chance, and whose turn it is where one of several is spoiled → the defective surface.
Defect = Callable[[Any, Surface, Rng, int], Surface]

IMAGE = Pose(shift=(0.0, 0.0), angle=0.0)
TEMPER_COLOURS: tuple[Colour, ...] = ((1.35, 0.92, 0.35), (1.20, 0.62, 0.42), (0.42, 0.68, 1.30))
FOREIGN_YARNS: tuple[Colour, ...] = (
    (112, 120, 142),
    (162, 124, 104),
    (128, 136, 112),
    (206, 200, 190),
    (122, 114, 110),
    (146, 100, 92),
)
FOREIGN_LOTS: dict[str, tuple[Colour, ...]] = {
    "dual": ((150, 60, 44), (48, 74, 140)),
    "can": ((196, 140, 56), (84, 96, 156)),
    "crystal": ((208, 160, 66), (88, 92, 104)),
    "resistor": ((52, 90, 190), (36, 140, 110), (180, 60, 48)),
    "led": ((214, 90, 76), (96, 176, 84)),
    "ceramic": ((96, 100, 112), (70, 48, 44), (70, 104, 160)),
}


def scratch(_: object, surface: Surface, rng: Rng, _turn: int) -> Surface:
    """A thin curved groove, bright on the side that faces the lamp and dark on the other."""
    x, y = _place(surface, rng)
    length, turn, bend = rng.uniform(0.28, 0.45), rng.uniform(0, 2 * pi), rng.uniform(-0.9, 0.9)
    width = rng.uniform(0.016, 0.022)
    points = [(x, y)]
    for step in np.linspace(-0.5, 0.5, 24).tolist():
        heading = turn + bend * step
        x, y = x + length / 24 * cos(heading), y + length / 24 * sin(heading)
        points.append((x, y))
    start, stop = points[0], points[-1]
    groove = coverage(stroke(points, width), IMAGE, surface.n)
    groove = blur(groove, 0.7) * _fading(surface.n, start, stop) * surface.paintable
    depth = rng.uniform(0.6, 1.0) * width
    bare = mix(surface.albedo, np.minimum(1.8 * surface.albedo + 0.10, 1), 0.9 * groove)
    return replace(
        surface,
        albedo=bare,
        height=surface.height - depth * groove + 0.35 * depth * (blur(groove, 2.0) - groove),
        gloss=surface.gloss + 0.5 * groove,
        sheen=surface.sheen * (1 - 0.6 * groove),
    )


def _fading(n: int, start: tuple[float, float], stop: tuple[float, float]) -> Plane:
    """1 in the middle between two points, less towards them: a scratch is shallow where it begins and ends."""
    x, y = grid(n)
    middle_x, middle_y = (start[0] + stop[0]) / 2, (start[1] + stop[1]) / 2
    reach = max(0.03, dist(start, stop) / 2)
    away = np.sqrt((x - middle_x) ** 2 + (y - middle_y) ** 2)
    return 0.35 + 0.65 * ramp(away, reach, 0.5 * reach)


def stain(_: object, surface: Surface, rng: Rng, _turn: int) -> Surface:
    """A blot with a soft irregular edge that swallows light, a little darker along its rim."""
    absorbed = rng.uniform(0.50, 0.75) * _soaked(surface, rng)
    hue = gains((rng.uniform(0.75, 0.95), 1.0, rng.uniform(1.05, 1.25)))  # oil, rust and coffee take the blue
    return replace(
        surface,
        albedo=surface.albedo * np.maximum(1 - hue * absorbed, 0.1),
        sheen=surface.sheen * np.maximum(1 - 1.1 * absorbed, 0.1),
    )


def residue(_: object, surface: Surface, rng: Rng, turn: int) -> Surface:
    """What soldering leaves on a board: pale dried flux, or a dark scorch."""
    soaked = _soaked(surface, rng)
    if turn % 2 == 0:
        albedo = mix(surface.albedo, linear((206, 208, 196)), rng.uniform(0.30, 0.45) * soaked)
    else:
        albedo = mix(surface.albedo, linear((40, 40, 30)), rng.uniform(0.65, 0.85) * soaked)
    return replace(surface, albedo=albedo, gloss=surface.gloss * (1 - 0.5 * np.minimum(soaked, 1)))


def _soaked(surface: Surface, rng: Rng) -> Plane:
    """How much (n, n) of a spilled liquid dried where, 0 … 1.25."""
    radius = rng.uniform(0.06, 0.115)
    away = _blot(surface, rng, radius, ragged=0.45, stretch=rng.uniform(1.0, 1.3), clearance=0.5 * radius)
    rim: Plane = np.exp(-(((away - 0.88) / 0.13) ** 2))
    return (ramp(away, 1.25, 0.70) + 0.25 * rim) * surface.paintable


def hole(_: object, surface: Surface, rng: Rng, _turn: int) -> Surface:
    """A dark irregular pit with a lip that catches the light."""
    radius = rng.uniform(0.028, 0.045)
    away = _blot(surface, rng, radius, ragged=0.25, stretch=rng.uniform(1.0, 1.2), clearance=1.5 * radius)
    pit = ramp(away, 1.1, 0.8) * surface.paintable
    lip = np.exp(-(((away - 1.3) / 0.22) ** 2)) * surface.paintable
    return replace(
        surface,
        albedo=mix(surface.albedo * (1 + 0.25 * lip), linear((34, 30, 28)), pit),
        height=surface.height - 0.45 * radius * pit + 0.12 * radius * lip,
        gloss=surface.gloss * (1 - pit) + 0.3 * lip,
        sheen=surface.sheen * (1 - pit),
    )


def temper_colour(_: object, surface: Surface, rng: Rng, _turn: int) -> Surface:
    """Metal that became too hot: an area in the colour of straw, copper or blue steel."""
    radius = rng.uniform(0.08, 0.15)
    away = _blot(surface, rng, radius, ragged=0.45, stretch=rng.uniform(1.0, 1.4), clearance=0.5 * radius)
    heated = ramp(away, 1.25, 0.6) * surface.paintable
    colour = gains(TEMPER_COLOURS[rng.integers(len(TEMPER_COLOURS))])
    depth = rng.uniform(0.85, 1.0)
    return replace(
        surface,
        albedo=surface.albedo * (1 + (colour - 1) * depth * heated),
        sheen=surface.sheen * (1 - 0.35 * depth * heated),
    )


def undrilled_or_chipped(washer: Washer, surface: Surface, rng: Rng, turn: int) -> Surface:
    """A bolt hole that was never drilled, or a piece broken off the rim."""
    if turn % 2 == 0:
        changed = replace(washer, undrilled=(int(rng.integers(BOLTS)),))
    else:
        chip = rng.uniform(0, 2 * pi), rng.uniform(0.07, 0.10), rng.uniform(0.038, 0.055)
        changed = replace(washer, chip=chip)
    return changed.surface(_size(surface))


def missing_component(board: Board, surface: Surface, _: Rng, turn: int) -> Surface:
    """A place on the board that was left empty: bare pads and the print around them."""
    component = board.components[1:7][turn % 6]  # the larger ones, but not the processor
    return replace(board, missing=frozenset({component.name})).surface(_size(surface))


def foreign_component(board: Board, surface: Surface, rng: Rng, turn: int) -> Surface:
    """A component of the right shape and the wrong colour."""
    kind = list(FOREIGN_LOTS)[turn % len(FOREIGN_LOTS)]
    choices = [component for component in board.components if component.kind == kind]
    component = choices[rng.integers(len(choices))]
    colour = FOREIGN_LOTS[kind][rng.integers(len(FOREIGN_LOTS[kind]))]
    return board.recoloured(component.name, colour).surface(_size(surface))


def broken_threads(weave: Weave, surface: Surface, rng: Rng, _turn: int) -> Surface:
    """A small hole in the cloth: a few crossing threads are torn, each at its own place."""
    across, down = (int(v) for v in rng.integers(3, THREADS - 3, 2))
    gaps = []
    for is_weft, middle, other in ((False, across, down), (True, down, across)):
        for thread in range(middle, middle + int(rng.integers(1, 4))):
            start = other + rng.uniform(-0.8, 0.3)
            gaps.append(Stretch(is_weft, thread, start, start + rng.uniform(1.6, 3.2)))
    return replace(weave, gaps=tuple(gaps)).surface(_size(surface))


def missing_thread(weave: Weave, surface: Surface, rng: Rng, turn: int) -> Surface:
    """A thread that ran out: its neighbours lie side by side with a slit between them."""
    gap = _stretch(rng, turn, shortest=6)
    return replace(weave, gaps=(gap,)).surface(_size(surface))


def foreign_thread(weave: Weave, surface: Surface, rng: Rng, turn: int) -> Surface:
    """One to three neighbouring threads of another yarn."""
    first = _stretch(rng, turn, shortest=4)
    colour = FOREIGN_YARNS[turn % len(FOREIGN_YARNS)]
    threads = range(first.thread, first.thread + int(rng.integers(1, 4)))
    dyes = tuple(Dye(first.weft, thread, first.start, first.stop, colour) for thread in threads)
    return replace(weave, dyes=dyes).surface(_size(surface))


DEFECTS: dict[str, dict[str, Defect]] = {
    "washer": {
        "scratch": scratch,
        "stain": stain,
        "hole": hole,
        "missing_part": undrilled_or_chipped,
        "wrong_colour": temper_colour,
    },
    "board": {
        "scratch": scratch,
        "stain": residue,
        "hole": hole,
        "missing_part": missing_component,
        "wrong_colour": foreign_component,
    },
    "weave": {
        "stain": stain,
        "hole": broken_threads,
        "missing_part": missing_thread,
        "wrong_colour": foreign_thread,
    },
}


def _size(surface: Surface) -> int:
    """Pixels per side of the photograph of a surface."""
    return surface.n // OVERSAMPLE


def _place(surface: Surface, rng: Rng, clearance: float = 0.0) -> tuple[float, float]:
    """A point of the part, away from the edge of the image; most points ``clearance`` around it are free, too."""
    turn = np.linspace(0, 2 * pi, 16, endpoint=False)
    around = np.concatenate([[(0.0, 0.0)], clearance * np.stack([np.cos(turn), np.sin(turn)], axis=1)])
    spots = rng.uniform(-0.44, 0.44, (300, 2))
    samples = ((spots[:, None] + around + 0.5) * surface.n).astype(np.int32).clip(0, surface.n - 1)
    free = surface.paintable[samples[..., 1], samples[..., 0]]  # (300, 17)
    best = np.argmax((free[:, 0] > 0.9) * (free.mean(axis=1) > 0.9) + 0.01 * free[:, 0])
    return float(spots[best, 0]), float(spots[best, 1])


def _blot(surface: Surface, rng: Rng, radius: float, ragged: float, *, stretch: float, clearance: float) -> Plane:
    """How far (n, n) each sample is from the middle of an irregular blot, 1 at its edge."""
    at_x, at_y = _place(surface, rng, clearance)
    x, y = grid(surface.n)
    x, y = x - at_x, y - at_y
    turn = rng.uniform(0, pi)
    long, short = x * cos(turn) + y * sin(turn), y * cos(turn) - x * sin(turn)
    away = np.sqrt((long / stretch) ** 2 + (short * stretch) ** 2) / radius
    bearing = np.arctan2(short, long)
    outline = np.ones_like(away)
    for lobes in range(2, 8):
        outline += ragged * rng.normal() / lobes**1.5 * np.cos(lobes * bearing + rng.uniform(0, 2 * pi))
    return away / np.maximum(outline, 0.3) + 0.25 * ragged * cloud(rng, surface.n, round(2.5 / radius))


def _stretch(rng: Rng, turn: int, shortest: int) -> Stretch:
    """A stretch of a thread anywhere in the cloth, warp and weft taking turns."""
    thread = int(rng.integers(2, THREADS - 4))
    length = rng.uniform(shortest, THREADS)
    start = rng.uniform(0, THREADS - length)
    return Stretch(turn % 2 == 1, thread, start, start + length)
