"""The components of the demo board: position, footprint and body."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import cos, pi, radians, sin

import numpy as np

from patchsvdd.apps.demo.drawing import Colour, Polygon, box, disc, lettering

GOLD: Colour = (186, 150, 78)
TIN: Colour = (168, 170, 172)
EPOXY: Colour = (38, 38, 41)
PRINT: Colour = (122, 122, 122)


@dataclass(frozen=True)
class Stamp:
    """One flat piece: a polygon of one colour, at one height above the board."""

    polygon: Polygon
    colour: Colour
    height: float
    """Image widths."""
    gloss: float
    resist: bool = False
    """Whether this is bare solder mask."""


@dataclass(frozen=True)
class Component:
    """One component: its kind, position and colour."""

    name: str
    kind: str
    x: float
    y: float
    outline: tuple[float, float]
    """Half the width and half the height of its frame on the silkscreen."""
    colour: Colour
    label: tuple[float, float]
    """Position of its printed name, relative to (x, y)."""
    upright: bool = False
    """Rotated by 90°."""
    framed: bool = False
    angle: float = 0.0
    """Placement error in radians."""

    def placed(self, rng: np.random.Generator) -> Component:
        """The component with random errors of position, angle and colour."""
        shift = rng.uniform(-0.0008, 0.0008, 2)
        lot = rng.uniform(0.97, 1.03)
        red, green, blue = (min(255.0, channel * lot) for channel in self.colour)
        return replace(
            self,
            x=self.x + float(shift[0]),
            y=self.y + float(shift[1]),
            angle=radians(rng.uniform(-0.6, 0.6)),
            colour=(red, green, blue),
        )

    def at(self, polygons: Sequence[Polygon]) -> list[Polygon]:
        """``polygons``, drawn around the origin, moved to this component's position."""
        angle = self.angle + (pi / 2 if self.upright else 0)
        c, s = cos(angle), sin(angle)
        corners = np.concatenate(polygons) @ np.array([[c, s], [-s, c]]) + np.array([self.x, self.y])
        stops = accumulate((len(polygon) for polygon in polygons), initial=0)
        return [corners[start:stop] for start, stop in pairwise(stops)]


def _small(name: str, kind: str, x: float, y: float, label: tuple[float, float], *, upright: bool) -> Component:
    """A resistor or a ceramic capacitor."""
    colour: Colour = (44, 42, 44) if kind == "resistor" else (156, 122, 84)
    return Component(name, kind, x, y, (0.05, 0.03), colour, label, upright=upright)


COMPONENTS = (
    Component("U1", "quad", -0.06, -0.03, (0.135, 0.135), EPOXY, (0.18, 0.105)),
    Component("U2", "dual", 0.28, 0.21, (0.105, 0.095), EPOXY, (-0.04, 0.135), framed=True),
    Component("A1", "header", -0.02, -0.365, (0.25, 0.035), (32, 32, 34), (0.30, 0.0), framed=True),
    Component("C1", "can", -0.325, 0.255, (0.085, 0.085), (176, 178, 182), (0.105, -0.085)),
    Component("C2", "can", -0.345, 0.055, (0.07, 0.07), (176, 178, 182), (0.075, -0.085)),
    Component("A2", "crystal", 0.28, -0.095, (0.09, 0.045), (184, 184, 180), (-0.04, 0.065)),
    Component("D1", "led", 0.345, -0.265, (0.045, 0.03), (226, 222, 206), (-0.085, 0.0)),
    _small("R1", "resistor", -0.37, -0.24, (0.0, -0.045), upright=False),
    _small("R2", "resistor", -0.37, -0.15, (0.0, -0.04), upright=False),
    _small("R3", "resistor", -0.14, 0.215, (0.0, 0.07), upright=True),
    _small("R7", "resistor", -0.07, 0.215, (0.0, 0.07), upright=True),
    _small("C3", "ceramic", 0.03, 0.215, (0.0, 0.07), upright=True),
    _small("C7", "ceramic", 0.10, 0.275, (0.0, 0.07), upright=True),
    _small("C0", "ceramic", 0.24, -0.20, (-0.085, 0.0), upright=False),
    _small("R0", "resistor", 0.21, 0.06, (0.08, 0.0), upright=False),
)


def footprint(component: Component) -> list[Polygon]:
    """The pads on the board below a component."""
    return component.at(_pads(component.kind))


def _pads(kind: str) -> list[Polygon]:
    if kind in ("resistor", "ceramic"):
        return [box(-0.027, 0, 0.022, 0.038), box(0.027, 0, 0.022, 0.038)]
    if kind == "led":
        return [box(-0.03, 0, 0.022, 0.042), box(0.03, 0, 0.022, 0.042)]
    if kind == "quad":
        return [box(*place, *span) for place, span in _quad_legs(0.125, 0.03)]
    if kind == "dual":
        return [box(side * 0.088, row, 0.032, 0.014) for side in (-1, 1) for row in _pitch(5, 0.033)]
    if kind == "header":
        return [disc(column, 0, 0.018, 16) for column in _pitch(8, 0.058)]
    if kind == "crystal":
        return [box(-0.06, 0, 0.035, 0.03), box(0.06, 0, 0.035, 0.03)]
    return [box(-0.045, 0, 0.05, 0.026), box(0.045, 0, 0.05, 0.026)]  # can


def body(component: Component) -> list[Stamp]:
    """The component itself, lowest piece first."""
    stamps = list(BODIES[component.kind](component))
    polygons = component.at([stamp.polygon for stamp in stamps])
    return [Stamp(one, s.colour, s.height, s.gloss) for one, s in zip(polygons, stamps, strict=True)]


