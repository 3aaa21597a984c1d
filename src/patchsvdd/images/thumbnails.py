"""The good images themselves, kept in the model, so that it can show what it compared with."""

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
"""Of WebP, from 0 to 100: the picture is looked at, never measured."""
MAX_WEBP_SIDE = 16383
"""Pixels on a side that the format can hold."""


@dataclass(frozen=True)
class Thumbnails:
    """Pictures of good images at the size the model works at, by the image's number; decoded when asked for."""

    files: tuple[bytes, ...]
    """Encoded images."""

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        """(H, W, 3): the picture of one image."""
        with Image.open(io.BytesIO(self.files[index])) as image:
            return np.asarray(image.convert("RGB"))

    def __iter__(self) -> Iterator[NDArray[np.uint8]]:
        return (self[index] for index in range(len(self)))

    def __add__(self, other: Thumbnails) -> Thumbnails:
        """These and then the others, whose numbers go on after these."""
        return Thumbnails(self.files + other.files)

    @classmethod
    def from_images(cls, images: Iterable[Tensor]) -> Thumbnails:
        """Pictures of images (3, H, W) in 0 … 255."""
        with ThreadPoolExecutor() as pool:  # the encoder lets other threads work
            return cls(tuple(pool.map(_encode, images)))

    def state(self) -> dict[str, Tensor]:
        """What a model file holds: the image's number as text → (bytes,) uint8."""
        tensors = (torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in self.files)
        return {str(index): tensor for index, tensor in enumerate(tensors)}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor]) -> Thumbnails:
        """The pictures whose ``state`` it was."""
        return cls(tuple(tensors[name].numpy().tobytes() for name in sorted(tensors, key=int)))


def _encode(image: Tensor) -> bytes:
    pixels = image.round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous().cpu().numpy()
    thumbnail, file = Image.fromarray(pixels), io.BytesIO()
    if features.check("webp") and max(thumbnail.size) <= MAX_WEBP_SIDE:
        thumbnail.save(file, "WEBP", quality=QUALITY, method=2)
    else:
        thumbnail.save(file, "PNG")
    return file.getvalue()
