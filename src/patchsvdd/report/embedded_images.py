"""Images embedded in a page, so that the page is a single file."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, features

ROOM = 14_000_000
"""Maximum total characters of all images of a page, so that it can be opened and mailed."""
WIDEST = 1100
"""Maximum pixels of the longer side; larger images are downscaled."""
QUALITY = 80


@dataclass(frozen=True)
class Embedded:
    """An image as a data URI."""

    uri: str
    """ "data:image/…;base64,…"."""
    width: int
    height: int

    def to_html(self, alt: str, *, lazy: bool = True) -> str:
        """The ``<img>`` tag; ``alt`` must already be escaped."""
        decoding = ' decoding="async"' if lazy else ""
        return f'<img src="{self.uri}" width="{self.width}" height="{self.height}" alt="{alt}"{decoding}>'


class EmbeddedImages:
    """Embeds image files of a folder, up to ``room`` characters in total."""

    def __init__(self, folder: Path, room: int = ROOM) -> None:
        self._folder, self._room = folder, room

    def __call__(self, path: str | None) -> Embedded | None:
        """Embed the image at ``path``, relative to the folder; None if it is missing or damaged, or no room is left."""
        if path is None or self._room <= 0:
            return None
        try:
            with Image.open(self._folder / path) as opened:
                image = opened.convert("RGB")
        except (OSError, ValueError):  # the report shows the result without the image
            return None
        image.thumbnail((WIDEST, WIDEST))
        embedded = embed(image)
        self._room -= len(embedded.uri)
        return embedded if self._room >= 0 else None


def embed(image: Image.Image) -> Embedded:
    """The image as a data URI, at its own size."""
    file, kind = io.BytesIO(), "webp" if features.check("webp") else "jpeg"
    image.save(file, kind.upper(), quality=QUALITY, method=2)
    uri = f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
    return Embedded(uri, image.width, image.height)
