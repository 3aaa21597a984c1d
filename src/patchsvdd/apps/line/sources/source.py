"""What a source of images is: a camera, a stream or a folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from patchsvdd.core.errors import PatchSVDDError


class SourceError(PatchSVDDError):
    """A source cannot be opened, or stopped sending. Opening it again may help."""


class SourceEnded(SourceError):
    """A source has no more images, such as a video file after its last one."""


@dataclass(frozen=True)
class Frame:
    """One image of a source."""

    source: str
    """Name of the source."""
    number: int
    """As the camera counts its frames; otherwise the position in the stream, or a count from 0."""
    captured: float
    """Seconds since 1970, by this machine's clock: when the image was taken, as well as it is known."""
    arrived: float
    """By ``time.monotonic``."""
    name: str
    """A file name for people, such as ``top-000123.png``."""
    pixels: NDArray[np.uint8] | None = None
    """(H, W) grey or (H, W, 3) RGB; None if ``data`` is an image file."""
    data: bytes | None = None
    """An encoded image, as it was stored in a folder."""
    part: str | None = None
    """The part number that the source knows, such as one in a file's name."""
    view: str | None = None
    """The view that the source knows, if it has images of several."""


class Source(Protocol):
    """A source of images. Only one thread uses it, except ``trigger`` and ``lost``."""

    name: str

    def open(self) -> None:
        """Connect and start; raises SourceError."""

    def read(self, seconds: float) -> Frame | None:
        """The next image; None if none came within ``seconds``. Raises SourceError if the source is gone."""

    def trigger(self) -> None:
        """Take one image now. Does nothing if the source does not wait for a software trigger."""

    def flush(self) -> None:
        """Discard images that were taken but not read."""

    def close(self) -> None:
        """Stop and disconnect; never raises."""

    @property
    def lost(self) -> int:
        """Images that the camera or the network lost since the source was created."""
