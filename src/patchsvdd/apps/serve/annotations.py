"""Drawn defects of inspections: store them, import them from files of labels, and rasterise them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patchsvdd.apps.serve.audit_chain import Actor
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.responses import as_time
from patchsvdd.apps.serve.store import Row, Store
from patchsvdd.core.errors import DatasetError
from patchsvdd.images.labels.drawing import shapes_from_json, shapes_to_json
from patchsvdd.images.labels.files import parse_labels
from patchsvdd.images.labels.label_file import Labels, parse_json
from patchsvdd.images.labels.shapes import LabelledImage, Size, mask_of

GOOD_REVIEWS = ("false_alarm", "confirmed_good")
SHOWN = 100
"""Problems of an import that are listed."""
MOST_SUFFIXES = 4
"""Last parts of a label's name that are looked up: the image, with up to three folders."""
MOST_PIXELS = 500_000_000
"""Pixels of all masks in a file to import; its answer must not be long in coming."""
SUGGESTED = 30
"""Kinds that are suggested."""


def annotation_answer(store: Store, number: str, annotation: Row | None) -> dict[str, Any]:
    """The response for an inspection's annotation."""
    found = annotation if annotation is not None and annotation["shapes"] else None
    return {
        "inspection": number,
        "shapes": found["shapes"] if found else [],
        "at": as_time(found["at"]) if found else None,
        "by": found["by"] if found else None,
        "kinds": store.annotated_kinds()[:SUGGESTED],
    }


def annotate(store: Store, number: str, drawing: Sequence[Any], by: Actor) -> Row:
    """Store a drawing on an inspection's image and return the annotation; raises Problem if it cannot be used."""
    row = store.inspection(number)
    if drawing and row["review"] in GOOD_REVIEWS:
        words = "the part was reviewed as good, so there is no defect to mark; withdraw the review first"
        raise Problem("conflict", words)
    try:
        shapes = shapes_from_json(drawing, size_of(row))
    except ValueError as error:
        raise Problem("invalid-request", str(error)) from None
    return _stored(store, number, shapes_to_json(shapes), by)


def annotation_mask(inspection: Row, annotation: Row) -> NDArray[np.bool_]:
    """Return (H, W): the pixels that an annotation marks, at the size of the inspection's image."""
    size = size_of(inspection)
    return mask_of(shapes_from_json(annotation["shapes"], size), size)


def labelled_image(inspection: Row, annotation: Row | None, name: str | None = None) -> LabelledImage | None:
    """What people said about an inspection's image; None if nobody has decided yet."""
    review = inspection["review"]
    is_good = review in GOOD_REVIEWS
    if not is_good and review != "true_defect" and annotation is None:
        return None
    size = size_of(inspection)
    shapes = () if annotation is None or is_good else shapes_from_json(annotation["shapes"], size)
    return LabelledImage(name or inspection["name"], size, shapes, not is_good)


def size_of(inspection: Row) -> Size:
    """(height, width) of an inspection's image."""
    return int(inspection["height"]), int(inspection["width"])


def import_labels(store: Store, data: bytes, source: str, model: str | None, by: Actor) -> dict[str, Any]:
    """Store the shapes of a file of labels on the inspections whose images have its names."""
    labels = Labels(most_pixels=MOST_PIXELS)
    try:
        parse_labels(parse_json(data, source), source, labels)
    except DatasetError as error:
        raise Problem("invalid-request", str(error)) from None
    problems, annotated = list(labels.problems), 0
    marked = [image for image in labels.images if image.shapes]
    for image, row in _matched(store, marked, model, problems):
        reason = _why_not(image, row)
        if reason is None:
            try:
                shapes = shapes_to_json(shapes_from_json(shapes_to_json(image.shapes), size_of(row)))
                _stored(store, row["id"], shapes, by)
                annotated += 1
                continue
            except ValueError as error:
                reason = str(error)
        problems.append(f"{image.name}: {reason}")
    return {
        "format": labels.formats[0],
        "images": len(labels.images),
        "annotated": annotated,
        "without_shapes": len(labels.images) - len(marked),
        "problems": problems[:SHOWN],
        "more_problems": max(0, len(problems) - SHOWN),
    }


def _stored(store: Store, number: str, shapes: Sequence[Mapping[str, Any]], by: Actor) -> Row:
    annotation = store.annotate(number, shapes, by)
    if annotation is None:
        raise Problem("not-found", f"there is no inspection {number}, or it was deleted")
    return annotation


def _why_not(image: LabelledImage, row: Row) -> str | None:
    """Why the shapes of an image cannot be stored; None if they can."""
    height, width = size_of(row)
    if image.size not in (None, (height, width)):
        shown = image.size or (0, 0)
        return f"it was labelled at {shown[1]} x {shown[0]} pixels, and the inspected image has {width} x {height}"
    return "it was reviewed as good" if row["review"] in GOOD_REVIEWS else None


def _matched(
    store: Store, images: Sequence[LabelledImage], model: str | None, problems: list[str]
) -> list[tuple[LabelledImage, Row]]:
    """Each image with the one inspection of its name; other images are added to ``problems``."""
    endings = {image.name: _endings(image.name) for image in images}
    by_name: dict[str, list[Row]] = defaultdict(list)
    for row in store.inspections_named(sorted({one for some in endings.values() for one in some}), model):
        by_name[row["name"]].append(row)
    pairs = []
    for image in images:
        rows = next((by_name[one] for one in endings[image.name] if one in by_name), [])
        if len(rows) == 1:
            pairs.append((image, rows[0]))
        elif rows:
            problems.append(f"{image.name}: {len(rows)} inspections have this name; its labels are not used")
        else:
            problems.append(f"{image.name}: no inspection has this name; its labels are not used")
    return pairs


def _endings(name: str) -> list[str]:
    """The name with all its folders, with fewer, and without."""
    parts = name.split("/")[-MOST_SUFFIXES:]
    return [name, *("/".join(parts[start:]) for start in range(len(parts)) if "/".join(parts[start:]) != name)]
