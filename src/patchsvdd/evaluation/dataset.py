"""A data set in MVTec layout: one folder per category."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from patchsvdd.core.errors import DatasetError
from patchsvdd.images.mvtec_layout import GOOD


def find_categories(dataset: Path, names: Sequence[str] | None = None) -> list[Path]:
    """The category folders of a data set, sorted by name, or only those in ``names``, in their order.

    A category is a folder that contains train/good. ``dataset`` may also be a single category.
    """
    if not dataset.is_dir():
        raise DatasetError(f"there is no folder '{dataset}'; give a folder of categories in MVTec layout")
    if _is_category(dataset):
        categories = [dataset.resolve()]
    else:
        categories = sorted(path for path in dataset.iterdir() if path.is_dir() and _is_category(path))
    if not categories:
        raise DatasetError(
            f"'{dataset}' contains no category, a folder with train/{GOOD}, test/{GOOD} and test/<defect>"
        )
    if names is None:
        return categories
    by_name = {path.name: path for path in categories}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise DatasetError(f"'{dataset}' has no category '{missing[0]}'; choose from: {', '.join(by_name)}")
    return [by_name[name] for name in dict.fromkeys(names)]


def _is_category(folder: Path) -> bool:
    return (folder / "train" / GOOD).is_dir()


def digest_of(folder: Path) -> str:
    """SHA-256 over the names and contents of all files below ``folder``, sorted by name."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode("utf-8", "surrogateescape") + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
