"""What the test images show according to a file of labels, and their masks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from patchsvdd.core.config import Resize
from patchsvdd.core.errors import DatasetError
from patchsvdd.evaluation.collected_results import TestResults
from patchsvdd.images.image_set import load_mask, resize_mask
from patchsvdd.images.labels.files import match_images, read_labels
from patchsvdd.images.labels.shapes import LabelledImage
from patchsvdd.images.mvtec_layout import GOOD, TestImage

Mask: TypeAlias = Path | LabelledImage | None
"""Where the mask of an image comes from."""


def apply_labels(results: TestResults, path: Path) -> tuple[TestResults, dict[Path, Mask], list[str]]:
    """Return the results of the labelled images, their masks, and what could not be used."""
    labels, problems = labels_of(results.category, [image.file for image in results.test.images], path)
    images, masks = {}, dict[Path, Mask]()
    for index, image in enumerate(results.images):
        labelled = labels.get(image.file)
        if labelled is not None:
            images[index] = TestImage(image.file, " + ".join(labelled.kinds) or GOOD, None)
            masks[image.file] = labelled if labelled.shapes else None
    if not images:
        raise _without_labels(results.category, path, problems)
    return results.kept(images), masks, problems


def labels_of(category: Path, files: Sequence[Path], path: Path) -> tuple[dict[Path, LabelledImage], list[str]]:
    """Return the labels of image files of a folder, and what could not be used. Raise DatasetError if none fits."""
    root = category / "test" if (category / "test").is_dir() else category
    labels, without = match_images(read_labels(path), root, files)
    problems = list(labels.problems)
    if not labels.images:
        raise _without_labels(category, path, problems)
    if without:
        problems.append(f"{len(without)} images have no label and are left out, e.g. {without[0]}")
    return {root / image.name: image for image in labels.images}, problems


def _without_labels(category: Path, path: Path, problems: Sequence[str]) -> DatasetError:
    root = category / "test" if (category / "test").is_dir() else category
    reason = f" ({problems[0]})" if problems else ""
    return DatasetError(f"no label in '{path}' is of an image in '{root}'{reason}; give the folder of the images")


def read_mask(source: Path | LabelledImage, size: tuple[int, int], resize: Resize) -> NDArray[np.bool_]:
    """Return a defect mask (H, W) at ``size``, from its file or its shapes; raise ImageError if it is unreadable."""
    if isinstance(source, Path):
        return load_mask(source, size, resize)
    return resize_mask(source.mask(), size, resize)
