"""The setting ``image_size``: its values, and the settings that depend on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from patchsvdd.core.errors import ConfigError
from patchsvdd.core.placement import Fit

MAX_PIXELS = 128_000_000
"""Larger images are refused before they are decoded or resized."""
AUTO = "auto"
"""``image_size`` that is chosen from the good images."""
AUTO_CANVAS = (256, 256)
"""Canvas of ``AUTO`` until the images are known."""


def size_settings(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that follow from a given ``image_size``, unless they are given too."""
    given = {name: value for name, value in changes.items() if name in ("fit", "pixel_scale", "auto_size")}
    if changes["image_size"] == AUTO:
        return {"fit": "letterbox", "pixel_scale": None, **given, "image_size": AUTO_CANVAS, "auto_size": True}
    size = parse_image_size(changes["image_size"])
    return {"fit": "stretch", "pixel_scale": None, "auto_size": False, **given, "image_size": size}


def parse_image_size(size: str | int | tuple[int, int]) -> tuple[int, int] | None:
    """Parse 256, "256", "336x448" (width × height) or a (height, width) pair to (height, width); None for "native".

    "auto" has no size before the images are known; ``size_settings`` accepts it.
    """
    if isinstance(size, int):
        return (size, size)
    if isinstance(size, str):
        if size == "native":
            return None
        parts = size.lower().replace("×", "x").split("x")
        if len(parts) > 2 or not all(part.strip().isdecimal() for part in parts):
            raise ConfigError(f"`image_size` must be auto, 256, 336x448 (width x height) or native; got '{size}'")
        return (int(parts[-1]), int(parts[0]))
    if len(size) != 2:
        raise ConfigError(f"`image_size` must be a (height, width) pair; got {tuple(size)}")
    height, width = size
    return (int(height), int(width))


def check_image_size(
    size: tuple[int, int] | None,
    largest_patch: int,
    *,
    fit: Fit,
    pixel_scale: float | None,
    auto_size: bool,
    smallest_defect: float | None,
) -> None:
    """Raise ConfigError for an image size, or a setting that depends on it, that cannot work."""
    if size is not None:
        given = f"`image_size={size[1]}x{size[0]}`"
        if min(size) < largest_patch:
            raise ConfigError(
                f"{given} is smaller than the largest patch ({largest_patch} px); use at least "
                f"{largest_patch}x{largest_patch}"
            )
        if size[0] * size[1] > MAX_PIXELS:
            raise ConfigError(f"{given} has more than {MAX_PIXELS // 1_000_000} million pixels; use a smaller one")
    if pixel_scale is not None and not 0 < pixel_scale < math.inf:
        raise ConfigError(f"`pixel_scale` must be above 0; got {pixel_scale}")
    if auto_size and (size != AUTO_CANVAS or fit != "letterbox" or pixel_scale is not None):
        raise ConfigError("`image_size=auto` also chooses `fit` and `pixel_scale`; to set them, give an `image_size`")
    if smallest_defect is None:
        return
    if not 0 < smallest_defect < math.inf:
        raise ConfigError(f"`smallest_defect` must be above 0 pixels; got {smallest_defect}")
    if not auto_size:
        raise ConfigError(
            "`smallest_defect` chooses the image size; use it with `image_size=auto`, or set a size yourself"
        )
