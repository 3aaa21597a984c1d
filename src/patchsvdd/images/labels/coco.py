"""COCO instances: polygons, run lengths and boxes of many images in one JSON file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from patchsvdd.core.version import __version__
from patchsvdd.images.labels.label_file import Labels, entries, image_name
from patchsvdd.images.labels.run_lengths import counts_from_text, counts_of, counts_to_text, mask_from_counts
from patchsvdd.images.labels.shapes import (
    KIND,
    Box,
    Brush,
    LabelledImage,
    Polygon,
    Shape,
    Size,
    bounds,
    checked_box,
    checked_kind,
    checked_number,
    checked_ring,
    checked_size,
)

DEFECT = "defect"
"""Value of "verdict" in an image that has a defect, but no shapes. COCO has no field for that; its tools ignore it."""


def is_coco(data: Any) -> bool:
    """Whether the content of a JSON file looks like COCO instances."""
    return isinstance(data, dict) and "images" in data and ("annotations" in data or "categories" in data)


def read_coco(data: Any, source: str, labels: Labels, on_progress: Callable[[int, int], None] | None = None) -> None:
    """Add the images of COCO instances. Those without annotations are good; broken entries are reported."""
    names = _categories(entries(data, "categories", source), source, labels)
    annotations: dict[object, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for index, one in enumerate(entries(data, "annotations", source), start=1):
        if isinstance(one, dict):
            annotations[_key(one.get("image_id"))].append((index, one))
        else:
            labels.problems.append(f"{source}: annotation {index} is not an object")
    images = entries(data, "images", source)
    for number, entry in enumerate(images, start=1):
        try:
            if not isinstance(entry, dict):
                raise ValueError("it is not an object")
            name = image_name(entry.get("file_name"))
            size = None
            if entry.get("height") is not None or entry.get("width") is not None:
                size = checked_size(entry.get("height"), entry.get("width"))
        except ValueError as error:
            labels.problems.append(f"{source}: image {number} cannot be used: {error}")
            annotations.pop(_key(entry.get("id")) if isinstance(entry, dict) else None, None)
            continue
        marked = annotations.pop(_key(entry.get("id")), [])
        shapes: list[Shape] = []
        for index, one in marked:
            try:
                shapes.append(_shape(one, size, names))
                if isinstance(shapes[-1], Brush):
                    labels.spend(_size_of_mask(one), source)
            except ValueError as error:
                labels.problems.append(f"{source}: annotation {index} ({name}) was skipped: {error}")
        # An image whose annotations are all broken is not a good one.
        labels.add(LabelledImage(name, size, tuple(shapes), bool(marked) or entry.get("verdict") == DEFECT), source)
        if on_progress is not None:
            on_progress(number, len(images))
    for key, left in annotations.items():
        labels.problems.append(f"{source}: {len(left)} annotations are of image {key}, which is not in the file")


def write_coco(images: Iterable[LabelledImage]) -> dict[str, Any]:
    """Return labels as COCO instances; raise ValueError for an image whose size is not known."""
    found = list(images)
    kinds = sorted({kind for image in found for kind in image.kinds}) or [KIND]
    category = {kind: number for number, kind in enumerate(kinds, start=1)}
    entries_: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, image in enumerate(found, start=1):
        if image.size is None:
            raise ValueError(f"the size of {image.name} is not known")
        height, width = image.size
        entry = {"id": number, "file_name": image.name, "width": width, "height": height}
        entries_.append(entry | ({"verdict": DEFECT} if image.is_defect and not image.shapes else {}))
        for shape in image.shapes:
            own = {"id": len(annotations) + 1, "image_id": number, "category_id": category[shape.kind], "iscrowd": 0}
            annotations.append(own | _region(shape, image.size))
    return {
        "info": {"description": f"Labels written by patchsvdd {__version__}"},
        "images": entries_,
        "annotations": annotations,
        "categories": [{"id": number, "name": kind, "supercategory": KIND} for kind, number in category.items()],
    }


def _key(identity: object) -> object:
    """An id as a key of a dictionary."""
    return identity if isinstance(identity, int | str) else None


def _categories(found: Iterable[Any], source: str, labels: Labels) -> dict[object, str]:
    names: dict[object, str] = {}
    for number, entry in enumerate(found, start=1):
        try:
            names[_key(entry["id"])] = checked_kind(entry["name"])
        except (KeyError, TypeError, ValueError) as error:
            reason = error if type(error) is ValueError else "it has no id or no name"
            labels.problems.append(f"{source}: category {number} cannot be used: {reason}")
    return names


def _shape(entry: dict[str, Any], size: Size | None, names: dict[object, str]) -> Shape:
    """The shape of an annotation; raise ValueError with what is wrong with it."""
    kind = names.get(_key(entry.get("category_id")), KIND)
    region, box = entry.get("segmentation"), entry.get("bbox")
    if isinstance(region, dict):
        return _brush(region, size, kind)
    if isinstance(region, list) and region:
        flat = region if isinstance(region[0], list) else [region]
        rings = tuple(_ring(one, size) for one in flat)
        return _as_box(rings, kind) or Polygon(rings, kind)
    if region:
        raise ValueError("its segmentation is neither polygons nor run lengths")
    if not isinstance(box, list) or len(box) != 4:
        raise ValueError("it has neither a segmentation nor a box")
    left, top, width, height = (checked_number(value) for value in box)
    return checked_box(left, top, left + width, top + height, kind, size)


def _size_of_mask(entry: dict[str, Any]) -> Size:
    """The size of run lengths that were read."""
    height, width = entry["segmentation"]["size"]
    return int(height), int(width)


def _brush(region: dict[str, Any], size: Size | None, kind: str) -> Brush:
    own = region.get("size")
    if not isinstance(own, list) or len(own) != 2:
        raise ValueError("its run lengths have no size")
    shown = checked_size(*own)
    if size is not None and shown != size:
        raise ValueError(f"its mask has {shown[1]} x {shown[0]} pixels, and the image {size[1]} x {size[0]}")
    counts = region.get("counts")
    if isinstance(counts, str):
        counts = counts_from_text(counts)
    if not isinstance(counts, list):
        raise ValueError("its run lengths have no counts")
    return Brush.of(mask_from_counts(counts, shown), kind)


def _ring(flat: Any, size: Size | None) -> tuple[tuple[float, float], ...]:
    if not isinstance(flat, list) or len(flat) % 2:
        raise ValueError("a polygon is not a list of x, y, x, y, …")
    return checked_ring(list(zip(flat[::2], flat[1::2], strict=True)), size)


def _as_box(rings: tuple[tuple[tuple[float, float], ...], ...], kind: str) -> Box | None:
    """The box that a polygon is; None if it is another shape."""
    if len(rings) != 1 or len(rings[0]) != 4:
        return None
    xs, ys = zip(*rings[0], strict=True)
    box = Box(min(xs), min(ys), max(xs), max(ys), kind)
    return box if rings[0] == box.corners and box.left < box.right and box.top < box.bottom else None


def _region(shape: Shape, size: Size) -> dict[str, Any]:
    """Segmentation, area and box of a shape."""
    mask = shape.mask(size)
    left, top, right, bottom = bounds(mask)
    region: Any
    if isinstance(shape, Brush):
        region = {"size": list(size), "counts": counts_to_text(counts_of(mask))}
    else:
        rings = (shape.corners,) if isinstance(shape, Box) else shape.rings
        region = [[value for point in ring for value in point] for ring in rings]
    box: list[float] = [left, top, right - left, bottom - top]
    if isinstance(shape, Box):
        box = [shape.left, shape.top, shape.right - shape.left, shape.bottom - shape.top]
    return {"segmentation": region, "area": int(mask.sum()), "bbox": box}
