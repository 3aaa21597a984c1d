"""Verdicts of inspectors from a CSV with the columns image, inspector, verdict and, if there are several, trial."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from patchsvdd.core.errors import DatasetError
from patchsvdd.evaluation.acceptance.agreement import MODEL

COLUMNS = ("image", "inspector", "verdict")
OPTIONAL = "trial"
WORDS = {"good": False, "defect": True}
"""Verdict → whether it says that the part is defective."""


@dataclass(frozen=True)
class Judgement:
    """One row."""

    row: int
    """Its number in a spreadsheet: the header is row 1."""
    image: str
    inspector: str
    trial: str
    is_defect: bool


@dataclass(frozen=True)
class Judgements:
    """The verdicts of all inspectors about the images that they all judged."""

    images: tuple[str, ...]
    verdicts: dict[str, NDArray[np.bool_]]
    """Inspector → (images, trials)."""
    ignored: int
    """Rows about images that were left out of the test."""


def read_judgements(path: Path) -> list[Judgement]:
    """The rows of a file; raise DatasetError if it has other columns, other verdicts, or a row twice."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise DatasetError(f"'{path}' cannot be read ({error.strerror or error}); check the path") from None
    except UnicodeDecodeError:
        raise DatasetError(f"'{path}' is not a CSV in UTF-8; save it as 'CSV UTF-8'") from None
    head = lines[0] if lines else ""
    reader = csv.DictReader(lines, delimiter=";" if head.count(";") > head.count(",") else ",", restval="")
    columns = [name.strip().lower() for name in reader.fieldnames or ()]
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise DatasetError(
            f"'{path}' has no column '{missing[0]}'; it needs image, inspector and verdict, and may have trial; "
            f"got {', '.join(columns) or 'an empty file'}"
        )
    reader.fieldnames = columns
    rows: list[Judgement] = []
    seen: dict[tuple[str, str, str], int] = {}
    for number, line in enumerate(reader, start=2):
        cells = {name: (line.get(name) or "").strip() for name in (*COLUMNS, OPTIONAL)}
        if not any(cells.values()):
            continue
        row = _judgement(path, number, cells)
        key = row.image, row.inspector, row.trial
        if key in seen:
            raise DatasetError(
                f"'{path}', rows {seen[key]} and {number}: {row.inspector} judges '{row.image}' twice in the same "
                f"trial; remove one of the rows, or number the trials in a column 'trial'"
            )
        seen[key] = number
        rows.append(row)
    if not rows:
        raise DatasetError(f"'{path}' has no verdict; give a row per image and inspector")
    return rows


def _judgement(path: Path, number: int, cells: Mapping[str, str]) -> Judgement:
    for name in COLUMNS:
        if not cells[name]:
            raise DatasetError(f"'{path}', row {number}: '{name}' is empty")
    verdict = WORDS.get(cells["verdict"].lower())
    if verdict is None:
        raise DatasetError(f"'{path}', row {number}: the verdict must be good or defect; got '{cells['verdict']}'")
    if cells["inspector"].lower() == MODEL:
        raise DatasetError(f"'{path}', row {number}: an inspector cannot be named '{MODEL}'; choose another name")
    return Judgement(number, cells["image"].replace("\\", "/"), cells["inspector"], cells[OPTIONAL] or "1", verdict)


def match_judgements(
    rows: Sequence[Judgement], names: Mapping[str, Sequence[str]], tested: Sequence[str], path: Path
) -> Judgements:
    """The verdicts by image and inspector.

    ``names``: a name that a file may use → the images that it can mean. ``tested``: the images with a verdict of the
    model. Raise DatasetError if an image is unknown, or if the inspectors did not all judge the same images.
    """
    known = set(tested)
    given: dict[str, dict[str, dict[str, bool]]] = {}  # image → inspector → trial → verdict
    ignored = 0
    for row in rows:
        meant = names.get(row.image, ())
        if len(meant) != 1:
            raise DatasetError(_not_one(path, row, meant))
        if meant[0] not in known:
            ignored += 1
            continue
        trials = given.setdefault(meant[0], {}).setdefault(row.inspector, {})
        if row.trial in trials:
            raise DatasetError(
                f"'{path}', row {row.row}: {row.inspector} judges '{meant[0]}' twice in the same trial, under two names"
            )
        trials[row.trial] = row.is_defect
    if not given:
        raise DatasetError(f"'{path}' judges no image that the model was tested with; check the names of the images")
    inspectors = sorted({row.inspector for row in rows})
    images = tuple(image for image in tested if image in given)
    verdicts = {}
    for inspector in inspectors:
        trials_of = {row.trial for row in rows if row.inspector == inspector}
        order = sorted(trials_of, key=lambda trial: (len(trial), trial))
        for image in images:
            missing = [trial for trial in order if trial not in given[image].get(inspector, {})]
            if missing:
                trial = f" in trial {missing[0]}" if len(order) > 1 else ""
                raise DatasetError(
                    f"'{path}': {inspector} did not judge '{image}'{trial}; every inspector must judge the same "
                    f"images, equally often"
                )
        verdicts[inspector] = np.array([[given[image][inspector][trial] for trial in order] for image in images])
    return Judgements(images, verdicts, ignored)


def _not_one(path: Path, row: Judgement, meant: Sequence[str]) -> str:
    if meant:
        return f"'{path}', row {row.row}: '{row.image}' can be {' or '.join(map(repr, meant[:2]))}; write one of them"
    return (
        f"'{path}', row {row.row}: the model did not inspect '{row.image}'; name an image of `good` or `defects` by "
        f"its path in that folder"
    )


def file_digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
