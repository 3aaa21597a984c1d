"""Pictures inside a page, so that the page is one file."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, features

ROOM = 14_000_000
"""Characters that all pictures of a page may take together: a page is opened, mailed and kept."""
WIDEST = 1100
"""Pixels on the longer side; larger pictures are shrunk."""
QUALITY = 80


@dataclass(frozen=True)
class Embedded:
    """A picture as a page holds it."""

    uri: str
    """ "data:image/…;base64,…"."""
    width: int
    height: int

    def to_html(self, alt: str, *, lazy: bool = True) -> str:
        """The picture's tag; ``alt`` must be safe inside an attribute."""
        decoding = ' decoding="async"' if lazy else ""
        return f'<img src="{self.uri}" width="{self.width}" height="{self.height}" alt="{alt}"{decoding}>'


class EmbeddedImages:
    """Turns the picture files of a folder into parts of a page, as long as the room lasts."""

    def __init__(self, folder: Path, room: int = ROOM) -> None:
        self._folder, self._room = folder, room

    def __call__(self, path: str | None) -> Embedded | None:
        """A picture by its path relative to the folder; None where it is missing or damaged, or the room is used up."""
        if path is None or self._room <= 0:
            return None
        try:
            with Image.open(self._folder / path) as opened:
                picture = opened.convert("RGB")
        except (OSError, ValueError):  # the row tells the result without it
            return None
        picture.thumbnail((WIDEST, WIDEST))
        file, kind = io.BytesIO(), "webp" if features.check("webp") else "jpeg"
        picture.save(file, kind.upper(), quality=QUALITY, method=2)
        uri = f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
        self._room -= len(uri)
        return Embedded(uri, picture.width, picture.height) if self._room >= 0 else None
