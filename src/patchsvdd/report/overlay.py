"""The overlay of an inspection: the image with its defects outlined, and the heat map beside it."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from patchsvdd.core.files import atomic_write
from patchsvdd.scoring.inspection import Inspection
from patchsvdd.scoring.regions import region_mask

Value = TypeVar("Value", np.float32, np.bool_)

SATURATION = 3.0
"""Multiple of the threshold at which the heat map reaches its hottest colour."""
MAX_SIDE = 768
"""Largest side of a panel in pixels."""
OUTLINE = (255, 0, 144)
"""Colour of the line around a defect: magenta, which is rare in images of parts."""
MIN_CELL = 240
"""Smallest width for a panel in pixels, so that the legend fits below a narrow image."""

# The colours of map ÷ threshold. Lightness increases throughout, and the hue changes from blue to red at the
# threshold, so the scale is readable in greyscale and with every kind of colour blindness.
HEAT = (
    # ratio, (red, green, blue), opacity over the image
    (0.0, (28, 38, 66), 0.00),
    (0.5, (44, 76, 122), 0.12),
    (1.0, (62, 110, 160), 0.36),
    (1.0001, (205, 62, 70), 0.66),
    (1.5, (238, 108, 38), 0.74),
    (2.2, (251, 180, 30), 0.82),
    (SATURATION, (253, 243, 128), 0.90),
)
_RATIOS = np.array([ratio for ratio, _, _ in HEAT])
_COLOURS = np.array([colour for _, colour, _ in HEAT])  # (anchors, 3)
_OPACITIES = np.array([opacity for _, _, opacity in HEAT])

_HALO = (255, 255, 255)
_SHEET = (23, 25, 30)
_INK = (226, 229, 234)
_VEIL = 0.75  # opacity of the veil outside the region of interest
_DIMMED = 0.72  # brightness of the grey image, so that the hottest colour stands out on white parts too


def save_overlay(inspection: Inspection, path: Path) -> Path:
    """Write the overlay of an inspection; return ``path``."""
    return save_image(draw_overlay(inspection), path)


def save_image(image: Image.Image, path: Path) -> Path:
    """Write an image as PNG if ``path`` ends in .png, else as JPEG; return ``path``."""
    with atomic_write(path, sync=False) as file:
        file.write(image_bytes(image, "PNG" if path.suffix.lower() == ".png" else "JPEG"))
    return path


def image_bytes(image: Image.Image, kind: str = "JPEG") -> bytes:
    """The encoded image; JPEG without chroma subsampling, which would blur thin lines."""
    content = io.BytesIO()
    image.save(content, format=kind, quality=90, subsampling=0)
    return content.getvalue()


def draw_overlay(inspection: Inspection, *, min_side: int = 256) -> Image.Image:
    """Two panels and a legend: the image with its regions outlined, and the heat map.

    The colours depend on the threshold and not on the image, so a good image has no hot colours. The shorter side
    of a panel has at least ``min_side`` pixels, unless the longer side would exceed ``MAX_SIDE``.
    """
    height, width = panel_size(inspection.anomaly_map.shape, min_side)
    cell = max(width, MIN_CELL)
    unit = cell / 256  # the legend grows with the panels
    gap, strip = round(6 * unit), round(36 * unit)

    image = Image.fromarray(inspection.image).resize((width, height), Image.Resampling.BICUBIC)
    if inspection.inside is not None:
        image = _veiled(image, inspection.inside)
    sheet = Image.new("RGB", (2 * cell + gap, height + strip), _SHEET)
    margin = (cell - width) // 2
    sheet.paste(_outlined(image, inspection, thickness=round(1.5 * unit)), (margin, 0))
    sheet.paste(_heated(image, inspection), (cell + gap + margin, 0))
    _draw_caption(sheet, inspection, (gap, height), unit)
    _draw_legend(sheet, inspection, (cell + gap, height), cell - gap, unit)
    return sheet


def _veiled(image: Image.Image, inside: NDArray[np.bool_]) -> Image.Image:
    """The image with everything outside the region of interest faded to the background colour."""
    mask = Image.fromarray(inside).resize(image.size, Image.Resampling.NEAREST)
    faded = Image.blend(image, Image.new("RGB", image.size, _SHEET), _VEIL)
    return Image.composite(image, faded, mask)


def panel_size(shape: tuple[int, ...], min_side: int) -> tuple[int, int]:
    """(height, width) of the panel for a map of ``shape`` (H, W)."""
    height, width = shape
    scale = min(max(1.0, min_side / min(height, width)), MAX_SIDE / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def heat_colours(ratio: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    """(H, W, 3) colours of map ÷ threshold (H, W): cool up to 1, warm above, hottest at 3 and above."""
    channels = [np.interp(ratio, _RATIOS, _COLOURS[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def heat_layer(anomaly_map: NDArray[np.float32], threshold: float) -> Image.Image:
    """The heat map (RGBA) as a layer over the image; transparent where values are low."""
    ratio = heat_ratio(anomaly_map, threshold)
    opacity = np.interp(ratio, _RATIOS, _OPACITIES)[..., None] * 255
    return Image.fromarray(np.concatenate([heat_colours(ratio), opacity.round().astype(np.uint8)], axis=-1))


def heat_ratio(anomaly_map: NDArray[np.float32], threshold: float) -> NDArray[np.float32]:
    """(H, W) map ÷ threshold, 0 … 3; without a threshold, the maximum of the map becomes 3."""
    if not math.isfinite(threshold):
        threshold = float(anomaly_map.max()) / SATURATION
    if threshold <= 0:  # every value above it has the hottest colour
        return np.where(anomaly_map > threshold, SATURATION, 0).astype(np.float32)
    ratio: NDArray[np.float32] = np.clip(anomaly_map / threshold, 0, SATURATION).astype(np.float32)
    return ratio


def contour(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(H, W) closed line around a mask (H, W).

    It runs outside the mask, so that the defect stays visible, and inside where the mask touches the image edge.
    """
    on_edge = np.zeros_like(mask)
    on_edge[[0, -1], :] = mask[[0, -1], :]
    on_edge[:, [0, -1]] = mask[:, [0, -1]]
    return (_grow(mask) & ~mask) | on_edge


