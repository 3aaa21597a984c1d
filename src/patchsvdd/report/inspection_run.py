"""Inspect many images into a folder of results, overlays and a report. A second run continues the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from patchsvdd.core.errors import DatasetError, ImageError
from patchsvdd.core.files import atomic_write
from patchsvdd.core.version import __version__
from patchsvdd.images.image_files import find_images
from patchsvdd.report.overlay import save_image, save_overlay
from patchsvdd.report.report import write_report
from patchsvdd.report.results_file import ResultsFile
from patchsvdd.report.rows import Row, error_row, file_for, inspection_row, npy_bytes, timed
from patchsvdd.scoring.inspection import Inspection

if TYPE_CHECKING:
    from patchsvdd.report.model_card import ModelCard


class Inspector(Protocol):
    """A detector, or an exported file."""

    @property
    def identity(self) -> str | None:
        """Short hash of the stored model."""

    @property
    def min_area(self) -> int:
        """Smallest connected region above the threshold that counts, in pixels of the original image; 0 for any."""

    @property
    def processor(self) -> str:
        """What computes, in words."""

    def inspect_many(
        self, images: Sequence[str], *, on_error: Callable[[ImageError], None] | None = None
    ) -> Iterator[Inspection]:
        """Inspections of files, in order; unusable ones go to ``on_error``."""


@dataclass(frozen=True)
class RunSummary:
    """Contents of the results folder after a run."""

    images: int
    anomalous: int
    good: int
    unreadable: int
    already_done: int
    """Number of images of an earlier run that were not inspected again."""
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
class InputImage:
    """An image to inspect."""

    name: str
    path: Path
    state: dict[str, int]
    """Size and modification time when it was found, before it was read."""


@dataclass(frozen=True)
class InspectionInputs:
    """The images in the given files and folders."""

    sources: Sequence[Path]
    images: Sequence[InputImage]
    """Without duplicates, under distinct names."""
    broken: dict[str, ImageError]
    """Name → error, for files with an image extension that are not images."""


@dataclass(frozen=True)
class _OutputOptions:
    """Optional outputs besides rows and overlays."""

    maps: bool
    explanations: bool


def inspect_into(
    folder: Path,
    detector: Inspector,
    inputs: InspectionInputs | Sequence[Path],
    *,
    model_name: str,
    card: ModelCard,
    overwrite: bool = False,
    save_maps: bool = False,
    explain: bool = False,
    on_progress: Callable[[int, int, Row | None], None] | None = None,
    on_inspection: Callable[[Inspection], None] | None = None,
) -> RunSummary:
    """Inspect files and folders into ``folder``. The report is written even if the run is interrupted.

    ``card`` is the description of the model in the report.

    ``save_maps`` also writes every anomaly map, ``explain`` the explanation of every anomalous image.
    ``on_progress`` is called with the number of images done, the number of images, and the row just written;
    ``on_inspection`` with each inspection.
    """
    inputs = inputs if isinstance(inputs, InspectionInputs) else find_inputs(inputs)
    options = _OutputOptions(save_maps, explain)
    with ResultsFile(folder) as results:
        paths = {image.name: str(image.path) for image in inputs.images}
        paths |= {name: error.name for name, error in inputs.broken.items()}

        def keep(row: Row) -> bool:
            # An image of the same name may come from another folder than in the earlier run.
            same_image = row.get("path") == paths.get(row["image"], row.get("path"))
            return not overwrite and same_image and _still_valid(row, detector, folder, options)

        done = results.resume(keep)
        to_do = {str(image.path): image for image in inputs.images if image.name not in done}
        failures = {name: error for name, error in inputs.broken.items() if name not in done}
        finished = len(done)
        total = finished + len(to_do) + len(failures)

        def record(row: Row | None) -> None:
            nonlocal finished
            if row is not None:
                results.append(row)
                finished += 1
            if on_progress is not None:
                on_progress(finished, total, row)

        def record_error(name: str, error: ImageError) -> None:
            record(error_row(error.reason, image=name, path=error.name, model=detector.identity))

        record(None)
        for name, error in failures.items():
            record_error(name, error)
        try:
            unreadable: list[ImageError] = []
            for inspection, seconds in timed(detector.inspect_many(list(to_do), on_error=unreadable.append)):
                while unreadable:
                    record_error(to_do[unreadable[0].name].name, unreadable.pop(0))
                source = to_do[inspection.name]
                record(_write_inspection(inspection, source, detector.identity, seconds, folder, options))
                if on_inspection is not None:
                    on_inspection(inspection)
            for error in unreadable:
                record_error(to_do[error.name].name, error)
        finally:
            results.write_csv()
            page = write_report(
                folder,
                results.rows_worst_first,
                title=f"Inspection by {model_name}",
                facts={"Model": f"{model_name}, {detector.identity or 'not saved'}"} | _facts(detector, inputs.sources),
                model=card,
            )
        return _summarise(results.rows_worst_first(), already_done=len(done), page=page)


def find_inputs(sources: Sequence[Path]) -> InspectionInputs:
    """The images in files and folders. Raises DatasetError for a source without images."""
    images: dict[Path, InputImage] = {}
    broken: dict[str, ImageError] = {}
    for source, prefix in zip(sources, _prefixes(sources), strict=True):
        if source.is_dir():
            files, not_images = find_images(source)
            if not files and not not_images:
                raise DatasetError(f"there is no image in '{source}'; give PNG, JPEG, WebP, BMP or TIFF images")
            root = source.resolve()
            for file in files:
                name = file.relative_to(source)
                images.setdefault(root / name, InputImage(prefix + name.as_posix(), file, file_state(file)))
            broken |= {prefix + Path(error.name).relative_to(source).as_posix(): error for error in not_images}
        elif source.exists():
            images.setdefault(source.resolve(), InputImage(prefix + source.name, source, file_state(source)))
        else:
            raise DatasetError(f"there is no file or folder '{source}'; check the path")
    return InspectionInputs(sources, list(images.values()), broken)


def _prefixes(inputs: Sequence[Path]) -> list[str]:
    """A prefix per input for the names of its images, so that equal names in different folders stay distinct."""
    if len(inputs) == 1:
        return [""]
    prefixes = []
    chosen: dict[Path, str] = {}
    for source in inputs:
        base = (source if source.is_dir() else source.parent).resolve().name or "root"
        if not source.is_dir() and all(other.resolve().parent == source.resolve().parent for other in inputs):
            prefixes.append("")  # files of one folder already have distinct names
            continue
        place = source.resolve() if source.is_dir() else source.parent.resolve()
        names = (f"{base}/" if number == 1 else f"{base}-{number}/" for number in count(1))
        prefixes.append(chosen.setdefault(place, next(name for name in names if name not in chosen.values())))
    return prefixes


def _still_valid(row: Row, detector: Inspector, folder: Path, options: _OutputOptions) -> bool:
    """Whether a row of an earlier run has the same file and model, and all its output files exist."""
    if "error" in row or row.get("model") != detector.identity or row.get("min_area", 0) != detector.min_area:
        return False
    try:
        unchanged = bool(row["file"] == file_state(Path(row["path"])))
        written = [row["overlay"]]
        if options.maps:
            written.append(row["map"])
        if options.explanations and row["is_anomalous"]:
            written.append(row["explanation"]["picture"])
        return unchanged and all((folder / path).exists() for path in written)
    except (OSError, KeyError, TypeError):
        return False


def file_state(path: Path) -> dict[str, int]:
    """Size and modification time of a file."""
    state = path.stat()
    return {"bytes": state.st_size, "modified_ns": state.st_mtime_ns}


def _write_inspection(
    inspection: Inspection, source: InputImage, model: str | None, seconds: float, folder: Path, options: _OutputOptions
) -> Row:
    """Write the overlay, map and explanation of an inspection; return its row."""
    overlay = file_for("overlays", source.name, ".jpg")
    save_overlay(inspection, folder / overlay)
    files: dict[str, Any] = {"overlay": overlay.as_posix(), "file": source.state}
    if options.explanations and inspection.is_anomalous:
        explanation, pairs = inspection.explain(), file_for("explanations", source.name, ".jpg")
        save_image(explanation.picture(), folder / pairs)
        files["explanation"] = {"picture": pairs.as_posix(), "reasons": explanation.to_json()["reasons"]}
    if options.maps:
        map_file = file_for("maps", source.name, ".npy")
        with atomic_write(folder / map_file, sync=False) as file:
            file.write(npy_bytes(inspection.anomaly_map))
        files["map"] = map_file.as_posix()
    path = str(source.path)
    return inspection_row(inspection, image=source.name, path=path, model=model, seconds=seconds, **files)


def _facts(detector: Inspector, inputs: Sequence[Path]) -> dict[str, str]:
    """Facts about the run for the report."""
    return {
        "Inspected": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "Images from": ", ".join(map(str, inputs)),
        "Device": detector.processor,
        "Version": f"patchsvdd {__version__}",
    }


def _summarise(rows: Iterator[Row], *, already_done: int, page: Path) -> RunSummary:
    counts = {"anomalous": 0, "good": 0, "unreadable": 0}
    for row in rows:
        counts["unreadable" if "error" in row else row["verdict"]] += 1
    return RunSummary(images=sum(counts.values()), already_done=already_done, page=page, **counts)
