"""Reviews from the CSV of the service's history."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from patchsvdd.core.errors import DatasetError
from patchsvdd.scoring.reviewed import IS_DEFECT, InspectedPart, Reviews

REQUIRED = ("score", "verdict", "review")
VERDICTS = ("good", "anomalous")
NOT_DECIDED = ("", "unsure")
FITTING = {"good": ("confirmed_good", "true_defect"), "anomalous": ("false_alarm", "true_defect")}
"""Verdict → the reviews it may have."""
SAMPLED = {"yes": True, "no": False, "": False}
MOST_BROKEN = 0.1
"""Largest share of rows that may be broken; with more it is another kind of file."""
LONGEST_FIELD = 1_000_000
"""Characters in a field; a note may be long."""


@dataclass
class ReviewFile:
    """What a file of inspections says about a model."""

    reviews: Reviews
    rows: int = 0
    broken: list[str] = field(default_factory=list)
    """What is wrong with rows that were skipped, with their numbers."""
    repeated: list[int] = field(default_factory=list)
    """Numbers of rows that repeat an earlier one."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Why rows were not used → how many."""
    cautions: list[str] = field(default_factory=list)
    """What the file does not say, and what that means."""


@dataclass(frozen=True)
class _Row:
    """A row that can be used."""

    score: float
    verdict: str
    review: str
    is_sampled: bool | None
    """Whether the part was drawn at random; None if the file does not say."""


def read_reviews(path: Path, identity: str, threshold: float) -> ReviewFile:
    """Read inspections with their reviews, as far as they are of the model with this identity and threshold.

    Row numbers are those of a spreadsheet: the header is row 1. Raise DatasetError if the file cannot be used. Broken
    rows are reported and skipped, if they are few.
    """
    found = ReviewFile(Reviews(threshold, (), 0, 0))
    used: list[_Row] = []
    seen: dict[str, tuple[int, Mapping[str, str]]] = {}
    columns: set[str] = set()
    for number, row, problem in _rows(path):
        columns |= set(row)
        found.rows += 1
        if problem:
            found.broken.append(f"row {number}: {problem}")
            continue
        name = row.get("id", "")
        if name and name in seen:
            first, other = seen[name]
            if row == other:
                found.repeated.append(number)
            else:
                found.broken.append(f"row {number}: the part {name} is in row {first} too, with other content")
            continue
        seen[name] = number, row
        if row.get("version", identity) != identity:
            found.left_out["another version of the model"] += 1
            continue
        try:
            used.append(_checked(row, threshold))
        except ValueError as error:
            found.broken.append(f"row {number}: {error}")
    _require_few_broken(found, path)
    for row_ in used:
        if row_.review == "unsure":
            found.left_out["reviewed as unsure"] += 1
        elif row_.review and row_.verdict == "good" and row_.is_sampled is False:
            found.left_out["called good and not drawn at random for review"] += 1
    found.reviews = Reviews.of(
        threshold, (InspectedPart(one.score, IS_DEFECT.get(one.review), one.is_sampled is not False) for one in used)
    )
    found.cautions = list(_cautions(found.reviews, columns))
    return found


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str], str]]:
    """Rows, their numbers, and what is wrong with them. A spreadsheet may have saved them with semicolons or tabs."""
    csv.field_size_limit(LONGEST_FIELD)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = file.readline()
            separator = max(",;\t", key=header.count)
            columns = [name.strip().lower() for name in next(csv.reader([header], delimiter=separator), [])]
            missing = [name for name in REQUIRED if name not in columns]
            if missing:
                raise DatasetError(
                    f"'{path}' has no column {' and no column '.join(missing)}; save the service's history as CSV "
                    f"(History, Save as CSV) and give that file"
                )
            for number, cells in enumerate(csv.reader(file, delimiter=separator), start=2):
                if not any(cells):
                    continue
                problem = "" if len(cells) == len(columns) else f"it has {len(cells)} cells instead of {len(columns)}"
                row = {**dict.fromkeys(columns, ""), **dict(zip(columns, map(str.strip, cells), strict=False))}
                if separator == ";":
                    row["score"] = row["score"].replace(",", ".")
                yield number, row, problem
    except (UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(f"'{path}' is not a CSV file in UTF-8 ({error})") from None
    except OSError as error:
        raise DatasetError(f"'{path}' cannot be read ({error.strerror}); check the path") from None


def _checked(row: Mapping[str, str], threshold: float) -> _Row:
    """The row; raise ValueError with what is wrong with it."""
    written, verdict, review = (row.get(name, "") for name in REQUIRED)
    try:
        score = float(written)
    except ValueError:
        raise ValueError(f"the score '{written}' is not a number") from None
    if not math.isfinite(score) or score < 0:
        raise ValueError(f"the score {written} is not possible")
    if verdict not in VERDICTS:
        raise ValueError(f"the verdict '{verdict}' is neither good nor anomalous")
    if review not in NOT_DECIDED and review not in IS_DEFECT:
        raise ValueError(f"the review '{review}' is not one of {', '.join(IS_DEFECT)}, unsure")
    if review in IS_DEFECT and review not in FITTING[verdict]:
        raise ValueError(f"the review {review} does not fit the verdict {verdict}")
    if (score > threshold) != (verdict == "anomalous") and not math.isclose(score, threshold, rel_tol=1e-6):
        raise ValueError(
            f"the verdict is {verdict}, but the score {score:.6g} does not fit the threshold {threshold:.6g}"
        )
    sampled = row.get("sample")
    if sampled is not None and sampled.lower() not in SAMPLED:
        raise ValueError(f"the sample '{sampled}' is neither yes nor empty")
    return _Row(score, verdict, review, None if sampled is None else SAMPLED[sampled.lower()])


def _require_few_broken(found: ReviewFile, path: Path) -> None:
    if found.rows == 0:
        raise DatasetError(f"'{path}' has no rows below its header")
    if len(found.broken) > max(1, MOST_BROKEN * found.rows):
        raise DatasetError(
            f"{len(found.broken)} of {found.rows} rows of '{path}' cannot be used, for example: "
            f"{'; '.join(found.broken[:3])}"
        )


def _cautions(reviews: Reviews, columns: set[str]) -> Iterator[str]:
    """What to know about the file."""
    if "version" not in columns:
        yield "the file does not say which version of the model gave the scores; all rows were used"
    if "sample" not in columns:
        yield (
            "the file does not say which parts called good were drawn at random; all that were reviewed were used, and "
            "if people picked them, the estimate of misses is wrong"
        )
    reviewed = len(reviews.scores(alarms=False))
    if reviewed and reviewed == reviews.good:
        yield (
            "every part called good in the file was reviewed: if the file holds reviewed parts only, misses are "
            "underestimated. Save the whole history, not a selection by review"
        )
