"""Inspect the images of one chunk and write their results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from patchsvdd.apps.cluster.job import Chunk, Job
from patchsvdd.apps.cluster.storage import StoragePath
from patchsvdd.core.errors import DatasetError, ImageError
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.images.decoding import UNREACHABLE
from patchsvdd.images.image_set import ImageLike
from patchsvdd.report.overlay import draw_overlay, image_bytes
from patchsvdd.report.rows import Row, error_row, file_for, inspection_row, npy_bytes, timed
from patchsvdd.scoring.inspection import Inspection

REMOTE_READERS = 32
"""Images fetched from an object store at once; each needs a round trip."""


OVERLAYS = ("none", "anomalous", "all")


@dataclass(frozen=True)
class OutputOptions:
    """Files to write in addition to the rows."""

    pictures: str = "none"
    """The images that get an overlay, one of ``OVERLAYS``."""
    maps: bool = False


@dataclass(frozen=True)
class ChunkSummary:
    """Counts of an inspected chunk."""

    images: int
    anomalous: int
    unreadable: int


def inspect_chunk(detector: PatchSVDD, job: Job, chunk: Chunk, options: OutputOptions) -> ChunkSummary:
    """Inspect the images of a chunk and write its results before returning."""
    images = job.images(chunk)
    sources: list[ImageLike] = [_source(path) for _, path in images]
    numbers = {str(source): index for index, source in enumerate(sources)}
    origins: list[Row] = [{"image": image, "path": path, "model": detector.identity} for image, path in images]
    rows = list(origins)
    errors: list[ImageError] = []
    readers = REMOTE_READERS if any(isinstance(source, StoragePath) for source in sources) else None

    for inspection, seconds in timed(detector.inspect_many(sources, on_error=errors.append, readers=readers)):
        number = numbers[inspection.name]
        files = _write_files(inspection, images[number][0], job, options)
        rows[number] = inspection_row(inspection, **origins[number], seconds=seconds, **files)
    for error in errors:
        rows[numbers[error.name]] = error_row(error.reason, **origins[numbers[error.name]])
    if all(row.get("error", "").startswith(UNREACHABLE) for row in rows):
        # The storage is unavailable. With rows of errors, these images would count as inspected and never be retried.
        raise DatasetError(
            f"none of {len(rows)} images could be read, such as {rows[0]['path']}, which {rows[0]['error']}; run the "
            f"same command again once the storage is available"
        )
    job.commit(chunk, rows)
    return ChunkSummary(
        len(rows), sum(bool(row.get("is_anomalous")) for row in rows), sum("error" in row for row in rows)
    )


def _source(path: str) -> ImageLike:
    source = StoragePath(path)
    return source if source.local is None else Path(path)


def _write_files(inspection: Inspection, name: str, job: Job, options: OutputOptions) -> dict[str, str]:
    """Write the overlay and map that the options request; returns column → path."""
    files = {}
    if options.pictures == "all" or (options.pictures == "anomalous" and inspection.is_anomalous):
        files["overlay"] = file_for("overlays", name, ".jpg").as_posix()
        (job.out / files["overlay"]).write(image_bytes(draw_overlay(inspection)), sync=False)
    if options.maps:
        files["map"] = file_for("maps", name, ".npy").as_posix()
        (job.out / files["map"]).write(npy_bytes(inspection.anomaly_map), sync=False)
    return files
