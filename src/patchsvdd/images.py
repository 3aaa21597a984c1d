"""Files, arrays and tensors → RGB pixels of the wanted size.

Every odd format and every broken file is met here and nowhere else: what leaves this module is an
(H, W, 3) array, uint8, or float32 on the same 0 … 255 range where the source had more than 8 bits.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor

from patchsvdd.config import MAX_PIXELS, Config, Resize, is_large
from patchsvdd.errors import DatasetError, ImageError

ImageLike: TypeAlias = "str | os.PathLike[str] | Image.Image | NDArray[Any] | Tensor"
"""A file, a PIL image, an array (H, W[, C]) or a tensor ([C,] H, W); floats lie in 0 … 1."""
ImageBatch: TypeAlias = "ImageLike | Iterable[ImageLike]"
"""Images one by one, or stacked: arrays (N, H, W[, C]), tensors (N, C, H, W); a path may be a folder."""
Pixels: TypeAlias = "NDArray[np.uint8] | NDArray[np.float32]"

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")
"""What is decoded, by content."""
MIN_SIDE = 16
"""Smaller images hold nothing to inspect and are refused."""
ROWS_AT_ONCE = 256
"""Rows of a large image that are converted at a time."""

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "area": Image.Resampling.BOX,
    "bicubic": Image.Resampling.BICUBIC,
}
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What puts a photograph upright, by its EXIF orientation."""
_OPENING = threading.Lock()
_DECODING_ERRORS = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, MemoryError)


@dataclass(frozen=True)
class LoadedImage:
    """One decoded image, resized."""

    name: str
    pixels: Pixels
    """(H, W, 3) in 0 … 255."""
    original_size: tuple[int, int]
    """(height, width) before resizing."""

    @property
    def tensor(self) -> Tensor:
        """(3, H, W) in 0 … 255, of the pixels' own dtype; of a large image the pixels themselves, not copied."""
        if is_large(*self.pixels.shape[:2]) and self.pixels.flags.writeable:  # torch warns of others
            return torch.from_numpy(self.pixels).permute(2, 0, 1)
        return torch.from_numpy(np.ascontiguousarray(self.pixels.transpose(2, 0, 1)))

    @property
    def picture(self) -> NDArray[np.uint8]:
        """(H, W, 3) uint8, to look at."""
        picture = np.empty(self.pixels.shape, np.uint8)
        for top in range(0, len(picture), ROWS_AT_ONCE):
            rows = self.pixels[top : top + ROWS_AT_ONCE]
            picture[top : top + ROWS_AT_ONCE] = rows if rows.dtype == np.uint8 else np.clip(np.rint(rows), 0, 255)
        return picture


@dataclass(frozen=True)
class ImageSet:
    """The good images a detector learns from, all of one size."""

    names: tuple[str, ...]
    pixels: Tensor
    """(N, 3, H, W) in 0 … 255: uint8, or float32 when a source had more than 8 bits."""
    skipped: tuple[ImageError, ...]
    """Files that looked like images and could not be used."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)."""
        return int(self.pixels.shape[2]), int(self.pixels.shape[3])

    def subset(self, wanted: Sequence[int]) -> ImageSet:
        """Some of the images, by number."""
        return ImageSet(tuple(self.names[index] for index in wanted), self.pixels[list(wanted)], self.skipped)

    def digests(self) -> list[str]:
        """Of each image, 16 digits that tell its pixels from any others."""
        return [digest_of_pixels(pixels) for pixels in self.pixels]

    def fingerprint(self) -> str:
        """SHA-256 over names and pixels, in order."""
        digest = hashlib.sha256()
        for name, pixels in zip(self.names, self.pixels, strict=True):
            digest.update(os.fsencode(name))  # names need not be Unicode
            digest.update(pixels.numpy().tobytes())
        return digest.hexdigest()