def _chip(component: Component) -> Iterator[Stamp]:
    """A resistor or ceramic capacitor: a block with tinned ends."""
    thick = 0.016 if component.kind == "resistor" else 0.022
    for side in (-1, 1):
        yield Stamp(box(side * 0.031, 0, 0.014, 0.034), TIN, 0.006, 0.9)
        yield Stamp(box(side * 0.024, 0, 0.014, 0.032), TIN, thick, 0.8)
    yield Stamp(box(0, 0, 0.038, 0.032), component.colour, thick, 0.25)
    if component.kind == "resistor":
        for polygon in lettering("10", 0, 0, 0.018, 0.004):
            yield Stamp(polygon, PRINT, thick, 0.1)


def _led(component: Component) -> Iterator[Stamp]:
    """A light-emitting diode: a white block with a yellow lens."""
    for side in (-1, 1):
        yield Stamp(box(side * 0.032, 0, 0.018, 0.036), TIN, 0.006, 0.9)
    yield Stamp(box(0, 0, 0.052, 0.036), component.colour, 0.018, 0.3)
    yield Stamp(disc(0, 0, 0.014, 14), (206, 178, 70), 0.021, 0.6)


def _quad(component: Component) -> Iterator[Stamp]:
    """A chip with legs on four sides."""
    for (x, y), span in _quad_legs(0.118, 0.026):
        yield Stamp(box(x, y, *span), TIN, 0.005, 0.9)
    yield Stamp(box(0, 0, 0.214, 0.214), component.colour, 0.022, 0.25)
    yield Stamp(box(0, 0, 0.200, 0.200), component.colour, 0.025, 0.25)
    yield Stamp(disc(-0.078, -0.078, 0.011, 14), (26, 26, 28), 0.023, 0.1)
    for text, y, tall in (("A7-32", -0.02, 0.032), ("C0D1", 0.035, 0.024)):
        for polygon in lettering(text, 0.005, y, tall, 0.005):
            yield Stamp(polygon, PRINT, 0.025, 0.1)


def _dual(component: Component) -> Iterator[Stamp]:
    """A chip with legs on two sides."""
    for side in (-1, 1):
        for row in _pitch(5, 0.033):
            yield Stamp(box(side * 0.080, row, 0.036, 0.012), TIN, 0.006, 0.9)
    yield Stamp(box(0, 0, 0.126, 0.170), component.colour, 0.024, 0.25)
    yield Stamp(box(0, 0, 0.112, 0.160), component.colour, 0.028, 0.25)
    yield Stamp(disc(-0.036, -0.062, 0.009, 12), (26, 26, 28), 0.026, 0.1)
    for polygon in lettering("R2U", 0.005, 0, 0.026, 0.005):
        yield Stamp(polygon, PRINT, 0.028, 0.1)


def _header(component: Component) -> Iterator[Stamp]:
    """A row of eight gilt pins in black plastic."""
    yield Stamp(box(0, 0, 0.475, 0.056), component.colour, 0.024, 0.3)
    for column in _pitch(8, 0.058):
        yield Stamp(box(column, 0, 0.040, 0.040), (20, 20, 22), 0.020, 0.1)
        yield Stamp(box(column, 0, 0.018, 0.018), (212, 172, 88), 0.040, 0.9)


def _can(component: Component) -> Iterator[Stamp]:
    """An electrolytic capacitor from above: an aluminium can with a black stripe on its negative side."""
    radius = 0.9 * component.outline[0]
    yield Stamp(box(0, 0, 2 * radius, 2 * radius), (30, 30, 32), 0.012, 0.2)
    yield Stamp(disc(0, 0, radius), component.colour, 0.046, 0.5)
    yield Stamp(disc(0, 0, 0.88 * radius), component.colour, 0.050, 0.35)
    turn = np.linspace(pi - 0.95, pi + 0.95, 14)
    segment = 0.88 * radius * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    yield Stamp(segment, (52, 54, 60), 0.050, 0.2)
    yield Stamp(box(0.01, 0, 0.9 * radius, 0.005), (120, 122, 126), 0.0485, 0.2)
    yield Stamp(box(0.01, 0, 0.005, 0.9 * radius), (120, 122, 126), 0.0485, 0.2)


def _crystal(component: Component) -> Iterator[Stamp]:
    """A quartz in a flat metal can with round ends."""
    for inset, tall in ((0.0, 0.010), (0.006, 0.028), (0.012, 0.031)):
        r = 0.036 - inset
        turn = np.linspace(-pi / 2, pi / 2, 12)
        right = np.stack([0.046 + r * np.cos(turn), r * np.sin(turn)], axis=1)
        yield Stamp(np.concatenate([right, -right]), component.colour, tall, 0.6)
    for polygon in lettering("12-0", 0, 0, 0.022, 0.004):
        yield Stamp(polygon, (96, 96, 94), 0.031, 0.2)


BODIES = {
    "resistor": _chip,
    "ceramic": _chip,
    "led": _led,
    "quad": _quad,
    "dual": _dual,
    "header": _header,
    "can": _can,
    "crystal": _crystal,
}


def _pitch(count: int, step: float) -> list[float]:
    """``count`` coordinates with a spacing of ``step``, centred on 0."""
    return [step * (i - (count - 1) / 2) for i in range(count)]


def _quad_legs(out: float, length: float) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Position and (width, height) of the 32 legs of a quad chip, ``out`` from its centre."""
    legs: list[tuple[tuple[float, float], tuple[float, float]]] = []
    for step in _pitch(8, 0.0245):
        for side in (-out, out):
            legs += [((side, step), (length, 0.0115)), ((step, side), (0.0115, length))]
    return legs
