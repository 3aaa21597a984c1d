"""A run: many images inspected into a folder of results, pictures and a page; a second run continues."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from patchsvdd.core.device import describe_device
from patchsvdd.core.errors import DatasetError, ImageError
from patchsvdd.core.files import atomic_write
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.images.image_set import find_images
from patchsvdd.report.model_card import ModelCard
from patchsvdd.report.overlay import save_overlay
from patchsvdd.report.report import write_report
from patchsvdd.report.results_file import ResultsFile, Row
from patchsvdd.scoring.inspection import Inspection

LONGEST_NAME = 255
"""Bytes in the name of a file, on nearly every disk."""


@dataclass(frozen=True)
class RunSummary:
    """What the results folder holds after a run."""

    images: int
    anomalous: int
    good: int
    unreadable: int
    already_done: int
    """Images of an earlier run that were not inspected again."""
    page: Path

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {
            "images": self.images,
            "anomalous": self.anomalous,
            "good": self.good,
            "unreadable": self.unreadable,
            "already_done": self.already_done,
            "page": str(self.page),
        }


@dataclass(frozen=True)
class _Wanted:
    """What is written beside verdicts and overlays."""

    maps: bool
    reasons: bool


@dataclass(frozen=True)
class _Input:
    name: str
    path: Path
    state: dict[str, int]
    """Size and time of change when it was found, before it was read."""


def inspect_into(
    folder: Path,
    detector: PatchSVDD,
    inputs: Sequence[Path],
    *,
    model_name: str,
    overwrite: bool = False,
    save_maps: bool = False,
    explain: bool = False,
    on_progress: Callable[[int, int, Row | None], None] | None = None,
    on_inspection: Callable[[Inspection], None] | None = None,
) -> RunSummary:
    """Inspect files and folders into ``folder``; the page is written even when the run is interrupted.

    With ``save_maps`` every map is written too, with ``explain`` the reasons of every anomalous image.
    ``on_progress`` is called with the images done, their number, and the row just written; ``on_inspection`` with
    each inspection made.
    """
    found, broken = _find_inputs(inputs)
    wanted = _Wanted(save_maps, explain)
    with ResultsFile(folder) as results:
        paths = {one.name: str(one.path) for one in found} | {name: error.name for name, error in broken.items()}

        def keep(row: Row) -> bool:
            # An image of the same name may lie in another folder than that of the earlier run.
            same_image = row.get("path") == paths.get(row["image"], row.get("path"))
            return not overwrite and same_image and _still_valid(row, detector, folder, wanted)

        done = results.resume(keep)
        to_do = {str(one.path): one for one in found if one.name not in done}
        failures = {name: error for name, error in broken.items() if name not in done}
        finished = len(done)
        total = finished + len(to_do) + len(failures)

        def record(row: Row | None) -> None:
            nonlocal finished
            if row is not None:
                results.append(row)
                finished += 1
            if on_progress is not None:
                on_progress(finished, total, row)

        record(None)
        for name, error in failures.items():
            record({"image": name, "path": error.name, "error": error.reason})
        try:
            unreadable: list[ImageError] = []
            for inspection in detector.inspect_many(list(to_do), on_error=unreadable.append):
                for row in _failed_rows(unreadable, to_do):
                    record(row)
                record(_write_inspection(inspection, to_do[inspection.name], detector, folder, wanted))
                if on_inspection is not None:
                    on_inspection(inspection)
            for row in _failed_rows(unreadable, to_do):
                record(row)
        finally:
            results.write_csv()
            page = write_report(
                folder,
                results.rows_worst_first,
                title=f"Inspection by {model_name}",
                facts={"Model": f"{model_name}, {detector.identity or 'not saved'}"} | _facts(detector, inputs),
                model=ModelCard.of(detector, model_name),
            )
        return _summarise(results.rows_worst_first(), already_done=len(done), page=page)


def _find_inputs(inputs: Sequence[Path]) -> tuple[list[_Input], dict[str, ImageError]]:
    """Images of all inputs under distinct names, each once; and files that only claim to be images."""
    found: dict[Path, _Input] = {}
    broken: dict[str, ImageError] = {}
    for source, prefix in zip(inputs, _prefixes(inputs), strict=True):
        if source.is_dir():
            files, claims = find_images(source)
            if not files and not claims:
                raise DatasetError(f"there is no image in '{source}'; give PNG, JPEG, WebP, BMP or TIFF images")
            place = source.resolve()
            for file in files:
                name = file.relative_to(source)
                found.setdefault(place / name, _Input(prefix + name.as_posix(), file, _file_state(file)))
            broken |= {prefix + Path(claim.name).relative_to(source).as_posix(): claim for claim in claims}
        elif source.exists():
            found.setdefault(source.resolve(), _Input(prefix + source.name, source, _file_state(source)))
        else:
            raise DatasetError(f"there is no file or folder '{source}'; check the path")
    return list(found.values()), broken


def _prefixes(inputs: Sequence[Path]) -> list[str]:
    """What to put before the names of each input, so that equal names in several folders stay apart."""
    if len(inputs) == 1:
        return [""]
    prefixes = []
    chosen: dict[Path, str] = {}
    for source in inputs:
        base = (source if source.is_dir() else source.parent).resolve().name or "root"
        if not source.is_dir() and all(other.resolve().parent == source.resolve().parent for other in inputs):
            prefixes.append("")  # several files of one folder: their names are distinct already
            continue
        place = source.resolve() if source.is_dir() else source.parent.resolve()
        names = (f"{base}/" if number == 1 else f"{base}-{number}/" for number in count(1))
        prefixes.append(chosen.setdefault(place, next(name for name in names if name not in chosen.values())))
    return prefixes


def _still_valid(row: Row, detector: PatchSVDD, folder: Path, wanted: _Wanted) -> bool:
    """Whether a row of an earlier run speaks of the same file and model, and the files that are wanted are there."""
    if "error" in row or row.get("model") != detector.identity or row.get("min_area", 0) != detector.min_area:
        return False
    try:
        unchanged = bool(row["file"] == _file_state(Path(row["path"])))
        pictures = [row["overlay"]]
        if wanted.maps:
            pictures.append(row["map"])
        if wanted.reasons and row["is_anomalous"]:
            pictures.append(row["explanation"]["picture"])
        return unchanged and all((folder / path).exists() for path in pictures)
    except (OSError, KeyError, TypeError):
        return False


def _file_state(path: Path) -> dict[str, int]:
    state = path.stat()
    return {"bytes": state.st_size, "modified_ns": state.st_mtime_ns}


def _write_inspection(
    inspection: Inspection, source: _Input, detector: PatchSVDD, folder: Path, wanted: _Wanted
) -> Row:
    """The row of an inspection, after its pictures (and map) are on disk."""
    overlay = file_for("overlays", source.name, ".jpg")
    save_overlay(inspection, folder / overlay)
    row = inspection.to_json() | {
        "image": source.name,
        "path": str(source.path),
        "overlay": overlay.as_posix(),
        "model": detector.identity,
        "file": source.state,
    }
    if wanted.reasons and inspection.is_anomalous:
        explanation, pairs = inspection.explain(), file_for("explanations", source.name, ".jpg")
        with atomic_write(folder / pairs, sync=False) as file:
            explanation.picture().save(file, format="JPEG", quality=90, subsampling=0)
        row["explanation"] = {"picture": pairs.as_posix(), "reasons": explanation.to_json()["reasons"]}
    if wanted.maps:
        map_file = file_for("maps", source.name, ".npy")
        with atomic_write(folder / map_file, sync=False) as file:
            np.save(file, inspection.anomaly_map)
        row["map"] = map_file.as_posix()
    return row


def file_for(kind: str, name: str, suffix: str) -> Path:
    """Where the picture or map of an image goes.

    What would grow too long for the disk becomes its hash, and so does an address or a path that leads elsewhere.
    """
    path, hashed = Path(kind, name + suffix), hashlib.sha256(os.fsencode(name)).hexdigest()[:32] + suffix
    if any(part in ("", ".", "..") for part in name.split("/")):
        return Path(kind, hashed)
    return path if len(os.fsencode(path.name)) <= LONGEST_NAME else path.with_name(hashed)


def _failed_rows(unreadable: list[ImageError], inputs: dict[str, _Input]) -> Iterator[Row]:
    """Rows of images that could not be read, emptying the list."""
    while unreadable:
        error = unreadable.pop(0)
        yield {"image": inputs[error.name].name, "path": error.name, "error": error.reason}


def _facts(detector: PatchSVDD, inputs: Sequence[Path]) -> dict[str, str]:
    """What the page says of the run."""
    from patchsvdd.core.version import __version__

    return {
        "Inspected": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "Images from": ", ".join(map(str, inputs)),
        "On": describe_device(detector.device),
        "With": f"patchsvdd {__version__}",
    }


def _summarise(rows: Iterator[Row], *, already_done: int, page: Path) -> RunSummary:
    counts = {"anomalous": 0, "good": 0, "unreadable": 0}
    for row in rows:
        counts["unreadable" if "error" in row else row["verdict"]] += 1
    return RunSummary(images=sum(counts.values()), already_done=already_done, page=page, **counts)
