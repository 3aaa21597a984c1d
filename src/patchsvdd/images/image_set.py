"""Load files, arrays and tensors as RGB pixels of the configured size, one by one or as an ``ImageSet``."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from patchsvdd.core.progress import OnProgress
from patchsvdd.core.roi import Roi
from patchsvdd.images.decoding import MIN_SIDE as MIN_SIDE
from patchsvdd.images.decoding import (
    Pixels,
    Readable,
    check_size,
    decode,
    from_array,
    place_pixels,
    read_file,
    to_uint8,
)
from patchsvdd.images.decoding import resize_pixels as resize_pixels
from patchsvdd.images.image_files import find_images

ImageLike: TypeAlias = "str | os.PathLike[str] | Readable | Image.Image | NDArray[Any] | Tensor"
"""A local or remote file, a PIL image, an array (H, W[, C]) or a tensor ([C,] H, W); floats are in 0 … 1."""
ImageBatch: TypeAlias = "ImageLike | Iterable[ImageLike]"
"""An iterable of images, a stack (array (N, H, W[, C]) or tensor (N, C, H, W)), one image, or a folder."""


@dataclass(frozen=True)
class LoadedImage:
    """One decoded and resized image."""

    name: str
    pixels: Pixels
    """(H, W, 3) in 0 … 255."""
    original_size: tuple[int, int]
    """(height, width) before resizing."""
    whole: Pixels | None = None
    """The whole canvas if ``pixels`` is only the crop around the region of interest."""
    content: tuple[int, int] | None = None
    """(height, width) of the resized image at the top left of the canvas, if its mirror image fills the rest."""

    @property
    def tensor(self) -> Tensor:
        """(3, H, W) in 0 … 255 with the dtype of the pixels; a view, not a copy, for large images."""
        if is_large(*self.pixels.shape[:2]) and self.pixels.flags.writeable:  # torch warns about read-only arrays
            return torch.from_numpy(self.pixels).permute(2, 0, 1)
        return torch.from_numpy(np.ascontiguousarray(self.pixels.transpose(2, 0, 1)))

    @property
    def canvas(self) -> NDArray[np.uint8]:
        """(H, W, 3) uint8 of the whole canvas."""
        return to_uint8(self.pixels if self.whole is None else self.whole)

    @property
    def display_pixels(self) -> NDArray[np.uint8]:
        """(H, W, 3) uint8 of the whole resized image, for display."""
        return self.canvas if self.content is None else self.canvas[: self.content[0], : self.content[1]]


@dataclass(frozen=True)
class ImageSet:
    """The good images that a detector is trained on, all of one size."""

    names: tuple[str, ...]
    pixels: Tensor
    """(N, 3, H, W) in 0 … 255: uint8, or float32 if any source had more than 8 bits."""
    skipped: tuple[ImageError, ...]
    """Files with an image extension that could not be used."""
    original_size: tuple[int, int] | None = None
    """(height, width) of the first image before resizing; None if not known."""
    copies: tuple[tuple[str, str], ...] = ()
    """Near-duplicates that were left out: (name, name of the image that was kept)."""
    left_out: tuple[str, ...] = ()
    """Names of images that were left out on request."""
    sizing: Mapping[str, Any] | None = None
    """How the image size was chosen from the images (``SizeChoice.to_json``); None if it was given."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)."""
        return int(self.pixels.shape[2]), int(self.pixels.shape[3])

    def subset(self, indices: Sequence[int]) -> ImageSet:
        """The images with these indices."""
        names = tuple(self.names[index] for index in indices)
        return dataclasses.replace(self, names=names, pixels=self.pixels[list(indices)])

    def digests(self) -> list[str]:
        """A 16-digit hash of each image's pixels."""
        return [digest_of_pixels(pixels) for pixels in self.pixels]

    def fingerprint(self) -> str:
        """SHA-256 over names and pixels, in order."""
        digest = hashlib.sha256()
        for name, pixels in zip(self.names, self.pixels, strict=True):
            digest.update(os.fsencode(name))  # names need not be Unicode
            digest.update(pixels.numpy().tobytes())
        return digest.hexdigest()


def digest_of_pixels(pixels: Tensor) -> str:
    """A 16-digit hash of the pixels of an image (3, H, W) in 0 … 255, independent of their dtype."""
    whole = pixels
    if pixels.dtype != torch.uint8:
        whole = pixels.round().to(torch.uint8) if bool((pixels == pixels.round()).all()) else pixels.float()
    return hashlib.sha256(whole.contiguous().cpu().numpy().data).hexdigest()[:16]


