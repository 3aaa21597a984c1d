"""Labels of inspections, from reviews and drawings, as files of labelling tools."""

from __future__ import annotations

import io
import zipfile
from pathlib import PurePosixPath
from typing import Literal

from patchsvdd.apps.serve.annotations import labelled_image
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.reports.rows import pages
from patchsvdd.apps.serve.store import Filter, Store
from patchsvdd.images.labels.coco import write_coco
from patchsvdd.images.labels.files import to_bytes
from patchsvdd.images.labels.label_file import image_name
from patchsvdd.images.labels.label_studio import write_label_studio
from patchsvdd.images.labels.labelme import write_labelme
from patchsvdd.images.labels.shapes import LabelledImage

LabelFormat = Literal["coco", "labelme", "label-studio"]
MOST = 5000
"""Images in one file."""
MOST_BYTES = 200_000_000
"""Bytes of all drawings in one file, before they are written."""
COLUMNS = ("id", "name", "width", "height", "review")


def labels_file(store: Store, where: Filter, to: LabelFormat) -> bytes:
    """The labels of a filter's decided inspections: JSON, or for LabelMe a ZIP with one file per image."""
    images = labelled_images(store, where)
    if to == "coco":
        return to_bytes(write_coco(images))
    if to == "label-studio":
        return to_bytes(write_label_studio(images))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for image in images:
            path = PurePosixPath(image.name).with_suffix(".json")
            archive.writestr(str(path), to_bytes(write_labelme(image)))
    return file.getvalue()


def labelled_images(store: Store, where: Filter) -> list[LabelledImage]:
    """The images of a filter that are reviewed as good or defective, or drawn on, newest first.

    Of several images with one name, all but the newest have the inspection's id as a folder. Raises Problem if there
    are too many.
    """
    images: list[LabelledImage] = []
    stems: set[PurePosixPath] = set()
    size = 0
    for rows in pages(store, where, 500, columns=COLUMNS):
        drawn = store.annotations_of([row["id"] for row in rows])
        for row in rows:
            annotation = drawn.get(row["id"])
            name = _name(row["name"], row["id"])
            if PurePosixPath(name).with_suffix("") in stems:
                name = f"{row['id']}/{name}"
            image = labelled_image(row, annotation, name)
            if image is None:
                continue
            stems.add(PurePosixPath(name).with_suffix(""))
            images.append(image)
            size += 100 if annotation is None else len(str(annotation["shapes"]))
            if len(images) > MOST or size > MOST_BYTES:
                words = (
                    f"the filter has more than {MOST:,} labelled images, or too large drawings; choose a shorter period"
                )
                raise Problem("conflict", words)
    return images


def _name(name: str, number: str) -> str:
    """The name of an inspection's image as a path inside of a folder; the id if the client sent none."""
    try:
        return image_name(name)
    except ValueError:
        return f"{number}.png"
