"""Label Studio: a JSON list of tasks with rectangles, polygons and brushes in percent of the image."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from patchsvdd.core.errors import DatasetError
from patchsvdd.core.roi import Point
from patchsvdd.images.labels.label_file import Labels, image_name
from patchsvdd.images.labels.run_lengths import pack_brush, unpack_brush
from patchsvdd.images.labels.shapes import (
    KIND,
    Box,
    Brush,
    LabelledImage,
    Polygon,
    Shape,
    Size,
    checked_box,
    checked_kind,
    checked_number,
    checked_ring,
    checked_size,
)

UPLOADED = re.compile(r"^[0-9a-f]{8}-")
"""What Label Studio puts before the name of an uploaded file."""
IMAGE = re.compile(r"\.(png|jpe?g|webp|bmp|tiff?)$", re.IGNORECASE)
GOOD, DEFECT = "good", "defect"
"""Choices for the whole image."""


def is_label_studio(data: Any) -> bool:
    """Whether the content of a JSON file looks like tasks of Label Studio."""
    first = data[0] if isinstance(data, list) and data else None
    return isinstance(first, dict) and isinstance(first.get("data"), dict)


def read_label_studio(
    data: Any, source: str, labels: Labels, on_progress: Callable[[int, int], None] | None = None
) -> None:
    """Add the annotated tasks. An annotation without regions is a good image; predictions are ignored."""
    if not isinstance(data, list):
        raise DatasetError(f"'{source}' is not a list of Label Studio's tasks; export the project as JSON")
    waiting = 0
    for number, task in enumerate(data, start=1):
        try:
            if not isinstance(task, dict):
                raise ValueError("it is not an object")
            name, annotations = _name(task), _annotations(task)
            if annotations:
                labels.add(_labelled(name, annotations, f"{source}: task {number} ({name})", labels), source)
            else:
                waiting += 1
        except ValueError as error:
            labels.problems.append(f"{source}: task {number} cannot be used: {error}")
        if on_progress is not None:
            on_progress(number, len(data))
    if waiting:
        labels.problems.append(f"{source}: {waiting} tasks are not annotated")


def write_label_studio(images: Iterable[LabelledImage]) -> list[dict[str, Any]]:
    """Return labels as Label Studio's tasks; raise ValueError for an image with shapes whose size is not known."""
    tasks = []
    for number, image in enumerate(images, start=1):
        if image.size is None and image.shapes:
            raise ValueError(f"the size of {image.name} is not known")
        result = [_verdict(image)]
        if image.size is not None:
            result += [entry for shape in image.shapes for entry in _results(shape, image.size)]
        result = [{"id": f"{number}-{index}", **entry} for index, entry in enumerate(result)]
        annotation = {"id": number, "result": result, "was_cancelled": False, "ground_truth": False}
        tasks.append({"id": number, "data": {"image": image.name}, "annotations": [annotation], "predictions": []})
    return tasks


def _name(task: dict[str, Any]) -> str:
    """The name of a task's image."""
    uploaded, data = task.get("file_upload"), task.get("data")
    if isinstance(uploaded, str) and uploaded.strip():
        return UPLOADED.sub("", image_name(uploaded).rpartition("/")[2])
    if not isinstance(data, dict):
        raise ValueError("it has no data")
    texts = [value for value in data.values() if isinstance(value, str) and IMAGE.search(value.strip())]
    name = image_name(data.get("image") or (texts[0] if texts else None))
    if "upload/" in name:  # /data/upload/PROJECT/1a2b3c4d-image.png
        return UPLOADED.sub("", name.rpartition("/")[2])
    return name


def _annotations(task: dict[str, Any]) -> list[dict[str, Any]]:
    """A task's annotations that were not cancelled; older exports call them completions."""
    found = task.get("annotations", task.get("completions")) or []
    if not isinstance(found, list):
        raise ValueError("its annotations are not a list")
    return [one for one in found if isinstance(one, dict) and not one.get("was_cancelled")]


