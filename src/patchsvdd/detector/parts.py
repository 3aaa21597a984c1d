"""Parts with several views: one model for each view, and one verdict."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patchsvdd.core.errors import ConfigError, DatasetError, ImageError, ModelError
from patchsvdd.core.files import atomic_write
from patchsvdd.core.progress import OnProgress
from patchsvdd.detector.base import Detector
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.stored_memory import Search
from patchsvdd.encoder.embedder import Engine
from patchsvdd.encoder.engines import Precision
from patchsvdd.images.image_set import ImageLike, digest_of_pixels, load_image
from patchsvdd.scoring.calibration import Calibration
from patchsvdd.scoring.inspection import Inspection
from patchsvdd.scoring.part_calibration import (
    Incomplete,
    PartCalibration,
    PartJudgement,
    PartVerdict,
    bonferroni_parts,
    calibrate_parts,
)

FORMAT = "patchsvdd part"
FORMAT_VERSION = 1
AGAIN = "calibrate the part again: patchsvdd part calibrate"

PartImages = Mapping[str, ImageLike]
"""View → image."""
OnError = Callable[[str, str, ImageError], None]
"""Called with a part, a view and what is wrong with its image."""


@dataclass(frozen=True)
class PartInspection:
    """The result for one part."""

    inspections: Mapping[str, Inspection] = field(repr=False)
    """View → its inspection, for the views that could be inspected."""
    judgement: PartJudgement

    @property
    def verdict(self) -> PartVerdict:
        """ "good", "anomalous" or "incomplete"; only good parts may pass."""
        return self.judgement.verdict

    @property
    def score(self) -> float | None:
        """The highest score of a view in multiples of its limit; above 1 is anomalous."""
        return self.judgement.score

    @property
    def p_value(self) -> float | None:
        """Probability that a good part scores at least this high."""
        return self.judgement.p_value

    @property
    def missing(self) -> tuple[str, ...]:
        """Views that were not given, or could not be inspected."""
        return self.judgement.missing


@dataclass(frozen=True)
class CalibratedParts:
    """A calibration from parts, and the parts that were left out."""

    calibration: PartCalibration
    known: tuple[str, ...]
    """Parts with an image that a model was trained or calibrated with."""
    copies: tuple[str, ...]
    """Parts with an image of an earlier part."""
    unusable: tuple[str, ...]
    """Parts with an image that could not be used."""


@dataclass(frozen=True)
class StoredPart:
    """The content of a part file."""

    folders: Mapping[str, Path]
    """View → folder of its model."""
    calibration: PartCalibration

    def require(self, identities: Mapping[str, str | None]) -> None:
        """Raise ModelError if a model is not the one that the calibration was made with."""
        require_identities(self.calibration, identities)


def require_identities(calibration: PartCalibration, identities: Mapping[str, str | None]) -> None:
    """Raise ModelError if there is another model for a view than the calibration was made with, or none."""
    for view, identity in calibration.identities.items():
        now = identities.get(view)
        if now is None:
            raise ModelError(f"there is no model for the view '{view}' of this part; give one, or {AGAIN}")
        if now != identity:
            raise ModelError(
                f"the model of the view '{view}' was changed since the part was calibrated (it was {identity} and is "
                f"{now}), so its limits no longer hold; {AGAIN}"
            )


class PartInspector:
    """Inspects parts with several views; each view has its model.

    ```python
    inspector = PartInspector({"top": PatchSVDD.load("models/top"), "side": PatchSVDD.load("models/side")})
    inspector.calibrate({"0001": {"top": "good/0001_top.png", "side": "good/0001_side.png"}, ...}, 0.01)
    inspection = inspector.inspect({"top": "new_top.png", "side": "new_side.png"})
    ```
    """

    def __init__(self, models: Mapping[str, Detector], calibration: PartCalibration | None = None) -> None:
        """``models``: view → its model, saved. Raise ModelError if the calibration was made with others."""
        self.models = dict(models)
        self.calibration = calibration
        if calibration is not None:
            require_identities(calibration, {view: model.identity for view, model in self.models.items()})

    def calibrate(
        self,
        parts: Mapping[str, PartImages],
        false_alarm_rate: float,
        *,
        incomplete: Incomplete = "incomplete",
        on_error: OnError | None = None,
        on_progress: OnProgress | None = None,
    ) -> CalibratedParts:
        """Set the limits of all views from good parts (part number → view → image), which no model has seen.

        Parts with images that a model was trained or calibrated with are left out. Raise DatasetError if a part lacks
        a view. An unusable image raises ImageError, or is passed to ``on_error`` and its part left out.
        """
        identities, calibrations = self._identities(), self._calibrations()
        for part, images in parts.items():
            lacking = [view for view in self.models if view not in images]
            if lacking:
                raise DatasetError(
                    f"the part '{part}' has no image of the view '{lacking[0]}', and a calibration needs all views; "
                    f"leave the part out, or check how its files are named"
                )
        learned = {view: _digests(model, calibrations[view]) for view, model in self.models.items()}
        seen: dict[str, set[str]] = {view: set() for view in self.models}
        scores: dict[str, dict[str, float]] = {}
        known, copies, unusable = [], [], []
        for done, (part, images) in enumerate(parts.items(), start=1):
            loaded = {}
            for view, model in self.models.items():
                try:
                    loaded[view] = load_image(images[view], model.config, _name(part, view, images[view]))
                except ImageError as error:
                    if on_error is None:
                        raise
                    on_error(part, view, error)
            digests = {view: digest_of_pixels(image.tensor) for view, image in loaded.items()}
            if len(loaded) < len(self.models):
                unusable.append(part)
            elif any(digest in learned[view] for view, digest in digests.items()):
                known.append(part)
            elif any(digest in seen[view] for view, digest in digests.items()):
                copies.append(part)
            else:
                scores[part] = {
                    view: model.inspect_loaded([loaded[view]])[0].score for view, model in self.models.items()
                }
            for view, digest in digests.items():
                seen[view].add(digest)
            if on_progress is not None:
                on_progress(done, len(parts))
        if not scores:
            raise DatasetError(_nothing_left(known, copies, unusable))
        self.calibration = calibrate_parts(scores, false_alarm_rate, identities, calibrations, incomplete)
        return CalibratedParts(self.calibration, tuple(known), tuple(copies), tuple(unusable))

    def calibrate_from_views(
        self, false_alarm_rate: float, *, incomplete: Incomplete = "incomplete"
    ) -> PartCalibration:
        """Set the limits of all views from the models' own calibrations, whose rates add up."""
        self.calibration = bonferroni_parts(self._calibrations(), false_alarm_rate, self._identities(), incomplete)
        return self.calibration

    def inspect(self, images: PartImages, *, on_error: OnError | None = None, part: str = "part") -> PartInspection:
        """Inspect one part (view → image). Views may be missing; the part is not good then.

        An unusable image raises ImageError, or is passed to ``on_error`` and its view is missing.
        """
        if self.calibration is None:
            raise ConfigError("this part has no limits yet; call `calibrate` with good parts first")
        unknown = sorted(images.keys() - self.models.keys())
        if unknown:
            raise ConfigError(f"this part has no view '{unknown[0]}'; its views are {', '.join(self.models)}")
        inspections = {}
        for view, model in self.models.items():
            if view not in images:
                continue
            try:
                loaded = load_image(images[view], model.config, _name(part, view, images[view]))
                inspections[view] = model.inspect_loaded([loaded])[0]
            except ImageError as error:
                if on_error is None:
                    raise
                on_error(part, view, error)
        scores = {view: inspection.score for view, inspection in inspections.items()}
        return PartInspection(inspections, self.calibration.judge(scores))

    def save(self, path: str | os.PathLike[str], folders: Mapping[str, str | os.PathLike[str]]) -> None:
        """Write the part file; ``folders`` are those of the models (view → folder), stored relative to the file."""
        if self.calibration is None:
            raise ConfigError("this part has no limits yet; call `calibrate` with good parts first")
        write_part(Path(path), {view: Path(folders[view]) for view in self.models}, self.calibration)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        device: str = "auto",
        *,
        engine: Engine = "auto",
        precision: Precision = "float32",
        search: Search = "auto",
    ) -> PartInspector:
        """Load a part file and its models; raise ModelError if one is damaged, or a model was changed since."""
        stored = read_part(Path(path))
        models = {
            view: PatchSVDD.load(folder, device, engine=engine, precision=precision, search=search)
            for view, folder in stored.folders.items()
        }
        return cls(models, stored.calibration)

    def _identities(self) -> dict[str, str]:
        found = {}
        for view, model in self.models.items():
            if model.identity is None:
                raise ModelError(f"the model of the view '{view}' is not saved; save it first: model.save(folder)")
            found[view] = model.identity
        return found

    def _calibrations(self) -> dict[str, Calibration]:
        found = {}
        for view, model in self.models.items():
            if model.calibration is None:
                raise ModelError(f"the model of the view '{view}' has no calibration; set it: patchsvdd calibrate")
            found[view] = model.calibration
        return found


