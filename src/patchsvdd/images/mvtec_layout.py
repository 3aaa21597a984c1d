"""Find images in the MVTec layout (train/good, test/<defect>, ground_truth/<defect>) or in a plain folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from patchsvdd.core.errors import DatasetError, ImageError
from patchsvdd.images.image_files import find_images

GOOD = "good"
"""Folder of the images without defects."""
UNLABELLED = "unlabelled"
"""Kind of an image whose label is not known yet."""


@dataclass(frozen=True)
class GoodFiles:
    """The good images of a folder."""

    root: Path
    """Names are relative to this folder."""
    files: tuple[Path, ...]
    broken: tuple[ImageError, ...]
    """Errors for files with an image extension that are not images."""

    def named(self) -> list[tuple[str, Path]]:
        """(name, file) pairs."""
        return [(file.relative_to(self.root).as_posix(), file) for file in self.files]


@dataclass(frozen=True)
class TestImage:
    """A test image with its kind of defect, and its mask if there is one."""

    __test__ = False  # not a pytest class

    file: Path
    defect: str
    """Name of its folder: "good" or a kind of defect."""
    mask: Path | None

    @property
    def is_good(self) -> bool:
        """Whether the image shows no defect."""
        return self.defect == GOOD


@dataclass(frozen=True)
class TestSet:
    """The test images of a category."""

    __test__ = False

    images: tuple[TestImage, ...]
    broken: tuple[ImageError, ...]
    stray_masks: tuple[Path, ...]
    """Masks that match no test image."""


def find_good_images(source: Path) -> GoodFiles:
    """Find the training images of a category, or all images of a plain folder."""
    if source.is_file():
        raise DatasetError(f"'{source}' is a file; give a folder of good images or a category")
    if not source.is_dir():
        raise DatasetError(f"there is no folder '{source}'; check the path")
    root = source
    if (source / "train" / GOOD).is_dir():
        root = source / "train" / GOOD
    elif any((source / part).is_dir() for part in ("train", "test", "ground_truth")):
        raise DatasetError(
            f"'{source}' looks like a category but has no train/{GOOD} folder; "
            f"put the good training images there, or give a plain folder of good images"
        )
    else:
        _require_only_good(source)
    files, broken = find_images(root)
    if not files:
        problem = f"; {broken[0]}" if broken else ""
        raise DatasetError(f"there is no image in '{root}'{problem}; give PNG, JPEG, WebP, BMP or TIFF images")
    return GoodFiles(root, tuple(files), tuple(broken))


def _require_only_good(source: Path) -> None:
    """Raise DatasetError if the subfolders of a plain folder suggest that it holds more than good images."""
    folders = sorted(path for path in source.iterdir() if path.is_dir() and not path.name.startswith("."))
    categories = [path for path in folders if (path / "train" / GOOD).is_dir()]
    if categories:
        raise DatasetError(f"'{source}' contains several categories; choose one, e.g. '{categories[0]}'")
    others = [path.name for path in folders if path.name != GOOD]
    if others and source / GOOD in folders:
        raise DatasetError(
            f"'{source}' contains {', '.join(others[:3])} next to {GOOD}; training requires good images only: "
            f"use '{source / GOOD}'"
        )


def find_test_images(category: Path, *, with_masks: bool = True) -> TestSet:
    """Find the test images of a category and their masks, matched by name (000.png ↔ 000_mask.png or 000.png).

    With ``with_masks=False`` the ground_truth folder is not read and no image has a mask.
    """
    test = category / "test"
    if not test.is_dir():
        raise DatasetError(
            f"'{category}' has no test folder; a category contains test/{GOOD} and test/<defect> "
            f"(and ground_truth/<defect> for masks)"
        )
    files, broken = find_images(test)
    if not files:
        raise DatasetError(f"there is no image in '{test}'; put test images into test/{GOOD} and test/<defect>")
    loose = [file for file in files if file.parent == test]
    if loose:
        raise DatasetError(
            f"'{loose[0]}' is directly in test/; move it to test/{GOOD} or test/<defect>, according to what it shows"
        )
    masks, broken_masks = _find_masks(category / "ground_truth") if with_masks else ({}, [])
    images = []
    for file in files:
        defect = file.relative_to(test).parts[0]
        mask = None if defect == GOOD else masks.pop((defect, file.stem), None)
        images.append(TestImage(file, defect, mask))
    return TestSet(tuple(images), (*broken, *broken_masks), tuple(masks.values()))


def find_unlabelled_images(folder: Path) -> TestSet:
    """Find the images of a folder whose labels are in a file: all below ``test``, or all if there is no such folder."""
    root = folder / "test" if (folder / "test").is_dir() else folder
    files, broken = find_images(root)
    if not files:
        raise DatasetError(f"there is no image in '{root}'; give the folder of the images that the labels are of")
    return TestSet(tuple(TestImage(file, UNLABELLED, None) for file in files), tuple(broken), ())


def _find_masks(folder: Path) -> tuple[dict[tuple[str, str], Path], list[ImageError]]:
    """(defect, image stem) → mask file."""
    if not folder.is_dir():
        return {}, []
    files, broken = find_images(folder)
    masks = {}
    for file in files:
        defect = file.relative_to(folder).parts[0]
        masks[defect, file.stem.removesuffix("_mask")] = file
    return masks, broken
