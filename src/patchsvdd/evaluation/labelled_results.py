"""What the test images show according to a file of labels, and their masks."""

from __future__ import annotations

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
    root = results.category / "test" if (results.category / "test").is_dir() else results.category
    labels, without = match_images(read_labels(path), root, [image.file for image in results.test.images])
    by_file = {root / image.name: image for image in labels.images}
    images, masks = {}, dict[Path, Mask]()
    for index, image in enumerate(results.images):
        labelled = by_file.get(image.file)
        if labelled is not None:
            images[index] = TestImage(image.file, " + ".join(labelled.kinds) or GOOD, None)
            masks[image.file] = labelled if labelled.shapes else None
    problems = list(labels.problems)
    if not images:
        reason = f" ({problems[0]})" if problems else ""
        raise DatasetError(f"no label in '{path}' is of an image in '{root}'{reason}; give the folder of the images")
    if without:
        problems.append(f"{len(without)} images have no label and are left out, e.g. {without[0]}")
    return results.kept(images), masks, problems


def read_mask(source: Path | LabelledImage, size: tuple[int, int], resize: Resize) -> NDArray[np.bool_]:
    """Return a defect mask (H, W) at ``size``, from its file or its shapes; raise ImageError if it is unreadable."""
    if isinstance(source, Path):
        return load_mask(source, size, resize)
    return resize_mask(source.mask(), size, resize)
