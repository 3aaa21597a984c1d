"""What a worker does: it inspects the images of a chunk and writes what it found."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from patchsvdd.apps.cluster.job import Chunk, Job, Row
from patchsvdd.apps.cluster.storage import StoragePath
from patchsvdd.core.errors import DatasetError, ImageError
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.images.decoding import UNREACHABLE
from patchsvdd.images.image_set import ImageLike
from patchsvdd.report.inspection_run import file_for
from patchsvdd.report.overlay import draw_overlay
from patchsvdd.scoring.inspection import Inspection

FAR_READERS = 32
"""Images of an object store that are fetched at once: each is a round trip."""


@dataclass(frozen=True)
class OutputOptions:
    """What is written beside verdicts."""

    pictures: str = "none"
    """Of which images overlays are written: "none", "anomalous" or "all"."""
    maps: bool = False


@dataclass(frozen=True)
class ChunkSummary:
    """What a chunk came to."""

    images: int
    anomalous: int
    unreadable: int


def inspect_chunk(detector: PatchSVDD, job: Job, chunk: Chunk, wanted: OutputOptions) -> ChunkSummary:
    """Inspect the images of a chunk; when this returns, its results are in place."""
    named = job.images(chunk)
    sources: list[ImageLike] = [_source(path) for _, path in named]
    numbers = {str(source): index for index, source in enumerate(sources)}
    rows: list[Row] = [{"image": name, "path": path, "model": detector.identity} for name, path in named]
    for told, found in _inspected(detector, sources):
        row = rows[numbers[told]]
        if isinstance(found, ImageError):
            row["error"] = found.reason
        else:
            row |= found.to_json() | {"image": row["image"]} | _files(found, row["image"], job, wanted)
    if all(row.get("error", "").startswith(UNREACHABLE) for row in rows):
        # Not the images but the way to them is broken: rows would stay, and these images never be inspected.
        raise DatasetError(
            f"none of {len(rows)} images could be read, such as {rows[0]['path']}, which {rows[0]['error']}; the same "
            f"command goes on once they can"
        )
    job.commit(chunk, rows)
    return ChunkSummary(
        len(rows), sum(bool(row.get("is_anomalous")) for row in rows), sum("error" in row for row in rows)
    )


def _inspected(detector: PatchSVDD, sources: list[ImageLike]) -> Iterator[tuple[str, Inspection | ImageError]]:
    errors: list[ImageError] = []
    readers = FAR_READERS if any(isinstance(one, StoragePath) for one in sources) else None
    for inspection in detector.inspect_many(sources, on_error=errors.append, readers=readers):
        yield inspection.name, inspection
    yield from ((error.name, error) for error in errors)


def _source(path: str) -> ImageLike:
    place = StoragePath(path)
    return place if place.local is None else Path(path)


def _files(inspection: Inspection, name: str, job: Job, wanted: OutputOptions) -> dict[str, str]:
    """The picture and map that are wanted of an image, written now."""
    files = {}
    if wanted.pictures == "all" or (wanted.pictures == "anomalous" and inspection.is_anomalous):
        files["overlay"] = file_for("overlays", name, ".jpg").as_posix()
        content = io.BytesIO()
        draw_overlay(inspection).save(content, format="JPEG", quality=90, subsampling=0)
        (job.out / files["overlay"]).write(content.getbuffer(), sync=False)
    if wanted.maps:
        files["map"] = file_for("maps", name, ".npy").as_posix()
        content = io.BytesIO()
        np.save(content, inspection.anomaly_map)
        (job.out / files["map"]).write(content.getbuffer(), sync=False)
    return files
