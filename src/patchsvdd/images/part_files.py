"""Group image files into parts with several views. PyTorch is not needed."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from patchsvdd.core.errors import ConfigError, DatasetError
from patchsvdd.images.image_files import find_images

GROUPS = ("part", "view")
"""Groups that a pattern of file names has."""


@dataclass(frozen=True)
class PartFiles:
    """The image files of a folder, by part and view."""

    parts: dict[str, dict[str, Path]]
    """Part → view → file, both sorted by name. A file may be damaged, and a part may lack views."""
    ignored: tuple[Path, ...]
    """Image files that belong to no part."""


def group_parts(folder: Path, views: Collection[str], pattern: str | None = None) -> PartFiles:
    """Find the images below ``folder`` and group them by part and view.

    ``pattern`` is a regular expression with groups ``part`` and ``view`` that matches a whole path relative to the
    folder, such as ``(?P<part>.+)_(?P<view>top|side)\\.png``. Without one, each view has a folder of its name, and the
    files of a part have equal names there. Raise DatasetError if no file belongs to a part, or two to the same view.
    """
    expression = None if pattern is None else _compiled(pattern)
    usable, broken = find_images(folder)
    parts: dict[str, dict[str, Path]] = {}
    ignored = []
    for path in sorted([*usable, *(Path(error.name) for error in broken)]):
        place = _place(path.relative_to(folder), expression)
        if place is None or (expression is None and place[1] not in views):
            ignored.append(path)
            continue
        part, view = place
        if view not in views:
            raise ConfigError(
                f"`pattern` finds the view '{view}' in '{path}', and there is no model for it; the views are "
                f"{', '.join(sorted(views))}"
            )
        other = parts.setdefault(part, {}).setdefault(view, path)
        if other != path:
            raise DatasetError(
                f"'{other}' and '{path}' are both the view '{view}' of the part '{part}'; remove one, or change how "
                f"parts are found"
            )
    if not parts:
        found = "no image in it" if not ignored else f"'{ignored[0]}' and other images belong to no part"
        how = (
            f"put the images of each view in a folder of its name ({', '.join(sorted(views))}), or give `pattern`"
            if pattern is None
            else "check `pattern`, which has to match the whole path below the folder"
        )
        raise DatasetError(f"there is no part in '{folder}': {found}; {how}")
    return PartFiles({part: dict(sorted(parts[part].items())) for part in sorted(parts)}, tuple(ignored))


def _place(path: Path, expression: re.Pattern[str] | None) -> tuple[str, str] | None:
    """Return (part, view) of a file; None if it has none."""
    if expression is None:
        inner = path.relative_to(path.parts[0])
        return None if inner == Path() else (inner.with_suffix("").as_posix(), path.parts[0])
    match = expression.fullmatch(path.as_posix())
    return None if match is None or not all(match[group] for group in GROUPS) else (match["part"], match["view"])


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"`pattern` is no regular expression: {error}") from None
    lacking = [group for group in GROUPS if group not in expression.groupindex]
    if lacking:
        raise ConfigError(
            f"`pattern` has no group '{lacking[0]}'; name both, as in (?P<part>.+)_(?P<view>top|side)\\.png"
        )
    return expression
