"""Decode files and arrays to RGB pixels, with numpy and Pillow only: the runtime without PyTorch uses it too.

All unusual formats and broken files are handled here. The result is always an (H, W, 3) array: uint8, or float32 on the
same 0 … 255 range if the source had more than 8 bits.
"""

from __future__ import annotations

import io
import os
import struct
import threading
import warnings
from pathlib import Path
from typing import IO, Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from patchsvdd.core.config import Resize, is_large
from patchsvdd.core.errors import ImageError
from patchsvdd.core.image_size import MAX_PIXELS
from patchsvdd.core.placement import Placement

Pixels: TypeAlias = "NDArray[np.uint8] | NDArray[np.float32]"

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")
"""Formats that are decoded, recognised by content."""
MIN_SIDE = 16
"""Smaller images are rejected."""
ROWS_AT_ONCE = 256
"""Rows of a large image to convert at a time."""

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "area": Image.Resampling.BOX,
    "bicubic": Image.Resampling.BICUBIC,
}
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation → the transposition that turns the image upright."""
_OPENING = threading.Lock()
EMPTY = "is an empty file"
UNREACHABLE = "cannot be read from its storage"
NOT_AN_IMAGE = "is not a PNG, JPEG, WebP, BMP or TIFF image, despite its name"
DECODING_ERRORS = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, MemoryError)


@runtime_checkable
class Readable(Protocol):
    """A file in remote storage."""

    def read_bytes(self) -> bytes:
        """Return the whole content; raise OSError if it cannot be read."""
        ...


def decode(source: str | os.PathLike[str] | Readable | Image.Image | NDArray[Any], name: str) -> Pixels:
    """Return the upright (H, W, 3) pixels of a file, PIL image or array (H, W[, C]); raise ImageError on failure."""
    if isinstance(source, str | os.PathLike):
        return read_file(Path(source), name)
    if isinstance(source, Readable):
        return read_remote(source, name)
    if isinstance(source, Image.Image):
        return from_pil(source, name)
    if isinstance(source, np.ndarray):
        return from_array(source, name)
    raise ImageError(name, f"is a {type(source).__name__}; give a file, PIL image, array or tensor")


def resize_pixels(pixels: Pixels, size: tuple[int, int], resize: Resize) -> Pixels:
    """Resize (H, W, 3) pixels to ``size`` (height, width) with the named filter."""
    height, width = size
    if pixels.shape[:2] == (height, width):
        return pixels
    if pixels.dtype == np.uint8:
        image = Image.fromarray(pixels)
        return np.asarray(image.resize((width, height), _FILTERS[resize]))
    channels = [np.asarray(Image.fromarray(pixels[..., c]).resize((width, height), _FILTERS[resize])) for c in range(3)]
    # Bicubic overshoots at edges; Pillow clips uint8 images on its own.
    clipped: NDArray[np.float32] = np.clip(np.stack(channels, axis=-1), 0.0, 255.0).astype(np.float32)
    return clipped


def place_pixels(pixels: Pixels, placement: Placement, resize: Resize) -> Pixels:
    """Resize (H, W, 3) pixels and place them on the canvas; their mirror image fills the rest."""
    content = resize_pixels(pixels, placement.content, resize)
    if placement.is_whole:
        return content
    missing = [(0, whole - side) for whole, side in zip(placement.canvas, placement.content, strict=True)]
    padded = np.pad(content, [*missing, (0, 0)], mode="symmetric")
    return cast("Pixels", padded)


def open_image(path: Path | IO[bytes]) -> Image.Image:
    """Open a file or bytes, reading only the header, without Pillow's size warning (we have our own limits)."""
    # catch_warnings replaces the filters of the whole process; without the lock two threads could restore wrong ones.
    with _OPENING, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(path, formats=FORMATS)


def upright_size(image: Image.Image) -> tuple[int, int]:
    """(height, width) of an opened image after it is turned upright; only the header is read."""
    width, height = image.size
    turned = image.getexif().get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8)
    return (width, height) if turned else (height, width)


def unreadable_reason(path: Path) -> str:
    """Reason why a file with an image extension is not an image."""
    try:
        with path.open("rb") as file:
            if not file.read(1):
                return EMPTY
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return NOT_AN_IMAGE


def read_file(path: Path, name: str) -> Pixels:
    """Return the upright (H, W, 3) pixels of a file; raise ImageError with the reason on failure."""
    if not path.exists():
        raise ImageError(name, "there is no such file; check the path")
    if path.is_dir():
        raise ImageError(name, "is a folder, not an image")
    try:
        return _read(path, name)
    except UnidentifiedImageError:
        raise ImageError(name, unreadable_reason(path)) from None


def read_remote(source: Readable, name: str) -> Pixels:
    """Return the upright (H, W, 3) pixels of a remote file; raise ImageError with the reason on failure."""
    try:
        content = source.read_bytes()
    except FileNotFoundError:
        raise ImageError(name, "there is no such file; check the path") from None
    except OSError as error:
        raise ImageError(name, f"{UNREACHABLE}: {error}") from None
    if not content:
        raise ImageError(name, EMPTY)
    try:
        return _read(io.BytesIO(content), name)
    except UnidentifiedImageError:
        raise ImageError(name, NOT_AN_IMAGE) from None