def digest_of_pixels(pixels: Tensor) -> str:
    """16 digits that tell an image (3, H, W) in 0 … 255 from any other, however its numbers are stored."""
    whole = pixels
    if pixels.dtype != torch.uint8:
        whole = pixels.round().to(torch.uint8) if bool((pixels == pixels.round()).all()) else pixels.float()
    return hashlib.sha256(whole.contiguous().cpu().numpy().data).hexdigest()[:16]


def find_images(folder: Path) -> tuple[list[Path], list[ImageError]]:
    """Image files below ``folder`` in order of name, by content; and the files that only claim to be images."""
    if not folder.is_dir():
        raise DatasetError(f"there is no folder '{folder}'; check the path")
    Image.init()
    found: list[Path] = []
    broken: list[ImageError] = []
    for path in sorted(_files_below(folder)):
        if _opens_as_image(path):
            found.append(path)
        elif path.suffix.lower() in Image.EXTENSION:  # claims to be an image
            broken.append(ImageError(str(path), _why_not_an_image(path)))
    return found, broken


def load_image(source: ImageLike, config: Config, name: str | None = None) -> LoadedImage:
    """One image, decoded and resized as ``config`` says; ImageError if it cannot be used."""
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        name = name or str(path)
        pixels = _read_file(path, name)
    else:
        name = name or "image"
        pixels = _from_memory(source, name)
    height, width = pixels.shape[:2]
    if min(height, width) < MIN_SIDE:
        raise ImageError(name, f"is {width}x{height} pixels; the smallest usable image is {MIN_SIDE}x{MIN_SIDE}")
    if config.image_size is not None:
        pixels = resize_pixels(pixels, config.image_size, config.resize)
    else:
        largest = max(scale.patch_size for scale in config.scales)
        if min(height, width) < largest:
            raise ImageError(
                name,
                f"is {width}x{height} pixels, smaller than the largest patch ({largest} px); "
                f"use larger images, or a fixed --image-size instead of native",
            )
    return LoadedImage(name, pixels, (height, width))


def load_image_set(
    sources: Sequence[tuple[str, ImageLike]],
    config: Config,
    on_progress: Callable[[int, int], None] | None = None,
) -> ImageSet:
    """All (name, image) pairs as one tensor; images that cannot be used are set aside in ``skipped``."""

    def load(item: tuple[str, ImageLike]) -> LoadedImage | ImageError:
        try:
            return load_image(item[1], config, item[0])
        except ImageError as error:
            return error

    names: list[str] = []
    tensors: list[Tensor] = []
    skipped: list[ImageError] = []
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for done, loaded in enumerate(pool.map(load, sources), start=1):
            if isinstance(loaded, ImageError):
                skipped.append(loaded)
            else:
                if tensors and tensors[0].shape != loaded.tensor.shape:
                    raise _sizes_differ(names[0], tensors[0], loaded)
                names.append(loaded.name)
                tensors.append(loaded.tensor)
            if on_progress is not None:
                on_progress(done, len(sources))
    if not tensors:
        reasons = "; ".join(str(error) for error in skipped[:3])
        raise DatasetError(
            f"none of the {len(sources)} images could be used ({reasons}); give PNG, JPEG, WebP, BMP or TIFF images"
        )
    if any(tensor.dtype == torch.float32 for tensor in tensors):
        tensors = [tensor.float() for tensor in tensors]
    return ImageSet(tuple(names), torch.stack(tensors), tuple(skipped))


def each_image(images: ImageBatch) -> Iterator[tuple[str, ImageLike]]:
    """(name, image) pairs of a file, a folder, one image, a stack, or any iterable of images, lazily."""
    if isinstance(images, str | os.PathLike):
        path = Path(images)
        if path.is_dir():
            found, broken = find_images(path)
            # Broken files too: load_image says what is wrong with each.
            files = sorted([*found, *(Path(error.name) for error in broken)])
            yield from ((str(file.relative_to(path)), file) for file in files)
        else:
            yield str(path), path
    elif isinstance(images, Image.Image) or (isinstance(images, np.ndarray | Tensor) and _is_one(images)):
        yield "image 0", images
    else:
        for index, image in enumerate(images):
            is_file = isinstance(image, str | os.PathLike)
            yield (str(image) if is_file else f"image {index}"), image


