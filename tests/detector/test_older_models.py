"""A model that version 0.1.0 wrote is read, gives the same scores, and promises no more than it can."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.recalibration import recalibrate
from patchsvdd.report.detector_card import detector_card
from support.command_line import run
from support.parts import ROOT, draw_part


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six drawn parts, 64 px, a tiny critic, 200 patches per scale."""
    where = tmp_path_factory.mktemp("older")
    with tarfile.open(ROOT / "tests" / "data" / "model-0.1.0.tar.xz") as archive:
        archive.extractall(where, filter="data")
    return where / "model-0.1.0"


def test_scores_are_those_of_then(folder: Path) -> None:
    detector = PatchSVDD.load(folder, "cpu")
    assert detector.provenance["versions"]["patchsvdd"] == "0.1.0"
    assert detector.threshold == pytest.approx(2.2749993801116943)
    scores = [detector.inspect(draw_part(50, defect=defect)).score for defect in (False, True)]
    assert scores == pytest.approx([1.6105895042419434, 2.3602609634399414], rel=1e-3)


def test_its_card_says_what_it_can_promise(folder: Path) -> None:
    detector = PatchSVDD.load(folder, "cpu")
    assert detector.calibration is not None
    assert detector.calibration.basis == "tuned"
    card = detector_card(detector, "part")
    assert card.rate is None
    assert card.promise.startswith("No false-alarm rate is guaranteed: the images that set the threshold also set")
    assert "at most" not in card.promise


def test_separate_images_give_it_a_guarantee(folder: Path) -> None:
    detector = PatchSVDD.load(folder, "cpu")
    done = recalibrate(detector, [draw_part(seed) for seed in range(60, 72)], 0.1)
    assert (done.separate, done.calibration.is_guaranteed) == (12, True)
    assert detector_card(detector, "part").rate == pytest.approx(1 / 13)


def test_the_command_line_reads_it(folder: Path) -> None:
    assert json.loads(run("info", folder, "--json").stdout)["config"]["preset"] == "best"
