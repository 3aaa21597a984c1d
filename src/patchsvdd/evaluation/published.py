"""The values printed in the paper; ``published.json`` is their only copy."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

Values = dict[str, float]
"""detection_auroc and segmentation_auroc, if the paper has them."""

TABLES = {"deep-svdd": "deep_svdd", "l2-ae": "l2_ae", "ssim-ae": "ssim_ae"}
"""Preset of a baseline → its table of values per category."""


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
    return published(TABLES.get(preset, "patch_svdd"), category)


def source() -> str:
    """The paper that the values come from."""
    return str(_data()["source"])


def kind_of(category: str) -> str | None:
    """ "texture" or "object", as the paper groups the categories of MVTec AD; None for other categories."""
    if category in _data()["textures"]:
        return "texture"
    return "object" if published("patch_svdd", category) else None
