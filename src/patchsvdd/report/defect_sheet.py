"""Examples of synthetic defects: a contact sheet of every kind, and a test set in MVTec layout."""

from __future__ import annotations

import hashlib
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from patchsvdd.core.errors import OutputError
from patchsvdd.core.files import atomic_write
from patchsvdd.critic.defect_fills import FILLS
from patchsvdd.critic.synthetic_defects import draw_defects
from patchsvdd.images.mvtec_layout import GOOD
from patchsvdd.report.contact_sheet import outline_truth
from patchsvdd.report.image_grid import PAPER, SOFT, fit, flow, frame, stack, write

SMALLEST = 12
"""Fewest pixels, at 256 px, that a defect must visibly change."""
ATTEMPTS = 6
"""Draws before an image is left out."""
BATCH = 16
"""Images per batch."""


@dataclass(frozen=True)
class Examples:
    """Synthetic defects of one kind in good images."""

    kind: str
    images: NDArray[np.uint8]
    """(N, H, W, 3)."""
    masks: NDArray[np.bool_]
    """(N, H, W): where the image has visibly changed; no mask is empty."""
    visible: float
    """Fraction of the draws that were visible; the others were drawn again."""

    def areas(self) -> NDArray[np.float64]:
        """(N,) fraction of each image that its defect covers."""
        fractions: NDArray[np.float64] = self.masks.mean(axis=(1, 2))
        return fractions

    def first(self, count: int) -> Examples:
        """The first ``count`` examples."""
        return replace(self, images=self.images[:count].copy(), masks=self.masks[:count].copy())

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        area = dict.fromkeys(("smallest", "median", "largest"))
        if len(self.masks):
            area = dict(zip(area, np.quantile(self.areas(), (0, 0.5, 1)).tolist(), strict=True))
        return {"drawn": len(self.images), "visible": self.visible, "area": area}