def resize_pixels(pixels: Pixels, size: tuple[int, int], resize: Resize) -> Pixels:
    """(H, W, 3) pixels at ``size`` (height, width), through the named filter."""
    height, width = size
    if pixels.shape[:2] == (height, width):
        return pixels
    if pixels.dtype == np.uint8:
        picture = Image.fromarray(pixels)
        return np.asarray(picture.resize((width, height), _FILTERS[resize]))
    channels = [np.asarray(Image.fromarray(pixels[..., c]).resize((width, height), _FILTERS[resize])) for c in range(3)]
    # Bicubic overshoots at edges; uint8 images are clipped by Pillow itself.
    clipped: NDArray[np.float32] = np.clip(np.stack(channels, axis=-1), 0.0, 255.0).astype(np.float32)
    return clipped


def load_mask(path: Path, size: tuple[int, int], resize: Resize) -> NDArray[np.bool_]:
    """(H, W) defect mask at ``size``; grey above 128 is defect (above 0 for masks drawn with 0 and 1)."""
    pixels = _read_file(path, str(path))
    half = 128 if pixels.max() > 1 else 0
    return np.asarray(resize_pixels(pixels, size, resize)[..., 0] > half)


def _files_below(folder: Path) -> Iterator[Path]:
    """Every file below ``folder`` except hidden ones."""
    for root, folders, files in os.walk(folder, onerror=_refuse):
        ours = "results.jsonl" in files  # results of an earlier run among the photos: its overlays are no photos
        folders[:] = [name for name in folders if not name.startswith(".") and not (ours and name == "overlays")]
        paths = (Path(root, name) for name in files if not name.startswith("."))
        yield from (path for path in paths if path.is_file() or not path.exists())  # reading a pipe would wait for ever


def _refuse(error: OSError) -> None:
    """A folder that cannot be listed may hold images: say so rather than leave them out."""
    raise DatasetError(f"'{error.filename}' cannot be read ({error.strerror}); make it readable or move it") from None


def _opens_as_image(path: Path) -> bool:
    """Whether the file's first bytes are those of an image we decode (or of one too large to decode)."""
    try:
        with _open(path):
            return True
    except Image.DecompressionBombError:
        return True  # it is an image; load_image says why it is refused
    except _DECODING_ERRORS:
        return False


def _open(path: Path) -> Image.Image:
    """The image with only its header read, without Pillow's size warning (load_image has its own limit)."""
    # catch_warnings swaps the filters of the whole process: two threads at once would leave the wrong ones.
    with _OPENING, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(path, formats=FORMATS)


def _why_not_an_image(path: Path) -> str:
    """What to say of a file that bears an image's name and is none."""
    try:
        with path.open("rb") as file:
            if not file.read(1):
                return "is an empty file"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "is not a PNG, JPEG, WebP, BMP or TIFF image, whatever its name says"


def _read_file(path: Path, name: str) -> Pixels:
    """(H, W, 3) pixels of a file, upright; ImageError with the reason if that fails."""
    if not path.exists():
        raise ImageError(name, "there is no such file; check the path")
    if path.is_dir():
        raise ImageError(name, "is a folder, not an image")
    try:
        with _open(path) as picture:
            width, height = picture.size
            if width * height > MAX_PIXELS:
                raise Image.DecompressionBombError
            return _from_picture(picture, name)
    except Image.DecompressionBombError:
        raise ImageError(
            name, f"has more than {MAX_PIXELS // 1_000_000} million pixels; cut it or scale it down first"
        ) from None
    except UnidentifiedImageError:
        raise ImageError(name, _why_not_an_image(path)) from None
    except _DECODING_ERRORS as error:
        raise ImageError(name, f"is damaged and cannot be decoded ({error})") from None


