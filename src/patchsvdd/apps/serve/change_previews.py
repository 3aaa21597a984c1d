"""Previews of a job: what a change of a model would do, tried on a copy of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


def preview_change(
    order: dict[str, Any], change: Callable[[Path], dict[str, Any]], progress: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """Make a change to a copy of the model, and score the images of the job and others with it."""
    from patchsvdd.detector.detector import PatchSVDD

    copy = Path(order["folder"]) / "model"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(order["model"], copy, copy_function=_link)
    try:
        done = change(copy)
        detector = PatchSVDD.load(copy, order["device"])
        files = {path.name: path for part in ("images", "others") for path in sorted(Path(order[part]).glob("*"))}
        scores = {}
        for number, (name, path) in enumerate(files.items(), start=1):
            inspection = detector.inspect(path)
            scores[name] = {"score": inspection.score, "verdict": inspection.verdict}
            progress("comparing", number, len(files))
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    return {**done, "scores": scores}


def _link(source: str, target: str) -> None:
    """Hard-link a file, or copy it if that fails; a model's files are never modified in place."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
