"""The result row of an image. ``inspect``, ``watch``, the cluster and the service use the same format."""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from patchsvdd.scoring.inspection import Inspection

Item = TypeVar("Item")
Row = dict[str, Any]
"""The result of an image, or an "error" with the reason why it could not be read."""

RESULT_KEYS = ("score", "threshold", "p_value", "verdict", "min_area", "regions")
"""Keys of ``Inspection.to_json`` that have the same name in every results store."""
CSV_COLUMNS = (
    *("inspected", "image", "verdict", "score", "threshold", "p_value", "regions", "largest_region_area", "seconds"),
    *("model", "overlay", "error"),
)
"""``regions`` is the number of regions; cells that do not apply are empty."""
LONGEST_NAME = 255
"""Longest file name in bytes, on nearly every file system."""


def inspection_row(
    inspection: Inspection, *, image: str, path: str, model: str | None, seconds: float, **more: Any
) -> Row:
    """The row of an inspected image. ``model`` is the model's identity; ``more`` adds keys such as "overlay"."""
    return inspection.to_json() | _origin(image, path, model) | {"seconds": round(seconds, 4)} | more


def error_row(reason: str, *, image: str, path: str, model: str | None, **more: Any) -> Row:
    """The row of a file that is not a readable image."""
    return _origin(image, path, model) | more | {"error": reason}


def _origin(image: str, path: str, model: str | None) -> Row:
    inspected = datetime.now(UTC).isoformat(timespec="milliseconds")
    return {"image": image, "path": path, "model": model, "inspected": inspected}


def timed(items: Iterable[Item]) -> Iterator[tuple[Item, float]]:
    """Each item with the seconds since the previous item, or since the start."""
    start = time.monotonic()
    for item in items:
        now = time.monotonic()
        yield item, now - start
        start = now


def json_line(row: Row) -> bytes:
    """A row as a line of ASCII JSON, so that any file name can be written. Raises ValueError for NaN."""
    return json.dumps(row, allow_nan=False).encode("ascii") + b"\n"


def csv_cells(row: Row) -> list[object]:
    """The cells of ``CSV_COLUMNS``."""
    areas = [region["area"] for region in row["regions"]] if "regions" in row else None
    counts = {} if areas is None else {"regions": len(areas), "largest_region_area": max(areas, default=0)}
    return [(row | counts).get(column) for column in CSV_COLUMNS]


def file_for(kind: str, name: str, suffix: str) -> Path:
    """Relative path of an image's overlay or map, in the folder ``kind``.

    A hash replaces names that are too long, URLs, and paths that lead out of the folder.
    """
    path, hashed = Path(kind, name + suffix), hashlib.sha256(os.fsencode(name)).hexdigest()[:32] + suffix
    if any(part in ("", ".", "..") for part in name.split("/")):
        return Path(kind, hashed)
    return path if len(os.fsencode(path.name)) <= LONGEST_NAME else path.with_name(hashed)


def npy_bytes(anomaly_map: NDArray[np.float32]) -> bytes:
    """An anomaly map as the content of a .npy file."""
    content = io.BytesIO()
    np.save(content, np.ascontiguousarray(anomaly_map), allow_pickle=False)
    return content.getvalue()
