"""Contact sheets: test images with annotated defects outlined, next to their anomaly maps."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from patchsvdd.core.config import Config
from patchsvdd.core.errors import DatasetError, ImageError
from patchsvdd.images.image_set import load_image, load_mask
from patchsvdd.images.mvtec_layout import find_test_images
from patchsvdd.report.image_grid import PAPER, SOFT, fit, flow, frame, stack, write
from patchsvdd.report.overlay import contour

Seen = tuple[NDArray[np.uint8], NDArray[np.bool_] | None]
"""A test image (H, W, 3) and the mask (H, W) of its defect, or None without a defect."""

TRUTH = (255, 0, 0)
"""Colour of the line around an annotated defect, as in the paper."""
PANELS = 6
"""Largest number of panels in one row of the sheet."""

# The colours of map ÷ full value from 0 to 1, darker for more anomalous. Lightness decreases in equal steps (OKLab),
# so the scale is readable in greyscale and with every kind of colour blindness.
SHADES = (
    (249, 247, 238),
    (230, 210, 178),
    (224, 166, 116),
    (220, 113, 72),
    (190, 71, 78),
    (147, 40, 92),
    (94, 28, 90),
    (48, 17, 66),
    (12, 6, 30),
)

_STEPS = np.linspace(0, 1, len(SHADES))
_COLOURS = np.array(SHADES)  # (shades, 3)


@dataclass(frozen=True)
class SheetCell:
    """One test image."""

    image: NDArray[np.uint8]
    """(H, W, 3)."""
    mask: NDArray[np.bool_] | None
    """(H, W) mask of the annotated defect; None without a defect."""
    maps: Mapping[str, NDArray[np.float32]]
    """Title → (H, W) anomaly map."""
    scale: Mapping[str, float]
    """Title → the value drawn in the darkest colour. Maps with the same scale can be compared."""
    caption: str = ""


@dataclass(frozen=True)
class SheetRow:
    """Test images under one heading, such as their defect type."""

    label: str
    cells: Sequence[SheetCell]


def look_at(category: Path, images: Iterable[str], config: Config) -> dict[str, Seen]:
    """Name → test image and mask as loaded for the detector; without those that can no longer be read.

    Names are paths relative to the category.
    """
    masks = _masks(category)
    seen: dict[str, Seen] = {}
    for name in images:
        try:
            pixels = load_image(category / name, config).display_pixels
            size = pixels.shape[0], pixels.shape[1]
            seen[name] = pixels, load_mask(masks[name], size, config.resize) if name in masks else None
        except (ImageError, OSError):
            continue
    return seen


def draw_sheet(rows: Sequence[SheetRow], *, title: str = "", panel: int = 192) -> Image.Image:
    """The rows as one image with a legend; the longer side of each panel has ``panel`` pixels.

    Rows are placed side by side if they fit; long rows wrap.
    """
    gap, width = panel // 8, PANELS * (panel + panel // 8)
    shared = _shared_scales(rows)
    blocks = []
    for row in rows:
        cells = flow([_draw_cell(cell, shared, panel) for cell in row.cells], width, gap)
        blocks.append(stack([write(row.label, panel / 7, max(cells.width, 2 * panel)), cells]))
    body = flow(blocks, width, 2 * gap)
    heading = write(title, panel / 6, width)
    key = flow(_draw_key(rows, shared, panel), body.width, gap)
    return ImageOps.expand(stack([heading, body, key], gap), gap, PAPER)


def map_colours(ratio: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    """(H, W, 3) colours of map ÷ full value (H, W): light at 0, darkest at 1 and above."""
    channels = [np.interp(ratio, _STEPS, _COLOURS[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def outline_truth(image: Image.Image, mask: NDArray[np.bool_], *, thickness: int) -> Image.Image:
    """The image with a red line and a white halo around the mask (H, W), which may have another size."""
    # A pixel counts if any part of it is in the mask; otherwise a small defect would vanish when shrunk.
    shares = Image.fromarray(mask.astype(np.float32)).resize(image.size, Image.Resampling.BOX)
    inside = np.asarray(shares) > 0
    line = np.zeros_like(inside)
    for _ in range(thickness):
        line |= contour(inside | line)
    halo = contour(inside | line) & ~inside & ~line
    pixels = np.array(image)
    pixels[halo] = PAPER
    pixels[line] = TRUTH
    return Image.fromarray(pixels)


def _masks(category: Path) -> dict[str, Path]:
    """Image → mask file; empty if the test images no longer exist."""
    try:
        images = find_test_images(category).images
    except DatasetError:
        return {}
    return {image.file.relative_to(category).as_posix(): image.mask for image in images if image.mask is not None}


def _shared_scales(rows: Sequence[SheetRow]) -> dict[str, float]:
    """Title → full value, for maps with the same full value throughout the sheet."""
    values: dict[str, set[float]] = {}
    for cell in (cell for row in rows for cell in row.cells):
        for title in cell.maps:
            values.setdefault(title, set()).add(cell.scale[title])
    return {title: scales.pop() for title, scales in values.items() if len(scales) == 1}


def _draw_cell(cell: SheetCell, shared: Mapping[str, float], panel: int) -> Image.Image:
    """The image and its maps side by side, titles above, the caption below."""
    size = fit(cell.image.shape, panel)
    image = Image.fromarray(cell.image).resize(size, Image.Resampling.BICUBIC)
    if cell.mask is not None:
        image = outline_truth(image, cell.mask, thickness=max(1, round(panel / 128)))
    panels = [_titled(" " if cell.maps else "", image, panel)]
    for title, values in cell.maps.items():
        full = cell.scale[title]
        words = title if title in shared else f"{title}: 0 - {full:.3g}"
        panels.append(_titled(words, _draw_map(values, full, size), panel))
    strip = flow(panels, sys.maxsize, panel // 32)
    return stack([strip, write(cell.caption, panel / 9, strip.width, SOFT)])


def _draw_map(values: NDArray[np.float32], full: float, size: tuple[int, int]) -> Image.Image:
    """The map (H, W) as a colour image, resized to (width, height)."""
    ratio = np.clip(values / full if full > 0 else np.sign(values), 0, 1).astype(np.float32)
    resized = Image.fromarray(ratio).resize(size, Image.Resampling.BILINEAR)
    return Image.fromarray(map_colours(np.asarray(resized)))


def _titled(words: str, image: Image.Image, panel: int) -> Image.Image:
    """The image in a thin frame below its title, which is at least half a panel wide."""
    framed = frame(image)
    return stack([write(words, panel / 9, max(framed.width, panel // 2)), framed])


def _draw_key(rows: Sequence[SheetRow], shared: Mapping[str, float], panel: int) -> list[Image.Image]:
    """The legend: the colour bar, the full value of each map, and the red line."""
    cells = [cell for row in rows for cell in row.cells]
    words = [f"{title}: full = {full:.3g}" for title, full in shared.items()]
    if any(cell.maps.keys() - shared.keys() for cell in cells):
        words.append("full: the value above each map")
    if any(cell.mask is not None and cell.mask.any() for cell in cells):
        words.append("red line: annotated defect")
    texts = [write(line, panel / 9, sys.maxsize, SOFT) for line in words]
    return [_draw_bar(panel), *texts] if any(cell.maps for cell in cells) else texts


def _draw_bar(panel: int) -> Image.Image:
    """The colour bar between its ends, "0" and "full"."""
    zero, full = (write(words, panel / 9, panel) for words in ("0", "full and above"))
    ramp = np.linspace(0, 1, panel)[None].repeat(zero.height - 2, axis=0)
    bar = frame(Image.fromarray(map_colours(ramp)))
    return flow([zero, bar, full], sys.maxsize, panel // 24)
