"""Golden images: references with known verdicts that are stored with a model and inspected to check it.

    golden/golden.json     verdict, score and checksum of each image, and the model's identity at that time
    golden/part-17.png     the images, as they were given

They are no part of the model: adding or removing some does not change its identity, and a model that is trained again
in the same folder is checked with the same images.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from patchsvdd.core.errors import ConfigError, ImageError, ModelError
from patchsvdd.core.files import atomic_write, locked
from patchsvdd.core.progress import OnProgress
from patchsvdd.detector.base import Detector
from patchsvdd.detector.model_folder import read_index
from patchsvdd.images.image_set import load_image

Verdict = Literal["good", "anomalous"]
FOLDER = "golden"
INDEX = "golden.json"
TOLERANCE = 0.02
"""How far the score of an unchanged model may be from the recorded one, as a share of the threshold.

Engines and devices differ in the last digits, and an approximate search may find another neighbour.
"""
MOST = 100
"""Golden images of a model at most: all of them are inspected in a check."""


@dataclass(frozen=True)
class GoldenImage:
    """A golden image as recorded."""

    name: str
    verdict: Verdict
    """What the model must say."""
    score: float
    identity: str
    """The model that gave the score."""
    sha256: str


@dataclass(frozen=True)
class GoldenResult:
    """What became of a golden image in a check."""

    name: str
    expected: str
    recorded_score: float
    verdict: str | None = None
    score: float | None = None
    problem: str | None = None
    """Why the image failed; None if it passed."""


@dataclass(frozen=True)
class GoldenCheck:
    """The result of a check."""

    identity: str
    at: float
    results: tuple[GoldenResult, ...]
    damage: str | None = None
    """Why the images could not be checked at all."""

    @property
    def problem(self) -> str | None:
        """Why the check failed, in one line; None if it passed."""
        failed = [one for one in self.results if one.problem is not None]
        if self.damage is not None or not failed:
            return self.damage
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        return f"golden image '{failed[0].name}' {failed[0].problem}{more}"

    def to_json(self) -> dict[str, Any]:
        """The check as JSON."""
        at = datetime.fromtimestamp(self.at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        results = [{**asdict(one), "passed": one.problem is None} for one in self.results]
        facts = {"passed": self.problem is None, "problem": self.problem, "identity": self.identity, "at": at}
        return {**facts, "images": len(self.results), "results": results}


def golden_images(model: Path) -> list[GoldenImage]:
    """The golden images of a model folder, sorted by name; raise ModelError if their list is damaged."""
    path = model / FOLDER / INDEX
    if not path.exists():
        if any(_files(model / FOLDER)):
            raise ModelError(
                f"the list of golden images is missing: '{path.name}'; restore it, or add the images again"
            )
        return []
    try:
        stored = json.loads(path.read_bytes())
        images = [GoldenImage(**one) for one in stored["images"]]
        intact = stored["checksum"] == _checksum(images)
    except (OSError, ValueError, KeyError, TypeError):
        intact, images = False, []
    if not intact:
        raise ModelError(f"the list of golden images, '{path.name}', is damaged; restore it, or add the images again")
    return images


def add_golden_images(
    model: Path,
    detector: Detector,
    paths: Sequence[Path],
    verdict: str,
    *,
    force: bool = False,
    on_progress: OnProgress | None = None,
) -> list[GoldenImage]:
    """Store images with the verdict that the model must give, and return them. All or none are stored.

    An image of the same name is replaced. Raise ConfigError if the model says otherwise about one, unless ``force``.
    """
    if verdict not in get_args(Verdict):
        raise ConfigError(f"`verdict` must be good or anomalous; got '{verdict}'")
    if not paths:
        raise ConfigError("there is no image to add; name an image, or a folder with images")
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        raise ConfigError("golden images need different names; rename one of those with the same name")
    identity = detector.identity or str(read_index(model)["identity"])
    added: dict[str, tuple[GoldenImage, bytes]] = {}
    for number, path in enumerate(paths, start=1):
        data = _read(path)
        inspection = detector.inspect(path)
        if inspection.verdict != verdict and not force:
            raise ConfigError(
                f"the model says '{inspection.verdict}' about '{path.name}', not '{verdict}'; leave it out, or add it "
                f"with `force=True` if the model is wrong: its checks then fail until it is improved"
            )
        known: Any = verdict
        added[path.name] = (
            GoldenImage(path.name, known, inspection.score, identity, hashlib.sha256(data).hexdigest()),
            data,
        )
        if on_progress is not None:
            on_progress(number, len(paths))
    with locked(model, "changing its golden images"):
        kept = [one for one in _readable(model) if one.name not in added]
        images = [*kept, *(image for image, _ in added.values())]
        if len(images) > MOST:
            raise ConfigError(f"a model has at most {MOST} golden images; these would make {len(images)}")
        for name, (_, data) in added.items():
            with atomic_write(model / FOLDER / name) as file:
                file.write(data)
        _write(model, images)
    return [image for image, _ in added.values()]


def remove_golden_images(model: Path, names: Sequence[str]) -> None:
    """Remove golden images; raise ConfigError if one of the names is unknown."""
    with locked(model, "changing its golden images"):
        images = golden_images(model)
        for name in names:
            if name not in {one.name for one in images}:
                known = ", ".join(one.name for one in images) or "none"
                raise ConfigError(f"there is no golden image '{name}'; there are: {known}")
        left = [one for one in images if one.name not in names]
        _write(model, left)
        for name in names:
            (model / FOLDER / name).unlink(missing_ok=True)
        if not left:
            (model / FOLDER / INDEX).unlink(missing_ok=True)
            with suppress(OSError):  # it contains a user's file
                (model / FOLDER).rmdir()


def check_golden_images(
    model: Path,
    detector: Detector,
    *,
    tolerance: float = TOLERANCE,
    on_progress: OnProgress | None = None,
) -> GoldenCheck:
    """Inspect all golden images of a model and compare verdicts, and scores if the model has not changed since.

    A missing or damaged file is a failed check, not an error.
    """
    now = datetime.now(UTC).timestamp()
    identity = detector.identity or str(read_index(model)["identity"])
    try:
        images = golden_images(model)
    except ModelError as error:
        return GoldenCheck(identity, now, (), str(error))
    results = []
    for number, one in enumerate(images, start=1):
        results.append(_checked(model, detector, one, identity, tolerance))
        if on_progress is not None:
            on_progress(number, len(images))
    return GoldenCheck(identity, now, tuple(results))


def _checked(model: Path, detector: Detector, image: GoldenImage, identity: str, tolerance: float) -> GoldenResult:
    def result(problem: str | None, verdict: str | None = None, score: float | None = None) -> GoldenResult:
        return GoldenResult(image.name, image.verdict, image.score, verdict, score, problem)

    path = model / FOLDER / image.name
    try:
        data = path.read_bytes()
    except OSError as error:
        return result(f"cannot be read: {error.strerror or error}")
    if hashlib.sha256(data).hexdigest() != image.sha256:
        return result("was altered: its checksum does not match")
    try:
        inspection = detector.inspect_loaded([load_image(path, detector.config, image.name)])[0]
    except ImageError as error:
        return result(f"cannot be inspected: {error.reason}")
    verdict, score = inspection.verdict, inspection.score
    problem = None
    if verdict != image.verdict:
        problem = f"is judged '{verdict}', not '{image.verdict}' (score {score:.4g}, {image.score:.4g} before)"
    elif image.identity == identity and not _close(score, image.score, inspection.threshold, tolerance):
        problem = f"has the score {score:.6g}, but {image.score:.6g} was recorded with the same model"
    return result(problem, verdict, score)


def _close(score: float, recorded: float, threshold: float, tolerance: float) -> bool:
    unit = threshold if math.isfinite(threshold) and threshold > 0 else abs(recorded)
    return abs(score - recorded) <= tolerance * unit


def _readable(model: Path) -> list[GoldenImage]:
    """The golden images; none if their list is damaged, so that adding them again repairs it."""
    try:
        return golden_images(model)
    except ModelError:
        return []


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ImageError(os.fspath(path), f"cannot be read: {error.strerror or error}") from None


def _write(model: Path, images: Sequence[GoldenImage]) -> None:
    ordered = sorted(images, key=lambda one: one.name)
    content = {"images": [asdict(one) for one in ordered], "checksum": _checksum(ordered)}
    with atomic_write(model / FOLDER / INDEX) as file:
        file.write(json.dumps(content, indent=1).encode("ascii"))


def _checksum(images: Sequence[GoldenImage]) -> str:
    text = json.dumps([asdict(one) for one in images], sort_keys=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