def _grow(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The mask (H, W) and its neighbours above, below, left and right."""
    grown = mask.copy()
    grown[1:] |= mask[:-1]
    grown[:-1] |= mask[1:]
    grown[:, 1:] |= mask[:, :-1]
    grown[:, :-1] |= mask[:, 1:]
    return grown


def _resample_max(values: NDArray[Value], height: int, width: int) -> NDArray[Value]:
    """(H, W) → (height, width): the maximum when shrinking, so that no peak is lost; otherwise the nearest value."""
    rows = np.arange(height) * values.shape[0] // height
    columns = np.arange(width) * values.shape[1] // width
    pooled: NDArray[Value] = np.maximum.reduceat(values, rows, axis=0)
    pooled = np.maximum.reduceat(pooled, columns, axis=1)
    return pooled


def _region_mask(inspection: Inspection, height: int, width: int) -> NDArray[np.bool_]:
    """(height, width) mask of the regions of an inspection, at the size of the panel.

    Found before resizing: regions that touch only in the resized map are bounded each by itself.
    """
    bounds = (inspection.threshold, inspection.outline, inspection.map_area, inspection.outline_share)
    mask = region_mask(inspection.anomaly_map, *bounds)
    return _resample_max(mask, height, width)


def _outlined(image: Image.Image, inspection: Inspection, *, thickness: int) -> Image.Image:
    """The image with a line around each region of the map, with a light halo."""
    height, width = image.height, image.width
    mask = _region_mask(inspection, height, width)
    line = contour(mask)
    for _ in range(thickness - 1):
        line = line | (_grow(line) & ~mask)
    halo = _grow(line) & ~line & ~mask

    pixels = np.array(image)
    pixels[halo] = pixels[halo] // 2 + np.array(_HALO, dtype=np.uint8) // 2
    pixels[line] = OUTLINE
    return Image.fromarray(pixels)


def _heated(image: Image.Image, inspection: Inspection) -> Image.Image:
    """The heat map over the image in greyscale."""
    anomaly_map, threshold = inspection.anomaly_map, inspection.threshold
    if image.height > anomaly_map.shape[0] or image.width > anomaly_map.shape[1]:
        size = (image.width, image.height)
        ratio = np.asarray(Image.fromarray(heat_ratio(anomaly_map, threshold)).resize(size, Image.Resampling.BILINEAR))
    else:  # shrink first: same result, without several copies of a large map
        ratio = heat_ratio(_resample_max(anomaly_map, image.height, image.width), threshold)
    grey = _DIMMED * np.asarray(image.convert("L"), dtype=np.float32)[..., None]  # (H, W, 1)
    opacity = np.interp(ratio, _RATIOS, _OPACITIES)[..., None]
    blended = (1 - opacity) * grey + opacity * heat_colours(ratio)
    return Image.fromarray(blended.round().astype(np.uint8))


def _draw_caption(sheet: Image.Image, inspection: Inspection, corner: tuple[int, int], unit: float) -> None:
    """The verdict, below the left panel. The built-in font has only ASCII, with narrow spaces."""
    threshold = inspection.threshold
    if not math.isfinite(threshold):
        words = f"score  {inspection.score:.3g}"
    elif threshold > 0:
        words = f"{inspection.verdict}: {inspection.score / threshold:.2f}x  threshold"
    else:
        words = f"{inspection.verdict}: score  {inspection.score:.3g}"
    position = (corner[0], corner[1] + round(18 * unit))
    ImageDraw.Draw(sheet).text(position, words, fill=_INK, font=_font(unit), anchor="lm")


def _draw_legend(sheet: Image.Image, inspection: Inspection, corner: tuple[int, int], width: int, unit: float) -> None:
    """The colour bar below the right panel, with a tick at the threshold."""
    left, top = corner[0], corner[1] + round(7 * unit)
    bar_height = round(8 * unit)
    ramp = np.linspace(0, SATURATION, width)[None].repeat(bar_height, axis=0)  # (bar_height, width)
    sheet.paste(Image.fromarray(heat_colours(ramp)), (left, top))

    draw, font, line = ImageDraw.Draw(sheet), _font(unit), max(1, round(unit))
    baseline = top + bar_height + round(12 * unit)

    def label(ratio: float, words: str, anchor: str) -> None:
        draw.text((left + ratio / SATURATION * (width - 1), baseline), words, _INK, font, anchor)

    label(0, "0", "ls")
    if not math.isfinite(inspection.threshold):
        label(SATURATION / 2, "not  calibrated", "ms")
        label(SATURATION, "map  maximum", "rs")
        return
    tick = left + round((width - 1) / SATURATION)
    draw.rectangle((tick, top - 3 * line, tick + line - 1, top + bar_height + 2 * line), fill=_INK)
    label(1, "threshold", "ms")
    label(2, "2x", "ms")
    label(SATURATION, "3x  or  more", "rs")


def _font(unit: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=11 * unit)
