"""A training of the service that is stopped at any moment loses no step."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from patchsvdd.apps.serve import job_process as work
from patchsvdd.core.errors import Interrupted
from support.parts import TINY


def test_a_training_stopped_while_it_reports_goes_on_with_the_next_step(
    good_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = {
        "kind": "train",
        "number": "1",
        "model": str(tmp_path / "model"),
        "device": "cpu",
        "images": str(good_folder),
        "preset": "encoder",
        "settings": {**TINY, "steps": 6},
        "folder": str(tmp_path),
        "again": False,
    }
    stopped, steps = threading.Event(), []

    def hear(**said: Any) -> None:
        if "losses" in said:
            steps.append(said["losses"]["step"])
            if len(steps) == 3:
                stopped.set()

    monkeypatch.setattr(work, "send", hear)
    with pytest.raises(Interrupted, match="step 3 of 6"):
        work.train(order, work.Progress(stopped))
    stopped.clear()
    done = work.train({**order, "again": True}, work.Progress(stopped))
    assert steps == [1, 2, 3, 4, 5, 6]
    assert done["images"] == 4
    assert {"picture-1.jpg", "step-0000000-1.jpg", "final-1.jpg"} <= {path.name for path in tmp_path.glob("pictures/*")}
