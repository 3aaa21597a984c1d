"""Convert rows, maps and images to responses of the service."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from patchsvdd.apps.serve.model_registry import ServedModel
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.store import TRACE, Row
from patchsvdd.core.errors import PatchSVDDError
from patchsvdd.core.roi import roi_in_words
from patchsvdd.detector.model_folder import journal_of, last_change, read_index
from patchsvdd.detector.teaching import why_not_teachable
from patchsvdd.detector.unusual_images import unusual_images
from patchsvdd.report.overlay import heat_layer
from patchsvdd.report.rows import RESULT_KEYS, npy_bytes

FORMATS = {
    "PNG": ("image/png", ".png"),
    "JPEG": ("image/jpeg", ".jpg"),
    "WEBP": ("image/webp", ".webp"),
    "BMP": ("image/bmp", ".bmp"),
    "TIFF": ("image/tiff", ".tiff"),
}
"""Pillow's format name → media type and file suffix."""
SUFFIXES = dict(FORMATS.values())
"""Media type → file suffix."""
NAME_LENGTH = 200
"""Maximum length of an image's name; longer names are cut."""
CHANGES = {"add": "learning", "teach": "teaching", "remove": "removal", "calibrate": "calibration"}
"""A change in a model's journal → its kind in words."""
DETAIL_LENGTH = 100
"""Maximum length of a serial number, lot, line or station."""

MapKind = Literal["png", "npy"]


def as_time(at: float) -> str:
    """ISO 8601 time in UTC, to the millisecond."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def inspection_answer(row: Row) -> dict[str, Any]:
    """The response for a row of inspections."""
    review = None
    if row.get("review") is not None:
        at = as_time(row["reviewed_at"])
        review = {"verdict": row["review"], "note": row["note"] or "", "at": at, "by": row["reviewed_by"]}
    return {
        **{key: row[key] for key in ("id", "model", "identity", "name", *RESULT_KEYS)},
        "at": as_time(row["at"]),
        "is_anomalous": row["verdict"] == "anomalous",
        "image_size": [row["height"], row["width"]],
        "timings": row["timings"],
        "review": review,
        "learned_by": row.get("learned_by"),
        **{key: row.get(key) for key in TRACE},
        "notes": row.get("notes") or [],
        "has_picture": row["picture"] is not None,
        "has_map": row["map"] is not None,
    }


def job_answer(row: Row, situation: dict[str, Any]) -> dict[str, Any]:
    """The response for a job; ``situation`` is what ``Jobs.situation`` says about it."""
    keys = ("id", "kind", "model", "state", "stage", "done", "total", "result", "error", "by")
    return {
        **{key: row[key] for key in keys},
        "created": as_time(row["created"]),
        "updated": as_time(row["updated"]),
        "started": as_time(row["started"]) if row["started"] is not None else None,
        "undoes": row["order"].get("undoes"),
        **situation,
    }


def change_answer(index: Mapping[str, Any]) -> dict[str, Any] | None:
    """The response for the last change of a model that is in effect; None if there is none."""
    last = last_change(index)
    if last is None:
        return None
    kind = CHANGES.get(last["change"], last["change"])
    facts = {"entry": last["number"], "kind": kind, "at": last["at"], "images": len(last["images"])}
    return {**facts, "identity": index["identity"]}


def model_answer(model: ServedModel, trouble: str | None, check: dict[str, Any] | None) -> dict[str, Any]:
    """The response for a model.

    ``trouble`` is the reason why the model in its folder is not in use, if any, and ``check`` the last check with its
    golden images.
    """
    detector = model.detector
    calibration, size = detector.calibration, detector.config.image_size
    return {
        "name": model.name,
        "identity": model.identity,
        "preset": detector.config.preset,
        "images": len(detector.memory.image_names),
        "patches": {str(size): len(scale.embeddings) for size, scale in detector.memory.scales.items()},
        "image_size": list(size) if size is not None else None,
        "threshold": calibration.threshold if calibration is not None else None,
        "false_alarm_rate": calibration.false_alarm_rate if calibration is not None else None,
        "promise": calibration.guarantee if calibration is not None else None,
        "guaranteed": calibration is not None and calibration.is_guaranteed,
        "caveat": calibration.caveat if calibration is not None else None,
        "min_area": detector.min_area,
        "region_of_interest": roi_in_words(detector.config.roi),
        "loaded_at": as_time(model.loaded_at),
        "trouble": trouble,
        "device": str(detector.device),
        "check": check,
    }


def model_details(model: ServedModel, trouble: str | None, check: dict[str, Any] | None) -> dict[str, Any]:
    """The response for a model with its calibration, provenance, settings and journal."""
    detector = model.detector
    defects = detector.defects
    try:
        index = read_index(model.folder)
    except PatchSVDDError:
        index = {}
    return {
        **model_answer(model, trouble, check),
        "calibration": detector.calibration.to_json() if detector.calibration is not None else None,
        "provenance": detector.provenance,
        "config": detector.config.to_json(),
        "image_names": list(detector.memory.image_names),
        "pictures": len(detector.pictures) if detector.pictures is not None else 0,
        "unusual": [one.to_json() for one in unusual_images(detector.provenance)],
        "journal": journal_of(index),
        "last_change": change_answer(index),
        "taught": dict(sorted(Counter(one.kind for one in defects.defects).items())) if defects is not None else {},
        "not_teachable": why_not_teachable(detector, model.name),
    }


def map_bytes(anomaly_map: NDArray[np.float32], kind: MapKind, threshold: float) -> bytes:
    """Encode an anomaly map as a .npy array or as a transparent PNG."""
    if kind == "png":
        return encoded(heat_layer(anomaly_map, threshold), "PNG")
    return npy_bytes(anomaly_map)


def map_media_type(kind: MapKind) -> str:
    """Media type of the file that ``map_bytes`` returns."""
    return "image/png" if kind == "png" else "application/x-npy"


def encoded(image: Image.Image, kind: str) -> bytes:
    """Encode an image in a Pillow format such as "PNG"."""
    buffer = io.BytesIO()
    image.save(buffer, kind, quality=85) if kind == "JPEG" else image.save(buffer, kind)
    return buffer.getvalue()


def as_base64(data: bytes) -> str:
    """Encode bytes as Base64 text."""
    return base64.b64encode(data).decode("ascii")


def clean_detail(name: str, text: str | None) -> str | None:
    """What a client says about a part, such as its serial number, without control characters; None if it is empty."""
    if text is None:
        return None
    if len(text) > DETAIL_LENGTH:
        raise Problem("invalid-request", f"'{name}' is longer than {DETAIL_LENGTH} characters; send a shorter one")
    printable = "".join(letter for letter in text if letter.isprintable())
    return printable.encode("utf-8", "replace").decode("utf-8").strip() or None


def clean_name(name: str) -> str:
    """A client's name for an image, made printable and without folders."""
    name = name.replace("\\", "/").rsplit("/", 1)[-1]
    printable = "".join(letter if letter.isprintable() else "�" for letter in name)
    return printable.encode("utf-8", "replace").decode("utf-8")[:NAME_LENGTH] or "image"
