from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import study
import study_pictures
from patchsvdd.core.presets import preset


def pictures(labels: list[bool], marked: list[bool]) -> study_pictures.Pictures:
    """Test images (T, 3, 8, 8) of which some have a mask of four pixels."""
    count = len(labels)
    masks = torch.zeros(count, 8, 8, dtype=torch.bool)
    masks[torch.tensor(marked), 2:4, 2:4] = True
    known = ~torch.tensor(labels) | torch.tensor(marked)
    empty = torch.zeros(count, 3, 8, 8, dtype=torch.uint8)
    weights = torch.full((int(masks.sum()),), 0.25, dtype=torch.float64)
    return study_pictures.Pictures(empty, empty, torch.tensor(labels), masks, known, weights)


def maps(labels: list[bool]) -> torch.Tensor:
    found = torch.rand(len(labels), 8, 8, generator=torch.Generator().manual_seed(0))
    found[torch.tensor(labels), 2:4, 2:4] += 2
    return found


class TestMetrics:
    def test_all_labels(self) -> None:
        labels = [False, True, True]
        found = study_pictures.test_metrics(pictures(labels, labels), maps(labels))
        assert found == {"detection_auroc": 1.0, "segmentation_auroc": 1.0, "aupro": 1.0}

    def test_no_good_images(self) -> None:
        labels = [True, True]
        found = study_pictures.test_metrics(pictures(labels, labels), maps(labels))
        assert found["detection_auroc"] is None
        assert found["segmentation_auroc"] == 1.0

    def test_no_masks(self) -> None:
        labels = [False, True]
        found = study_pictures.test_metrics(pictures(labels, [False, False]), maps(labels))
        assert found == {"detection_auroc": 1.0, "segmentation_auroc": None, "aupro": None}

    def test_a_defect_without_a_mask_is_no_good_ground(self) -> None:
        labels = [False, True, True]
        found = study_pictures.test_metrics(pictures(labels, [False, True, False]), maps(labels))
        assert found["segmentation_auroc"] == 1.0


@pytest.mark.parametrize("setting", study.SETTINGS)
def test_every_setting_can_be_used(setting: str) -> None:
    config = study.Job("part", setting, 3).config(None)
    assert config.seed == 3
    assert config.steps is not None
    assert study.Job("part", setting, 3).config(5).steps == 5


def test_no_setting_is_there_twice() -> None:
    configs = [study.Job("part", setting, 0).config(None) for setting in study.SETTINGS]
    assert len(set(configs)) == len(configs)
    assert preset("encoder", **study.BASE) == configs[0]


def test_files_are_named_after_their_job() -> None:
    names = {study.Job("part", setting, 0).file_name for setting in study.SETTINGS}
    assert len(names) == len(study.SETTINGS)
    assert study.Job("part", "lamp .5, lambda 1", 2).file_name == "part-lamp-.5-lambda-1-2.safetensors"


class TestRows:
    def test_a_row_keeps_five_looks_and_five_digits(self) -> None:
        history = [{"step": step, "scales": {"32": {"spread": 0.000123456789}}} for step in range(100)]
        row = study.short({"seed": 7, "collapsed": None, "seconds": 12.3456789, "history": history})
        assert [look["step"] for look in row["history"]] == [0, 25, 50, 74, 99]
        assert row["history"][0]["scales"]["32"]["spread"] == 0.00012346
        assert (row["seed"], row["collapsed"], row["seconds"]) == (7, None, 12.346)

    def test_short_rows_stay_as_they_are(self) -> None:
        row: dict[str, Any] = {"changes": {"scales": study.THREE_SCALES[:1]}, "history": [], "error": "no"}
        once = study.short(row)
        assert once == {"changes": {"scales": [{"patch_size": 32, "stride": 4}]}, "history": [], "error": "no"}
        assert study.short(once) == once

    def test_a_file_is_continued(self, tmp_path: Path) -> None:
        path, about = tmp_path / "study.json", {"hardware": "a machine", "commit": "b"}
        row = {"category": "part", "setting": "base", "seed": 0, "seconds": 1 / 3}
        study.Study(path, about).add(row)
        later = study.Study(path, about)
        later.add(row | {"seed": 1, "error": "no"})
        assert later.done() == {study.Job("part", "base", 0)}
        written = json.loads(path.read_text())
        assert written["hardware"] == "a machine"
        assert [one["seconds"] for one in written["rows"]] == [0.33333, 0.33333]

    def test_a_continued_file_keeps_its_remark_and_its_commits(self, tmp_path: Path) -> None:
        path = tmp_path / "study.json"
        path.write_text(json.dumps({"commit": "c, a", "remark": "edited by hand", "rows": [{"seed": 0}]}))
        study.Study(path, {"commit": "b"}).write()
        written = json.loads(path.read_text())
        assert (written["commit"], written["remark"]) == ("a, b, c", "edited by hand")
