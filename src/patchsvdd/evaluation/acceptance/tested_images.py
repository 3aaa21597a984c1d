"""Inspect the images of an acceptance test, without those that prove nothing: known to the model, or given twice."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from patchsvdd.core.errors import DatasetError, ImageError
from patchsvdd.core.progress import OnStage
from patchsvdd.detector.base import Detector
from patchsvdd.evaluation.acceptance.inspectors_file import file_digest
from patchsvdd.images.image_files import find_images
from patchsvdd.images.image_set import LoadedImage, digest_of_pixels
from patchsvdd.images.loading import load_batches
from patchsvdd.report.overlay import draw_overlay
from patchsvdd.scoring.inspection import Inspection

Role = Literal["good", "defects", "repeats"]
UNNAMED = "unnamed"
"""Kind of the defects that lie directly in their folder."""
MOST_PICTURES = 40
"""Pictures of missed defects, and as many of rejected good images, in a report."""
WIDEST = 720
"""Pixels of the longer side of a picture."""
BATCH = 8
"""Images inspected at a time on a GPU."""


@dataclass(frozen=True)
class InspectedImage:
    """An image that counts."""

    name: str
    """Its role and its path in the folder: "defects/scratch/003.png"."""
    role: Role
    kind: str
    """Kind of the defect, or the part of a repeated shot; empty for a good image."""
    score: float
    is_anomalous: bool
    sha256: str
    """Of the file."""
    digest: str
    """Of the pixels as the model sees them (``image_set.digest_of_pixels``)."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return asdict(self)


@dataclass(frozen=True)
class LeftOut:
    """An image that does not count."""

    name: str
    role: Role
    reason: str
    is_broken: bool = False

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {"name": self.name, "role": self.role, "reason": self.reason}


@dataclass(frozen=True)
class WrongImage:
    """The picture of a missed defect or a rejected good image."""

    name: str
    ratio: float
    """Score ÷ threshold."""
    picture: bytes
    """A JPEG: the image, and its heat map beside it."""


@dataclass(frozen=True)
class FoundImages:
    """The image files of one folder of the test."""

    role: Role
    folder: Path
    files: tuple[Path, ...]
    broken: tuple[ImageError, ...]

    @property
    def names(self) -> list[str]:
        """The names of all images, unreadable ones included."""
        return [self.name_of(path) for path in (*self.files, *(Path(error.name) for error in self.broken))]

    def name_of(self, path: Path) -> str:
        """The name of a file in the test."""
        return f"{self.role}/{path.relative_to(self.folder).as_posix()}"

    def kind_of(self, path: Path) -> str:
        """The subfolder of a file: the kind of a defect, or the part."""
        inside = path.relative_to(self.folder).parts
        if self.role == "good":
            return ""
        return inside[0] if len(inside) > 1 else UNNAMED


def find_role(role: Role, folder: Path) -> FoundImages:
    """The images of a folder; raise DatasetError if there is none, or if they are arranged in another way."""
    files, broken = find_images(folder)
    if not files and not broken:
        raise DatasetError(f"there is no image in '{folder}'; give PNG, JPEG, WebP, BMP or TIFF images")
    found = FoundImages(role, folder, tuple(files), tuple(broken))
    if role == "defects" and any(found.kind_of(path) == "good" for path in files):
        raise DatasetError(f"'{folder}' has a folder of good images, '{folder / 'good'}'; `defects` must have none")
    if role == "repeats" and any(len(path.relative_to(folder).parts) == 1 for path in files):
        raise DatasetError(f"'{folder}' has images of no part; put the shots of each part in a subfolder of its own")
    return found


def names_in_files(found: Sequence[FoundImages]) -> dict[str, list[str]]:
    """Every name that a list of verdicts may use for an image → the images that it can mean."""
    names: dict[str, list[str]] = {}
    for one in found:
        for name in one.names:
            inside = name.partition("/")[2]
            full = (one.folder / inside).as_posix()
            for spelled in {name, inside, Path(inside).name, f"{one.folder.name}/{inside}", full}:
                names.setdefault(spelled, []).append(name)
    for spelled in [name for name in names if len(names[name]) > 1]:
        if spelled in names[spelled]:  # the full name of an image means that image
            names[spelled] = [spelled]
    return names


def known_digests(provenance: Mapping[str, Any], calibration: Sequence[str], taught: Sequence[str]) -> dict[str, str]:
    """Digest of every image that went into a model → why it proves nothing."""
    reasons = dict.fromkeys(taught, "the model was taught this defect")
    reasons |= dict.fromkeys(calibration, "the model was calibrated with this image")
    return reasons | dict.fromkeys(provenance.get("data", {}).get("digests", ()), "the model was trained on this image")