def write_part(path: Path, folders: Mapping[str, Path], calibration: PartCalibration) -> None:
    """Write a part file atomically; ``folders`` (view → model folder) are stored relative to it if possible."""
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "models": {view: _relative(folder, path) for view, folder in folders.items()},
        "calibration": calibration.to_json(),
    }
    with atomic_write(path) as file:
        file.write(json.dumps({**content, "checksum": _checksum(content)}, indent=1).encode("ascii"))


def read_part(path: Path) -> StoredPart:
    """Return the content of a part file; raise ModelError if it is missing, damaged or of a later version."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"there is no part file '{path}'; make one: patchsvdd part calibrate") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"'{path}' cannot be read ({error}); restore it from a copy, or {AGAIN}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ModelError(f"'{path}' is no part file; check the path")
    if content.get("format_version") != FORMAT_VERSION:
        raise ModelError(
            f"'{path}' has format version {content.get('format_version')}, and this software reads {FORMAT_VERSION}; "
            f"update patchsvdd"
        )
    if content.pop("checksum", None) != _checksum(content):
        raise ModelError(f"'{path}' was altered: its checksum does not match; restore it from a copy, or {AGAIN}")
    folders = {view: (path.parent / folder) for view, folder in content["models"].items()}
    return StoredPart(folders, PartCalibration.from_json(content["calibration"]))


def _digests(model: Detector, calibration: Calibration) -> set[str]:
    """Digests of the images that a model was trained or calibrated with."""
    digests = model.provenance.get("data", {}).get("digests")
    if digests is None:
        raise ModelError("this model does not record which images it holds; train it again to calibrate a part with it")
    return {*digests, *calibration.digests}


def _nothing_left(known: list[str], copies: list[str], unusable: list[str]) -> str:
    if not known:
        return f"no part can be used: {len(unusable)} have an image that cannot be read, {len(copies)} are copies"
    return (
        f"the models know {len(known)} of the {len(known) + len(copies) + len(unusable)} parts, as '{known[0]}': "
        f"they were trained or calibrated with these images, which say nothing about new parts. Give good parts that "
        f"they have not seen"
    )


def _name(part: str, view: str, image: ImageLike) -> str:
    return os.fspath(image) if isinstance(image, str | os.PathLike) else f"{part} {view}"


def _relative(folder: Path, path: Path) -> str:
    try:
        return Path(os.path.relpath(folder.resolve(), path.parent.resolve())).as_posix()
    except ValueError:  # another drive
        return folder.resolve().as_posix()


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()
