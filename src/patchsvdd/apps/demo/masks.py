"""A clean and a defective photograph → the defect mask, and the change confined to it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from patchsvdd.apps.demo.drawing import Plane
from patchsvdd.scoring.components import label_components

VISIBLE = 6.0  # grey levels of 255: smaller changes are ignored
CLEAR = 30.0  # grey levels: a person sees a change if its 90th percentile exceeds this
BRIDGE = 0.055  # image widths: gaps in a mask up to this width are closed; slightly more than a thread of the weave
SMALLEST_PIECE = 0.08  # of the largest piece; smaller changes are undone


def visible_change(clean: Plane, defective: Plane) -> NDArray[np.bool_]:
    """The defect mask (size, size) of the visible differences of two photographs (3, size, size), without holes."""
    mask = np.abs(defective - clean).max(axis=0) > VISIBLE
    return _without_specks(_filled(_closed(mask)))


def is_clear(clean: Plane, defective: Plane, mask: NDArray[np.bool_]) -> bool:
    """Whether a person would see the change inside ``mask``, which is not empty."""
    change = np.abs(defective - clean).max(axis=0)
    return bool(np.quantile(change[mask], 0.9) > CLEAR)


def confined(clean: Plane, defective: Plane, mask: NDArray[np.bool_]) -> Plane:
    """``clean`` with the change of ``defective`` inside ``mask``, blended so that the mask has no visible edge."""
    change = defective - clean
    size = np.abs(change).max(axis=0)
    faded: Plane = clean + change * (np.clip((size - VISIBLE) / VISIBLE, 0, 1) * mask)
    return faded


def _closed(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """``mask`` with gaps of up to ``BRIDGE`` closed."""
    radius = round(BRIDGE * mask.shape[0] / 2)
    dilated = _dilated(np.pad(mask, radius), radius)
    return ~_dilated(~dilated, radius)[radius:-radius, radius:-radius]


def _dilated(mask: NDArray[np.bool_], radius: int) -> NDArray[np.bool_]:
    """``mask`` dilated by a square of ``radius`` pixels."""
    for axis in (0, 1):
        shifted = [np.roll(mask, step, axis) for step in range(-radius, radius + 1)]
        mask = np.logical_or.reduce(shifted)
    return mask


def _filled(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """``mask`` with its holes filled."""
    labels, count = label_components(~np.pad(mask, 1))
    if count == 0:
        return mask
    return np.asarray(labels[1:-1, 1:-1] != labels[0, 0])


def _without_specks(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """``mask`` without pieces that are much smaller than the largest one."""
    labels, _ = label_components(mask)
    areas = np.bincount(labels.ravel())
    areas[0] = 0
    return np.asarray((areas >= max(3, SMALLEST_PIECE * areas.max()))[labels] & mask)
