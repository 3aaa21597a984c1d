"""LabelMe: one JSON file per image, with polygons, rectangles, circles and masks."""

from __future__ import annotations

import base64
import binascii
import io
import math
import posixpath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from patchsvdd.core.roi import Point
from patchsvdd.images.decoding import DECODING_ERRORS, open_image
from patchsvdd.images.labels.label_file import Labels, entries, image_name
from patchsvdd.images.labels.shapes import (
    Box,
    Brush,
    LabelledImage,
    Polygon,
    Shape,
    Size,
    checked_box,
    checked_kind,
    checked_point,
    checked_ring,
    checked_size,
)

VERSION = "5.5.0"
"""Version of LabelMe whose files these are."""
DEFECT = "defect"
"""Flag of an image that has a defect."""
FLATTEST = 0.05
"""Largest distance in pixels between a circle and the polygon that stands for it."""


def is_labelme(data: Any) -> bool:
    """Whether the content of a JSON file looks like LabelMe's."""
    return isinstance(data, dict) and "shapes" in data and "imagePath" in data


def read_labelme(data: Any, source: str, labels: Labels, folder: str = "") -> None:
    """Add the image of a LabelMe file in ``folder``. Without shapes it is good; broken shapes are reported."""
    try:
        name = image_name(_from(folder, data["imagePath"]))
        size = None
        if data.get("imageHeight") is not None or data.get("imageWidth") is not None:
            size = checked_size(data.get("imageHeight"), data.get("imageWidth"))
    except ValueError as error:
        labels.problems.append(f"{source}: the image cannot be used: {error}")
        return
    shapes: list[Shape] = []
    marked = entries(data, "shapes", source)
    for number, entry in enumerate(marked, start=1):
        try:
            shapes.append(_shape(entry, size))
            if isinstance(shapes[-1], Brush):
                labels.spend(shapes[-1].pixels.size, source)
        except ValueError as error:
            labels.problems.append(f"{source}: shape {number} was skipped: {error}")
    flags = data.get("flags")
    flagged = isinstance(flags, dict) and flags.get(DEFECT) is True
    labels.add(LabelledImage(name, size, tuple(shapes), bool(marked) or flagged), source)


def write_labelme(image: LabelledImage) -> dict[str, Any]:
    """Return the labels of one image as LabelMe's file has them, for a file in the folder of the image."""
    return {
        "version": VERSION,
        "flags": {DEFECT: True} if image.is_defect else {},
        "shapes": [entry for shape in image.shapes for entry in _entries(shape)],
        "imagePath": image.name.rpartition("/")[2],
        "imageData": None,
        "imageHeight": None if image.size is None else image.size[0],
        "imageWidth": None if image.size is None else image.size[1],
    }


def _from(folder: str, path: object) -> object:
    """A path that is relative to a folder, with its folder; other paths as they are."""
    if not isinstance(path, str) or not path.strip():
        return path
    shown = path.strip().replace("\\", "/")
    return posixpath.normpath(posixpath.join(folder, shown))


def _shape(entry: Any, size: Size | None) -> Shape:
    """The shape of an entry; raise ValueError with what is wrong with it."""
    if not isinstance(entry, dict):
        raise ValueError("it is not an object")
    kind, form, points = checked_kind(entry.get("label")), entry.get("shape_type", "polygon"), entry.get("points")
    if not isinstance(points, list):
        raise ValueError("it has no points")
    if form == "polygon" or (form == "rectangle" and len(points) == 4):
        return Polygon((checked_ring(points, size),), kind)
    if form not in ("rectangle", "circle", "mask"):
        raise ValueError(f"its type {str(form)[:40]} is not an area; draw a polygon, rectangle, circle or mask")
    if len(points) != 2:
        raise ValueError(f"a {form} needs 2 points; it has {len(points)}")
    first, second = (checked_point(point) for point in points)
    if form == "rectangle":
        return checked_box(*first, *second, kind, size)
    if form == "circle":
        return Polygon((checked_ring(_circle(first, math.dist(first, second)), size),), kind)
    return _brush(entry.get("mask"), first, second, kind, size)


def _circle(centre: Point, radius: float) -> list[Point]:
    """The points of a circle, close enough together that no chord is far from it."""
    if radius == 0:
        raise ValueError("its circle has no area")
    angle = math.acos(max(0.0, 1 - FLATTEST / radius))
    number = max(8, math.ceil(math.pi / angle))
    turns = (2 * math.pi * index / number for index in range(number))
    return [(centre[0] + radius * math.cos(turn), centre[1] + radius * math.sin(turn)) for turn in turns]


def _brush(text: Any, first: Point, last: Point, kind: str, size: Size | None) -> Brush:
    """A mask: a PNG in base 64 that reaches from the first pixel to the last, both included."""
    left, top = round(first[0]), round(first[1])
    height, width = checked_size(round(last[1]) - top + 1, round(last[0]) - left + 1)
    if size is not None and not (0 <= left <= left + width <= size[1] and 0 <= top <= top + height <= size[0]):
        raise ValueError(f"its mask reaches out of the image of {size[1]} x {size[0]} pixels")
    try:
        with open_image(io.BytesIO(base64.b64decode(text, validate=True))) as picture:
            if picture.size != (width, height):
                shown = f"{picture.width} x {picture.height}"
                raise ValueError(f"its mask has {shown} pixels, and its points {width} x {height}")
            grey = np.asarray(picture.convert("L"))
    except (TypeError, binascii.Error):
        raise ValueError("its mask is not in base 64") from None
    except DECODING_ERRORS as error:
        if type(error) is ValueError:
            raise
        raise ValueError("its mask is not a PNG image") from None
    return Brush.of(grey > (128 if grey.max() > 1 else 0), kind, (left, top))


def _entries(shape: Shape) -> list[dict[str, Any]]:
    """The entries of a shape: one for each ring of a polygon."""
    rest: dict[str, Any] = {"label": shape.kind, "group_id": None, "description": "", "flags": {}, "mask": None}
    if isinstance(shape, Box):
        corners = [[shape.left, shape.top], [shape.right, shape.bottom]]
        return [rest | {"points": corners, "shape_type": "rectangle"}]
    if isinstance(shape, Polygon):
        return [rest | {"points": [list(point) for point in ring], "shape_type": "polygon"} for ring in shape.rings]
    height, width = shape.pixels.size
    corners = [[shape.left, shape.top], [shape.left + width - 1, shape.top + height - 1]]
    return [rest | {"points": corners, "shape_type": "mask", "mask": _png(shape.pixels.mask)}]


def _png(mask: NDArray[np.bool_]) -> str:
    file = io.BytesIO()
    Image.fromarray(mask.astype(np.uint8)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")
