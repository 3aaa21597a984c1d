"""Files, arrays and tensors → RGB pixels of the wanted size (``decoding``), as tensors and sets of them."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from patchsvdd.core.config import Config, Resize, is_large
from patchsvdd.core.errors import DatasetError, ImageError
from patchsvdd.core.roi import Roi
from patchsvdd.images.decoding import (
    DECODING_ERRORS,
    Pixels,
    Readable,
    check_size,
    decode,
    from_array,
    open_image,
    read_file,
    to_uint8,
    unreadable_reason,
)
from patchsvdd.images.decoding import MIN_SIDE as MIN_SIDE
from patchsvdd.images.decoding import resize_pixels as resize_pixels

ImageLike: TypeAlias = "str | os.PathLike[str] | Readable | Image.Image | NDArray[Any] | Tensor"
"""A file, here or elsewhere, a PIL image, an array (H, W[, C]) or a tensor ([C,] H, W); floats lie in 0 … 1."""
ImageBatch: TypeAlias = "ImageLike | Iterable[ImageLike]"
"""Images one by one, or stacked: arrays (N, H, W[, C]), tensors (N, C, H, W); a path may be a folder."""


@dataclass(frozen=True)
class LoadedImage:
    """One decoded image, resized."""

    name: str
    pixels: Pixels
    """(H, W, 3) in 0 … 255."""
    original_size: tuple[int, int]
    """(height, width) before resizing."""
    whole: Pixels | None = None
    """The whole image where ``pixels`` are only the part of it that is seen."""

    @property
    def tensor(self) -> Tensor:
        """(3, H, W) in 0 … 255, of the pixels' own dtype; of a large image the pixels themselves, not copied."""
        if is_large(*self.pixels.shape[:2]) and self.pixels.flags.writeable:  # torch warns of others
            return torch.from_numpy(self.pixels).permute(2, 0, 1)
        return torch.from_numpy(np.ascontiguousarray(self.pixels.transpose(2, 0, 1)))

    @property
    def display_pixels(self) -> NDArray[np.uint8]:
        """(H, W, 3) uint8 of the whole image, to look at."""
        return to_uint8(self.pixels if self.whole is None else self.whole)


@dataclass(frozen=True)
class ImageSet:
    """The good images a detector learns from, all of one size."""

    names: tuple[str, ...]
    pixels: Tensor
    """(N, 3, H, W) in 0 … 255: uint8, or float32 when a source had more than 8 bits."""
    skipped: tuple[ImageError, ...]
    """Files that looked like images and could not be used."""
    original_size: tuple[int, int] | None = None
    """(height, width) of the first image before it was resized; None where that is not known."""
    copies: tuple[tuple[str, str], ...] = ()
    """Images that are left out because they show the same as another: (name, name of the other)."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)."""
        return int(self.pixels.shape[2]), int(self.pixels.shape[3])

    def subset(self, indices: Sequence[int]) -> ImageSet:
        """Some of the images, by number."""
        names = tuple(self.names[index] for index in indices)
        return dataclasses.replace(self, names=names, pixels=self.pixels[list(indices)])

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
    for path in sorted(files_below(folder)):
        if _opens_as_image(path):
            found.append(path)
        elif path.suffix.lower() in Image.EXTENSION:  # claims to be an image
            broken.append(ImageError(str(path), unreadable_reason(path)))
    return found, broken


def load_image(source: ImageLike, config: Config, name: str | None = None) -> LoadedImage:
    """One image, decoded and resized as ``config`` says; ImageError if it cannot be used."""
    name = name or (os.fspath(source) if isinstance(source, str | os.PathLike) else "image")
    pixels = _from_tensor(source, name) if isinstance(source, Tensor) else decode(source, name)
    size = check_size(pixels, name)
    if config.image_size is not None:
        pixels = resize_pixels(pixels, config.image_size, config.resize)
    return loaded_image(pixels, size, config, name)


