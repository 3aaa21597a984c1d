"""Finds images of confirmed defects, their kinds and their masks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from patchsvdd.core.errors import DatasetError, ImageError
from patchsvdd.images.image_files import find_images
from patchsvdd.images.labels.shapes import KIND
from patchsvdd.images.mvtec_layout import GOOD


@dataclass(frozen=True)
class DefectExample:
    """An image of a confirmed defect."""

    name: str
    file: Path
    kind: str
    mask: Path | None = None
    """White where the defect is; None if nobody marked it."""


def find_defect_examples(
    source: Path, kind: str | None = None, masks: Path | None = None
) -> tuple[list[DefectExample], list[ImageError]]:
    """Find the images of a folder of defects, or one image; also return the errors for files that are no images.

    The folder of an image below ``source`` names its kind, unless ``kind`` does. ``masks`` is a folder of masks with
    the same folders and names (scratch/000.png ↔ scratch/000_mask.png or scratch/000.png), or the mask of one image.
    """
    if kind is not None and not kind.strip():
        raise DatasetError("the name of a kind of defect is empty; give one such as 'scratch'")
    if source.is_file():
        one = masks if masks is None or masks.is_file() else _find_masks(masks).get((".", source.stem))
        return [DefectExample(source.name, source, kind or KIND, one)], []
    if not source.is_dir():
        raise DatasetError(f"there is no file or folder '{source}'; check the path")
    if (source / GOOD).is_dir():
        raise DatasetError(
            f"'{source}' contains a folder '{GOOD}'; only images with confirmed defects can be taught: give a folder "
            f"of them, or of one folder for each kind"
        )
    files, broken = find_images(source)
    if not files:
        problem = f"; {broken[0]}" if broken else ""
        raise DatasetError(f"there is no image in '{source}'{problem}; give PNG, JPEG, WebP, BMP or TIFF images")
    if masks is not None and not masks.is_dir():
        raise DatasetError(f"there is no folder of masks '{masks}'; check the path")
    marked = _find_masks(masks) if masks is not None else {}
    examples = []
    for file in files:
        place = file.relative_to(source)
        named = kind or (place.parts[0] if len(place.parts) > 1 else KIND)
        mask = marked.get((place.parent.as_posix(), file.stem))
        examples.append(DefectExample(place.as_posix(), file, named, mask))
    return examples, broken


def _find_masks(folder: Path) -> dict[tuple[str, str], Path]:
    """(folder, stem of the image) → mask."""
    files, _ = find_images(folder)
    return {(file.relative_to(folder).parent.as_posix(), file.stem.removesuffix("_mask")): file for file in files}
