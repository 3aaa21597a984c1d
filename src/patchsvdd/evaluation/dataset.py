"""A data set in MVTec layout: one folder per category."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from patchsvdd.core.errors import DatasetError
from patchsvdd.images.mvtec_layout import GOOD


def find_categories(dataset: Path, wanted: Sequence[str] | None = None) -> list[Path]:
    """The categories of a data set in order of name, or the ``wanted`` ones in their order; a single category is one.

    A category is a folder with train/good in it.
    """
    if not dataset.is_dir():
        raise DatasetError(f"there is no folder '{dataset}'; give a folder of categories in MVTec layout")
    if _is_category(dataset):
        found = [dataset.resolve()]
    else:
        found = sorted(path for path in dataset.iterdir() if path.is_dir() and _is_category(path))
    if not found:
        raise DatasetError(
            f"'{dataset}' holds no category; a category is a folder with train/{GOOD}, test/{GOOD} and test/<defect>"
        )
    if wanted is None:
        return found
    by_name = {path.name: path for path in found}
    missing = [name for name in wanted if name not in by_name]
    if missing:
        raise DatasetError(f"'{dataset}' has no category '{missing[0]}'; there are: {', '.join(by_name)}")
    return [by_name[name] for name in dict.fromkeys(wanted)]


def _is_category(folder: Path) -> bool:
    return (folder / "train" / GOOD).is_dir()


def digest_of(folder: Path) -> str:
    """SHA-256 over the names and bytes of all files below ``folder``, in order of name."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode("utf-8", "surrogateescape") + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