def _labelled(name: str, annotations: Sequence[dict[str, Any]], place: str, labels: Labels) -> LabelledImage:
    """The image of a task, from the annotation that was changed last."""
    if len(annotations) > 1:
        labels.problems.append(f"{place} has {len(annotations)} annotations; the latest is used")
    latest = max(enumerate(annotations), key=lambda one: (str(one[1].get("updated_at") or ""), one[0]))[1]
    results = latest.get("result") or []
    if not isinstance(results, list):
        raise ValueError("the result of its annotation is not a list")
    size: Size | None = None
    shapes: list[Shape] = []
    is_defect = False
    for number, entry in enumerate(results, start=1):
        try:
            if not isinstance(entry, dict) or not isinstance(entry.get("value"), dict):
                raise ValueError("it is not an object with a value")
            if entry.get("original_height") is not None:
                shown = checked_size(entry.get("original_height"), entry.get("original_width"))
                if size is not None and shown != size:
                    raise ValueError("it is of an image of another size")
                size = shown
            if entry.get("type") == "choices":
                is_defect |= DEFECT in (entry["value"].get("choices") or ())
                continue
            is_defect = True
            shapes.append(_shape(entry, size))
            if isinstance(shapes[-1], Brush):
                labels.spend(size, place)
        except (ValueError, TypeError) as error:
            labels.problems.append(f"{place}: region {number} was skipped: {error}")
    return LabelledImage(name, size, tuple(shapes), is_defect)


def _shape(entry: dict[str, Any], size: Size | None) -> Shape:
    """The shape of a region; raise ValueError with what is wrong with it."""
    form, value = str(entry.get("type")).lower(), entry["value"]
    if form not in ("rectanglelabels", "polygonlabels", "brushlabels"):
        raise ValueError(f"its type {form[:40]} is not supported; use rectangles, polygons or brushes with labels")
    if size is None:
        raise ValueError("it has no original_width and original_height")
    names = value.get(form) or [KIND]
    kind = checked_kind(names[0] if isinstance(names, list) else names)
    if form == "brushlabels":
        packed = value.get("rle")
        if value.get("format") != "rle" or not isinstance(packed, list):
            raise ValueError("its brush is not stored as run lengths")
        return Brush.of(unpack_brush(packed, size), kind)
    if form == "polygonlabels":
        points = value.get("points")
        if not isinstance(points, list) or not all(isinstance(point, list) and len(point) == 2 for point in points):
            raise ValueError("its points are not pairs of numbers")
        return Polygon((checked_ring([_pixels(x, y, size) for x, y in points], size),), kind)
    left, top = _pixels(value.get("x"), value.get("y"), size)
    width, height = _pixels(value.get("width"), value.get("height"), size)
    turn = math.radians(checked_number(value.get("rotation") or 0))
    if turn == 0:
        return checked_box(left, top, left + width, top + height, kind, size)
    # Label Studio turns a rectangle around its top left corner.
    right, down = (math.cos(turn), math.sin(turn)), (-math.sin(turn), math.cos(turn))
    corners = [
        (left + a * width * right[0] + b * height * down[0], top + a * width * right[1] + b * height * down[1])
        for a, b in ((0, 0), (1, 0), (1, 1), (0, 1))
    ]
    return Polygon((checked_ring(corners, size),), kind)


def _pixels(x: object, y: object, size: Size) -> Point:
    """Percents of the image in pixels, to a millionth, so that whole pixels stay whole."""
    return round(checked_number(x) * size[1] / 100, 6), round(checked_number(y) * size[0] / 100, 6)


def _verdict(image: LabelledImage) -> dict[str, Any]:
    """The choice for the whole image."""
    size = {} if image.size is None else {"original_height": image.size[0], "original_width": image.size[1]}
    choice = {"choices": [DEFECT if image.is_defect else GOOD]}
    return {"type": "choices", "from_name": "verdict", "to_name": "image", "value": choice, **size}


def _results(shape: Shape, size: Size) -> list[dict[str, Any]]:
    """The regions of a shape: one for each ring of a polygon."""
    height, width = size
    whole = {"original_height": height, "original_width": width, "image_rotation": 0, "to_name": "image"}
    if isinstance(shape, Brush):
        value: dict[str, Any] = {"format": "rle", "rle": pack_brush(shape.mask(size)), "brushlabels": [shape.kind]}
        return [{"type": "brushlabels", "from_name": "brush", "value": value, **whole}]
    if isinstance(shape, Box):
        sides = {
            **{"x": 100 * shape.left / width, "y": 100 * shape.top / height},
            **{"width": 100 * (shape.right - shape.left) / width, "height": 100 * (shape.bottom - shape.top) / height},
        }
        value = {**sides, "rotation": 0, "rectanglelabels": [shape.kind]}
        return [{"type": "rectanglelabels", "from_name": "rectangle", "value": value, **whole}]
    return [
        {
            "type": "polygonlabels",
            "from_name": "polygon",
            "value": {
                "points": [[100 * x / width, 100 * y / height] for x, y in ring],
                "closed": True,
                "polygonlabels": [shape.kind],
            },
            **whole,
        }
        for ring in shape.rings
    ]