class ImageTest:
    """Inspects the folders of a test one by one and keeps what counts."""

    def __init__(
        self,
        detector: Detector,
        known: Mapping[str, str],
        on_error: Callable[[ImageError], None] | None = None,
        on_stage: OnStage | None = None,
    ) -> None:
        self.tested: list[InspectedImage] = []
        self.left_out: list[LeftOut] = []
        self.missed: list[WrongImage] = []
        self.rejected: list[WrongImage] = []
        self._detector, self._known = detector, known
        self._on_error, self._on_stage = on_error, on_stage
        self._seen: dict[str, tuple[Role, str]] = {}

    def add(self, found: FoundImages) -> None:
        """Inspect the images of a folder. Raise DatasetError if none of them counts."""
        before, left_before = len(self.tested), len(self.left_out)
        for error in found.broken:
            self._leave_out_broken(found, error)
        done, total = 0, len(found.files)
        for read, inspections in self._inspected(found):
            for digest, inspection in inspections:
                self._record(found, digest, inspection)
            done += read
            if self._on_stage is not None:
                self._on_stage(found.role, done, total)
        if self._on_stage is not None:
            self._on_stage(found.role, total, total)
        if len(self.tested) == before:
            reasons = self.left_out[left_before:]
            raise DatasetError(
                f"no image in '{found.folder}' counts: all {len(reasons)} are left out. "
                f"'{reasons[0].name}': {reasons[0].reason}. Give images that the model has not seen"
            )
        for wrong, sign in ((self.missed, 1), (self.rejected, -1)):  # the worst first
            wrong.sort(key=lambda one, sign=sign: sign * one.ratio)  # type: ignore[misc]
            del wrong[MOST_PICTURES:]

    def _inspected(self, found: FoundImages) -> Iterator[tuple[int, list[tuple[str, Inspection]]]]:
        """Batches: the number of images that were read, and the digests and inspections of those that count."""
        size = BATCH if self._detector.device.type == "cuda" else 1
        errors: list[ImageError] = []
        for batch in load_batches([str(path) for path in found.files], self._detector.config, size, errors.append):
            while errors:
                self._leave_out_broken(found, errors.pop(0))
            digests = [digest_of_pixels(loaded.tensor) for loaded in batch]
            kept = [pair for pair in zip(digests, batch, strict=True) if self._counts(found, *pair)]
            inspections = self._detector.inspect_loaded([loaded for _, loaded in kept]) if kept else []
            yield len(batch), [(digest, one) for (digest, _), one in zip(kept, inspections, strict=True)]
        for error in errors:
            self._leave_out_broken(found, error)

    def _leave_out_broken(self, found: FoundImages, error: ImageError) -> None:
        if self._on_error is None:
            raise error
        self._on_error(error)
        self.left_out.append(LeftOut(found.name_of(Path(error.name)), found.role, error.reason, is_broken=True))

    def _counts(self, found: FoundImages, digest: str, loaded: LoadedImage) -> bool:
        """Whether an image counts; records why if it does not."""
        name = found.name_of(Path(loaded.name))
        reason = self._known.get(digest)
        role, first = self._seen.setdefault(digest, (found.role, name))
        if reason is None and first != name:
            if {role, found.role} == {"good", "defects"}:
                raise DatasetError(f"'{first}' and '{name}' are the same image; it is either good or a defect")
            # A shot of a part may also be one of the good or defective images.
            if role == found.role:
                reason = f"it is a copy of '{first}'"
        if reason is not None:
            self.left_out.append(LeftOut(name, found.role, reason))
        return reason is None

    def _record(self, found: FoundImages, digest: str, inspection: Inspection) -> None:
        path = Path(inspection.name)
        one = InspectedImage(
            found.name_of(path),
            found.role,
            found.kind_of(path),
            inspection.score,
            inspection.is_anomalous,
            file_digest(path),
            digest,
        )
        self.tested.append(one)
        if found.role == "defects" and not one.is_anomalous:
            _keep(self.missed, one, inspection)
        elif found.role == "good" and one.is_anomalous:
            _keep(self.rejected, one, inspection)


def _keep(wrong: list[WrongImage], one: InspectedImage, inspection: Inspection) -> None:
    ratio = one.score / inspection.threshold if inspection.threshold > 0 else float("inf")
    wrong.append(WrongImage(one.name, ratio, _picture(inspection)))


def _picture(inspection: Inspection) -> bytes:
    drawn, content = draw_overlay(inspection), io.BytesIO()
    drawn.thumbnail((WIDEST, WIDEST), Image.Resampling.LANCZOS)
    drawn.save(content, "JPEG", quality=82)
    return content.getvalue()
