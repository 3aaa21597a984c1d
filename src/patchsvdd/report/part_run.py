"""Inspect parts with several views into a folder: a run of results for each view, and a row for each part.

parts.jsonl    a row for each part: verdict, score, p-value, missing views, and each view's score and limit
parts.csv      the same for spreadsheets
VIEW/          what ``inspection_run`` writes for the images of that view
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchsvdd.core.files import atomic_write
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.parts import PartInspector
from patchsvdd.images.part_files import PartFiles
from patchsvdd.report.detector_card import detector_card
from patchsvdd.report.inspection_run import InputImage, InspectionInputs, file_state, inspect_into
from patchsvdd.report.results_file import ResultsFile
from patchsvdd.report.rows import Row, json_line
from patchsvdd.scoring.part_calibration import PartCalibration

ROWS = "parts.jsonl"
TABLE = "parts.csv"
WORST_FIRST = ("anomalous", "incomplete", "good")
OnImage = Callable[[int, int, Row | None], None]
"""Called with the images done, their total, and the row just written."""


@dataclass(frozen=True)
class PartRun:
    """What a run found."""

    rows: tuple[Row, ...]
    """The rows of ``parts.jsonl``, worst first."""

    @property
    def counts(self) -> dict[str, int]:
        """Verdict → number of parts."""
        counted = Counter(row["verdict"] for row in self.rows)
        return {verdict: counted[verdict] for verdict in WORST_FIRST}

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {"parts": len(self.rows), **self.counts, "rows": list(self.rows)}


def inspect_parts_into(
    folder: Path,
    inspector: PartInspector,
    files: PartFiles,
    source: Path,
    *,
    overwrite: bool = False,
    on_image: OnImage | None = None,
) -> PartRun:
    """Inspect the parts of ``files``, found below ``source``, into ``folder``. A second run continues the first.

    A file that cannot be read is reported in its row, and the part is without that view.
    """
    assert inspector.calibration is not None
    total = sum(len(views) for views in files.parts.values())
    done = 0
    found: dict[str, dict[str, Row]] = {}
    for view, model in inspector.models.items():
        assert isinstance(model, PatchSVDD)
        inputs = _inputs(files, view, source)
        before = done

        def report(finished: int, _: int, row: Row | None, start: int = before) -> None:
            if on_image is not None:
                on_image(start + finished, total, row)

        inspect_into(
            folder / view,
            model,
            inputs,
            model_name=view,
            card=detector_card(model, view),
            overwrite=overwrite,
            on_progress=report,
        )
        done += len(inputs.images)
        found[view] = {row["image"]: row for row in ResultsFile(folder / view).rows_worst_first()}
    rows = [_row(part, views, source, found, inspector.calibration) for part, views in files.parts.items()]
    rows.sort(key=lambda row: (WORST_FIRST.index(row["verdict"]), -(row["score"] or 0.0), row["part"]))
    with atomic_write(folder / ROWS) as file:
        file.writelines(json_line(row) for row in rows)
    _write_table(folder / TABLE, rows, inspector.calibration.names)
    return PartRun(tuple(rows))


def _inputs(files: PartFiles, view: str, source: Path) -> InspectionInputs:
    paths = [views[view] for views in files.parts.values() if view in views]
    images = [InputImage(_name(path, source), path, file_state(path)) for path in paths]
    return InspectionInputs([source], images, {})


def _row(
    part: str, views: Mapping[str, Path], source: Path, found: Mapping[str, Mapping[str, Row]], limits: PartCalibration
) -> Row:
    rows = {view: found[view][_name(path, source)] for view, path in views.items()}
    judged = limits.judge({view: row["score"] for view, row in rows.items() if "error" not in row})
    of_views = {}
    for one in limits.views:
        if one.view not in judged.relative:
            continue
        row = rows[one.view]
        of_views[one.view] = {
            **{"image": row["image"], "score": row["score"], "limit": one.limit},
            **{"relative": judged.relative[one.view], "regions": len(row["regions"])},
            "overlay": f"{one.view}/{row['overlay']}",
        }
    return {
        "part": part,
        "verdict": judged.verdict,
        "score": judged.score,
        "p_value": judged.p_value,
        "missing": list(judged.missing),
        "errors": {view: row["error"] for view, row in rows.items() if "error" in row},
        "views": of_views,
    }


def _write_table(path: Path, rows: list[Row], views: tuple[str, ...]) -> None:
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["part", "verdict", "score", "p_value", "missing", *views])
    for row in rows:
        relative = [row["views"].get(view, {}).get("relative") for view in views]
        table.writerow([row["part"], row["verdict"], row["score"], row["p_value"], " ".join(row["missing"]), *relative])
    with atomic_write(path) as file:
        file.write(text.getvalue().encode("utf-8", "backslashreplace"))


def _name(path: Path, source: Path) -> str:
    return path.relative_to(source).as_posix()
