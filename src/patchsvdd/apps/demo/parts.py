"""The three kinds of good part by name, and their photographs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from patchsvdd.apps.demo.board import Board
from patchsvdd.apps.demo.camera_setup import Station
from patchsvdd.apps.demo.drawing import Plane
from patchsvdd.apps.demo.surface import Surface, light_up
from patchsvdd.apps.demo.washer import Washer
from patchsvdd.apps.demo.weave import Weave


class Part(Protocol):
    """The random parameters of one part and its shot; frozen, so that it can be rendered again."""

    @property
    def station(self) -> Station:
        """Pose, light and camera."""

    def surface(self, size: int) -> Surface:
        """The scene under the camera, for a photograph of ``size`` pixels."""


PARTS: dict[str, Callable[[Station, np.random.Generator], Part]] = {
    "washer": Washer.drawn,
    "board": Board.drawn,
    "weave": Weave.drawn,
}


def draw_part(category: str, rng: np.random.Generator) -> Part:
    """A good part of ``category`` under the camera."""
    return PARTS[category](Station.drawn(rng), rng)


def photograph(surface: Surface, station: Station) -> Plane:
    """Photograph (3, size, size), 0 … 255, before noise and rounding."""
    return station.camera.expose(light_up(surface, station.light))
