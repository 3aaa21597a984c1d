"""Find the image files in a folder. PyTorch is not needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from patchsvdd.core.errors import DatasetError, ImageError
from patchsvdd.images.decoding import DECODING_ERRORS, open_image, unreadable_reason


def find_images(folder: Path) -> tuple[list[Path], list[ImageError]]:
    """Image files below ``folder`` by content, sorted by name; and errors for files with only an image extension."""
    if not folder.is_dir():
        raise DatasetError(f"there is no folder '{folder}'; check the path")
    Image.init()
    images: list[Path] = []
    broken: list[ImageError] = []
    for path in sorted(files_below(folder)):
        if opens_as_image(path):
            images.append(path)
        elif path.suffix.lower() in Image.EXTENSION:
            broken.append(ImageError(str(path), unreadable_reason(path)))
    return images, broken


def files_below(folder: Path) -> Iterator[Path]:
    """Yield every file below ``folder`` except hidden ones."""
    for root, folders, files in os.walk(folder, onerror=_unreadable_folder):
        has_results = "results.jsonl" in files  # of an earlier run: skip its overlays
        folders[:] = [name for name in folders if not name.startswith(".") and not (has_results and name == "overlays")]
        paths = (Path(root, name) for name in files if not name.startswith("."))
        yield from (path for path in paths if path.is_file() or not path.exists())  # not pipes: reading would block


def _unreadable_folder(error: OSError) -> None:
    """Raise DatasetError for a folder that cannot be listed: it may contain images."""
    raise DatasetError(f"'{error.filename}' cannot be read ({error.strerror}); make it readable or move it") from None


def opens_as_image(path: Path) -> bool:
    """Whether the file starts like an image in a supported format (even one too large to decode)."""
    try:
        with open_image(path):
            return True
    except Image.DecompressionBombError:
        return True  # an image; load_image reports why it is rejected
    except DECODING_ERRORS:
        return False
