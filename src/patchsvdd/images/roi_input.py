"""Read a region of interest from a mask, a polygon file or command-line text."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from patchsvdd.core.errors import ConfigError, DatasetError, ImageError
from patchsvdd.core.roi import Polygon, Roi, polygon_mask
from patchsvdd.images.decoding import Pixels, check_size, read_file
from patchsvdd.images.image_set import ImageLike, decoded

RoiLike: TypeAlias = "Roi | str | os.PathLike[str] | NDArray[Any] | Sequence[Polygon]"
"""A mask (file or array (H, W)), polygons of (x, y) in pixels (.json file or list), or text: "x,y x,y x,y" per polygon,
separated by ";". Two points are opposite corners of a box."""
EXPECTED = 'a mask image, a .json file of polygons, or points like "40,30 200,30 200,180" (";" between polygons)'


def roi_for(region: RoiLike, images: Iterable[tuple[str, ImageLike]]) -> Roi:
    """Region of interest for images of the first readable one's size; its mean colour inside fills the outside."""
    if isinstance(region, Roi):
        return region
    name, first = _first_image(images)
    size = (first.shape[0], first.shape[1])
    mask = _mask(region, size)
    roi = Roi.of(mask)
    if not roi.fits(size):
        raise ConfigError(
            f"`roi` is a mask of {mask.shape[1]}x{mask.shape[0]} pixels and {name} has {size[1]}x{size[0]}; "
            f"draw the mask on one of the images"
        )
    red, green, blue = (int(value) for value in first[roi.at(size).mask].mean(0).round())
    return Roi.of(mask, (red, green, blue))


def _first_image(images: Iterable[tuple[str, ImageLike]]) -> tuple[str, Pixels]:
    """Name and pixels, unresized, of the first readable image."""
    problems: list[ImageError] = []
    for name, image in images:
        try:
            pixels = decoded(image, name)
            check_size(pixels, name)
            return name, pixels
        except ImageError as error:
            problems.append(error)
    reason = f" ({problems[0]})" if problems else ""
    raise DatasetError(f"no usable image to apply the region of interest to{reason}; check the images")


def _mask(region: RoiLike, size: tuple[int, int]) -> NDArray[np.bool_]:
    """(H, W) bool: any size for a mask, the images' size for polygons."""
    if isinstance(region, np.ndarray):
        if region.ndim != 2:
            raise ConfigError(f"a region of interest is a mask (height, width); got an array of shape {region.shape}")
        return np.asarray(region > 0)
    if isinstance(region, str | os.PathLike):
        text = os.fspath(region)
        path = Path(text)
        if not path.exists() and "," in text:
            return polygon_mask([_points(polygon.split(), text) for polygon in text.split(";")], size)
        if path.suffix.lower() == ".json" and path.is_file():
            return polygon_mask(_polygons_from_json(path), size)
        try:
            pixels = read_file(path, text)
        except ImageError as error:
            raise ConfigError(f"`roi` must be {EXPECTED}; {error}") from None
        grey = pixels.max(2)
        return np.asarray(grey > (128 if grey.max() > 1 else 0))
    return polygon_mask([_points(polygon, region) for polygon in region], size)  # type: ignore[union-attr]


def _polygons_from_json(path: Path) -> list[list[tuple[float, float]]]:
    """Polygons of a JSON file: a list of them, an object with "polygons", or LabelMe's "shapes"."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"`roi={path}` cannot be read as JSON ({error}); give {EXPECTED}") from None
    if isinstance(data, dict):
        shapes = data.get("shapes")
        from_labelme = [_shape_points(shape, path) for shape in shapes] if isinstance(shapes, list) else None
        data = data.get("polygons") if from_labelme is None else from_labelme
    if not isinstance(data, list) or not data:
        raise ConfigError(f'`roi={path}` holds no polygons; give [[[x, y], …], …] or {{"polygons": [[[x, y], …], …]}}')
    return [_points(polygon, path) for polygon in data]


def _shape_points(shape: Any, path: Path) -> Any:
    kind = shape.get("shape_type", "polygon") if isinstance(shape, dict) else None
    if kind not in ("polygon", "rectangle"):
        raise ConfigError(f"`roi={path}` holds a shape that is not a polygon or rectangle ({kind}); draw polygons")
    return shape.get("points")


def _points(points: Any, source: object) -> list[tuple[float, float]]:
    """Parse at least two points, from pairs of numbers or texts "x,y"."""
    try:
        pairs = [point.split(",") if isinstance(point, str) else point for point in points]
        parsed = [(float(x), float(y)) for x, y in pairs]
    except (TypeError, ValueError):
        parsed = []
    if len(parsed) < 2 or not np.isfinite(parsed).all():
        raise ConfigError(f"`roi` must be {EXPECTED}; got '{source}'")
    return parsed