def loaded_image(pixels: Pixels, original_size: tuple[int, int], config: Config, name: str) -> LoadedImage:
    """One image as the detector sees it, from pixels that are decoded and resized; ImageError if it cannot be used."""
    height, width = original_size
    if config.image_size is None:
        largest = max(scale.patch_size for scale in config.scales)
        if min(height, width) < largest:
            raise ImageError(
                name,
                f"is {width}x{height} pixels, smaller than the largest patch ({largest} px); "
                f"use larger images, or a fixed --image-size instead of native",
            )
        if height * width < config.min_area:
            raise ImageError(name, f"is {width}x{height} pixels, fewer than --min-area {config.min_area}")
    for roi in (config.roi, config.inspect_roi):
        if roi is not None:
            _require_fit(roi, (height, width), config, name)
    frame = config.frame
    if frame is None:
        return LoadedImage(name, pixels, (height, width))
    return LoadedImage(name, frame.cut(pixels), (height, width), pixels)


def _require_fit(roi: Roi, size: tuple[int, int], config: Config, name: str) -> None:
    """Nothing, or an ImageError if a region of interest was drawn for images of another shape."""
    exact = config.image_size is None and roi is config.roi  # what is not resized has the size that was learned
    if not roi.fits(size) or (exact and size != roi.size):
        raise ImageError(
            name,
            f"is {size[1]}x{size[0]} pixels, and the region of interest was drawn for images of "
            f"{roi.size[1]}x{roi.size[0]}; give such images, or a region drawn for these",
        )


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
    original: tuple[int, int] | None = None
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for done, loaded in enumerate(pool.map(load, sources), start=1):
            if isinstance(loaded, ImageError):
                skipped.append(loaded)
            else:
                if tensors and tensors[0].shape != loaded.tensor.shape:
                    raise _sizes_differ(names[0], tensors[0], loaded)
                names.append(loaded.name)
                tensors.append(loaded.tensor)
                original = original or loaded.original_size
            if on_progress is not None:
                on_progress(done, len(sources))
    if not tensors:
        reasons = "; ".join(str(error) for error in skipped[:3])
        raise DatasetError(
            f"none of the {len(sources)} images could be used ({reasons}); give PNG, JPEG, WebP, BMP or TIFF images"
        )
    if any(tensor.dtype == torch.float32 for tensor in tensors):
        tensors = [tensor.float() for tensor in tensors]
    return ImageSet(tuple(names), torch.stack(tensors), tuple(skipped), original)


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
    elif isinstance(images, Readable):
        yield str(images), images
    elif isinstance(images, Image.Image) or (isinstance(images, np.ndarray | Tensor) and _is_single_image(images)):
        yield "image 0", images
    else:
        for index, image in enumerate(images):
            is_file = isinstance(image, str | os.PathLike | Readable)
            yield (str(image) if is_file else f"image {index}"), image


def load_mask(path: Path, size: tuple[int, int], resize: Resize) -> NDArray[np.bool_]:
    """(H, W) defect mask at ``size``; grey above 128 is defect (above 0 for masks drawn with 0 and 1)."""
    pixels = read_file(path, str(path))
    level = 128 if pixels.max() > 1 else 0
    return np.asarray(resize_pixels(pixels, size, resize)[..., 0] > level)


def files_below(folder: Path) -> Iterator[Path]:
    """Every file below ``folder`` except hidden ones."""
    for root, folders, files in os.walk(folder, onerror=_unreadable_folder):
        has_results = "results.jsonl" in files  # results of an earlier run among the photos: its overlays are no photos
        folders[:] = [name for name in folders if not name.startswith(".") and not (has_results and name == "overlays")]
        paths = (Path(root, name) for name in files if not name.startswith("."))
        yield from (path for path in paths if path.is_file() or not path.exists())  # reading a pipe would wait for ever


def _unreadable_folder(error: OSError) -> None:
    """A folder that cannot be listed may hold images: say so rather than leave them out."""
    raise DatasetError(f"'{error.filename}' cannot be read ({error.strerror}); make it readable or move it") from None


def _opens_as_image(path: Path) -> bool:
    """Whether the file's first bytes are those of an image we decode (or of one too large to decode)."""
    try:
        with open_image(path):
            return True
    except Image.DecompressionBombError:
        return True  # it is an image; load_image says why it is refused
    except DECODING_ERRORS:
        return False


def _from_tensor(tensor: Tensor, name: str) -> Pixels:
    """(H, W, 3) pixels of a tensor ([C,] H, W)."""
    tensor = tensor.detach().cpu()
    array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    channels_last = array.transpose(1, 2, 0) if array.ndim == 3 else array
    return from_array(channels_last, name, f"has shape {tuple(array.shape)}; tensors are (H, W) or (C, H, W)")


def _is_single_image(stack: NDArray[Any] | Tensor) -> bool:
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
