"""Values printed in the paper and those of other methods; ``published.json`` is their only copy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

Values = dict[str, float]
"""detection_auroc and segmentation_auroc, if the paper has them."""

METHOD_OF = {"deep-svdd": "Deep SVDD", "l2-ae": "L2-AE", "ssim-ae": "SSIM-AE"}
"""Preset of a baseline → its method."""


@dataclass(frozen=True)
class Method:
    """Another method, and the values that its authors or others have published."""

    name: str
    source: str
    average: Values
    """Mean of the fifteen categories, as printed."""
    categories: dict[str, Values]
    """Values of each category; empty if only the mean is published."""


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(files(__package__).joinpath("published.json").read_text())
    return data


def published(table: str, row: str) -> Values:
    """The values of one row, such as ("patch_svdd", "bottle") or ("losses", "svdd"); empty if the paper has none."""
    values = _data().get(table, {}).get(row, {})
    return dict(values) if isinstance(values, dict) else {}


def published_for(preset: str, category: str) -> Values:
    """The values of a category for the method of a preset: those of Patch SVDD, or of a baseline."""
    if preset not in METHOD_OF:
        return published("patch_svdd", category)
    method = next(one for one in methods() if one.name == METHOD_OF[preset])
    return method.categories.get(category, {})


def methods() -> list[Method]:
    """The methods of Table 1 of the paper, then later ones."""
    return [
        Method(name, one["source"], dict(one["average"]), {key: dict(row) for key, row in one["categories"].items()})
        for name, one in _data()["methods"].items()
    ]


def categories() -> list[str]:
    """The categories of MVTec AD: objects, then textures."""
    names = [name for name, row in _data()["patch_svdd"].items() if isinstance(row, dict)]
    return sorted(names, key=lambda name: (name in _data()["textures"], name))


def source() -> str:
    """The paper that the values come from."""
    return str(_data()["source"])


def kind_of(category: str) -> str | None:
    """ "texture" or "object", as the paper groups the categories of MVTec AD; None for other categories."""
    if category in _data()["textures"]:
        return "texture"
    return "object" if published("patch_svdd", category) else None