def _read(source: Path | IO[bytes], name: str) -> Pixels:
    """Return the (H, W, 3) pixels of a file; raise UnidentifiedImageError if it is not an image."""
    try:
        with open_image(source) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise Image.DecompressionBombError
            return from_pil(image, name)
    except Image.DecompressionBombError:
        raise ImageError(
            name, f"has more than {MAX_PIXELS // 1_000_000} million pixels; crop it or scale it down first"
        ) from None
    except UnidentifiedImageError:
        raise
    except DECODING_ERRORS as error:
        raise ImageError(name, f"is damaged and cannot be decoded ({error})") from None


def from_pil(image: Image.Image, name: str) -> Pixels:
    """Return the decoded, upright (H, W, 3) pixels of a PIL image."""
    try:
        image.load()
        transpose = _UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
        # Not ImageOps.exif_transpose: it also rewrites the metadata and fails if that is damaged.
        return _rgb_in_strips(image if transpose is None else image.transpose(transpose), name)
    except DECODING_ERRORS as error:
        raise ImageError(name, f"is damaged and cannot be decoded ({error})") from None


def _rgb_in_strips(image: Image.Image, name: str) -> Pixels:
    """``_to_rgb``, a few rows at a time for large images: Pillow and numpy make several copies on the way."""
    width, height = image.size
    if not is_large(height, width):
        return _to_rgb(image, name)
    pixels: Pixels | None = None
    for top in range(0, height, ROWS_AT_ONCE):
        bottom = min(top + ROWS_AT_ONCE, height)
        rows = _to_rgb(image.crop((0, top, width, bottom)), name)
        if pixels is None:
            pixels = np.empty((height, width, 3), rows.dtype)
        pixels[top:bottom] = rows
    assert pixels is not None
    return pixels


def _to_rgb(image: Image.Image, name: str) -> Pixels:
    """Return the (H, W, 3) pixels of a PIL image of any mode, with transparent areas composited onto white."""
    if image.mode.startswith("I"):  # 16-bit grey, at full precision
        grey = np.asarray(image).astype(np.float32) / 257.0
        return np.repeat(np.clip(grey, 0.0, 255.0)[..., None], 3, axis=2)
    if image.mode == "F":
        raise ImageError(name, "holds 32-bit floats of unknown range; convert it to 8 or 16 bits per channel first")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return np.asarray(image.convert("RGB"))


def from_array(array: NDArray[Any], name: str, shape_error: str | None = None) -> Pixels:
    """Return the (H, W, 3) pixels of an array (H, W[, C]); ``shape_error`` is the message for other shapes."""
    shape_error = shape_error or f"has shape {tuple(array.shape)}; arrays are (H, W) or (H, W, C)"
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        raise ImageError(name, f"{shape_error} with 1, 3 or 4 channels")
    if array.size == 0:
        raise ImageError(name, f"is {array.shape[1]}x{array.shape[0]} pixels; it is empty")
    if array.dtype == np.uint8 and array.shape[2] == 4:
        return _to_rgb(Image.fromarray(array, "RGBA"), name)
    rgb = np.broadcast_to(array[..., :3], (*array.shape[:2], 3))  # grey is replicated, alpha dropped
    return _to_8bit_range(rgb, name)


def check_size(pixels: Pixels, name: str) -> tuple[int, int]:
    """Return (height, width) of pixels (H, W, 3); raise ImageError if the image is too small."""
    height, width = pixels.shape[:2]
    if min(height, width) < MIN_SIDE:
        raise ImageError(name, f"is {width}x{height} pixels; the smallest usable image is {MIN_SIDE}x{MIN_SIDE}")
    return height, width


def to_uint8(pixels: Pixels) -> NDArray[np.uint8]:
    """Round (H, W, 3) pixels to uint8."""
    image = np.empty(pixels.shape, np.uint8)
    for top in range(0, len(image), ROWS_AT_ONCE):
        rows = pixels[top : top + ROWS_AT_ONCE]
        image[top : top + ROWS_AT_ONCE] = rows if rows.dtype == np.uint8 else np.clip(np.rint(rows), 0, 255)
    return image


def _to_8bit_range(array: NDArray[Any], name: str) -> Pixels:
    """Scale an array to 0 … 255: uint8 is returned unchanged, uint16 and floats become float32."""
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype == np.uint16:
        return (array / 257.0).astype(np.float32)
    if np.issubdtype(array.dtype, np.floating):
        if not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
            raise ImageError(
                name,
                f"holds floats from {array.min():.3g} to {array.max():.3g}; scale them to 0 … 1 or give uint8",
            )
        return (array * 255.0).astype(np.float32)
    raise ImageError(name, f"holds {array.dtype}; give uint8, uint16, or floats in 0 … 1")
