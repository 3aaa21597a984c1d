"""Where defects occur on a part: how many of the latest anomalous inspections of a view are above the threshold."""

from __future__ import annotations

import io
from collections import OrderedDict
from threading import Lock

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from PIL import Image

from patchsvdd.apps.serve.blob_store import Blobs
from patchsvdd.apps.serve.responses import encoded
from patchsvdd.apps.serve.store import Row, Store
from patchsvdd.apps.serve.tables import inspections
from patchsvdd.report.overlay import SATURATION, heat_colours

MOST = 200
"""Inspections summed."""
SIDE = 320
"""Longest side of the sum in pixels."""
KEPT = 2000
"""Masks kept in memory, of at most 13 kB each."""
OPACITY = (150, 230)
"""Of a pixel that was above the threshold once, and of the most frequent ones; 0 … 255."""


class DefectHeat:
    """Sums the maps of anomalous inspections; a map is read once."""

    def __init__(self, store: Store, blobs: Blobs) -> None:
        self._store, self._blobs = store, blobs
        self._masks: OrderedDict[tuple[str, float], tuple[tuple[int, int], bytes]] = OrderedDict()
        self._lock = Lock()

    def png(self, owner: str, line: str, view: str, since: float) -> bytes:
        """The sum over the latest MOST anomalous inspections of a view since a time, as a transparent PNG."""
        numbers = self._store.anomalous_views(owner, line, view, since, MOST)
        masks = [mask for row in self._rows(numbers) if (mask := self._mask(row)) is not None]
        return encoded(draw_heat(sum_of(masks)), "PNG")

    def _rows(self, numbers: list[str]) -> list[Row]:
        columns = (inspections.c.id, inspections.c.map, inspections.c.threshold)
        query = sa.select(*columns).where(inspections.c.id.in_(numbers)).order_by(inspections.c.id.desc())
        with self._store.reading() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def _mask(self, row: Row) -> NDArray[np.bool_] | None:
        """Where a map is above the threshold, at most SIDE pixels long; None if it was deleted."""
        if row["map"] is None or row["threshold"] is None:
            return None
        key = (row["map"], row["threshold"])
        with self._lock:
            if key in self._masks:
                self._masks.move_to_end(key)
                shape, bits = self._masks[key]
                return unpacked(shape, bits)
        data = self._blobs.get(row["map"])
        if data is None:
            return None
        mask = small_mask(np.load(io.BytesIO(data), allow_pickle=False) > row["threshold"])
        with self._lock:
            self._masks[key] = ((mask.shape[0], mask.shape[1]), np.packbits(mask).tobytes())
            while len(self._masks) > KEPT:
                self._masks.popitem(last=False)
        return mask


def unpacked(shape: tuple[int, int], bits: bytes) -> NDArray[np.bool_]:
    """The mask of a shape that was packed."""
    count = shape[0] * shape[1]
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=count).astype(bool).reshape(shape)


def small_mask(mask: NDArray[np.bool_], shape: tuple[int, int] | None = None) -> NDArray[np.bool_]:
    """The mask (H, W) in another shape, at most SIDE pixels long if none is given; no pixel set is lost."""
    height, width = mask.shape
    if shape is None:
        shrink = min(1.0, SIDE / max(height, width))
        shape = (max(1, round(height * shrink)), max(1, round(width * shrink)))
    if shape == mask.shape:
        return mask
    share = Image.fromarray(mask.astype(np.float32)).resize(shape[::-1], Image.Resampling.BOX)
    return np.asarray(share) > 0


def sum_of(masks: list[NDArray[np.bool_]]) -> NDArray[np.int32]:
    """How many masks are set at each pixel (H, W), in the shape of the first; one empty pixel without masks."""
    height, width = masks[0].shape if masks else (1, 1)
    total = np.zeros((height, width), np.int32)
    for mask in masks:
        total += small_mask(mask, (height, width))
    return total


def draw_heat(total: NDArray[np.int32]) -> Image.Image:
    """The sum as an image (RGBA): transparent where it is 0, hottest where it is highest."""
    share = total / max(1, int(total.max()))
    colours = heat_colours(1.0001 + (SATURATION - 1.0001) * share)
    opacity = np.where(total > 0, OPACITY[0] + (OPACITY[1] - OPACITY[0]) * share, 0)
    return Image.fromarray(np.concatenate([colours, opacity.round().astype(np.uint8)[..., None]], axis=-1))
