"""Where an image lies on the canvas that the detector sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Fit = Literal["stretch", "letterbox"]
Size = tuple[int, int]
"""(height, width)."""


@dataclass(frozen=True)
class Placement:
    """The resized image starts at the top left of the canvas; its mirror image fills the rest."""

    canvas: Size
    content: Size
    """Size of the resized image, at most the canvas."""

    @property
    def is_whole(self) -> bool:
        """Whether the resized image covers the canvas."""
        return self.content == self.canvas


def place(original: Size, canvas: Size, fit: Fit, pixel_scale: float | None = None) -> Placement:
    """Return where an image of the ``original`` size lies on the ``canvas``.

    "stretch" ignores the aspect ratio. "letterbox" keeps it, and resizes by ``pixel_scale`` or by the largest factor
    that fits, whichever is smaller. An image that misses the canvas by a pixel through rounding covers it.
    """
    if fit == "stretch":
        return Placement(canvas, canvas)
    factor = min(canvas[0] / original[0], canvas[1] / original[1])
    if pixel_scale is not None:
        factor = min(factor, pixel_scale)
    height, width = (max(1, round(side * factor)) for side in original)
    content = (min(height, canvas[0]), min(width, canvas[1]))
    close = canvas[0] - content[0] <= 1 and canvas[1] - content[1] <= 1
    return Placement(canvas, canvas if close else content)
