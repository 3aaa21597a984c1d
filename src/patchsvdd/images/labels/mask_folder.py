"""Masks in the MVTec layout: ground_truth/KIND/NAME_mask.png, white where the defect is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from patchsvdd.core.errors import ImageError
from patchsvdd.core.files import atomic_write
from patchsvdd.images.decoding import DECODING_ERRORS, open_image, read_file, upright_size
from patchsvdd.images.labels.label_file import Labels
from patchsvdd.images.labels.shapes import Brush, LabelledImage, Size
from patchsvdd.images.mvtec_layout import GOOD, find_test_images

MASKS = "ground_truth"


def is_mask_folder(path: Path) -> bool:
    """Whether a folder is a category with masks."""
    return (path / MASKS).is_dir() and (path / "test").is_dir()


def read_mask_folder(category: Path, labels: Labels, on_progress: Callable[[int, int], None] | None = None) -> None:
    """Add the test images of a category with their masks; the kind is the folder. Problems are reported."""
    test = find_test_images(category)
    labels.problems += [str(error) for error in test.broken]
    labels.problems += [f"{mask}: there is no test image for this mask" for mask in test.stray_masks]
    for number, image in enumerate(test.images, start=1):
        name = image.file.relative_to(category / "test").as_posix()
        try:
            size = size_of(image.file)
            shapes = (_brush(image.mask, image.defect, size),) if image.mask is not None else ()
        except ImageError as error:
            labels.problems.append(str(error))
        else:
            labels.add(LabelledImage(name, size, shapes, not image.is_good), category)
        if on_progress is not None:
            on_progress(number, len(test.images))


def write_mask_folder(
    images: Iterable[LabelledImage], out: Path, on_progress: Callable[[int], None] | None = None
) -> tuple[int, list[str]]:
    """Write the masks of defective images; return their number and what could not be written."""
    written: set[Path] = set()
    problems = []
    for number, image in enumerate(images, start=1):
        if on_progress is not None:
            on_progress(number)
        if not image.is_defect:
            continue
        kind, stem = folder_of(image), Path(image.name).stem
        path = out / MASKS / kind / f"{stem}_mask.png"
        if not image.shapes or image.size is None:
            missing = "nothing is marked in it" if not image.shapes else "the size of the image is not known"
            problems.append(f"{image.name}: no mask was written, because {missing}")
        elif path in written:
            problems.append(f"{image.name}: no mask was written; another image of kind {kind} is also named {stem}")
        else:
            with atomic_write(path, sync=False) as file:
                Image.fromarray(image.mask().astype(np.uint8) * 255).save(file, "PNG")
            written.add(path)
    return len(written), problems


def folder_of(image: LabelledImage) -> str:
    """The folder of a defective image's mask: the folder of the image if it has one, else the kind it shows most of."""
    folder = Path(image.name).parent.name
    if folder not in ("", GOOD, "test", "images"):
        return folder
    areas: dict[str, int] = {}
    for shape in image.shapes:
        covered = 0 if image.size is None else int(shape.mask(image.size).sum())
        areas[shape.kind] = areas.get(shape.kind, 0) + covered
    kind = max(sorted(areas), key=areas.__getitem__, default=image.kinds[0])
    safe = "".join(letter if letter.isalnum() or letter in "-_ ." else "_" for letter in kind).strip(". ")
    return safe or "defect"


def size_of(file: Path) -> Size:
    """(height, width) of an image, from its header; raise ImageError if it is none."""
    try:
        with open_image(file) as image:
            return upright_size(image)
    except DECODING_ERRORS:
        raise ImageError(str(file), "cannot be read as an image") from None


def _brush(mask: Path, kind: str, size: Size) -> Brush:
    """The pixels of a mask file; raise ImageError if it cannot be used."""
    grey = read_file(mask, str(mask))[..., 0]
    if grey.shape != size:
        words = f"has {grey.shape[1]} x {grey.shape[0]} pixels, and its image {size[1]} x {size[0]}"
        raise ImageError(str(mask), words)
    try:
        return Brush.of(np.asarray(grey > (128 if grey.max() > 1 else 0)), kind)
    except ValueError:
        raise ImageError(str(mask), "marks nothing") from None