def draw_examples(good: Tensor, kind: str, count: int, seed: int = 0) -> Examples:
    """Draw defects of one kind into ``count`` good images (M, 3, H, W) in 0 … 255, each used equally often.

    Images without a visible defect after ATTEMPTS draws are left out. The same images, kind, count and seed give the
    same examples, independent of the other kinds.
    """
    digest = hashlib.sha256(f"{seed}/{kind}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    rounds = [torch.randperm(len(good), generator=generator) for _ in range(-(-count // len(good)))]
    chosen = torch.cat(rounds)[:count]
    smallest = SMALLEST * good.shape[2] * good.shape[3] / 256**2
    images = torch.empty((count, *good.shape[1:]), dtype=torch.uint8)
    masks = torch.zeros((count, *good.shape[2:]), dtype=torch.bool)
    draws = 0
    for _ in range(ATTEMPTS):
        unseen = masks.flatten(1).any(1).logical_not().nonzero()[:, 0]
        draws += len(unseen)
        for first in range(0, len(unseen), BATCH):
            part = unseen[first : first + BATCH]
            drawn = draw_defects(good[chosen[part]], good, generator, [kind])
            seen = drawn.masks > 0.5
            clear = seen.sum((1, 2)) >= smallest
            images[part] = drawn.images.round().byte()
            masks[part] = seen & clear[:, None, None]
    kept = masks.flatten(1).any(1)
    pixels = images[kept].permute(0, 2, 3, 1).contiguous().numpy()
    return Examples(kind, pixels, masks[kept].numpy(), int(kept.sum()) / draws if draws else 0.0)


def draw_defect_sheet(
    examples: Sequence[Examples], *, title: str = "", columns: int = 6, panel: int = 192
) -> Image.Image:
    """A contact sheet with a block of pairs for every kind: the defective image, without and with the defect outlined.

    ``columns`` is the number of pairs per row; ``panel`` is the longer side of an image in pixels.
    """
    shape = next((one.images.shape[1:] for one in examples if len(one.images)), (1, 1))
    pair, gap = 2 * (fit(shape, panel)[0] + 2) + panel // 40, panel // 10
    width = max(columns * (pair + gap) - gap, 4 * panel)
    blocks = []
    for one in examples:
        pairs = [_draw_pair(image, mask, panel) for image, mask in zip(one.images, one.masks, strict=True)]
        words = f"{one.kind}: {_describe(one.kind)}" if pairs else f"{one.kind}: not visible in these images"
        blocks.append(stack([write(words, panel / 8, width), flow(pairs, width, gap)], panel // 40))
    heading, key = write(title, panel / 6, width), write("red outline: the visible defect", panel / 10, width, SOFT)
    return ImageOps.expand(stack([heading, key, *blocks], gap), gap, PAPER)


def _draw_pair(image: NDArray[np.uint8], mask: NDArray[np.bool_], panel: int) -> Image.Image:
    """The image, and next to it the same with a thin line around the mask."""
    resized = Image.fromarray(image).resize(fit(image.shape, panel), Image.Resampling.BICUBIC)
    outlined = outline_truth(resized, mask, thickness=1)
    return flow([frame(resized), frame(outlined)], sys.maxsize, panel // 40)


def _describe(kind: str) -> str:
    """The first line of the docstring of the kind's fill."""
    return (FILLS[kind].__doc__ or "").partition("\n")[0].rstrip(".")


def require_free(folder: Path, kinds: Sequence[str], per_kind: int, images: int, overwrite: bool) -> None:
    """Raise OutputError if the folder contains files that would be replaced by, or mixed with, the saved ones.

    With ``overwrite``, files of the same names may be replaced; other files are still an error.
    """
    names = {path for kind in kinds for index in range(per_kind) for path in _names(kind, index)}
    names |= {_names(GOOD, index)[0] for index in range(images)}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not (overwrite and name in names):
            remedy = "choose another folder" + (", or replace it with `overwrite=True`" if name in names else "")
            raise OutputError(f"{folder} already contains {name}; {remedy}")


def save_examples(examples: Examples, folder: Path, pixel_scale: float | None = None) -> None:
    """Save images and masks as test/<kind> and ground_truth/<kind> in the folder; removes older ones after the last.

    With ``pixel_scale``, they get the size they would have in the original images, because a detector resizes by it.
    """
    for index, (pixels, mask) in enumerate(zip(examples.images, examples.masks, strict=True)):
        image_name, mask_name = _names(examples.kind, index)
        _save(folder / image_name, pixels, pixel_scale, Image.Resampling.BICUBIC)
        _save(folder / mask_name, mask.astype(np.uint8) * 255, pixel_scale, Image.Resampling.NEAREST)
    for index in itertools.count(len(examples.images)):
        older = [folder / name for name in _names(examples.kind, index) if (folder / name).exists()]
        if not older:
            break
        for path in older:
            path.unlink()


def save_good(good: Tensor, folder: Path, pixel_scale: float | None = None) -> None:
    """Save good images (M, 3, H, W) in 0 … 255 as test/good in the folder; ``pixel_scale`` as in ``save_examples``."""
    for index, image in enumerate(good.float().round().byte().permute(0, 2, 3, 1).contiguous().numpy()):
        _save(folder / _names(GOOD, index)[0], image, pixel_scale, Image.Resampling.BICUBIC)


def _names(kind: str, index: int) -> tuple[Path, Path]:
    """Paths of an image and its mask, relative to the folder."""
    return Path("test", kind, f"{index:03d}.png"), Path("ground_truth", kind, f"{index:03d}_mask.png")


def _save(path: Path, pixels: NDArray[np.uint8], pixel_scale: float | None, resample: Image.Resampling) -> None:
    image = Image.fromarray(pixels)
    if pixel_scale is not None:
        image = image.resize((round(image.width / pixel_scale), round(image.height / pixel_scale)), resample)
    with atomic_write(path, sync=False) as file:
        image.save(file, format="PNG")