def _from_picture(picture: Image.Image, name: str) -> Pixels:
    """(H, W, 3) pixels of a PIL image, decoded and upright."""
    try:
        picture.load()
        turn = _TURNS.get(picture.getexif().get(ExifTags.Base.Orientation, 1))
        # Not ImageOps.exif_transpose: it also rewrites the metadata, and fails where they are damaged.
        return _rgb_in_strips(picture if turn is None else picture.transpose(turn), name)
    except _DECODING_ERRORS as error:
        raise ImageError(name, f"is damaged and cannot be decoded ({error})") from None


def _rgb_in_strips(picture: Image.Image, name: str) -> Pixels:
    """``_to_rgb``; of a large picture some rows at a time, because Pillow and numpy make several copies on the way."""
    width, height = picture.size
    if not is_large(height, width):
        return _to_rgb(picture, name)
    pixels: Pixels | None = None
    for top in range(0, height, ROWS_AT_ONCE):
        bottom = min(top + ROWS_AT_ONCE, height)
        rows = _to_rgb(picture.crop((0, top, width, bottom)), name)
        if pixels is None:
            pixels = np.empty((height, width, 3), rows.dtype)
        pixels[top:bottom] = rows
    assert pixels is not None
    return pixels


def _to_rgb(picture: Image.Image, name: str) -> Pixels:
    """(H, W, 3) pixels of a PIL image of any mode; transparency is laid on white."""
    if picture.mode.startswith("I"):  # 16-bit grey, kept at its full precision
        grey = np.asarray(picture).astype(np.float32) / 257.0
        return np.repeat(np.clip(grey, 0.0, 255.0)[..., None], 3, axis=2)
    if picture.mode == "F":
        raise ImageError(name, "holds 32-bit floats of unknown range; convert it to 8 or 16 bits per channel first")
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture)
    return np.asarray(picture.convert("RGB"))


def _from_memory(source: Image.Image | NDArray[Any] | Tensor, name: str) -> Pixels:
    """(H, W, 3) pixels of a PIL image, an array (H, W[, C]) or a tensor ([C,] H, W)."""
    if isinstance(source, Image.Image):
        return _from_picture(source, name)
    if isinstance(source, Tensor):
        source = source.detach().cpu()
        array = (source.float() if source.dtype == torch.bfloat16 else source).numpy()
        array = array.transpose(1, 2, 0) if array.ndim == 3 else array
        layout = "tensors are (H, W) or (C, H, W)"
    elif isinstance(source, np.ndarray):
        array = source
        layout = "arrays are (H, W) or (H, W, C)"
    else:
        raise ImageError(name, f"is a {type(source).__name__}; give a file, PIL image, array or tensor")
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        raise ImageError(name, f"has shape {tuple(source.shape)}; {layout} with 1, 3 or 4 channels")
    if array.size == 0:
        raise ImageError(name, f"is {array.shape[1]}x{array.shape[0]} pixels; it is empty")
    if array.dtype == np.uint8 and array.shape[2] == 4:
        return _to_rgb(Image.fromarray(array, "RGBA"), name)
    colour = np.broadcast_to(array[..., :3], (*array.shape[:2], 3))  # grey is replicated, alpha dropped
    return _to_8bit_range(colour, name)


def _to_8bit_range(array: NDArray[Any], name: str) -> Pixels:
    """The array on the range 0 … 255: uint8 as it is, uint16 and floats as float32."""
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


def _is_one(stack: NDArray[Any] | Tensor) -> bool:
    """Whether an array or tensor is one image rather than a stack of them."""
    channels = stack.shape[0] if isinstance(stack, Tensor) else stack.shape[-1]
    return stack.ndim == 2 or (stack.ndim == 3 and channels in (1, 3, 4))


def _sizes_differ(first: str, tensor: Tensor, other: LoadedImage) -> DatasetError:
    """What to say when --image-size native meets images of several sizes."""
    height, width = other.pixels.shape[:2]
    return DatasetError(
        f"the images differ in size: {first} is {tensor.shape[2]}x{tensor.shape[1]}, "
        f"{other.name} is {width}x{height}; give a fixed --image-size, e.g. --image-size 256"
    )