def load_image(source: ImageLike, config: Config, name: str | None = None) -> LoadedImage:
    """Decode and resize one image according to ``config``; raise ImageError if it cannot be used."""
    name = name or (os.fspath(source) if isinstance(source, str | os.PathLike) else "image")
    pixels = decoded(source, name)
    size = check_size(pixels, name)
    if config.image_size is not None:
        pixels = place_pixels(pixels, config.placement(size), config.resize)
    return loaded_image(pixels, size, config, name)


def decoded(source: ImageLike, name: str) -> Pixels:
    """Return the upright (H, W, 3) pixels of an image; raise ImageError if it cannot be used."""
    return _from_tensor(source, name) if isinstance(source, Tensor) else decode(source, name)


def loaded_image(pixels: Pixels, original_size: tuple[int, int], config: Config, name: str) -> LoadedImage:
    """Check and crop decoded, resized pixels as the detector sees them; raise ImageError if they cannot be used."""
    height, width = original_size
    if config.image_size is None:
        largest = max(scale.patch_size for scale in config.scales)
        if min(height, width) < largest:
            raise ImageError(
                name,
                f"is {width}x{height} pixels, smaller than the largest patch ({largest} px); "
                f"use larger images, or a fixed `image_size` instead of native",
            )
        if height * width < config.min_area:
            raise ImageError(name, f"is {width}x{height} pixels, fewer than `min_area={config.min_area}`")
    for roi in (config.roi, config.inspect_roi):
        if roi is not None:
            _require_fit(roi, (height, width), config, name)
    frame, placement = config.frame, config.placement((height, width))
    if config.inspect_roi is not None and not placement.is_whole:
        raise ImageError(
            name,
            f"is {width}x{height} pixels and does not fill the model's images, so the region of interest cannot be "
            f"placed; inspect it without one",
        )
    content = None if placement.is_whole else placement.content
    if frame is None:
        return LoadedImage(name, pixels, (height, width), content=content)
    return LoadedImage(name, frame.cut(pixels), (height, width), pixels, content)


def _require_fit(roi: Roi, size: tuple[int, int], config: Config, name: str) -> None:
    """Raise ImageError if a region of interest was drawn for images of another shape."""
    exact = config.image_size is None and roi is config.roi  # without resizing, the size must match exactly
    if not roi.fits(size) or (exact and size != roi.size):
        raise ImageError(
            name,
            f"is {size[1]}x{size[0]} pixels, and the region of interest was drawn for images of "
            f"{roi.size[1]}x{roi.size[0]}; use images of that size, or draw the region for this one",
        )


def load_image_set(
    sources: Sequence[tuple[str, ImageLike]],
    config: Config,
    on_progress: OnProgress | None = None,
) -> ImageSet:
    """Load all (name, image) pairs into one tensor; unusable images are collected in ``skipped``."""

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
    """Yield (name, image) pairs lazily from a file, a folder, one image, a stack, or any iterable of images."""
    if isinstance(images, str | os.PathLike):
        path = Path(images)
        if path.is_dir():
            usable, broken = find_images(path)
            # Include broken files: load_image reports what is wrong with each.
            files = sorted([*usable, *(Path(error.name) for error in broken)])
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
    """Defect mask (H, W) at ``size``; grey above 128 is a defect (above 0 for masks with values 0 and 1)."""
    pixels = read_file(path, str(path))
    level = 128 if pixels.max() > 1 else 0
    return np.asarray(resize_pixels(pixels, size, resize)[..., 0] > level)


def resize_mask(mask: NDArray[np.bool_], size: tuple[int, int], resize: Resize) -> NDArray[np.bool_]:
    """Defect mask (H, W) at ``size``, as ``load_mask`` would return it from a file."""
    return np.asarray(resize_pixels(mask.astype(np.uint8) * np.uint8(255), size, resize) > 128)


def _from_tensor(tensor: Tensor, name: str) -> Pixels:
    """(H, W, 3) pixels of a tensor ([C,] H, W)."""
    tensor = tensor.detach().cpu()
    array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    channels_last = array.transpose(1, 2, 0) if array.ndim == 3 else array
    return from_array(channels_last, name, f"has shape {tuple(array.shape)}; tensors are (H, W) or (C, H, W)")


def _is_single_image(stack: NDArray[Any] | Tensor) -> bool:
    """Whether an array or tensor is one image rather than a stack."""
    channels = stack.shape[0] if isinstance(stack, Tensor) else stack.shape[-1]
    return stack.ndim == 2 or (stack.ndim == 3 and channels in (1, 3, 4))


def _sizes_differ(first: str, tensor: Tensor, other: LoadedImage) -> DatasetError:
    """The error for native size and images of several sizes."""
    height, width = other.pixels.shape[:2]
    return DatasetError(
        f"the images differ in size: {first} is {tensor.shape[2]}x{tensor.shape[1]}, "
        f"{other.name} is {width}x{height}; give a fixed `image_size`, e.g. `image_size=256`"
    )
