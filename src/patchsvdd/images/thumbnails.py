"""Compressed copies of the good images, kept in the model to illustrate explanations."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, features
from torch import Tensor

QUALITY = 90
"""WebP quality, 0 to 100. Thumbnails are only displayed, never measured."""
MAX_WEBP_SIDE = 16383
"""Largest side that WebP supports, in pixels."""


@dataclass(frozen=True)
class Thumbnails:
    """Good images at working resolution, by image index, decoded on access."""

    files: tuple[bytes, ...]
    """Encoded images."""

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        """(H, W, 3): the thumbnail of one image."""
        with Image.open(io.BytesIO(self.files[index])) as image:
            return np.asarray(image.convert("RGB"))

    def __iter__(self) -> Iterator[NDArray[np.uint8]]:
        return (self[index] for index in range(len(self)))

    def __add__(self, other: Thumbnails) -> Thumbnails:
        """These thumbnails followed by the others."""
        return Thumbnails(self.files + other.files)

    @classmethod
    def from_images(cls, images: Iterable[Tensor]) -> Thumbnails:
        """Encode images (3, H, W) in 0 … 255."""
        with ThreadPoolExecutor() as pool:  # the encoder releases the GIL
            return cls(tuple(pool.map(_encode, images)))

    def state(self) -> dict[str, Tensor]:
        """Tensors for the model file: image index as text → (bytes,) uint8."""
        return {str(i): torch.frombuffer(bytearray(file), dtype=torch.uint8) for i, file in enumerate(self.files)}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor]) -> Thumbnails:
        """Restore the thumbnails from ``state``."""
        return cls(tuple(tensors[name].numpy().tobytes() for name in sorted(tensors, key=int)))


def _encode(image: Tensor) -> bytes:
    pixels = image.round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous().cpu().numpy()
    thumbnail, file = Image.fromarray(pixels), io.BytesIO()
    if features.check("webp") and max(thumbnail.size) <= MAX_WEBP_SIDE:
        thumbnail.save(file, "WEBP", quality=QUALITY, method=2)
    else:
        thumbnail.save(file, "PNG")
    return file.getvalue()
