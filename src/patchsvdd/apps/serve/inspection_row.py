"""The row of an inspection in the database, without its files."""

from __future__ import annotations

import random
import time

from patchsvdd.apps.serve.decoder_pool import MOST_FRAMES, Decoded
from patchsvdd.apps.serve.model_registry import ServedModel
from patchsvdd.apps.serve.store import Row, new_id
from patchsvdd.detector.drift import statistics_of_inspection
from patchsvdd.report.rows import RESULT_KEYS
from patchsvdd.scoring.inspection import Inspection


def inspection_row(model: ServedModel, inspection: Inspection, decoded: Decoded) -> Row:
    """Return the columns of an inspection that took place now."""
    at, result = time.time(), inspection.to_json()
    height, width = inspection.image_size
    return {
        "id": new_id(at),
        "at": at,
        "model": model.name,
        "identity": model.identity,
        "name": inspection.name,
        **{key: result[key] for key in RESULT_KEYS},
        "traits": statistics_of_inspection(inspection, model.detector.config.frame),
        "width": width,
        "height": height,
        "draw": random.random(),
        "notes": _notes(decoded),
    }


def _notes(decoded: Decoded) -> list[str] | None:
    """What the client should know about its file."""
    if decoded.frames == 1:
        return None
    count = f"{decoded.frames} or more" if decoded.frames >= MOST_FRAMES else f"{decoded.frames}"
    return [f"the file has {count} pages or frames; only the first was inspected"]
